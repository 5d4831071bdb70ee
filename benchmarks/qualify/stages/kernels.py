"""Time of each kernel between CUDA events."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np

from trigraph.benchmarks.qualify.part import Notes
from trigraph.benchmarks.qualify.place import Device
from trigraph.benchmarks.qualify.workloads import WORKLOADS, indexed, sizes_at
from trigraph.benchmarks.workloads import make_case, panel_call, scaled
from trigraph.gpu import launcher
from trigraph.gpu.launcher import instance_name


def parts(place: Device) -> list[str]:
    """Return the workloads whose kernels are looked at."""
    names = [timed.workload.name for timed in WORKLOADS if timed.profiled]
    return names[-2:-1] if place.rehearsal else names


def run(part: str, place: Device, notes: Notes) -> None:
    """Call a workload of half the size once to warm it up, and once with every launch timed by itself."""
    timed = next(t for t in WORKLOADS if t.workload.name == part)
    sizes = scaled(sizes_at(place, timed), 0.5)
    case = indexed(make_case(timed.workload, sizes, np.dtype(np.float32)), np.int32)
    call = panel_call(timed.workload, place.panel, case)
    call()
    runtime = launcher.runtime(place.xp.empty(0))
    found: dict[str, list[float]] = {}
    launch = runtime.launch

    def timed_launch(family: str, kernel: str, types: Any, *rest: Any, **options: Any) -> None:
        seconds = place.seconds(lambda: launch(family, kernel, types, *rest, **options))
        found.setdefault(instance_name(kernel, types), []).append(seconds)

    with mock.patch.object(runtime, "launch", timed_launch):
        call()
    for name, seconds in sorted(found.items(), key=lambda item: -sum(item[1])):
        notes.add(name, workload=part, kernel=name, launches=len(seconds), seconds=sum(seconds))
