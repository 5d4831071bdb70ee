"""Comparison of gradients with central differences, judged by the slope of the error and by estimated rounding."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from slopecheck.exact import dot_with_magnitude, subtract_with_error
from slopecheck.slope import SLOPE, SLOPE_MARGIN, assess_error_slope
from slopecheck.tolerances import BEST, EPS, MARGIN, SENSITIVE

Scalar = Callable[[np.ndarray], float]  # a function of one input; other inputs are fixed

STEPS = tuple(2.0**-k for k in range(3, 37, 2))
FEWEST = 6  # least number of steps that remain when the largest are discarded
# Steps at which only rounding contributes to fourth differences. Several steps are used, because one tiny step may
# change nothing at a symmetric point.
TINY = (2.0**-44, 2.0**-35, 2.0**-26)
EPSILON = EPS["float64"]
WIDER = (2.0**-4, 2.0**-6)
NEAR, NEARER = (2.0**-10, 2.0**-14, 2.0**-18), (2.0**-20, 2.0**-22, 2.0**-24, 2.0**-32, 2.0**-40, 2.0**-46)
BESIDE = (2.0**-16, 2.0**-18, 2.0**-20, 2.0**-22, 2.0**-30)
LAST_BITS = 2.0**-40  # smaller relative changes of a value do not count as jumps
SHORT = 0.25  # longest usable step, relative to the step over which the derivative changes by its own size
SHALLOW = 0.9  # least power of the step with which the error falls where a function is differentiable
HIDDEN = 0.5  # an element cannot be judged if its tolerance exceeds this fraction of its value
BETTER = "inputs of another size, or a formula with less cancellation, would decide"


def estimate_noise(phi: Scalar, x: np.ndarray, v: np.ndarray, scale: float) -> float:
    """Estimate the rounding error of `phi` at `x` from fourth differences of nearby values along `v`.

    The result is at least a quarter of the last bit of `scale`, the sum of |terms| of the value. Source: R. W. Hamming;
    J. J. Moré, S. M. Wild, "Estimating computational noise", SIAM J. Sci. Comput. 33 (2011).
    """
    values = np.array([[phi(x + k * step * v) for k in range(9)] for step in TINY])
    fourth = np.diff(values[np.isfinite(values).all(axis=1)], 4)  # drop steps that leave the domain
    # Drop steps whose differences have only one sign, because rounding causes both signs.
    fourth = fourth[(fourth.min(axis=1) < 0) & (fourth.max(axis=1) > 0)]
    if not fourth.size:
        return 2.0**-54 * scale
    largest = float(abs(fourth).max()) or 1.0  # divide by this number, because squares may overflow
    return max(largest * float(np.sqrt(np.mean((fourth / largest) ** 2, axis=1) / 70).max()), 2.0**-54 * scale)


@dataclass(frozen=True)
class ArrayWithRounding:
    """An array and the estimated rounding errors of its elements.

    `seen` is the full change of the array when the last bits of the inputs change; `rounding` may be limited to less. A
    result whose error is below `seen` cannot be distinguished from a correct one.
    """

    values: np.ndarray
    rounding: np.ndarray
    seen: np.ndarray | None = None

    @property
    def full_rounding(self) -> np.ndarray:
        """`seen` if it was estimated, else `rounding`."""
        return self.rounding if self.seen is None else self.seen

    def estimate_condition_number(self, size: np.ndarray) -> float:
        """Return the relative change of the array per relative change of the inputs, at least 1.

        The relative truncation error for a step of relative length h is about (h times this number) squared.
        """
        total = float(np.sum(abs(self.values) * size))
        factor = float(np.sum(self.full_rounding * size)) / EPSILON / total if total > 0 else 1.0
        return max(1.0, factor)


@dataclass(frozen=True)
class CurveVerdict:
    """Verdict on a curve of differences, as plotted in reports; `order` is None if the curve is exact up to rounding.

    If the verdict is `inconclusive`, the problem says why the derivative cannot be judged.
    """

    curve: tuple[tuple[float, float], ...]
    best: float  # infinite if there is a problem
    tolerance: float
    order: float | None
    problem: str
    remark: str
    inconclusive: bool = False

    @property
    def note(self) -> str:
        """The problem if there is one, else the remark."""
        return self.problem or self.remark


@dataclass(frozen=True)
class ElementComparison:
    """Comparison of the derivative along some elements with central differences."""

    elements: np.ndarray  # flat indices of the elements
    error: float
    allowed: float
    difference: float  # the derivative, as estimated from differences
    decided: bool = True  # whether an error above the tolerance is an error of the derivative
    hidden: bool = False  # whether the tolerance could hide a wrong element
    bent: bool = False  # whether the values show a kink

    @property
    def error_ratio(self) -> float:
        """Error divided by tolerance; infinity if either is NaN."""
        quotient = self.error / self.allowed if self.allowed > 0 else math.inf if self.error else 0.0
        return quotient if math.isfinite(quotient) else math.inf

    @property
    def severity_key(self) -> tuple[bool, bool, float]:
        """Sort key, largest for the worst: an error of the derivative, then an undecided comparison, then the ratio."""
        return self.error_ratio > 1 and self.decided, self.hidden or self.error_ratio > 1, self.error_ratio


@dataclass(frozen=True)
class GradientClaim:
    """The claimed gradient of a function `phi` at a point `x`, to be compared with differences.

    `noise` is the rounding error of the function (`estimate_noise`). An error that
    rounding hides is reported only if the derivative exceeds `least`.
    """

    phi: Scalar
    gradient: ArrayWithRounding
    x: np.ndarray
    noise: float
    least: float = 0.0

    def compare_over_steps(self, v: np.ndarray, scale: float, sensitive: float = SENSITIVE) -> CurveVerdict:
        """Compare the derivative along `v` with central differences over a range of steps.

        `scale` is the sum of |terms| of the function's value. `assess_error_slope` judges the curve with the estimated
        rounding. If the whole curve fails, the largest steps are discarded one by one: a correct derivative then passes
        from some step on, and a remark says that larger steps cross a kink. Where the function has no third
        derivative, the error falls with a lower power of the step, and its extrapolated limit must be below `BEST`.
        If no range passes, the verdict is inconclusive if rounding, or the curvature estimated from the gradient,
        explains the error at the most informative step. At a kink, no derivative passes.
        """
        phi, gradient, x, noise = self.phi, self.gradient, self.x, self.noise
        if not np.isfinite(gradient.values).all():
            bad = gradient.values[~np.isfinite(gradient.values)][0]
            return CurveVerdict((), math.inf, BEST, None, f"the derivative is {bad}", "")
        # Rounding was estimated from changes with random signs, which may add up along one direction.
        turning = gradient.estimate_condition_number(abs(v)) * math.sqrt(x.size)
        errors, floors, doubts = [], [], []
        for h in STEPS:
            gap = subtract_with_error(x + h * v, x - h * v)
            change = phi(x + h * v) - phi(x - h * v)
            product, size = dot_with_magnitude([gradient.values, gradient.values], gap)
            if not size > MARGIN * noise:  # if the gradient vanishes, errors are relative to the value
                size = max(size, 2 * h * scale, MARGIN * noise, math.ulp(0.0))
            rounding, doubt = [
                2 * noise + float(np.sum(r * abs(gap[0]))) for r in (gradient.rounding, gradient.full_rounding)
            ]
            errors.append((change - product) / size)
            floors.append(MARGIN * (rounding / size + 2.0**-50))
            truncation = (h * turning) ** 2 if h * turning < SHORT else math.inf
            doubts.append(MARGIN * (doubt / size + 2.0**-50 + truncation))
        return _assess_error_curve(errors, floors, doubts, self.describe_jump_or_kink(v), sensitive)

    def describe_jump_or_kink(self, v: np.ndarray) -> str:
        """Describe the values on both sides of a jump, or the slopes on both sides of a kink; "" elsewhere."""
        phi, x, noise = self.phi, self.x, self.noise
        high, low = (np.array([phi(x + sign * h * v) for h in BESIDE]) for sign in (1.0, -1.0))
        middle = phi(x)
        if not np.isfinite([*high, *low, middle]).all():  # the point lies at the end of the domain
            return ""
        gap, within = abs(high[-1] - low[-1]), max(float(np.ptp(high)), float(np.ptp(low)))
        # Across a jump, values change much more than on either side; smooth functions and rounding do not.
        if gap > MARGIN * within and gap > LAST_BITS * max(abs(high[-1]), abs(low[-1])):
            return f"the point lies on a jump: values are {low[-1]:.6g} before it and {high[-1]:.6g} after it"
        seen = [
            ((middle - low[k]) / BESIDE[k], (high[k] - middle) / BESIDE[k], MARGIN * 4 * noise / BESIDE[k])
            for k in (0, 2, -1)
        ]
        (far_before, far_after, _), (before, after, rounding), (close_before, close_after, close_rounding) = seen
        jump = abs(after - before)
        # As the step falls, the slopes on both sides of a kink stay apart; elsewhere the two slopes converge.
        stay = max(abs(far_before - before), abs(far_after - after)) <= 0.25 * jump
        stay &= abs(close_after - close_before) >= 0.75 * jump or not close_rounding <= 0.25 * jump
        if jump > rounding and stay and jump > 1e-3 * max(abs(before), abs(after)):
            return f"the point lies on a kink: slopes are {before:.6g} before it and {after:.6g} after it"
        return ""

    def compare_at_best_step(self, v: np.ndarray) -> ElementComparison:
        """Compare the derivative along `v` with differences, whose steps are multiples of `v`.

        The result is from the step with the smallest tolerance. If it fails, smaller steps are tried, because a kink
        may lie between the points. Smaller steps count only if their tolerance is small enough to show the error.
        """
        elements = np.flatnonzero(v)
        if not np.isfinite(self.gradient.values.flat[elements]).all():
            return ElementComparison(elements, math.inf, 0.0, math.nan)
        part = self._compare_at_given_steps(v, NEAR)
        if part.hidden:  # larger steps reduce the effect of rounding
            part = min(part, self._compare_at_given_steps(v, WIDER), key=lambda p: p.allowed)
        if part.error <= part.allowed < math.inf:  # a kink at the point does not affect central differences
            return replace(part, error=math.inf) if part.bent and self.describe_jump_or_kink(v) else part
        nearer = self._compare_at_given_steps(v, NEARER)
        blind = nearer.error <= nearer.allowed and not nearer.allowed < part.error
        return replace(part, decided=False) if blind else nearer

    def _compare_at_given_steps(self, v: np.ndarray, steps: tuple[float, ...]) -> ElementComparison:
        phi, gradient, x, noise = self.phi, self.gradient, self.x, self.noise
        elements = np.flatnonzero(v)
        best, sure = ElementComparison(elements, math.inf, math.inf, math.nan, False), (math.inf, math.inf)
        middle, bends = phi(x), []
        unit = v.flat[elements]
        size = abs(unit)
        claim = float(gradient.values.flat[elements] @ unit)
        doubt = ArrayWithRounding(gradient.values.flat[elements], gradient.full_rounding.flat[elements])
        for h in steps:
            slopes, residuals, rounding = [], [], float(gradient.rounding.flat[elements] @ size)
            for step in (h, h / 2):
                plus, minus = x + step * v, x - step * v
                gap = (plus - minus).flat[elements] / step  # twice `unit`, with the rounding errors of the points
                largest = float(size.max())
                per_step = float((unit / largest) @ (unit / largest) / ((gap / largest) @ (unit / largest)))
                right, left = phi(plus), phi(minus)
                slopes.append((right - left) / step * per_step)
                residuals.append(slopes[-1] - float(gradient.values.flat[elements] @ gap) * per_step)
            bends.append(abs(right + left - 2 * middle))
            difference = (4 * slopes[1] - slopes[0]) / 3
            error = abs(4 * residuals[1] - residuals[0]) / 3
            if not math.isfinite(error):  # a step leaves the domain
                continue
            spread = 8 * noise / h
            allowed = MARGIN * (spread + rounding)
            allowed += abs(slopes[1] - slopes[0]) + 2.0**-40 * abs(difference)
            if allowed < best.allowed:
                known = max(abs(claim), abs(difference))
                matters = abs(claim) > max(self.least, MARGIN * (MARGIN * noise + float(doubt.rounding @ size)))
                hidden = matters and allowed > HIDDEN * known
                best = ElementComparison(elements, error, allowed, difference, hidden=hidden)
            turned = h * doubt.estimate_condition_number(size)
            curvature = abs(claim) * turned**2 if turned < SHORT else math.inf
            sure = min(sure, (allowed + MARGIN * (float(doubt.rounding @ size) + curvature), error))
        # The second difference falls with the square of the step for a smooth function, but linearly at a kink.
        bent = len(bends) > 1 and bends[-1] > 8 * MARGIN * noise and bends[0] < 4 * steps[0] / steps[-1] * bends[-1]
        return replace(best, decided=sure[1] > sure[0], bent=bent)

    def estimate_slope_with_tolerance(self, v: np.ndarray) -> tuple[float, float]:
        """Return the derivative along `v` from differences, and its tolerance."""
        nothing = ArrayWithRounding(np.zeros_like(self.x), np.zeros_like(self.x))
        part = replace(self, gradient=nothing, least=0.0)._compare_at_given_steps(v, NEAR)
        return part.difference, part.allowed

    def compare_element_groups(
        self, sizes: np.ndarray, groups: Iterable[np.ndarray], named: Callable[[tuple[int, ...]], str]
    ) -> tuple[float, str, bool]:
        """Compare groups of elements (flat indices) of the gradient with differences, in steps of `sizes`.

        Return the error divided by the tolerance for the worst group, a note, and whether the result is inconclusive.
        If the worst group fails, bisection finds the failing elements, and the note describes their error.
        """
        signed = np.where(np.signbit(self.gradient.values), -sizes, sizes)  # equal signs of terms avoid cancellation

        def compare_group(group: np.ndarray) -> ElementComparison:
            v = np.zeros_like(self.x)
            v.flat[group] = signed.flat[group]
            return self.compare_at_best_step(v)

        def find_worst_group(groups: Iterable[np.ndarray]) -> ElementComparison:
            return max(map(compare_group, groups), key=lambda part: part.severity_key)

        largest = find_worst_group(groups)
        while largest.error_ratio > 1 and largest.elements.size > 1:
            half = find_worst_group(np.array_split(largest.elements, 2))
            if not half.error_ratio > 1 or half.decided < largest.decided:
                break
            largest = half
        if largest.error_ratio <= 1:
            note = (
                self._describe_comparison(largest, sizes, named) + f": others hide it; {BETTER}"
                if largest.hidden
                else ""
            )
            return largest.error_ratio, note, largest.hidden
        v = np.zeros_like(self.x)
        v.flat[largest.elements] = sizes.flat[largest.elements]
        sides = self.describe_jump_or_kink(v)
        inconclusive = not (largest.decided or sides)
        hidden = f"rounding, curvature or the domain hide more; {BETTER}" if inconclusive else sides
        texts = self._describe_comparison(largest, sizes, named), hidden
        return largest.error_ratio, "; ".join(filter(None, texts)), inconclusive

    def _describe_comparison(
        self, part: ElementComparison, sizes: np.ndarray, named: Callable[[tuple[int, ...]], str]
    ) -> str:
        """Describe the error of a comparison; for a single element, give the unscaled derivative."""
        gradient = self.gradient
        index = tuple(int(i) for i in np.unravel_index(part.elements[0], gradient.values.shape))
        if part.elements.size == 1:
            unit = -float(sizes[index]) if np.signbit(gradient.values[index]) else float(sizes[index])
            what, value = named(index), float(gradient.values[index])
            difference, allowed = part.difference / unit, part.allowed / abs(unit)
        else:
            what = f"the sum of |gradient| times size over {part.elements.size} elements, {named(index)} first,"
            value = float(abs(gradient.values.flat[part.elements]) @ sizes.flat[part.elements])
            difference, allowed = part.difference, part.allowed
        return f"{what} is {value:.8g}; differences give {difference:.8g} +- {allowed:.1g}"


def _assess_error_curve(
    signed: list[float], floors: list[float], doubts: list[float], sides: str, sensitive: float = SENSITIVE
) -> CurveVerdict:
    errors = [abs(error) for error in signed]
    points = tuple(zip(STEPS, errors, strict=True))
    truncation = errors[0] / STEPS[0] ** 2
    reachable = min(f + truncation * h * h for f, h in zip(floors, STEPS, strict=True))
    tolerance = max(BEST, 4 * reachable if math.isfinite(reachable) else 0.0)
    curves = [assess_error_slope(STEPS[k:], errors[k:], floors[k:], None) for k in range(len(STEPS) - FEWEST + 1)]
    first = curves[0]
    for start, curve in enumerate([] if sides else curves):
        if not curve.problem and curve.best <= tolerance and min(floors[start:]) <= sensitive:
            remark = f"steps above {STEPS[start]:.0e} cross a kink, or the curvature is large" if start > 1 else ""
            return CurveVerdict(points, curve.best, tolerance, curve.order, "", remark)
    doubt, error = min((d, e) for d, e in zip((*doubts, math.inf), (*errors, 0.0), strict=True) if math.isfinite(e))
    beyond = np.count_nonzero(np.isfinite(errors)) < FEWEST
    power = max((curve.order or 0.0 for curve in curves), default=0.0)
    limits = _extrapolate_error_limits(signed, floors) if power >= SHALLOW and not sides else []
    for k, (limit, bound) in enumerate(limits):
        if bound <= sensitive and limit <= BEST and all(a <= max(BEST, b) for a, b in limits[k:]):
            remark = f"the error falls with the power {power:.2f} of the step, towards {limit:.0e}"
            return CurveVerdict(points, limit, BEST, power, "", remark)
    limit, bound = min(limits, key=sum, default=(math.inf, 0.0))
    falls = limit <= max(BEST, bound)
    if (error <= doubt or beyond or falls) and not sides:
        if falls and error > doubt:
            problem = f"the error falls at every step, and rounding hides whether it ends below {bound:.0e}; {BETTER}"
        elif beyond or not math.isfinite(doubt):
            problem = f"no step is short enough for the curvature of the function and within its domain; {BETTER}"
        else:
            problem = f"rounding and curvature hide errors below {doubt:.0e} at every step; {BETTER}"
        return CurveVerdict(points, math.inf, tolerance, None, problem, "", inconclusive=True)
    problem = first.problem.replace("slope -0.00", "slope 0.00") or f"best error {first.best:.1e}"
    if sides:
        problem += f"; {sides}"
    return CurveVerdict(points, math.inf, tolerance, first.order, problem, "")


def _extrapolate_error_limits(signed: list[float], floors: list[float]) -> list[tuple[float, float]]:
    """Return estimates of the error's limit for small steps, and the effect of rounding on each, largest steps first.

    From errors a + b h^p at three steps, each a quarter of the previous one, Aitken's extrapolation gives the limit a
    for unknown p. Rounding errors of at most r change a by q (q + 1) / (q - 1)^2 r, where q = 4^p. Steps are skipped
    unless p is between `SHALLOW` and `SLOPE + SLOPE_MARGIN`.
    """
    limits = []
    for k in range(len(signed) - 2):
        first, second = signed[k] - signed[k + 1], signed[k + 1] - signed[k + 2]
        q = first / second if second else math.inf
        if 4.0**SHALLOW <= q <= 4.0 ** (SLOPE + SLOPE_MARGIN):
            bound = q * (q + 1) / (q - 1) ** 2 * max(floors[k : k + 3])
            limits.append((abs(signed[k + 2] - second / (q - 1)), bound))
    return limits
