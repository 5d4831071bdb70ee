"""Jumps of functions of one variable: what does not fall as a scan is refined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trigraph.testing.curves import MARGIN

Function = Callable[[float], np.ndarray]  # from a point to the values (num_channels,)

ORDER = 4  # of the differences by which a jump is told from what is smooth: these fall with its fourth power
SPAN = 16  # intervals into which a window is divided; the next window is of `ORDER` of them
LEVELS = 9  # of windows, each a quarter of the one before: the last is 4e-6 of the first
# The standard deviation of fourth differences of independent errors of deviation 1 is sqrt(1 + 16 + 36 + 16 + 1).
SPREAD = 70.0**0.5
LAST_BITS = 2.0**-53
# A jump keeps its size from window to window. A kink falls by 4, the root of a distance by 2.
KEEPS = 0.7
BESIDE = 2.0**-12  # of the first window, spacing of the points beside a jump that show what rounding does
NEIGHBOURS = slice(3, 9)  # stencils, to each side, that a stencil of a scan is compared with
STANDS_OUT = 4.0
SMOOTH = 4.0  # factor between what a channel changes by in the last window, and what it changes by beside the jump


@dataclass(frozen=True)
class Jump:
    """A jump: where, and the change of each channel (NaN where values are).

    `jumps` tells in which channels; others change within the window that holds the jump by what is smooth, or rounding.
    """

    at: float
    change: np.ndarray
    jumps: np.ndarray


def allowed(points: np.ndarray, values: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Return what rounding may cause in fourth differences of the values of a scan.

    Parameters
    ----------
    points : array, shape (num_points,)
        Equally spaced.
    values : array, shape (num_points, num_channels)
    noise : array, shape (num_channels,)
        Standard deviation of the rounding errors of values; at least some last bits of values and points are rounding.

    Returns
    -------
    array, shape (num_channels,)
    """
    slope = np.median(abs(np.diff(values, axis=0)), axis=0) / abs(points[1] - points[0])
    last_bits = LAST_BITS * (abs(values).max(axis=0) + slope * abs(points).max())
    found: np.ndarray = np.maximum(MARGIN * SPREAD * (noise + last_bits), np.finfo(float).tiny)
    return found


def refine(f: Function, low: float, high: float, noise: np.ndarray, centre: float | None = None) -> Jump | None:
    """Look for a jump in a window, by windows within that.

    Parameters
    ----------
    f : callable
    low, high : float
    noise : array, shape (num_channels,)
        As of `allowed`.
    centre : float, optional
        Where a jump is suspected; elsewhere none is looked for.

    Returns
    -------
    Jump or None

    Notes
    -----
    Each window is where fourth differences are largest in the one before. A jump is what has not fallen over the last
    windows, and is above rounding: that of `noise`, and what differences beside it show. Where points are rounded to
    float32, values go up by steps.
    """
    largest: list[float] = []
    wide = high - low
    for _ in range(LEVELS):
        points = low + (high - low) * np.arange(SPAN + 1) / SPAN
        values = np.array([f(float(t)) for t in points])
        wrong = ~np.isfinite(values).all(axis=1)
        if wrong.any():
            return Jump(float(points[wrong][0]), np.full(values.shape[1], np.nan), np.ones(values.shape[1], bool))
        fourth = (abs(np.diff(values, ORDER, axis=0)) / allowed(points, values, noise)).max(axis=1)
        start = int(np.argmax(fourth)) if centre is None else (SPAN - ORDER) // 2
        largest.append(float(fourth[max(0, start - 1) : start + 2].max()))
        if not largest[-1] > 1:
            return None
        low, high = points[start], points[start + ORDER]
        change = values[start + ORDER] - values[start]
    beside = _beside(f, (low + high) / 2, BESIDE * wide)
    stands = (abs(np.diff(values, ORDER, axis=0)).max(axis=0) > STANDS_OUT * beside).any()
    if not (stands and largest[-1] > KEEPS**2 * largest[-3]):
        return None
    if centre is not None:  # a value that stands alone is a jump, too: the largest change from the centre
        middle = values[start + ORDER // 2]
        sides = values[[start, start + ORDER]] - middle
        change = np.where(abs(sides[0]) > abs(sides[1]), sides[0], sides[1])
    smooth = ORDER * np.sort(abs(np.diff(values, axis=0)), axis=0)[-2]  # the largest one may hold the jump
    jumps = abs(change) > SMOOTH * smooth + allowed(points, values, noise)
    jumps[int(np.argmax(abs(change) / allowed(points, values, noise)))] |= not jumps.any()
    return Jump(float((low + high) / 2), change, jumps)


def _beside(f: Function, at: float, spacing: float) -> np.ndarray:
    """Return the largest fourth differences of values on either side of a place."""
    sides = [np.array([f(at + sign * spacing * k) for k in range(1, SPAN + 2)]) for sign in (-1.0, 1.0)]
    found: np.ndarray = np.max([abs(np.diff(values, ORDER, axis=0)).max(axis=0) for values in sides], axis=0)
    return found


def places(points: np.ndarray, values: np.ndarray, noise: np.ndarray) -> list[int]:
    """Return where a scan is to be refined: stencils of fourth differences that stand out, the most striking first.

    Parameters
    ----------
    points, values, noise : array
        As of `allowed`.

    Returns
    -------
    list of int
        First points of the stencils.

    Notes
    -----
    Where the last values are all the same, as beyond a cutoff, the end of what differs is always among them.
    """
    fourth = np.empty(len(points) - ORDER)
    for i in range(len(fourth)):  # of each by itself: values may grow by many powers of ten
        part = slice(i, i + ORDER + 1)
        most = allowed(points[part], values[part], noise)
        fourth[i] = max(1.0, float((abs(np.diff(values[part], ORDER, axis=0)) / most).max()))
    scores = np.zeros(len(fourth))
    for i, own in enumerate(fourth):
        around = fourth[max(0, i - 2) : i + 3]
        if own > 1 and own >= around.max():
            sides = fourth[i + 1 :][NEIGHBOURS], fourth[:i][::-1][NEIGHBOURS]
            scores[i] = own / min((float(np.median(side)) for side in sides if side.size), default=1.0)
    found = [int(i) for i in np.argsort(-scores, kind="stable") if scores[i] > STANDS_OUT]
    differs = np.flatnonzero((values != values[-1]).any(axis=1))
    if differs.size and differs[-1] < len(values) - ORDER:
        found.insert(0, max(0, int(differs[-1]) - ORDER // 2 + 1))
    apart: list[int] = []
    for i in found:
        if all(abs(i - j) > ORDER for j in apart):
            apart.append(i)
    return apart


def scan(f: Function, points: np.ndarray, noise: np.ndarray, most: int) -> list[Jump]:
    """Return the jumps of a function that a scan of it finds.

    Parameters
    ----------
    f : callable
    points : array, shape (num_points,)
        Equally spaced.
    noise : array, shape (num_channels,)
        As of `allowed`.
    most : int
        Number of places that are refined.

    Returns
    -------
    list of Jump
        In the order of the points.
    """
    values = np.array([f(float(t)) for t in points])
    wrong = ~np.isfinite(values).all(axis=1)
    if wrong.any():
        return [Jump(float(points[wrong][0]), np.full(values.shape[1], np.nan), np.ones(values.shape[1], bool))]
    found = []
    for i in places(points, values, noise)[:most]:
        low, high = points[max(0, i - 1)], points[min(len(points) - 1, i + ORDER + 1)]
        if jump := refine(f, float(low), float(high), noise):
            found.append(jump)
    return sorted(found, key=lambda jump: jump.at)
