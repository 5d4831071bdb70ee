"""The checks of `check_derivatives`, each for one property of the derivatives of any function."""

import contextlib
import copy
import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from slopecheck.causes import Compared, of_gradient
from slopecheck.curves import BETTER, Rounded, Verdict, along, examine, noise_of, slope_of, worst_part
from slopecheck.frameworks import THREADS, as_tuple
from slopecheck.identities import EPSILON, Identities, in_float32
from slopecheck.outcome import message_of
from slopecheck.problem import DERIVATIVES, Arguments, Arrays, Problem, dot, magnitude
from slopecheck.record import Check
from slopecheck.tolerances import EPS, MARGIN, RESPONSE, ROUNDING, SENSITIVE, UNSURE

# Calls that are compared: a result that is wrong at random with probability 0.3 differs from another one of
# them but for a chance of 0.7**39 + 0.3**39 = 9e-7.
REPEATS = 39
ELEMENTS = 200  # elements of each input that are compared individually
GROUPS = 40  # groups of the other elements, each compared as a whole
WORK = 2_000_000  # inputs with more elements than this over `ELEMENTS` have as many fewer compared alone
# Elements of each input that are set to NaN, and random points that show which outputs depend on them. There are many
# such points, because a relu unit is inactive at half of them.
SPOILT, ELSEWHERE = 6, 40
GUESSED = 12  # elements from which the cause of a mistake is guessed
SPLITS = 3  # random halves of the elements whose effects are added up
FLOAT32 = EPS["float32"]
LARGEST, SMALLEST = float(np.finfo("float32").max), float(np.finfo("float32").tiny)
PARTS = tuple(f"{name}s" for name in DERIVATIVES)
SCALED = "rescaled inputs would decide"
OWN = 50  # of the framework's functions that a call uses, the first that are checked by themselves
COARSE = (2.0**-20, 2.0**-12, 2.0**-4)  # steps that show the rounding of a function in float32
ZOOMS = (1.0, 2.0**-14, 2.0**-28)  # of directions beside the end of a domain, or where a function is steep
APART = (2.0**-4, 2.0**-10, 2.0**-20)  # relative distances of the second point, the first that is in the domain
COARSE_VALUES = 2.0**-33  # of their size; values with a larger rounding error are not of float64
LEAST = 2.0**-38  # of the sum of |terms|: an element that changes less is not judged
IN_FLOAT32 = "it computes in float32, or loses as many digits: {} in float64, or skip differences with a reason"


class Checks(Identities):
    """The checks of one function up to an order of derivatives, with a method for each kind."""

    repeats, alone_of_each, groups_of_each = REPEATS, ELEMENTS, GROUPS

    def thin(self, share: float) -> None:
        """Compare fewer elements and repeat fewer calls, so that about this share of all calls is made."""
        if share < 1:
            self.alone_of_each, self.groups_of_each = max(4, int(share * ELEMENTS)), max(1, int(share * GROUPS))
            self.repeats = max(3, int(share * REPEATS))

    def expected(self, kinds: Sequence[str]) -> int:
        """Return about how many calls checks of these kinds make."""
        orders, total = len(self.orders), 0
        for x in (x for x in self.p.x if x.size):
            elements = self._single(x.size)
            elements += min(x.size - elements, self.groups_of_each)
            layouts = len(self._layouts(x, self.p.inputs[self.p.wanted[0]])) * (1 + orders) * 2
            total += kinds.count("differences") * (150 + 13 * elements) + layouts * orders * ("layout" in kinds)
            total += 90 * ("nan" in kinds)
        return total + (1 + orders) * (self.repeats + 40) * ("repeat" in kinds)

    def _single(self, size: int) -> int:
        """Return how many elements of an input are compared alone."""
        return min(size, self.alone_of_each, max(4, WORK // size))

    def differences(self, order: int) -> Iterator[Check]:
        """Compare gradients with central differences, along a direction and by element."""
        p = self.p
        for k, number in enumerate(self.lost if order == 1 else ()):
            if number:
                note = f"{number} of {self.y[k].size} elements change by their rounding; {BETTER}"
                yield self.check("differences", 1, f"output {k}", math.inf, 0.0, note, unsure=True)
        gradients, scale = self.rounded_gradient(order), self.scale(order)
        if not math.isfinite(self.phi(order, p.x)[0]):
            note = f"the {PARTS[order - 1]} are not finite"
            yield self.check("differences", order, "all inputs", math.inf, 0.0, note)
            return
        failed = False
        for k, (x, g) in enumerate(zip(p.x, gradients, strict=True)):
            if not x.size:
                continue
            start, phi = time.perf_counter(), self._along(order, k)
            v, sizes = p.direction(x, g.values), np.maximum(abs(x), max(magnitude(x), 1e-3 * float(abs(x).max())))
            noise = self._noise(phi, x, v, scale)
            verdict = examine(phi, g, x, v, scale, noise, self.sensitive)
            elements = self._elements(order, k, phi, g, sizes, noise, LEAST * scale)
            # Steps of the size of large elements may take small ones out of the domain, or across a pole.
            narrow = np.where(x == 0, v, np.clip(v, -abs(x), abs(x)))
            for zoom in ZOOMS if verdict.problem else ():
                own = examine(
                    phi, g, x, zoom * narrow, scale, self._noise(phi, x, zoom * narrow, scale), self.sensitive
                )
                verdict = min(verdict, own, key=lambda f: (bool(f.problem), f.inconclusive))
                if not verdict.problem or not (zoom < 1 or _steep(verdict)):
                    break
            if not elements.passed:
                noise = self._noise(phi, x, narrow, scale)
                by_value = self._elements(order, k, phi, g, np.where(x == 0, sizes, abs(x)), noise, LEAST * scale)
                # Passed, hidden, failed, undecided.
                elements = min(
                    elements, by_value, key=lambda c: (not c.passed, c.failed + 2 * (c.error > 1 and not c.failed))
                )
            if elements.failed:
                guess = self._guess(phi, g, x, np.where(x == 0, sizes, abs(x)), noise)
                elements = replace(elements, note="; ".join(filter(None, [elements.note, guess])))
            note = f"{elements.note}; {verdict.note}" if elements.failed and verdict.problem else verdict.note
            if noise > COARSE_VALUES * scale > 0 and not (verdict.problem or self.accuracy) and _coarse(phi, x, narrow):
                note = f"values are rounded to {noise / scale:.0e} of their size, as by float32; float64 would decide"
                verdict = replace(verdict, inconclusive=True)
            unsure = verdict.inconclusive and not elements.failed
            check = self.check("differences", order, self._label(k), verdict.best, verdict.tolerance, note, unsure)
            yield replace(check, order=verdict.order, seconds=time.perf_counter() - start, curve=verdict.curve)
            yield elements
            failed |= check.failed or elements.failed
        yield from self._in_float32(order)
        if not failed:
            yield from self._at_a_second_point(order)

    def scale(self, order: int) -> float:
        """Return the sum of |terms| of the scalar function of an order, and of those that it derives from."""
        return sum(self.phi(lower, self.p.x)[1] for lower in range(1, order + 1))

    def _guess(
        self, phi: Callable[[np.ndarray], float], g: Rounded, x: np.ndarray, sizes: np.ndarray, noise: float
    ) -> str:
        """Guess at the cause of a wrong gradient from its first elements."""
        units = [np.eye(1, x.size, n).reshape(x.shape) * sizes for n in range(min(x.size, GUESSED))]
        slopes = np.array([slope_of(phi, x, unit, noise) for unit in units]).T / sizes.flat[: len(units)]
        given = g.values.flat[: len(units)]
        square = x.ndim == 2 and x.shape[0] == x.shape[1] > 1
        transposed = g.values.T.flat[: len(units)] if square else None
        compared = Compared(given, slopes[0], MARGIN * float(g.rounding.max()), slopes[1])
        return of_gradient(compared, transposed) if np.isfinite(slopes).all() and np.isfinite(given).all() else ""

    @property
    def sensitive(self) -> float:
        """The largest error that rounding may hide at every step of a curve."""
        return max(SENSITIVE, 100 * self.accuracy)

    def _noise(self, phi: Callable[[np.ndarray], float], x: np.ndarray, v: np.ndarray, scale: float) -> float:
        return max(noise_of(phi, x, v, scale), self.accuracy * scale)

    def _in_float32(self, order: int) -> Iterator[Check]:
        """Say so if results are numbers of float32, or do not change with inputs that float32 cannot tell apart."""
        p, rng = self.p, np.random.default_rng(1)

        def results(relative: float) -> Arrays:
            x = [a * (1 + relative * rng.uniform(0.5, 1.0, a.shape)) for a in p.x]
            of_inputs = zip(p.results(order, self._arguments(x)), map(magnitude, p.x), strict=False)
            scale = LEAST * self.phi(1, p.x)[1]
            large = [np.where(abs(a) * size > scale, a, 0.0) for a, size in of_inputs]
            return [*(p.outputs(x) if order == 1 else ()), *large]

        for here, close, far, moved in zip(*map(results, (0.0, 2.0**-27, 2.0**-21, 2.0**-10)), strict=True):
            if not here.shape == close.shape == far.shape == moved.shape:
                continue
            long = (moved != here) & (in_float32(moved) | (moved != moved.astype(np.float32)))
            visible = np.isfinite(far) & (abs(far - here) * 2.0**-6 > MARGIN * EPSILON * abs(here))
            for marks in (in_float32(moved)[long], (close == here)[visible]):
                if marks.size and np.mean(marks) > 0.5:
                    note = IN_FLOAT32.format("compute the derivative" if order > 1 else "compute")
                    yield self.check("differences", order, "all inputs", math.inf, 0.0, note, unsure=True)
                    return

    def _at_a_second_point(self, order: int) -> Iterator[Check]:
        """Compare derivatives at another point with differences, and adjoints: what is kept by shape is wrong there."""
        there = self._there(order)
        if there is None:
            return
        gradients, scale = there.rounded_gradient(order), there.scale(order)
        for k, (x, g) in enumerate(zip(there.p.x, gradients, strict=True)):
            if x.size:
                phi, v = there._along(order, k), there.p.direction(x, g.values)
                v = np.where(x == 0, v, np.clip(v, -abs(x), abs(x)))
                part = along(phi, g, x, v, self._noise(phi, x, v, scale))
                wrong = part.ratio > 1 and part.decided and UNSURE * scale < part.error < math.inf
                note = (
                    "it is wrong there, and right at the first point: is something kept from an earlier call?" * wrong
                )
                label, error = f"{self._label(k)}, at a second point", part.ratio if wrong else min(part.ratio, 1.0)
                yield self.check("differences", order, label, error, 1.0, note)

    def _there(self, order: int) -> "Checks | None":
        """Return the checks at a second point; None if there is none where derivatives up to an order are finite."""
        there, rng = copy.copy(self), np.random.default_rng(2)
        there.p = copy.copy(self.p)
        for share in APART:
            there.p.x = [
                x + share * rng.uniform(0.5, 1.0, x.shape) * np.where(x == 0, magnitude(x), x) for x in self.p.x
            ]
            there.y = there.p.outputs(there.p.x)
            if all(np.isfinite(a).all() for a in (*there.y, *there.gradient(order))):
                return there
        return None

    def adjoint(self, order: int) -> Iterator[Check]:
        """Check the adjoint identities, also at a second point."""
        yield from super().adjoint(order)
        if there := self._there(order):
            rows = Identities.adjoint(there, order)
            yield from (replace(row, field=f"{row.field}, at a second point") for row in rows)

    def _elements(
        self,
        order: int,
        k: int,
        phi: Callable[[np.ndarray], float],
        g: Rounded,
        sizes: np.ndarray,
        noise: float,
        least: float,
    ) -> Check:
        """Compare elements of a gradient with differences, some alone and the others in groups; report the worst."""
        x = self.p.x[k]
        chosen = self.p.rng.permutation(x.size)
        single = self._single(x.size)
        alone, halves = chosen[:single, None], np.array_split(chosen[single:], self.groups_of_each)
        groups = [*alone, *(group for group in halves if group.size)]
        ratio, note, unsure = worst_part(
            phi, g, x, sizes, noise, groups, lambda index: f"element {list(index)}" if index else "the number", least
        )
        label = f"{self._label(k)}, {len(alone)} of {x.size} elements" + ", others in groups" * (x.size > len(alone))
        return self.check("elements", order, label, ratio, 1.0, note, unsure)

    def form(self) -> Iterator[Check]:
        """Check dtypes, shapes and devices of derivatives, dtypes of outputs, and that no argument is modified."""
        p, x = self.p, [self.p.originals[i] for i in self.p.wanted]
        given = [(p.names[i], a) for i, a in p.originals.items()]
        given += [(f"output {k}", y) for k, y in enumerate(as_tuple(p.framework.outputs(p.as_given())))]
        for name, value in given:
            if (
                array := p.framework.to_host(value) if p.framework.takes(value) else np.asarray(value)
            ).dtype.kind == "c":
                note = f"{array.dtype} is not checked: check the same function with real and imaginary parts apart"
                yield self.check("form", 0, name, math.inf, 0.0, note, unsure=True)
        widest = max((a.dtype for a in x), key=lambda dtype: dtype.itemsize)
        outputs = [p.framework.to_host(y) for y in as_tuple(p.framework.outputs(p.as_given())) if p.framework.takes(y)]

        def weights() -> Arrays:
            return [
                w.astype(y.dtype) if y.dtype.kind == "f" else np.zeros(0)
                for w, y in zip(p.weights(outputs), outputs, strict=True)
            ]

        w, h = weights(), weights() if self.h else []
        u, v = ([u.astype(a.dtype) for u, a in zip(group, x, strict=bool(group))] for group in (self.u, self.v))
        for order in (0, *self.orders):
            a = p.arguments(x, w, u, v, h)
            results = p.raw(order, a)
            if order == 0:
                for k, y in enumerate(y for y in outputs if y.dtype.kind == "f"):
                    note = f"output is {y.dtype}; the inputs are {widest}" if y.dtype.itemsize > widest.itemsize else ""
                    yield self.check("form", 0, f"output {k}", float(bool(note)), 0.0, note)
            else:
                like = [(p.names[i], a.inputs[i], p.originals[i]) for i in p.wanted]
                like += [(f"cotangent {k}", g, w[k]) for k, g in enumerate(a.cotangents) if order >= 2]
                if order == 3:
                    like += [(f"direction of {n}", *pair) for n, *pair in zip(p.floating, a.directions, u, strict=True)]
                for (name, argument, wanted), g in zip(like, results, strict=True):
                    if g is not None and argument is not None:
                        yield self._form(order, name, g, argument, wanted)
            kept = [(p.names[i], a.inputs[i], old) for i, old in p.originals.items()]
            if order > 0:
                kept += [(f"cotangent {k}", g, w[k]) for k, g in enumerate(a.cotangents) if g is not None]
            if order >= 2:
                kept += [(f"direction of {n}", *pair) for n, *pair in zip(p.floating, a.directions, u, strict=True)]
            if order == 3:
                more = zip(p.floating, a.second_directions, v, strict=True)
                kept += [(f"second direction of {n}", *pair) for n, *pair in more]
                changes = enumerate(a.cotangent_directions)
                kept += [(f"direction of cotangent {k}", g, h[k]) for k, g in changes if g is not None]
            for name, value, old in kept:
                same = np.array_equal(p.framework.to_host(value), old, equal_nan=old.dtype.kind == "f")
                note = "" if same else "it was modified by a call"
                yield self.check("unchanged", order, name, float(not same), 0.0, note)

    def _form(self, order: int, name: str, derivative: Any, argument: Any, wanted: np.ndarray) -> Check:
        """Compare dtype, shape and device of a derivative with those of the argument in which it is one."""
        p, what = self.p, DERIVATIVES[order]
        array, note = p.host(derivative, f"{what} in {name}"), ""
        if (array.dtype, array.shape) != (wanted.dtype, wanted.shape):
            note = f"{what} is {array.dtype} {array.shape}; expected {wanted.dtype} {wanted.shape}, as {name}"
        elif p.framework.place(derivative) != p.framework.place(argument):
            note = f"{what} is on {p.framework.place(derivative)}; expected {p.framework.place(argument)}"
        return self.check("form", order, name, float(bool(note)), 0.0, note)

    def _arguments(self, x: Arrays | None = None) -> Arguments:
        """Return new native arguments, at the point unless another one is given."""
        return self.p.arguments(self.p.x if x is None else x, *self.rest)

    def _results(self, a: Arguments, lowest: int = 0) -> list[Arrays]:
        """Return outputs and derivatives as far as they are checked, from an order on."""
        return [self.p.results(order, a) for order in range(lowest, len(self.orders) + 1)]

    def _bits(self, kind: str, what: str, calls: Sequence[Sequence[Arrays]], of: str = "") -> Iterator[Check]:
        """Check that calls have given equal bits."""
        for order, (first, *repeated) in enumerate(zip(*calls, strict=True)):
            worst = any(a.tobytes() != b.tobytes() for other in repeated for a, b in zip(first, other, strict=True))
            note = f"results differ {what}" if worst else ""
            yield self.check(kind, order, PARTS[order] + of, float(worst), 0.0, note)

    def repeat(self) -> Iterator[Check]:
        """Check that repeated calls are bitwise equal, and that later calls do not modify earlier results."""
        p = self.p
        yield from self._or_of_framework(Checks._repeated)
        a = self._arguments()
        kept = [p.raw(order, a) for order in (0, *self.orders)]

        def values() -> list[Arrays]:
            return [[p.framework.to_host(v) for v in part if p.framework.takes(v)] for part in kept]

        before = values()
        self._results(self._arguments(p.nudged(p.x, 2.0**-30)))
        yield from self._bits("repeat", "after another call, which overwrites them", [before, values()], ", kept")

    def history(self) -> Iterator[Check]:
        """Check that results are bitwise equal after calls with other inputs."""
        before = self._results(self._arguments())
        for point in (self.p.nudged(self.p.x, 2.0**-7), self.p.nudged(self.p.x, 2.0**-30)):
            with contextlib.suppress(Exception):  # the point may be outside the domain
                self._results(self._arguments(point))
        yield from self._bits("history", "after calls with other inputs", [before, self._results(self._arguments())])

    def alone(self) -> Iterator[Check]:
        """Check that derivatives in single inputs, along single directions, or of single outputs fit joint calls."""
        p, many = self.p, range(len(self.p.x))
        whole = self._results(self._arguments(), 1)
        used = [k for k, w in enumerate(self.w) if w.size]
        for k in many if len(many) > 1 else ():
            a = self._arguments()
            a.directions, a.second_directions = _only(k, a.directions), _only(k, a.second_directions)
            for order in self.orders:
                one, joint = p.alone(order, k, a), p.results(order, a)[k]
                yield self._alike(order, f"{self._label(k)} alone", one, joint, _size(joint))
        for order in self.orders[1:] if len(many) > 1 else ():
            parts = []
            for k in many:
                a = self._arguments()
                a.directions = _only(k, a.directions)
                parts.append(p.results(order, a)[: len(p.x) + len(used)])
            yield from self._sums(order, "directions", parts, whole[order - 1][: len(p.x) + len(used)])
        if len(self.orders) == 3:
            parts = []
            for k in (*many, None):
                a = self._arguments()
                a.second_directions = _only(k, a.second_directions)
                if k is not None:
                    a.cotangent_directions = _only(None, a.cotangent_directions)
                parts.append(p.results(3, a))
            yield from self._sums(3, "second directions", parts, whole[2])
        if len(used) > 1:
            for order in self.orders:
                parts = []
                for k in used:
                    a = self._arguments()
                    a.cotangents = _only(k, a.cotangents)
                    a.cotangent_directions = _only(k, a.cotangent_directions)
                    parts.append(p.results(order, a)[: len(p.x)])
                yield from self._sums(order, "outputs", parts, whole[order - 1][: len(p.x)])

    def _sums(self, order: int, what: str, parts: Sequence[Arrays], whole: Arrays) -> Iterator[Check]:
        """Check that results of single calls add up to those of a joint call."""
        for k, terms in enumerate(zip(*parts, strict=True)):
            name = f"{self._argument(k)}, sum over {what}"
            yield self._alike(order, name, sum(terms), whole[k], sum(map(_size, terms)))

    def _argument(self, number: int) -> str:
        """Name the argument that a result of second or third derivatives is a derivative in."""
        inputs, cotangents = len(self.p.x), sum(w.size > 0 for w in self.w)
        if number < inputs:
            return self._label(number)
        if number < inputs + cotangents:
            return f"cotangent {number - inputs}"
        return f"direction of {self._label(number - inputs - cotangents)}"

    def _alike(self, order: int, what: str, array: Any, expected: np.ndarray, usual: float) -> Check:
        error = _relative(np.asarray(array), expected, usual)
        allowed, unsure = self._allowed(error, order)
        note = "" if error <= allowed else f"differs by {error:.0e} from that of a joint call" + f"; {BETTER}" * unsure
        return self.check("alone", order, what, error, allowed, note, unsure)

    def _allowed(self, error: float, lowest: int) -> tuple[float, bool]:
        """Return the relative difference of results, from an order on, that another order of sums may make.

        The second value is whether an error above it may be rounding.
        """
        least = max(ROUNDING, MARGIN * self.accuracy)
        if error <= least:
            return least, False
        here = [a for part in self._results(self._arguments(), lowest) for a in part]
        rounding = 0.0
        for _ in range(3):
            near = self._results(self.p.arguments(*(self.p.nudged(a, EPSILON) for a in (self.p.x, *self.rest))), lowest)
            nearby = [a for part in near for a in part]
            rounding = max(rounding, *(_relative(b, a, 0.0) for a, b in zip(here, nearby, strict=True)))
        allowed = least + MARGIN * min(rounding, UNSURE)
        return allowed, allowed < error <= MARGIN * rounding

    def _repeated(self) -> Iterator[Check]:
        calls = [self._results(self._arguments()) for _ in range(self.repeats)]
        yield from self._bits("repeat", "from one call to the next", calls)

    def threads(self) -> Iterator[Check]:
        """Check that one, two and three threads give bitwise equal results."""
        yield from self._or_of_framework(Checks._threaded)

    def _threaded(self) -> Iterator[Check]:
        calls = []
        for number in THREADS:
            with self.p.framework.threads(number):
                calls.append(self._results(self._arguments()))
        yield from self._bits("threads", f"with {THREADS} threads", calls)

    def _or_of_framework(self, check: Callable[["Checks"], Iterable[Check]]) -> Iterator[Check]:
        """Make a check; where it fails, say whether a function of the framework fails it by itself."""
        rows = list(check(self))
        wrong = any(row.failed for row in rows)
        own = self._of_framework(self.p.inputs, lambda part, given: check(part)) if wrong else ""
        yield from (replace(row, note=row.note + own) if row.failed else row for row in rows)

    def _of_framework(self, inputs: Sequence[Any], check: Callable[["Checks", list[Any]], Iterable[Check]]) -> str:
        """Return a remark if one of the framework's own functions that a call uses fails a check by itself.

        `check` makes it, of the function and the arrays that it gets in the call.
        """
        for name, framework, given in itertools.islice(self.p.framework.parts(inputs), OWN):
            with contextlib.suppress(Exception):  # it cannot be differentiated, or not by itself
                part = Checks(Problem(framework, given, np.random.default_rng(0)), name, len(self.orders))
                again = part.beside(part._arguments().inputs)  # of what is random, results differ here
                if all(row.passed for row in again) and any(row.failed for row in check(part, given)):
                    return f"; so do those of {name} alone: it is {framework.name}'s own, not of this function"
        return ""

    def beside(self, inputs: list[Any]) -> Iterable[Check]:
        """Compare results for contiguous inputs with those for the same numbers in these arrays."""
        other, usual = self._arguments(), [[_size(a) for a in part] for part in self._results(self._arguments())]
        other.inputs = inputs
        return self._agree("", self._arguments(), other, 0, usual)

    def layout(self) -> Iterator[Check]:
        """Check that the memory layout of inputs, cotangents and directions changes results by rounding at most."""
        p, usual = self.p, [[_size(a) for a in part] for part in self._results(self._arguments())]
        like = p.inputs[p.wanted[0]]
        changed = [("inputs", 0, p.wanted[k], self._label(k), x, p.inputs[p.wanted[k]]) for k, x in enumerate(p.x)]
        changed += [("cotangents", 1, k, f"cotangent {k}", w, like) for k, w in enumerate(self.w)]
        of_inputs = [("directions", 2, "direction of", self.u), ("second_directions", 3, "second direction of", self.v)]
        changed += [
            (kind, lowest, k, f"{name} {p.names[i]}", u, p.inputs[i])
            for kind, lowest, name, group in of_inputs
            for k, (i, u) in enumerate(zip(p.wanted, group, strict=False))
            if lowest in self.orders
        ]
        changed += [
            ("cotangent_directions", 3, k, f"direction of cotangent {k}", h, like) for k, h in enumerate(self.h)
        ]
        for kind, lowest, at, label, array, of in changed:
            for name, value in self._layouts(array, of):
                plain, other = self._arguments(), self._arguments()
                getattr(plain, kind)[at] = p.framework.from_host(_same(name, array), of)
                getattr(other, kind)[at] = value
                for row in self._agree(f"{label}, {name}", plain, other, lowest, usual[lowest:]):
                    own = row.failed and kind == "inputs" and not math.isinf(row.error)
                    yield replace(row, note=row.note + self._of_framework(other.inputs, Checks.beside)) if own else row

    def _layouts(self, array: np.ndarray, like: Any) -> Collection[tuple[str, Any]]:
        return self.p.framework.layouts(array, like).items() if array.ndim and array.size else ()

    def _agree(
        self, what: str, plain: Arguments, other: Arguments, lowest: int, usual: Sequence[Sequence[float]]
    ) -> Iterator[Check]:
        """Compare results for a contiguous array with those for the same numbers in another layout.

        `usual` are magnitudes of results at the point, because those for equal rows may be zero up to rounding.
        """
        try:
            right = self._results(plain, lowest)
        except Exception:  # the function refuses these numbers in any layout
            return
        allowed, unsure = ROUNDING, False
        try:
            results = self._results(other, lowest)
        except Exception as error:  # any error for this layout
            worst, note = math.inf, f"raises only in this layout: {message_of(error)}"
        else:
            errors = [
                (_relative(a, b, size), PARTS[lowest + part])
                for part, rows in enumerate(zip(results, right, usual, strict=True))
                for a, b, size in zip(*rows, strict=True)
            ]
            worst, where = max(errors, key=lambda e: math.inf if math.isnan(e[0]) else e[0])
            allowed, unsure = self._allowed(worst, lowest)
            note = "" if worst <= allowed else f"{where} differ from those of the contiguous layout by {worst:.0e}"
            note += f"; {BETTER}" * unsure
        yield self.check("layout", "", what, worst, allowed, note, unsure)

    def nan(self) -> Iterator[Check]:
        """Check that a NaN in an input element reaches only outputs that depend on this element somewhere."""
        p = self.p
        for k, x in enumerate(p.x):
            if not x.size:
                continue
            try:
                chosen = p.rng.permutation(x.size)[:SPOILT]
                spreads = ((int(flat), self._spread(k, int(flat))) for flat in chosen)
                flat, spread = next(((flat, masks) for flat, masks in spreads if masks), (0, []))
                if spread:  # a change may be below the last bit of the output
                    w = [np.where(mask, w, 0.0) if w.size else w for w, mask in zip(self.w, spread, strict=True)]
                    spread = [] if abs(p.gradients(p.x, w)[k].flat[flat]) > 0 else spread
                unsure = bool(spread) and not self._separate(k, flat, [bool(mask.any()) for mask in spread])
            except Exception as error:  # a function may refuse NaN and distant points
                yield self.check("not offered", "nan", self._label(k), 1.0, 0.0, message_of(error))
                continue
            number, note = sum(int(np.count_nonzero(mask)) for mask in spread), ""
            if number:
                note = f"{number} elements of outputs became NaN but do not depend on the element"
            if unsure:
                note += ": 0 * NaN where a factor that the function computes is zero, as behind a mask of attention; "
                note += "whether the input may hold NaN there decides"
            yield self.check("nan", 0, self._label(k), float(number), 0.0, note, unsure)

    def _separate(self, k: int, flat: int, chosen: Sequence[bool]) -> bool:
        """Return whether the chosen outputs are sums of functions of one element of the inputs each.

        If so, a zero that multiplies an element is a constant, not a result of other elements. The element `flat` of
        input `k` is not changed.
        """
        p = self.p
        for _ in range(SPLITS):
            moves = [(p.direction(x), p.rng.random(x.shape) < 0.5) for x in p.x]
            moves[k][0].flat[flat] = 0.0
            one, other = [v * half for v, half in moves], [v * ~half for v, half in moves]
            corners = [
                p.outputs([x + a * v + b * u for x, v, u in zip(p.x, one, other, strict=True)])
                for a, b in ((0, 0), (1, 0), (0, 1), (1, 1))
            ]
            for wanted, *ys in zip(chosen, *corners, strict=True):
                mixed = abs(ys[3] - ys[1] - ys[2] + ys[0])
                if wanted and not (mixed <= ROUNDING * sum(abs(y) for y in ys)).all():
                    return False
        return True

    def _points(self) -> Iterator[tuple[Arrays, Arrays]]:
        """Yield the point and random ones, with their outputs."""
        yield self.p.x, self.y
        for n in range(ELSEWHERE):
            if n == len(self.elsewhere):
                point = [self.p.direction(a) for a in self.p.x]
                self.elsewhere.append((point, self.p.outputs(point)))
            yield self.elsewhere[n]

    def _spread(self, k: int, flat: int) -> list[np.ndarray]:
        """Mark elements of outputs that become NaN with an input element and vary, but never depend on it.

        The result is a mask for each output, or none if there is no such element.
        """

        def with_element(point: Arrays, value: float) -> Arrays:
            changed = [a.copy() for a in point]
            changed[k].flat[flat] = value
            return self.p.outputs(changed)

        size = float(abs(self.p.x[k]).max())
        suspects = [
            np.isnan(bad) & ~np.isnan(y) for bad, y in zip(with_element(self.p.x, math.nan), self.y, strict=True)
        ]
        varied = [np.zeros(y.shape, bool) for y in self.y]
        for n, (point, values) in enumerate(self._points()):
            for factor in (-3.0, 0.5, 3.0) if n == 0 else ((-1.0) ** n * 3,):
                if not any(s.any() for s in suspects):
                    return []
                other = with_element(point, factor * size + 0.25)
                if any(a.shape != y.shape for a, y in zip((*other, *values), (*self.y, *self.y), strict=True)):
                    return []
                suspects = [s & (a == b) for s, a, b in zip(suspects, other, values, strict=True)]
            for v, a, y in zip(varied, values, self.y, strict=True):  # by more than rounding
                v |= abs(a - y) > ROUNDING * (abs(a) + abs(y))
        masks = [s & v for s, v in zip(suspects, varied, strict=True)]
        return masks if any(mask.any() for mask in masks) else []

    def float32(self) -> Iterator[Check]:
        """Check that results in float32 agree with float64 up to the effect of rounding the inputs."""
        p = self.p
        for k, x in enumerate(p.x):
            sizes = abs(x[x != 0])
            if sizes.size and not (sizes.max() <= LARGEST and sizes.min() >= SMALLEST):
                note = f"numbers from {sizes.min():.0e} to {sizes.max():.0e} are beyond float32; {SCALED}"
                yield self.check("not offered", "float32", self._label(k), 1.0, 0.0, note)
                return
        small = [x.astype(np.float32) for x in p.x]
        exact = [x.astype(np.float64) for x in small]

        def bounded(weights: Arrays) -> Arrays:
            return [np.copysign(np.clip(abs(w), 2.0**-60, 2.0**60), w) for w in weights]

        rest = [[a.astype(np.float32) for a in arrays] for arrays in (bounded(self.w), self.u, self.v, bounded(self.h))]
        same = [[a.astype(np.float64) for a in arrays] for arrays in rest]

        def right(x: Arrays, *rest: Arrays) -> list[Arrays]:
            return self._results(p.arguments(x, *rest))

        exact_results = right(exact, *same)
        try:
            results = right(small, *rest)
        except Exception as error:  # a function with float64 parameters may refuse float32
            yield self.check("not offered", "float32", "all inputs", 1.0, 0.0, message_of(error))
            return
        moved = [right(*(p.nudged(a, FLOAT32) for a in (exact, *same))) for _ in range(3)]
        last = self._last_bits(exact_results, exact, *same)
        noise: list[list[float]] | None = None
        for order, parts in enumerate(zip(results, exact_results, strict=True)):
            for i, (got, expected) in enumerate(zip(*parts, strict=True)):
                if not expected.size:
                    continue
                scale = float(abs(expected).max())
                response = float(np.max([abs(m[order][i] - expected) for m in moved])) + FLOAT32 * scale
                response += self.accuracy * scale
                gap = float(abs(got.astype(np.float64) - expected).max()) if got.shape == expected.shape else math.inf
                allowed, note, unsure = RESPONSE * (response + last[order][i]), "", False
                if not gap <= allowed:
                    noise = noise or self._noise_in_float32(rest)
                    beyond = not (math.isfinite(response) and scale <= LARGEST and (scale >= SMALLEST or scale == 0))
                    note = f"differs from float64 by {gap:.1e}, of numbers up to {scale:.1e}"
                    if beyond:
                        note = f"numbers up to {scale:.1e} are beyond float32, or its inputs leave the domain; {SCALED}"
                        yield self.check("not offered", "float32", self._part(order, i), 1.0, 0.0, note)
                        continue
                    if gap <= MARGIN * noise[order][i] or RESPONSE * response >= scale:
                        note, unsure = f"{note}, all of which is rounding of the function in float32; {BETTER}", True
                yield self.check("float32", order, self._part(order, i), gap, allowed, note, unsure)

    def _part(self, order: int, i: int) -> str:
        """Name a result of an order."""
        return f"{DERIVATIVES[order]} in {self._argument(i)}" if order else f"output {i}"

    def _last_bits(
        self, results: Sequence[Arrays], x: Arrays, w: Arrays, u: Arrays, v: Arrays, h: Arrays
    ) -> list[list[float]]:
        """Return derivatives whose effects, in steps of the size of the inputs, are last bits of results in float32."""
        outputs = [a for a in results[0] if a.size]
        sums = dot([a for a in w if a.size], outputs)[1]
        bits = [[0.0] * len(results[0]), [FLOAT32 * sums / magnitude(a) for a in x]]
        sums += dot(u, results[1])[1]
        bits.append([FLOAT32 * sums / magnitude(a) for a in x] + [FLOAT32 * _size(y) for y in outputs])
        if len(self.orders) == 3:
            of_cotangents = results[2][len(x) :]
            others = [a for a in h if a.size]
            sums += dot(v, results[1])[1] + dot(others, outputs)[1]
            sums += dot(v, results[2][: len(x)])[1] + dot(others, of_cotangents)[1]
            of_inputs = [FLOAT32 * sums / magnitude(a) for a in x]
            of_outputs = [FLOAT32 * (_size(y) + _size(s)) for y, s in zip(outputs, of_cotangents, strict=True)]
            bits.append(of_inputs + of_outputs + of_inputs)  # directions have the size of the inputs
        return bits

    def _noise_in_float32(self, rest: Sequence[Arrays]) -> list[list[float]]:
        """Return the standard deviation of the rounding in float32 of each result.

        It is estimated from fourth differences, along a direction, of the errors of float32: what is wrong with the
        function itself changes smoothly.
        """
        p, same = self.p, [[a.astype(np.float64) for a in arrays] for arrays in rest]
        tables = []
        for step in COARSE:
            rows = []
            for number in range(9):
                small = [(x + number * step * v).astype(np.float32) for x, v in zip(p.x, self.u, strict=True)]
                right = self._results(p.arguments([x.astype(np.float64) for x in small], *same))
                rows.append(
                    [
                        [a - b for a, b in zip(*parts, strict=True)]
                        for parts in zip(self._results(p.arguments(small, *rest)), right, strict=True)
                    ]
                )
            tables.append(rows)

        def deviation(order: int, i: int) -> float:
            fourths = [np.diff([row[order][i] for row in rows], 4, axis=0) for rows in tables]
            return max(float(np.sqrt(np.mean(np.square(fourth), axis=0) / 70).max(initial=0.0)) for fourth in fourths)

        return [[deviation(order, i) for i in range(len(part))] for order, part in enumerate(tables[0][0])]


def _steep(verdict: Verdict) -> bool:
    """Return whether steps leave the domain, or are too long for what is steep."""
    return verdict.inconclusive or not all(math.isfinite(error) for _, error in verdict.curve)


def _coarse(phi: Callable[[np.ndarray], float], x: np.ndarray, v: np.ndarray) -> bool:
    """Return whether values have steps, as those of float32 have.

    A steep function flattens as it is seen from nearby, and rounding in float64 shows between any two numbers.
    """
    steps = (2.0**-26, 2.0**-29, 2.0**-44)
    wide, close, least = (max(abs(np.diff([phi(x + n * h * v) for n in range(9)], 4))) for h in steps)
    return bool(close > wide / 256 > least)


def _only(k: int | None, values: Sequence[Any]) -> list[Any]:
    """Return one of some values, and None for the others; None for all if there is no such number."""
    return [value if i == k else None for i, value in enumerate(values)]


def _same(layout: str, array: np.ndarray) -> np.ndarray:
    """Return the numbers in a layout of an array."""
    return np.repeat(array[:1], len(array), axis=0) if layout == "expanded" else array


def _size(array: np.ndarray) -> float:
    """Return the largest finite magnitude."""
    finite = abs(array[np.isfinite(array)])
    return float(finite.max()) if finite.size else 0.0


def _relative(array: np.ndarray, expected: np.ndarray, usual: float) -> float:
    """Return the largest difference relative to the largest expected or usual magnitude; NaNs are equal."""
    if array.shape != expected.shape:
        return math.inf
    same = (array == expected) | (np.isnan(array) & np.isnan(expected))
    if same.all():
        return 0.0
    return float(abs(array - expected)[~same].max()) / (max(_size(expected), usual) or 1.0)


KINDS: Mapping[str, int] = {  # the lowest order that has them
    "form": 1,
    "repeat": 1,
    "history": 1,
    "alone": 1,
    "threads": 1,
    "layout": 1,
    "nan": 0,
    "float32": 1,
    "differences": 1,
    "adjoint": 2,
    "symmetry": 2,
}
BY_ORDER = ("differences", "adjoint", "symmetry")  # kinds that are checked for each order from that one on
