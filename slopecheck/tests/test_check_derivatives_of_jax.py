"""`check_derivatives` passes correct JAX functions, fails wrong functions, and rejects single precision."""

import re
from pathlib import Path

import numpy as np
import pytest
from cubes import X, cube

from slopecheck import check_derivatives


@pytest.fixture
def jax():
    jax = pytest.importorskip("jax", reason="needs JAX: pip install 'slopecheck[jax]'")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield jax
    jax.config.update("jax_enable_x64", before)


def test_correct_jax_functions_pass(jax):
    np_, rng = jax.numpy, np.random.default_rng(0)

    def draw_normal(*shape):
        return np_.asarray(rng.standard_normal(shape))

    for order, (function, inputs) in zip(
        (3, 2, 2, 3, 2, 2),
        (
            (lambda x, w: jax.nn.silu(x @ w), (draw_normal(2, 2), draw_normal(2, 2))),
            (lambda x: jax.nn.softmax(jax.nn.relu(x)), (draw_normal(2, 2),)),
            (lambda x: np_.linalg.norm(np_.exp(1e-8 * x), axis=-1), (1e8 * draw_normal(1, 2),)),
            (lambda x, i: (np_.sin(x[i]), i, x.sum()), (draw_normal(2), np_.array([0, 1]))),
            (lambda a, e: np_.sin(a) + e.sum(), (draw_normal(), draw_normal(0, 2))),
            (lambda x: 3 * x, (np_.asarray(X[:1], np_.float32),)),
        ),
        strict=True,
    ):
        assert check_derivatives(function, inputs, order=order, framework="jax").passed


def test_wrong_jax_functions_fail_expected_check(jax):
    @jax.custom_vjp
    def exponential_without_second_derivative(x):
        return jax.numpy.exp(x)

    exponential_without_second_derivative.defvjp(
        lambda x: (exponential_without_second_derivative(x), x),
        lambda x, g: (g * jax.lax.stop_gradient(jax.numpy.exp(x)),),
    )
    third = jax.custom_vjp(jax.numpy.exp)
    third.defvjp(lambda x: (third(x), x), lambda x, g: (g * exponential_without_second_derivative(x),))
    mask = jax.numpy.array([1.0, 0.0])
    x = jax.numpy.asarray(X[:2])
    for function, kind, order in (
        (exponential_without_second_derivative, "differences", 2),
        (third, "differences", 3),
        (lambda x: jax.lax.stop_gradient(x) * x, "differences", 1),
        (lambda x: mask @ x, "nan", 0),
        (lambda x: jax.numpy.exp(x) * (1.001 if x.dtype == "float32" else 1), "float32", 0),
    ):
        result = check_derivatives(function, (x,), order=max(2, order), framework="jax", raises=False)
        assert any((c.kind, c.case) == (kind, str(order)) for c in result.failures), str(result)


def test_jax_in_single_precision_is_refused(jax):
    jax.config.update("jax_enable_x64", False)
    with pytest.raises(ValueError, match=r"^check_derivatives: JAX converts float64 to float32; expected jax\.config"):
        check_derivatives(cube, (jax.numpy.ones(3),), framework="jax")


def test_timeout_with_jax_needs_picklable_function(jax):
    x = jax.numpy.asarray(X[:1, :1])
    result = check_derivatives(cube, (x,), framework="jax", order=1, timeout=60)
    assert len(result.checks) > 5
    with pytest.raises(ValueError, match=r"^timeout: JAX does not survive a fork, and the function or"):
        check_derivatives(lambda x: x, (x,), framework="jax", timeout=60)


def test_jax_example_in_derivatives_page_runs(jax):
    page = (Path(__file__).parents[2] / "docs" / "derivatives.md").read_text()
    (block,) = re.findall(r"^```py\n(import jax\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    exec(block, {})
