"""What is kept of a run: a JSON record with machine, versions and settings, and where it is written."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

import trigraph
from trigraph.bench.device import device_name
from trigraph.bench.run import Options, Result

__all__ = ["environment", "record", "stem"]

FORMAT = 1
PACKAGES = ("numpy", "scipy", "torch", "torch-geometric", "cupy-cuda12x", "cupy-cuda13x")
KINDS = ("xeon", "epyc", "ryzen", "threadripper", "core", "neoverse", "graviton", "apple")


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "trigraph": trigraph.__version__}
    installed = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
    found |= {name: installed[name] for name in PACKAGES if name in installed}
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]  # type: ignore[call-arg,index,func-returns-value]
    return {**found, "blas of numpy": f"{blas.get('name')} {blas.get('version')}"}


def _git(*arguments: str) -> str | None:
    try:
        run = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return run.stdout.strip()


def _source() -> dict[str, Any]:
    """Commit of the checkout the command runs in, and whether what is installed was built from these very files.

    Without the second, a record could name a commit whose code never ran.
    """
    top = _git("rev-parse", "--show-toplevel")
    if top is None or not (Path(top) / "src/trigraph/operators.py").exists():
        return {"commit": None}
    package, root = Path(trigraph.__file__).parent, Path(top)
    pairs = [(package / folder, root / folder) for folder in ("fortran", "gpu", "pyref")]
    pairs.append((package, root / "src/trigraph"))
    same = all(
        (installed / path.relative_to(source)).is_file()
        and (installed / path.relative_to(source)).read_bytes() == path.read_bytes()
        for installed, source in pairs
        for path in source.rglob("*")
        if path.suffix in (".py", ".fypp", ".inc", ".f90", ".cu", ".cuh")
    )
    return {
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("-C", top, "status", "--porcelain", "--", "src", "fortran", "gpu", "pyref")),
        "installed_is_this_checkout": same,
    }


def environment(options: Options) -> dict[str, Any]:
    """Machine, versions, build and settings of this run."""
    build = Path(trigraph.__file__).parent / "build_info.json"
    return {
        "format": FORMAT,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "options": vars(options),
        "machine": {
            "cpu": _cpu_model(),
            "architecture": platform.machine(),
            "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "memory_bytes": _memory_bytes(),
            "system": f"{platform.system()} {platform.release()}",
            "device": device_name(),
        },
        "versions": _versions(),
        "build": json.loads(build.read_text()) if build.exists() else None,
        "source": _source(),
    }


def _result(result: Result, options: Options) -> dict[str, Any]:
    workload = result.workload
    contenders = {}
    for name, m in result.measured.items():
        entry: dict[str, Any] = {"status": m.status, "note": m.note}
        if m.seconds:
            low, mid, high = m.quartiles
            time, memory = result.ratios(name)
            rate, bandwidth = result.rates(name)
            entry |= {
                "median_s": mid,
                "quartiles_s": [low, high],
                "samples_s": list(m.seconds),
                "peak_bytes": m.peak_bytes,
                "relative_error": m.error,
                "time_over_fast": time,
                "memory_over_fast": memory,
                "operations_per_s": rate,
                "bytes_per_s": bandwidth,
                "pools": list(m.pools),
                "verdicts": [vars(v) for v in result.verdicts(name, options)],
            }
        if name in workload.peers:
            entry["about"] = workload.peers[name].about
        contenders[name] = entry
    return {
        "workload": workload.name,
        "family": workload.family,
        "summary": workload.summary,
        "steps": [{"operator": s.operator, "wrt": s.wrt, "zero": s.zero} for s in workload.steps],
        "sizes": dict(result.sizes),
        "dtype": result.dtype,
        "operations": workload.operations(result.sizes),
        "bytes": workload.bytes_moved(result.sizes, np.dtype(result.dtype)),
        "load_before_after": list(result.load),
        "processors_used_by_others": result.others,
        "contenders": contenders,
    }


def record(
    environment: dict[str, Any],
    ceilings: dict[str, dict[str, float]],
    results: list[Result],
    sweeps: dict[str, list[Result]],
    options: Options,
) -> dict[str, Any]:
    """Everything about a run, JSON-ready."""
    return {
        **environment,
        "ceilings": ceilings,
        "results": [_result(r, options) for r in results],
        "sweeps": {name: [_result(r, options) for r in points] for name, points in sweeps.items()},
    }


def stem(environment: dict[str, Any]) -> str:
    """File name without suffix: date, kind of machine, processors: ``2026-11-21-xeon-2core``."""
    machine = environment["machine"]
    model = machine["cpu"].lower()
    kind = next((k for k in KINDS if re.search(rf"\b{k}\b", model)), machine["architecture"])
    parts = [environment["created"][:10], kind, f"{machine['processors']}core"]
    if machine["device"]:
        parts.append(re.sub(r"[^a-z0-9]+", "-", machine["device"].lower()))
    return "-".join(parts)
