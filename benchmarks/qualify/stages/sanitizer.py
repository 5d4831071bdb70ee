"""compute-sanitizer (memcheck, racecheck, synccheck) for the cases that run every kernel."""

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
TOOLS = ("racecheck", "memcheck", "synccheck")  # start the slowest tool first
NAME = "compute-sanitizer"
QUIET = ("--report-api-errors", "no")  # ignores CuPy's queries of missing driver functions
LINE_NUMBERS = "-lineinfo"  # lets the tool report source lines
FOUND = 20  # maximum number of findings in a note


def list_parts(target: Device) -> list[str]:
    """Return a part for each tool and family or, in a rehearsal, only for the fastest family."""
    return [f"{tool} {family}" for tool in TOOLS for family in (("gno",) if target.rehearsal else INSTANCES)]


def make_command_prefix(part: str, target: Device) -> list[str]:
    """Return the command line of the tool; raise FileNotFoundError if the program is not installed."""
    program = shutil.which(NAME) or shutil.which(f"/usr/local/cuda/bin/{NAME}")
    if program is None:
        raise FileNotFoundError(f"{NAME} was not found (PATH, /usr/local/cuda/bin)")
    return [program, "--tool", part.split()[0], "--error-exitcode", "9", "--launch-timeout", "60", *QUIET]


def run_part(part: str, target: Device, notes: Notes) -> None:
    """Run the cases of a family with one allocation per array, because a pool would hide out-of-bounds accesses."""
    if not target.rehearsal:
        target.xp.cuda.set_allocator(None)
    with mock.patch.object(cache, "OPTIONS", (*cache.OPTIONS, LINE_NUMBERS)):
        notes.add(f"results of {part}", True, number=len(cases.compare_kernels_with_judge(part.split()[1], target)))


def parse_output(part: str, output: str) -> list[dict[str, Any]]:
    """Return a line with the tool's summary and its first findings."""
    count = re.search(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard", output)
    findings = [line.strip("= ") for line in output.splitlines() if line.startswith("=========")]
    passed = count is not None and not any(int(number) for number in count.groups() if number)
    note = "the tool printed no summary" if count is None else count[0]
    return [{"name": part, "passed": passed, "note": note, "findings": [] if passed else findings[:FOUND]}]
