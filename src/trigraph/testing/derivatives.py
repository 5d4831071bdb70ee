"""The checks of `check_derivatives`, each on one property that the derivatives of any function have."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from trigraph.fortran import judge
from trigraph.testing.curves import MARGIN, element_problem, examine, noise_of, one_sided, shown
from trigraph.testing.frameworks import THREADS, Framework, Function, Jax, NumPy, Torch, as_tuple
from trigraph.testing.result import DerivativeError, Result
from trigraph.verification.differences import inner
from trigraph.verification.record import Check
from trigraph.verification.subjects import message_of, observe

REPEATS = 5
ELEMENTS = 200  # of each input that are compared one by one
SPOILT = 6  # elements of each input that are made NaN, one after the other
# Rounding of results that were computed in another order: of sums of some hundred terms in float64.
ROUNDING = 2.0**-44
FLOAT32 = 2.0**-23
# Results in float32 may differ from those in float64 by so many times what a change of inputs by one epsilon makes.
RESPONSE = 100.0

Arrays = list[np.ndarray]


class CallFailed(Exception):
    """A call of the function, or of its derivatives, did not return what it must; the message says what."""


@dataclass
class _Problem:
    """A function at a point: its floating inputs as NumPy arrays of float64, and what it returns."""

    framework: Framework
    inputs: Sequence[Any]
    rng: np.random.Generator
    wanted: list[int] = field(default_factory=list)
    x: Arrays = field(default_factory=list)

    def __post_init__(self) -> None:
        for i, value in enumerate(self.inputs):
            if self.framework.takes(value):
                array = self.framework.to_host(value)
                if array.dtype.kind == "f":
                    self.wanted.append(i)
                    self.x.append(array.astype(np.float64))

    def native(self, arrays: Sequence[np.ndarray]) -> list[Any]:
        """Return the inputs with the values of arrays."""
        found = list(self.inputs)
        for i, array in zip(self.wanted, arrays, strict=True):
            found[i] = self.framework.from_host(array, self.inputs[i])
        return found

    def _host(self, value: Any, what: str) -> np.ndarray:
        if not self.framework.takes(value):
            raise CallFailed(f"{what} is a {type(value).__name__}; expected an array of {self.framework.name}")
        found: np.ndarray = self.framework.to_host(value)
        return found

    def returned(self, inputs: Sequence[Any]) -> Arrays:
        """Return the floating outputs of a call with native inputs; empty arrays in the place of others."""
        found = [self._host(y, f"output {k}") for k, y in enumerate(as_tuple(self.framework.outputs(inputs)))]
        return [y if y.dtype.kind == "f" else np.zeros(0) for y in found]

    def outputs(self, arrays: Sequence[np.ndarray]) -> Arrays:
        """Return the floating outputs at a point."""
        return self.returned(self.native(arrays))

    def _cotangents(self, weights: Arrays) -> list[Any]:
        like = self.inputs[self.wanted[0]]
        return [self.framework.from_host(w, like) if w.size else None for w in weights]

    def _gradients(self, found: Sequence[Any], expected: Arrays, what: str) -> Arrays:
        if len(found) != len(expected):
            raise CallFailed(f"{len(found)} {what}s were returned; expected {len(expected)}")
        arrays = []
        for k, (value, like) in enumerate(zip(found, expected, strict=True)):
            array = np.zeros_like(like) if value is None else self._host(value, f"{what} {k}")
            if array.shape != like.shape:
                raise CallFailed(f"{what} {k} has shape {array.shape}; expected {like.shape}")
            arrays.append(array)
        return arrays

    def gradients(self, inputs: Sequence[Any], weights: Arrays) -> Arrays:
        """Return the vector-Jacobian product with weights of the outputs, at native inputs."""
        found = self.framework.vjp(inputs, self.wanted, self._cotangents(weights))
        return self._gradients(found, self.x, "gradient")

    def second(self, arrays: Arrays, weights: Arrays, directions: Arrays) -> tuple[Arrays, Arrays]:
        """Return the gradients of sum <direction, gradient> in the inputs and in the weights."""
        us = [self.framework.from_host(u, self.inputs[i]) for i, u in zip(self.wanted, directions, strict=True)]
        found = self.framework.vjp2(self.native(arrays), self.wanted, self._cotangents(weights), us)
        of_x = self._gradients(found[0], self.x, "second derivative")
        given = [g for g, w in zip(found[1], weights, strict=True) if w.size]
        of_w = self._gradients(given, [w for w in weights if w.size], "derivative in cotangent")
        return of_x, of_w

    def direction(self, array: np.ndarray, gradient: np.ndarray | None = None) -> np.ndarray:
        """Return a random direction whose elements are of the size of the array's.

        Along a direction with the signs of the gradient all elements add to the change of the function.
        """
        typical = float(np.sqrt(np.mean(array**2))) if array.size else 1.0
        size = np.maximum(abs(array), typical if typical > 0 and math.isfinite(typical) else 1.0)
        found = size * self.rng.uniform(0.5, 1.0, array.shape) * self.rng.choice([-1.0, 1.0], array.shape)
        return found if gradient is None else np.where(gradient == 0, found, np.copysign(found, gradient))

    def weights(self, outputs: Arrays) -> Arrays:
        """Return random cotangents."""
        return [self.rng.uniform(0.5, 1.0, y.shape) * self.rng.choice([-1.0, 1.0], y.shape) for y in outputs]


def _dot(left: Arrays, right: Arrays) -> tuple[float, float]:
    """Return sum <a, b> and the sum of |terms|, in real128."""
    pairs = [(judge.pair(a), judge.pair(b)) for a, b in zip(left, right, strict=True) if a.size]
    return inner(pairs) if pairs else (0.0, 0.0)


class _Checks:
    """The checks of one function; each method of a kind yields them."""

    def __init__(self, problem: _Problem, name: str) -> None:
        self.p, self.name = problem, name
        self.y = problem.outputs(problem.x)
        if not any(y.size for y in self.y):
            raise CallFailed("no output has an element of a floating dtype")
        self.w = problem.weights(self.y)
        self.u = [problem.direction(x) for x in problem.x]
        # The functions that are differenced: of order 1 sum <w, outputs>, of order 2 sum <u, gradients>.
        self.orders: dict[int, Callable[[Arrays], tuple[float, float]]] = {
            1: lambda x: _dot(self.w, problem.outputs(x)),
            2: lambda x: _dot(self.u, problem.gradients(problem.native(x), self.w)),
        }

    def check(self, kind: str, order: int | str, field: str, error: float, allowed: float, note: str = "") -> Check:
        return Check(self.name, self.p.framework.name, "float64", kind, str(order), field, error, allowed, note=note)

    def _label(self, k: int) -> str:
        return f"input {self.p.wanted[k]}"

    def gradient(self, order: int) -> Arrays:
        """Return what the framework says are the gradients of the function of an order."""
        if order == 1:
            return self.p.gradients(self.p.native(self.p.x), self.w)
        return self.p.second(self.p.x, self.w, self.u)[0]

    def _along(self, order: int, k: int) -> Callable[[np.ndarray], float]:
        """Return the function of an order, of input `k` alone."""

        def phi(value: np.ndarray) -> float:
            return self.orders[order]([value if i == k else x for i, x in enumerate(self.p.x)])[0]

        return phi

    def differences(self, order: int) -> Iterator[Check]:
        """Compare gradients with central differences: along a direction, then element by element."""
        gradients, (_, scale) = self.gradient(order), self.orders[order](self.p.x)
        for k, (x, g) in enumerate(zip(self.p.x, gradients, strict=True)):
            if not x.size:
                continue
            start, v, phi = time.perf_counter(), self.p.direction(x, g), self._along(order, k)
            found = examine(phi, g, x, v, scale)
            elements = self._elements(order, k, phi, g, noise_of(phi, x, v, scale))
            note = f"{found.problem} ({shown(found.curve)})" if found.problem else found.remark
            if elements.failed and found.problem:
                note = f"{elements.note}; {note}"
            seconds = time.perf_counter() - start
            yield Check(
                self.name,
                self.p.framework.name,
                "float64",
                "differences",
                str(order),
                self._label(k),
                math.inf if found.problem else found.best,
                found.tolerance,
                found.order,
                seconds,
                found.curve,
                note=note,
            )
            yield elements

    def _elements(self, order: int, k: int, phi: Callable[[np.ndarray], float], g: np.ndarray, noise: float) -> Check:
        """Compare elements of a gradient with differences; the worst one is reported."""
        x = self.p.x[k]
        chosen = self.p.rng.permutation(x.size)[:ELEMENTS]
        typical = max(float(np.sqrt(np.mean(x**2))), 1e-3 * float(abs(x).max())) or 1.0
        worst, place = (0.0, ""), None
        for flat in chosen:
            index = tuple(int(i) for i in np.unravel_index(flat, x.shape))
            error, allowed, difference = element_problem(phi, g, x, index, max(abs(x[index]), typical), noise)
            allowed += 2.0**-40 * abs(difference)
            ratio = error / allowed if allowed > 0 else math.inf * error if error else 0.0
            if not ratio <= worst[0]:
                at = f"element {list(index)} is {g[index]:.8g}; differences give {difference:.8g} +- {allowed:.1g}"
                worst, place = (ratio if math.isfinite(ratio) else math.inf, at), index
        if place is not None and not worst[0] <= 1:
            along = np.zeros_like(x)
            along[place] = max(abs(x[place]), typical)
            if sides := one_sided(phi, x, along, noise):
                worst = worst[0], f"{worst[1]}; {sides}"
        label = f"{self._label(k)}, {len(chosen)} of {x.size} elements"
        return self.check("elements", order, label, worst[0], 1.0, worst[1] if not worst[0] <= 1 else "")

    def form(self) -> Iterator[Check]:
        """Gradients have dtype, shape and device of their inputs, and nothing changes the inputs."""
        p = self.p
        inputs = [p.framework.from_host(p.framework.to_host(v), v) if p.framework.takes(v) else v for v in p.inputs]
        before = [p.framework.to_host(v) if p.framework.takes(v) else None for v in inputs]
        outputs = [p.framework.to_host(y) for y in as_tuple(p.framework.outputs(inputs)) if p.framework.takes(y)]
        like = inputs[p.wanted[0]]
        weights = [
            p.framework.from_host(np.ones(y.shape, y.dtype), like) if y.dtype.kind == "f" else None for y in outputs
        ]
        gradients = p.framework.vjp(inputs, p.wanted, weights)
        for i, g in zip(p.wanted, gradients, strict=True):
            if g is None:
                continue
            found, wanted = p._host(g, f"gradient {i}"), before[i]
            assert wanted is not None
            note = ""
            if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
                note = f"gradient is {found.dtype} {found.shape}; expected {wanted.dtype} {wanted.shape}, as the input"
            elif p.framework.place(g) != p.framework.place(inputs[i]):
                note = f"gradient is on {p.framework.place(g)}; expected {p.framework.place(inputs[i])}"
            yield self.check("form", 1, f"input {i}", float(bool(note)), 0.0, note)
        for i, old in enumerate(before):
            if old is not None:
                same = np.array_equal(p.framework.to_host(inputs[i]), old, equal_nan=old.dtype.kind == "f")
                note = "" if same else "a call changed it"
                yield self.check("unchanged", "", f"input {i}", float(not same), 0.0, note)

    def _results(self, inputs: Sequence[Any]) -> tuple[Arrays, Arrays]:
        """Return outputs and gradients for native inputs."""
        return self.p.returned(inputs), self.p.gradients(inputs, self.w)

    def _bits(self, kind: str, what: str, first: tuple[Arrays, Arrays], others: Sequence[tuple[Arrays, Arrays]]) -> Any:
        for part, order in ((0, 0), (1, 1)):
            worst = max(
                int(np.count_nonzero(a.view(np.uint8) != b.view(np.uint8))) if a.shape == b.shape else -1
                for other in others
                for a, b in zip(map(np.atleast_1d, first[part]), map(np.atleast_1d, other[part]), strict=True)
            )
            note = f"results differ {what}" if worst else ""
            yield self.check(kind, order, ("outputs", "gradients")[part], float(worst != 0), 0.0, note)

    def repeat(self) -> Iterator[Check]:
        """Equal bits when called again."""
        calls = [self._results(self.p.native(self.p.x)) for _ in range(REPEATS)]
        yield from self._bits("repeat", "from one call to the next", calls[0], calls[1:])

    def threads(self) -> Iterator[Check]:
        """Equal bits with one, two and three threads."""
        calls = []
        for number in THREADS:
            with self.p.framework.threads(number):
                calls.append(self._results(self.p.native(self.p.x)))
        yield from self._bits("threads", f"with {THREADS} threads", calls[0], calls[1:])

    def layout(self) -> Iterator[Check]:
        """Equal values, up to rounding, where an input lies in memory otherwise."""
        p, expected = self.p, self._results(self.p.native(self.p.x))
        for k, x in enumerate(p.x):
            if not x.ndim or not x.size:
                continue
            trials = [(n, v, expected) for n, v in p.framework.layouts(x, p.inputs[p.wanted[k]]).items()]
            if x.shape[0] > 1:
                rows = [np.repeat(a[:1], len(a), axis=0) if i == k else a for i, a in enumerate(p.x)]
                expanded = p.framework.constant_rows(x, p.inputs[p.wanted[k]])
                trials.append(("expanded", expanded, self._results(p.native(rows))))
            for name, value, right in trials:
                inputs = p.native(p.x)
                inputs[p.wanted[k]] = value
                try:
                    found = self._results(inputs)
                except Exception as error:  # whatever the function makes of such a layout
                    worst, note = math.inf, f"the same numbers in order are taken; here {message_of(error)}"
                else:
                    errors = [_relative(a, b) for a, b in zip(found[0] + found[1], right[0] + right[1], strict=True)]
                    worst = max(errors, key=lambda e: math.inf if math.isnan(e) else e)
                    note = (
                        "" if worst <= ROUNDING else f"other results than of the same numbers in order: by {worst:.0e}"
                    )
                yield self.check("layout", "", f"{self._label(k)}, {name}", worst, ROUNDING, note)

    def nan(self) -> Iterator[Check]:
        """Let a NaN in an element of an input reach only outputs that change with this element."""
        p = self.p
        for k, x in enumerate(p.x):
            spread, size = 0, float(abs(x).max()) if x.size else 1.0

            def with_element(flat: int, value: float, k: int = k) -> Arrays:
                changed = [a.copy() for a in p.x]
                changed[k].flat[flat] = value
                return p.outputs(changed)

            for flat in p.rng.permutation(x.size)[:SPOILT]:
                others = [with_element(flat, f * size + 0.25) for f in (-3.0, -0.5, 0.5, 3.0)]
                for i, (y, bad) in enumerate(zip(self.y, with_element(flat, math.nan), strict=True)):
                    if all(y.shape == o[i].shape for o in (*others, [bad] * (i + 1))):
                        same = np.logical_and.reduce([y == o[i] for o in others])
                        spread += int(np.count_nonzero(same & np.isnan(bad)))
            note = f"{spread} elements of outputs became NaN that do not change with the element" if spread else ""
            if x.size:
                yield self.check("nan", 0, self._label(k), float(spread), 0.0, note)

    def float32(self) -> Iterator[Check]:
        """Results in float32 are those of float64, up to what rounding of the inputs does to them."""
        p = self.p
        small = [x.astype(np.float32) for x in p.x]
        exact = [x.astype(np.float64) for x in small]
        weights = [w.astype(np.float32) for w in self.w]
        right = p.outputs(exact), p.gradients(p.native(exact), [w.astype(np.float64) for w in weights])
        found = p.outputs(small), p.gradients(p.native(small), weights)
        moved = []
        for _ in range(3):
            there = [x * (1 + FLOAT32 * p.rng.choice([-1.0, 1.0], x.shape)) for x in exact]
            moved.append((p.outputs(there), p.gradients(p.native(there), self.w)))
        for part, name in ((0, "output"), (1, "gradient")):
            for i, (got, known) in enumerate(zip(found[part], right[part], strict=True)):
                if not known.size:
                    continue
                scale = float(abs(known).max())
                response = max(float(abs(m[part][i] - known).max()) for m in moved) + FLOAT32 * scale
                error = float(abs(got.astype(np.float64) - known).max()) if got.shape == known.shape else math.inf
                allowed = RESPONSE * response
                note = "" if error <= allowed else f"differs from float64 by {error:.1e}, of numbers up to {scale:.1e}"
                yield self.check("float32", part, f"{name} {i}", error, allowed, note)

    def adjoint(self) -> Iterator[Check]:
        """<w', J u> is <u, J^T w'>, where J u is the derivative of <u, J^T w> in w."""
        p = self.p
        _, products = p.second(p.x, self.w, self.u)
        other = p.weights(self.y)
        left, scale = _dot([w for w in other if w.size], products)
        right, more = _dot(self.u, p.gradients(p.native(p.x), other))
        yield self._identity("adjoint", left, right, scale + more)

    def symmetry(self) -> Iterator[Check]:
        """<H u, v> is <H v, u>."""
        p, v = self.p, [self.p.direction(x) for x in self.p.x]
        left, scale = _dot(p.second(p.x, self.w, self.u)[0], v)
        right, more = _dot(p.second(p.x, self.w, v)[0], self.u)
        yield self._identity("symmetry", left, right, scale + more)

    def _identity(self, kind: str, left: float, right: float, scale: float) -> Check:
        error = abs(left - right) / scale if scale > 0 else abs(left - right)
        # Each side is a sum of numbers that the framework has rounded, of terms that may cancel in part.
        allowed = MARGIN * ROUNDING
        note = "" if error <= allowed else f"{left:.10g} on one side, {right:.10g} on the other"
        return self.check(kind, 2, "all inputs", error, allowed, note)


def _relative(found: np.ndarray, expected: np.ndarray) -> float:
    if found.shape != expected.shape:
        return math.inf
    if not found.size:
        return 0.0
    scale = float(abs(expected).max())
    return float(abs(found - expected).max()) / (scale or 1.0)


KINDS: Mapping[str, int] = {
    "form": 1,
    "repeat": 1,
    "threads": 1,
    "layout": 1,
    "nan": 0,
    "float32": 1,
    "differences": 1,
    "adjoint": 2,
    "symmetry": 2,
}


@contextlib.contextmanager
def _limited(seconds: float | None) -> Iterator[None]:
    """Interrupt what runs longer, in the main thread."""
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise TimeoutError(f"it takes longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _framework(function: Function, framework: str, vjp: Any, order: int) -> Framework:
    """Return the framework of a name, after a look at what it needs."""
    if framework == "numpy":
        first, second = vjp if isinstance(vjp, tuple) and len(vjp) == 2 else (vjp, None)
        if not callable(first):
            raise TypeError(f"check_derivatives: vjp is a {type(first).__name__}; expected a function for 'numpy'")
        if order == 2 and not callable(second):
            raise TypeError("check_derivatives: order is 2 and vjp is no pair; expected (vjp, vjp2), or order=1")
        return NumPy(function, first, second)
    if vjp is not None:
        raise TypeError(
            f"check_derivatives: vjp is given for {framework!r}, which differentiates itself; expected None"
        )
    kinds: dict[str, Callable[[Function], Framework]] = {"torch": Torch, "jax": Jax}
    if framework not in kinds:
        raise ValueError(f"check_derivatives: framework is {framework!r}; expected 'numpy', 'torch' or 'jax'")
    return kinds[framework](function)


def check_derivatives(
    function: Function,
    inputs: Sequence[Any],
    *,
    order: int = 2,
    framework: str = "numpy",
    vjp: Any = None,
    skip: Mapping[str, str] | None = None,
    timeout: float | None = None,
    seed: int = 0,
    raises: bool = True,
) -> Result:
    """Check the derivatives of any differentiable function.

    Gradients are compared with central differences over a range of steps, along a direction and element by element;
    so are second derivatives, which must be symmetric and fit the gradient (adjoint identity). Results must have equal
    bits when a call is repeated and whatever the number of threads, must not depend on the layout of inputs in memory,
    must be the same in float32 up to rounding, and a NaN must not reach outputs that do not depend on it.

    Parameters
    ----------
    function : callable
        From the inputs to an array or a tuple of arrays; those of floating dtype are differentiated.
    inputs : sequence
        Arrays of the framework; those of floating dtype are differentiated, at their values in float64. Anything else
        is handed over as it is.
    order : {1, 2}
        Highest derivative.
    framework : {"numpy", "torch", "jax"}
        What differentiates: autograd, ``jax.vjp``, or for NumPy `vjp`.
    vjp : callable, or pair of callables, for NumPy
        ``vjp(inputs, cotangents)``, of tuples, returns the gradients of sum <cotangent, output> in the floating inputs;
        ``vjp2(inputs, cotangents, directions)`` returns two tuples, the gradients of sum <direction, gradient> in the
        inputs and in the cotangents.
    skip : mapping of str to str, optional
        Kinds of check to leave out, each with the reason: "form", "repeat", "threads", "layout", "nan", "float32",
        "differences", "adjoint", "symmetry".
    timeout : float, optional
        Seconds after which a check is given up. Code that is not Python's is not interrupted.
    seed : int
        Of directions and cotangents.
    raises : bool
        Whether to raise where something is wrong.

    Returns
    -------
    Result
        Prints as a table; has ``plot()`` and ``save("report.html")``.

    Raises
    ------
    DerivativeError
        An AssertionError: something is wrong, and `raises` is True. Its `result` holds what is returned otherwise.
    TypeError, ValueError
        If an argument is of the wrong type, or there is nothing to differentiate.

    Notes
    -----
    A curve of differences is right where its error falls with the square of the step to the rounding of the function,
    which is estimated from nearby values (Moré and Wild, 2011), and to 1e-7 at least. Larger steps may cross kinks.

    Examples
    --------
    >>> result = check_derivatives(lambda x: x**2, (np.arange(1.0, 4.0),), order=1, vjp=lambda x, g: (2 * x[0] * g[0],))
    >>> result.passed
    True
    """
    if not callable(function):
        raise TypeError(f"check_derivatives: function is a {type(function).__name__}; expected a callable")
    if order not in (1, 2):
        raise ValueError(f"check_derivatives: order is {order!r}; expected 1 or 2")
    if not isinstance(inputs, (tuple, list)):
        raise TypeError(f"check_derivatives: inputs is a {type(inputs).__name__}; expected a tuple of arrays")
    skip = dict(skip or {})
    if unknown := set(skip) - set(KINDS):
        raise ValueError(f"check_derivatives: skip names {', '.join(sorted(unknown))}; expected {', '.join(KINDS)}")
    problem = _Problem(_framework(function, framework, vjp, order), inputs, np.random.default_rng(seed))
    if not any(x.size for x in problem.x):
        raise ValueError(
            f"check_derivatives: inputs hold no {framework} array of floating dtype with an element; expected one"
        )
    name = getattr(function, "__name__", type(function).__name__)
    result = Result(name, skipped=skip)
    _run(problem, result, order, timeout)
    if raises and not result.passed:
        raise DerivativeError(result)
    return result


def _listed(make: Callable[[], Iterator[Check]]) -> list[Check]:
    return list(make())


def _run(problem: _Problem, result: Result, order: int, timeout: float | None) -> None:
    """Make the checks; a call that goes wrong is a failed check."""
    found: list[_Checks] = []

    def attempt(kind: str, label: str, make: Callable[[], Any]) -> None:
        def call() -> Mapping[str, Any]:
            with _limited(timeout):
                result.checks += make()
            return {}

        outcome = observe(call)
        if outcome.problem:
            text = outcome.problem.removeprefix("CallFailed: ")
            check = Check(result.name, problem.framework.name, "float64", kind, label, "", math.inf, 0.0, note=text)
            result.checks.append(check)

    def begin() -> list[Check]:
        found.append(_Checks(problem, result.name))
        return []

    attempt("call", "0", begin)
    if not found:
        return
    checks = found[0]
    for kind, needed in KINDS.items():
        if kind in result.skipped or needed > order or (kind == "threads" and not problem.framework.has_threads):
            continue
        for at in range(1, order + 1) if kind == "differences" else (None,):
            make = getattr(checks, kind) if at is None else partial(checks.differences, at)
            attempt(kind, str(at or needed), partial(_listed, make))
