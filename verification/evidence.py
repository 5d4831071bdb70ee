"""What a run compared with what, in numbers: the paragraph of a report that a referee reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trigraph.panels import PANELS
from trigraph.table import OPERATORS
from trigraph.verification.record import KINDS, Check
from trigraph.verification.subjects import DIRECT
from trigraph.verification.summary import CURVES, ratio, worst

__all__ = ["evidence"]


def _definition(check: Check) -> str:
    return OPERATORS[check.operator].definition.name if check.operator in OPERATORS else check.operator


def _kind(name: str, group: Sequence[Check]) -> dict[str, Any]:
    """Return what the checks of a kind compare, how many passed, and the largest error in units of its tolerance."""
    return {
        "name": name,
        "meaning": KINDS[name],
        "count": len(group),
        "passed": sum(c.passed for c in group),
        "largest": max((ratio(c) for c in group if c.tolerance > 0), default=None),  # None: bits must be equal
    }


def evidence(checks: Sequence[Check]) -> dict[str, Any]:
    """Count what a run compared with what, for the page."""
    made = [c for c in checks if c.offered]
    groups = {name: [c for c in made if c.kind == name] for name in KINDS}
    panels = [p for p in dict.fromkeys(c.panel for c in made) if p not in ("judge", "")]
    accuracy, curves = groups["accuracy"], [c for c in made if c.kind in CURVES]
    return {
        "operators": list(dict.fromkeys(c.operator for c in made if c.operator in OPERATORS)),
        # Panels that sum in chunks, panels that sum term by term, and functions of the user's.
        "chunked": [p for p in panels if p in PANELS and p not in DIRECT],
        "direct": [p for p in panels if p in DIRECT],
        "others": [p for p in panels if p not in PANELS],
        "dtypes": list(dict.fromkeys(c.dtype for c in made if c.dtype != "real128")),
        "kinds": [_kind(name, group) for name, group in groups.items() if group],
        # Inputs that were compared with the judge, of all definitions.
        "cases": len({(_definition(c), c.case.split(", given")[0]) for c in accuracy}),
        # The comparison with the judge whose error is the largest multiple of its tolerance.
        "closest": worst(accuracy),
        "curves": sum(c.panel != "judge" for c in curves),
        "judge_curves": sum(c.panel == "judge" for c in curves),
        "vectors": len({(c.operator, c.case) for c in groups["golden"]}),
        "emulated": "gpu-host" in panels,
    }
