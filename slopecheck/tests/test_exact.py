"""Dot products and differences equal the exact results, rounded once, for numbers of any size."""

import math
from fractions import Fraction

import numpy as np
import pytest

from slopecheck.exact import dot_with_magnitude, subtract_with_error


def dot_by_fractions(a, b):
    """Return the sum of the products and the sum of their magnitudes, as fractions."""
    products = [Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a, b, strict=True)]
    return sum(products, Fraction(0)), sum(map(abs, products), Fraction(0))


def round_to_float64(value):
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


@pytest.mark.parametrize("spread", [0, 40, 300, 480, 1000], ids="2^{}".format)
def test_dot_equals_the_exact_result(spread):
    """Dot products are exact for products that nearly cancel and for numbers of very different size."""
    rng = np.random.default_rng(spread)
    sizes = np.exp2(rng.integers(-spread, spread + 1, 50))
    a, b = rng.standard_normal(50) * sizes, rng.standard_normal(50) * (1 / sizes if spread > 400 else sizes)
    a, b = np.concatenate([a, a, [1.0]]), np.concatenate([b, -b * (1 + 2.0**-50 * rng.integers(-2, 3, 50)), [2.0**-60]])
    assert dot_with_magnitude([a[:30].reshape(5, 6), a[30:]], [b[:30].reshape(5, 6), b[30:]]) == tuple(
        map(float, dot_by_fractions(a, b))
    )


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([], []),
        ([0.0, 0.0], [5.0, 1e308]),
        ([1e200, 1.0], [1e200, 1.0]),  # the sum overflows
        ([1e200, -1e200, 3e155], [1e200, 1e200, 5e-5]),  # products overflow and cancel
        ([1e-200, 1e-200], [1e-200, -1e-200]),
        ([5e-324, 1.7e308, 3e-320], [1.0, 1e-308, 0.3]),
        ([2.0**-600, 2.0**-560], [2.0**-440, 2.0**-500]),  # products are subnormal
    ],
)
def test_dot_is_exact_near_overflow_and_underflow(a, b):
    assert dot_with_magnitude([np.array(a)], [np.array(b)]) == tuple(map(round_to_float64, dot_by_fractions(a, b)))


def test_dot_propagates_nan_and_infinity():
    assert all(map(math.isnan, dot_with_magnitude([np.array([math.nan, 1.0])], [np.ones(2)])))
    assert dot_with_magnitude([np.array([-math.inf, 1.0])], [np.ones(2)]) == (-math.inf, math.inf)
    assert math.isnan(dot_with_magnitude([np.array([math.inf, -math.inf])], [np.ones(2)])[0])


def test_difference_equals_the_exact_result():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 100)) * np.exp2(rng.integers(-60, 60, (2, 100)))
    for high, low, x, y in zip(*subtract_with_error(a, b), a, b, strict=True):
        assert Fraction(float(high)) + Fraction(float(low)) == Fraction(float(x)) - Fraction(float(y))
    high, low = subtract_with_error(np.array([math.inf, 1e308]), np.array([1.0, -1e308]))
    assert (high == math.inf).all()
    assert (low == 0).all()
