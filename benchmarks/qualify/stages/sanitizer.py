"""compute-sanitizer over the cases that reach every kernel: memcheck, racecheck and synccheck."""

from __future__ import annotations

import importlib
import re
import shutil
from typing import Any
from unittest import mock

from trigraph.benchmarks.qualify.notes import Notes
from trigraph.benchmarks.qualify.place import Device
from trigraph.benchmarks.qualify.stages.compile import LINE_NUMBERS
from trigraph.gpu import launcher
from trigraph.table import DEFINITIONS

__all__ = ["AT_ONCE", "parts", "prefix", "read", "run"]

AT_ONCE = True
TOOLS = ("memcheck", "racecheck", "synccheck")
FAMILIES = tuple(dict.fromkeys(spec.family for spec in DEFINITIONS))
NAME = "compute-sanitizer"
FOUND = 20  # findings that are kept


def parts(place: Device) -> list[str]:
    """Return the tools and families; in a rehearsal the quickest family."""
    return [f"{tool} {family}" for tool in TOOLS for family in (("gno",) if place.rehearsal else FAMILIES)]


def prefix(part: str, place: Device) -> list[str]:
    """Return the command that watches a process."""
    return [executable(NAME), "--tool", part.split()[0], "--error-exitcode", "9", "--launch-timeout", "60"]


def executable(name: str) -> str:
    """Return the path of a program of the CUDA toolkit.

    Raises
    ------
    FileNotFoundError
        If it is not there.
    """
    found = shutil.which(name) or shutil.which(f"/usr/local/cuda/bin/{name}")
    if found is None:
        raise FileNotFoundError(f"{name} is not there (PATH, /usr/local/cuda/bin)")
    return found


def run(part: str, place: Device, notes: Notes) -> None:
    """Run the cases of a family, each array in an allocation of its own: a pool would hide what lies beyond its end."""
    if not place.rehearsal:
        place.xp.cuda.set_allocator(None)
    cases = importlib.import_module(f"trigraph.benchmarks.qualify.cases.{part.split()[1]}")
    with mock.patch.object(launcher, "OPTIONS", (*launcher.OPTIONS, LINE_NUMBERS)):
        notes.add(f"results of {part}", True, number=len(cases.run(place)))


def read(part: str, output: str) -> list[dict[str, Any]]:
    """Return what the tool says at its end, and the first of its findings."""
    count = re.search(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard", output)
    found = [line.strip("= ") for line in output.splitlines() if line.startswith("=========")]
    passed = None if count is None else not any(int(number) for number in count.groups() if number)
    note = "the tool came to no summary" if count is None else count[0]
    return [{"name": part, "passed": passed or False, "note": note, "findings": [] if passed else found[:FOUND]}]
