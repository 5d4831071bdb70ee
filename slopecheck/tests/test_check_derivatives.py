"""`check_derivatives` passes correct functions and fails wrong functions.

test_field.py has further correct and wrong functions of torch tensors.
"""

import re

import numpy as np
import pytest
from cubes import (
    X,
    cube,
    gradient,
    gradient_with_wrong_element,
    list_failure_notes,
    second_derivatives,
    third_derivatives,
)

from slopecheck import check_derivatives
from slopecheck.kinds import FUNCTION_CHECKS


def cube_changing_input(x):
    x -= 1e-3  # changes the caller's array in place
    return cube(x)


BUFFERS = {dtype: np.zeros(X.shape, dtype) for dtype in ("float32", "float64")}
DRAWS = np.random.default_rng(1)


def store_in_buffer(array):
    BUFFERS[array.dtype.name][...] = array
    return BUFFERS[array.dtype.name]


def read_as_contiguous(array):
    """Read the memory of an array as if the array were contiguous."""
    return np.lib.stride_tricks.as_strided(array, array.shape, np.empty_like(array, order="C").strides)


def scale_smallest_element(array):
    return array * (1 + 1e-5 * (array == array.min()))


def scale_only_float32(factor, array):
    """Multiply an array by a factor, but only in float32."""
    return array * (factor if array.dtype == np.float32 else 1)


# Wrong cubes (order 0) and wrong derivatives of the cube, by order. Each row has the kind of check that must find the
# mistake, the order or array in which it is found, and the wrong function or a function that changes correct results.
MISTAKES = {
    0: {
        "a wider output": ("form", "0", lambda x: cube(x).astype(np.longdouble)),
        "changed input": ("unchanged", "0", cube_changing_input),
        "a leak": ("nan", "0", lambda x: cube(x) + 0 * x.sum()),
        "memory order": ("layout", "", lambda x: x.ravel(order="K").reshape(x.shape) ** 3),
        "float32": ("float32", "0", lambda x: scale_only_float32(1.001, cube(x))),
    },
    1: {
        "an element": ("elements", "1", lambda r, *_: [scale_smallest_element(r[0])]),
        "its dtype": ("form", "1", lambda r, *_: [r[0].astype(np.float32)]),
        "its shape": ("differences", "1", lambda r, *_: [r[0].sum(0)]),
        "one too many": ("form", "1", lambda r, *_: r * 2),
        "changed cotangent": ("unchanged", "1", lambda r, x, g: [np.multiply(g, 3 * x**2, out=g).copy()]),
        "a buffer": ("kept", "1", lambda r, *_: [store_in_buffer(r[0])]),
    },
    2: {
        "symmetry": ("symmetry", "2", lambda r, x, g, u: [6 * x * g * (u + 0.01 * np.roll(u, 1)), r[1]]),
        "adjoint": ("adjoint", "2", lambda r, *_: [r[0], 1.003 * r[1]]),
        "float32": ("float32", "2", lambda r, *_: [scale_only_float32(1.5, r[0]), r[1]]),
        "float32 in the cotangent": ("float32", "2", lambda r, *_: [r[0], scale_only_float32(1.5, r[1])]),
        "random last bits": ("repeat", "2", lambda r, *_: [r[0] * (1 + 1e-10 * DRAWS.random()), r[1]]),
        "a factor at random": ("repeat", "2", lambda r, *_: [r[0] * (1.5 if DRAWS.random() < 0.3 else 1), r[1]]),
        "a buffer": ("kept", "2", lambda r, *_: [store_in_buffer(r[0]), r[1]]),
        "strided inputs": ("layout", "", lambda r, x, g, u: [6 * read_as_contiguous(x) * g * u, r[1]]),
        "strided cotangents": ("layout", "", lambda r, x, g, u: [6 * x * read_as_contiguous(g) * u, r[1]]),
        "strided directions": ("layout", "", lambda r, x, g, u: [r[0], 3 * x**2 * read_as_contiguous(u)]),
        "changed inputs": ("unchanged", "2", lambda r, x, g, u: [r[0] + 0 * np.multiply(x, 1.001, out=x), r[1]]),
        "changed cotangents": ("unchanged", "2", lambda r, x, g, u: [r[0] + 0 * np.multiply(g, 1.001, out=g), r[1]]),
        "changed directions": ("unchanged", "2", lambda r, x, g, u: [r[0] + 0 * np.multiply(u, 1.001, out=u), r[1]]),
        "dtype": ("form", "2", lambda r, *_: [r[0], r[1].astype(np.float32)]),
    },
    3: {
        "inputs, sign": ("differences", "x", lambda r, x, g, u, v, h: [r[0] - 12 * g * u * v, *r[1:]]),
        "inputs, one of many": ("elements", "x, 6 of 6 elements", lambda r, *_: [scale_smallest_element(r[0]), *r[1:]]),
        "inputs, NaN": ("differences", "x", lambda r, *_: [r[0] * np.where(r[0] == r[0].max(), np.nan, 1), *r[1:]]),
        "inputs, no second part": ("adjoint", "inputs", lambda r, x, g, u, v, h: [r[0] - 6 * x * h * u, *r[1:]]),
        "cotangents": ("adjoint", "cotangents", lambda r, *_: [r[0], 1.001 * r[1], r[2]]),
        "cotangents, NaN": ("adjoint", "cotangents", lambda r, *_: [r[0], np.nan * r[1], r[2]]),
        "directions, first part": ("adjoint", "directions", lambda r, x, g, u, v, h: [*r[:2], r[2] - x * g * v]),
        "directions, second part": ("adjoint", "directions", lambda r, x, g, u, v, h: [*r[:2], r[2] + x**2 * h]),
        "symmetry": (
            "symmetry",
            "all inputs",
            lambda r, x, g, u, v, h: [r[0] + 0.1 * g * u * (np.roll(v, 1) - v), *r[1:]],
        ),
        "float32": (
            "float32",
            "third derivative in direction of x",
            lambda r, *_: [*r[:2], scale_only_float32(2, r[2])],
        ),
        "random": ("repeat", "third derivatives", lambda r, *_: [r[0], r[1] * (1 + 1e-10 * DRAWS.random()), r[2]]),
        "strides": (
            "layout",
            "second direction of x, strided",
            lambda r, x, g, u, v, h: [r[0], 6 * x * u * read_as_contiguous(v), r[2]],
        ),
        "strides of the cotangent": (
            "layout",
            "direction of cotangent 0, strided",
            lambda r, x, g, u, v, h: [*r[:2], 6 * x * g * v + 3 * x**2 * read_as_contiguous(h)],
        ),
        "changed": (
            "unchanged",
            "direction of cotangent 0",
            lambda r, x, g, u, v, h: [r[0] + 0 * np.multiply(h, 2, out=h), *r[1:]],
        ),
        "dtype": ("form", "direction of x", lambda r, *_: [*r[:2], r[2].astype(np.float32)]),
    },
}


@pytest.mark.parametrize(("order", "name"), [(order, name) for order, table in MISTAKES.items() for name in table])
def test_numpy_mistakes_fail_the_expected_check(order, name):
    kind, where, change = MISTAKES[order][name]
    functions = [cube, gradient, second_derivatives, third_derivatives]

    def compute_with_mistake(*arguments):
        results, given = functions[order](*arguments), [a for (a,) in arguments]
        if order == 1:
            return tuple(change(list(results), *given))
        return tuple((r,) for r in change([r for (r,) in results], *given))

    used = [change if n == 0 == order else compute_with_mistake if n == order else f for n, f in enumerate(functions)]
    result = check_derivatives(used[0], (X,), vjp=tuple(used[1 : max(3, order + 1)]), raises=False)
    assert {(kind, where)} & {(c.kind, at) for c in result.failures for at in (c.case, c.field)}, str(result)
    assert not {c.case for c in result.failures} & set("123"[: max(0, order - 1)]), str(result)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("size", [1e9, 1e200])
def test_wrong_small_output_beside_large_one_fails(together, size):
    """A wrong small output next to a large one is found, in a common array or in separate arrays."""

    def compute_large_and_small_outputs(x):
        parts = size * np.sin(x), np.cos(x)
        return np.stack(parts) if together else parts

    def make_gradient_with_factor(factor):
        return lambda x, g: (
            size * np.cos(x[0]) * (g[0][0] if together else g[0])
            - factor * np.sin(x[0]) * (g[0][1] if together else g[1]),
        )

    assert check_derivatives(compute_large_and_small_outputs, (X,), order=1, vjp=make_gradient_with_factor(1)).passed
    result = check_derivatives(
        compute_large_and_small_outputs, (X,), order=1, vjp=make_gradient_with_factor(2), raises=False
    )
    assert {c.kind for c in result.failures} >= {"differences", "elements"}, str(result)


@pytest.mark.parametrize("width", [10, 20])
def test_failure_names_single_wrong_element(width):
    """A failure names a single wrong element; beyond 200 elements, bisection finds the element."""
    x = np.linspace(1, 2, 15 * width).reshape(15, width)
    result = check_derivatives(cube, (x,), order=1, vjp=gradient_with_wrong_element, raises=False)
    (note,) = list_failure_notes(result, "elements")
    assert re.match(rf"element \[14, {width - 1}\] is (\S+); differences give \S+ \+- \de-0[5678]$", note), note
    right, by_differences = map(float, re.findall(r"(?:is|give) (-?\d\S+\d)", note))
    assert right / by_differences == pytest.approx(1 + 1e-5, abs=3e-6)


def test_correct_numpy_functions_pass():
    result = check_derivatives(cube, (X,), order=3, vjp=(gradient, second_derivatives, third_derivatives))
    assert {c.case for c in result.checks if c.kind in ("differences", "elements")} == {"1", "2", "3"}
    assert check_derivatives(cube, (X,), vjp=(gradient, second_derivatives, third_derivatives)).passed
    # Inputs may be scalars and integers, and outputs may be integers.
    result = check_derivatives(
        lambda a, n, b: (np.sin(a) * b**n, n),
        (np.float64(0.3), 2, np.array(0.7)),
        order=1,
        vjp=lambda x, g: (np.cos(x[0]) * x[2] ** 2 * g[0], 2 * np.sin(x[0]) * x[2] * g[0]),
        raises=False,
    )
    assert list_failure_notes(result, "call") == ["output 1 is a int; expected an array of numpy"]
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
def test_gradients_wrong_when_requested_alone_fail():
    from field.entry import attach_gradient, draw_normal

    def gradient_wrong_in_single_requests(ctx, g, h, x, w):
        if g is None:
            return None, None
        h = 0 if h is None else h
        return g * w + h, g * x + h if ctx.needs_input_grad[0] else g * w + h

    product = attach_gradient(lambda x, w: (x * w, x + w), gradient_wrong_in_single_requests, zeros=False, context=True)
    result = check_derivatives(product, (draw_normal(3), draw_normal(3) ** 0), framework="torch", order=1, raises=False)
    wrong = {c.field: c.kind for c in result.failures}
    assert wrong == dict.fromkeys(("x, sum over outputs", "w, sum over outputs", "w alone"), "alone"), str(result)


@torch_only
def test_float32_module_fails_and_tensors_select_torch():
    import torch

    inputs, layer = ([0, 1], torch.ones(4, 3)), torch.nn.Linear(3, 2)
    for function in (layer, lambda x: layer(x)):
        result = check_derivatives(function, inputs[1:], raises=False)
        (note,) = list_failure_notes(result, "call")
        assert note.endswith("; inputs are converted to float64: convert a module by .double(), too")
    (note,) = list_failure_notes(check_derivatives(torch.nn.Linear(3, 2).double(), inputs[1:], raises=False), "form")
    assert note.endswith("; inputs are as given here: give them in float64, as the module is")
    check_derivatives(lambda rows, x: x[rows].sin(), inputs)
    with pytest.raises(TypeError, match="vjp is given for 'torch'"):
        check_derivatives(torch.sin, inputs[1:], vjp=gradient)


@torch_only
def test_float32_check_is_not_offered_for_double_module():
    import torch

    layer = torch.nn.Linear(3, 2).double()
    result = check_derivatives(layer, (torch.ones(4, 3, dtype=torch.float64),), framework="torch")
    (left_out,) = [check for check in result.checks if not check.offered]
    assert (left_out.case, left_out.note.split(":")[0]) == ("float32", "RuntimeError")


def make_conditioned_matrix(number):
    """Return a 4 x 4 matrix with this condition number."""
    rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((4, 4)))[0]
    return rotation @ np.diag(np.geomspace(1, 1 / number, 4)) @ rotation.T


def causal_attention(*arrays):
    """Return attention with a causal mask, as a function of one array or of three."""
    import torch

    q, k, v = arrays * 3 if len(arrays) == 1 else arrays
    later = torch.ones(len(q), len(q)).triu(1).bool()
    return (q @ k.T / 2).masked_fill(later, -torch.inf).softmax(-1) @ v


# Correct functions at ill-conditioned points.
HARD = {
    "no memory": (lambda x: x.abs(), X),
    "saturated": (lambda x: x.softmax(-1), np.array([[0, 50, 100], [700, 0, -700]])),
    "nearly saturated": (lambda x: x.softmax(-1), np.array([0, 30, 3])),
    "far apart": (lambda x: x.softmax(-1), 1000 * X),
    "flat": (lambda x: x.logsumexp(-1), np.array([0, 40, 1])),
    "flatter": (lambda x: x.logsumexp(-1), np.array([0, 700, 1])),
    "constant": (lambda x: x.softmax(-1).sum(), X),
    "cancelling": (lambda x: (x + 1e6 - (x + 1e6).mean()) / (x + 1e6).std(), X),
    "cancelling inputs": (lambda x: (x - x.mean()) / x.std(), X + 1e6),
    "badly conditioned": (lambda x: x.inverse(), make_conditioned_matrix(1e10)),
    "singular": (lambda x: x.inverse(), make_conditioned_matrix(1e15)),
    "determinant": (lambda x: x.det(), make_conditioned_matrix(1e10)),
    "large": (lambda x: (1e-200 * x).sin(), 1e200 * X),
    "small": (lambda x: x.log(), 1e-100 * abs(X)),
    "beside the domain": (lambda x: x.sqrt(), np.array([1e-9, 1, 2])),
    "beside a pole": (lambda x: x.log(), np.array([1e-9, 1, 2])),
    "inside by little": (lambda x: (1 - x * x).sqrt(), np.array([1 - 1e-8, 0.5])),
    "small and linear": (lambda x: 3 * x, 1e-200 * X),
    "with small results": (lambda x: 1e-200 * x, X),
    "attention": (causal_attention, X),
    "attention of three": (causal_attention, (X, X[::-1], 2 * X)),
}
# The checks that are inconclusive at these points.
COARSE = {"differences 1", "elements 1", "differences 2", "elements 2"}
UNDECIDED = {"cancelling": {"float32", "differences 1"}, "badly conditioned": COARSE, "singular": COARSE}
UNDECIDED |= {"attention": {"nan"}, "attention of three": {"nan"}}


def convert_to_tensors(x):
    import torch

    return tuple(torch.from_numpy(np.array(a, np.float64)) for a in (x if isinstance(x, tuple) else (x,)))


@torch_only
@pytest.mark.parametrize("name", HARD)
def test_wrong_gradients_fail_at_ill_conditioned_points(name):
    """At ill-conditioned points, a gradient that is off by a factor of 2 fails."""
    function, x = HARD[name]

    def function_with_doubled_gradient(*arguments):
        return function(*(2 * a - a.detach() for a in arguments))

    result = check_derivatives(
        function_with_doubled_gradient, convert_to_tensors(x), framework="torch", order=1, raises=False
    )
    kinds = {c.kind for c in result.failures}
    # Doubling the gradient of "constant", which is 0, is no mistake.
    assert bool({"differences", "elements"} & kinds) == (name != "constant"), str(result)


@torch_only
@pytest.mark.parametrize("name", HARD)
def test_correct_functions_do_not_fail_at_ill_conditioned_points(name):
    """At ill-conditioned points, correct functions do not fail; undecided checks are inconclusive, with a reason."""
    function, x = HARD[name]
    expected = UNDECIDED.get(name, set())
    result = check_derivatives(
        function, convert_to_tensors(x), seed=1, order=3, inconclusive="allow", reason="a hard point"
    )
    undecided = [c for c in result.inconclusive if c.case != "3"]
    kinds = {f"{c.kind} {c.case}".strip() if c.kind in ("differences", "elements") else c.kind for c in undecided}
    assert kinds <= expected, str(result)
    assert bool(kinds) == bool(expected), str(result)
    assert all("decide" in c.note for c in result.inconclusive)
    assert f"{len(result.inconclusive)} inconclusive" in str(result) or not result.inconclusive


@torch_only
@pytest.mark.parametrize("order", [2, 3])
def test_higher_derivatives_wrong_when_requested_alone_fail(order):
    """The checks find a second or third backward that replaces an absent cotangent by ones."""
    import torch
    from field.entry import attach_gradient

    def third_backward_with_ones(p, q, r, u, v, g, x, w):
        p, q, r = (torch.ones_like(x) if a is None else a for a in (p, q, r))
        return p * w + r * g, p * x + q * g, q * v + r * u, p * v, p * u

    def second_backward_with_ones(u, v, g, x, w):
        u, v = (torch.full_like(x, order == 2) if a is None else a for a in (u, v))
        return second(u, v, g, x, w) if order == 3 else (u * w + v * x, g * v, g * u)

    second = attach_gradient(lambda u, v, g, x, w: (u * w + v * x, g * v, g * u), third_backward_with_ones, zeros=False)
    first = attach_gradient(lambda g, x, w: (g * w, g * x), second_backward_with_ones, zeros=False)
    product = attach_gradient(lambda x, w: x * w, first)
    result = check_derivatives(product, convert_to_tensors((X, X[::-1].copy())), order=order, raises=False)
    assert {(c.kind, c.case) for c in result.failures} == {("alone", str(order))}, str(result)


@torch_only
def test_failure_names_the_torch_function_that_causes_it():
    """A failure names the torch function that also fails by itself, unless the user's own code is the cause."""
    import torch

    x, w = torch.randn(6, 4, dtype=torch.float64), torch.rand(4, dtype=torch.float64) + 0.5

    def tanh_of_batch_norm(x, w):
        return torch.tanh(torch.nn.functional.batch_norm(x, None, None, w, training=True))

    def compute_input_gradient(w):
        leaf = x.clone().requires_grad_()
        return torch.autograd.grad(tanh_of_batch_norm(leaf, w).square().sum(), leaf)[0]

    def batch_norm_ignoring_strides(x, w):
        return torch.nn.functional.batch_norm(x, None, None, None, training=True) * torch.as_strided(w, (4,), (1,))

    # In torch 2.13, batch_norm's gradient depends on the strides of its weight.
    own = not torch.allclose(
        compute_input_gradient(torch.stack([w, w * torch.nan], 1)[:, 0]), compute_input_gradient(w)
    )
    skip = {kind: "another test" for kind in FUNCTION_CHECKS if kind != "layout"}
    for function, wrong, told in ((tanh_of_batch_norm, own, own), (batch_norm_ignoring_strides, True, False)):
        result = check_derivatives(function, (x, w), order=1, skip=skip, raises=False)
        notes = [c.note for c in result.failures if c.field == "w, strided"]
        assert bool(notes) == wrong
        assert any("alone: the cause is in torch" in note for note in notes) == told, notes
        assert all("results of torch.nn.functional.batch_norm alone" in note for note in notes if told)


@torch_only
@pytest.mark.parametrize(("share", "told"), [(1e-15, True), (0.5, False)])
def test_failure_names_nondeterministic_torch_function(share, told, monkeypatch):
    """A failure names a torch function whose last bits vary, as with atomic additions, but not a random function."""
    import torch

    from slopecheck.frameworks import Torch

    def square_with_noise(x):
        return x.square() * (1 + share * torch.rand((), dtype=x.dtype))

    monkeypatch.setattr(
        Torch,
        "list_called_functions",
        lambda self, inputs: [("torch.Tensor.index_add", Torch(square_with_noise), inputs)],
    )
    skip = {kind: "another test" for kind in FUNCTION_CHECKS if kind != "repeat"}
    x = torch.linspace(1, 2, 50, dtype=torch.float64)
    result = check_derivatives(square_with_noise, (x,), order=1, skip=skip, raises=False)
    assert result.failures
    assert all(("torch.Tensor.index_add alone" in check.note) == told for check in result.failures)


def test_callers_arrays_stay_unchanged():
    degrees, x = np.array([2, 0, 1]), X.copy()

    def divide_changing_inputs(x, degrees):
        x += 1
        np.maximum(degrees, 1, out=degrees)
        return x / degrees[:, None]

    result = check_derivatives(divide_changing_inputs, (x, degrees), order=1, vjp=lambda x, g: (g[0],), raises=False)
    assert [c.field for c in result.failures if c.kind == "unchanged"] == ["x", "degrees"]
    np.testing.assert_array_equal(degrees, [2, 0, 1])
    np.testing.assert_array_equal(x, X)


def multiply_by_first_of_others(x, *others):
    return x * others[0]


@torch_only
def test_checks_name_parameters():
    """Checks name inputs by the function's parameters, or by numbers if a parameter has no name."""
    import torch

    x = torch.linspace(1, 2, 3, dtype=torch.float64)
    for function, names in [
        (lambda mass, speed: mass * speed, ["mass", "speed"]),
        (torch.nn.CosineSimilarity(), ["x1", "x2"]),
        (multiply_by_first_of_others, ["x", "input 1"]),
        (torch.mul, ["input 0", "input 1"]),
    ]:
        result = check_derivatives(function, (x[None], x.square()[None]), skip={"alone": "another test"})
        for label in ("{}", "gradient in {}", "direction of {}", "{}, strided", "{}, 3 of 3 elements"):
            assert {label.format(name) for name in names} <= {c.field for c in result.checks}, (label, str(result))
    with pytest.raises(AssertionError, match=r"\(order 1, speed\): element \[0\] is "):
        check_derivatives(lambda mass, speed: mass * speed.detach() + 0 * speed, (x, x.clone()))
