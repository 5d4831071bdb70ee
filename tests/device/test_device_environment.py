"""Tests that all kernels compile for the device, and that only the listed ones use local memory."""

import os
import shutil
import subprocess
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

from trigraph.environment import list_tf32_warnings
from trigraph.gpu import launcher
from trigraph.gpu.instances import INSTANCES, rank_for_compilation
from trigraph.gpu.spills import ARCHITECTURES, may_use_local_memory

QUERY = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit,mig.mode.current"


def compile_kernel(arguments):
    """Compile a kernel instance as the launcher does; return its seconds, registers and bytes of local memory."""
    (rehearsal, family, instance), begun = arguments, time.perf_counter()
    if rehearsal:
        assert launcher.select_runtime(np.empty(0)).library(family).family == family
        return {"seconds": time.perf_counter() - begun, "registers": 0, "local_bytes": 0}
    import cupy

    launcher.COMPILE_AHEAD = False  # compile only this instance
    function = launcher.select_runtime(cupy.empty(0)).get_or_compile_function(family, instance)
    usage = {"registers": function.num_regs, "local_bytes": function.local_size_bytes}
    return {"seconds": time.perf_counter() - begun, **usage}


def list_unlisted_spills(usages):
    """Return the kernels that use local memory (for a stack or spills) without being listed."""
    return [f"{n}: {u}" for n, u in usages.items() if u["local_bytes"] and not may_use_local_memory(n)]


def test_kernels_compile_without_unlisted_spills(target, record_property):
    """All instances are compiled into CuPy's cache, using one process per processor."""
    names = [(target.rehearsal, family, instance) for family, several in INSTANCES.items() for instance in several]
    names = names[::20] if target.rehearsal else sorted(names, key=lambda name: rank_for_compilation(name[2]))
    begun = time.perf_counter()
    with ProcessPoolExecutor(1 if target.rehearsal else os.cpu_count(), get_context("spawn")) as pool:
        usages = dict(zip((name for *_, name in names), pool.map(compile_kernel, names), strict=True))
    record_property("compilation", {"number": len(usages), "seconds": time.perf_counter() - begun})
    for what in ("seconds", "registers"):
        most = max(usages, key=lambda name: usages[name][what])
        record_property(f"most {what}", f"{most}: {usages[most][what]}")
    spills = list_unlisted_spills(usages)
    if not target.rehearsal and target.architecture() not in ARCHITECTURES:
        pytest.skip(f"kernels are compiled; spills on {target.architecture()} are unknown: {spills}")
    assert spills == []


def test_no_setting_enables_tf32(target, record_property):
    """No CuPy or CUDA setting enables TF32; clocks and free memory are recorded."""
    record_property("free bytes", target.measure_free_bytes())
    if not target.rehearsal:
        record_property("NVRTC", target.xp.cuda.nvrtc.getVersion())
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        record_property(QUERY, done.stdout + done.stderr)
    assert list_tf32_warnings() == []
