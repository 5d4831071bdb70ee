"""Emulated primitives against NumPy, in each build and each order of threads."""

import numpy as np
import pytest

from trigraph.gpu.launcher import KernelError, runtime

pytestmark = pytest.mark.usefixtures("with_primitives")
LANES = np.arange(32)
FULL = -1
MASKS = [FULL, 0x0000FFFF, 0x80000001 - 2**32, 0x12345678]
F4, F8, I4, I8 = (np.dtype(t) for t in ("f4", "f8", "i4", "i8"))


def launch(kernel, types, grid, block, *args, shared_mem=0):
    runtime(np.empty(0)).launch("primitives", kernel, types, grid, block, args, shared_mem)


@pytest.mark.parametrize(
    ("grid", "block"), [((1,), (1,)), ((5,), (7,)), ((2, 3), (4, 5)), ((2, 3, 4), (3, 2, 5)), ((3,), (1024,))]
)
def test_geometry(grid, block):
    blocks, threads = int(np.prod(grid)), int(np.prod(block))
    out = np.full((blocks, threads, 2), -1, np.int32)
    launch("geometry", (), grid, block, out)
    assert (out[..., 0] == np.arange(blocks)[:, None]).all()
    assert (out[..., 1] == np.arange(threads)).all()


def test_scalars_and_null_pointer():
    out = np.zeros(6)
    values = np.bool_(True), np.int32(-7), np.int64(2**53 - 1), np.float32(0.1), np.float64(0.1), None
    launch("scalars", (), (1,), (1,), out, *values)
    assert out.tolist() == [1, -7, 2**53 - 1, float(np.float32(0.1)), 0.1, 1]


@pytest.mark.parametrize("dtype", [F4, F8, I4, I8])
@pytest.mark.parametrize("width", [1, 2, 8, 32])
def test_shuffles(dtype, width):
    x = (np.random.default_rng(1).standard_normal(64) * 1e8).astype(dtype)
    for operand in (0, 1, 5, 17, 31, 33):
        out = np.zeros((64, 2), dtype)
        launch("shuffles", (dtype,), (1,), (64,), x, out, np.int32(FULL), np.int32(operand), np.int32(width))
        first, other = LANES // width * width, LANES ^ operand % 32
        source = np.stack([first + operand % 32 % width, np.where(other < first + width, other, LANES)], axis=1)
        assert (out[:32] == x[:32][source]).all()
        assert (out[32:] == x[32:][source]).all()


@pytest.mark.parametrize("mask", MASKS)
def test_votes(mask):
    x = np.random.default_rng(2).integers(-1, 3, 64).astype(I4)
    x[:32] = np.abs(x[:32]) + 1  # all positive in the first warp
    out = np.zeros((64, 3), I4)
    launch("votes", (), (1,), (64,), x, out, np.int32(mask))
    inside = (mask >> LANES & 1).astype(bool)
    for warp in (slice(0, 32), slice(32, 64)):
        votes = inside & (x[warp] > 0)
        expected = [int((votes << LANES).sum()), votes.any(), votes.sum() == inside.sum()]
        assert (out[warp] == np.where(inside[:, None], np.array(expected, np.int64).astype(I4), 0)).all()


def test_two_groups_wait_at_once():
    out = np.zeros(32, np.int32)
    launch("two_groups", (), (1,), (32,), out)
    assert (out == np.where(LANES % 2 == 0, LANES[::2].sum(), LANES[1::2].sum())).all()


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


@pytest.mark.parametrize("dtype", [I4, F4, F8])
def test_minimum_and_maximum(dtype):
    """Of floating-point numbers a NaN loses."""
    x = np.array([0, 3, -7] if dtype == I4 else [0.3, 1.7, np.nan], dtype)
    out = np.zeros((3, 2), dtype)
    launch("extremes", (dtype,), (1,), (3,), x, out)
    assert (out == np.stack([np.fmax(x, 1), np.fmin(x, 1)], axis=1)).all()
