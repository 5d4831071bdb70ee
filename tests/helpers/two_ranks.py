"""Training steps of two ranks that share a batch; a small module, so that new processes import it quickly."""

from datetime import timedelta

import torch


def compute_loss(field, structures):
    """Return the mean over structures of the squared energy plus the sum of the squared force components."""
    z, pos = zip(*structures, strict=True)
    batch = torch.arange(len(z)).repeat_interleave(torch.tensor([len(one) for one in z]))
    results = field(torch.cat(z), torch.cat(pos), batch)
    return (results.energy.square().sum() + results.forces.square().sum()) / len(z)


def compute_gradients(field, structures):
    compute_loss(field, structures).backward()
    return [p.grad for p in field.parameters()]


def save_gradients(_, rank, folder, field, structures):
    """Save a rank's gradients; the first argument is the process index, which torch passes."""
    store, timeout = torch.distributed.FileStore(f"{folder}/store", 2), timedelta(seconds=60)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timeout)
    gradients = compute_gradients(torch.nn.parallel.DistributedDataParallel(field), structures)
    torch.save(gradients, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def compute_padded_loss(structures, labels):
    """Return the same loss as `compute_loss`, for padded structures."""
    found, real = structures.energy_forces_stress(), structures.real_structures
    return (found.energy.square() * real).sum() / real.sum() + found.forces.square().sum() / real.sum()


def take_steps(model, batches, average):
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


def save_steps(_, rank, folder, model, batches):
    """Save a rank's weights after steps with gradients averaged over the ranks."""
    store, timeout = torch.distributed.FileStore(f"{folder}/store", 2), timedelta(seconds=60)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timeout)

    def average(gradient):
        torch.distributed.all_reduce(gradient)
        gradient.div_(2)

    torch.save(take_steps(model, batches, average), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()
