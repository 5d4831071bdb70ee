"""Tests of the rule for finite-difference curves: it accepts correct derivatives and rejects incorrect ones."""

import math
from itertools import pairwise

import numpy as np
import pytest

from slopecheck.record import Check
from trigraph.verification.differences import JUDGE_STEPS, MIN_STEP_RATIO, STEPS, _select_steps, assess_error_slope
from trigraph.verification.real import NETWORK_STEPS, POLYNOMIAL_STEPS, STRUCTURE_STEPS

EPS = 2.0**-52
X = 0.7


def compute_difference_curve(function, derivative, steps=STEPS):
    """Return the errors and rounding floors of central differences at X; `derivative` may be a function of the step."""
    errors, floors = [], []
    for h in steps:
        d = derivative(h) if callable(derivative) else derivative
        errors.append(abs(function(X + h) - function(X - h) - d * 2 * h) / abs(d * 2 * h))
        floors.append(8 * EPS * (2 * abs(function(X)) + 2 * h * abs(d)) / abs(d * 2 * h))
    return errors, floors


def assess_difference_curve(function, derivative, degree, steps=STEPS):
    return assess_error_slope(steps, *compute_difference_curve(function, derivative, steps), degree)


def quadratic(x):
    return 3 * x * x - x + 2


SLOPE = 6 * X - 1


def test_smooth_functions_have_slope_two():
    for function, derivative in (
        (math.sin, math.cos(X)),
        (math.exp, math.exp(X)),
        (lambda x: x**3, 3 * X**2),
        (lambda x: math.tanh(2 * x), 2 / math.cosh(2 * X) ** 2),
        (lambda x: 1e6 * math.sin(x) + 1e6, 1e6 * math.cos(X)),
    ):
        result = assess_difference_curve(function, derivative, None)
        assert not result.problem
        assert abs(result.order - 2) <= 0.1
        assert result.best <= 1e-7


def test_quadratics_have_only_rounding_errors():
    for degree in (1, 2, None):  # None means an unknown degree
        result = assess_difference_curve(quadratic, SLOPE, degree)
        assert (result.problem, result.order) == ("", None)
        assert result.best < 1e-13


@pytest.mark.parametrize("relative", [1e-3, 1e-6, 1e-9, 1e-11])
def test_a_wrong_derivative_is_rejected(relative):
    """Incorrect derivatives are rejected, even with the few steps that are used for polynomials."""
    few = _select_steps(STEPS, 2.0**-6, 2)
    assert not assess_difference_curve(quadratic, SLOPE, 2, few).problem
    for degree, steps in ((2, STEPS), (None, STEPS), (2, few)):
        assert assess_difference_curve(quadratic, SLOPE * (1 + relative), degree, steps).problem
    if relative > 1e-9:
        for sign in (-1, 1):
            assert assess_difference_curve(math.sin, math.cos(X) * (1 + sign * relative), None).problem


def kinked_line(x):
    return max(x - X - 1e-3, 0.0) + x


# Function, incorrect derivative, degree, steps, and expected message.
REJECTED = [
    (lambda x: x**3, 3 * X**2, 2, STEPS, "degree 2"),
    (lambda x: x**3, 3 * X**2, 2, _select_steps(STEPS, 2.0**-6, 2), "degree 2"),
    (math.sin, lambda h: math.cos(X + h), None, STEPS, "slope 1.0"),  # this derivative has an O(h) error
    (quadratic, lambda h: 6 * (X + h) - 1, 2, STEPS, ""),
    (kinked_line, 1.0, 1, STEPS, ""),
    (kinked_line, 1.0, None, STEPS, ""),
    (math.sin, math.cos(X), None, STEPS[:5], "decades"),
]


@pytest.mark.parametrize(("function", "derivative", "degree", "steps", "says"), REJECTED)
def test_unsuitable_curves_are_rejected_with_reason(function, derivative, degree, steps, says):
    problem = assess_difference_curve(function, derivative, degree, steps).problem
    assert problem
    assert says in problem


@pytest.mark.parametrize("at", [0, 3, 7, len(STEPS) - 1])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("degree", [1, None])
def test_curve_with_nan_is_rejected(at, value, degree):
    errors, floors = compute_difference_curve(quadratic, SLOPE)
    assert assess_error_slope(STEPS, errors, [math.nan] * len(STEPS), degree).problem
    errors[at] = value
    result = assess_error_slope(STEPS, errors, floors, degree)
    assert result.problem
    assert not result.best <= 1e-7


@pytest.mark.parametrize("steps", [STEPS, JUDGE_STEPS, STRUCTURE_STEPS, NETWORK_STEPS, POLYNOMIAL_STEPS])
@pytest.mark.parametrize("largest", [2.0**-4, 2.0**-6, 1.0])
def test_steps_of_polynomials_are_few_and_far_apart(steps, largest):
    up_to = [h for h in steps if h <= largest]
    for degree in (None, 3):
        assert _select_steps(steps, largest, degree) == up_to
    for degree in (0, 1, 2):
        few = _select_steps(steps, largest, degree)
        assert set(few) <= set(up_to)
        assert few[0] == up_to[0]
        assert len(few) >= 4
        assert all(a >= MIN_STEP_RATIO * b for a, b in pairwise(few))


def test_one_error_above_the_floor_is_rejected():
    errors, floors = compute_difference_curve(quadratic, SLOPE)
    for at in range(len(STEPS)):
        raised = list(errors)
        raised[at] = 1.01 * floors[at]
        assert assess_error_slope(STEPS, raised, floors, 2).problem


def test_curve_of_wrong_slope_is_rejected():
    steps = np.array(STEPS)
    for order, wrong in ((1.0, True), (1.85, True), (1.95, False), (2.05, False), (2.15, True), (4.0, True)):
        result = assess_error_slope(STEPS, list(steps**order + 1e-16 / steps), [1e-17 / h for h in STEPS], None)
        assert bool(result.problem) is wrong, order


def test_a_check_with_a_nan_never_passes():
    for error, tolerance in ((math.nan, 1.0), (0.0, math.nan), (math.nan, math.inf), (math.inf, 1.0)):
        assert not Check("", "", "", "", "", "", error=error, tolerance=tolerance).passed
