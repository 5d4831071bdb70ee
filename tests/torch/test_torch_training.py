"""Tests of training DimeNet++: data-parallel ranks, averaged weights, mixed precision, functional calls."""

import copy
import functools

import pytest
import torch
from test_torch_dimenet import SMALL, make_cluster_tensors, make_dimenet
from torch.utils.checkpoint import checkpoint
from two_ranks import compute_ddp_gradients, compute_loss_gradients, compute_on_two_ranks

from trigraph.torch.nn import ForceField

STRUCTURE_SIZES = (5, 6, 4, 7)  # numbers of atoms in four structures


def make_clusters(chosen):
    return [make_cluster_tensors(STRUCTURE_SIZES[i], seed=i) for i in chosen]


@pytest.mark.filterwarnings("ignore:Grad strides do not match bucket view strides")
def test_gradients_of_two_ranks_equal_one(tmp_path):
    """Gradients of two ranks (this process and another) with half of a batch each agree with one rank's."""
    field = ForceField(make_dimenet(**SMALL))
    halves = [(copy.deepcopy(field), make_clusters(chosen)) for chosen in ((0, 1), (2, 3))]
    ranks = compute_on_two_ranks(tmp_path, compute_ddp_gradients, halves)
    expected = compute_loss_gradients(field, make_clusters(range(4)))
    for gradients in ranks:
        for got, whole in zip(gradients, expected, strict=True):
            assert (got - whole).abs().max() <= 1000 * 2**-52 * whole.abs().max()


def test_averaged_model_computes_with_averaged_weights():
    model, (z, pos) = make_dimenet(**SMALL), make_cluster_tensors(5)
    average_of = torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
    average, halfway = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=average_of), copy.deepcopy(model)
    average.update_parameters(model)  # the first update copies the weights
    with torch.no_grad():
        for parameter, between in zip(model.parameters(), halfway.parameters(), strict=True):
            parameter += 0.25
            between += 0.125
    average.update_parameters(model)
    got, expected = (m.energy_forces_stress(z, pos).forces for m in (average.module, halfway))
    assert (got - expected).abs().max() <= 1000 * 2**-52 * expected.abs().max()


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_keeps_energies_and_forces_float32(half):
    """Under autocast, linear layers use half precision; bases, total energies, forces and gradients are float32."""
    model, seen = make_dimenet(**SMALL).float(), {}
    for module in model.modules():
        module.register_forward_hook(
            lambda module, _, y: seen.setdefault(type(module).__name__, set()).update(
                t.dtype for t in (y if isinstance(y, tuple) else (y,))
            )
        )
    z, pos = make_cluster_tensors(9)
    with torch.autocast("cpu", half):
        found = model.energy_forces_stress(z, pos.float(), create_graph=True)
    wide, narrow = ("RadialBasis", "Embedding", "EmbeddingBlock", "InteractionBlock"), ("Linear", "OutputBlock")
    assert [seen[name] for name in (*wide, *narrow)] == [{torch.float32}] * 4 + [{half}] * 2
    assert [t.dtype for t in (found.energy, found.forces, found.energies)] == [torch.float32, torch.float32, half]
    found.forces.square().mean().backward()
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}
    expected = model.energy_forces_stress(z, pos.float()).forces
    error = (found.forces - expected).abs().max() / expected.abs().max()
    # The bound is for thirty successive rounding errors, from the basis to an energy, which partly cancel.
    assert torch.finfo(torch.float32).eps < error <= 30 * torch.finfo(half).eps


def test_checkpointed_blocks_give_equal_gradients():
    field = ForceField(make_dimenet(**SMALL))
    expected = compute_loss_gradients(copy.deepcopy(field), make_clusters((0, 1)))
    for block in field.potential.interaction_blocks:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    assert all(map(torch.equal, compute_loss_gradients(field, make_clusters((0, 1))), expected))


def test_functional_call_uses_given_parameters():
    """torch.func.functional_call uses the parameters that it receives."""
    model, (z, pos) = make_dimenet(**SMALL), make_cluster_tensors(5)
    before, doubled = model(z, pos), {name: 2 * tensor for name, tensor in model.state_dict().items()}
    called = torch.func.functional_call(model, doubled, (z, pos))
    assert not torch.equal(called, before)
    model.load_state_dict(doubled)
    assert torch.equal(called, model(z, pos))
