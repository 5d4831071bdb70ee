"""`check_derivatives` passes right functions, finds wrong ones, and has a verdict on calls that go wrong.

test_field.py has right and wrong functions of torch.
"""

import contextlib
import ctypes
import io
import os
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from slopecheck import check_derivatives, running
from slopecheck.checks import KINDS
from slopecheck.report import checks_of, read


def failed(result, kind):
    """Return the notes of the failed checks of a kind."""
    return [check.note for check in result.failures if check.kind == kind]


# A NumPy function with its derivatives, and mistakes in it.
def cube(x):
    return x**3


def gradient(x, g):
    return (3 * x[0] ** 2 * g[0],)


def second(x, g, u):
    return (6 * x[0] * g[0] * u[0],), (3 * x[0] ** 2 * u[0],)


def third(x, g, u, v, h):
    of_x = 6 * g[0] * u[0] * v[0] + 6 * x[0] * h[0] * u[0]
    return (of_x,), (6 * x[0] * u[0] * v[0],), (6 * x[0] * g[0] * v[0] + 3 * x[0] ** 2 * h[0],)


X = np.random.default_rng(0).standard_normal((3, 2))


def one_wrong_element(x, g):
    (changed,) = gradient(x, g)
    changed[..., -1:].flat[-1] *= 1 + 1e-5
    return (changed,)


def sums_of_rows(x):
    x -= 1e-3  # in the caller's array
    return cube(x)


def leaking(x):
    return cube(x) + 0 * x.sum()


def half_symmetric(x, g, u):
    return (6 * x[0] * g[0] * (u[0] + 0.01 * np.roll(u[0], 1)),), (3 * x[0] ** 2 * u[0],)


def wrong_in_cotangent(x, g, u):
    return (6 * x[0] * g[0] * u[0],), (3.01 * x[0] ** 2 * u[0],)


def in_its_cotangent(x, g):
    g[0][...] *= 3 * x[0] ** 2
    return (g[0].copy(),)


BUFFERS = {dtype: np.zeros(X.shape, dtype) for dtype in ("float32", "float64")}


def in_a_buffer(x, g):
    return (np.multiply(g[0], 3 * x[0] ** 2, out=BUFFERS[x[0].dtype.name]),)


NUMPY_MISTAKES = {
    "an element": ("elements", 1, cube, one_wrong_element, second),
    "its dtype": ("form", 1, cube, lambda x, g: (gradient(x, g)[0].astype(np.float32),), second),
    "its shape": ("differences", 1, cube, lambda x, g: (gradient(x, g)[0].sum(0),), second),
    "one too many": ("form", 1, cube, lambda x, g: gradient(x, g) * 2, second),
    "a wider output": ("form", 0, lambda x: cube(x).astype(np.longdouble), gradient, second),
    "changed cotangent": ("unchanged", 1, cube, in_its_cotangent, second),
    "a buffer": ("repeat", 1, cube, in_a_buffer, second),
    "changed input": ("unchanged", 0, sums_of_rows, gradient, second),
    "a leak": ("nan", 0, leaking, gradient, second),
    "memory order": ("layout", "", lambda x: x.ravel(order="K").reshape(x.shape) ** 3, gradient, second),
    "float32": ("float32", 0, lambda x: cube(x) * (1.001 if x.dtype == np.float32 else 1), gradient, second),
    "symmetry": ("symmetry", 2, cube, gradient, half_symmetric),
    "adjoint": ("adjoint", 2, cube, gradient, wrong_in_cotangent),
}


# Wrong second derivatives of the cube, by the kind of check that must find them.
DRAWS = np.random.default_rng(1)


def of_second(change):
    """Return the second derivatives of the cube, changed by a function of them and of the arguments."""
    return lambda x, g, u: change(*(part[0] for part in second(x, g, u)), x[0], g[0], u[0])


def contiguous(array):
    """Read an array's memory as if it were contiguous."""
    return np.lib.stride_tricks.as_strided(array, array.shape, np.empty_like(array, order="C").strides)


def stored(of_x, of_g, x, g, u):
    BUFFERS[of_x.dtype.name][...] = of_x
    return (BUFFERS[of_x.dtype.name],), (of_g,)


def in_its_arguments(name):
    def change(of_x, of_g, **arguments):
        arguments[name] *= 1 + 1e-3
        return (of_x,), (of_g,)

    return lambda of_x, of_g, x, g, u: change(of_x, of_g, x=x, g=g, u=u)


SECOND_MISTAKES = {
    "float32": ("float32", 2, lambda h, j, x, g, u: ((h * (1.5 if h.dtype == np.float32 else 1),), (j,))),
    "float32 in the cotangent": (
        "float32",
        2,
        lambda h, j, x, g, u: ((h,), (j * (1.5 if j.dtype == np.float32 else 1),)),
    ),
    "random last bits": ("repeat", 2, lambda h, j, x, g, u: ((h * (1 + 1e-10 * DRAWS.random()),), (j,))),
    "a factor at random": ("repeat", 2, lambda h, j, x, g, u: ((h * (1.5 if DRAWS.random() < 0.3 else 1),), (j,))),
    "a buffer": ("repeat", 2, stored),
    "strided inputs": ("layout", "", lambda h, j, x, g, u: ((6 * contiguous(x) * g * u,), (j,))),
    "strided cotangents": ("layout", "", lambda h, j, x, g, u: ((6 * x * contiguous(g) * u,), (j,))),
    "strided directions": ("layout", "", lambda h, j, x, g, u: ((h,), (3 * x**2 * contiguous(u),))),
    "changed inputs": ("unchanged", 2, in_its_arguments("x")),
    "changed cotangents": ("unchanged", 2, in_its_arguments("g")),
    "changed directions": ("unchanged", 2, in_its_arguments("u")),
    "dtype": ("form", 2, lambda h, j, x, g, u: ((h,), (j.astype(np.float32),))),
}


@pytest.mark.parametrize("name", SECOND_MISTAKES)
def test_mistakes_in_second_derivatives(name):
    kind, order, change = SECOND_MISTAKES[name]
    result = check_derivatives(cube, (X,), vjp=(gradient, of_second(change)), raises=False)
    assert any((c.kind, c.case) == (kind, str(order)) for c in result.failures), str(result)
    assert not any(c.case == "1" for c in result.failures), str(result)


# Wrong third derivatives of the cube: the kind of check that must find the mistake, the array that it is in, and a
# function that makes them from the right ones (in inputs x, cotangents g and directions u) and the arguments.
THIRD_MISTAKES = {
    "inputs, sign": ("differences", "x", lambda r, x, g, u, v, h: (r[0] - 12 * g * u * v, r[1], r[2])),
    "inputs, one of many": ("elements", "x, 6 of 6 elements", lambda r, x, g, *_: (one_more(r[0]), r[1], r[2])),
    "inputs, NaN": ("differences", "x", lambda r, *_: (r[0] * np.where(r[0] == r[0].max(), np.nan, 1), *r[1:])),
    "inputs, no second part": ("adjoint", "inputs", lambda r, x, g, u, v, h: (r[0] - 6 * x * h * u, r[1], r[2])),
    "cotangents": ("adjoint", "cotangents", lambda r, *_: (r[0], 1.001 * r[1], r[2])),
    "cotangents, NaN": ("adjoint", "cotangents", lambda r, *_: (r[0], np.nan * r[1], r[2])),
    "directions, first part": ("adjoint", "directions", lambda r, x, g, u, v, h: (r[0], r[1], r[2] - x * g * v)),
    "directions, second part": ("adjoint", "directions", lambda r, x, g, u, v, h: (r[0], r[1], r[2] + x**2 * h)),
    "symmetry": (
        "symmetry",
        "all inputs",
        lambda r, x, g, u, v, h: (r[0] + 0.1 * g * u * (np.roll(v, 1) - v), r[1], r[2]),
    ),
    "float32": (
        "float32",
        "third derivative in direction of x",
        lambda r, x, *_: (r[0], r[1], r[2] * (1 + (x.dtype == "float32"))),
    ),
    "random": ("repeat", "third derivatives", lambda r, *_: (r[0], r[1] * (1 + 1e-10 * DRAWS.random()), r[2])),
    "strides": (
        "layout",
        "second direction of x, strided",
        lambda r, x, g, u, v, h: (r[0], 6 * x * u * contiguous(v), r[2]),
    ),
    "strides of the cotangent": (
        "layout",
        "direction of cotangent 0, strided",
        lambda r, x, g, u, v, h: (r[0], r[1], 6 * x * g * v + 3 * x**2 * contiguous(h)),
    ),
    "changed": (
        "unchanged",
        "direction of cotangent 0",
        lambda r, x, g, u, v, h: (r[0] + 0 * np.multiply(h, 2, out=h), r[1], r[2]),
    ),
    "dtype": ("form", "direction of x", lambda r, *_: (r[0], r[1], r[2].astype(np.float32))),
}


def one_more(array):
    return array * (1 + 1e-5 * (array == array.min()))


@pytest.mark.parametrize("name", THIRD_MISTAKES)
def test_mistakes_in_third_derivatives(name):
    kind, field, change = THIRD_MISTAKES[name]

    def wrong(*arguments):
        results = change([r for (r,) in third(*arguments)], *(a for (a,) in arguments))
        return tuple((r,) for r in results)

    result = check_derivatives(cube, (X,), order=3, vjp=(gradient, second, wrong), raises=False)
    assert (kind, field) in {(c.kind, c.field) for c in result.failures}, str(result)
    assert {c.case for c in result.failures} <= {"3", ""}, str(result)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("size", [1e9, 1e200])
def test_a_wrong_small_output_beside_a_large_one(together, size):
    """A wrong small output beside a large one is found, in one array or in two."""

    def both(x):
        parts = size * np.sin(x), np.cos(x)
        return np.stack(parts) if together else parts

    def slopes(factor):
        return lambda x, g: (
            size * np.cos(x[0]) * (g[0][0] if together else g[0])
            - factor * np.sin(x[0]) * (g[0][1] if together else g[1]),
        )

    assert check_derivatives(both, (X,), order=1, vjp=slopes(1)).passed
    result = check_derivatives(both, (X,), order=1, vjp=slopes(2), raises=False)
    assert {c.kind for c in result.failures} >= {"differences", "elements"}, str(result)


@pytest.mark.parametrize("name", NUMPY_MISTAKES)
def test_mistakes_in_numpy(name):
    kind, order, function, vjp, vjp2 = NUMPY_MISTAKES[name]
    result = check_derivatives(function, (X,), vjp=(vjp, vjp2), raises=False)
    assert any((c.kind, c.case) == (kind, str(order)) for c in result.failures), str(result)


@pytest.mark.parametrize("width", [10, 20])
def test_one_wrong_element_among_many(width):
    """One wrong element is named: of up to 200 each is differenced, of more by bisection."""
    x = np.linspace(1, 2, 15 * width).reshape(15, width)
    result = check_derivatives(cube, (x,), order=1, vjp=one_wrong_element, raises=False)
    (note,) = failed(result, "elements")
    assert re.match(rf"element \[14, {width - 1}\] is (\S+); differences give \S+ \+- \de-0[5678]$", note), note
    right, by_differences = map(float, re.findall(r"(?:is|give) (-?\d\S+\d)", note))
    assert right / by_differences == pytest.approx(1 + 1e-5, abs=3e-6)


def test_right_functions_of_numpy():
    result = check_derivatives(cube, (X,), order=3, vjp=(gradient, second, third))
    assert {c.case for c in result.checks if c.kind in ("differences", "elements")} == {"1", "2", "3"}
    assert check_derivatives(cube, (X,), vjp=(gradient, second, third)).passed
    # Inputs that are numbers, integer inputs, and integer outputs.
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


@torch_only
def test_gradients_that_are_right_in_company_alone():
    import torch

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(x, w)
            return x * w, x + w

        @staticmethod
        def backward(ctx, g, h):
            x, w = ctx.saved_tensors
            if g is None:
                return None, None
            h = 0 if h is None else h
            return g * w + h, g * x + h if ctx.needs_input_grad[0] else g * w + h

    inputs = torch.randn(3, generator=torch.Generator().manual_seed(0)), torch.ones(3)
    result = check_derivatives(Product.apply, inputs, framework="torch", order=1, raises=False)
    wrong = {c.field: c.kind for c in result.failures}
    assert wrong == {f"input {k}, sum over outputs": "alone" for k in (0, 1)} | {"input 1 alone": "alone"}, str(result)


@torch_only
def test_a_module_in_float32_and_inputs_that_name_their_framework():
    import torch

    inputs, layer = ([0, 1], torch.ones(4, 3)), torch.nn.Linear(3, 2)
    for function in (layer, lambda x: layer(x)):
        result = check_derivatives(function, inputs[1:], raises=False)
        (note,) = failed(result, "call")
        assert note.endswith("; inputs are converted to float64: convert a module by .double(), too")
    (note,) = failed(check_derivatives(torch.nn.Linear(3, 2).double(), inputs[1:], raises=False), "form")
    assert note.endswith("; inputs are as given here: give them in float64, as the module is")
    check_derivatives(lambda rows, x: x[rows].sin(), inputs)
    with pytest.raises(TypeError, match="vjp is given for 'torch'"):
        check_derivatives(torch.sin, inputs[1:], vjp=gradient)


@torch_only
def test_functions_of_torch_that_are_not_asked_for_everything():
    import torch

    layer = torch.nn.Linear(3, 2).double()
    result = check_derivatives(layer, (torch.ones(4, 3, dtype=torch.float64),), framework="torch")
    (left_out,) = [check for check in result.checks if not check.offered]
    assert (left_out.case, left_out.note.split(":")[0]) == ("float32", "RuntimeError")


def conditioned(number):
    """Return a matrix of 4 x 4 with this condition number."""
    rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((4, 4)))[0]
    return rotation @ np.diag(np.geomspace(1, 1 / number, 4)) @ rotation.T


def attention(*arrays):
    """Return attention behind a causal mask of one array, or of three."""
    import torch

    q, k, v = arrays * 3 if len(arrays) == 1 else arrays
    later = torch.ones(len(q), len(q)).triu(1).bool()
    return (q @ k.T / 2).masked_fill(later, -torch.inf).softmax(-1) @ v


# Right functions at ill-conditioned points, and the checks that may be inconclusive there.
HARD = {
    "no memory": (lambda x: x.abs(), X, set()),
    "saturated": (lambda x: x.softmax(-1), np.array([[0, 50, 100], [700, 0, -700]]), set()),
    "nearly saturated": (lambda x: x.softmax(-1), np.array([0, 30, 3]), set()),
    "far apart": (lambda x: x.softmax(-1), 1000 * X, set()),
    "flat": (lambda x: x.logsumexp(-1), np.array([0, 40, 1]), set()),
    "flatter": (lambda x: x.logsumexp(-1), np.array([0, 700, 1]), set()),
    "constant": (lambda x: x.softmax(-1).sum(), X, set()),
    "cancelling": (
        lambda x: (x + 1e6 - (x + 1e6).mean()) / (x + 1e6).std(),
        X,
        {"float32", "differences 1", "differences 2"},
    ),
    "cancelling inputs": (lambda x: (x - x.mean()) / x.std(), X + 1e6, {"differences 1", "differences 2"}),
    "badly conditioned": (
        lambda x: x.inverse(),
        conditioned(1e10),
        {"differences 1", "elements 1", "differences 2", "elements 2"},
    ),
    "singular": (
        lambda x: x.inverse(),
        conditioned(1e15),
        {"float32", "differences 1", "elements 1", "differences 2", "elements 2"},
    ),
    "determinant": (lambda x: x.det(), conditioned(1e10), set()),
    "large": (lambda x: (1e-200 * x).sin(), 1e200 * X, {"float32"}),
    "small": (lambda x: x.log(), 1e-100 * abs(X), {"float32"}),
    "beside the domain": (lambda x: x.sqrt(), np.array([1e-9, 1, 2]), set()),
    "beside a pole": (lambda x: x.log(), np.array([1e-9, 1, 2]), set()),
    "inside by little": (
        lambda x: (1 - x * x).sqrt(),
        np.array([1 - 1e-8, 0.5]),
        {"float32", "differences 1", "elements 1", "differences 2", "elements 2"},
    ),
    "small and linear": (lambda x: 3 * x, 1e-200 * X, {"float32"}),
    "with small results": (lambda x: 1e-200 * x, X, {"float32"}),
    "attention": (attention, X, {"nan"}),
    "attention of three": (attention, (X, X[::-1], 2 * X), {"nan"}),
}


def tensors(x):
    import torch

    return tuple(torch.from_numpy(np.array(a, np.float64)) for a in (x if isinstance(x, tuple) else (x,)))


@torch_only
@pytest.mark.parametrize("name", HARD)
def test_mistakes_at_hard_points_do_not_pass(name):
    """At ill-conditioned points a gradient wrong by a factor of 2 fails, or is inconclusive if rounding hides it."""
    function, x, _ = HARD[name]

    def wrong(*arguments):
        return function(*(2 * a - a.detach() for a in arguments))

    result = check_derivatives(wrong, tensors(x), framework="torch", order=1, raises=False)
    kinds = {c.kind for c in result.failures}
    if name in ("badly conditioned", "singular"):
        kinds = {c.kind for c in result.inconclusive}
    assert ("differences" in kinds) == (name != "constant"), str(result)  # its gradient is 0


@torch_only
@pytest.mark.parametrize("name", HARD)
def test_hard_points_are_no_failures(name):
    """At ill-conditioned points right functions do not fail; undecided checks are inconclusive, with a reason."""
    function, x, expected = HARD[name]
    inputs = tensors(x)
    result = check_derivatives(function, inputs, seed=1, order=3)
    undecided = [c for c in result.inconclusive if c.case != "3"]
    kinds = {f"{c.kind} {c.case}".strip() if c.kind in ("differences", "elements") else c.kind for c in undecided}
    assert kinds <= expected, str(result)
    assert bool(kinds) == bool(expected), str(result)
    assert all("decide" in c.note for c in result.inconclusive)
    assert f"{len(result.inconclusive)} inconclusive" in str(result) or not result.inconclusive


@torch_only
@pytest.mark.parametrize("order", [2, 3])
def test_higher_derivatives_that_are_right_in_company_alone(order):
    """A second or third backward that is wrong if one of its cotangents is absent (taken for ones) is found."""
    import torch

    class Bend(torch.autograd.Function):
        @staticmethod
        def forward(ctx, u, v, g, x, w):
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(u, v, g, x, w)
            return u * w + v * x, g * v, g * u

        @staticmethod
        def backward(ctx, *given):
            u, v, g, x, w = ctx.saved_tensors
            p, q, r = (torch.ones_like(x) if a is None else a for a in given)
            return p * w + r * g, p * x + q * g, q * v + r * u, p * v, p * u

    class Slope(torch.autograd.Function):
        @staticmethod
        def forward(ctx, g, x, w):
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(g, x, w)
            return g * w, g * x

        @staticmethod
        def backward(ctx, u, v):
            g, x, w = ctx.saved_tensors
            u, v = (torch.full_like(x, order == 2) if a is None else a for a in (u, v))
            return Bend.apply(u, v, g, x, w) if order == 3 else (u * w + v * x, g * v, g * u)

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x * w

        @staticmethod
        def backward(ctx, g):
            return Slope.apply(g, *ctx.saved_tensors)

    inputs = tensors((X, X[::-1].copy()))
    result = check_derivatives(Product.apply, inputs, order=order, raises=False)
    assert {(c.kind, c.case) for c in result.failures} == {("alone", str(order))}, str(result)


@torch_only
def test_what_is_of_torch_itself_is_told():
    """A failure that a function of torch shows alone names it; one of the user's own beside it does not."""
    import torch

    x, w = torch.randn(6, 4, dtype=torch.float64), torch.rand(4, dtype=torch.float64) + 0.5

    def normed(x, w):
        return torch.tanh(torch.nn.functional.batch_norm(x, None, None, w, training=True))

    def gradient(w):
        leaf = x.clone().requires_grad_()
        return torch.autograd.grad(normed(leaf, w).square().sum(), leaf)[0]

    def reads_by_pointer(x, w):
        return torch.nn.functional.batch_norm(x, None, None, None, training=True) * torch.as_strided(w, (4,), (1,))

    own = not torch.allclose(gradient(torch.stack([w, w * torch.nan], 1)[:, 0]), gradient(w))  # in torch 2.13
    skip = {kind: "another test" for kind in KINDS if kind != "layout"}
    for function, wrong, told in ((normed, own, own), (reads_by_pointer, True, False)):
        result = check_derivatives(function, (x, w), order=1, skip=skip, raises=False)
        notes = [c.note for c in result.failures if c.field == "w, strided"]
        assert bool(notes) == wrong
        assert any("alone: it is torch's own" in note for note in notes) == told, notes
        assert all("those of torch.nn.functional.batch_norm alone" in note for note in notes if told)


@torch_only
@pytest.mark.parametrize(("share", "told"), [(1e-15, True), (0.5, False)])
def test_sums_in_the_order_of_their_arrival_are_of_torch_itself(share, told, monkeypatch):
    """Last bits that differ in a function of torch alone are told, as of atomic additions; a random function is not."""
    import torch

    from slopecheck.frameworks import Torch

    def noisy(x):
        return x.square() * (1 + share * torch.rand((), dtype=x.dtype))

    monkeypatch.setattr(Torch, "parts", lambda self, inputs: [("torch.Tensor.index_add", Torch(noisy), inputs)])
    skip = {kind: "another test" for kind in KINDS if kind != "repeat"}
    x = torch.linspace(1, 2, 50, dtype=torch.float64)
    result = check_derivatives(noisy, (x,), order=1, skip=skip, raises=False)
    assert result.failures
    assert all(("torch.Tensor.index_add alone" in check.note) == told for check in result.failures)


def test_the_callers_arrays_stay_as_they_are():
    degrees, x = np.array([2, 0, 1]), X.copy()

    def changing(x, degrees):
        x += 1
        np.maximum(degrees, 1, out=degrees)
        return x / degrees[:, None]

    result = check_derivatives(changing, (x, degrees), order=1, vjp=lambda x, g: (g[0],), raises=False)
    assert [c.field for c in result.failures if c.kind == "unchanged"] == ["x", "degrees"]
    np.testing.assert_array_equal(degrees, [2, 0, 1])
    np.testing.assert_array_equal(x, X)


def several(x, *others):
    return x * others[0]


@torch_only
def test_checks_name_parameters():
    """Inputs have the names of the function's parameters, and numbers where it has none."""
    import torch

    x = torch.linspace(1, 2, 3, dtype=torch.float64)
    for function, names in [
        (lambda mass, speed: mass * speed, ["mass", "speed"]),
        (torch.nn.CosineSimilarity(), ["x1", "x2"]),
        (several, ["x", "input 1"]),
        (torch.mul, ["input 0", "input 1"]),
    ]:
        result = check_derivatives(function, (x[None], x.square()[None]), skip={"alone": "another test"})
        for label in ("{}", "gradient in {}", "direction of {}", "{}, strided", "{}, 3 of 3 elements"):
            assert {label.format(name) for name in names} <= {c.field for c in result.checks}, (label, str(result))
    with pytest.raises(AssertionError, match=r"\(order 1, speed\): element \[0\] is "):
        check_derivatives(lambda mass, speed: mass * speed.detach() + 0 * speed, (x, x.clone()))


# JAX


@pytest.fixture
def jax():
    jax = pytest.importorskip("jax", reason="needs JAX: pip install 'slopecheck[jax]'")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield jax
    jax.config.update("jax_enable_x64", before)


def test_right_functions_of_jax(jax):
    np_, rng = jax.numpy, np.random.default_rng(0)

    def normal(*shape):
        return np_.asarray(rng.standard_normal(shape))

    for order, (function, inputs) in zip(
        (3, 2, 2, 3, 2, 2),
        (
            (lambda x, w: jax.nn.silu(x @ w), (normal(2, 2), normal(2, 2))),
            (lambda x: jax.nn.softmax(jax.nn.relu(x)), (normal(2, 2),)),
            (lambda x: np_.linalg.norm(np_.exp(1e-8 * x), axis=-1), (1e8 * normal(1, 2),)),
            (lambda x, i: (np_.sin(x[i]), i, x.sum()), (normal(2), np_.array([0, 1]))),
            (lambda a, e: np_.sin(a) + e.sum(), (normal(), normal(0, 2))),
            (lambda x: 3 * x, (np_.asarray(X[:1], np_.float32),)),
        ),
        strict=True,
    ):
        assert check_derivatives(function, inputs, order=order, framework="jax").passed


def test_mistakes_in_jax(jax):
    @jax.custom_vjp
    def exponential(x):
        return jax.numpy.exp(x)

    exponential.defvjp(lambda x: (exponential(x), x), lambda x, g: (g * jax.lax.stop_gradient(jax.numpy.exp(x)),))
    third = jax.custom_vjp(jax.numpy.exp)
    third.defvjp(lambda x: (third(x), x), lambda x, g: (g * exponential(x),))
    mask = jax.numpy.array([1.0, 0.0])
    x = jax.numpy.asarray(X[:2])
    for function, kind, order in (
        (exponential, "differences", 2),
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


def test_a_new_process_beside_jax(jax):
    x = jax.numpy.asarray(X[:1, :1])
    result = check_derivatives(cube, (x,), framework="jax", order=1, timeout=60)
    assert len(result.checks) > 5
    with pytest.raises(ValueError, match=r"^timeout: JAX does not survive a fork, and the function or"):
        check_derivatives(lambda x: x, (x,), framework="jax", timeout=60)


def test_macos_does_not_fork(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ValueError, match=r"^timeout: libraries of macOS do not survive a fork, and the function or"):
        check_derivatives(lambda x: x, (X,), timeout=60)


def test_the_page_on_derivatives(jax):
    page = (Path(__file__).parents[2] / "docs" / "derivatives.md").read_text()
    (block,) = re.findall(r"^```py\n(import jax\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    exec(block, {})


# Calls that go wrong


def raising(x):
    raise ZeroDivisionError("of a stranger")


def leaving(x):
    sys.exit(3)


def hanging(x):
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(0.01)


def waiting_in_c(x):
    ctypes.CDLL(None).pause()


def ending(x):
    os._exit(0)


def crashing(x):
    os.kill(os.getpid(), signal.SIGKILL)  # SIGSEGV would make pytest print a traceback


CALLS = {
    raising: (None, "ZeroDivisionError: of a stranger"),
    leaving: (None, "SystemExit: 3"),
    str: (None, "output 0 is a str; expected an array of numpy"),
    np.argmax: (60, "no output has an element of a floating dtype"),
    hanging: (0.2, "it takes longer than 0.2 s"),
    waiting_in_c: (0.2, "it takes longer than 0.2 s"),
    ending: (60, "the process that runs it ended with status 0"),
    crashing: (60, "the process that runs it was ended by signal SIGKILL"),
}


@pytest.mark.parametrize("function", CALLS, ids=lambda f: f.__name__)
def test_calls_that_go_wrong(function):
    timeout, note = CALLS[function]
    result = check_derivatives(function, (X,), order=1, vjp=gradient, timeout=timeout, raises=False)
    assert not result.passed
    assert [check.note for check in result.checks] == [note]
    with pytest.raises(ValueError, match="there is no curve"):
        result.plot()


def test_what_goes_wrong_later():
    """A function that fails after its first call fails each check that meets it; the others run."""

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


@pytest.mark.parametrize(
    ("first", "second", "note"),
    [(2, 1, ["2 gradients in the inputs"]), (1, 2, ["2 second derivatives in the inputs"]), (1, 1, [])],
)
@pytest.mark.parametrize("left_out", [{}, {"form": "for a reason"}])
def test_too_many_derivatives_are_told_once(first, second, note, left_out):
    """A gradient for each input, None for edges, is one mistake: integers have none."""

    def gathered(x, index):
        return x[index] ** 2

    def vjp(inputs, cotangents):
        (x, index), (g,) = inputs, cotangents
        gradient = np.zeros_like(x)
        np.add.at(gradient, index, 2 * x[index] * g)
        return (gradient, None)[:first]

    def vjp2(inputs, cotangents, directions):
        (x, index), (g,), (u,) = inputs, cotangents, directions
        gradient = np.zeros_like(x)
        np.add.at(gradient, index, 2 * u[index] * g)
        return (gradient, None)[:second], (2 * x[index] * u[index],)

    inputs = np.linspace(1.0, 2.0, 4), np.array([0, 2, 2])
    result = check_derivatives(gathered, inputs, vjp=(vjp, vjp2), skip=left_out, raises=False)
    expected = [f"{text} were returned; expected 1: those of the floating inputs (x) alone" for text in note]
    assert [c.note for c in result.failures] == expected


@pytest.mark.parametrize(("spoilt", "note"), [(waiting_in_c, "it takes longer than 2 s"), (ending, "the process that")])
def test_another_process_goes_on(spoilt, note):
    """If the child process ends or hangs, one check is lost; the others have the results they have without a child."""

    def function(x):
        return cube(x) if np.isfinite(x).all() else spoilt(x)

    keywords = {"order": 1, "vjp": one_wrong_element, "raises": False}
    result = check_derivatives(function, (X,), timeout=2, **keywords)
    assert [c.note.startswith(note) for c in result.checks if c.kind == "nan"] == [True]
    expected = [c for c in check_derivatives(cube, (X,), **keywords).checks if c.kind != "nan"]
    assert [(c.kind, c.field, c.passed) for c in result.checks if c.kind != "nan"] == [
        (c.kind, c.field, c.passed) for c in expected
    ]
    same = check_derivatives(cube, (X,), timeout=60, **keywords).checks
    assert [c.curve for c in same if c.kind != "nan"] == [c.curve for c in expected]


@torch_only
def test_a_fork_beside_threads_of_torch():
    """torch's threads do not survive a fork; the child must run on one thread instead of waiting for them."""
    import torch

    def function(x):
        return (x.sum() * torch.ones(100_000, dtype=x.dtype)).exp().mean()

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        function(torch.ones(3, requires_grad=True)).backward()
        result = check_derivatives(function, (torch.ones(3),), framework="torch", order=1, timeout=20)
    finally:
        torch.set_num_threads(before)
    assert result.skipped == {"threads": "a fork has one thread"}


def test_a_terminal_shows_a_bar(monkeypatch):
    """A terminal shows a progress bar, and names with brackets as they are."""
    text = io.StringIO()
    monkeypatch.setattr(running, "PATIENCE", 0.0)
    monkeypatch.setattr(running, "Console", lambda stderr: Console(file=text, force_terminal=True))
    monkeypatch.setattr(cube, "__name__", "[/]")
    check_derivatives(cube, (X,), order=1, vjp=gradient)
    assert "[/]: 1 differences" in text.getvalue()


def test_ctrl_c_is_the_users():
    def interrupted(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_derivatives(interrupted, (X,), order=1, vjp=gradient)


# Results


def test_a_failure_is_an_assertion_error_with_the_result():
    with pytest.raises(
        AssertionError, match=r"^cube: 2 of 24 checks of its derivatives failed\n  differences"
    ) as caught:
        check_derivatives(cube, (X,), order=1, vjp=one_wrong_element)
    assert caught.value.result.failures


def test_a_kink_is_told_from_a_mistake():
    def relu(x):
        return np.maximum(x, 0)

    def slope(x, g):
        return ((x[0] > 0) * g[0],)

    result = check_derivatives(relu, (np.array([1.0, -1.0, 1e-3]),), order=1, vjp=slope)
    (remark,) = [check.note for check in result.checks if check.kind == "differences"]
    assert re.fullmatch(r"steps above \de-0\d cross a kink, or the curvature is large", remark)
    result = check_derivatives(relu, (np.array([1.0, -1.0, 0.0]),), order=1, vjp=slope, raises=False)
    (note,) = failed(result, "elements")
    assert re.match(r"element \[2\] is -?0; .*; the point lies on a kink: slopes are -?0 before it and ", note)
    assert not failed(check_derivatives(relu, (np.array([0.0]),), order=1, vjp=slope, raises=False), "form")


def test_table_picture_and_page(tmp_path):
    def strange(x):
        """Return a function whose name and messages look like markup."""
        return cube(x)

    strange.__name__ = "<b>[red]strange[/]"
    result = check_derivatives(
        strange, (X,), order=1, vjp=one_wrong_element, raises=False, skip={"nan": "[/] it may <be> anything"}
    )
    table = str(result)
    marks = ["failed: " in line for line in table.splitlines() if re.match(r"│ \w", line)]
    assert marks == sorted(marks, reverse=True), "failures are first"
    assert "<b>[red]strange[/]" in table
    assert "skipped: [/] it may <be> anything" in table
    assert re.search(r"│ differences +│ 1 +│ x +│ inf +│ 1.0e-07 +│ .*failed: element \[2, 1\]", table)
    assert len(result.plot().axes) >= 1
    result.save(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "&lt;b&gt;[red]strange[/]" in page
    assert "failed: element [2, 1] is" in page
    result.save(tmp_path / "report.json")
    report = read(tmp_path / "report.json")
    assert (report["command"], report["verdict"]) == ("Derivatives of <b>[red]strange[/]", "failed")
    assert report["skips"] == [{"what": "nan", "reason": "[/] it may <be> anything"}]
    assert [(c.kind, c.failed, c.curve) for c in checks_of(report)] == [
        (c.kind, c.failed, c.curve) for c in result.checks
    ]


def test_kinds_are_left_out_by_name():
    kinds = ("form", "repeat", "layout", "nan", "float32", "adjoint", "symmetry")
    result = check_derivatives(cube, (X,), vjp=(gradient, second), skip=dict.fromkeys(kinds, "for a reason"))
    assert {check.kind for check in result.checks} == {"differences", "elements"}
    assert {check.case for check in result.checks} == {"1", "2"}
    result = check_derivatives(cube, (X,), order=1, vjp=gradient)
    assert not {"adjoint", "symmetry"} & {check.kind for check in result.checks}
    assert "2" not in {check.case for check in result.checks}


BAD = [
    (TypeError, "function is a int; expected a callable", {"function": 3}),
    (TypeError, "inputs is a ndarray; expected a tuple of arrays", {"inputs": X}),
    (ValueError, "order is 4; expected 1, 2 or 3", {"order": 4}),
    (ValueError, "skip of 'nan' is ' '; expected a reason", {"skip": {"nan": " "}}),
    (ValueError, "framework is 'theano'; expected 'numpy', 'torch' or 'jax'", {"framework": "theano", "vjp": None}),
    (TypeError, "vjp is a NoneType; expected a function for 'numpy'", {"vjp": None}),
    (TypeError, r"order is 2 and vjp is not a pair; expected \(vjp, vjp2\), or order=1", {"order": 2}),
    (
        TypeError,
        r"order is 3 and vjp is not three functions; expected \(vjp, vjp2, vjp3\), or order=2",
        {"order": 3, "vjp": (gradient, second)},
    ),
    (TypeError, "order is 2 and vjp is not a pair", {"order": 2, "vjp": (gradient, None, third)}),
    (TypeError, "skip is a list; expected a mapping of kinds to reasons", {"skip": ["nan"]}),
    (ValueError, "skip names speed; expected form, repeat,", {"skip": {"speed": "why"}}),
    (ValueError, "timeout is 0; expected seconds above 0, or None", {"timeout": 0}),
    (TypeError, "vjp is given for 'torch', which differentiates itself", {"framework": "torch"}),
    (ValueError, "inputs have no nonempty numpy array of floating dtype", {"inputs": (np.arange(3), "x")}),
    (ValueError, "inputs have no nonempty numpy array of floating dtype", {"inputs": (np.zeros((0, 3)),)}),
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
