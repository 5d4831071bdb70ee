"""`check_derivatives`: validation of its arguments, and the order of its checks."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from slopecheck.calls import REPEATS, CallChecks
from slopecheck.differences import ELEMENTS, GROUPS, DifferenceChecks
from slopecheck.frameworks import DIFFERENTIATING, Framework, Function, NumPy, find_framework_name
from slopecheck.kinds import CHECK_KINDS, FUNCTION_CHECKS
from slopecheck.numbers import NanAndFloat32Checks
from slopecheck.problem import DerivativeCountError, FunctionAtPoint
from slopecheck.record import Check
from slopecheck.result import DerivativeError, Result
from slopecheck.running import CALL, PATIENCE, CheckPlan, parse_inconclusive_option, parse_skip_and_timeout

LEAST = 100  # smallest accepted limit on the number of calls


def _make_framework(function: Function, framework: str, vjp: Any, order: int) -> Framework:
    """Return a framework by name; raise TypeError or ValueError if `vjp` or the name does not suit it."""
    if framework == "numpy":
        derivatives = vjp if isinstance(vjp, tuple) and len(vjp) in (2, 3) else (vjp,)
        if not callable(derivatives[0]):
            kind = type(derivatives[0]).__name__
            raise TypeError(
                f"check_derivatives: vjp is a {kind}; expected a function for 'numpy' (on the command line --vjp, and "
                "--vjp2 or --order 1)"
            )
        if len(derivatives) < order or not all(map(callable, derivatives[:order])):
            what, names = ("a pair", "vjp, vjp2") if order == 2 else ("three functions", "vjp, vjp2, vjp3")
            raise TypeError(
                f"check_derivatives: order is {order} and vjp is not {what}; expected ({names}), or order={order - 1} "
                f"(on the command line --vjp{order}, or --order {order - 1})"
            )
        return NumPy(function, derivatives)
    if vjp is not None:
        raise TypeError(
            f"check_derivatives: vjp is given for {framework!r}, which differentiates itself; expected None"
        )
    if framework not in DIFFERENTIATING:
        raise ValueError(f"check_derivatives: framework is {framework!r}; expected 'numpy', 'torch' or 'jax'")
    return DIFFERENTIATING[framework](function)


def check_derivatives(
    function: Function,
    inputs: Sequence[Any],
    *,
    order: int | None = None,
    framework: str | None = None,
    vjp: Any = None,
    skip: Mapping[str, str] | None = None,
    inconclusive: str = "fail",
    reason: str = "",
    accuracy: float = 0.0,
    calls: int | None = None,
    timeout: float | None = None,
    seed: int = 0,
    raises: bool = True,
) -> Result:
    """Check the derivatives of any differentiable function.

    Gradients, second and third derivatives are compared with central differences over a range of steps, along a
    direction and by element. Second and third derivatives must be symmetric in all directions, and satisfy the adjoint
    identities. Results must be bitwise equal in repeated calls and for any number of threads, independent of the memory
    layout of inputs, and equal in float32 up to rounding. A NaN must not reach outputs that do not depend on it.

    Parameters
    ----------
    function : callable
        Function from the inputs to an array or a tuple of arrays; arrays of floating dtype are differentiated.
    inputs : sequence
        Arrays of the framework; arrays of floating dtype are converted to float64 and differentiated. Other arguments
        are passed unchanged.
    order : {1, 2, 3}, optional
        Highest order of derivatives. Default: the number of functions in `vjp`, or 2 without `vjp`.
    framework : {"numpy", "torch", "jax"}, optional
        Source of the derivatives: `vjp` for NumPy, autograd, or ``jax.vjp``. Default: the library of the first input
        that is a torch tensor or a JAX array, else NumPy.
    vjp : callable or tuple of callables, optional
        Derivatives of a NumPy function, a callable for each order. All arguments are tuples.
        ``vjp(inputs, cotangents)`` returns the gradients of sum <cotangent, output> with respect to the floating
        inputs; ``vjp2(inputs, cotangents, directions)`` returns two tuples, the gradients of
        sum <direction, gradient> with respect to the inputs and to the cotangents;
        ``vjp3(inputs, cotangents, directions, second_directions, cotangent_directions)`` returns three tuples, the
        gradients of sum <second direction, first result of vjp2> + sum <cotangent direction, second result of vjp2>
        with respect to the inputs, to the cotangents and to the directions.
    skip : mapping of str to str, optional
        Kinds of check to skip, each with the reason: "form", "unchanged", "repeat", "kept", "history", "alone",
        "threads", "layout", "nan", "float32", "differences", "adjoint", "symmetry".
    inconclusive : {"fail", "allow"}
        Whether a result passes although some checks cannot be decided; "allow" needs a `reason`.
    reason : str
        Reason for allowing inconclusive checks.
    accuracy : float
        Accepted relative error of the function and its derivatives, such as the tolerance of a solver.
    calls : int, optional
        Approximate limit on the number of calls. To meet it, fewer elements are compared and fewer calls repeated.
    timeout : float, optional
        Time limit in seconds for each kind of check. With a limit, the checks run in a separate process and survive a
        function that hangs or crashes. The process is a fork with one thread; with JAX or CUDA it is a new process, for
        which `function` and `inputs` must be picklable.
    seed : int
        Seed of directions and cotangents.
    raises : bool
        Whether to raise if a check fails.

    Returns
    -------
    Result
        Prints as a table; has the methods ``plot`` and ``save``.

    Raises
    ------
    DerivativeError
        If the result has not passed and `raises` is True. It is an AssertionError with the attribute `result`.
    TypeError, ValueError
        If an argument has the wrong type or value, no input is floating, or no process can be started.
    ImportError
        If the framework is not installed.

    Notes
    -----
    The error of central differences must fall with the square of the step, below 1e-7 or down to the rounding of the
    function, which is estimated from nearby values (Moré and Wild, 2011). Larger steps may cross kinks.

    See Also
    --------
    slopecheck.check_calculator
    slopecheck.Result

    Examples
    --------
    >>> import numpy as np
    >>> from slopecheck import check_derivatives
    >>> x = np.arange(1.0, 4.0)
    >>> square, product = lambda x: x**2, lambda x, g: (2 * x[0] * g[0],)
    >>> check_derivatives(square, (x,), order=1, vjp=product).passed
    True
    """
    if not callable(function):
        raise TypeError(f"check_derivatives: function is a {type(function).__name__}; expected a callable")
    if order is None:
        order = 2 if vjp is None else len(vjp) if isinstance(vjp, tuple) else 1
    if order not in (1, 2, 3):
        raise ValueError(f"check_derivatives: order is {order!r}; expected 1, 2 or 3")
    if not isinstance(inputs, (tuple, list)):
        raise TypeError(f"check_derivatives: inputs is a {type(inputs).__name__}; expected a tuple of arrays")
    if not 0 <= accuracy < 1:
        raise ValueError(f"check_derivatives: accuracy is {accuracy!r}; expected a relative error from 0 to 1")
    if calls is not None and not calls >= LEAST:
        raise ValueError(f"check_derivatives: calls is {calls!r}; expected at least {LEAST}")
    skip = parse_skip_and_timeout("check_derivatives", timeout, skip, FUNCTION_CHECKS)
    allowed = parse_inconclusive_option("check_derivatives", inconclusive, reason)
    framework = framework or find_framework_name(inputs)
    name = getattr(function, "__name__", type(function).__name__)
    result = Result(name, seed=seed, allowed=allowed)
    make = partial(_FunctionPlan, name, function, inputs, order, framework, vjp, skip, seed, accuracy, calls)
    result.skipped = result.run_checks(make, timeout).skip
    if raises and not result.passed:
        raise DerivativeError(result)
    return result


class FunctionChecks(DifferenceChecks, CallChecks, NanAndFloat32Checks):
    """All checks of one function up to an order of derivatives, with a method for each kind of check."""

    def reduce_calls(self, share: float) -> None:
        """Compare fewer elements and repeat fewer calls, to make only about this fraction of all calls."""
        if share < 1:
            self.alone_of_each, self.groups_of_each = max(4, int(share * ELEMENTS)), max(1, int(share * GROUPS))
            self.repeats = max(3, int(share * REPEATS))

    def estimate_num_calls(self, kinds: Sequence[str]) -> int:
        """Return the approximate number of calls that checks of these kinds make."""
        orders, total = len(self.orders), 0
        for x in (x for x in self.p.x if x.size):
            elements = self.count_individual_elements(x.size)
            elements += min(x.size - elements, self.groups_of_each)
            layouts = len(self._copy_in_layouts(x, self.p.inputs[self.p.wanted[0]])) * (1 + orders) * 2
            total += kinds.count("differences") * (150 + 13 * elements) + layouts * orders * ("layout" in kinds)
            total += 90 * ("nan" in kinds)
        return total + (1 + orders) * (self.repeats + 40) * ("repeat" in kinds)


class _FunctionPlan(CheckPlan):
    """The checks of a function, ordered by kind and order."""

    def __init__(
        self,
        name: str,
        function: Function,
        inputs: Sequence[Any],
        order: int,
        framework: str,
        vjp: Any,
        skip: Mapping[str, str],
        seed: int,
        accuracy: float,
        limit: int | None,
        forked: bool,
    ) -> None:
        self.name, self.order, self.accuracy, self.limit = name, order, accuracy, limit
        self.miscounted = False  # whether a wrong number of derivatives has been reported; a second report is omitted
        self.problem = FunctionAtPoint(
            _make_framework(function, framework, vjp, order), inputs, np.random.default_rng(seed)
        )
        if not any(x.size for x in self.problem.x):
            number = next((x for x in inputs if isinstance(x, float)), None)
            own = "" if number is None else f": {number} is not an array"
            raise ValueError(
                f"check_derivatives: inputs have no nonempty {framework} array of floating dtype{own}; expected at "
                "least one"
            )
        threads = self.problem.framework.has_threads
        self.skip = {**({"threads": "a fork has one thread"} if threads and forked else {}), **skip}
        self.steps = [("0", CALL)] + [
            (str(at), kind)
            for kind in FUNCTION_CHECKS
            if kind not in self.skip and CHECK_KINDS[kind].lowest <= order and (kind != "threads" or threads)
            if kind != "alone" or self.problem.framework.selects
            for at in range(
                CHECK_KINDS[kind].lowest, (order if CHECK_KINDS[kind].each else CHECK_KINDS[kind].lowest) + 1
            )
        ]

    @property
    def num_calls(self) -> int:
        return self.problem.calls

    def estimate_calls_and_cost(self) -> tuple[int, str]:
        """Return the estimated number of calls of all checks, and a description of their cost, after the first call."""
        total, each = self.checks.estimate_num_calls([kind for _, kind in self.steps]), self.checks.seconds
        return total, f"about {total:,} calls, {total * each:.0f} s if each takes {each:.1g} s" * (
            total * each > PATIENCE
        )

    @cached_property
    def checks(self) -> FunctionChecks:
        """The checks, cached because problem, name and order do not change; creating them calls the function."""
        checks = FunctionChecks(self.problem, self.name, self.order, self.accuracy)
        if self.limit is not None:
            checks.reduce_calls(self.limit / checks.estimate_num_calls([kind for _, kind in self.steps]))
        return checks

    def run_step(self, number: int) -> Iterator[Check]:
        order, kind = self.steps[number]
        checks = self.checks
        checks.kind = kind
        if kind == CALL or self.miscounted:
            return
        with np.errstate(all="ignore"):  # steps may leave the domain or overflow; verdicts depend only on values
            try:
                yield from getattr(checks, f"check_{kind}")(*([int(order)] if CHECK_KINDS[kind].each else []))
            except DerivativeCountError:
                self.miscounted = True
                raise

    def make_failed_check(self, number: int, text: str) -> Check:
        order, kind = self.steps[number]
        name = self.problem.framework.name
        mends = {
            CALL: "inputs are converted to float64: convert a module by .double(), too",
            **dict.fromkeys(("form", "unchanged"), "inputs are as given here: give them in float64, as the module is"),
        }
        if kind in mends and re.search("double.*float|float.*double", text, re.IGNORECASE):
            text += f"; {mends[kind]}"
        return Check(self.name, name, "float64", kind, order, "", math.inf, 0.0, note=text)
