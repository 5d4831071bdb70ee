"""What training programs do with models: ranks, checkpointing, averages of weights, optimizers that call a closure."""

import copy
import functools

import torch
from test_torch_dimenet import SMALL, cluster, model_of
from torch.utils.checkpoint import checkpoint

import trigraph.torch  # noqa: F401

SIZES = (5, 6, 4, 7)  # atoms of four structures


class ForceLoss(torch.nn.Module):
    """Mean over structures of the squared energies and forces of each: DistributedDataParallel wraps a forward."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, chosen):
        z, pos = zip(*(cluster(SIZES[i], seed=i) for i in chosen), strict=True)
        batch = torch.arange(len(chosen)).repeat_interleave(torch.tensor([SIZES[i] for i in chosen]))
        found = self.model.energy_forces_stress(torch.cat(z), torch.cat(pos), batch, create_graph=True)
        return (found.energy.square().sum() + found.forces.square().sum()) / len(chosen)


def gradients_of(loss, chosen):
    loss(chosen).backward()
    return [p.grad for p in loss.parameters()]


def rank_main(rank, folder):
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(f"{folder}/store", 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    loss = torch.nn.parallel.DistributedDataParallel(ForceLoss(model_of(**SMALL)))
    torch.save(gradients_of(loss, (0, 1) if rank == 0 else (2, 3)), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_ranks_share_a_batch(tmp_path):
    """The gradients of two ranks with half of the structures each are those of one process with all, to rounding."""
    torch.multiprocessing.spawn(rank_main, (str(tmp_path),), nprocs=2)
    expected = gradients_of(ForceLoss(model_of(**SMALL)), (0, 1, 2, 3))
    for rank in range(2):
        for got, whole in zip(torch.load(tmp_path / f"{rank}.pt"), expected, strict=True):
            assert (got - whole).abs().max() <= 1000 * 2**-52 * whole.abs().max()


def test_blocks_that_are_computed_again_in_the_backward():
    loss = ForceLoss(model_of(**SMALL))
    expected = gradients_of(copy.deepcopy(loss), (0, 1))
    for block in loss.model.interaction_blocks:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    assert all(map(torch.equal, gradients_of(loss, (0, 1)), expected))


def test_optimizers_and_averages_of_weights():
    """L-BFGS decreases a loss of forces; an exponential average of the weights is a model that computes forces."""
    loss = ForceLoss(model_of(**SMALL))
    average = torch.optim.swa_utils.AveragedModel(
        loss.model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
    )
    optimizer = torch.optim.LBFGS(loss.parameters(), max_iter=5, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        value = loss((0, 1))
        value.backward()
        return value

    before = optimizer.step(closure).item()
    average.update_parameters(loss.model)
    assert loss((0, 1)).item() < before
    first, z, pos = loss.model.emb.lin.weight, *cluster(5)
    assert torch.equal(average.module.emb.lin.weight, first)  # the first update copies
    with torch.no_grad():
        first += 1.0
    average.update_parameters(loss.model)
    torch.testing.assert_close(average.module.emb.lin.weight, first - 0.5, rtol=1e-15, atol=0.0)
    assert average.module.energy_forces_stress(z, pos).forces.isfinite().all()
