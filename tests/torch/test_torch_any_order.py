"""Tests of third and higher derivatives in `trigraph.torch`: central differences, modes, plain implementations."""

import itertools

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from table_calls import draw_operator_arguments

import trigraph.torch as tt
from trigraph.backends import FUNCTIONS
from trigraph.cli import main
from trigraph.table import DEFINITIONS, OPERATORS, THIRD
from trigraph.torch import derivatives
from trigraph.torch.plain import PLAIN
from trigraph.verification.cases import build_case, list_variants
from trigraph.verification.subjects import convert_result_to_mapping

# Settings that cover every branch of the plain implementations.
CALLS = [
    (spec.name, setting)
    for spec in DEFINITIONS
    for setting in (
        *(spec.settings or ({},)),
        *(({"exclude": "edge"}, {"exclude": None}) if spec.name == "agg_edge_to_edge" else ()),
    )
]
# Central differences with step 2^-13 in float64. The truncation error is 1.5e-8 times a derivative two orders higher,
# which is up to 1e3 times as large; the rounding error is 2^-40 times the terms of the sum, up to 1e4 times the result.
STEP, BOUND = 2.0**-13, 1e-5
WIDE = 16.0  # results y (up to 1e2) enter as sin(y / WIDE), so that derivatives do not grow with the order


def draw_tensors_and_keywords(name, setting):
    """Return an operator's random tensors, its other arguments, and a random number generator."""
    op = OPERATORS[f"{name}_fwd"]
    values = draw_operator_arguments(op, np.float64, setting=setting)
    rng = np.random.default_rng(1)
    tensors = {a.name: torch.from_numpy(values.pop(a.name).copy()) for a in op.arguments if values[a.name] is not None}
    return tensors, {n: v for n, v in values.items() if n not in op.definition.request_names}, rng


def compute_directional_derivative(name, tensors, keywords, order, directions):
    """Return the derivative of order `order` of a nonlinear function of the results, along the given directions."""
    result = getattr(tt, name)(**tensors, **keywords)
    names = [a.name for a in OPERATORS[f"{name}_fwd"].definition.outputs]
    outputs = [result] if isinstance(result, torch.Tensor) else [getattr(result, n) for n in names]
    generator = torch.Generator().manual_seed(2)
    number = sum(
        (WIDE * torch.sin(t / WIDE) * torch.randn(t.shape, generator=generator, dtype=t.dtype)).sum() for t in outputs
    )
    for k in range(order):
        if not number.requires_grad:  # the function is a polynomial of lower degree
            return number.new_zeros(())
        inputs = list(tensors.values())
        grads = torch.autograd.grad(number, inputs, create_graph=True, allow_unused=True, materialize_grads=True)
        # The directions depend on the inputs, so that their derivatives are tested, too.
        number = sum((t * (1 + x / WIDE) * d).sum() for t, x, d in zip(grads, inputs, directions[k], strict=True))
    return number


@pytest.mark.parametrize("spec", DEFINITIONS, ids=lambda s: s.name)
def test_plain_forms_have_the_values_of_the_operators(spec):
    """The plain implementations agree with the operators on all graphs, also with parallel edges or no edges."""
    op = OPERATORS[f"{spec.name}_fwd"]
    for variant in list_variants(spec):
        case = build_case(spec, variant, "float64", 0)
        for exclude in (None, "node", "edge") if spec.name == "agg_edge_to_edge" else (...,):
            if exclude == "edge" and case.values["graph"].max_parallel_edges > 1:
                continue  # the reverse of an edge is ambiguous
            values = case.arguments(op) | ({} if exclude is ... else {"exclude": exclude})
            expected = convert_result_to_mapping(op, FUNCTIONS[op.name](**values))
            inputs = {a.name: None if values[a.name] is None else torch.tensor(values[a.name]) for a in spec.inputs}
            for a, got in zip(spec.outputs, PLAIN[spec.name](inputs, values), strict=True):
                scale = np.nanmax(np.abs(expected[a.name]), initial=0)
                np.testing.assert_allclose(got, expected[a.name], rtol=0, atol=1e-12 * scale)


def test_plain_forms_ignore_rows_that_no_edge_reads():
    """The plain implementations select rows before they multiply, because 0 times NaN in an unused row is NaN."""
    unread = set()
    for spec, name in itertools.product(DEFINITIONS, ("shared rows", "unused rows")):
        op, variant = OPERATORS[f"{spec.name}_fwd"], next((v for v in list_variants(spec) if v.name == name), None)
        values = build_case(spec, variant, "float64", 0).arguments(op) if variant else {}
        inputs = {a.name: values[a.name] for a in spec.inputs if values.get(a.name) is not None}
        for argument, row in ((n, r) for n, array in inputs.items() for r in range(len(array))):
            array = inputs[argument].copy()
            array[row] = np.nan
            expected = convert_result_to_mapping(op, FUNCTIONS[op.name](**values | {argument: array}))
            if not any(np.isnan(expected[a.name]).any() for a in spec.outputs):
                unread.add(spec.name)
                tensors = {n: torch.tensor(x) for n, x in (inputs | {argument: array}).items()}
                plain = PLAIN[spec.name](dict.fromkeys(a.name for a in spec.inputs) | tensors, values)
                assert all(t.isfinite().all() for t in plain), (spec.name, argument, row)
    assert unread == {"gno_aggregate", "gno_message", "mha_gat_n2n", "agg_weighted_n2n"}


@pytest.mark.parametrize(("name", "setting"), CALLS, ids=str)
def test_derivatives_agree_with_central_differences(name, setting):
    for order in (3, 4):
        tensors, keywords, rng = draw_tensors_and_keywords(name, setting)
        directions = [[torch.from_numpy(rng.standard_normal(t.shape)) for t in tensors.values()] for _ in range(order)]
        at = {n: t.requires_grad_() for n, t in tensors.items()}
        exact = float(compute_directional_derivative(name, at, keywords, order, directions).detach())
        sides = []
        for sign in (1, -1):
            moved = {
                n: (t.detach() + sign * STEP * (1 + t.detach() / WIDE) * d).requires_grad_()
                for (n, t), d in zip(tensors.items(), directions[order - 1], strict=True)
            }
            sides.append(float(compute_directional_derivative(name, moved, keywords, order - 1, directions).detach()))
        difference = (sides[0] - sides[1]) / (2 * STEP)
        assert abs(exact - difference) <= BOUND * max(abs(difference), abs(sides[0]))


@pytest.mark.parametrize("name", ["mha_gat_n2n", "agg_edge_to_edge", "radial_basis", "interaction_bilinear"])
def test_third_derivatives_agree_in_all_modes(name):
    """Third derivatives in reverse mode, in forward mode and by torch.func.hessian agree."""
    tensors, keywords, rng = draw_tensors_and_keywords(name, {})
    key, t = next(iter(tensors.items()))
    first, along = (torch.from_numpy(rng.standard_normal(t.shape)) for _ in range(2))

    def compute_slope(x):
        """Return a directional derivative."""

        def compute_sine_sum(y):
            result = getattr(tt, name)(**{**tensors, key: y}, **keywords)
            return (result if isinstance(result, torch.Tensor) else result[0]).sin().sum()

        return (torch.func.grad(compute_sine_sum)(x) * first).sum()

    def compute_curvature(x):
        return (torch.func.grad(compute_slope)(x) * along).sum()

    reverse = torch.func.grad(compute_curvature)(t)
    gradient, forward = torch.func.jvp(torch.func.grad(compute_slope), (t,), (along,))
    assert torch.allclose(gradient, torch.func.grad(compute_slope)(t))
    hessian = torch.func.hessian(compute_slope)(t).reshape(t.numel(), t.numel())
    eps = torch.finfo(t.dtype).eps * 2**12  # three nested sums of hundreds of terms, with cancellation
    bound = eps * float(hessian.abs().max()) * t.numel()
    assert (hessian - hessian.T).abs().max() <= bound
    assert (hessian @ along.flatten() - forward.flatten()).abs().max() <= bound
    assert (reverse - forward).abs().max() <= bound


@pytest.mark.parametrize("name", ["mha_gat_n2n", "agg_edge_to_edge"])
def test_plain_derivative_without_graph_equals_vjp(name, monkeypatch):
    """Without create_graph, autograd differentiates the plain implementation, bitwise equal to torch.func.vjp."""
    monkeypatch.setattr(derivatives, "supports_bwd3", lambda *_: False)
    tensors, keywords, rng = draw_tensors_and_keywords(name, {})
    directions = [[torch.from_numpy(rng.standard_normal(t.shape)) for t in tensors.values()] for _ in range(2)]
    inputs = [t.requires_grad_() for t in tensors.values()]
    second = compute_directional_derivative(name, tensors, keywords, 2, directions)
    recorded = torch.autograd.grad(second, inputs, create_graph=True)  # torch.func.vjp computes this result
    monkeypatch.delattr(torch.func, "vjp")
    assert all(map(torch.equal, torch.autograd.grad(second, inputs), recorded))


def test_third_derivatives_in_bfloat16_are_finite():
    """Third derivatives with respect to bfloat16 inputs are finite and in bfloat16."""
    tensors, keywords, _ = draw_tensors_and_keywords("mha_gat_n2n", {})
    tensors = {n: (t.bfloat16() if "embedding" in n else t.float()).requires_grad_() for n, t in tensors.items()}
    x = tensors["src_embedding"]
    number = tt.mha_gat_n2n(**tensors, **keywords, backend="gpu-host").output_embedding.float().square().sum()
    for _ in range(3):
        (gradient,) = torch.autograd.grad(number, x, create_graph=True)
        assert gradient.dtype == torch.bfloat16
        assert gradient.isfinite().all()
        number = gradient.float().square().sum()


def test_conversion_preserves_gradients_of_hessian_loss():
    """`convert` preserves the parameter gradients of a loss of Hessian-vector products."""
    pyg = pytest.importorskip("torch_geometric.nn")
    torch.manual_seed(0)
    layer = pyg.GATConv(4, 3, heads=2).double()
    edges, x = torch.randint(0, 6, (2, 20)), torch.randn(6, 4, dtype=torch.float64)

    def compute_parameter_gradients():
        at = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(layer(at, edges).tanh().sum(), at, create_graph=True)
        (product,) = torch.autograd.grad((gradient * x).sum(), at, create_graph=True)
        return torch.autograd.grad(product.square().sum(), list(layer.parameters()), allow_unused=True)

    right = compute_parameter_gradients()
    tt.convert(layer)
    for ours, theirs in zip(compute_parameter_gradients(), right, strict=True):
        assert (ours is None) == (theirs is None)
        if theirs is not None:
            bound = 2**12 * torch.finfo(torch.float64).eps * float(theirs.abs().max())
            assert (ours - theirs).abs().max() <= bound


@pytest.mark.slow
def test_third_derivatives_agree_with_the_judge():
    """Third derivatives satisfy the accuracy rule in all of `trigraph verify`'s cases."""
    operators = [word for name in THIRD for word in ("--operator", name)]
    ran = CliRunner().invoke(main, ["verify", "--framework", "torch", *operators, "--jobs", "1"])
    assert (ran.exit_code, ", 0 failed" in ran.stdout) == (0, True), ran.stdout
