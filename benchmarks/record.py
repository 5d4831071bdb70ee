"""JSON record of a run, which includes environment and settings, and its file name."""

import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import numpy as np

from trigraph import environment
from trigraph.benchmarks.run import BenchmarkResult, Options
from trigraph.benchmarks.workloads import Workload

FORMAT = 3
PEERS = ("torch", "torch-geometric", "scipy", "fairchem-core")
PROCESSOR_NAMES = ("xeon", "epyc", "ryzen", "threadripper", "core", "neoverse", "graviton", "apple")


def write_record(folder: Path, record: Mapping[str, Any]) -> Path:
    """Write a record to a folder; return the path of the file."""
    path = folder / f"{make_file_stem(record)}.json"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path


def _make_workload_entry(workload: Workload, result: BenchmarkResult, tops: Mapping[str, float]) -> dict[str, Any]:
    """Return the record's entries for a workload of operators."""
    return {
        "steps": [
            {"operator": s.operator, "wrt": s.wrt, "zero": s.zero, "given": dict(s.from_steps)} for s in workload.steps
        ],
        "settings": dict(workload.settings),
        "layout": workload.layout,
        "operations": workload.count_operations(result.sizes),
        "bytes": workload.count_bytes_moved(result.sizes, np.dtype(result.dtype)),
        "bound_s": result.compute_least_seconds(tops),
    }


def _make_contender_entry(result: BenchmarkResult, name: str) -> dict[str, Any]:
    """Return the record's entry for a contender."""
    m, workload = result.measured[name], result.workload
    entry: dict[str, Any] = {"status": m.status, "note": m.note}
    if about := workload.describe_contender(name):
        entry["about"] = about
    if not m.seconds:
        return entry
    low, mid, high = m.quartiles
    time, memory = result.compute_ratios_to_first(name)
    entry |= {
        "median_s": mid,
        "quartiles_s": [low, high],
        "samples_s": [float(f"{t:.5g}") for t in m.seconds],
        "peak_bytes": m.peak_bytes,
        "relative_error": m.error,
        "time_over_fast": time,
        "memory_over_fast": memory,
    }
    if isinstance(workload, Workload):
        entry["operations_per_s"] = result.compute_operation_rate(name)
    return entry


def _make_result_entry(result: BenchmarkResult, tops: Mapping[str, float]) -> dict[str, Any]:
    workload = result.workload
    return {
        "workload": workload.name,
        "family": workload.family,
        "summary": workload.summary,
        "sizes": dict(result.sizes),
        "dtype": result.dtype,
        **(_make_workload_entry(workload, result, tops) if isinstance(workload, Workload) else {}),
        "load_before_after": list(result.load),
        "processors_used_by_others": result.other_share,
        "contenders": {name: _make_contender_entry(result, name) for name in result.measured},
    }


def make_record(
    options: Options,
    tops: Mapping[str, float],
    results: Sequence[BenchmarkResult],
) -> dict[str, Any]:
    """Return the record of a run; `tops` contains the machine's peak rates.

    The entry ``blas`` names NumPy's BLAS, on which the peak rates and the NumPy peers depend.
    """
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]  # type: ignore[call-arg,index,func-returns-value]
    installed = {d.metadata["Name"]: d.version for d in distributions()}
    return {
        "format": FORMAT,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "options": vars(options),
        "environment": environment.collect_environment(),
        "architecture": platform.machine(),
        "peers": {name: installed[name] for name in PEERS if name in installed},
        "blas": f"{blas.get('name')} {blas.get('version')}",
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "ceilings": {"device" if options.device else "host": tops},
        "results": [_make_result_entry(r, tops) for r in results],
    }


def make_file_stem(record: Mapping[str, Any]) -> str:
    """Return the file name without suffix: date, machine and number of processors (``2026-11-21-xeon-2core``)."""
    machine = record["environment"]
    model = machine["cpu"]["model"].lower()
    if record["options"]["device"]:
        return f"{record['created'][:10]}-{re.sub('[^a-z0-9]+', '-', str(machine['device']['name']).lower())}"
    kind = next((k for k in PROCESSOR_NAMES if re.search(rf"\b{k}\b", model)), record["architecture"])
    return "-".join([record["created"][:10], kind, f"{machine['cpu']['processors']}core"])
