"""Tests that all kernels compile for the device, and that only the listed ones use local memory."""

import os
import shutil
import subprocess
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from trigraph.benchmarks.qualify.stages.compile import compile_instance
from trigraph.benchmarks.qualify.stages.environment import QUERY
from trigraph.environment import list_tf32_warnings
from trigraph.gpu.instances import INSTANCES, rank_for_compilation
from trigraph.gpu.spills import ARCHITECTURES, LocalMemoryUsage, describe_unexpected_local_memory


def test_kernels_compile_without_unlisted_spills(target, record_property):
    """All instances are compiled into CuPy's cache, using one process per processor."""
    names = [(target.backend, family, instance) for family, several in INSTANCES.items() for instance in several]
    names = names[::20] if target.rehearsal else sorted(names, key=lambda name: rank_for_compilation(name[2]))
    begun = time.perf_counter()
    with ProcessPoolExecutor(1 if target.rehearsal else os.cpu_count(), get_context("spawn")) as pool:
        compiled = dict(zip((name for *_, name in names), pool.map(compile_instance, names), strict=True))
    record_property("compilation", {"number": len(compiled), "seconds": time.perf_counter() - begun})
    slowest = max(compiled, key=lambda name: compiled[name][0])
    record_property("most seconds", f"{slowest}: {compiled[slowest][0]}")
    if target.rehearsal:
        return
    usages = {name: usage for name, (_, usage) in compiled.items()}
    most = max(usages, key=lambda name: usages[name]["registers"])
    record_property("most registers", f"{most}: {usages[most]}")
    spills = describe_unexpected_local_memory({n: LocalMemoryUsage(u["local_bytes"], 0) for n, u in usages.items()})
    if target.architecture() not in ARCHITECTURES:
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
