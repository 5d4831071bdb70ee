"""Timing, peak memory and the peak rate of gathers on a CUDA device."""

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from trigraph.benchmarks.programs import Call

GATHER = Path(__file__).resolve().parent / "gather.cu"
CHUNK, WIDTH, BLOCK = 16, 64, 256  # constants of gather.cu: rows per sum, numbers per row, threads per block


def make_on_device(make: Callable[[], Call]) -> Call:
    """Create a program's call with CUDA as torch's default device."""
    import torch

    with torch.device("cuda"):
        return make()


def wait_for_device() -> None:
    """Wait until the device has finished all submitted work."""
    import cupy

    cupy.cuda.Device().synchronize()


def measure_peak_memory(call: Call) -> tuple[dict[str, Any], int]:
    """Run once; return the results and the decrease of free device memory in bytes (memory pools keep their peak)."""
    import cupy

    gc.collect()
    cupy.get_default_memory_pool().free_all_blocks()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()
    before = cupy.cuda.runtime.memGetInfo()[0]
    results = call()
    wait_for_device()
    return results, before - cupy.cuda.runtime.memGetInfo()[0]


def make_gather(rows: int) -> Call:
    """Return a call that reads 4 * rows random rows of 256 bytes and sums them in chunks."""
    import cupy

    function = cupy.RawModule(code=GATHER.read_text(encoding="utf-8"), options=("-std=c++17",)).get_function(
        "sum_gathered_rows"
    )
    table, count = cupy.ones((rows, WIDTH), np.float32), 4 * rows
    index = cupy.asarray(np.random.default_rng(0).integers(0, rows, count).astype(np.int32))
    groups = -(-count // CHUNK)
    out = cupy.empty((groups, WIDTH), np.float32)
    grid, arguments = (-(-groups * CHUNK // BLOCK),), (table, index, out, np.int64(count))
    return lambda: function(grid, (BLOCK,), arguments) or {}
