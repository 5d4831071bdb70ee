"""The asan build: AddressSanitizer and UBSan see arrays, shared memory and the stacks of fibers."""

import re

import pytest
from host_kernels import library

SETUP = """
import numpy as np
from trigraph.gpu.launcher import runtime, using_host_library, KernelError
def launch(family, kernel, types, grid, block, *args, shared_mem=0):
    runtime(np.empty(0)).launch(family, kernel, types, grid, block, args, shared_mem)
def floats(size):
    return np.zeros(size, np.float32)
"""

RIGHT = """
for order in ("forward", "reverse", "random"):
    with using_host_library({primitives!r}, order):
        x, sums = np.ones(1000, np.float32), floats(4)
        launch("primitives", "block_sum", (x.dtype,), (4,), (256,), x, sums, np.int32(1000))
        assert sums.sum() == 1000
        out, fresh = np.zeros((2, 128)), np.zeros((2, 128), np.int32)
        launch("primitives", "static_memory", (out.dtype, 16), (2,), (128,), out, fresh)
        launch("primitives", "dynamic_memory", (out.dtype,), (2,), (128,), out, shared_mem=1024)
        launch("primitives", "own_collective", (), (1,), (64,), np.ones((64, 4), np.float32), floats((64, 4)))
    with using_host_library({faults!r}, order):
        for _ in range(2):  # abandoned threads leave nothing poisoned behind
            try:
                launch("faults", "deadlock", (False,), (1,), (64,), floats(64))
            except KernelError:
                launch("faults", "outside_local", (True,), (1,), (64,), floats(64), np.int32(7))
            else:
                raise AssertionError
        launch("faults", "misaligned", (True,), (1,), (1,), floats(8), floats(1))
print("all right")
"""

#: kernel -> the launch, what the report says
WRONG = {
    "read_outside": ("(1,), (64,), floats(64), floats(64)", "heap-buffer-overflow"),
    "write_outside": ("(1,), (64,), floats(64)", "heap-buffer-overflow"),
    "outside_shared": ("(1,), (64,), floats(64), np.int32(1)", "heap-buffer-overflow"),
    "outside_dynamic": ("(1,), (64,), floats(64), shared_mem=256", "heap-buffer-overflow"),
    "outside_local": ("(1,), (64,), floats(64), np.int32(7)", "insufficient space|stack-buffer-overflow"),
    "misaligned": ("(1,), (1,), floats(8), floats(1)", "misaligned address"),
}


def test_right_kernels(run_asan):
    paths = {family: str(library(family, "asan")) for family in ("primitives", "faults")}
    status, output, report = run_asan(SETUP + RIGHT.format(**paths))
    assert (status, output) == (0, "all right\n"), report


@pytest.mark.parametrize("kernel", WRONG)
def test_wrong_kernels(run_asan, kernel):
    launch, says = WRONG[kernel]
    code = f"with using_host_library({str(library('faults', 'asan'))!r}):\n"
    code += f"    launch('faults', {kernel!r}, (False,), {launch})\n"
    status, _, report = run_asan(SETUP + code)
    assert status != 0
    assert re.search(says, report), report
    assert "faults.cu:" in report
