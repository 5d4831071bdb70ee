"""Base class of the checks of `check_derivatives`, with the identities between derivatives of one order."""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from slopecheck.curves import BETTER, ArrayWithRounding
from slopecheck.problem import (
    DERIVATIVES,
    Arrays,
    DerivativeArguments,
    FunctionAtPoint,
    InvalidResultError,
    dot_with_magnitude,
)
from slopecheck.record import Check
from slopecheck.tolerances import EPS, MARGIN, ROUNDING, UNSURE

EPSILON = EPS["float64"]
PARTS = tuple(f"{name}s" for name in DERIVATIVES)
STIRS = (2.0**-52, 2.0**-44, 2.0**-35, 2.0**-26)  # relative perturbations that reveal the rounding of results
# The weight of an output is the reciprocal of its size, so that small outputs count as much as large ones. Rounding
# errors above KNOWN times the size increase the size; an output with errors above LOST times the size is not judged.
KNOWN, LOST = 2.0**-44, 2.0**-24
PATIENCE = 5.0  # least time limit of later calls in seconds; NaN and float32 keep some loops from ending
BITS = 12  # numbers of at most this many mantissa bits are no evidence of float32
Sides = tuple[tuple[float, float], ...]  # sums that must be equal, each with the sum of its |terms|


def mark_float32_numbers(numbers: np.ndarray, near: float = 0.0, bits: int = BITS) -> np.ndarray:
    """Mark numbers that are close to float32 numbers, except integers and numbers of at most `bits` mantissa bits."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = numbers.astype(np.float32).astype(np.float64)
        close = abs(numbers - rounded) <= near * abs(numbers)
        return np.asarray(close & (np.ldexp(np.frexp(rounded)[0], bits) % 1 != 0) & (rounded % 1 != 0))


class IdentityChecks:
    """Weighted sums of a problem's outputs and derivatives, and the identities between the derivatives."""

    kind = ""  # kind of the checks in progress

    def __init__(self, problem: FunctionAtPoint, name: str, order: int, accuracy: float = 0.0) -> None:
        self.p, self.name, self.orders, self.accuracy = problem, name, range(1, order + 1), accuracy
        start = time.perf_counter()
        self.y = problem.compute_outputs(problem.x)
        self.seconds = time.perf_counter() - start
        problem.patience = max(PATIENCE, 1000 * self.seconds)
        if not any(y.size for y in self.y):
            raise InvalidResultError("no output has an element of a floating dtype")
        self.u = [problem.draw_direction(x) for x in problem.x]
        self.sizes, self.lost = self._estimate_output_magnitudes()
        self.w = self._draw_scaled_cotangents()
        # Third derivatives differentiate a sum of second derivatives with these directions and output weights.
        third = order == 3
        self.v = [problem.draw_direction(x) for x in problem.x] if third else []
        self.h = self._draw_scaled_cotangents() if third else []
        self.still = [np.zeros_like(w) for w in self.h]  # zeros in place of `h`
        self.rest = [self.w, self.u, self.v, self.h]  # arguments of derivatives other than the inputs
        # Cached random points and their outputs; the function and the seed do not change during these checks.
        self.elsewhere: list[tuple[Arrays, Arrays]] = []

    def _estimate_output_magnitudes(self) -> tuple[Arrays, list[int]]:
        """Return the size of each output element, a power of two, and how many elements of each output rounding hides.

        The size is the largest of the element, its extrapolated change for a step of the size of the inputs, and its
        rounding error divided by `KNOWN`.
        """
        p, sizes, lost = self.p, [], []
        steps = [
            (h, p.compute_outputs([x + h * u for x, u in zip(p.x, self.u, strict=True)])) for h in (2.0**-12, 2.0**-20)
        ]
        near = [p.compute_outputs(p.perturb_randomly(p.x, EPSILON)) for _ in range(3)]
        for k, y in enumerate(self.y):
            moves = [abs(outputs[k] - y) / h for h, outputs in steps if outputs[k].shape == y.shape]
            own = np.max([np.nan_to_num(a, nan=0.0, posinf=0.0, neginf=0.0) for a in (abs(y), *moves)], axis=0)
            noise = np.max(
                [0 * own, *(np.nan_to_num(abs(a[k] - y), nan=0.0) for a in near if a[k].shape == y.shape)], axis=0
            )
            if all(outputs[k].shape == y.shape for _, outputs in steps):  # rounding to float32 shows as wide steps
                rows = [mark_float32_numbers(a[k], 2.0**-34, 6) for a in (self.y, *(outputs for _, outputs in steps))]
                few = np.all(rows, axis=0) & (steps[0][1][k] != y)
                noise = np.where(few, np.fmax(noise, 2 * LOST * own), noise)
            size = np.asarray(np.maximum(own, noise / KNOWN))
            size[noise > LOST * own] = size.max(initial=0.0)
            lost.append(int(np.count_nonzero(noise > LOST * own)))
            size[~((size > 0) & np.isfinite(size))] = 1.0
            sizes.append(np.exp2(np.clip(np.floor(np.log2(size)), -1000, 1000)))
        return sizes, lost

    def _draw_scaled_cotangents(self) -> Arrays:
        """Return random cotangents, scaled so that all output elements count equally."""
        return [w / size for w, size in zip(self.p.draw_cotangents(self.y), self.sizes, strict=True)]

    def make_check(
        self, case: int | str, field: str, error: float, allowed: float, problem: str = "", **more: Any
    ) -> Check:
        """Return a check of the function, with `problem` as its note if the error exceeds `allowed`."""
        fields: dict[str, Any] = {"kind": self.kind, "note": "" if error <= allowed else problem, **more}
        row: dict[str, Any] = {"case": str(case), "field": field, "error": error, "tolerance": allowed}
        return Check(self.name, self.p.framework.name, "float64", **row, **fields)

    def _name_input(self, k: int) -> str:
        return self.p.floating_input_names[k]

    def _make_arguments(self, x: Arrays | None = None) -> DerivativeArguments:
        """Return new native arguments at the point `x` (default: the original point)."""
        return self.p.make_arguments(self.p.x if x is None else x, *self.rest)

    def _compute_results(self, a: DerivativeArguments, lowest: int = 0) -> list[Arrays]:
        """Return the outputs (order 0) and derivatives of each order from `lowest` on."""
        return [self.p.compute_results(order, a) for order in range(lowest, len(self.orders) + 1)]

    def _compute_flat_results(self, a: DerivativeArguments, lowest: int = 0) -> Arrays:
        """Return the outputs and derivatives of all orders from `lowest` on in one list."""
        return list(itertools.chain(*self._compute_results(a, lowest)))

    def _compare_bits(self, what: str, calls: Sequence[Sequence[Arrays]]) -> Iterator[Check]:
        """Check that all calls returned bitwise equal results."""
        for order, (first, *repeated) in enumerate(zip(*calls, strict=True)):
            worst = any(a.tobytes() != b.tobytes() for other in repeated for a, b in zip(first, other, strict=True))
            yield self.make_check(order, PARTS[order], float(worst), 0.0, f"results differ {what}")

    def _name_argument(self, number: int) -> str:
        """Name the argument with respect to which a second or third derivative is taken."""
        inputs, cotangents = len(self.p.x), sum(w.size > 0 for w in self.w)
        if number < inputs:
            return self._name_input(number)
        if number < inputs + cotangents:
            return f"cotangent {number - inputs}"
        return f"direction of {self._name_input(number - inputs - cotangents)}"

    def evaluate_weighted_sum(self, order: int, x: Arrays) -> tuple[float, float]:
        """Return the value of a scalar function for finite differences, and the sum of its |terms|.

        The function is sum <w, outputs> for order 1, sum <u, gradients> for order 2, and sum <v, second derivatives
        along u> for order 3. Orders 2 and 3 are linear in w. A random factor of w, which is divided out afterwards,
        reveals rounding that does not change with the inputs.
        """
        if order == 1:
            return dot_with_magnitude(self.w, self.p.compute_outputs(x))
        factor = self._draw_factor_near_one()
        weights = [factor * w for w in self.w]
        if order == 2:
            value, scale = dot_with_magnitude(self.u, self.p.compute_gradients(x, weights))
        else:
            value, scale = dot_with_magnitude(self.v, self.p.compute_second_derivatives(x, weights, self.u)[0])
        return value / factor, scale / factor

    def _draw_factor_near_one(self) -> float:
        """Return a random number from 1 + 2^-40 to 1 + 2^-32."""
        return 1 + 2.0**-40 * float(self.p.rng.integers(1, 256))

    def compute_gradients(self, order: int, relative: float = 0.0, factor: float = 1.0) -> Arrays:
        """Return the framework's gradients of the scalar function `phi` of an order.

        `relative` is the size of random relative perturbations of all arguments. The cotangents are multiplied by
        `factor`, and the results are divided by `factor`.
        """
        x, w, u, v = (self.p.perturb_randomly(arrays, relative) for arrays in (self.p.x, self.w, self.u, self.v))
        gradients = self.p.compute_results(order, self.p.make_arguments(x, [factor * a for a in w], u, v, self.still))
        return [g / factor for g in gradients[: len(x)]]

    def compute_gradients_with_rounding(self, order: int) -> list[ArrayWithRounding]:
        """Return the gradients, with rounding errors estimated from changes in the last bits of all arguments."""
        repeated = [self.compute_gradients(order, EPSILON) for _ in range(3)]
        repeated += [self.compute_gradients(order, factor=self._draw_factor_near_one()) for _ in range(3)]
        rounded = []
        for k, g in enumerate(self.compute_gradients(order)):
            seen = np.max([abs(other[k] - g) for other in repeated], axis=0) + EPSILON * abs(g)
            largest = abs(g).max(initial=0)
            believed = np.minimum(seen, UNSURE * largest) + self.accuracy * largest
            rounded.append(ArrayWithRounding(g, believed, np.nan_to_num(seen, posinf=0.0)))
        return rounded

    def _restrict_sum_to_input(self, order: int, k: int) -> Callable[[np.ndarray], float]:
        """Return the scalar function of an order as a function of input `k` only."""

        def evaluate_sum_at_input(value: np.ndarray) -> float:
            return self.evaluate_weighted_sum(order, [value if i == k else x for i, x in enumerate(self.p.x)])[0]

        return evaluate_sum_at_input

    def check_adjoint(self, order: int) -> Iterator[Check]:
        """Check the adjoint identities, which hold because sums are linear in cotangents and directions.

        For order 2, <w', J u> = <u, J^T w'>, where J u is the derivative of <u, J^T w> with respect to w. For order 3,
        S = <v, derivative of <u, J^T w> with respect to x> + <h, J u> is differentiated. The derivative of S with
        respect to w along w' is S with w' for w and 0 for h; with respect to u along z, it is S with z for u. In the
        derivative with respect to x along z, v and z may be exchanged in the first term, and the second term gives a
        second derivative.
        """
        p, other = self.p, self._draw_scaled_cotangents()
        if order == 2:

            def compute_both_sides(x: Arrays, w: Arrays, u: Arrays, other: Arrays) -> Sides:
                left = dot_with_magnitude([w for w in other if w.size], p.compute_second_derivatives(x, w, u)[1])
                return left, dot_with_magnitude(u, p.compute_gradients(x, other))

            yield self._check_identity(
                2, "all inputs", compute_both_sides, [self.w, self.u, other], dot_with_magnitude(other, self.y)[1]
            )
            return
        z = [p.draw_direction(x) for x in p.x]

        def dot_second_derivatives(v: Arrays, h: Arrays, second: list[Arrays]) -> tuple[float, float]:
            return dot_with_magnitude(v + [a for a in h if a.size], second[0] + second[1])

        def compute_sides_in_cotangents(
            x: Arrays, w: Arrays, u: Arrays, v: Arrays, h: Arrays, other: Arrays, z: Arrays
        ) -> Sides:
            left = dot_with_magnitude([w for w in other if w.size], p.compute_third_derivatives(x, w, u, v, h)[1])
            return left, dot_with_magnitude(v, p.compute_second_derivatives(x, other, u)[0])

        def compute_sides_in_directions(
            x: Arrays, w: Arrays, u: Arrays, v: Arrays, h: Arrays, other: Arrays, z: Arrays
        ) -> Sides:
            return dot_with_magnitude(z, p.compute_third_derivatives(x, w, u, v, h)[2]), dot_second_derivatives(
                v, h, p.compute_second_derivatives(x, w, z)
            )

        def compute_sides_in_inputs(
            x: Arrays, w: Arrays, u: Arrays, v: Arrays, h: Arrays, other: Arrays, z: Arrays
        ) -> Sides:
            of_v, of_h = (
                dot_with_magnitude(v, p.compute_third_derivatives(x, w, u, z, self.still)[0]),
                dot_with_magnitude(z, p.compute_second_derivatives(x, h, u)[0]),
            )
            return dot_with_magnitude(z, p.compute_third_derivatives(x, w, u, v, h)[0]), (
                of_v[0] + of_h[0],
                of_v[1] + of_h[1],
            )

        last = self._sum_lower_order_magnitudes([self.w, self.h, other], [self.u, self.v, z])
        for field, three in {
            "cotangents": compute_sides_in_cotangents,
            "directions": compute_sides_in_directions,
            "inputs": compute_sides_in_inputs,
        }.items():
            yield self._check_identity(3, field, three, [*self.rest, other, z], last)

    def check_symmetry(self, order: int) -> Iterator[Check]:
        """Check that a derivative along several directions does not depend on the order of the directions."""
        p, directions = (
            self.p,
            [self.u, *([self.v] if order == 3 else []), [self.p.draw_direction(x) for x in self.p.x]],
        )

        def compute_permuted_sums(x: Arrays, w: Arrays, *directions: Arrays) -> Sides:
            return tuple(
                dot_with_magnitude(
                    last,
                    p.compute_third_derivatives(x, w, *first, self.still)[0]
                    if order == 3
                    else p.compute_second_derivatives(x, w, *first)[0],
                )
                for *first, last in itertools.permutations(directions)
            )

        below = self._sum_lower_order_magnitudes([self.w], directions, order)
        yield self._check_identity(order, "all inputs", compute_permuted_sums, [self.w, *directions], below)

    def _sum_lower_order_magnitudes(
        self, weights: Sequence[Arrays], directions: Sequence[Arrays], order: int = 3
    ) -> float:
        """Return the sum of |terms| of all derivatives below an order, for these output weights and directions."""
        p, total = self.p, 0.0
        for w in weights:
            gradients = p.compute_gradients(p.x, w)
            total += sum(dot_with_magnitude(u, gradients)[1] for u in directions) + dot_with_magnitude(w, self.y)[1]
            for u in directions if order == 3 else ():
                second = p.compute_second_derivatives(p.x, w, u)[0]
                total += sum(dot_with_magnitude(v, second)[1] for v in directions)
        return total

    def _check_identity(
        self, order: int, field: str, sides: Callable[..., Sides], rest: Sequence[Arrays], last: float
    ) -> Check:
        """Compare sums that must be equal; errors below the last bit of `last` are ignored.

        `sides` is a function of the inputs and of `rest` that returns the sums, each with the sum of its |terms|.
        `last` is the sum of |terms| of the lower derivatives that were differentiated.
        """
        arguments = self.p.x, *rest
        values, scales = np.array(sides(*arguments)).T
        scale = float(2 * scales.mean()) or last or 1.0
        apart = values[1:] - values[0]
        error = float(abs(apart).max()) / scale
        # Estimate rounding from small changes of all arguments. These hardly change the error of a wrong derivative.
        nudged = [
            np.array(sides(*(self.p.perturb_randomly(a, stir) for a in arguments)))[:, 0]
            for stir in STIRS
            for _ in range(2)
        ]
        rounding = max(float(abs((v[1:] - v[0]) - apart).max()) for v in nudged) / scale + EPSILON * last / scale
        rounding += self.accuracy
        allowed = MARGIN * (ROUNDING + min(rounding, max(UNSURE, self.accuracy)) + EPSILON * last / scale)
        if order == 3:  # `last` does not include terms that cancel within a second derivative
            rounding += MARGIN * EPSILON * last / scale
        unsure = allowed < error <= MARGIN * (ROUNDING + rounding)
        problem = f"{values[0]:.10g} on one side, {values[1 + abs(apart).argmax()]:.10g} on the other"
        problem += f", which change by {rounding * scale:.1g} with the last bits of the inputs; {BETTER}" * unsure
        return self.make_check(order, field, error, allowed, problem, inconclusive=unsure)


def find_largest_magnitude(array: np.ndarray) -> float:
    """Return the largest finite magnitude in an array."""
    finite = abs(array[np.isfinite(array)])
    return float(finite.max()) if finite.size else 0.0


def compute_relative_error(array: np.ndarray, expected: np.ndarray, usual: float) -> float:
    """Return the largest difference relative to the largest expected or usual magnitude; NaNs compare equal."""
    if array.shape != expected.shape:
        return math.inf
    same = (array == expected) | (np.isnan(array) & np.isnan(expected))
    if same.all():
        return 0.0
    return float(abs(array - expected)[~same].max()) / (max(find_largest_magnitude(expected), usual) or 1.0)
