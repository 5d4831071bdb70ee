"""Time and memory traffic of each kernel: by ncu where it is there, else times between CUDA events."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

from trigraph.benchmarks.qualify.part import Notes
from trigraph.benchmarks.qualify.place import Device
from trigraph.benchmarks.qualify.workloads import WORKLOADS, indexed, sizes_at
from trigraph.benchmarks.workloads import make_case, panel_call, scaled
from trigraph.gpu import launcher
from trigraph.gpu.launcher import instance_name

__all__ = ["parts", "prefix", "read", "run"]

METRICS = {
    "gpu__time_duration.sum": "seconds",
    "dram__bytes_read.sum": "dram_read_bytes",
    "dram__bytes_write.sum": "dram_written_bytes",
}
NANOSECOND = 1e-9


def parts(place: Device) -> list[str]:
    """Return the workloads whose kernels are looked at."""
    names = [timed.workload.name for timed in WORKLOADS if timed.profiled]
    return names[-2:-1] if place.rehearsal else names


def _ncu() -> str | None:
    return shutil.which("ncu") or shutil.which("/usr/local/cuda/bin/ncu")


def prefix(part: str, place: Device) -> list[str]:
    """Return the profiler's command; nothing where it is not there."""
    ncu = _ncu()
    if ncu is None:
        return []
    options = ("--csv", "--print-units", "base", "--profile-from-start", "off", "--clock-control", "none")
    return [ncu, *options, "--target-processes", "all", "--metrics", ",".join(METRICS)]


def run(part: str, place: Device, notes: Notes) -> None:
    """Call a workload of half the size once to warm it up, and once to be looked at."""
    timed = next(t for t in WORKLOADS if t.workload.name == part)
    sizes = scaled(sizes_at(place, timed), 0.5)
    case = indexed(make_case(timed.workload, sizes, np.dtype(np.float32)), np.int32)
    call = panel_call(timed.workload, place.panel, case)
    call()
    if _ncu() is not None:
        with place.profiled():
            call()
        notes.add(f"{part} was profiled by ncu", None)
        return
    with _each_launch(place) as found:
        call()
    for name, seconds in sorted(found.items(), key=lambda item: -sum(item[1])):
        notes.add(name, workload=part, kernel=name, launches=len(seconds), seconds=sum(seconds))


@contextmanager
def _each_launch(place: Device) -> Iterator[dict[str, list[float]]]:
    """Time every launch of our kernels by itself."""
    runtime = launcher.runtime(place.xp.empty(0))
    found: dict[str, list[float]] = {}
    launch = runtime.launch

    def timed(family: str, kernel: str, types: Any, *rest: Any, **options: Any) -> None:
        seconds = place.seconds(lambda: launch(family, kernel, types, *rest, **options))
        found.setdefault(instance_name(kernel, types), []).append(seconds)

    with mock.patch.object(runtime, "launch", timed):
        yield found


def read(part: str, output: str) -> list[dict[str, Any]]:
    """Return what ncu printed: one line for each kernel, its launches added up."""
    lines = output.splitlines()
    first = next((k for k, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        return []
    kernels: dict[str, dict[str, Any]] = {}
    for row in csv.DictReader(line for line in lines[first:] if line.startswith('"')):
        name, metric = row["Kernel Name"], METRICS.get(row["Metric Name"])
        if metric is None:
            continue
        kernel = kernels.setdefault(name, {"name": name, "passed": None, "note": "", "workload": part, "kernel": name})
        value = float(row["Metric Value"].replace(",", ""))
        kernel[metric] = kernel.get(metric, 0.0) + (value * NANOSECOND if metric == "seconds" else value)
        kernel["launches"] = kernel.get("launches", 0) + (metric == "seconds")
    return sorted(kernels.values(), key=lambda kernel: -kernel.get("seconds", 0.0))
