"""`check_calculator`: whether forces, stress and energy of any calculator of ASE are what they must be."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from trigraph.testing.calculator_checks import NotOffered
from trigraph.testing.calculator_paths import Paths
from trigraph.testing.calculator_results import Subject
from trigraph.testing.result import CalculatorError, Result
from trigraph.verification.record import Check
from trigraph.verification.subjects import message_of, observe

# The kinds of check, and what each compares.
KINDS: Mapping[str, str] = {
    "forces": "forces with differences of the energy: curves over a range of steps, then single components",
    "stress": "stress with differences of the energy under strain",
    "net force": "the sum of forces with zero",
    "net torque": "the torque of forces with zero, without a periodic cell",
    "jacobian": "u J v with v J u, by differences of forces (J: their Jacobian)",
    "rotation": "results of rotated atoms and cell",
    "reflection": "results of atoms and cell in a mirror",
    "translation": "results of atoms that were all moved by a vector",
    "renumbering": "results of atoms in another order",
    "wrapping": "results of atoms that were moved by whole cells",
    "repetition": "energy, forces and stress of two cells with those of one",
    "cutoff": "energy and forces of two atoms on both sides of each place of a scan of their distance",
    "scale": "the same of the structure as it grows, and where its pairs get out of reach",
    "line": "energy and forces on both sides of angles of 0 and 180 degrees",
    "lone atom": "the force on one atom with zero; its energy is a number",
    "two atoms": "the forces of two atoms with their axis and the slope of the energy",
    "far atoms": "atoms and one far away with the sum of both",
    "company": "two copies of all atoms, far from each other, with one",
    "repeat": "equal bits of fresh calculators, and in another order of questions",
    "history": "results after other structures with those of a fresh calculator",
    "copy": "equal bits of a deep copy",
    "pickle": "equal bits of a pickled calculator",
    "drift": "the error of the energy in a run of velocity Verlet with that of half the time step: a fourth",
}


def check_calculator(
    factory: Callable[[], Any],
    structures: Sequence[Any],
    *,
    names: Sequence[str] = (),
    skip: Mapping[str, str] | None = None,
    raises: bool = True,
    seed: int = 0,
) -> Result:
    """Check a calculator of ASE.

    Parameters
    ----------
    factory : callable
        Without arguments; returns a new calculator.
    structures : sequence of ase.Atoms
        Atoms are moved a little from where they are (3 % of the nearest distance), since symmetry hides mistakes.
    names : sequence of str, optional
        Of the structures, for the table (default: their formulas).
    skip : mapping of str to str, optional
        Kinds of check to leave out (`KINDS`), each with the reason.
    raises : bool
        Whether to raise where something is wrong.
    seed : int
        Of displacements, directions and motions.

    Returns
    -------
    Result
        Prints as a table; has ``plot()`` and ``save("report.html")``. What the calculator does not implement, or
        cannot do (a pickle), is in it as *not offered*: neither passed nor failed.

    Raises
    ------
    CalculatorError
        An AssertionError: something is wrong, and `raises` is True. Its `result` holds what is returned otherwise.
    TypeError, ValueError
        If an argument is of the wrong type, or there is no structure.

    Notes
    -----
    Tolerances are multiples of the rounding error that the calculator's own results show for nearby positions (Moré and
    Wild, 2011). A curve of differences is right where its error falls with the square of the step to rounding. Jumps
    are what does not fall as a scan is refined; a kink is a jump of forces where the energy has none.

    Examples
    --------
    >>> from ase.build import bulk
    >>> from ase.calculators.emt import EMT
    >>> left_out = {kind: "an example" for kind in KINDS if kind not in ("forces", "stress")}
    >>> check_calculator(EMT, [bulk("Cu", cubic=True)], skip=left_out).passed
    True
    """
    if not callable(factory):
        raise TypeError(f"check_calculator: factory is a {type(factory).__name__}; expected a callable")
    if hasattr(structures, "positions") or not all(hasattr(atoms, "positions") for atoms in structures):
        raise TypeError("check_calculator: structures is no sequence of ase.Atoms; expected one, such as [atoms]")
    if not structures or not all(len(atoms) for atoms in structures):
        raise ValueError("check_calculator: structures hold no atoms, or one of them holds none; expected some")
    labels = list(names) or [str(atoms.symbols) for atoms in structures]
    if len(labels) != len(structures):
        raise ValueError(f"check_calculator: there are {len(labels)} names; expected {len(structures)}")
    skip = dict(skip or {})
    if unknown := set(skip) - set(KINDS):
        raise ValueError(f"check_calculator: skip names {', '.join(sorted(unknown))}; expected {', '.join(KINDS)}")
    subject = Subject(factory, getattr(factory, "__name__", type(factory).__name__))
    result = Result(subject.name, skipped=skip, title="Checks of", cases="structure")
    for label, atoms in zip(labels, structures, strict=True):
        _run(Paths(subject, label, atoms, np.random.default_rng(seed)), result)
    if raises and not result.passed:
        raise CalculatorError(result)
    return result


def _run(checks: Paths, result: Result) -> None:
    """Make the checks at one structure; a call that goes wrong is a failed check, and those before it stay."""
    for kind in KINDS:
        if kind in result.skipped:
            continue
        make = getattr(checks, kind.replace(" ", "_"))

        def collect(make: Callable[[], Iterator[Check]] = make, kind: str = kind) -> Mapping[str, Any]:
            try:
                for check in make():
                    result.checks.append(check)
            except NotImplementedError as absent:
                result.checks.append(checks.check("not offered", kind, 1.0, 0.0, message_of(absent)))
            except NotOffered as absent:
                result.checks.append(checks.check("not offered", kind, 1.0, 0.0, str(absent)))
            return {}

        if problem := observe(collect).problem:
            text = problem.removeprefix("CalculatorFailed: ")
            result.checks.append(checks.check(kind, "", math.inf, 0.0, text))
