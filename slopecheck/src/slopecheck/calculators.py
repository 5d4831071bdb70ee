"""`check_calculator`: checks of energy, forces and stress of any ASE calculator."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from slopecheck.calculator_paths import PathChecks
from slopecheck.calculator_results import CalculatorUnderTest
from slopecheck.kinds import CALCULATOR_CHECKS
from slopecheck.outcome import NotOffered, describe_exception
from slopecheck.record import Check
from slopecheck.result import CalculatorError, Result
from slopecheck.running import CALL, CheckPlan, parse_inconclusive_option, parse_skip_and_timeout


def check_calculator(
    factory: Callable[[], Any],
    structures: Sequence[Any],
    *,
    names: Sequence[str] = (),
    skip: Mapping[str, str] | None = None,
    inconclusive: str = "fail",
    reason: str = "",
    timeout: float | None = None,
    raises: bool = True,
    seed: int = 0,
) -> Result:
    """Check an ASE calculator.

    Parameters
    ----------
    factory : callable
        Function without arguments that returns a new calculator.
    structures : sequence of ase.Atoms
        Structures to check. Atoms are displaced by about 3 % of the nearest distance, because symmetry hides errors.
    names : sequence of str, optional
        Names of the structures in the table (default: their formulas).
    skip : mapping of str to str, optional
        Kinds of check to skip (keys of `slopecheck.kinds.CALCULATOR_CHECKS`), each with the reason.
    inconclusive : {"fail", "allow"}
        Whether a result passes although some checks cannot be decided; "allow" needs a `reason`.
    reason : str
        Reason for allowing inconclusive checks.
    timeout : float, optional
        Time limit in seconds for each kind of check. With a limit, the checks run in a separate process, as in
        `check_derivatives`, and survive a calculator that hangs or crashes.
    raises : bool
        Whether to raise if a check fails.
    seed : int
        Seed of the random displacements, directions and motions.

    Returns
    -------
    Result
        Prints as a table; has the methods ``plot`` and ``save``. Checks that the calculator does not support (such as
        pickling) are listed as *not offered*; they have neither passed nor failed.

    Raises
    ------
    CalculatorError
        If the result has not passed and `raises` is True. It is an AssertionError with the attribute `result`.
    TypeError, ValueError
        If an argument has the wrong type or value, a structure has no atoms, or no process can be started.

    Notes
    -----
    Tolerances are multiples of the rounding error estimated from the calculator's results at nearby positions (Moré and
    Wild, 2011). The error of central differences must fall with the square of the step down to rounding. A jump is a
    difference between neighbouring points that does not fall as a scan is refined; a kink is a jump of the forces only.

    See Also
    --------
    slopecheck.check_derivatives
    slopecheck.Result

    Examples
    --------
    >>> from ase.build import bulk
    >>> from ase.calculators.emt import EMT
    >>> from slopecheck import check_calculator
    >>> from slopecheck.kinds import CALCULATOR_CHECKS
    >>> others = CALCULATOR_CHECKS.keys() - {"forces", "stress"}
    >>> left_out = dict.fromkeys(others, "an example")
    >>> check_calculator(EMT, [bulk("Cu", cubic=True)], skip=left_out).passed
    True
    """
    if not callable(factory):
        raise TypeError(f"check_calculator: factory is a {type(factory).__name__}; expected a callable")
    if hasattr(structures, "positions") or not all(hasattr(atoms, "positions") for atoms in structures):
        raise TypeError("check_calculator: structures is not a sequence of ase.Atoms; expected one, such as [atoms]")
    if not structures or not all(len(atoms) for atoms in structures):
        raise ValueError("check_calculator: structures is empty or one has no atoms; expected atoms in each")
    labels = list(names) or [str(atoms.symbols) for atoms in structures]
    if len(labels) != len(structures):
        raise ValueError(f"check_calculator: names has {len(labels)} entries; expected {len(structures)}")
    skip = parse_skip_and_timeout("check_calculator", timeout, skip, CALCULATOR_CHECKS)
    allowed = parse_inconclusive_option("check_calculator", inconclusive, reason)
    name = getattr(factory, "__name__", type(factory).__name__)
    make = partial(_CalculatorPlan, name, factory, list(zip(labels, structures, strict=True)), skip, seed)
    result = Result(name, [], skip, "structure", "Checks of", seed, what="checks", allowed=allowed)
    result.run_checks(make, timeout)
    if raises and not result.passed:
        raise CalculatorError(result)
    return result


class _CalculatorPlan(CheckPlan):
    """The checks of a calculator, ordered by structure and kind."""

    def __init__(
        self,
        name: str,
        factory: Callable[[], Any],
        structures: Sequence[tuple[str, Any]],
        skip: Mapping[str, str],
        seed: int,
        forked: bool,
    ) -> None:
        self.name, subject = name, CalculatorUnderTest(factory, name)
        self.checks = [PathChecks(subject, label, atoms, np.random.default_rng(seed)) for label, atoms in structures]
        kinds = [CALL, *(kind for kind in CALCULATOR_CHECKS if kind not in skip)]
        self.steps = [(label, kind) for label, _ in structures for kind in kinds]

    def _select_structure_checks(self, number: int) -> PathChecks:
        return self.checks[number * len(self.checks) // len(self.steps)]

    def run_step(self, number: int) -> Iterator[Check]:
        checks = self._select_structure_checks(number)
        kind = checks.kind = self.steps[number][1]
        try:
            yield from getattr(checks, "check_" + kind.replace(" ", "_"))()
        except (NotImplementedError, NotOffered) as absent:
            note = str(absent) if isinstance(absent, NotOffered) else describe_exception(absent)
            yield checks.make_check(kind, 1.0, 0.0, note, kind="not offered")

    def make_failed_check(self, number: int, text: str) -> Check:
        return self._select_structure_checks(number).make_check("", math.inf, 0.0, text, kind=self.steps[number][1])
