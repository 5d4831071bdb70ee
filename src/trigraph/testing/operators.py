"""Verification of one operator that somebody else has written, from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from trigraph.testing.result import Result

__all__ = ["OperatorError", "verify"]


class OperatorError(AssertionError):
    """An implementation of an operator is wrong; the message says what, `result` holds everything.

    Attributes
    ----------
    result : Result
    """

    def __init__(self, result: Result) -> None:
        from trigraph.verification.failures import failures

        lines = [f"{result.name}: {len(result.failures)} of {len(result.checks)} checks failed"]
        for f in failures(result.checks):
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
    seed: int = 0,
    raises: bool = True,
) -> Result:
    """Check an implementation of an operator as ``trigraph verify --implementation`` does, in this process.

    Parameters
    ----------
    function : callable
        Of NumPy arrays, for one operator such as ``"gno_kernel_bwd"``; with `framework`, the forward of a definition
        such as ``"gno_kernel"`` on tensors, whose derivatives are those of the framework.
    operator : str, optional
        Default: the function's own name.
    framework : {"torch", "jax"}, optional
    device : str, optional
        Where the tensors of the framework are (default: ``"cpu"``).
    where : iterable of str, optional
        ``"name=value"``: settings that are checked alone, as of ``--where``.
    dtypes : iterable of {"float32", "float64"}, optional
        Default: both.
    seed : int
        Of every number that is drawn.
    raises : bool
        Whether to raise where something is wrong.

    Returns
    -------
    Result
        Prints as a table; has ``plot()`` and ``save("report.html")``.

    Raises
    ------
    OperatorError
        An AssertionError: a check failed, or none passed, and `raises` is True.
    TypeError, ValueError
        If `function` is no callable, or an operator, framework, device or setting is unknown.

    Examples
    --------
    >>> def basis_embedding_radial(rad_basis, weight):
    ...     return rad_basis @ weight.T
    >>> verify(basis_embedding_radial, framework="torch").passed
    True
    """
    from trigraph.verification.differentiated import differentiated
    from trigraph.verification.implementation import adapt
    from trigraph.verification.run import plan
    from trigraph.verification.units import execute

    if not callable(function):
        raise TypeError(f"verify: function is a {type(function).__name__}; expected a callable")
    name = getattr(function, "__name__", type(function).__name__)
    if framework is not None:
        subject, target = differentiated(name, operator, framework, device, function)
    elif device is not None:
        raise ValueError(f"verify: device is {device!r} and framework is None; expected a framework")
    else:
        subject = adapt(name, operator, function)
        target = subject.only or name
    units = plan([target], dtypes=dtypes, seed=seed, implementation=subject, where=where)
    result = Result(name, [check for _, checks in execute(units) for check in checks])
    if raises and not result.passed:
        raise OperatorError(result)
    return result
