"""How the results of a case are compared with the readable panel's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["ROUNDINGS", "close", "close_fields"]

# The largest errors of all cases on gpu-host are 130 eps of the largest value in float32 (the second order of a mean,
# whose divisor is a sum of weights that nearly cancel) and 58 in float64. A term of a sum that is lost or counted
# twice, as after a race, is mostly a thousandth of that value or more: 8,000 eps of float32. This number lies between.
ROUNDINGS = 200


def close(what: str, mine: Any, right: Any, factor: float = ROUNDINGS) -> None:
    """Assert that the same numbers are finite, and within `factor` eps of the largest value; None is None."""
    if right is None or mine is None:
        assert right is mine, what
        return
    eps = 2.0**-7 if mine.dtype.name == "bfloat16" else np.finfo(mine.dtype).eps
    mine, finite = mine.astype(np.float64), np.isfinite(right)
    assert (np.isfinite(mine) == finite).all(), what
    error = np.abs(mine[finite] - right[finite]).max(initial=0)
    bound = factor * eps * np.abs(right[finite]).max(initial=0)
    assert error <= bound, f"{what}: {error} > {bound}"


def close_fields(
    name: str, got: Mapping[str, Sequence[Any]], expected: Mapping[str, Sequence[Any]]
) -> dict[str, np.ndarray]:
    """Compare the fields of every operator; return those there are, by name."""
    found = {}
    for operator, fields in expected.items():
        for k, (mine, right) in enumerate(zip(got[operator], fields, strict=True)):
            what = f"{name}: {operator}, field {k}"
            close(what, mine, right)
            if mine is not None:
                found[what] = mine
    return found
