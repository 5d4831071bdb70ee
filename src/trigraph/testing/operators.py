"""Verification of a user's implementation of an operator, from Python."""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from slopecheck.progress import describe_verdict
from slopecheck.record import Check
from slopecheck.result import Result
from slopecheck.running import CheckPlan, parse_skip_and_timeout
from slopecheck.units import make_missing_check, poison_new_memory


class OperatorError(AssertionError):
    """Exception for failed checks of an operator, which the message lists. `result` holds all checks.

    Attributes
    ----------
    result : Result
    """

    def __init__(self, result: Result) -> None:
        from slopecheck.failures import group_failures
        from trigraph.verification.terms import TERMS

        verdict_text = describe_verdict(result.checks, TERMS)
        lines = [f"{result.name}: {len(result.failures)} of {len(result.checks)} checks failed; {verdict_text}"]
        for f in group_failures(result.checks, TERMS):
            lines.append(f"  {f.operator}: {f.what}: {f.count} check{'s'[: f.count > 1]} ({f.where})")
            lines += [f"      {text}" for text in (*f.remarks, *f.trace.splitlines())]
        if not any(c.passed for c in result.checks):
            lines.append("  no check passed")
        super().__init__("\n".join(lines))
        self.result = result


def verify(
    function: Callable[..., Any],
    operator: str | None = None,
    *,
    framework: str | None = None,
    device: str | None = None,
    where: Iterable[str] = (),
    dtypes: Iterable[str] | None = None,
    skip: Mapping[str, str] | None = None,
    timeout: float | None = None,
    seed: int = 0,
    raises: bool = True,
) -> Result:
    """Check an implementation of an operator in this process, like ``trigraph verify --implementation``.

    Parameters
    ----------
    function : callable
        Function of NumPy arrays for one operator, such as ``"gno_kernel_bwd"``. With `framework`, a forward function of
        tensors for a definition, such as ``"gno_kernel"``; the framework differentiates it.
    operator : str, optional
        Name of the operator (default: the name of the function).
    framework : {"torch", "jax"}, optional
    device : str, optional
        Device of the tensors for `framework` (default: ``"cpu"``).
    where : iterable of str, optional
        Settings ``"name=value"`` that select cases, as for ``--where``.
    dtypes : iterable of {"float32", "float64"}, optional
        Precisions to check (default: both).
    skip : mapping of str to str, optional
        Kinds of check to skip, such as ``"nan"``, each with the reason.
    timeout : float, optional
        Time limit in seconds for the checks of one kind in one case. All checks then run in a separate process, as for
        `check_derivatives`, so that a function may hang or crash.
    seed : int
        Seed of all random cases.
    raises : bool
        Whether to raise if a check fails.

    Returns
    -------
    Result
        All checks. The result prints as a table and has the methods ``plot()`` and ``save("report.html")``.

    Raises
    ------
    OperatorError
        If a check failed or none passed, and `raises` is True; a subclass of AssertionError.
    TypeError, ValueError
        If `function` is not callable, an operator, framework, device, setting or kind is unknown, or no process can be
        started.
    ImportError
        If the framework is not installed.

    Examples
    --------
    >>> from trigraph.testing import verify
    >>> def basis_embedding_radial(rad_basis, weight):
    ...     return rad_basis @ weight.T
    >>> verify(basis_embedding_radial, framework="torch").passed
    True
    """
    from trigraph.verification.differentiated import make_subject_from_forward
    from trigraph.verification.implementation import make_user_subject
    from trigraph.verification.run import SKIPPED
    from trigraph.verification.terms import TERMS

    skip = parse_skip_and_timeout("verify", timeout, skip, SKIPPED)
    if not callable(function):
        raise TypeError(f"verify: function is a {type(function).__name__}; expected a callable")
    name = getattr(function, "__name__", type(function).__name__)
    if framework is not None:
        subject, target = make_subject_from_forward(name, operator, framework, device, function)
    elif device is not None:
        raise ValueError(f"verify: device is {device!r} and framework is None; expected a framework")
    else:
        subject = make_user_subject(name, operator, function)
        target = subject.implements or name
    settings = {"dtypes": dtypes and tuple(dtypes), "seed": seed, "where": tuple(where), "skip": tuple(skip)}
    make = partial(_VerificationPlan, name, {"operators": [target], "implementation": subject, **settings})
    result = Result(name, [], skip, "case", "Checks of", seed, TERMS)
    result.run_checks(make, timeout)
    if raises and not result.passed:
        raise OperatorError(result)
    return result


class _VerificationPlan(CheckPlan):
    """Plan with one step for each verification unit."""

    def __init__(self, name: str, request: Mapping[str, Any], forked: bool) -> None:
        from trigraph.verification.run import plan_run

        self.name, self.units = name, plan_run(**request)
        self.steps = [("", unit.label) for unit in self.units]
        poison_new_memory()

    def run_step(self, number: int) -> Iterable[Check]:
        return self.units[number].execute()

    def make_failed_check(self, number: int, text: str) -> Check:
        return make_missing_check("", "", "float64", self.units[number].label, math.inf, text)
