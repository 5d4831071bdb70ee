"""Every kernel compiled as the launcher does, into its cache on disk; registers and spills beside the budgets."""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any
from unittest import mock

import numpy as np

from trigraph.benchmarks.qualify.cases import subset
from trigraph.benchmarks.qualify.part import Notes
from trigraph.benchmarks.qualify.place import Device, place
from trigraph.gpu import compile as budgeted
from trigraph.gpu import launcher
from trigraph.gpu.instances import INSTANCES

__all__ = ["LINE_NUMBERS", "compiled", "parts", "run"]

LINE_NUMBERS = "-lineinfo"  # so that a sanitizer can name the line


def parts(where: Device) -> list[str]:
    """Return the parts: a first call, all kernels, the sanitizer's kernels."""
    return ["first call", "kernels", "kernels with line numbers"]


def run(part: str, where: Device, notes: Notes) -> None:
    """Compile, and note times and what was found."""
    if part == "first call":
        _first_call(where, notes)
    else:
        _all(where, notes, part.endswith("line numbers"))


def _first_call(where: Device, notes: Notes) -> None:
    """Note the time of the first call of a small operator, which compiles unless the cache has it, and of a second."""
    import trigraph

    graph = where.moved(trigraph.CSC(np.array([0, 1, 2]), np.array([1, 0]), 2))
    x, w = (where.moved(np.ones(shape, np.float32)) for shape in ((2, 4), (2,)))
    for name in ("first", "second"):
        begun = time.perf_counter()
        trigraph.agg_weighted_n2n_fwd(x, w, graph, panel=where.panel)
        where.synchronize()
        notes.add(f"{name} call in this process", seconds=time.perf_counter() - begun)


def compiled(where: Device, family: str, name: str, line_numbers: bool) -> dict[str, int]:
    """Compile one instance as the launcher does, and return what the driver says of it."""
    if where.rehearsal:
        library = launcher.runtime(np.empty(0)).library(family)  # type: ignore[attr-defined]
        assert library.family == family
        return {}
    options = (*launcher.OPTIONS, LINE_NUMBERS) if line_numbers else launcher.OPTIONS
    with mock.patch.object(launcher, "OPTIONS", options):
        function = launcher.runtime(where.xp.empty(0)).compiled(family, name)  # type: ignore[attr-defined]
    return {"registers": function.num_regs, "local_bytes": function.local_size_bytes}


def _timed(arguments: tuple[str, str, str, bool]) -> tuple[str, str, float, dict[str, int]]:
    where, family, name, line_numbers = arguments
    begun = time.perf_counter()
    usage = compiled(place(where), family, name, line_numbers)
    return family, name, time.perf_counter() - begun, usage


def _all(where: Device, notes: Notes, line_numbers: bool) -> None:
    """Compile everything in as many processes as there are processors."""
    wanted = {f: subset(f) if line_numbers else INSTANCES[f] for f in INSTANCES}
    names = [(where.name, family, name, line_numbers) for family, instances in wanted.items() for name in instances]
    if where.rehearsal:
        names = names[::20]
    jobs = 1 if where.rehearsal else max(1, os.cpu_count() or 1)
    begun = time.perf_counter()
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:  # what has used CUDA cannot be forked
        found = list(pool.map(_timed, names, chunksize=4))
    slowest = max(found, key=lambda line: line[2])
    notes.add(
        "kernels are compiled",
        len(found) == len(names),
        number=len(found),
        processes=jobs,
        seconds=time.perf_counter() - begun,
        slowest=f"{slowest[1]}, {slowest[2]:.2f} s",
    )
    if not line_numbers and not where.rehearsal:
        _beside_budgets(where, notes, found)


def _beside_budgets(where: Device, notes: Notes, found: list[Any]) -> None:
    """Note which kernels that run use more than their budget of registers and of local memory (stack and spills)."""
    architecture, budgets, over = where.architecture(), budgeted.read_budgets(), []
    if architecture not in budgeted.ARCHITECTURES:
        notes.add("what runs keeps to the budgets", None, f"there are no budgets for {architecture}")
        return
    for family, name, _, usage in found:
        budget = budgets.get(family, {}).get(name, {}).get(architecture)
        if budget is None:
            over.append(f"{name} has no budget")
        elif usage["registers"] > budget.registers or usage["local_bytes"] > budget.stack:
            over.append(f"{name}: {usage}, budget {budget}")
    notes.add("what runs keeps to the budgets", not over, "; ".join(over[:10]), number=len(found), over=over)
