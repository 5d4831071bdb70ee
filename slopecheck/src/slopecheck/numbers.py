"""Checks of the spread of NaN, and of results in float32."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from slopecheck.curves import BETTER
from slopecheck.identities import IdentityChecks, find_largest_magnitude
from slopecheck.outcome import describe_exception
from slopecheck.problem import DERIVATIVES, Arrays, compute_rms_or_one, dot_with_magnitude
from slopecheck.record import Check
from slopecheck.tolerances import EPS, MARGIN, RESPONSE, ROUNDING

# Number of elements of each input that are set to NaN, and number of random points that show which outputs depend on
# these elements. Many points are needed, because a ReLU unit is inactive at half of them.
SPOILT, ELSEWHERE = 6, 40
SPLITS = 3  # number of random splits of the elements into halves whose effects must add up
FLOAT32 = EPS["float32"]
LARGEST, SMALLEST = float(np.finfo("float32").max), float(np.finfo("float32").tiny)
SCALED = "rescaled inputs would decide"
COARSE = (2.0**-20, 2.0**-12, 2.0**-4)  # relative steps that reveal the rounding of a function in float32


class NanAndFloat32Checks(IdentityChecks):
    """Checks of one function with NaN in its inputs and in float32."""

    def check_nan(self) -> Iterator[Check]:
        """Check that a NaN in an input element reaches only outputs that depend on this element at some point."""
        p = self.p
        for k, x in enumerate(p.x):
            if not x.size:
                continue
            try:
                chosen = p.rng.permutation(x.size)[:SPOILT]
                spreads = ((int(flat), self._mark_nan_spread(k, int(flat))) for flat in chosen)
                flat, spread = next(((flat, masks) for flat, masks in spreads if masks), (0, []))
                if spread:  # use the gradient, because a change may be below the output's last bit
                    w = [np.where(mask, w, 0.0) if w.size else w for w, mask in zip(self.w, spread, strict=True)]
                    spread = [] if abs(p.compute_gradients(p.x, w)[k].flat[flat]) > 0 else spread
                unsure = bool(spread) and not self._is_sum_of_elements(k, flat, [bool(mask.any()) for mask in spread])
            except Exception as error:  # a function may refuse NaN and distant points
                yield self.make_check(
                    "nan", self._name_input(k), 1.0, 0.0, describe_exception(error), kind="not offered"
                )
                continue
            number = sum(int(np.count_nonzero(mask)) for mask in spread)
            problem = f"{number} elements of outputs became NaN but do not depend on the element"
            if unsure:
                problem += ": 0 * NaN where a computed factor is zero, as behind an attention mask; "
                problem += "whether the input may hold NaN there decides"
            yield self.make_check(0, self._name_input(k), float(number), 0.0, problem, inconclusive=unsure)

    def _is_sum_of_elements(self, k: int, flat: int, chosen: Sequence[bool]) -> bool:
        """Return whether each chosen output is a sum of terms that depend on a single input element each.

        If so, a zero that multiplies an element is a constant, not computed from other elements. The element `flat` of
        input `k` is not changed.
        """
        p = self.p
        for _ in range(SPLITS):
            moves = [(p.draw_direction(x), p.rng.random(x.shape) < 0.5) for x in p.x]
            moves[k][0].flat[flat] = 0.0
            one, other = [v * half for v, half in moves], [v * ~half for v, half in moves]
            corners = [
                p.compute_outputs([x + a * v + b * u for x, v, u in zip(p.x, one, other, strict=True)])
                for a, b in ((0, 0), (1, 0), (0, 1), (1, 1))
            ]
            for wanted, *ys in zip(chosen, *corners, strict=True):
                mixed = abs(ys[3] - ys[1] - ys[2] + ys[0])
                if wanted and not (mixed <= ROUNDING * sum(abs(y) for y in ys)).all():
                    return False
        return True

    def _yield_points_with_outputs(self) -> Iterator[tuple[Arrays, Arrays]]:
        """Yield the original point, then random points, each with its outputs."""
        yield self.p.x, self.y
        for n in range(ELSEWHERE):
            if n == len(self.elsewhere):
                point = [self.p.draw_direction(a) for a in self.p.x]
                self.elsewhere.append((point, self.p.compute_outputs(point)))
            yield self.elsewhere[n]

    def _mark_nan_spread(self, k: int, flat: int) -> list[np.ndarray]:
        """Mark output elements that vary and never depend on an input element, but become NaN with the element.

        Return a mask for each output, or an empty list if no element is marked.
        """

        def compute_outputs_with_changed_element(point: Arrays, value: float) -> Arrays:
            changed = [a.copy() for a in point]
            changed[k].flat[flat] = value
            return self.p.compute_outputs(changed)

        size = float(abs(self.p.x[k]).max())
        suspects = [
            np.isnan(bad) & ~np.isnan(y)
            for bad, y in zip(compute_outputs_with_changed_element(self.p.x, math.nan), self.y, strict=True)
        ]
        varied = [np.zeros(y.shape, bool) for y in self.y]
        for n, (point, values) in enumerate(self._yield_points_with_outputs()):
            for factor in (-3.0, 0.5, 3.0) if n == 0 else ((-1.0) ** n * 3,):
                if not any(s.any() for s in suspects):
                    return []
                other = compute_outputs_with_changed_element(point, factor * size + 0.25)
                if any(a.shape != y.shape for a, y in zip((*other, *values), (*self.y, *self.y), strict=True)):
                    return []
                suspects = [s & (a == b) for s, a, b in zip(suspects, other, values, strict=True)]
            for v, a, y in zip(varied, values, self.y, strict=True):  # mark elements that changed by more than rounding
                v |= abs(a - y) > ROUNDING * (abs(a) + abs(y))
        masks = [s & v for s, v in zip(suspects, varied, strict=True)]
        return masks if any(mask.any() for mask in masks) else []

    def check_float32(self) -> Iterator[Check]:
        """Check that results in float32 agree with float64 up to the effect of rounding the inputs."""
        p = self.p
        for k, x in enumerate(p.x):
            sizes = abs(x[x != 0])
            if sizes.size and not (sizes.max() <= LARGEST and sizes.min() >= SMALLEST):
                note = f"numbers from {sizes.min():.0e} to {sizes.max():.0e} are beyond float32; {SCALED}"
                yield self.make_check("float32", self._name_input(k), 1.0, 0.0, note, kind="not offered")
                return
        small = [x.astype(np.float32) for x in p.x]
        exact = [x.astype(np.float64) for x in small]

        def clip_weights(weights: Arrays) -> Arrays:
            return [np.copysign(np.clip(abs(w), 2.0**-60, 2.0**60), w) for w in weights]

        rest = [
            [a.astype(np.float32) for a in arrays]
            for arrays in (clip_weights(self.w), self.u, self.v, clip_weights(self.h))
        ]
        same = [[a.astype(np.float64) for a in arrays] for arrays in rest]

        def compute_all_results(x: Arrays, *rest: Arrays) -> Arrays:
            return self._compute_flat_results(p.make_arguments(x, *rest))

        parts = self._compute_results(p.make_arguments(exact, *same))
        cases = [(order, i) for order, part in enumerate(parts) for i in range(len(part))]
        try:
            results = compute_all_results(small, *rest)
        except Exception as error:  # a function with float64 parameters may refuse float32
            yield self.make_check("float32", "all inputs", 1.0, 0.0, describe_exception(error), kind="not offered")
            return
        moved = [compute_all_results(*(p.perturb_randomly(a, FLOAT32) for a in (exact, *same))) for _ in range(3)]
        last = self._estimate_float32_last_bits(parts, exact, *same)
        noise: list[float] = []
        for n, ((order, i), got) in enumerate(zip(cases, results, strict=True)):
            expected = parts[order][i]
            if not expected.size:
                continue
            scale = float(abs(expected).max())
            label = f"{DERIVATIVES[order]} in {self._name_argument(i)}" if order else f"output {i}"
            response = float(np.max([abs(m[n] - expected) for m in moved])) + FLOAT32 * scale + self.accuracy * scale
            gap = float(abs(got.astype(np.float64) - expected).max()) if got.shape == expected.shape else math.inf
            allowed, problem, unsure = RESPONSE * (response + last[n]), "", False
            if not gap <= allowed:
                noise = noise or self._estimate_float32_noise(rest)
                if not (math.isfinite(response) and scale <= LARGEST and (scale >= SMALLEST or scale == 0)):
                    note = f"numbers up to {scale:.1e} are beyond float32, or its inputs leave the domain; {SCALED}"
                    yield self.make_check("float32", label, 1.0, 0.0, note, kind="not offered")
                    continue
                unsure = gap <= MARGIN * noise[n] or RESPONSE * response >= scale
                problem = f"differs from float64 by {gap:.1e}, of numbers up to {scale:.1e}"
                problem += f", which may all be rounding in float32; {BETTER}" * unsure
            yield self.make_check(order, label, gap, allowed, problem, inconclusive=unsure)

    def _estimate_float32_last_bits(
        self, results: Sequence[Arrays], x: Arrays, w: Arrays, u: Arrays, v: Arrays, h: Arrays
    ) -> list[float]:
        """Return for each result the value whose effect, for steps of the inputs' size, is the last bit of float32."""
        outputs = [a for a in results[0] if a.size]
        sums = dot_with_magnitude([a for a in w if a.size], outputs)[1]
        bits = [0.0] * len(results[0]) + [FLOAT32 * sums / compute_rms_or_one(a) for a in x]
        if len(self.orders) >= 2:
            sums += dot_with_magnitude(u, results[1])[1]
            bits += [FLOAT32 * sums / compute_rms_or_one(a) for a in x] + [
                FLOAT32 * find_largest_magnitude(y) for y in outputs
            ]
        if len(self.orders) == 3:
            of_cotangents = results[2][len(x) :]
            others = [a for a in h if a.size]
            sums += dot_with_magnitude(v, results[1])[1] + dot_with_magnitude(others, outputs)[1]
            sums += dot_with_magnitude(v, results[2][: len(x)])[1] + dot_with_magnitude(others, of_cotangents)[1]
            of_inputs = [FLOAT32 * sums / compute_rms_or_one(a) for a in x]
            of_outputs = [
                FLOAT32 * (find_largest_magnitude(y) + find_largest_magnitude(s))
                for y, s in zip(outputs, of_cotangents, strict=True)
            ]
            bits += of_inputs + of_outputs + of_inputs  # directions are as large as the inputs
        return bits

    def _estimate_float32_noise(self, rest: Sequence[Arrays]) -> list[float]:
        """Return the standard deviation of the float32 rounding of each result.

        It is estimated from fourth differences of the float32 errors along a direction, because errors of the function
        itself change smoothly.
        """
        p, same = self.p, [[a.astype(np.float64) for a in arrays] for arrays in rest]
        deviations = []
        for step in COARSE:
            errors = []
            for number in range(9):
                small = [(x + number * step * v).astype(np.float32) for x, v in zip(p.x, self.u, strict=True)]
                right = self._compute_flat_results(p.make_arguments([x.astype(np.float64) for x in small], *same))
                found = self._compute_flat_results(p.make_arguments(small, *rest))
                errors.append([a - b for a, b in zip(found, right, strict=True)])
            fourths = [np.diff(values, 4, axis=0) for values in zip(*errors, strict=True)]
            deviations.append([np.sqrt(np.mean(np.square(f), axis=0) / 70).max(initial=0.0) for f in fourths])
        return [float(max(pair)) for pair in zip(*deviations, strict=True)]
