"""Tests that trigraph's torch operators, models and calculators pass slopecheck for many seeds."""

import functools

import numpy as np
import pytest

from slopecheck import check_calculator, check_derivatives
from slopecheck.kinds import CALCULATOR_CHECKS

torch = pytest.importorskip("torch")

from ase.build import bulk, molecule  # noqa: E402
from small_potentials import make_small_dimenet  # noqa: E402

import trigraph.ase  # noqa: E402
import trigraph.torch  # noqa: E402
from trigraph import CSC  # noqa: E402
from trigraph.torch.nn import DimeNetPlusPlus  # noqa: E402


def draw_normal(seed, *shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def compute_attention(x, weights):
    graph = CSC.from_coo(np.array([0, 1, 2, 2, 1]), np.array([1, 0, 0, 1, 1]), 3, 3)
    return trigraph.torch.mha_gat_n2n(x, x, weights, graph, num_heads=2).output_embedding


@functools.cache
def make_dimenet():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = DimeNetPlusPlus(4, 1, 1, 4, 2, 2, 2, 2, cutoff=3.0).double()
        for parameter in model.parameters():  # so that no layer stays zero
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model.requires_grad_(False)


def compute_dimenet_energy(positions):
    return make_dimenet()(torch.tensor([1, 6, 8]), positions).sum()


def compute_dimenet_forces(positions):
    return -torch.autograd.grad(compute_dimenet_energy(positions), positions, create_graph=True)[0]


def draw_positions(seed):
    start = torch.tensor([[0.0, 0, 0], [1.1, 0, 0], [0.2, 1.2, 0]], dtype=torch.float64)
    return (start + 0.1 * draw_normal(seed, 3, 3),)


@pytest.mark.parametrize("seeds", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_torch_operators_and_models_pass_slopecheck(seeds):
    """Operators and energies pass up to third order; forces, which are first derivatives, up to second order."""
    for seed in range(seeds):
        check_derivatives(compute_attention, (draw_normal(seed, 3, 4), draw_normal(seed + 1, 8)), order=3, seed=seed)
        slow = ((compute_dimenet_energy, 2 if seed else 3), (compute_dimenet_forces, 2)) if seeds > 1 else ()
        for function, order in slow:
            check_derivatives(function, draw_positions(seed), framework="torch", order=order, seed=seed)


def make_dimenet_calculator():
    return trigraph.ase.Calculator(make_small_dimenet())


@pytest.mark.slow
@pytest.mark.parametrize("structure", [bulk("AuCu", "rocksalt", a=5.2), molecule("H2O")], ids=str)
def test_dimenet_calculator_passes_all_checks(structure):
    result = check_calculator(make_dimenet_calculator, [structure])
    optional = {"stress", "net torque", "wrapping", "repetition"}
    assert {c.kind for c in result.checks} >= set(CALCULATOR_CHECKS) - optional


def test_dimenet_calculator_passes_quick_checks():
    kinds = ("net force", "renumbering", "repetition", "repeat", "copy", "pickle", "drift")
    skipped = {kind: "in the slow test" for kind in CALCULATOR_CHECKS if kind not in kinds}
    check_calculator(make_dimenet_calculator, [bulk("AuCu", "rocksalt", a=5.2)], skip=skipped)
