"""What a run compared with what, in numbers: the paragraph of a report that a referee reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trigraph.panels import PANELS
from trigraph.table import OPERATORS
from trigraph.verification.record import KINDS, Check
from trigraph.verification.subjects import DIRECT
from trigraph.verification.summary import CURVES, ratio, worst

__all__ = ["Evidence", "Kind", "evidence"]


@dataclass(frozen=True)
class Kind:
    """Checks of one kind: what they compare, how many were made, how many passed.

    `largest` is the largest error in units of its tolerance, None where the tolerance is 0.
    """

    name: str
    meaning: str
    count: int
    passed: int
    largest: float | None


@dataclass(frozen=True)
class Evidence:
    """Numbers of a run.

    Attributes
    ----------
    operators : list of str
    chunked, direct, others : list of str
        Panels that sum in chunks, panels that sum term by term, and functions of the user's.
    dtypes : list of str
    kinds : list of Kind
    cases : int
        Number of inputs that were compared with the judge, of all definitions.
    closest : Check or None
        The comparison with the judge whose error is the largest multiple of its tolerance.
    curves, judge_curves : int
        Number of finite-difference curves, and of those of the judge in real128.
    vectors : int
        Number of golden vectors.
    emulated : bool
        Whether gpu-host was run.
    """

    operators: list[str]
    chunked: list[str]
    direct: list[str]
    others: list[str]
    dtypes: list[str]
    kinds: list[Kind]
    cases: int
    closest: Check | None
    curves: int
    judge_curves: int
    vectors: int
    emulated: bool

    def count(self, kind: str) -> int:
        """Return the number of checks of a kind."""
        return sum(k.count for k in self.kinds if k.name == kind)


def _definition(check: Check) -> str:
    return OPERATORS[check.operator].definition.name if check.operator in OPERATORS else check.operator


def evidence(checks: Sequence[Check]) -> Evidence:
    """Count what a run compared with what."""
    made = [c for c in checks if c.offered]
    kinds = []
    for name, meaning in KINDS.items():
        group = [c for c in made if c.kind == name]
        measured = [ratio(c) for c in group if c.tolerance > 0]
        if group:
            largest = max(measured) if measured else None
            kinds.append(Kind(name, meaning, len(group), sum(c.passed for c in group), largest))
    panels = [p for p in dict.fromkeys(c.panel for c in made) if p not in ("judge", "")]
    accuracy = [c for c in made if c.kind == "accuracy"]
    curves = [c for c in made if c.kind in CURVES]
    return Evidence(
        operators=list(dict.fromkeys(c.operator for c in made if c.operator in OPERATORS)),
        chunked=[p for p in panels if p in PANELS and p not in DIRECT],
        direct=[p for p in panels if p in DIRECT],
        others=[p for p in panels if p not in PANELS],
        dtypes=list(dict.fromkeys(c.dtype for c in made if c.dtype != "real128")),
        kinds=kinds,
        cases=len({(_definition(c), c.case.split(", given")[0]) for c in accuracy}),
        closest=worst(accuracy),
        curves=sum(c.panel != "judge" for c in curves),
        judge_curves=sum(c.panel == "judge" for c in curves),
        vectors=len({(c.operator, c.case) for c in made if c.kind == "golden"}),
        emulated="gpu-host" in panels,
    )
