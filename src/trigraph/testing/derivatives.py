"""`check_derivatives`: its arguments, and the order in which the checks are made."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from trigraph.testing.checks import KINDS, Checks
from trigraph.testing.frameworks import Framework, Function, Jax, NumPy, Torch
from trigraph.testing.problem import Problem
from trigraph.testing.result import DerivativeError, Result
from trigraph.verification.record import Check
from trigraph.verification.subjects import observe

PATIENCE = 2.0  # seconds without a progress bar


class TimeExceeded(BaseException):
    """A check takes too long; no ``except Exception`` of the function, or of a check, takes it for anything else."""


@contextlib.contextmanager
def _limited(seconds: float | None) -> Iterator[None]:
    """Interrupt what runs longer, in the main thread."""
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise TimeExceeded(f"it takes longer than {seconds:g} s")

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
    if not isinstance(skip or {}, Mapping):
        raise TypeError(f"check_derivatives: skip is a {type(skip).__name__}; expected a mapping of kinds to reasons")
    skip = dict(skip or {})
    if timeout is not None and not timeout > 0:
        raise ValueError(f"check_derivatives: timeout is {timeout!r}; expected seconds above 0, or None")
    if unknown := set(skip) - set(KINDS):
        raise ValueError(f"check_derivatives: skip names {', '.join(sorted(unknown))}; expected {', '.join(KINDS)}")
    problem = Problem(_framework(function, framework, vjp, order), inputs, np.random.default_rng(seed))
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


def _run(problem: Problem, result: Result, order: int, timeout: float | None) -> None:
    """Make the checks; a call that goes wrong is a failed check."""
    found: list[Checks] = []

    def attempt(kind: str, label: str, make: Callable[[], Iterable[Check]]) -> None:
        def call() -> Mapping[str, Any]:
            with _limited(timeout):
                result.checks.extend(make())
            return {}

        outcome = observe(call)
        if outcome.problem:
            text = outcome.problem.removeprefix("CallFailed: ")
            check = Check(result.name, problem.framework.name, "float64", kind, label, "", math.inf, 0.0, note=text)
            result.checks.append(check)

    def begin() -> Iterable[Check]:
        found.append(Checks(problem, result.name))
        return ()

    attempt("call", "0", begin)
    if not found:
        return
    planned = [
        (kind, at)
        for kind, needed in KINDS.items()
        if kind not in result.skipped and needed <= order and (kind != "threads" or problem.framework.has_threads)
        for at in (range(1, order + 1) if kind == "differences" else (needed,))
    ]
    for kind, at in _shown(result.name, planned):
        make = getattr(found[0], kind)
        attempt(kind, str(at), partial(make, at) if kind == "differences" else make)


def _shown(name: str, planned: Sequence[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """Yield what is planned; a terminal shows how far it is, once it takes long."""
    console, start = Console(stderr=True), time.monotonic()
    bar = Progress(console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task(name, total=len(planned))
    try:
        for kind, at in planned:
            bar.update(task, description=f"{name}: {kind}")
            if time.monotonic() - start > PATIENCE:
                bar.start()
            yield kind, at
            bar.advance(task)
    finally:
        bar.stop()
