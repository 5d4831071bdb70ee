"""What the page of calculators shows: calculators of ASE and DimeNet++, checked; the table and the picture of curves.

Prints the table and writes calculators.png to the working directory.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.emt import EMT
from ase.calculators.lj import LennardJones
from ase.calculators.morse import MorsePotential
from ase.calculators.tersoff import Tersoff, TersoffParameters

import trigraph.ase
from slopecheck import Result, check_calculator
from slopecheck.plots import draw_difference_curves, png
from slopecheck.terms import ReportTerms
from trigraph.torch.nn import DimeNetPlusPlus

LENNARD_JONES = partial(LennardJones, sigma=2.27, epsilon=0.1, rc=5.0)
# J. Tersoff, Phys. Rev. B 38, 9902 (1988), table I, Si (C).
SILICON = {"m": 3.0, "gamma": 1.0, "lambda3": 0.0, "c": 1.0039e5, "d": 16.217, "h": -0.59825, "n": 0.78734}
SILICON |= {"beta": 1.1e-6, "lambda2": 1.73222, "B": 471.18, "R": 2.85, "D": 0.15, "lambda1": 2.4799, "A": 1830.8}


def make_dimenet_calculator() -> trigraph.ase.Calculator:
    """Return a small model with random weights in float64."""
    torch.manual_seed(1)
    sizes, options = (8, 1, 1, 4, 2, 8, 3, 3), {"num_output_layers": 1, "output_initializer": "glorot_orthogonal"}
    return trigraph.ase.Calculator(DimeNetPlusPlus(*sizes, cutoff=4.0, **options).double())


COPPER, CLUSTER = bulk("Cu", cubic=True), Atoms("Cu5", bulk("Cu", cubic=True).repeat((2, 1, 1)).positions[:5])
CHECKED = {
    "EMT": (EMT, [COPPER, molecule("CH3OH")]),
    "LennardJones, smooth=False": (LENNARD_JONES, [COPPER]),
    "LennardJones, smooth=True": (partial(LENNARD_JONES, smooth=True), [COPPER]),
    "MorsePotential": (partial(MorsePotential, epsilon=0.5, r0=2.55), [COPPER, CLUSTER]),  # copper's bond length
    "Tersoff": (partial(Tersoff, {("Si", "Si", "Si"): TersoffParameters(**SILICON)}), [bulk("Si", cubic=True)]),
    "trigraph.ase.Calculator, DimeNet++": (make_dimenet_calculator, [bulk("AuCu", "rocksalt", a=5.2)]),
}


def format_calculator_row(name: str, result: Result) -> str:
    """Return the line of the table for one calculator: counts, and what each kind found first."""
    of_kind: dict[str, list[str]] = {}
    for check in result.checks:
        if not check.passed:
            kind = check.kind if check.offered else f"{check.kind}: {check.field}"
            of_kind.setdefault(kind, []).append(check.note)
    kinds_by_note: dict[str, list[str]] = {}
    for kind, notes in of_kind.items():
        more = f" (and {len(set(notes)) - 1} more)" * (len(set(notes)) > 1)
        kinds_by_note.setdefault(notes[0].split("; ")[0] + more, []).append(kind)
    texts = [f"**{', '.join(kinds)}**: {note}".replace("<", "&lt;") for note, kinds in kinds_by_note.items()]
    counts = f"{sum(c.passed for c in result.checks)} | {len(result.failures)}"
    structures = ", ".join(dict.fromkeys(c.case for c in result.checks))
    return f"| {name} | {structures} | {counts} | {'<br>'.join(texts).replace('|', ' ')} |"


def check_and_report_calculators() -> None:
    """Check them all."""
    lines = ["| calculator | atoms | passed | failed | what it showed |", "| --- | --- | --- | --- | --- |"]
    curves = []
    for name, (factory, structures) in CHECKED.items():
        result = check_calculator(factory, structures, raises=False)
        curves += [replace(c, operator=name, backend="forces and stress") for c in result.checks if c.curve]
        lines.append(format_calculator_row(name, result))
    figure = draw_difference_curves(curves, ReportTerms())
    assert figure is not None
    Path("calculators.png").write_bytes(png(figure))
    print("\n".join(lines))


if __name__ == "__main__":
    check_and_report_calculators()
