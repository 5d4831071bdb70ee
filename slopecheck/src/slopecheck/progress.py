"""Progress of a run: a line for each completed part."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from slopecheck.record import Check
from slopecheck.terms import ReportTerms
from slopecheck.units import WorkUnit, count_checks_for_plan


def describe_check_counts(checks: Iterable[Check]) -> str:
    """Describe how many checks passed, failed, are inconclusive, and were not offered."""
    checks = list(checks)
    passed, failed = sum(c.passed for c in checks), sum(c.failed for c in checks)
    counts = {
        "inconclusive": sum(c.inconclusive for c in checks),
        "not offered": count_checks_for_plan(c for c in checks if not c.offered),
    }
    return f"{passed} checks passed, {failed} failed" + "".join(f", {n} {what}" for what, n in counts.items() if n)


def describe_verdict(checks: Iterable[Check], terms: ReportTerms) -> str:
    """Describe failures, separately for values and derivatives and for other properties; "" without checks."""
    made, texts = [c for c in checks if c.offered], []
    for name, wanted in (("values and derivatives", False), ("properties", True)):
        group = [c for c in made if (c.kind in terms.properties) == wanted]
        failed = [c for c in group if c.failed]
        kinds = dict.fromkeys(terms.properties.get(c.kind, c.kind) for c in failed)
        if group:
            texts.append(f"{name}: " + (f"{len(failed)} failed ({', '.join(kinds)})" if failed else "passed"))
    return "; ".join(texts)


def add_progress_lines(
    units: Sequence[WorkUnit], results: Iterable[tuple[WorkUnit, list[Check]]], part_of: Callable[[WorkUnit], str]
) -> Iterator[tuple[WorkUnit, list[Check], str]]:
    """Yield units and their checks as they arrive, with a line when a unit completes a part (else "").

    `part_of` names the part of the run that a unit belongs to. The line gives the time spent waiting for
    the units of that part.
    """
    left = Counter(map(part_of, units))
    checks: dict[str, list[Check]] = {part: [] for part in left}
    seconds = dict.fromkeys(left, 0.0)
    before = time.perf_counter()
    for unit, made in results:
        part = part_of(unit)
        now = time.perf_counter()
        seconds[part], before = seconds[part] + now - before, now
        checks[part] += made
        left[part] -= 1
        line = ""
        if left[part] == 0 and checks[part]:
            line = f"{part}: {describe_check_counts(checks[part])}, {seconds[part]:.1f} s"
        yield unit, made, line
