"""Tests of nested forward and reverse modes for every trigraph function with a custom derivative.

A nest differentiates three or four times, each time along a direction. The outer modes wrap the arguments of the inner
modes, so cotangents, saved tensors and directions may carry tangents. The tests combine all modes and let the inputs
and directions depend on the outermost variable; nests that torch cannot compute for its own functions are skipped.
"""

import functools
import itertools

import numpy as np
import pytest
import torch
from table_calls import draw_operator_arguments
from torch.autograd import forward_ad

import trigraph.torch as tt
from trigraph.graphs import CSC
from trigraph.table import DEFINITIONS, OPERATORS
from trigraph.torch.layers.activations import silu
from trigraph.torch.plain import LIBRARY, PLAIN
from trigraph.torch.potentials.structures import _sum_rows

SETTINGS = [(spec.name, setting) for spec in DEFINITIONS for setting in (spec.settings or ({},))]
FUNCTIONS = [*SETTINGS, ("silu", {}), ("sums", {})]
QUICK = [("radial_basis", {}), ("agg_weighted_n2n", {"op": "sum"}), ("silu", {}), ("sums", {})]


def differentiate_by_dual(f, x, u):
    with forward_ad.dual_level():
        y = f(forward_ad.make_dual(x, u))
        tangent = forward_ad.unpack_dual(y).tangent
        return torch.zeros_like(y) if tangent is None else tangent


def differentiate_by_grad(f, x, u, create_graph=True):
    x = x if x.requires_grad else x.detach().requires_grad_()
    y = f(x)
    if not y.requires_grad:  # y does not depend on x
        return torch.zeros_like(y)
    options = {"create_graph": create_graph, "allow_unused": True, "materialize_grads": True}
    return (torch.autograd.grad(y, x, **options)[0] * u).sum()


def differentiate_by_vjp(f, x, u):
    y, pull = torch.func.vjp(f, x)
    return (pull(torch.ones_like(y))[0] * u).sum()


MODES = {
    "dual": differentiate_by_dual,
    "jvp": lambda f, x, u: torch.func.jvp(f, (x,), (u,))[1],
    "jacfwd": lambda f, x, u: (torch.func.jacfwd(f)(x) * u).sum(),
    "grad": differentiate_by_grad,
    "last grad": functools.partial(differentiate_by_grad, create_graph=False),
    "vjp": differentiate_by_vjp,
    "jacrev": lambda f, x, u: (torch.func.jacrev(f)(x) * u).sum(),
}
REVERSE = {"grad", "last grad", "vjp", "jacrev"}


def differentiate_nested(f, x, modes, depends):
    """Return a nested derivative of f; "x" or the directions in `depends` depend on the outermost variable."""
    generator = torch.Generator().manual_seed(1)
    first, by_last = (torch.randn(len(modes), *x.shape, generator=generator, dtype=x.dtype) for _ in range(2))
    if {"grad", "last grad"} & {*modes[:-1]}:
        x = x.clone().requires_grad_()

    def differentiate_inner_modes(y):
        def differentiate_in_mode(function, k):
            direction = first[k] + y * by_last[k] if k in depends else first[k]
            return lambda at: MODES[modes[k]](function, at, direction)

        return functools.reduce(differentiate_in_mode, range(len(modes) - 1), f)(
            x + y * by_last[-1] if "x" in depends else x
        )

    return MODES[modes[-1]](differentiate_inner_modes, x.new_zeros(()), x.new_ones(())).detach()


@functools.cache
def torch_supports_nest(modes, depends):
    """Return whether torch can compute a nest for its own functions."""

    def compute_torch_example(x):
        return (x * torch.exp(-x)).sin().sum()

    if any(m == "last grad" and REVERSE & {*modes[k + 1 :]} for k, m in enumerate(modes)):
        return False  # the outer mode has nothing recorded to differentiate
    x = torch.tensor([0.3, 0.7], dtype=torch.float64)
    try:
        return torch.allclose(
            differentiate_nested(compute_torch_example, x, modes, depends),
            differentiate_nested(compute_torch_example, x, ["grad"] * len(modes), depends),
            rtol=1e-9,
        )
    except RuntimeError as error:
        assert "Nested forward mode" in str(error) or "requires_grad_()" in str(error)  # noqa: PT017
        return False


def make_function_pair(name, setting):
    """Return a nonlinear function of two numbers that uses trigraph, and the same function in plain torch."""
    if name == "silu":
        return (lambda x: silu(x).square().sum()), (lambda x: (x * torch.sigmoid(x)).square().sum())
    if name == "sums":
        graph, index = CSC(np.array([0, 2, 3]), np.array([0, 2, 1]), 3), torch.tensor([0, 1, 0])
        rows = torch.tensor([[1.0, 2], [3, 4], [5, 6]], dtype=torch.float64)
        return (
            lambda x: _sum_rows("sums", rows * x, graph, "N", index).sin().sum(),
            lambda x: x.new_zeros(2, 2).index_add(0, index, rows * x).sin().sum(),
        )
    op = OPERATORS[f"{name}_fwd"]
    values = draw_operator_arguments(op, np.float64, setting=setting)
    arrays = {a.name: values.pop(a.name) for a in op.arguments}
    keywords = {n: v for n, v in values.items() if n not in op.definition.request_names}
    given = {n: torch.from_numpy(a.copy()) for n, a in arrays.items() if a is not None}
    rng = np.random.default_rng(5)
    along = {n: torch.from_numpy(rng.standard_normal((*t.shape, 2))) for n, t in given.items()}

    def restrict_to_two_inputs(function):
        def compute_sine_sum(x):
            return sum((t / 16).sin().sum() for t in function({n: t + along[n] @ x for n, t in given.items()}))

        return compute_sine_sum

    outputs = [a.name for a in op.definition.outputs]

    def compute_with_trigraph(at):
        result = getattr(tt, name)(**dict.fromkeys(arrays) | at, **keywords)
        return [result] if isinstance(result, torch.Tensor) else [getattr(result, n) for n in outputs]

    return restrict_to_two_inputs(compute_with_trigraph), restrict_to_two_inputs(
        lambda at: PLAIN[name](dict.fromkeys(arrays) | at, keywords)
    )


def check_nested_derivatives(name, setting, nests):
    """Compare nests with reverse mode for the plain torch function."""
    ours, plain = make_function_pair(name, setting)
    right = functools.cache(lambda order, depends: differentiate_nested(plain, x, ["grad"] * order, depends))
    x = torch.tensor([0.1, -0.2], dtype=torch.float64)
    number = 0
    for modes, depends in nests:
        if torch_supports_nest(modes, depends):
            number, expected = number + 1, right(len(modes), depends)
            error = (differentiate_nested(ours, x, modes, depends) - expected).abs()
            assert error <= 1e-8 * expected.abs() + 1e-12, (modes, depends)
    assert number


@pytest.mark.parametrize(("name", "setting"), QUICK, ids=str)
def test_selected_nested_derivatives_are_correct(name, setting):
    """Nests that once returned incorrect results or failed in torch are correct."""
    three = [("vjp", "dual", "vjp"), ("vjp", "vjp", "dual"), ("vjp", "jvp", "jvp"), ("jvp", "jvp", "jvp")]
    three += [("grad", "last grad", "dual"), ("vjp", "vjp", "jvp"), ("jacrev", "jvp", "jacfwd")]
    four = [("grad", "grad", "last grad", "dual"), ("grad", "grad", "grad", "dual"), ("vjp", "vjp", "vjp", "jvp")]
    check_nested_derivatives(
        name, setting, [(m, d) for m in (*three, *four) for d in ((0,), (1,), (2,), (*range(len(m) - 1), "x"))]
    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "setting"), FUNCTIONS, ids=str)
def test_all_nested_derivatives_are_correct(name, setting):
    """Nests of three modes in any order, and of any mode around three reverse modes, are correct."""
    three = list(itertools.product(MODES, repeat=3))
    nests = [(m, (0, 1, "x")) for m in three]
    nests += [(m, (d,)) for m in three if not {"jacfwd", "jacrev"} & {*m} for d in (0, 1)]
    for inner in (("grad", "grad", "last grad"), ("grad",) * 3, ("vjp",) * 3, ("jacrev", "vjp", "grad")):
        nests += [((*inner, last), d) for last in MODES for d in ((0,), (1,), (2,), ("x",), (0, 1, 2, "x"))]
    check_nested_derivatives(name, setting, nests)


@pytest.mark.parametrize(("name", "setting"), QUICK, ids=str)
def test_forward_mode_around_vmap_is_correct(name, setting):
    """Forward mode around vmapped third derivatives is correct."""
    ours, plain = make_function_pair(name, setting)
    points, along = 0.1 * torch.randn(2, 2, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def make_vmapped_third_derivative(function):
        for _ in range(2):
            function = torch.func.grad(lambda x, f=function: (f(x) * torch.tensor([0.5, 2.0], dtype=x.dtype)).sum())
        return torch.func.vmap(torch.func.jacrev(function))

    for mode in ("dual", "jvp"):
        got, expected = (
            MODES[mode](lambda x, f=f: make_vmapped_third_derivative(f)(x).sum((1, 2)), points, along)
            for f in (ours, plain)
        )
        assert (got - expected).abs().max() <= 1e-8 * expected.abs().max()


@pytest.mark.parametrize("recorded", [True, False])
def test_a_tangent_is_recorded_where_grad_mode_is_enabled(recorded):
    x = torch.ones(3, requires_grad=True)
    with torch.set_grad_enabled(recorded), forward_ad.dual_level():
        assert forward_ad.unpack_dual(silu(forward_ad.make_dual(x, x.detach()))).tangent.requires_grad == recorded


@pytest.mark.parametrize("number", [0, 3])
def test_plain_softmax_works_under_vmap(number):
    """Plain implementations work under torch.vmap, also with an empty batch."""
    logit, index = torch.randn(number, 4, 2, dtype=torch.float64), torch.tensor([0, 2, 0, 2])
    got = torch.func.vmap(lambda t: LIBRARY.softmax(t, index, 3))(logit)
    assert got.shape == logit.shape
    assert all(torch.equal(t, LIBRARY.softmax(each, index, 3)) for t, each in zip(got, logit, strict=True))
