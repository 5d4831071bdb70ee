"""Whole potentials of PyTorch Geometric's sizes beside its own, eager: times, device memory, and whether they agree.

One process makes and times all of them in turn: PyTorch Geometric's model alone takes half a minute to make. Parts of
the stages of compiled potentials are made at once, and timed one after the other.
"""

import contextlib
import gc
import statistics
import time
from typing import Any

import numpy as np

from trigraph.benchmarks.measure import compute_relative_error, convert_to_numpy, measure_peak_memory
from trigraph.benchmarks.models import PROGRAMS
from trigraph.benchmarks.programs import Call, ContenderUnavailable, Program
from trigraph.benchmarks.qualify.part import Notes, locked
from trigraph.benchmarks.qualify.place import Device
from trigraph.benchmarks.qualify.stages.bench import measure
from trigraph.benchmarks.qualify.stages.torch import missing
from trigraph.benchmarks.run import peer_tolerance

ALONE = None
CURVATURE = tuple(f"dimenet-{structure}-curvature-training" for structure in ("molecules", "slab", "copper"))
FORCES = ("dimenet-molecules", "dimenet-energy-forces", "dimenet-copper")
NAMES = (*(f"{name}-training" for name in FORCES), *CURVATURE, *FORCES)  # in the order of their worth
COMPILED = "-compiled"  # ending of the contenders that torch.compile makes


def program_of(name: str) -> Program:
    """Return the program of a name."""
    return next(program for program in PROGRAMS if program.name == name)


def parts(place: Device) -> list[str]:
    """Return the only part."""
    return ["eager"]


def run(part: str, place: Device, notes: Notes) -> None:
    """Time all programs, in a rehearsal the first, ours and PyTorch Geometric's in turn."""
    for name in NAMES[: place.size(len(NAMES), 1)]:
        beside(name, "pyg", place, notes)


def beside(name: str, other: str, place: Device, notes: Notes) -> None:
    """Time trigraph's eager program in turn with another contender, whose results are compared with its own."""
    if why := missing(place):
        return notes.add(name, None, why)
    import torch

    program = program_of(name)
    sizes = {n: place.size(value, min(value, 3)) for n, value in program.sizes.items()}
    calls: dict[str, Call] = {}
    results: dict[str, dict[str, np.ndarray]] = {}
    lines: dict[str, dict[str, Any]] = {}
    for contender in ("trigraph", other):
        label = f"{name}, {contender}"
        try:
            # Compilation takes minutes, mostly on the CPU: nobody waits for it.
            with contextlib.nullcontext() if contender.endswith(COMPILED) else locked(alone=False):
                begun = time.perf_counter()
                with torch.device("cpu" if place.rehearsal else "cuda"):
                    call = program.prepare(contender, sizes, "float32")
                results[contender] = {n: convert_to_numpy(t) for n, t in call().items()}
        except Exception as error:
            if not (program.is_peer(contender) or isinstance(error, ContenderUnavailable)):
                raise
            notes.add(label, None, f"{type(error).__name__}: {str(error)[:300]}")
            continue
        calls[contender], lines[contender] = call, {"name": label, "first": time.perf_counter() - begun}
    with locked(alone=True):
        for contender, call in calls.items():
            lines[contender]["peak_bytes"] = _peak_bytes(call, place)
        times = measure(place, calls)
    for contender, line in lines.items():
        seconds = statistics.median(times[contender])
        line |= {"passed": None, "seconds": seconds, "samples": times[contender]}
        if contender != "trigraph":
            apart, most = (
                compute_relative_error(results[contender], results["trigraph"]),
                peer_tolerance("float32", program.terms),
            )
            line |= {"error": apart, "ratio": seconds / statistics.median(times["trigraph"])}
            if not (apart <= most):
                line["note"] = f"differs by {apart:.1e}, more than {most:.1e}"
                line["passed"] = None if program.is_peer(contender) else False
        notes.add(**line)
    return None


def _peak_bytes(call: Call, place: Device) -> int:
    """Return how much more memory a call takes than is taken before it, on the device as torch allocates it."""
    import torch

    if place.rehearsal:
        return measure_peak_memory(call)[1]
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
