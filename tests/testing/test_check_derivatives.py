"""`check_derivatives` passes right functions, finds wrong ones, and has a verdict on calls that go wrong.

What it must find of torch's functions is in test_field.py.
"""

import contextlib
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from trigraph.testing import DerivativeError, check_derivatives
from trigraph.testing.curves import noise_of


def failed(result, kind):
    """Return the notes of the failed checks of a kind."""
    return [check.note for check in result.failures if check.kind == kind]


# A function of NumPy with its derivatives, and ways to spoil it.
def cube(x):
    return x**3


def gradient(x, g):
    return (3 * x[0] ** 2 * g[0],)


def second(x, g, u):
    return (6 * x[0] * g[0] * u[0],), (3 * x[0] ** 2 * u[0],)


X = np.random.default_rng(0).standard_normal((3, 2))


def one_wrong_element(x, g):
    (found,) = gradient(x, g)
    found[..., -1:].flat[-1] *= 1 + 1e-5
    return (found,)


def sums_of_rows(x):
    x -= 1e-3  # of the caller's array
    return cube(x)


def leaking(x):
    return cube(x) + 0 * x.sum()


def half_symmetric(x, g, u):
    return (6 * x[0] * g[0] * (u[0] + 0.01 * np.roll(u[0], 1)),), (3 * x[0] ** 2 * u[0],)


def wrong_in_cotangent(x, g, u):
    return (6 * x[0] * g[0] * u[0],), (3.01 * x[0] ** 2 * u[0],)


NUMPY_MISTAKES = {
    "an element": ("elements", 1, cube, one_wrong_element, second),
    "its dtype": ("form", 1, cube, lambda x, g: (gradient(x, g)[0].astype(np.float32),), second),
    "changed input": ("unchanged", "", sums_of_rows, gradient, second),
    "a leak": ("nan", 0, leaking, gradient, second),
    "memory order": ("layout", "", lambda x: x.ravel(order="K").reshape(x.shape) ** 3, gradient, second),
    "float32": ("float32", 0, lambda x: cube(x) * (1.001 if x.dtype == np.float32 else 1), gradient, second),
    "symmetry": ("symmetry", 2, cube, gradient, half_symmetric),
    "adjoint": ("adjoint", 2, cube, gradient, wrong_in_cotangent),
}


@pytest.mark.parametrize("name", NUMPY_MISTAKES)
def test_mistakes_in_numpy(name):
    kind, order, function, vjp, vjp2 = NUMPY_MISTAKES[name]
    result = check_derivatives(function, (X,), vjp=(vjp, vjp2), raises=False)
    assert any((c.kind, c.case) == (kind, str(order)) for c in result.failures), str(result)


def test_one_wrong_element_among_150():
    result = check_derivatives(
        cube, (np.linspace(1, 2, 150).reshape(15, 10),), order=1, vjp=one_wrong_element, raises=False
    )
    (note,) = failed(result, "elements")
    assert re.match(r"element \[14, 9\] is 10\.97893\d*; differences give 10\.97882\d* \+- \de-0[678]$", note)


@pytest.mark.parametrize(
    ("vjp", "text"),
    [
        (lambda x, g: (gradient(x, g)[0].sum(0),), "gradient 0 has shape (2,); expected (3, 2)"),
        (lambda x, g: gradient(x, g) * 2, "2 gradients were returned; expected 1"),
        (lambda x, g: "right", "gradient 0 is a str; expected an array of numpy"),
    ],
)
def test_gradients_of_another_form(vjp, text):
    result = check_derivatives(cube, (X,), order=1, vjp=vjp, raises=False)
    assert failed(result, "differences") == [text]


def test_right_functions_of_numpy():
    assert check_derivatives(cube, (X,), vjp=(gradient, second)).passed
    # Numbers in the place of arrays, an integer beside, an output that is one.
    result = check_derivatives(
        lambda a, n, b: (np.sin(a) * b**n, n),
        (np.float64(0.3), 2, np.array(0.7)),
        order=1,
        vjp=lambda x, g: (np.cos(x[0]) * x[2] ** 2 * g[0], 2 * np.sin(x[0]) * x[2] * g[0]),
        raises=False,
    )
    assert failed(result, "call") == ["output 1 is a int; expected an array of numpy"]
    sizes = {"sizes": np.array([3, 1, 2])}
    result = check_derivatives(
        lambda x, s: (np.repeat(x, s["sizes"]), s["sizes"]),
        (np.array([0.3, 0.1, -2.0]), sizes),
        order=1,
        vjp=lambda x, g: (np.add.reduceat(g[0], [0, 3, 4]),),
    )
    assert result.passed


torch_only = pytest.mark.skipif("not __import__('importlib').util.find_spec('torch')", reason="needs torch")


def right_functions():
    pytest.importorskip("torch")
    from right_functions import ONCE, RIGHT

    return [(name, *found, 2) for name, found in RIGHT.items()] + [(n, *found, 1) for n, found in ONCE.items()]


@torch_only
def test_no_false_alarm():
    """With one seed, and without a model, which is slow."""
    for name, function, inputs, order in right_functions():
        if name.endswith("DimeNet++"):
            continue
        result = check_derivatives(function, inputs(0), framework="torch", order=order, raises=False)
        assert result.passed, f"{name}\n{result}"


@pytest.mark.slow
@torch_only
def test_no_false_alarm_whatever_the_seed():
    for name, function, inputs, order in right_functions():
        for seed in range(20):
            result = check_derivatives(function, inputs(seed), framework="torch", order=order, seed=seed, raises=False)
            assert result.passed, f"{name}, seed {seed}\n{result}"


@torch_only
def test_functions_of_torch_that_are_not_asked_for_everything():
    import torch

    layer = torch.nn.Linear(3, 2).double()
    result = check_derivatives(layer, (torch.ones(4, 3, dtype=torch.float64),), framework="torch")
    (left_out,) = [check for check in result.checks if not check.offered]
    assert (left_out.case, left_out.note.split(":")[0]) == ("float32", "RuntimeError")
    result = check_derivatives(
        lambda x: torch.as_tensor(x.detach().numpy() ** 2), (torch.ones(3),), framework="torch", raises=False
    )
    assert any("is 0; differences give" in note for note in failed(result, "differences"))


def test_the_callers_arrays_stay_as_they_are():
    degrees, x = np.array([2, 0, 1]), X.copy()

    def changing(x, degrees):
        x += 1
        np.maximum(degrees, 1, out=degrees)
        return x / degrees[:, None]

    result = check_derivatives(changing, (x, degrees), order=1, vjp=lambda x, g: (g[0],), raises=False)
    assert [c.field for c in result.failures if c.kind == "unchanged"] == ["input 0", "input 1"]
    np.testing.assert_array_equal(degrees, [2, 0, 1])
    np.testing.assert_array_equal(x, X)


def test_rounding_is_seen_where_the_smallest_steps_change_nothing():
    noise = noise_of(lambda x: float(3 * np.sqrt(1 + x[0] ** 2)), np.zeros(1), np.ones(1), 0.0)
    assert 1e-17 < noise < 1e-14


# JAX


@pytest.fixture
def jax():
    jax = pytest.importorskip("jax", reason="needs JAX: pip install 'trigraph[jax]'")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield jax
    jax.config.update("jax_enable_x64", before)


def test_right_functions_of_jax(jax):
    np_, rng = jax.numpy, np.random.default_rng(0)

    def normal(*shape):
        return np_.asarray(rng.standard_normal(shape))

    for function, inputs in (
        (lambda x, w: jax.nn.silu(x @ w), (normal(2, 2), normal(2, 2))),
        (lambda x: jax.nn.softmax(jax.nn.relu(x)), (normal(2, 2),)),
        (lambda x: np_.linalg.norm(np_.exp(1e-8 * x), axis=-1), (1e8 * normal(1, 2),)),
        (lambda x, i: (np_.sin(x[i]), i, x.sum()), (normal(2), np_.array([0, 1]))),
        (lambda a, e: np_.sin(a) + e.sum(), (normal(), normal(0, 2))),
        (lambda x: 3 * x, (np_.asarray(X[:1], np_.float32),)),
    ):
        assert check_derivatives(function, inputs, framework="jax").passed


def test_mistakes_in_jax(jax):
    @jax.custom_vjp
    def sine(x):
        return jax.numpy.sin(x)

    sine.defvjp(lambda x: (sine(x), x), lambda x, g: (g * jax.numpy.cos(x) * (1 + 1e-5),))

    @jax.custom_vjp
    def exponential(x):
        return jax.numpy.exp(x)

    exponential.defvjp(lambda x: (exponential(x), x), lambda x, g: (g * jax.lax.stop_gradient(jax.numpy.exp(x)),))
    mask = jax.numpy.array([1.0, 0.0])
    x = jax.numpy.asarray(X[:2])
    for function, kind, order in (
        (sine, "differences", 1),
        (exponential, "differences", 2),
        (lambda x: jax.lax.stop_gradient(x) * x, "differences", 1),
        (lambda x: mask @ x, "nan", 0),
        (lambda x: jax.numpy.exp(x) * (1.001 if x.dtype == "float32" else 1), "float32", 0),
    ):
        result = check_derivatives(function, (x,), framework="jax", raises=False)
        assert any((c.kind, c.case) == (kind, str(order)) for c in result.failures), str(result)


def test_jax_in_single_precision_is_refused(jax):
    jax.config.update("jax_enable_x64", False)
    with pytest.raises(ValueError, match=r"^check_derivatives: JAX makes float32 of float64; expected jax\.config"):
        check_derivatives(cube, (jax.numpy.ones(3),), framework="jax")


def test_the_page_on_derivatives(jax):
    page = (Path(__file__).parents[2] / "docs" / "derivatives.md").read_text()
    (block,) = re.findall(r"^```{code-block} python\n:name: jax\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    exec(block, {})


# Calls that go wrong


def raising(x):
    raise ZeroDivisionError("of a stranger")


def leaving(x):
    sys.exit(3)


def hanging(x):
    while True:
        time.sleep(0.01)


CALLS = {
    raising: "ZeroDivisionError: of a stranger",
    leaving: "SystemExit: 3",
    hanging: "TimeExceeded: it takes longer than 0.1 s",
    str: "output 0 is a str; expected an array of numpy",
    np.argmax: "no output has an element of a floating dtype",
}


@pytest.mark.parametrize("function", CALLS, ids=lambda f: f.__name__)
def test_calls_that_go_wrong(function):
    result = check_derivatives(function, (X,), order=1, vjp=gradient, timeout=0.1, raises=False)
    assert not result.passed
    assert [check.note for check in result.checks] == [CALLS[function]]
    with pytest.raises(ValueError, match="there is no curve"):
        result.plot()


def test_what_goes_wrong_later():
    """Each check tells of it by itself; the others are made."""

    def raising_gradient(x, g):
        raise ZeroDivisionError("in the gradient")

    result = check_derivatives(cube, (X,), order=1, vjp=raising_gradient, raises=False)
    assert failed(result, "differences") == ["ZeroDivisionError: in the gradient"]
    assert [c.passed for c in result.checks if c.kind == "nan"] == [True]
    calls = []

    def of_other_shapes(x):
        calls.append(x)
        return x[: 3 if len(calls) == 1 else 2]

    result = check_derivatives(of_other_shapes, (X[:, 0],), order=1, vjp=lambda x, g: g, raises=False)
    assert failed(result, "differences") == ["shapes (2,) were returned; expected (3,), as by the first call"]


def test_a_function_that_hangs_on_nan():
    def waiting(x):
        while np.isnan(x).any():
            with contextlib.suppress(Exception):
                time.sleep(0.01)
        return cube(x)

    result = check_derivatives(waiting, (X,), order=1, vjp=gradient, timeout=2, raises=False)
    assert failed(result, "nan") == ["TimeExceeded: it takes longer than 2 s"]
    assert len(result.failures) == 1


def test_ctrl_c_is_the_users():
    def interrupted(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_derivatives(interrupted, (X,), order=1, vjp=gradient)


# Results


def test_a_kink_is_told_from_a_mistake():
    def relu(x):
        return np.maximum(x, 0)

    def slope(x, g):
        return ((x[0] > 0) * g[0],)

    result = check_derivatives(relu, (np.array([1.0, -1.0, 1e-3]),), order=1, vjp=slope)
    (remark,) = [check.note for check in result.checks if check.kind == "differences"]
    assert re.fullmatch(r"steps above \de-0\d cross a kink, or the function bends sharply", remark)
    result = check_derivatives(relu, (np.array([1.0, -1.0, 0.0]),), order=1, vjp=slope, raises=False)
    (note,) = failed(result, "elements")
    assert re.match(r"element \[2\] is -?0; .*; the point lies on a kink: slopes are -?0 before it and ", note)
    assert not failed(check_derivatives(relu, (np.array([0.0]),), order=1, vjp=slope, raises=False), "form")


FIRST = "cube: 2 of 19 checks of its derivatives failed"
WHERE = (
    r"  differences \(order 1, input 0\): element \[2, 1\] is 0\.375145\d*; differences give 0\.375142\d* \+- \de-\d+; "
)
CURVE = r"slope 0\.00; expected 2 \+- 0\.1 \(\de-0\d at h=1e-01, (\de-\d\d at h=\de-\d\d(, )?){5}\)"


def test_the_error_is_short_and_tells_where():
    with pytest.raises(DerivativeError) as caught:
        check_derivatives(cube, (X,), order=1, vjp=one_wrong_element)
    first, line = str(caught.value).splitlines()
    assert first == FIRST
    assert re.fullmatch(WHERE + CURVE, line), line
    assert caught.value.result.failures
    assert isinstance(caught.value, AssertionError)


def test_at_most_ten_lines():
    def f(*x):
        return sum(a.sum() ** 2 for a in x)

    def nothing(x, g):
        return [0 * a for a in x]

    with pytest.raises(DerivativeError) as caught:
        check_derivatives(f, tuple(X[:, 0] + k for k in range(12)), order=1, vjp=nothing)
    lines = str(caught.value).splitlines()
    assert len(lines) == 12
    assert re.fullmatch(r"  and \d+ more; see the result of this error", lines[-1])


def test_table_picture_and_page(tmp_path):
    def strange(x):
        """Give a name, and texts, that are markup."""
        return cube(x)

    strange.__name__ = "<b>[red]strange[/]"
    result = check_derivatives(
        strange, (X,), order=1, vjp=one_wrong_element, raises=False, skip={"nan": "[/] it may <be> anything"}
    )
    table = str(result)
    assert "<b>[red]strange[/]" in table
    assert "left out: [/] it may <be> anything" in table
    assert re.search(r"│ differences +│ 1 +│ input 0 +│ inf +│ 1.0e-07 +│ .*failed: element \[2, 1\]", table)
    assert len(result.plot().axes) >= 1
    result.save(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "&lt;b&gt;[red]strange[/]" in page
    assert "[/] it may &lt;be&gt; anything" in page
    assert "<strong>failed</strong>: element [2, 1] is" in page
    assert "<svg" in page
    assert not re.search(r"src=|href=\"[^#]", page)  # a page in one file


def test_kinds_are_left_out_by_name():
    kinds = ("form", "repeat", "layout", "nan", "float32", "adjoint", "symmetry")
    result = check_derivatives(cube, (X,), vjp=(gradient, second), skip=dict.fromkeys(kinds, "for a reason"))
    assert {check.kind for check in result.checks} == {"differences", "elements"}
    assert {check.case for check in result.checks} == {"1", "2"}
    result = check_derivatives(cube, (X,), order=1, vjp=gradient)
    assert not {"adjoint", "symmetry"} & {check.kind for check in result.checks}
    assert "2" not in {check.case for check in result.checks}


def test_the_same_seed_gives_the_same_result():
    first, again = (check_derivatives(cube, (X,), order=1, vjp=gradient, seed=3) for _ in range(2))
    assert [(c.error, c.tolerance, c.curve) for c in first.checks] == [
        (c.error, c.tolerance, c.curve) for c in again.checks
    ]


BAD = [
    (TypeError, "function is a int; expected a callable", {"function": 3}),
    (TypeError, "inputs is a ndarray; expected a tuple of arrays", {"inputs": X}),
    (ValueError, "order is 3; expected 1 or 2", {"order": 3}),
    (ValueError, "framework is 'theano'; expected 'numpy', 'torch' or 'jax'", {"framework": "theano", "vjp": None}),
    (TypeError, "vjp is a NoneType; expected a function for 'numpy'", {"vjp": None}),
    (TypeError, r"order is 2 and vjp is no pair; expected \(vjp, vjp2\), or order=1", {"order": 2}),
    (TypeError, "skip is a list; expected a mapping of kinds to reasons", {"skip": ["nan"]}),
    (ValueError, "skip names speed; expected form, repeat,", {"skip": {"speed": "why"}}),
    (ValueError, "timeout is 0; expected seconds above 0, or None", {"timeout": 0}),
    (ValueError, "inputs hold no numpy array of floating dtype with an element", {"inputs": (np.arange(3), "x")}),
    (ValueError, "inputs hold no numpy array of floating dtype with an element", {"inputs": (np.zeros((0, 3)),)}),
]


@pytest.mark.parametrize(("kind", "text", "changed"), BAD)
def test_bad_arguments(kind, text, changed):
    calls = []

    def counted(x):
        calls.append(x)
        return cube(x)

    arguments = {"function": counted, "inputs": (X,), "order": 1, "vjp": gradient, **changed}
    with pytest.raises(kind, match=f"^check_derivatives: {text}"):
        check_derivatives(**arguments)
    assert not calls


@torch_only
def test_vjp_is_numpys_alone():
    import torch

    with pytest.raises(TypeError, match=r"^check_derivatives: vjp is given for 'torch', which differentiates itself"):
        check_derivatives(torch.sin, (torch.ones(3),), framework="torch", vjp=gradient)
