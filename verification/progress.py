"""Progress of a run: a line for each finished part."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from trigraph.table import DEFINITIONS
from trigraph.verification.record import Check
from trigraph.verification.units import Unit, counted

NAMES = {spec.name for spec in DEFINITIONS}


def part_of(unit: Unit) -> str:
    """Return the part of the run that a unit belongs to: a definition, the forces, or the golden vectors."""
    name = unit.label.partition(",")[0]
    if name in NAMES:
        return name
    return "golden vectors" if name.startswith("golden ") else "forces"


def result(checks: Iterable[Check]) -> str:
    """Return a text with the numbers of checks that passed, failed, are inconclusive, and were not offered."""
    checks = list(checks)
    passed, failed = sum(c.passed for c in checks), sum(c.failed for c in checks)
    others = {
        "inconclusive": sum(c.inconclusive for c in checks),
        "not offered": counted(c for c in checks if not c.offered),
    }
    return f"{passed} checks passed, {failed} failed" + "".join(f", {n} {what}" for what, n in others.items() if n)


def follow(
    units: Sequence[Unit], results: Iterable[tuple[Unit, list[Check]]]
) -> Iterator[tuple[Unit, list[Check], str]]:
    """Yield units and their checks as they come, and a line if the unit finishes a part (else "").

    The time of a part is the time spent waiting for its units.
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
            line = f"{part}: {result(checks[part])}, {seconds[part]:.1f} s"
        yield unit, made, line
