"""The judge: the Fortran reference in real128, which also computes the scales of the accuracy rule.

Functions have the names and signatures of the operator table, but every floating-point array has a leading axis: inputs
have the shape ``(2, ...)`` and represent hi + lo; outputs have the shape ``(3, ...)`` and contain hi, lo and scale, the
sum of |terms|. Third derivatives (`X_bwd3`) are obtained by evaluating `X_bwd` and `X_bwd2` with dual numbers.
"""

import importlib
from types import ModuleType

import numpy as np

from trigraph.fortran.binding import make_backend_functions


def _load_judge_module() -> ModuleType:
    return importlib.import_module("trigraph.fortran._judge")


FUNCTIONS = make_backend_functions("judge", _load_judge_module)
globals().update(FUNCTIONS)


def make_exact_pair(values: np.ndarray, step: float = 0.0, direction: np.ndarray | None = None) -> np.ndarray:
    """Return ``values + step * direction`` without rounding, as a pair of shape (2, ...), by Knuth's two-sum.

    The step must be a power of two, so that its product with the direction is exact.
    """
    x = np.asarray(values, np.float64)
    y = np.zeros_like(x) if direction is None else step * np.asarray(direction, np.float64)
    hi = x + y
    with np.errstate(invalid="ignore"):  # because inf - inf is NaN for infinite values
        part = hi - x
        return np.stack([hi, np.where(np.isfinite(hi), (x - (hi - part)) + (y - part), 0)])


def compute_dot_and_scale(a: np.ndarray, b: np.ndarray) -> tuple[float, float, float]:
    """Return hi, lo and scale of ``sum(a * b)``, computed in real128 from the pairs `a` and `b`."""
    total = np.zeros(3)
    if a.shape[1:] != b.shape[1:]:
        raise ValueError(f"dot: shapes {a.shape[1:]} and {b.shape[1:]} differ")
    if a.size:
        _load_judge_module().dot(a.reshape(2, -1).T, b.reshape(2, -1).T, total)
    return float(total[0]), float(total[1]), float(total[2])
