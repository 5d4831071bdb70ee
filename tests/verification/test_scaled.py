"""Tests of the arithmetic of the judge's types: `trigraph verify` would not notice a scale that is too large."""

import math
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from programs import run_command

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(shutil.which("gfortran") is None and "CI" not in os.environ, reason="needs gfortran")

# Number x, scale of x, number y, scale of y; each scale is at least the absolute value of its number.
NUMBERS = [(0.7, 0.9, -1.3, 1.4), (-2.5, 3.0, 0.4, 0.4), (1.0, 1.0, 1.0, 2.5), (0.3, 8.0, 5.0, 7.0)]
EIGHT_EPS = 8 * 2.0**-23
# Functions of one number; their expected scales use difference quotients instead of analytic derivatives.
FUNCTIONS = {"sin": math.sin, "cos": math.cos, "exp": math.exp, "tanh": math.tanh}


@pytest.fixture(scope="module")
def operation_results(tmp_path_factory):
    """Return the value and scale of every operation for each entry of NUMBERS."""
    folder = tmp_path_factory.mktemp("scaled")
    sources = ["common/kinds.f90", "reference/scaled.f90", "reference/dual.f90"]
    sources = [*(ROOT / "fortran" / name for name in sources), Path(__file__).with_name("scaled_rules.f90")]
    run_command("gfortran", *sources, "-o", "rules", cwd=folder)
    lines = "".join(" ".join(map(repr, numbers)) + "\n" for numbers in NUMBERS)
    printed = run_command(folder / "rules", input=lines).stdout
    words = [line.split() for line in printed.splitlines()]
    each = len(words) // len(NUMBERS)
    return [
        {name: (float(v), float(s)) for name, v, s in words[i * each : (i + 1) * each]} for i in range(len(NUMBERS))
    ]


def estimate_derivative(function, x, step=1e-5):
    return (function(x + step) - function(x - step)) / (2 * step)


@pytest.mark.parametrize("number", range(len(NUMBERS)))
def test_scales_obey_the_rules_of_operations(operation_results, number):
    """Scales add in sums, obey the product rule in products and quotients, and are |f| + |f'| scale(x) for f(x)."""
    results, (x, scale_x, y, scale_y) = operation_results[number], NUMBERS[number]
    expected = {
        "input": (x, abs(x)),
        "integer": (2, 2),
        "add": (x + y, scale_x + scale_y),
        "subtract": (x - y, scale_x + scale_y),
        "subtract_integer": (x - 3, scale_x + 3),
        "subtract_from_integer": (3 - x, scale_x + 3),
        "negate": (-x, scale_x),
        "multiply": (x * y, scale_x * scale_y),
        "multiply_integer": (-3 * x, 3 * scale_x),
        # |x y|, plus the excess of each factor's scale over its absolute value times the other factor, plus a term
        # for errors of 8 eps of the scale in both factors.
        "times": (
            x * y,
            abs(x * y) + abs(x) * (scale_y - abs(y)) + (scale_x - abs(x)) * abs(y) + EIGHT_EPS * scale_x * scale_y,
        ),
        "divide": (x / y, scale_x / abs(y) + scale_y * abs(estimate_derivative(lambda d: x / d, y))),
        "divide_integer": (x / -3, scale_x / 3),
        "scale": (x / 8, scale_x / 8),
        "exponent": (2 * 2.0 ** math.frexp(x)[1], 2 * 2.0 ** math.frexp(x)[1]),
        "at_most": (2 if x <= y else -2, 2),
        "at_most_integer": (2 if x <= 1 else -2, 2),
        "at_least_integer": (2 if x >= 1 else -2, 2),
    }
    for name, function in FUNCTIONS.items():
        expected[name] = (function(x), abs(function(x)) + abs(estimate_derivative(function, x)) * scale_x)
    square, of_square = y * y, y * y + 2 * abs(y) * (scale_y - abs(y)) + EIGHT_EPS * scale_y**2
    expected["sqrt"] = (abs(y), abs(y) + estimate_derivative(math.sqrt, square) * of_square)
    assert {n for n in results if not n.startswith(("value_", "derivative_"))} == expected.keys()
    for name, pair in expected.items():
        assert np.allclose(results[name], pair, rtol=1e-8, atol=0), name


def multiply_scaled(a, b):
    """Return the value and scale of a product, computed as in `test_scales_obey_the_rules_of_operations`."""
    rest = abs(a[0]) * b[1] + a[1] * abs(b[0]) - abs(a[0] * b[0])
    return a[0] * b[0], rest + EIGHT_EPS * a[1] * b[1]


def divide_scaled(a, b):
    return a[0] / b[0], a[1] / abs(b[0]) + abs(a[0]) * b[1] / b[0] ** 2


def add_scaled(a, b, sign=1):
    return a[0] + sign * b[0], a[1] + b[1]


@pytest.mark.parametrize("number", range(len(NUMBERS)))
def test_dual_numbers_obey_the_rules_of_calculus(operation_results, number):
    """The dual numbers (x, y) and (y, x) keep the values of x and y; their derivatives obey the rules of calculus."""
    results, (value_x, scale_x, value_y, scale_y) = operation_results[number], NUMBERS[number]
    x, y = (value_x, scale_x), (value_y, scale_y)
    minus_y, zero = (-value_y, scale_y), (0, 0)
    minus_sine = (-results["sin"][0], results["sin"][1])
    expected = {
        "add": add_scaled(y, x),
        "subtract": add_scaled(y, x, -1),
        "subtract_integer": y,
        "subtract_from_integer": minus_y,
        "negate": minus_y,
        "multiply": (value_y**2 + value_x**2, scale_y**2 + scale_x**2),
        "multiply_integer": (-3 * value_y, 3 * scale_y),
        "times": add_scaled(multiply_scaled(y, y), multiply_scaled(x, x)),
        "divide": divide_scaled(add_scaled(y, multiply_scaled(divide_scaled(x, y), x), -1), y),
        "divide_integer": (value_y / -3, scale_y / 3),
        "scale": (value_y / 8, scale_y / 8),
        "sin": multiply_scaled(results["cos"], y),
        "cos": multiply_scaled(minus_sine, y),
        "exp": multiply_scaled(results["exp"], y),
        "tanh": multiply_scaled(add_scaled((1, 1), multiply_scaled(results["tanh"], results["tanh"]), -1), y),
        "sqrt": divide_scaled(
            add_scaled(multiply_scaled(x, y), multiply_scaled(y, x)), [2 * n for n in results["sqrt"]]
        ),
    }
    expected |= dict.fromkeys(("input", "integer", "exponent", "at_most", "at_most_integer", "at_least_integer"), zero)
    assert {n.removeprefix("derivative_") for n in results if n.startswith("derivative_")} == expected.keys()
    for name, pair in expected.items():
        assert np.allclose(results[f"derivative_{name}"], pair, rtol=1e-8, atol=0), name
        assert results[f"value_{name}"] == results[name], name
