"""Central differences of any function, judged by their slope and by the rounding that the function itself shows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trigraph.fortran import judge
from trigraph.verification.differences import assess, inner, rounded_gap

Scalar = Callable[[np.ndarray], float]  # of one input, the others held

STEPS = tuple(2.0**-k for k in range(3, 37, 2))
FEWEST = 6  # steps of a curve that is still judged when its largest ones were left out
BEST = 1e-7  # the error that a usable derivative reaches at some step, as of `trigraph verify`
SENSITIVE = 1e-6  # a curve whose rounding hides an error of this size at every step shows nothing
MARGIN = 8.0  # factor between the rounding that is estimated, a standard deviation, and what is allowed
# Steps at which a function changes by rounding alone, but for its slope and its curvature. Several, since at a point of
# symmetry a tiny step may change nothing at all.
TINY = (2.0**-44, 2.0**-35, 2.0**-26)


def noise_of(phi: Scalar, x: np.ndarray, v: np.ndarray, scale: float) -> float:
    """Estimate the rounding error of values of a function by fourth differences of nearby values.

    Parameters
    ----------
    phi : callable
    x, v : array
        Point and direction.
    scale : float
        Sum of |terms| of the value, if that is known: at least a quarter of its last bit is rounding.

    Returns
    -------
    float

    Notes
    -----
    Source: R. W. Hamming; J. J. Moré, S. M. Wild, "Estimating computational noise", SIAM J. Sci. Comput. 33 (2011).
    """
    values = np.array([[phi(x + k * step * v) for k in range(9)] for step in TINY])
    fourth = np.diff(values, 4)
    largest = float(abs(fourth).max()) or 1.0  # whose square need not be a number
    return max(largest * float(np.sqrt(np.mean((fourth / largest) ** 2, axis=1) / 70).max()), 2.0**-54 * scale)


@dataclass(frozen=True)
class Rounded:
    """An array, and an estimate of the rounding errors of its elements."""

    values: np.ndarray
    rounding: np.ndarray


@dataclass(frozen=True)
class Verdict:
    """What a curve says: points, order (None: exact up to rounding), problem ("" if none), remark, where it is best."""

    curve: tuple[tuple[float, float], ...]
    best: float
    tolerance: float
    order: float | None
    problem: str
    remark: str
    step: float


def examine(phi: Scalar, gradient: Rounded, x: np.ndarray, v: np.ndarray, scale: float, noise: float) -> Verdict:
    """Compare the derivative of a function along a direction with central differences over a range of steps.

    Parameters
    ----------
    phi : callable
        From an array like `x` to a number.
    gradient : Rounded
        What is to be the gradient of `phi` at `x`.
    x, v : array
        Point and direction.
    scale : float
        Sum of |terms| of the value at `x`.
    noise : float
        As of `noise_of`.

    Returns
    -------
    Verdict

    Notes
    -----
    The curve is judged as `trigraph verify` judges those of the operators (`verification.differences.assess`), with the
    rounding that is estimated. Where a curve is wrong as a whole, its largest steps are left out one by one: a
    right derivative then shows from some step on, and the remark tells that larger steps cross a kink.
    """
    g = judge.pair(gradient.values)
    errors, floors = [], []
    for h in STEPS:
        gap = rounded_gap(x, h, v)
        change = phi(x + h * v) - phi(x - h * v)
        product, size = inner([(g, gap)])
        if not size > MARGIN * noise:  # a gradient of zeros, or nearly: measured against the function itself
            size = max(size, 2 * h * scale, MARGIN * noise, math.ulp(0.0))
        rounding = 2 * noise + float(np.sum(gradient.rounding * abs(gap[0])))
        errors.append(abs(change - product) / size)
        floors.append(MARGIN * (rounding / size + 2.0**-50))
    return _judged(errors, floors, one_sided(phi, x, v, noise))


def _judged(errors: list[float], floors: list[float], sides: str) -> Verdict:
    points = tuple(zip(STEPS, errors, strict=True))
    at = int(np.argmin(np.where(np.isfinite(errors), errors, np.inf)))
    truncation = errors[0] / STEPS[0] ** 2
    reachable = min(f + truncation * h * h for f, h in zip(floors, STEPS, strict=True))
    tolerance = max(BEST, 4 * reachable) if math.isfinite(reachable) else BEST
    if min(floors) > SENSITIVE:
        problem = f"rounding of the function hides errors below {min(floors):.0e} at every step: nothing can be said"
        problem = "; ".join(filter(None, [problem, sides]))
        return Verdict(points, math.inf, tolerance, None, problem, "", STEPS[at])
    first = None
    for start in range(len(STEPS) - FEWEST + 1):
        curve = assess(STEPS[start:], errors[start:], floors[start:], None)
        first = first or curve
        if not curve.problem and curve.best <= tolerance and min(floors[start:]) <= SENSITIVE:
            remark = f"steps above {STEPS[start]:.0e} cross a kink, or the function bends sharply" if start > 1 else ""
            return Verdict(points, curve.best, tolerance, curve.order, "", remark, STEPS[at])
    assert first is not None
    problem = first.problem.replace("slope -0.00", "slope 0.00") or f"best error {first.best:.1e}"
    if sides:
        problem += f"; {sides}"
    return Verdict(points, math.inf, tolerance, first.order, problem, "", STEPS[at])


def one_sided(phi: Scalar, x: np.ndarray, v: np.ndarray, noise: float) -> str:
    """Return that the point lies on a kink, with the slopes on both sides; "" if it does not."""
    seen = []
    for h in (2.0**-16, 2.0**-20):
        middle, right, left = phi(x), phi(x + h * v), phi(x - h * v)
        seen.append(((middle - left) / h, (right - middle) / h, MARGIN * 4 * noise / h))
    (far_before, far_after, _), (before, after, rounding) = seen
    jump = abs(after - before)
    # The slopes of a kink stay as the step falls; those of a smooth function come together.
    stay = max(abs(far_before - before), abs(far_after - after)) <= 0.25 * jump
    if jump > rounding and stay and jump > 1e-3 * max(abs(before), abs(after)):
        return f"the point lies on a kink: slopes are {before:.6g} before it and {after:.6g} after it"
    return ""


def shown(curve: tuple[tuple[float, float], ...]) -> str:
    """Return a curve in one line: its error at every third step."""
    return ", ".join(f"{error:.0e} at h={step:.0e}" for step, error in curve[::3])


NEAR, NEARER = (2.0**-10, 2.0**-14, 2.0**-18), (2.0**-20, 2.0**-22, 2.0**-24)


def element_problem(
    phi: Scalar, gradient: Rounded, x: np.ndarray, index: tuple[int, ...], size: float, noise: float
) -> tuple[float, float, float]:
    """Compare one element of a gradient with differences.

    Parameters
    ----------
    phi, gradient, x
        As of `examine`.
    index : tuple of int
    size : float
        Unit of the steps.
    noise : float
        As of `noise_of`.

    Returns
    -------
    error, allowed, difference : float
        At the step where most can be said; where a kink may lie between the points, at a smaller one.
    """
    found = _element(phi, gradient, x, index, size, noise, NEAR)
    return found if found[0] <= found[1] else _element(phi, gradient, x, index, size, noise, NEARER)


def _element(
    phi: Scalar,
    gradient: Rounded,
    x: np.ndarray,
    index: tuple[int, ...],
    size: float,
    noise: float,
    steps: tuple[float, ...],
) -> tuple[float, float, float]:
    best = (math.inf, math.inf, math.nan)
    for h in steps:
        slopes = []
        for step in (h * size, h * size / 2):
            plus, minus = x.copy(), x.copy()
            plus[index] += step
            minus[index] -= step
            slopes.append((phi(plus) - phi(minus)) / (plus[index] - minus[index]))
        difference = (4 * slopes[1] - slopes[0]) / 3
        rounding = MARGIN * (8 * noise / (h * size) + float(gradient.rounding[index]))
        allowed = rounding + abs(slopes[1] - slopes[0]) + 2.0**-40 * abs(difference)
        if allowed < best[1] or not math.isfinite(best[1]):
            best = (abs(difference - float(gradient.values[index])), allowed, difference)
    return best
