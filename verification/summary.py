"""Summary of checks: a row for each operator, backend and dtype, and the comparisons that were made."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trigraph.table import OPERATORS
from trigraph.verification.record import KINDS, Check
from trigraph.verification.units import counted

# Kinds of check that observe an order.
CURVES = ("differences", "forces", "force training")


@dataclass(frozen=True)
class Row:
    """All checks of one operator in one backend and dtype."""

    operator: str
    backend: str
    dtype: str
    # Error in eps * scale of the accuracy check closest to its tolerance; None if there is none.
    error: float | None
    tolerance: float | None
    order: str  # of finite differences: ``exact``, the slope farthest from 2, ``failed``, or a dash if there are none
    others: str  # checks of every other kind as passed/all, a dash if there are none, and how many were not offered
    seconds: float
    passed: bool | None  # whether no check failed; None if none was made


def ratio(check: Check) -> float:
    """Error in units of its tolerance: at most 1 if the check passes; infinity for NaN."""
    if check.passed:
        return check.error / check.tolerance if check.tolerance > 0 else 0.0
    return check.error / check.tolerance if check.tolerance > 0 and math.isfinite(check.error) else math.inf


def worst(checks: Sequence[Check]) -> Check | None:
    """Return the check whose error is the largest multiple of its tolerance."""
    return max(checks, key=ratio, default=None)


def _order(checks: Sequence[Check]) -> str:
    if not checks:
        return "-"
    if not all(c.passed for c in checks):
        return "failed"
    slopes = [c.order for c in checks if c.order is not None]
    return f"{max(slopes, key=lambda slope: abs(slope - 2)):.2f}" if slopes else "exact"


def summarise(checks: Sequence[Check]) -> list[Row]:
    """Rows in the order in which operators, backends and dtypes first appear."""
    groups: dict[tuple[str, str, str], list[Check]] = {}
    for check in checks:
        groups.setdefault((check.operator, check.backend, check.dtype), []).append(check)
    appearance = [list(dict.fromkeys(names)) for names in zip(*groups, strict=True)]
    rows = []
    for key in sorted(groups, key=lambda key: [names.index(n) for names, n in zip(appearance, key, strict=True)]):
        group = [c for c in groups[key] if c.offered]
        accuracy = worst([c for c in group if c.kind == "accuracy"])
        others = [c for c in group if c.kind not in ("accuracy", *CURVES)]
        made = f"{sum(c.passed for c in others)}/{len(others)}" if others else "-"
        absent = counted(c for c in groups[key] if not c.offered)
        rows.append(
            Row(
                *key,
                error=accuracy.error if accuracy else None,
                tolerance=accuracy.tolerance if accuracy else None,
                order=_order([c for c in group if c.kind in CURVES]),
                others=f"{made} ({absent} not offered)" if absent else made,
                seconds=sum(c.seconds for c in group),
                passed=all(c.passed for c in group) if group else None,
            )
        )
    return rows


def number(value: float | None, digits: int = 3) -> str:
    """Short text of a number, a dash for None."""
    return "-" if value is None else f"{value:.{digits}g}"


def _definition(check: Check) -> str:
    return OPERATORS[check.operator].definition.name if check.operator in OPERATORS else check.operator


def _kind(name: str, group: Sequence[Check]) -> dict[str, Any]:
    """Return what checks of a kind compare, how many passed, and the largest error in units of its tolerance."""
    return {
        "name": name,
        "meaning": KINDS[name],
        "count": len(group),
        "passed": sum(c.passed for c in group),
        "largest": max((ratio(c) for c in group if c.tolerance > 0), default=None),  # None: bits must be equal
    }


def evidence(checks: Sequence[Check]) -> dict[str, Any]:
    """Count the comparisons of a run, for the paragraph of the page that a referee reads."""
    made = [c for c in checks if c.offered]
    groups = {name: [c for c in made if c.kind == name] for name in KINDS}
    accuracy, curves = groups["accuracy"], [c for c in made if c.kind in CURVES]
    return {
        "operators": list(dict.fromkeys(c.operator for c in made if c.operator in OPERATORS)),
        "dtypes": list(dict.fromkeys(c.dtype for c in made if c.dtype != "real128")),
        "kinds": [_kind(name, group) for name, group in groups.items() if group],
        # Inputs that were compared with the judge, of all definitions.
        "cases": len({(_definition(c), c.case.split(", given")[0]) for c in accuracy}),
        # The comparison with the judge whose error is the largest multiple of its tolerance.
        "closest": worst(accuracy),
        "curves": sum(c.backend != "judge" for c in curves),
        "judge_curves": sum(c.backend == "judge" for c in curves),
        "vectors": len({(c.operator, c.case) for c in groups["golden"]}),
        "emulated": any(c.backend == "gpu-host" for c in made),
    }
