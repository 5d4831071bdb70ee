"""Verdict on the error curve of central differences: on the roundoff floor, or falling with slope 2."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Parameters of the range in which truncation dominates; see `assess_error_slope`.
FLOOR_STEPS = 4
ABOVE_FLOOR = 10.0
DECADES = 2.0
SLOPE, SLOPE_MARGIN = 2.0, 0.1


@dataclass(frozen=True)
class SlopeVerdict:
    """Verdict on a curve: best error, order (None if exact up to rounding), problem ("" if none)."""

    best: float
    order: float | None
    problem: str


def assess_error_slope(
    steps: Sequence[float], errors: Sequence[float], floors: Sequence[float], degree: int | None
) -> SlopeVerdict:
    """Accept or reject a curve of relative errors against descending steps; `floors` bound the errors due to rounding.

    `degree` is the polynomial degree of the function along the direction, None if it is not a polynomial.

    A curve is accepted if all errors are below their floors, which a wrong derivative does not achieve; up to degree 2
    only such curves are accepted. Otherwise the truncation error must have slope 2 +- 0.1 in a log-log plot. The slope
    is the median over all pairs of points (Theil and Sen), which is robust to single errors increased by rounding. The
    range is chosen from the data: a floor F / h is fitted to the `FLOOR_STEPS` smallest steps (F is the largest error *
    h). The range begins at the smallest step above which all errors exceed `ABOVE_FLOOR` times the floor, and ends
    `DECADES` decades higher, before the next order of truncation matters. A curve without such a range is rejected.
    """
    h, e, bound = np.array(steps), np.array(errors), np.array(floors)
    if not np.isfinite(e).all():
        return SlopeVerdict(math.nan, None, f"error is {e[~np.isfinite(e)][0]} at step {h[~np.isfinite(e)][0]:.1e}")
    best = float(e.min())
    if (e <= bound).all():
        return SlopeVerdict(best, None, "")
    if degree is not None and degree <= 2:
        worst = int(np.argmax(e / bound))
        return SlopeVerdict(
            best, None, f"degree {degree}, but error {e[worst]:.1e} at step {h[worst]:.1e} is above {bound[worst]:.1e}"
        )
    noise = np.max((e * h)[-FLOOR_STEPS:])
    below = np.flatnonzero(e <= ABOVE_FLOOR * noise / h)
    # Steps descend, so the range ends before the first error near the floor.
    end = int(below[0]) if below.size else len(h)
    inside = np.arange(len(h)) < end
    if end == 0 or h[0] / h[end - 1] < 10.0**DECADES:
        return SlopeVerdict(best, None, f"truncation dominates over less than {DECADES:.0f} decades of steps")
    # The last factor includes the step at which the decades are complete.
    inside &= h <= h[end - 1] * 10.0**DECADES * (h[0] / h[1])
    x, y = np.log(h[inside]), np.log(e[inside])
    i, j = np.triu_indices(len(x), 1)
    slope = float(np.median((y[i] - y[j]) / (x[i] - x[j])))
    wrong = not abs(slope - SLOPE) <= SLOPE_MARGIN
    return SlopeVerdict(best, slope, f"slope {slope:.2f}; expected {SLOPE:.0f} +- {SLOPE_MARGIN}" if wrong else "")
