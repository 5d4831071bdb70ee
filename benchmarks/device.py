"""Clock, memory and peak rate of a CUDA device, in place of those of the host."""

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from trigraph.benchmarks.programs import Call

GATHER = Path(__file__).resolve().parent / "gather.cu"
CHUNK, WIDTH, BLOCK = 16, 64, 256  # rows of a sum, and numbers of a row, in gather.cu; threads of a block


def make_on_device(make: Callable[[], Call]) -> Call:
    """Make a program's call with CUDA as torch's default device."""
    import torch

    with torch.device("cuda"):
        return make()


def wait_for_device() -> None:
    """Wait for all that the device has been given."""
    import cupy

    cupy.cuda.Device().synchronize()


def measure_peak_memory(call: Call) -> tuple[dict[str, Any], int]:
    """Run once; return the results and how many bytes more of the device are taken: pools keep what they have had."""
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
    """Return a call that reads rows of 256 bytes at random, four times as many as there are, and adds up chunks."""
    import cupy

    function = cupy.RawModule(code=GATHER.read_text(encoding="utf-8"), options=("-std=c++17",)).get_function(
        "gather_ceiling"
    )
    table, count = cupy.ones((rows, WIDTH), np.float32), 4 * rows
    index = cupy.asarray(np.random.default_rng(0).integers(0, rows, count).astype(np.int32))
    groups = -(-count // CHUNK)
    out = cupy.empty((groups, WIDTH), np.float32)
    grid, arguments = (-(-groups * CHUNK // BLOCK),), (table, index, out, np.int64(count))
    return lambda: function(grid, (BLOCK,), arguments) or {}
