"""Training steps of two ranks that share a batch; a small module, so that new processes import it quickly."""

from datetime import timedelta

import torch


def compute_energy_force_loss(field, structures):
    """Return the mean over structures of the squared energy plus the sum of the squared force components."""
    z, pos = zip(*structures, strict=True)
    batch = torch.arange(len(z)).repeat_interleave(torch.tensor([len(one) for one in z]))
    results = field(torch.cat(z), torch.cat(pos), batch)
    return (results.energy.square().sum() + results.forces.square().sum()) / len(z)


def compute_loss_gradients(field, structures):
    compute_energy_force_loss(field, structures).backward()
    return [p.grad for p in field.parameters()]


def compute_ddp_gradients(field, structures):
    return compute_loss_gradients(torch.nn.parallel.DistributedDataParallel(field), structures)


def compute_padded_loss(structures, labels):
    """Return the loss for padded structures."""
    found, real = structures.energy_forces_stress(), structures.real_structures
    return (found.energy.square() * real).sum() / real.sum() + found.forces.square().sum() / real.sum()


def take_training_steps(model, batches, average):
    """Take one SGD step per batch, after `average` has averaged the gradients; return the weights."""
    from trigraph.torch import compile_potential

    step = compile_potential(model, capture=True).training_step(compute_padded_loss)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    for arguments in batches:
        step(*arguments)
        for p in model.parameters():
            average(p.grad)
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def take_rank_averaged_steps(model, batches):
    """Take steps with gradients averaged over the two ranks; return the weights."""

    def average_over_ranks(gradient):
        torch.distributed.all_reduce(gradient)
        gradient.div_(2)

    return take_training_steps(model, batches, average_over_ranks)


def save_rank_result(rank, folder, compute, arguments):
    """Save what a rank computes with its own arguments."""
    store, timeout = torch.distributed.FileStore(f"{folder}/store", 2), timedelta(seconds=60)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timeout)
    torch.save(compute(*arguments[rank]), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def save_second_rank_result(process, *arguments):
    save_rank_result(1, *arguments)


def compute_on_two_ranks(folder, compute, arguments):
    """Return the results of two ranks, this process and another."""
    other = torch.multiprocessing.spawn(save_second_rank_result, (folder, compute, arguments), join=False)
    save_rank_result(0, folder, compute, arguments)
    assert other.join(60)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]
