"""What training programs do with models: ranks that share a batch, checkpointing."""

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
