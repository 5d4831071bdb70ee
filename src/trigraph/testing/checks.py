"""The checks of `check_derivatives`, each for one property of the derivatives of any function."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from trigraph.testing.curves import Rounded, examine, noise_of, worst_part
from trigraph.testing.frameworks import THREADS, as_tuple
from trigraph.testing.problem import Arrays, CallFailed, Problem, dot
from trigraph.verification.record import Check
from trigraph.verification.subjects import message_of
from trigraph.verification.tolerances import EPS, MARGIN, RESPONSE, ROUNDING, UNSURE

REPEATS = 5
ELEMENTS = 200  # elements of each input that are compared individually
GROUPS = 40  # groups of the other elements, each compared as a whole
# Elements of each input that are set to NaN, and random points that show which outputs depend on them. There are many
# such points, because a relu unit is inactive at half of them.
SPOILT, ELSEWHERE = 6, 40
EPSILON, FLOAT32 = EPS["float64"], EPS["float32"]


class Checks:
    """The checks of one function, with a method for each kind."""

    def __init__(self, problem: Problem, name: str) -> None:
        self.p, self.name = problem, name
        self.y = problem.outputs(problem.x)
        if not any(y.size for y in self.y):
            raise CallFailed("no output has an element of a floating dtype")
        self.w = problem.weights(self.y)
        self.u = [problem.direction(x) for x in problem.x]
        self.elsewhere: list[tuple[Arrays, Arrays]] = []
        # Scalar functions for finite differences: sum <w, outputs> for order 1, sum <u, gradients> for order 2.
        self.orders: dict[int, Callable[[Arrays], tuple[float, float]]] = {
            1: lambda x: dot(self.w, problem.outputs(x)),
            2: lambda x: dot(self.u, problem.gradients(problem.native(x), self.w)),
        }

    def check(self, kind: str, order: int | str, field: str, error: float, allowed: float, note: str = "") -> Check:
        """Return a check of the function."""
        return Check(self.name, self.p.framework.name, "float64", kind, str(order), field, error, allowed, note=note)

    def _label(self, k: int) -> str:
        return f"input {self.p.wanted[k]}"

    def gradient(self, order: int, relative: float = 0.0) -> Arrays:
        """Return the framework's gradients of the scalar function of an order.

        A nonzero `relative` is the size of random relative perturbations of all inputs.
        """
        x, w, u = (self.p.nudged(arrays, relative) for arrays in (self.p.x, self.w, self.u))
        return self.p.gradients(self.p.native(x), w) if order == 1 else self.p.second(x, w, u)[0]

    def rounded_gradient(self, order: int) -> list[Rounded]:
        """Return the gradients, with rounding errors estimated from changes in the last bits of the inputs."""
        others = [self.gradient(order, EPSILON) for _ in range(3)]
        found = []
        for k, g in enumerate(self.gradient(order)):
            seen = np.max([abs(other[k] - g) for other in others], axis=0) + EPSILON * abs(g)
            found.append(Rounded(g, np.minimum(seen, UNSURE * abs(g).max(initial=0))))
        return found

    def _along(self, order: int, k: int) -> Callable[[np.ndarray], float]:
        """Return the scalar function of an order, as a function of input `k` only."""

        def phi(value: np.ndarray) -> float:
            return self.orders[order]([value if i == k else x for i, x in enumerate(self.p.x)])[0]

        return phi

    def differences(self, order: int) -> Iterator[Check]:
        """Compare gradients with central differences, along a direction and by element."""
        gradients, (_, scale) = self.rounded_gradient(order), self.orders[order](self.p.x)
        for k, (x, g) in enumerate(zip(self.p.x, gradients, strict=True)):
            if not x.size:
                continue
            start, v, phi = time.perf_counter(), self.p.direction(x, g.values), self._along(order, k)
            noise = noise_of(phi, x, v, scale)
            found = examine(phi, g, x, v, scale, noise)
            elements = self._elements(order, k, phi, g, noise)
            note = f"{elements.note}; {found.note}" if elements.failed and found.problem else found.note
            check = self.check("differences", order, self._label(k), found.best, found.tolerance, note)
            yield replace(check, order=found.order, seconds=time.perf_counter() - start, curve=found.curve)
            yield elements

    def _elements(self, order: int, k: int, phi: Callable[[np.ndarray], float], g: Rounded, noise: float) -> Check:
        """Compare elements of a gradient with differences, some alone and the others in groups; report the worst."""
        x = self.p.x[k]
        typical = max(float(np.sqrt(np.mean(x**2))), 1e-3 * float(abs(x).max())) or 1.0
        sizes = np.maximum(abs(x), typical)
        chosen = self.p.rng.permutation(x.size)
        alone, others = chosen[:ELEMENTS, None], np.array_split(chosen[ELEMENTS:], GROUPS)
        groups = [*alone, *(group for group in others if group.size)]
        ratio, note = worst_part(
            phi, g, x, sizes, noise, groups, lambda index: f"element {list(index)}" if index else "the number"
        )
        label = f"{self._label(k)}, {len(alone)} of {x.size} elements" + ", others in groups" * (x.size > len(alone))
        return self.check("elements", order, label, ratio, 1.0, note)

    def form(self) -> Iterator[Check]:
        """Check dtypes, shapes and devices of gradients, dtypes of outputs, and that no argument is modified."""
        p, inputs = self.p, self.p.as_given()
        outputs = [p.framework.to_host(y) for y in as_tuple(p.framework.outputs(inputs)) if p.framework.takes(y)]
        widest = max((p.given[i].dtype for i in p.wanted), key=lambda dtype: dtype.itemsize)
        for k, y in enumerate(y for y in outputs if y.dtype.kind == "f"):
            note = f"output is {y.dtype}; the inputs are {widest}" if y.dtype.itemsize > widest.itemsize else ""
            yield self.check("form", 0, f"output {k}", float(bool(note)), 0.0, note)
        like = inputs[p.wanted[0]]
        weights = [
            p.framework.from_host(np.ones(y.shape, y.dtype), like) if y.dtype.kind == "f" else None for y in outputs
        ]
        gradients = p.framework.vjp(inputs, p.wanted, weights)
        for i, g in zip(p.wanted, gradients, strict=True):
            if g is None:
                continue
            found, wanted, note = p.host(g, f"gradient {i}"), p.given[i], ""
            if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
                note = f"gradient is {found.dtype} {found.shape}; expected {wanted.dtype} {wanted.shape}, as the input"
            elif p.framework.place(g) != p.framework.place(inputs[i]):
                note = f"gradient is on {p.framework.place(g)}; expected {p.framework.place(inputs[i])}"
            yield self.check("form", 1, f"input {i}", float(bool(note)), 0.0, note)
        kept = [(f"input {i}", inputs[i], old) for i, old in p.given.items()]
        kept += [(f"cotangent {k}", w, np.ones_like(outputs[k])) for k, w in enumerate(weights) if w is not None]
        for name, value, old in kept:
            same = np.array_equal(p.framework.to_host(value), old, equal_nan=old.dtype.kind == "f")
            note = "" if same else "it was modified by a call"
            yield self.check("unchanged", "", name, float(not same), 0.0, note)

    def _results(self, inputs: Sequence[Any]) -> tuple[Arrays, Arrays]:
        """Return outputs and gradients for native inputs."""
        return self.p.returned(inputs), self.p.gradients(inputs, self.w)

    def _bits(
        self, kind: str, what: str, first: tuple[Arrays, Arrays], others: Sequence[tuple[Arrays, Arrays]], of: str = ""
    ) -> Iterator[Check]:
        for part, order in ((0, 0), (1, 1)):
            worst = any(
                a.tobytes() != b.tobytes() for other in others for a, b in zip(first[part], other[part], strict=True)
            )
            note = f"results differ {what}" if worst else ""
            yield self.check(kind, order, ("outputs", "gradients")[part] + of, float(worst), 0.0, note)

    def repeat(self) -> Iterator[Check]:
        """Check that repeated calls are bitwise equal, and that later calls do not modify earlier results."""
        p, calls = self.p, [self._results(self.p.native(self.p.x)) for _ in range(REPEATS)]
        yield from self._bits("repeat", "from one call to the next", calls[0], calls[1:])
        kept = p.kept(p.native(p.x), self.w)
        before, _, after = kept(), self._results(p.native(p.nudged(p.x, 2.0**-30))), kept()
        yield from self._bits("repeat", "after another call, which overwrites them", before, [after], ", kept")

    def alone(self) -> Iterator[Check]:
        """Check that gradients of single inputs, or for single outputs, equal those of joint calls."""
        p, whole = self.p, self.p.gradients(self.p.native(self.p.x), self.w)
        for k in range(len(p.x) if len(p.x) > 1 else 0):
            (found,) = p.gradients(p.native(p.x), self.w, only=k)
            yield self._alike("alone", f"{self._label(k)} alone", found, whole[k], _size(whole[k]))
        given = [k for k, w in enumerate(self.w) if w.size]
        if len(given) > 1:
            parts = []
            for k in given:
                weights = [w if i == k else np.zeros(0) for i, w in enumerate(self.w)]
                parts.append(p.gradients(p.native(p.x), weights))
            for k, terms in enumerate(zip(*parts, strict=True)):
                usual = sum(map(_size, terms))
                yield self._alike("alone", f"{self._label(k)}, sum over outputs", sum(terms), whole[k], usual)

    def _alike(self, kind: str, what: str, found: Any, expected: np.ndarray, usual: float) -> Check:
        error = _relative(np.asarray(found), expected, usual)
        note = "" if error <= ROUNDING else f"differs by {error:.0e} from that of a joint call"
        return self.check(kind, 1, what, error, ROUNDING, note)

    def threads(self) -> Iterator[Check]:
        """Check that one, two and three threads give bitwise equal results."""
        calls = []
        for number in THREADS:
            with self.p.framework.threads(number):
                calls.append(self._results(self.p.native(self.p.x)))
        yield from self._bits("threads", f"with {THREADS} threads", calls[0], calls[1:])

    def layout(self) -> Iterator[Check]:
        """Check that the memory layout of inputs and cotangents changes results by rounding at most."""
        p, usual = self.p, [_size(a) for a in self._all(self.p.native(self.p.x))]
        for k, x in enumerate(p.x):
            for name, value in self._layouts(x, p.inputs[p.wanted[k]]):
                plain, other = p.native(p.x), p.native(p.x)
                plain[p.wanted[k]] = p.framework.from_host(_same(name, x), p.inputs[p.wanted[k]])
                other[p.wanted[k]] = value
                calls = partial(self._all, plain), partial(self._all, other)
                yield from self._agree(f"{self._label(k)}, {name}", *calls, usual)
        for k, w in enumerate(self.w):
            like = p.inputs[p.wanted[0]]
            for name, value in self._layouts(w, like):
                pull, right = partial(p.gradients, p.native(p.x), self.w), p.framework.from_host(_same(name, w), like)
                calls = partial(pull, (k, right)), partial(pull, (k, value))
                yield from self._agree(f"cotangent {k}, {name}", *calls, usual[len(self.y) :])

    def _layouts(self, array: np.ndarray, like: Any) -> Iterable[tuple[str, Any]]:
        return self.p.framework.layouts(array, like).items() if array.ndim and array.size else ()

    def _all(self, inputs: Sequence[Any]) -> Arrays:
        outputs, gradients = self._results(inputs)
        return outputs + gradients

    def _agree(
        self, what: str, plain: Callable[[], Arrays], other: Callable[[], Arrays], usual: Sequence[float]
    ) -> Iterator[Check]:
        """Compare results for a contiguous array with those for the same numbers in another layout.

        `usual` are magnitudes of results at the point, because those for equal rows may be zero up to rounding.
        """
        try:
            right = plain()
        except Exception:  # the function refuses these numbers in any layout
            return
        try:
            errors = [_relative(a, b, size) for a, b, size in zip(other(), right, usual, strict=True)]
        except Exception as error:  # any error for this layout
            worst, note = math.inf, f"raises only in this layout: {message_of(error)}"
        else:
            worst = max(errors, key=lambda e: math.inf if math.isnan(e) else e)
            note = "" if worst <= ROUNDING else f"differs from the contiguous layout by {worst:.0e}"
        yield self.check("layout", "", what, worst, ROUNDING, note)

    def nan(self) -> Iterator[Check]:
        """Check that a NaN in an input element reaches only outputs that depend on this element somewhere."""
        p = self.p
        for k, x in enumerate(p.x):
            if not x.size:
                continue
            try:
                chosen = p.rng.permutation(x.size)[:SPOILT]
                spread = next(filter(None, (self._spread(k, int(flat)) for flat in chosen)), 0)
            except Exception as error:  # a function may refuse NaN and distant points
                yield self.check("not offered", "nan", self._label(k), 1.0, 0.0, message_of(error))
                continue
            note = f"{spread} elements of outputs became NaN but do not depend on the element" if spread else ""
            yield self.check("nan", 0, self._label(k), float(spread), 0.0, note)

    def _points(self) -> Iterator[tuple[Arrays, Arrays]]:
        """Yield the point and random ones, with their outputs."""
        yield self.p.x, self.y
        for n in range(ELSEWHERE):
            if n == len(self.elsewhere):
                point = [self.p.direction(a) for a in self.p.x]
                self.elsewhere.append((point, self.p.outputs(point)))
            yield self.elsewhere[n]

    def _spread(self, k: int, flat: int) -> int:
        """Count elements of outputs that become NaN with an input element and vary, but never depend on it."""

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
                    return 0
                other = with_element(point, factor * size + 0.25)
                if any(a.shape != y.shape for a, y in zip((*other, *values), (*self.y, *self.y), strict=True)):
                    return 0
                suspects = [s & (a == b) for s, a, b in zip(suspects, other, values, strict=True)]
            varied = [v | (a != y) for v, a, y in zip(varied, values, self.y, strict=True)]
        return sum(int(np.count_nonzero(s & v)) for s, v in zip(suspects, varied, strict=True))

    def float32(self) -> Iterator[Check]:
        """Check that results in float32 agree with float64 up to the effect of rounding the inputs."""
        p = self.p
        small = [x.astype(np.float32) for x in p.x]
        exact = [x.astype(np.float64) for x in small]
        weights = [w.astype(np.float32) for w in self.w]
        same = [w.astype(np.float64) for w in weights]
        right = p.outputs(exact), p.gradients(p.native(exact), same)
        try:
            found = p.outputs(small), p.gradients(p.native(small), weights)
        except Exception as error:  # a function with float64 parameters may refuse float32
            yield self.check("not offered", "float32", "all inputs", 1.0, 0.0, message_of(error))
            return
        near = [(p.nudged(exact, FLOAT32), p.nudged(same, FLOAT32)) for _ in range(3)]
        moved = [(p.outputs(there), p.gradients(p.native(there), turned)) for there, turned in near]
        for part, name in ((0, "output"), (1, "gradient")):
            for i, (got, known) in enumerate(zip(found[part], right[part], strict=True)):
                if not known.size:
                    continue
                scale = float(abs(known).max())
                response = float(np.max([abs(m[part][i] - known) for m in moved])) + FLOAT32 * scale
                gap = float(abs(got.astype(np.float64) - known).max()) if got.shape == known.shape else math.inf
                allowed = RESPONSE * response
                note = "" if gap <= allowed else f"differs from float64 by {gap:.1e}, of numbers up to {scale:.1e}"
                yield self.check("float32", part, f"{name} {i}", gap, allowed, note)

    def adjoint(self) -> Iterator[Check]:
        """Check that <w', J u> = <u, J^T w'>, where J u is the derivative of <u, J^T w> with respect to w."""
        p, other = self.p, self.p.weights(self.y)

        def sides(x: Arrays) -> tuple[float, float, float]:
            left, scale = dot([w for w in other if w.size], p.second(x, self.w, self.u)[1])
            right, more = dot(self.u, p.gradients(p.native(x), other))
            return left, right, scale + more

        yield self._identity("adjoint", sides)

    def symmetry(self) -> Iterator[Check]:
        """Check that <H u, v> = <H v, u>."""
        p, v = self.p, [self.p.direction(x) for x in self.p.x]

        def sides(x: Arrays) -> tuple[float, float, float]:
            left, scale = dot(v, p.second(x, self.w, self.u)[0])
            right, more = dot(self.u, p.second(x, self.w, v)[0])
            return left, right, scale + more

        yield self._identity("symmetry", sides)

    def _identity(self, kind: str, sides: Callable[[Arrays], tuple[float, float, float]]) -> Check:
        left, right, scale = sides(self.p.x)
        error = abs(left - right) / (scale or 1.0)
        # Estimate rounding from changes in the last bits of the inputs, which hardly change an error of the derivative.
        others = [sides(self.p.nudged(self.p.x, EPSILON)) for _ in range(2)]
        rounding = max(abs((a - b) - (left - right)) for a, b, _ in others) / (scale or 1.0)
        allowed = MARGIN * (ROUNDING + min(rounding, UNSURE))
        note = "" if error <= allowed else f"{left:.10g} on one side, {right:.10g} on the other"
        return self.check(kind, 2, "all inputs", error, allowed, note)


def _same(layout: str, array: np.ndarray) -> np.ndarray:
    """Return the numbers in a layout of an array."""
    return np.repeat(array[:1], len(array), axis=0) if layout == "expanded" else array


def _size(array: np.ndarray) -> float:
    """Return the largest finite magnitude."""
    finite = abs(array[np.isfinite(array)])
    return float(finite.max()) if finite.size else 0.0


def _relative(found: np.ndarray, expected: np.ndarray, usual: float) -> float:
    """Return the largest difference relative to the largest expected or usual magnitude; NaNs are equal."""
    if found.shape != expected.shape:
        return math.inf
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    if same.all():
        return 0.0
    return float(abs(found - expected)[~same].max()) / (max(_size(expected), usual) or 1.0)


KINDS: Mapping[str, int] = {
    "form": 1,
    "repeat": 1,
    "alone": 1,
    "threads": 1,
    "layout": 1,
    "nan": 0,
    "float32": 1,
    "differences": 1,
    "adjoint": 2,
    "symmetry": 2,
}
