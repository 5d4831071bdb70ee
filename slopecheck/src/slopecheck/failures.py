"""Summary of failures: the count, the cases and remarks for each kind of failure."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slopecheck.record import Check
from slopecheck.summary import find_worst_check, format_number, group_by
from slopecheck.terms import ReportTerms

SHOWN = 8  # largest number of cases that are listed
# Kinds of check whose notes always describe the failure; other notes may say what was left out of a case.
REASONED = ("repeat", "threads", "levels", "layout", "complete")


def _join_names(names: Iterable[str]) -> str:
    """Join distinct names by semicolons, because names may contain commas."""
    names = list(dict.fromkeys(filter(None, names)))
    more = len(names) - SHOWN
    return "; ".join(names[:SHOWN]) + (f"; and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class FailureGroup:
    """Failures of one kind for an operator in a backend, or checks that a user's function does not offer.

    `what` is the note if it gives the reason, else the kind of check and the fields. `where` lists dtypes, kinds of
    check or the largest error, and the numbers of failed and of all cases. `remarks` describe special cases; `trace` is
    the traceback of the first exception.
    """

    operator: str
    backend: str
    what: str
    count: int
    where: str
    remarks: Sequence[str] = ()
    trace: str = ""


def _find_failure_reason(check: Check, terms: ReportTerms) -> str:
    """Return the note, without a leading operator name, if it gives the reason of the failure, else ""."""
    if math.isfinite(check.error) and check.kind not in REASONED:
        return ""
    head, colon, rest = check.note.partition(": ")
    return rest if colon and head in terms.definitions else check.note


def group_failures(checks: Sequence[Check], terms: ReportTerms) -> list[FailureGroup]:
    """Group the failed checks by the reason if their notes give one, else by the kind of check."""

    def find_group_key(check: Check) -> tuple[str, str, str]:
        # Ignore numbers, which differ between cases with the same mistake.
        reason = re.sub(r"[-+]?\d[\w.+-]*|\((?:\d+, ?)*\d*\)", "#", _find_failure_reason(check, terms))
        return check.operator, check.backend, reason or check.kind

    return [
        _make_failure_group(group, checks, terms)
        for group in group_by((c for c in checks if c.failed), find_group_key).values()
    ]


def _make_failure_group(group: Sequence[Check], checks: Sequence[Check], terms: ReportTerms) -> FailureGroup:
    first, largest = group[0], find_worst_check(group)
    assert largest is not None
    kinds, reason = Counter(c.kind for c in group), _find_failure_reason(first, terms)
    similar = [c for c in checks if (c.operator, c.backend) == (first.operator, first.backend) and c.kind in kinds]
    cases, every = dict.fromkeys(c.case for c in group), {c.case for c in similar}
    dtypes = dict.fromkeys(c.dtype for c in group)
    where = [", ".join(dtypes) + (" only" if len(dtypes) < len({c.dtype for c in similar}) else "")]
    if not reason:
        where.append(f"error {format_number(largest.error)} > {format_number(largest.tolerance)} in {largest.case}")
        fields = ", ".join(dict.fromkeys(c.field for c in group))
        what = f"{first.kind} of {fields} ({terms.kinds[first.kind]})"
    elif len(kinds) > 1:
        where.append(", ".join(f"{kind} {n}" for kind, n in kinds.items()))
        what = reason
    else:
        what = f"{first.kind}: {reason}"
    where.append(
        f"in {len(cases)} of {len(every)} cases" + (f": {_join_names(cases)}" if len(cases) < len(every) else "")
    )
    return FailureGroup(
        operator=first.operator,
        backend=first.backend,
        what=what,
        count=len(group),
        where="; ".join(where),
        remarks=terms.remarks(list(cases), first.operator),
        trace=next((c.trace for c in group if c.trace), ""),
    )


def group_checks_not_offered(checks: Sequence[Check], terms: ReportTerms) -> list[FailureGroup]:
    """Group the checks that were not offered by the reason."""

    def find_group_key(check: Check) -> tuple[str, str, str]:
        return check.operator, check.backend, f"{check.note}: {check.field}" if check.field else check.note

    groups = group_by((c for c in checks if not c.offered), find_group_key)
    return [
        FailureGroup(
            operator,
            backend,
            reason,
            sum(int(c.error) for c in group),
            _join_names(_extract_case(c, terms) for c in group),
        )
        for (operator, backend, reason), group in groups.items()
    ]


def _extract_case(check: Check, terms: ReportTerms) -> str:
    """Return the case from a unit's label, which is ``definition, case, dtype: backend kind``."""
    case = check.case.partition(": ")[0].removesuffix(f", {check.dtype}")
    return case.removeprefix(f"{terms.definitions.get(check.operator)}, ")
