"""Summary of checks: a row for each operator, backend and dtype."""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from slopecheck.record import Check
from slopecheck.terms import ReportTerms
from slopecheck.units import count_checks_for_plan

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class SummaryRow:
    """All checks of one operator in one backend and dtype."""

    operator: str
    backend: str
    dtype: str
    # Error, in eps * scale, of the accuracy check closest to its tolerance; None without accuracy checks.
    error: float | None
    tolerance: float | None
    order: str  # slope of differences farthest from 2, ``exact``, ``failed``, or a dash without differences
    other_kinds: str  # passed/all checks of other kinds, or a dash, and the number not offered
    seconds: float
    passed: bool | None  # whether all checks passed; None if no check was made


def group_by(checks: Iterable[Check], key: Callable[[Check], K]) -> dict[K, list[Check]]:
    """Group checks by a key, in the order in which they first appear."""
    groups: dict[K, list[Check]] = {}
    for check in checks:
        groups.setdefault(key(check), []).append(check)
    return groups


def compute_error_ratio(check: Check) -> float:
    """Return the error in units of its tolerance: at most 1 if the check passes; infinity for NaN."""
    if check.passed:
        return check.error / check.tolerance if check.tolerance > 0 else 0.0
    return check.error / check.tolerance if check.tolerance > 0 and math.isfinite(check.error) else math.inf


def find_worst_check(checks: Sequence[Check]) -> Check | None:
    """Return the check whose error is the largest multiple of its tolerance."""
    return max(checks, key=compute_error_ratio, default=None)


def _format_worst_slope(checks: Sequence[Check]) -> str:
    if not checks:
        return "-"
    if not all(c.passed for c in checks):
        return "failed"
    slopes = [c.order for c in checks if c.order is not None]
    return f"{max(slopes, key=lambda slope: abs(slope - 2)):.2f}" if slopes else "exact"


def make_summary_rows(checks: Sequence[Check], terms: ReportTerms) -> list[SummaryRow]:
    """Return rows in the order in which operators, backends and dtypes first appear."""
    groups = group_by(checks, lambda c: (c.operator, c.backend, c.dtype))
    appearance = [list(dict.fromkeys(names)) for names in zip(*groups, strict=True)]
    rows = []
    for key in sorted(groups, key=lambda key: [names.index(n) for names, n in zip(appearance, key, strict=True)]):
        group = [c for c in groups[key] if c.offered]
        accuracy = find_worst_check([c for c in group if c.kind == "accuracy"])
        rest = [c for c in group if c.kind not in ("accuracy", *terms.curves)]
        made = f"{sum(c.passed for c in rest)}/{len(rest)}" if rest else "-"
        absent = count_checks_for_plan(c for c in groups[key] if not c.offered)
        rows.append(
            SummaryRow(
                *key,
                error=accuracy.error if accuracy else None,
                tolerance=accuracy.tolerance if accuracy else None,
                order=_format_worst_slope([c for c in group if c.kind in terms.curves]),
                other_kinds=f"{made} ({absent} not offered)" if absent else made,
                seconds=sum(c.seconds for c in group),
                passed=all(c.passed for c in group) if group else None,
            )
        )
    return rows


def format_number(value: float | None, digits: int = 3) -> str:
    """Format a number briefly; None becomes a dash."""
    return "-" if value is None else f"{value:.{digits}g}"
