"""Tests of the matrix products in kernels/matrices.cuh and products.cuh, with and without tensor cores."""

import numpy as np
import pytest

from trigraph.gpu.instances import set_tensor_cores
from trigraph.gpu.products import ColumnRange, multiply_chunks
from trigraph.gpu.sums import ROWS, KernelLauncher

# (rows, depth, width), with full and partial tiles in each direction and every tile width.
SHAPES = [(1, 1, 1), (127, 16, 16), (129, 33, 17), (256, 64, 32), (130, 68, 64), (65, 7, 66), (40, 100, 132)]


@pytest.fixture(params=[False, True], ids=["ordinary", "tensor"])
def tensor_cores(request):
    """Enable or disable tensor cores; return whether they are enabled."""
    with set_tensor_cores(request.param):
        yield request.param


def multiply_in_chunks(left, right):
    """Return left @ right, computed by adding partial sums of 16 consecutive terms."""
    total = np.zeros((len(left), right.shape[1]), left.dtype)
    for first in range(0, left.shape[1], 16):
        chunk_sum = np.zeros_like(total)
        for x in range(first, min(first + 16, left.shape[1])):
            chunk_sum += left[:, x, None] * right[x]
        total += chunk_sum
    return total


def assert_product_is_accurate(got, left, right, exact):
    """Assert bitwise equality with `multiply_in_chunks` if `exact`, else an error of at most 3 eps * sum |terms|."""
    if exact:
        assert got.tobytes() == multiply_in_chunks(left, right).tobytes()
        return
    terms = abs(left.astype(float)) @ abs(right.astype(float))
    assert (abs(got - left.astype(float) @ right.astype(float)) <= 3 * np.finfo(np.float32).eps * terms).all()


def draw_matrix(*shape, dtype=np.float32, shift=0):
    """Return random numbers that start `shift` elements after an aligned address."""
    memory = np.empty(np.prod(shape) + 8, dtype)
    first = -memory.ctypes.data // memory.itemsize % 4 + shift
    array = memory[first : first + np.prod(shape)].reshape(shape)
    array[...] = np.random.default_rng(shape).standard_normal(shape)
    return array


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_matmul_is_accurate_for_all_shapes(tensor_cores, dtype):
    kernels = KernelLauncher("gemnet", np.empty(0, dtype))
    exact = not tensor_cores or dtype == np.float64
    for (rows, depth, width), shift in [*((s, 0) for s in SHAPES), (SHAPES[4], 1)]:
        left = draw_matrix(rows, depth, dtype=dtype, shift=shift)
        right = draw_matrix(depth, width, dtype=dtype, shift=shift)
        out = kernels.matmul(left, right)
        assert_product_is_accurate(out, left, right, exact)
        again = kernels.matmul(left, np.asfortranarray(right), out=np.ones_like(out), add=True)
        assert again.tobytes() == (1 + out).tobytes()
        # The result of a row depends neither on the number of rows nor on non-finite values in other rows.
        others = left.copy()
        others[1::2] = np.nan
        few = kernels.matmul(others[:1].copy(), right), kernels.matmul(others, right)[::2]
        assert few[0].tobytes() == out[:1].tobytes()
        assert few[1].tobytes() == out[::2].tobytes()


def test_chunk_products_are_accurate(tensor_cores):
    kernels = KernelLauncher("gemnet", np.empty(0, np.float32))
    for rows, y, z in [(300, 4, 64), (256, 17, 33), (40, 64, 132), (257, 65, 40), (513, 130, 64), (16, 32, 130)]:
        left, right = draw_matrix(rows, y), draw_matrix(rows, z)
        wide = y > 16 and z > 32
        for number, product in enumerate(multiply_chunks(kernels, left, right)):
            part = slice(number * ROWS, (number + 1) * ROWS)
            assert_product_is_accurate(product, left[part].T, right[part], exact=wide and not tensor_cores)
        # Repeat the product with factors that are column ranges of wider matrices.
        more = [np.hstack([np.full((rows, 3), np.nan, np.float32), x, x]) for x in (left, right)]
        again = multiply_chunks(kernels, ColumnRange(more[0], 3, y), ColumnRange(more[1], 3, z))
        assert again.tobytes() == multiply_chunks(kernels, left, right).tobytes()


def test_nonfinite_rows_use_ordinary_sums(tensor_cores):
    """Rows with numbers unsuitable for tensor cores use ordinary sums; other elements are bitwise unchanged."""
    kernels = KernelLauncher("gemnet", np.empty(0, np.float32))
    left, right = draw_matrix(128, 64), draw_matrix(64, 64)
    before = kernels.matmul(left, right), multiply_chunks(kernels, left.T.copy(), right)[0]
    for number in (np.inf, np.nan, np.finfo(np.float32).max, 1e-40):
        changed = left.copy()
        changed[5, 20], changed[70] = number, np.float32(1e-35) * left[70]
        with np.errstate(invalid="ignore", over="ignore"):
            expected = multiply_in_chunks(changed, right)
        after = kernels.matmul(changed, right), multiply_chunks(kernels, changed.T.copy(), right)[0]
        for out, old in zip(after, before, strict=True):
            assert out[[5, 70]].tobytes() == expected[[5, 70]].tobytes()
            assert np.delete(out, [5, 70], axis=0).tobytes() == np.delete(old, [5, 70], axis=0).tobytes()
    for column in (6, 7):  # one lane computes both columns
        changed = right.copy()
        changed[20, column] = np.nan
        out = kernels.matmul(left, changed, out=np.zeros((128, 64), np.float32))
        assert np.isnan(out[:, column]).all()
        assert np.delete(out, column, axis=1).tobytes() == np.delete(before[0], column, axis=1).tobytes()
