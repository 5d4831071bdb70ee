"""Sums of products without rounding errors: `math.fsum` adds the two-products of T. J. Dekker (1971)."""

import math
from collections.abc import Sequence

import numpy as np

SMALL = 2.0**-400  # products of larger numbers and the rounding errors of these products do not underflow
MANY = 512  # up to this many numbers, Python's sum is as fast as NumPy's
SPLITTER = 2.0**27 + 1  # splits a float64 into two halves of 26 bits each (G. W. Veltkamp)


def subtract_with_error(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a - b as a rounded array and its rounding error (D. E. Knuth's two-sum; the error of infinities is 0)."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = a - b
        part = rounded - a
        return rounded, np.where(np.isfinite(rounded), (a - (rounded - part)) - (b + part), 0.0)


def dot_with_magnitude(left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return the sum of all products of elements, and the sum of their magnitudes, each rounded once to float64.

    Parameters
    ----------
    left, right : sequence of ndarray
        Arrays of equal shapes, of any floating dtype.

    Notes
    -----
    Mantissas are multiplied and exponents added separately, so that no product overflows or underflows. Terms below
    2^-1074 times the largest product are lost. Sums beyond the range of float64 are infinite; if a number is not
    finite, the results are NumPy's sums.
    """
    a, b = (np.concatenate([np.zeros(0), *(np.ravel(x) for x in arrays)]) for arrays in (left, right))
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        with np.errstate(all="ignore"):
            return float(np.sum(a * b)), float(np.sum(abs(a * b)))
    some = (a != 0) & (b != 0)
    if not some.any():
        return 0.0, 0.0
    a, b = (a, b) if some.all() else (a[some], b[some])
    if all(abs(x).min() > SMALL and abs(x).max() < 1 / SMALL for x in (a, b)):
        product, error = _multiply_with_error(a, b)
        if a.size > MANY:
            return _sum_exactly(product, float(np.sum(error))), float(np.sum(abs(product)))
        return _sum_exactly(np.concatenate([product, error])), _sum_exactly(
            np.concatenate([abs(product), error * np.sign(product)])
        )
    (a, i), (b, j) = np.frexp(a), np.frexp(b)
    product, error = _multiply_with_error(a, b)
    largest = int((i + j).max())
    with np.errstate(over="ignore", under="ignore"):
        terms = np.ldexp([product, error], i + j - largest)
        sizes = np.copysign(1.0, product) * terms
        total, size = (_sum_exactly(part.ravel()) for part in (terms, sizes))
        return float(np.ldexp(total, largest)), float(np.ldexp(size, largest))


def _sum_exactly(terms: np.ndarray, *lacking: float) -> float:
    """Return the sum of finite numbers; for more than `MANY`, the total of their rounding errors is itself rounded."""
    while terms.size > MANY:
        half = terms.size // 2
        a, b = terms[:half], terms[half : 2 * half]
        rounded = a + b
        part = rounded - a
        lacking += (float(np.sum((a - (rounded - part)) + (b - part))),)
        terms = np.concatenate([rounded, terms[2 * half :]])
    return math.fsum([*terms.tolist(), *lacking])


def _multiply_with_error(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rounded products of elements, and their exact rounding errors."""
    product = a * b
    (high_a, low_a), (high_b, low_b) = _split_mantissas(a), _split_mantissas(b)
    return product, low_a * low_b - (((product - high_a * high_b) - low_a * high_b) - high_a * low_b)


def _split_mantissas(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scaled = SPLITTER * a
    high = scaled - (scaled - a)
    return high, a - high
