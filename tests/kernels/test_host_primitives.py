"""Emulated primitives against NumPy, in each build and each order of threads."""

import numpy as np
import pytest

from trigraph.gpu.launcher import KernelError, runtime

pytestmark = pytest.mark.usefixtures("with_primitives")
F4, F8 = np.dtype("f4"), np.dtype("f8")


def launch(kernel, types, grid, block, *args, shared_mem=0):
    runtime(np.empty(0)).launch("primitives", kernel, types, grid, block, args, shared_mem)


def test_scalars_and_null_pointer():
    out = np.zeros(6)
    values = np.bool_(True), np.int32(-7), np.int64(2**53 - 1), None, np.float32(0.1), np.float64(0.1)
    launch("scalars", (), (1,), (1,), out, *values)
    assert out.tolist() == [1, -7, 2**53 - 1, 1, float(np.float32(0.1)), 0.1]


@pytest.mark.parametrize("dtype", [F4, F8])
def test_static(primitives, dtype):
    out, fresh = np.zeros((3, 128), dtype), np.zeros((3, 128), np.int32)
    if "race" in primitives.path.name:  # the kernel looks at what nobody wrote, on purpose
        with pytest.raises(KernelError, match="uninitialised: reads count"):
            launch("static_memory", (dtype, 16), (3,), (128,), out, fresh)
        return
    launch("static_memory", (dtype, 16), (3,), (128,), out, fresh)
    thread = np.arange(128)
    assert fresh.all()
    assert (out == (127 - thread) + 100 * (thread % 16) + 9 + 63.5).all()


@pytest.mark.parametrize("dtype", [F4, F8])
def test_dynamic(dtype):
    out = np.zeros((3, 128), dtype)
    launch("dynamic_memory", (dtype,), (3,), (128,), out, shared_mem=128 * dtype.itemsize)
    assert (out == 127 - np.arange(128) + np.arange(3)[:, None]).all()
