"""One benchmark run, from workloads and programs to results, ratios and a JSON record."""

import importlib
import json
import math
import os
import platform
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from slopecheck.environment import find_package_version
from trigraph import environment, table
from trigraph.benchmarks.device_workloads import DEVICE
from trigraph.benchmarks.measure import ContenderJob, Measurement, make_call_on_device, time_jobs_alternately
from trigraph.benchmarks.models import PROGRAMS
from trigraph.benchmarks.programs import Program
from trigraph.benchmarks.workloads import Step, Workload
from trigraph.table import OPERATORS, evaluate_expression

FAMILIES = {family: importlib.import_module(f"trigraph.benchmarks.{family}") for family in table.FAMILIES}
DIRECT = ("fortran-reference", "pyref")
DISTURBED = 0.05  # measurements are repeated if other processes use more than this share of the processors
ATTEMPTS = 3
DTYPE = np.dtype("float32")
FORMAT = 4
PEERS = ("torch", "torch-geometric", "scipy", "fairchem-core")
PROCESSOR_NAMES = ("xeon", "epyc", "ryzen", "threadripper", "core", "neoverse", "graviton", "apple")


@dataclass(frozen=True)
class Options:
    """Options of a measurement: threads per contender, rounds, size (full or small), and device.

    Only the named `contenders` run; an empty tuple means all.
    """

    threads: int
    repeat: int
    size: str
    contenders: tuple[str, ...] = ()
    device: bool = False

    def select_contenders(self, workload: Workload | Program) -> list[str]:
        """Return the requested contenders; a program's contenders for a device do not run on the host."""
        able = [n for n, c in workload.contenders.items() if self.device or c is None or not c.device]
        return [n for n in able if not self.contenders or n in self.contenders]


@dataclass(frozen=True)
class BenchmarkResult:
    """Measurements of a workload, or a program, at one set of sizes.

    `other_share` is the share of the processors that other processes used during the measurement.
    """

    workload: Workload | Program
    sizes: Mapping[str, int]
    measured: Mapping[str, Measurement]
    other_share: float

    def compute_ratios_to_first(self, contender: str) -> tuple[float | None, float | None]:
        """Return a contender's time and peak memory relative to the first one, or None if either was not measured."""
        first = next(iter(self.workload.contenders))
        own, fast = (self.measured.get(name, Measurement()) for name in (contender, first))
        if not (own.seconds and fast.seconds):
            return None, None
        memory = own.peak_bytes / fast.peak_bytes if fast.peak_bytes else None
        return own.median / fast.median, memory

    def compute_least_seconds(self, peak_rates: Mapping[str, float]) -> float | None:
        """Return a lower bound on the seconds of a run, from the peak rates of copies, operations and gathers.

        The bound is None for a program, and without peak rates.
        """
        if isinstance(self.workload, Program) or not peak_rates:
            return None
        amounts = {
            "copy": self.workload.count_bytes_moved(self.sizes, DTYPE),
            "float32": self.workload.count_operations(self.sizes),
            "gather": evaluate_expression(self.workload.gathered, self.sizes) * DTYPE.itemsize,
        }
        return max(amount / peak_rates[name] for name, amount in amounts.items() if name in peak_rates)


def find_workloads(
    families: Collection[str] = (), names: Collection[str] = (), device: bool = False
) -> list[Workload | Program]:
    """Return the workloads and programs of the host or device with the given families and names; empty means all."""
    host = [*(w for family in FAMILIES.values() for w in family.WORKLOADS), *PROGRAMS]
    workloads = DEVICE if device else host
    return [w for w in workloads if (not families or w.family in families) and (not names or w.name in names)]


def make_operator_workload(name: str, sizes: Mapping[str, int]) -> Workload:
    """Return a workload of one operator of the table, for all backends on the host except gpu-host.

    Sizes default to the family's; num_edges and num_positions default to each other.
    """
    op = OPERATORS[name]
    overrides = dict(sizes)
    for one, other in (("num_edges", "num_positions"), ("num_positions", "num_edges")):
        if one in overrides:
            overrides.setdefault(other, overrides[one])
    values = {s: {**FAMILIES[op.family].SIZES, **overrides}[s] for s in op.definition.symbols}
    return Workload(name, op.family, op.definition.summary, (Step(name),), values, backends=("fortran", *DIRECT))


def compute_peer_tolerance(dtype: str, terms: int = 0) -> float:
    """Return the relative error (2-norm) above which a peer's results count as wrong.

    The limit bounds the rounding error of sequential sums, and depends on `terms` only above 40,000.
    """
    return max(200.0, math.sqrt(terms)) * float(np.finfo(dtype).eps)


def _read_processor_seconds() -> tuple[float, float]:
    """Return the seconds of all processors since boot: all, and those that other processes have used."""
    times = os.times()
    ticks = [int(v) / os.sysconf("SC_CLK_TCK") for v in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    own = times.user + times.system + times.children_user + times.children_system
    return sum(ticks), sum(ticks) - idle - own


def measure_workload(
    workload: Workload | Program, options: Options, progress: Callable[[str], None] = lambda _: None
) -> BenchmarkResult:
    """Measure at the requested size, and repeat if other processes interfere; return the least disturbed attempt."""
    sizes, terms = workload.choose_run_sizes(options.size), workload.terms if isinstance(workload, Program) else 0
    run_sizes = sizes, workload.choose_run_sizes("tiny")
    jobs = {}
    for name in options.select_contenders(workload):
        make, warm = (partial(workload.make_contender_call, name, s, DTYPE.name) for s in run_sizes)
        if options.device and isinstance(workload, Program):
            make, warm = partial(make_call_on_device, make), partial(make_call_on_device, warm)
        jobs[name] = ContenderJob(make, warm, options.device)
    time_options = options.repeat, options.threads, compute_peer_tolerance(DTYPE.name, terms)
    attempts: list[BenchmarkResult] = []
    max_attempts = 1 if options.device else ATTEMPTS  # processor load hardly affects a device
    while not attempts or (len(attempts) < max_attempts and all(r.other_share > DISTURBED for r in attempts)):
        before = _read_processor_seconds()
        measured = time_jobs_alternately(
            jobs, *time_options, progress=lambda what: progress(f"{workload.name}: {what}")
        )
        total, others = (b - a for a, b in zip(before, _read_processor_seconds(), strict=True))
        attempts.append(BenchmarkResult(workload, sizes, measured, max(0.0, others / total)))
    return min(attempts, key=lambda result: result.other_share)


def write_record(folder: Path, record: Mapping[str, Any]) -> Path:
    """Write a record to a folder; return the path of the file."""
    path = folder / f"{make_file_stem(record)}.json"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path


def _make_contender_entry(result: BenchmarkResult, name: str) -> dict[str, Any]:
    """Return the record's entry for a contender."""
    m, contender = result.measured[name], result.workload.contenders[name]
    entry: dict[str, Any] = {"status": m.status, "note": m.note}
    if contender is not None:
        entry["about"] = contender.about
    if m.seconds:
        low, mid, high = m.quartiles
        entry |= {
            "median_s": mid,
            "quartiles_s": [low, high],
            "samples_s": [float(f"{t:.5g}") for t in m.seconds],
            "peak_bytes": m.peak_bytes,
            "relative_error": m.error,
        }
    return entry


def _make_result_entry(result: BenchmarkResult, peak_rates: Mapping[str, float]) -> dict[str, Any]:
    """Return the record's entry for a workload."""
    return {
        "workload": result.workload.name,
        "family": result.workload.family,
        "summary": result.workload.summary,
        "sizes": dict(result.sizes),
        "dtype": DTYPE.name,
        "bound_s": result.compute_least_seconds(peak_rates),
        "processors_used_by_others": result.other_share,
        "contenders": {name: _make_contender_entry(result, name) for name in result.measured},
    }


def make_record(
    options: Options, peak_rates: Mapping[str, float], results: Sequence[BenchmarkResult]
) -> dict[str, Any]:
    """Return the record of a run; `peak_rates` contains the rates of the device, or nothing.

    The entry ``blas`` names NumPy's BLAS, on which the NumPy peers depend.
    """
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]  # type: ignore[call-arg,index,func-returns-value]
    return {
        "format": FORMAT,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "options": vars(options),
        "environment": environment.collect_environment(),
        "peers": {name: find_package_version(name) for name in PEERS},
        "blas": f"{blas.get('name')} {blas.get('version')}",
        "peak_rates": peak_rates,
        "results": [_make_result_entry(r, peak_rates) for r in results],
    }


def make_file_stem(record: Mapping[str, Any]) -> str:
    """Return the file name without suffix: date, machine and number of processors (``2026-11-21-xeon-2core``)."""
    machine = record["environment"]
    model = machine["cpu"]["model"].lower()
    if record["options"]["device"]:
        return f"{record['created'][:10]}-{re.sub('[^a-z0-9]+', '-', str(machine['device']['name']).lower())}"
    kind = next((k for k in PROCESSOR_NAMES if re.search(rf"\b{k}\b", model)), platform.machine())
    return "-".join([record["created"][:10], kind, f"{machine['cpu']['processors']}core"])
