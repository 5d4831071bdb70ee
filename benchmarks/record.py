"""JSON record of a run, which includes environment and settings, and its file name."""

import json
import platform
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from slopecheck.environment import find_package_version
from trigraph import environment
from trigraph.benchmarks.run import DTYPE, BenchmarkResult, Options

FORMAT = 4
PEERS = ("torch", "torch-geometric", "scipy", "fairchem-core")
PROCESSOR_NAMES = ("xeon", "epyc", "ryzen", "threadripper", "core", "neoverse", "graviton", "apple")


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
        "architecture": platform.machine(),
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
    kind = next((k for k in PROCESSOR_NAMES if re.search(rf"\b{k}\b", model)), record["architecture"])
    return "-".join([record["created"][:10], kind, f"{machine['cpu']['processors']}core"])
