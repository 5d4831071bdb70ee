"""Compilation of every kernel by the launcher's code, into its cache on disk, and a check of local memory."""

import os
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np

from trigraph.benchmarks.qualify.part import Notes
from trigraph.benchmarks.qualify.place import Device, make_device
from trigraph.gpu import launcher
from trigraph.gpu.instances import INSTANCES, rank_for_compilation
from trigraph.gpu.spills import ARCHITECTURES, LocalMemoryUsage, describe_unexpected_local_memory


def list_parts(where: Device) -> list[str]:
    """Return the names of the parts: a first call, and all kernels."""
    return ["first call", "kernels"]


def run_part(part: str, where: Device, notes: Notes) -> None:
    """Compile the kernels of a first call, or all kernels, and note times and findings."""
    (_time_first_and_second_call if part == "first call" else _compile_all_instances)(where, notes)


def _time_first_and_second_call(where: Device, notes: Notes) -> None:
    """Note the times of a small operator's first call, which compiles uncached kernels, and of its second call."""
    import trigraph

    graph = where.move_to_device(trigraph.CSC(np.array([0, 1, 2]), np.array([1, 0]), 2))
    x, w = (where.move_to_device(np.ones(shape, np.float32)) for shape in ((2, 4), (2,)))
    for name in ("first", "second"):
        begun = time.perf_counter()
        trigraph.agg_weighted_n2n_fwd(x, w, graph, backend=where.backend)
        where.synchronize()
        notes.add(f"{name} call in this process", seconds=time.perf_counter() - begun)


def compile_instance(arguments: tuple[str, str, str]) -> tuple[float, dict[str, int]]:
    """Compile one instance as the launcher does; return the seconds, registers and local memory."""
    (name, family, instance), begun = arguments, time.perf_counter()
    where = make_device(name)
    if where.rehearsal:
        library = launcher.select_runtime(np.empty(0)).library(family)  # type: ignore[attr-defined]
        assert library.family == family
        return time.perf_counter() - begun, {}
    launcher.COMPILE_AHEAD = False  # `_compile_all_instances` requests each instance
    runtime: Any = launcher.select_runtime(where.xp.empty(0))
    function = runtime.get_or_compile_function(family, instance)
    usage = {"registers": function.num_regs, "local_bytes": function.local_size_bytes}
    return time.perf_counter() - begun, usage


def _compile_all_instances(where: Device, notes: Notes) -> None:
    """Compile all instances in as many processes as there are processors."""
    names = [(where.backend, family, instance) for family, instances in INSTANCES.items() for instance in instances]
    names = names[::20] if where.rehearsal else sorted(names, key=lambda name: rank_for_compilation(name[2]))
    jobs = 1 if where.rehearsal else max(1, os.cpu_count() or 1)
    begun = time.perf_counter()
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:  # a process that has used CUDA cannot be forked
        usages = dict(zip(names, pool.map(compile_instance, names), strict=True))
    slowest = max(usages, key=lambda name: usages[name][0])
    notes.add(
        "kernels are compiled",
        True,
        number=len(usages),
        processes=jobs,
        seconds=time.perf_counter() - begun,
        slowest=f"{slowest[-1]}, {usages[slowest][0]:.2f} s",
    )
    if not where.rehearsal:
        _note_unlisted_local_memory(where, notes, {name: usage for (_, _, name), (_, usage) in usages.items()})


def _note_unlisted_local_memory(where: Device, notes: Notes, usages: Mapping[str, Mapping[str, int]]) -> None:
    """Note the kernels that use local memory (stack or spills) although `gpu/spills.py` does not list them."""
    over = describe_unexpected_local_memory({n: LocalMemoryUsage(u["local_bytes"], 0) for n, u in usages.items()})
    most = max(usages, key=lambda name: usages[name]["registers"])
    notes.add(
        "only kernels on the list use local memory",
        not over if where.architecture() in ARCHITECTURES else None,  # the list exists for some architectures only
        "; ".join(over[:10]),
        number=len(usages),
        over=over,
        registers=f"{most}, {usages[most]['registers']}",
    )
