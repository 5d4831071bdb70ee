"""Arguments that are numbers."""

import math
import numbers
from typing import Any

import numpy as np

from trigraph.graphs.arrays import array_kind


def scalar_of(value: Any) -> Any:
    """Return the element of a zero-dimensional array; anything else is returned unchanged."""
    return value[()] if array_kind(value) == "numpy" and value.ndim == 0 else value


def real_number(caller: str, name: str, value: Any, positive: bool = False) -> float:
    """Return a finite number as a float; raise unless it is > 0 if `positive`, else >= 0."""
    scalar = scalar_of(value)
    if isinstance(scalar, (bool, np.bool_)) or not issubclass(type(scalar), numbers.Real):
        raise TypeError(f"{caller}: {name} is a {type(value).__name__}; expected a number")
    try:
        number = float(scalar)
    except OverflowError:  # an integer beyond the range of floats
        number = math.inf if scalar > 0 else -math.inf
    if not 0 <= number < math.inf or (positive and number == 0):
        raise ValueError(f"{caller}: {name} is {number}; expected a finite number {'above 0' if positive else '>= 0'}")
    return number
