"""What is kept of a run: a JSON record with environment and settings, and the name it is filed under."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.metadata import distributions
from typing import Any

import numpy as np

from trigraph import environment
from trigraph.benchmarks.run import Options, ProgramResult, Result, Scaling, flatness

__all__ = ["about", "record", "stem"]

FORMAT = 1
PEERS = ("torch", "torch-geometric", "scipy", "fairchem-core")
KINDS = ("xeon", "epyc", "ryzen", "threadripper", "core", "neoverse", "graviton", "apple")


def _blas() -> str:
    """BLAS of NumPy, which both the ceilings and the NumPy peers run on."""
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]  # type: ignore[call-arg,index,func-returns-value]
    return f"{blas.get('name')} {blas.get('version')}"


def about(options: Options) -> dict[str, Any]:
    """Environment and settings of this run."""
    installed = {d.metadata["Name"]: d.version for d in distributions()}
    return {
        "format": FORMAT,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "options": vars(options),
        "environment": environment.collect(),
        "architecture": platform.machine(),
        "peers": {name: installed[name] for name in PEERS if name in installed},
        "blas": _blas(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def _result(result: Result, options: Options, tops: Mapping[str, float]) -> dict[str, Any]:
    workload, dtype = result.workload, np.dtype(result.dtype)
    outputs = workload.output_bytes(result.sizes, dtype)
    contenders = {}
    for name, m in result.measured.items():
        entry = _measured(result, name, options, tops)
        if m.seconds:
            entry |= {
                "bytes_beyond_outputs": m.peak_bytes - outputs,
                "operations_per_s": result.rate(name),
                "share_of_gather_bound": result.gather_share(name, tops),
            }
        if name in workload.peers:
            entry["about"] = workload.peers[name].about
        contenders[name] = entry
    return {
        "workload": workload.name,
        "family": workload.family,
        "summary": workload.summary,
        "steps": [
            {"operator": s.operator, "wrt": s.wrt, "zero": s.zero, "given": dict(s.given)} for s in workload.steps
        ],
        "settings": dict(workload.settings),
        "layout": workload.layout,
        "sizes": dict(result.sizes),
        "dtype": result.dtype,
        "operations": workload.operations(result.sizes),
        "bytes": workload.bytes_moved(result.sizes, dtype),
        "gathers": workload.gathers,
        "gather_bound_s": result.bound(tops),
        "output_bytes": outputs,
        "order_bytes": workload.order_bytes(result.sizes),
        "load_before_after": list(result.load),
        "processors_used_by_others": result.others,
        "contenders": contenders,
    }


def _measured(result: Result | ProgramResult, name: str, options: Options, tops: Mapping[str, float]) -> dict[str, Any]:
    """Return what is known of a contender of a workload or a program."""
    m = result.measured[name]
    entry: dict[str, Any] = {"status": m.status, "note": m.note}
    if m.seconds:
        low, mid, high = m.quartiles
        time, memory = result.ratios(name)
        entry |= {
            "median_s": mid,
            "quartiles_s": [low, high],
            "samples_s": [float(f"{t:.5g}") for t in m.seconds],
            "peak_bytes": m.peak_bytes,
            "relative_error": m.error,
            "time_over_fast": time,
            "memory_over_fast": memory,
            "pools": list(m.pools),
            "verdicts": [vars(v) for v in result.verdicts(name, options, tops)],
        }
    return entry


def _program(result: ProgramResult, options: Options) -> dict[str, Any]:
    program = result.workload
    contenders = {}
    for name, m in result.measured.items():
        own = program.contenders[name]
        contenders[name] = {"about": own.about, "work": own.work, **_measured(result, name, options, {})}
        if m.shares is not None:
            contenders[name] |= {f"share_of_{what}": share for what, share in m.shares.items()}
    return {
        "workload": program.name,
        "family": program.family,
        "summary": program.summary,
        "sizes": dict(result.sizes),
        "dtype": result.dtype,
        "load_before_after": list(result.load),
        "processors_used_by_others": result.others,
        "contenders": contenders,
    }


def _scaling(found: Scaling, options: Options) -> dict[str, Any]:
    return {
        "threads": [1, found.threads],
        "samples_s": {name: [float(f"{t:.5g}") for t in m.seconds] for name, m in found.measured.items()},
        "gain": found.gain("fortran"),
        "gain_of_copy": found.gain("copy"),
        "load_before_after": list(found.load),
        "processors_used_by_others": found.others,
        "verdicts": [vars(v) for v in found.verdicts(options)],
    }


def record(
    options: Options,
    ceilings: dict[str, dict[str, float]],
    results: list[Result],
    sweeps: dict[str, list[Result]],
    in_turn: dict[str, list[Result]],
    scalings: dict[str, Scaling],
    programs: list[ProgramResult],
) -> dict[str, Any]:
    """Everything about a run, JSON-ready."""
    tops = ceilings["host"]
    return {
        **about(options),
        "ceilings": ceilings,
        "results": [_result(r, options, tops) for r in results],
        "sweeps": {name: [_result(r, options, tops) for r in points] for name, points in sweeps.items()},
        "programs": [_program(p, options) for p in programs],
        "scalings": {name: _scaling(found, options) for name, found in scalings.items()},
        "sweeps_in_turn": {name: [_result(r, options, tops) for r in points] for name, points in in_turn.items()},
        "sweep_verdicts": {name: [vars(v) for v in flatness(points, options)] for name, points in in_turn.items()},
    }


def stem(record: dict[str, Any]) -> str:
    """File name without suffix: date, kind of machine, processors: ``2026-11-21-xeon-2core``."""
    machine = record["environment"]
    model = machine["cpu"]["model"].lower()
    kind = next((k for k in KINDS if re.search(rf"\b{k}\b", model)), record["architecture"])
    parts = [record["created"][:10], kind, f"{machine['cpu']['processors']}core"]
    if machine["device"]["name"]:
        parts.append(re.sub(r"[^a-z0-9]+", "-", machine["device"]["name"].lower()))
    return "-".join(parts)
