"""Compiled potentials for forces, each of which is timed alternately with the eager potential."""

import os
from collections.abc import Iterable

from trigraph.benchmarks.qualify.part import Notes
from trigraph.benchmarks.qualify.place import Device
from trigraph.benchmarks.qualify.stages.models import (
    COMPILED,
    CURVATURE,
    NAMES,
    compare_contender_with_trigraph,
)

AT_ONCE, ALONE = True, None
THREADS = 4  # number of torch's compiler processes per part, each of which imports torch


def list_parts(target: Device) -> list[str]:
    """Return a part for each program and compiled contender, except training on curvature."""
    return list_compiled_contenders(target, (name for name in NAMES if name not in CURVATURE))


def list_compiled_contenders(target: Device, names: Iterable[str]) -> list[str]:
    """Return trigraph's compiled contenders of programs or, in a rehearsal, its eager contender."""
    if target.rehearsal:
        return [f"{next(iter(names))}, trigraph"]
    return [f"{name}, trigraph{COMPILED}" for name in names]


def run_part(part: str, target: Device, notes: Notes) -> None:
    """Compile and time one contender."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(THREADS))  # torch reads the variable when it is imported
    name, _, contender = part.partition(", ")
    compare_contender_with_trigraph(name, contender, target, notes)
