"""compute-sanitizer over the cases that reach every kernel: memcheck, racecheck and synccheck."""

import re
import shutil
from typing import Any
from unittest import mock

from trigraph.benchmarks.qualify import cases
from trigraph.benchmarks.qualify.part import Notes
from trigraph.benchmarks.qualify.place import Device
from trigraph.gpu import cache
from trigraph.gpu.instances import INSTANCES

AT_ONCE = True
TOOLS = ("racecheck", "memcheck", "synccheck")  # the slowest comes first
NAME = "compute-sanitizer"
QUIET = ("--report-api-errors", "no")  # CuPy asks the driver for functions that it may not have
LINE_NUMBERS = "-lineinfo"  # so that it can name the line
FOUND = 20  # findings that are kept


def parts(place: Device) -> list[str]:
    """Return the tools and families; in a rehearsal the quickest family."""
    return [f"{tool} {family}" for tool in TOOLS for family in (("gno",) if place.rehearsal else INSTANCES)]


def prefix(part: str, place: Device) -> list[str]:
    """Return the command that watches a process; FileNotFoundError if the program is not there."""
    program = shutil.which(NAME) or shutil.which(f"/usr/local/cuda/bin/{NAME}")
    if program is None:
        raise FileNotFoundError(f"{NAME} is not there (PATH, /usr/local/cuda/bin)")
    return [program, "--tool", part.split()[0], "--error-exitcode", "9", "--launch-timeout", "60", *QUIET]


def run(part: str, place: Device, notes: Notes) -> None:
    """Run the cases of a family, each array in an allocation of its own: a pool would hide what lies beyond its end."""
    if not place.rehearsal:
        place.xp.cuda.set_allocator(None)
    with mock.patch.object(cache, "OPTIONS", (*cache.OPTIONS, LINE_NUMBERS)):
        notes.add(f"results of {part}", True, number=len(cases.run(part.split()[1], place)))


def read(part: str, output: str) -> list[dict[str, Any]]:
    """Return what the tool says at its end, and the first of its findings."""
    count = re.search(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard", output)
    findings = [line.strip("= ") for line in output.splitlines() if line.startswith("=========")]
    passed = count is not None and not any(int(number) for number in count.groups() if number)
    note = "the tool came to no summary" if count is None else count[0]
    return [{"name": part, "passed": passed, "note": note, "findings": [] if passed else findings[:FOUND]}]
