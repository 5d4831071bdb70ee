"""Eager potentials compared with PyTorch Geometric's models of the same sizes: times, device memory, and results.

One process builds and times all models, because building PyTorch Geometric's takes half a minute. The stages for
compiled potentials build their parts concurrently, and time them one after the other.
"""

import contextlib
import gc
import statistics
import time
from typing import Any

import numpy as np

from trigraph.benchmarks.measure import (
    compute_relative_error,
    convert_to_numpy,
    is_missing_package,
    measure_peak_memory,
)
from trigraph.benchmarks.models import PROGRAMS
from trigraph.benchmarks.programs import Call, Program
from trigraph.benchmarks.qualify.part import Notes, lock_device
from trigraph.benchmarks.qualify.place import Device
from trigraph.benchmarks.qualify.stages.bench import time_calls_alternately
from trigraph.benchmarks.qualify.stages.torch import explain_missing_torch
from trigraph.benchmarks.run import compute_peer_tolerance

ALONE = None
CURVATURE = tuple(f"dimenet-{structure}-curvature-training" for structure in ("molecules", "slab", "copper"))
FORCES = ("dimenet-molecules", "dimenet-energy-forces", "dimenet-copper")
NAMES = (*(f"{name}-training" for name in FORCES), *CURVATURE, *FORCES)  # in order of importance
COMPILED = "-compiled"  # suffix of contenders that use torch.compile


def find_program(name: str) -> Program:
    """Return the program called `name`."""
    return next(program for program in PROGRAMS if program.name == name)


def list_parts(target: Device) -> list[str]:
    """Return the name of the only part."""
    return ["eager"]


def run_part(part: str, target: Device, notes: Notes) -> None:
    """Time trigraph and PyTorch Geometric alternately for all programs or, in a rehearsal, for the first."""
    for name in NAMES[: target.shrink_in_rehearsal(len(NAMES), 1)]:
        compare_contender_with_trigraph(name, "pyg", target, notes)


def compare_contender_with_trigraph(name: str, other: str, target: Device, notes: Notes) -> None:
    """Time trigraph's eager program alternately with another contender, and compare their results."""
    if why := explain_missing_torch(target):
        return notes.add(name, None, why)
    import torch

    program = find_program(name)
    sizes = {n: target.shrink_in_rehearsal(value, min(value, 3)) for n, value in program.sizes.items()}
    calls: dict[str, Call] = {}
    results: dict[str, dict[str, np.ndarray]] = {}
    lines: dict[str, dict[str, Any]] = {}
    for contender in ("trigraph", other):
        label = f"{name}, {contender}"
        try:
            # Do not lock the device: compilation takes minutes, mostly on the CPU.
            with contextlib.nullcontext() if contender.endswith(COMPILED) else lock_device(exclusive=False):
                begun = time.perf_counter()
                with torch.device("cpu" if target.rehearsal else "cuda"):
                    call = program.make_contender_call(contender, sizes, "float32")
                results[contender] = {n: convert_to_numpy(t) for n, t in call().items()}
        except Exception as error:
            if not (program.contenders[contender].peer or is_missing_package(error)):
                raise
            notes.add(label, None, f"{type(error).__name__}: {str(error)[:300]}")
            continue
        calls[contender], lines[contender] = call, {"name": label, "first": time.perf_counter() - begun}
    with lock_device(exclusive=True):
        for contender, call in calls.items():
            lines[contender]["peak_bytes"] = _measure_peak_bytes(call, target)
        times = time_calls_alternately(target, calls)
    for contender, line in lines.items():
        seconds = statistics.median(times[contender])
        line |= {"passed": None, "seconds": seconds, "samples": times[contender]}
        if contender != "trigraph":
            relative_error, most = (
                compute_relative_error(results[contender], results["trigraph"]),
                compute_peer_tolerance("float32", program.terms),
            )
            line |= {"error": relative_error, "ratio": seconds / statistics.median(times["trigraph"])}
            if not (relative_error <= most):
                line["note"] = f"differs by {relative_error:.1e}, more than {most:.1e}"
                line["passed"] = None if program.contenders[contender].peer else False
        notes.add(**line)
    return None


def _measure_peak_bytes(call: Call, target: Device) -> int:
    """Return the peak memory of a call above the memory in use before; on a device, memory allocated by torch."""
    import torch

    if target.rehearsal:
        return measure_peak_memory(call)[1]
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
