"""Compare a report with an earlier one: digests, accuracy, and the set of checks."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slopecheck.record import Check
from slopecheck.terms import ReportTerms

# Accuracy has changed if an error grew or shrank by more than this factor.
FACTOR = 2.0
# Two errors that are both below this fraction of the tolerance count as equal, because any change of a function
# may change the last bits.
NEGLIGIBLE = 1e-3


@dataclass(frozen=True)
class ReportComparison:
    """Differences between an earlier report and this one."""

    date: str  # date of the earlier report
    commit: str
    influences: list[tuple[str, str, str]]  # name, old value and new value of each changed setting that affects results
    same_bits: int  # number of outputs with equal digests
    changed_bits: list[tuple[Check, Check]]  # pairs of the earlier and the new check
    changed_accuracy: list[tuple[Check, Check]]
    repaired: int  # number of checks that failed earlier and pass now
    broken: int  # number of checks that passed earlier and fail now
    # Number of checks that appear in only one of the reports, by (operator, backend, dtype).
    new: Counter[tuple[str, str, str]]
    gone: Counter[tuple[str, str, str]]


def _index_checks_by_name(checks: Sequence[Check]) -> dict[tuple[tuple[str, ...], int], Check]:
    """Return checks by name and number; checks of the same name are numbered from 0."""
    seen: Counter[tuple[str, ...]] = Counter()
    keyed: dict[tuple[tuple[str, ...], int], Check] = {}
    for c in checks:
        name = (c.operator, c.backend, c.dtype, c.kind, c.case, c.field)
        keyed[name, seen[name]] = c
        seen[name] += 1
    return keyed


def _accuracy_changed(then: Check, now: Check) -> bool:
    if not (math.isfinite(then.error) and math.isfinite(now.error)):
        return math.isfinite(then.error) != math.isfinite(now.error)
    low, high = sorted((abs(then.error), abs(now.error)))
    return high > FACTOR * low and high > NEGLIGIBLE * now.tolerance


def _look_up_setting(report: Mapping[str, Any], place: Sequence[str]) -> str:
    value: Any = report
    for key in place:
        value = value.get(key) if isinstance(value, Mapping) else None
    return "none" if value is None else str(value)


def compare_reports(
    earlier: Mapping[str, Any],
    earlier_checks: Sequence[Check],
    report: Mapping[str, Any],
    checks: Sequence[Check],
    terms: ReportTerms,
    asked: tuple[Collection[str], Collection[str], Collection[str]] | None = None,
) -> ReportComparison:
    """Compare two reports and their checks.

    `asked` holds the operators, backends and dtypes of this run; earlier checks of any other are ignored.
    """
    if asked is not None:
        operators, backends, dtypes = asked
        earlier_checks = [
            c for c in earlier_checks if c.operator in operators and c.backend in backends and c.dtype in dtypes
        ]
    before, after = _index_checks_by_name(earlier_checks), _index_checks_by_name(checks)
    pairs = [(before[key], after[key]) for key in after if key in before]
    digests = [(a, b) for a, b in pairs if a.digest is not None and b.digest is not None]
    return ReportComparison(
        date=_look_up_setting(earlier, ("date",)),
        commit=_look_up_setting(earlier, terms.influences["commit"]) if "commit" in terms.influences else "",
        influences=[
            (name, _look_up_setting(earlier, place), _look_up_setting(report, place))
            for name, place in terms.influences.items()
            if _look_up_setting(earlier, place) != _look_up_setting(report, place)
        ],
        same_bits=sum(a.digest == b.digest for a, b in digests),
        changed_bits=[(a, b) for a, b in digests if a.digest != b.digest],
        changed_accuracy=[(a, b) for a, b in pairs if _accuracy_changed(a, b)],
        repaired=sum(a.failed and b.passed for a, b in pairs),
        broken=sum(a.passed and b.failed for a, b in pairs),
        new=Counter((c.operator, c.backend, c.dtype) for key, c in after.items() if key not in before),
        gone=Counter((c.operator, c.backend, c.dtype) for key, c in before.items() if key not in after),
    )
