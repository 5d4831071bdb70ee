"""Tests of products of bfloat16 parts (kernels/tensor.cuh) in gpu-host, which truncates more than real tensor cores."""

import numpy as np
import pytest
from host_kernels import build_test_library

from trigraph.gpu.instances import TENSOR_VARIABLE
from trigraph.gpu.launcher import select_runtime, using_host_library
from trigraph.gpu.sums import KernelLauncher

EPS = np.finfo(np.float32).eps


def multiply_fragments(left, right, repeated=1, variant="fast"):
    """Multiply a 16 x 16 by a 16 x 8 matrix; return sums, the parts of left[0, 0], and whether to recompute."""
    sums, parts, redo = np.empty((16, 8), np.float32), np.empty(3, np.float32), np.empty(1, np.int32)
    with using_host_library(build_test_library("tensor", variant), "random", seed=5):
        arguments = {"left": left, "right": right, "repeated": repeated, "sums": sums, "parts": parts, "redo": redo}
        select_runtime(sums).launch("tensor", "multiply_on_tensor_cores", (), (1,), (32,), **arguments)
    return sums, parts, bool(redo[0])


def draw_factors(spread=0):
    """Return random 16 x 16 and 16 x 8 matrices; their binary exponents vary by up to +-`spread`."""
    rng = np.random.default_rng(3)
    sizes = (16, 16), (16, 8)
    return [(rng.normal(size=s) * 2.0 ** rng.integers(-spread, spread + 1, s)).astype(np.float32) for s in sizes]


def compute_largest_error(sums, left, right, repeated=1):
    """Return the largest error in units of eps times the sum of |terms|."""
    exact = repeated * (left.astype(float) @ right)
    return np.max(np.abs(sums - exact) / (repeated * (abs(left.astype(float)) @ abs(right)))) / EPS


@pytest.mark.parametrize("variant", ["fast", "race"])
def test_tensor_products_are_accurate_within_3_eps(variant):
    """Errors are at most 3 eps; a mistake in a lane, part or depth would cause errors above 100 eps."""
    for spread in (0, 4, 40):
        left, right = draw_factors(spread)
        sums, _, redo = multiply_fragments(left, right, variant=variant)
        assert not redo
        assert compute_largest_error(sums, left, right) <= 3


def test_long_sums_do_not_accumulate_truncation():
    """Running sums are rounded to nearest, since truncation errors would accumulate."""
    left, right = (abs(x) for x in draw_factors())
    assert compute_largest_error(multiply_fragments(left, right, 16)[0], left, right, 16) <= 3
    for number in (1 / 3, 1.0 + 2.0**-23, 2.0 - 2.0**-23, 1.0 + 2.0**-8 - 2.0**-23):
        left, right = np.full((16, 16), number, np.float32), np.full((16, 8), number, np.float32)
        for repeated in (1, 16):
            assert compute_largest_error(multiply_fragments(left, right, repeated)[0], left, right, repeated) <= 3


def test_parts_represent_numbers_exactly():
    left, right = draw_factors()
    right[0] *= 2.0**-10  # prevents overflow
    for number in (1.0, -1 / 3, 2.0**-100 * (1 + 2.0**-23), 2.0 - 2.0**-23, 3e38, 0.0, 2.0**-130):
        left[0, 0] = number
        _, parts, redo = multiply_fragments(left, right)
        assert parts.astype(float).sum() == np.float32(number)
        assert (parts.view(np.uint32) & 0xFFFF == 0).all()
        assert not redo


def test_unrepresentable_numbers_set_redo():
    """Sums with a number that bfloat16 parts cannot represent become NaN; other sums are bitwise unchanged."""
    left, right = draw_factors()
    before, _, _ = multiply_fragments(left, right)
    for number in (np.inf, -np.inf, np.nan, np.finfo(np.float32).max, 2.0**-120 * (1 + 2.0**-23), 1e-45):
        for row, col in ((3, None), (None, 2)):
            changed = left.copy(), right.copy()
            changed[row is None][row if col is None else 5, 7 if col is None else col] = number
            sums, _, redo = multiply_fragments(*changed)
            assert redo
            affected = (np.arange(16) == row)[:, None] | (np.arange(8) == col)
            assert np.isnan(sums[affected]).all()
            assert sums[~affected].tobytes() == before[~affected].tobytes()
    sums, _, redo = multiply_fragments(np.full_like(left, 1e20), np.full_like(right, 1e20))
    assert redo
    assert not np.isfinite(sums).any()


def test_environment_selects_tensor_cores(monkeypatch):
    """Tensor cores are used only for float32, and only if the environment variable is 1."""
    single, double = (KernelLauncher("gemnet", np.empty(0, dtype)) for dtype in (np.float32, np.float64))
    for value, name in ((None, "multiply"), ("", "multiply"), ("0", "multiply"), ("1", "multiply_tensor")):
        monkeypatch.delenv(TENSOR_VARIABLE, raising=False)
        if value is not None:
            monkeypatch.setenv(TENSOR_VARIABLE, value)
        assert (single.select_tensor_variant("multiply"), double.select_tensor_variant("multiply")) == (
            name,
            "multiply",
        )
    monkeypatch.setenv(TENSOR_VARIABLE, "yes")
    with pytest.raises(ValueError, match="TRIGRAPH_TENSOR_CORES is 'yes'; expected 0 or 1"):
        single.select_tensor_variant("multiply")
