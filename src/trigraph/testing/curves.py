"""Central differences of any function, judged by their slope and by the estimated rounding of the function."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from trigraph.fortran import judge
from trigraph.verification.differences import assess, inner, rounded_gap
from trigraph.verification.tolerances import MARGIN, SENSITIVE
from trigraph.verification.tolerances import differences as best_of

Scalar = Callable[[np.ndarray], float]  # of one input, with the others fixed

STEPS = tuple(2.0**-k for k in range(3, 37, 2))
FEWEST = 6  # steps that must remain when the largest ones are discarded
# Steps at which only rounding contributes to fourth differences. There are several, because a tiny step may change
# nothing at a point of symmetry.
TINY = (2.0**-44, 2.0**-35, 2.0**-26)


def noise_of(phi: Scalar, x: np.ndarray, v: np.ndarray, scale: float) -> float:
    """Estimate the rounding error of `phi` at `x` from fourth differences of nearby values along `v`.

    The result is at least a quarter of the last bit of `scale`, the sum of |terms| of the value. Source: R. W. Hamming;
    J. J. Moré, S. M. Wild, "Estimating computational noise", SIAM J. Sci. Comput. 33 (2011).
    """
    values = np.array([[phi(x + k * step * v) for k in range(9)] for step in TINY])
    fourth = np.diff(values, 4)
    largest = float(abs(fourth).max()) or 1.0  # scaled, because squares may overflow
    return max(largest * float(np.sqrt(np.mean((fourth / largest) ** 2, axis=1) / 70).max()), 2.0**-54 * scale)


@dataclass(frozen=True)
class Rounded:
    """An array and estimated rounding errors of its elements."""

    values: np.ndarray
    rounding: np.ndarray


@dataclass(frozen=True)
class Verdict:
    """Assessment of a curve: points, order (None: exact up to rounding), problem ("" if none), remark."""

    curve: tuple[tuple[float, float], ...]
    best: float  # infinite if there is a problem
    tolerance: float
    order: float | None
    problem: str
    remark: str

    @property
    def note(self) -> str:
        """The problem with the errors at every third step, or the remark."""
        errors = ", ".join(f"{error:.0e} at h={step:.0e}" for step, error in self.curve[::3])
        return f"{self.problem} ({errors})" if self.problem else self.remark


def examine(phi: Scalar, gradient: Rounded, x: np.ndarray, v: np.ndarray, scale: float, noise: float) -> Verdict:
    """Compare the derivative of `phi` at `x` along `v` with central differences over a range of steps.

    `scale` is the sum of |terms| of the value at `x`, `noise` the result of `noise_of`. The curve is judged as in
    `trigraph verify` (`verification.differences.assess`), with the estimated rounding. If the whole curve fails, the
    largest steps are discarded one by one: a correct derivative then passes from some step on, and the remark says that
    larger steps cross a kink.
    """
    g = judge.pair(gradient.values)
    errors, floors = [], []
    for h in STEPS:
        gap = rounded_gap(x, h, v)
        change = phi(x + h * v) - phi(x - h * v)
        product, size = inner([(g, gap)])
        if not size > MARGIN * noise:  # for a vanishing gradient, relative to the function itself
            size = max(size, 2 * h * scale, MARGIN * noise, math.ulp(0.0))
        rounding = 2 * noise + float(np.sum(gradient.rounding * abs(gap[0])))
        errors.append(abs(change - product) / size)
        floors.append(MARGIN * (rounding / size + 2.0**-50))
    return _judged(errors, floors, one_sided(phi, x, v, noise))


def _judged(errors: list[float], floors: list[float], sides: str) -> Verdict:
    points = tuple(zip(STEPS, errors, strict=True))
    truncation = errors[0] / STEPS[0] ** 2
    reachable = min(f + truncation * h * h for f, h in zip(floors, STEPS, strict=True))
    tolerance = max(best_of("float64"), 4 * reachable if math.isfinite(reachable) else 0.0)
    if min(floors) > SENSITIVE:
        problem = f"rounding of the function hides errors below {min(floors):.0e} at every step: inconclusive"
        problem = "; ".join(filter(None, [problem, sides]))
        return Verdict(points, math.inf, tolerance, None, problem, "")
    first = None
    for start in range(len(STEPS) - FEWEST + 1):
        curve = assess(STEPS[start:], errors[start:], floors[start:], None)
        first = first or curve
        if not curve.problem and curve.best <= tolerance and min(floors[start:]) <= SENSITIVE:
            remark = f"steps above {STEPS[start]:.0e} cross a kink, or the curvature is large" if start > 1 else ""
            return Verdict(points, curve.best, tolerance, curve.order, "", remark)
    assert first is not None
    problem = first.problem.replace("slope -0.00", "slope 0.00") or f"best error {first.best:.1e}"
    if sides:
        problem += f"; {sides}"
    return Verdict(points, math.inf, tolerance, first.order, problem, "")


def one_sided(phi: Scalar, x: np.ndarray, v: np.ndarray, noise: float) -> str:
    """Return a message with the slopes on both sides if the point lies on a kink, else ""."""
    seen = []
    for h in (2.0**-16, 2.0**-20):
        middle, right, left = phi(x), phi(x + h * v), phi(x - h * v)
        seen.append(((middle - left) / h, (right - middle) / h, MARGIN * 4 * noise / h))
    (far_before, far_after, _), (before, after, rounding) = seen
    jump = abs(after - before)
    # As the step falls, the slopes on both sides stay apart at a kink and converge otherwise.
    stay = max(abs(far_before - before), abs(far_after - after)) <= 0.25 * jump
    if jump > rounding and stay and jump > 1e-3 * max(abs(before), abs(after)):
        return f"the point lies on a kink: slopes are {before:.6g} before it and {after:.6g} after it"
    return ""


NEAR, NEARER = (2.0**-10, 2.0**-14, 2.0**-18), (2.0**-20, 2.0**-22, 2.0**-24)


@dataclass(frozen=True)
class Part:
    """Comparison of a derivative along some elements with differences: error, tolerance, and the difference."""

    elements: np.ndarray  # flat indices
    error: float
    allowed: float
    difference: float

    @property
    def ratio(self) -> float:
        """Error over tolerance; infinity if either is NaN."""
        found = self.error / self.allowed if self.allowed > 0 else math.inf if self.error else 0.0
        return found if math.isfinite(found) else math.inf


def along(phi: Scalar, gradient: Rounded, x: np.ndarray, v: np.ndarray, noise: float) -> Part:
    """Compare the derivative along `v`, whose elements are the units of the steps, with differences.

    The result is for the step with the smallest tolerance. If that fails, smaller steps are tried, because a kink may
    be between the points. Other arguments are those of `examine`.
    """
    found = _along(phi, gradient, x, v, noise, NEAR)
    return found if found.error <= found.allowed else _along(phi, gradient, x, v, noise, NEARER)


def _along(
    phi: Scalar, gradient: Rounded, x: np.ndarray, v: np.ndarray, noise: float, steps: tuple[float, ...]
) -> Part:
    elements = np.flatnonzero(v)
    best = Part(elements, math.inf, math.inf, math.nan)
    unit = v.flat[elements]
    for h in steps:
        slopes, residuals = [], []
        for step in (h, h / 2):
            plus, minus = x + step * v, x - step * v
            gap = (plus - minus).flat[elements]  # twice the step, rounded
            per_step = float(unit @ unit / (gap @ unit))
            slopes.append((phi(plus) - phi(minus)) * per_step)
            residuals.append(slopes[-1] - float(gradient.values.flat[elements] @ gap) * per_step)
        difference = (4 * slopes[1] - slopes[0]) / 3
        rounding = MARGIN * (8 * noise / h + float(gradient.rounding.flat[elements] @ abs(unit)))
        allowed = rounding + abs(slopes[1] - slopes[0]) + 2.0**-40 * abs(difference)
        if allowed < best.allowed or not math.isfinite(best.allowed):
            best = Part(elements, abs(4 * residuals[1] - residuals[0]) / 3, allowed, difference)
    return best


def worst_part(
    phi: Scalar,
    gradient: Rounded,
    x: np.ndarray,
    sizes: np.ndarray,
    noise: float,
    groups: Iterable[np.ndarray],
    named: Callable[[tuple[int, ...]], str],
) -> tuple[float, str]:
    """Compare groups of elements (flat indices) of a gradient with differences, in steps of `sizes`.

    The result is the error over the tolerance of the worst group; if it fails, of its failing elements, found by
    bisection, with a description of their error.
    """
    signed = np.where(np.signbit(gradient.values), -sizes, sizes)  # so that terms do not cancel

    def judged(group: np.ndarray) -> Part:
        v = np.zeros_like(x)
        v.flat[group] = signed.flat[group]
        return along(phi, gradient, x, v, noise)

    def worst(groups: Iterable[np.ndarray]) -> Part:
        return max(map(judged, groups), key=lambda part: part.ratio)

    found = worst(groups)
    while found.ratio > 1 and found.elements.size > 1:
        half = worst(np.array_split(found.elements, 2))
        if not half.ratio > 1:
            break
        found = half
    if found.ratio <= 1:
        return found.ratio, ""
    v = np.zeros_like(x)
    v.flat[found.elements] = sizes.flat[found.elements]
    texts = _told(found, gradient, sizes, named), one_sided(phi, x, v, noise)
    return found.ratio, "; ".join(filter(None, texts))


def _told(part: Part, gradient: Rounded, sizes: np.ndarray, named: Callable[[tuple[int, ...]], str]) -> str:
    """Describe the error of a part; for a single element, the derivative is not scaled."""
    place = tuple(int(i) for i in np.unravel_index(part.elements[0], gradient.values.shape))
    if part.elements.size == 1:
        unit = -float(sizes[place]) if np.signbit(gradient.values[place]) else float(sizes[place])
        what, value = named(place), float(gradient.values[place])
        difference, allowed = part.difference / unit, part.allowed / abs(unit)
    else:
        what = f"the sum of |gradient| times size over {part.elements.size} elements, {named(place)} first,"
        value = float(abs(gradient.values.flat[part.elements]) @ sizes.flat[part.elements])
        difference, allowed = part.difference, part.allowed
    return f"{what} is {value:.8g}; differences give {difference:.8g} +- {allowed:.1g}"
