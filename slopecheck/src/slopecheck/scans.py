"""Jumps of functions of one variable: differences that do not fall as a scan is refined."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from slopecheck.tolerances import KEEPS, MARGIN

Function = Callable[[float], np.ndarray]  # maps a point to values (num_channels,)

ORDER = 4  # order of the differences that detect jumps; differences of smooth functions fall with spacing^4
SPAN = 16  # number of intervals of a window; the next window consists of `ORDER` of these intervals
LEVELS = 9  # number of nested windows, each a quarter of the previous one; a jump is located to 4e-6 of the first
# The standard deviation of fourth differences of independent errors of unit variance is sqrt(1 + 16 + 36 + 16 + 1).
SPREAD = 70.0**0.5
LAST_BITS = 2.0**-53
BESIDE = 2.0**-12  # spacing, relative to the first window, of points next to a jump that reveal rounding
NEIGHBOURS = slice(3, 9)  # stencils on each side with which a stencil of a scan is compared
STANDS_OUT = 4.0
SMOOTH = 4.0  # least ratio of a channel's change across a jump to its smooth change nearby


@dataclass(frozen=True)
class Jump:
    """A jump: its position, and the change of each channel (NaN where values are NaN).

    `jumps` marks the channels that jump; the changes of others are smooth or due to rounding.
    """

    at: float
    change: np.ndarray
    jumps: np.ndarray


def bound_difference_rounding(points: np.ndarray, values: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Return a bound on the effect of rounding on fourth differences of each channel, shape (num_channels,).

    `values` (num_points, num_channels) belong to equally spaced points; `noise` (num_channels,) is the standard
    deviation of their rounding errors. Last bits of values and points add to this noise.
    """
    slope = np.median(abs(np.diff(values, axis=0)), axis=0) / abs(points[1] - points[0])
    last_bits = LAST_BITS * (abs(values).max(axis=0) + slope * abs(points).max())
    return np.maximum(MARGIN * SPREAD * (noise + last_bits), np.finfo(float).tiny)


def locate_jump(f: Function, low: float, high: float, noise: np.ndarray, centre: float | None = None) -> Jump | None:
    """Search for a jump in a window, or only at its `centre`, by nested windows.

    Each window is the part of the previous one with the largest fourth differences. A change is a jump
    if it does not fall over the last windows and exceeds rounding: `noise`, and steps of float32 values next to it.
    """
    largest: list[float] = []
    wide = high - low
    for _ in range(LEVELS):
        points = low + (high - low) * np.arange(SPAN + 1) / SPAN
        values = np.array([f(float(t)) for t in points])
        if jump := _find_nonfinite_jump(points, values):
            return jump
        fourth = (abs(np.diff(values, ORDER, axis=0)) / bound_difference_rounding(points, values, noise)).max(axis=1)
        start = int(np.argmax(fourth)) if centre is None else (SPAN - ORDER) // 2
        largest.append(float(fourth[max(0, start - 1) : start + 2].max()))
        if not largest[-1] > 1:
            return None
        low, high = points[start], points[start + ORDER]
        change = values[start + ORDER] - values[start]
    beside = _measure_differences_beside(f, (low + high) / 2, BESIDE * wide)
    stands = (abs(np.diff(values, ORDER, axis=0)).max(axis=0) > STANDS_OUT * beside).any()
    if not (stands and largest[-1] > KEEPS**2 * largest[-3]):
        return None
    if centre is not None:  # use the largest change from the centre, to detect an isolated value
        middle = values[start + ORDER // 2]
        sides = values[[start, start + ORDER]] - middle
        change = np.where(abs(sides[0]) > abs(sides[1]), sides[0], sides[1])
    smooth = ORDER * np.sort(abs(np.diff(values, axis=0)), axis=0)[-2]  # the largest difference may contain the jump
    jumps = abs(change) > SMOOTH * smooth + bound_difference_rounding(points, values, noise)
    jumps[int(np.argmax(abs(change) / bound_difference_rounding(points, values, noise)))] |= not jumps.any()
    return Jump(float((low + high) / 2), change, jumps)


def _find_nonfinite_jump(points: np.ndarray, values: np.ndarray) -> Jump | None:
    wrong = ~np.isfinite(values).all(axis=1)
    number = values.shape[1]
    return Jump(float(points[wrong][0]), np.full(number, np.nan), np.ones(number, bool)) if wrong.any() else None


def _measure_differences_beside(f: Function, at: float, spacing: float) -> np.ndarray:
    """Return the largest fourth differences of values on both sides of a point."""
    sides = [np.array([f(at + sign * spacing * k) for k in range(1, SPAN + 2)]) for sign in (-1.0, 1.0)]
    return np.max([abs(np.diff(values, ORDER, axis=0)).max(axis=0) for values in sides], axis=0)


def find_outlying_stencils(points: np.ndarray, values: np.ndarray, noise: np.ndarray) -> list[int]:
    """Return the first indices of outlying stencils of fourth differences, the largest outlier first.

    If the last values are all equal, as beyond a cutoff, the start of this constant range is always included.
    """
    fourth = np.empty(len(points) - ORDER)
    for i in range(len(fourth)):  # separate bounds, because values may differ by many powers of ten
        part = slice(i, i + ORDER + 1)
        most = bound_difference_rounding(points[part], values[part], noise)
        fourth[i] = max(1.0, float((abs(np.diff(values[part], ORDER, axis=0)) / most).max()))
    scores = np.zeros(len(fourth))
    for i, own in enumerate(fourth):
        around = fourth[max(0, i - 2) : i + 3]
        if own > 1 and own >= around.max():
            sides = fourth[i + 1 :][NEIGHBOURS], fourth[:i][::-1][NEIGHBOURS]
            scores[i] = own / min((float(np.median(side)) for side in sides if side.size), default=1.0)
    indices = [int(i) for i in np.argsort(-scores, kind="stable") if scores[i] > STANDS_OUT]
    differs = np.flatnonzero((values != values[-1]).any(axis=1))
    if differs.size and differs[-1] < len(values) - ORDER:
        indices.insert(0, max(0, int(differs[-1]) - ORDER // 2 + 1))
    apart: list[int] = []
    for i in indices:
        if all(abs(i - j) > ORDER for j in apart):
            apart.append(i)
    return apart


def find_jumps(f: Function, points: np.ndarray, noise: np.ndarray, most: int) -> list[Jump]:
    """Return the jumps of a function in a scan of equally spaced points; refine around at most `most` of them."""
    values = np.array([f(float(t)) for t in points])
    if jump := _find_nonfinite_jump(points, values):
        return [jump]
    jumps = []
    for i in find_outlying_stencils(points, values, noise)[:most]:
        low, high = points[max(0, i - 1)], points[min(len(points) - 1, i + ORDER + 1)]
        if jump := locate_jump(f, float(low), float(high), noise):
            jumps.append(jump)
    return sorted(jumps, key=lambda jump: jump.at)
