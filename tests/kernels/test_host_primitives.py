"""Every emulated primitive against NumPy, in each build and each order of threads."""

import numpy as np
import pytest
from scipy.special import erf

from trigraph.gpu.launcher import KernelError, runtime

LANES = np.arange(32)
FULL = 0xFFFFFFFF
MASKS = [FULL, 0x0000FFFF, 0x80000001, 0x12345678]
F4, F8, I4, I8 = (np.dtype(t) for t in ("f4", "f8", "i4", "i8"))


def launch(kernel, types, grid, block, *args, shared_mem=0):
    runtime(np.empty(0)).launch("primitives", kernel, types, grid, block, args, shared_mem)


@pytest.mark.usefixtures("with_primitives")
class TestThreads:
    @pytest.mark.parametrize(
        ("grid", "block"), [((1,), (1,)), ((5,), (7,)), ((2, 3), (4, 5)), ((2, 3, 4), (3, 2, 5)), ((3,), (1024,))]
    )
    def test_geometry(self, grid, block):
        blocks, threads = int(np.prod(grid)), int(np.prod(block))
        out = np.full((blocks, threads, 3), -1, np.int32)
        launch("geometry", (), grid, block, out)
        assert (out[..., 0] == np.arange(blocks)[:, None]).all()
        assert (out[..., 1] == np.arange(threads)).all()
        assert (out[..., 2] == 32).all()

    def test_no_arguments(self):
        launch("no_arguments", (), (3,), (96,))

    def test_scalars_and_null_pointer(self):
        out = np.zeros(6)
        values = np.bool_(True), np.int32(-7), np.int64(2**53 - 1), np.float32(0.1), np.float64(0.1), None
        launch("scalars", (), (1,), (1,), out, *values)
        assert out.tolist() == [1, -7, 2**53 - 1, float(np.float32(0.1)), 0.1, 1]

    @pytest.mark.parametrize("dtype", [F4, F8])
    def test_block_sum(self, dtype):
        x = np.random.default_rng(0).integers(-50, 50, 5000).astype(dtype)  # sums are exact
        sums = np.empty(10, dtype)
        launch("block_sum", (dtype,), (10,), (512,), x, sums, np.int32(5000))
        assert (sums == [part.sum() for part in np.array_split(np.pad(x, (0, 120)), 10)]).all()


@pytest.mark.usefixtures("with_primitives")
class TestWarps:
    @pytest.mark.parametrize("dtype", [F4, F8, I4, I8])
    @pytest.mark.parametrize("width", [1, 2, 8, 32])
    def test_shuffles(self, dtype, width):
        x = (np.random.default_rng(1).standard_normal(64) * 1e8).astype(dtype)
        for operand in (0, 1, 5, 17, 31, 33):
            out = np.zeros((64, 4), dtype)
            launch("shuffles", (dtype,), (1,), (64,), x, out, np.uint32(FULL), np.int32(operand), np.int32(width))
            first, delta = LANES // width * width, operand % 32
            up, down, other = LANES - delta, LANES + delta, LANES ^ delta
            source = np.stack(
                [
                    first + delta % width,
                    np.where(up < first, LANES, up),
                    np.where(down < first + width, down, LANES),
                    np.where(other < first + width, other, LANES),
                ],
                axis=1,
            )
            assert (out[:32] == x[:32][source]).all()
            assert (out[32:] == x[32:][source]).all()

    @pytest.mark.parametrize("dtype", [F4, F8, I4, I8])
    @pytest.mark.parametrize("mask", MASKS)
    def test_votes(self, dtype, mask):
        x = np.random.default_rng(2).integers(-1, 3, 64).astype(dtype)
        x[:32] = np.abs(x[:32]) + 1  # all positive in the first warp
        out = np.zeros((64, 4), np.uint32)
        launch("votes", (dtype,), (1,), (64,), x, out, np.uint32(mask))
        inside = (mask >> LANES & 1).astype(bool)
        for warp in (slice(0, 32), slice(32, 64)):
            votes = inside & (x[warp] > 0)
            same = (x[warp][:, None] == x[warp]) & inside
            expected = np.empty((32, 4), np.int64)
            expected[:, 0] = (votes << LANES).sum()
            expected[:, 1] = votes.any()
            expected[:, 2] = votes.sum() == inside.sum()
            expected[:, 3] = (same << LANES).sum(axis=1)
            assert (out[warp] == np.where(inside[:, None], expected, 0)).all()

    def test_two_groups_wait_at_once(self):
        out = np.zeros(32, np.int32)
        launch("two_groups", (), (1,), (32,), out)
        assert (out == np.where(LANES % 2 == 0, LANES[::2].sum(), LANES[1::2].sum())).all()

    def test_own_collective(self):
        x = np.random.default_rng(3).integers(-50, 50, (64, 4)).astype(np.float32)
        out = np.zeros((64, 4), np.float32)
        launch("own_collective", (), (1,), (64,), x, out)
        assert (out == np.repeat([x[:32].sum(0), x[32:].sum(0)], 32, axis=0)).all()


@pytest.mark.usefixtures("with_primitives")
class TestMemory:
    @pytest.mark.parametrize("dtype", [F4, F8])
    def test_static(self, primitives, dtype):
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
    def test_dynamic(self, dtype):
        out = np.zeros((3, 128), dtype)
        launch("dynamic_memory", (dtype,), (3,), (128,), out, shared_mem=128 * dtype.itemsize)
        assert (out == 127 - np.arange(128) + np.arange(3)[:, None]).all()

    @pytest.mark.parametrize("name", ["int", "unsigned int", "unsigned long long"])
    def test_atomics(self, with_primitives, order, name):
        dtype = {"int": np.int32, "unsigned int": np.uint32, "unsigned long long": np.uint64}[name]
        count = np.zeros(8, dtype)
        count[2], count[3] = 100, np.array(-1).astype(dtype)
        with_primitives.launch(f"atomics<{name}>", (1,), (31,), (count,), 0, order, 0)
        ones = 2**31 - 1
        assert (count == np.array([31, 30, 0, ~ones, ones, ones, 5, 7]).astype(dtype)).all()

    @pytest.mark.parametrize("dtype", [np.int32, np.uint32])
    def test_atomic_subtraction(self, dtype):
        count = np.array([500], dtype)
        launch("subtraction", (), (1,), (31,), *(count if dtype is kind else None for kind in (np.int32, np.uint32)))
        assert count[0] == 35

    def test_vectors(self):
        x, y = np.arange(128, dtype=np.float32).reshape(32, 4), np.zeros((32, 4), np.float32)
        a, b = np.arange(64.0).reshape(32, 2), np.zeros((32, 2))
        launch("vectors", (), (1,), (32,), x, y, a, b)
        assert (y == x[:, ::-1] * [1, 1, 1, 2]).all()
        assert (b == a[:, ::-1]).all()

    @pytest.mark.parametrize("dtype", [F4, F8])
    def test_cached_loads(self, dtype):
        x, y = np.arange(32).astype(dtype), np.zeros(32, dtype)
        launch("cached", (dtype,), (1,), (32,), x, y)
        assert (y == 2 * x).all()


@pytest.mark.usefixtures("with_primitives")
class TestFunctions:
    def test_float(self):
        x = np.array([0.3, 1.0, 1.7, 2.5], np.float32)
        out = np.zeros((4, 26), np.float32)
        launch("float_functions", (), (1,), (4,), x, out)
        v, tenth = x.astype(float), float(np.float32(0.1))
        square = (v * v - 1).astype(np.float32)  # exact in double, rounded once
        rest = np.tanh(v) + erf(v) + np.sqrt(v) + np.exp(v) + 2 * v
        columns = [v**-0.5, v**-0.5, np.exp(v), np.log(v), np.log2(v), np.sin(v), np.cos(v), np.tan(v), v**1.5]
        columns += [np.sin(v), np.cos(v), v / 3, 1 / v, np.sqrt(v), v + tenth, v - tenth, v * tenth, v / tenth]
        columns += [square, square, np.maximum(v, 1), np.minimum(v, 1), v, v, rest, np.ones(4)]
        error = np.abs(out - np.stack(columns, axis=1))
        assert (error <= 3e-7 * np.maximum(1, np.abs(out))).all()
        assert (out[:, 18] == square).all()
        assert (out[:, 19] == square).all()

    def test_minimum_and_maximum_ignore_nan(self):
        x, out = np.array([np.nan], np.float32), np.zeros((1, 26), np.float32)
        launch("float_functions", (), (1,), (1,), x, out)
        assert out[0, 20:22].tolist() == [1, 1]
        assert out[0, 25] == 1

    def test_double(self):
        x = np.array([0.3, 1.0, 1.7, 2.5])
        out = np.zeros((4, 10))
        launch("double_functions", (), (1,), (4,), x, out)
        columns = [x**-0.5, x + 0.1, x - 0.1, x * 0.1, x / 0.1, out[:, 5], out[:, 5]]
        columns += [np.maximum(x, 1), np.minimum(x, 1), x]
        assert (np.abs(out - np.stack(columns, axis=1)) <= 4e-16 * np.abs(out)).all()
        extended = np.array(x, np.longdouble)
        assert (np.abs(out[:, 5] - (extended * extended - 1)) <= 2e-16).all()  # one rounding

    def test_integer(self):
        x = np.array([0, 1, -1, 6, -(2**31), 2**31 - 1, 40], np.int32)
        out = np.zeros((7, 10), np.int64)
        launch("integer_functions", (), (1,), (7,), x, out)
        for v, row in zip(x.tolist(), out.tolist(), strict=True):
            word, wide = v % 2**32, (v << 20) % 2**64
            lowest = [(n & -n).bit_length() for n in (word, wide)]
            expected = [word.bit_count(), wide.bit_count(), *lowest, 32 - word.bit_length(), 64 - wide.bit_length()]
            expected += [min(v, 3), max(v, 3), (v << 20) + 3, (min(word, 3) + max(wide, 3) + 2**63) % 2**64 - 2**63]
            assert row == expected
