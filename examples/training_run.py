"""A resumable training run with checkpoints, averaged weights, mixed precision, and one or several processes.

python training_run.py run.pt 4                             # until epoch 4; with 8 it continues until epoch 8
torchrun --nproc-per-node 2 training_run.py run.pt 8        # the same in two processes (DistributedDataParallel)
python training_run.py other.pt 4 bfloat16                  # linear layers in bfloat16, the rest in float32
"""

import os
import sys
from contextlib import nullcontext

import numpy as np
import torch
from ase.calculators.emt import EMT
from ase.cluster import Icosahedron
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from trigraph.torch.nn import DimeNetPlusPlus, ForceField

path, epochs, dtype = sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "float32"
is_distributed = "RANK" in os.environ  # torchrun sets RANK
device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
if is_distributed:
    distributed.init_process_group()
rank, world_size = (distributed.get_rank(), distributed.get_world_size()) if is_distributed else (0, 1)

# Every process draws the same 16 structures.
rng = np.random.default_rng(0)
structures = [Icosahedron("Cu", 2, 3.61) for _ in range(16)]
for atoms in structures:
    atoms.positions += rng.normal(scale=0.1, size=atoms.positions.shape)
    atoms.calc = EMT()
mean = np.mean([atoms.get_potential_energy() for atoms in structures])


def make_batch_tensors(chosen):
    """Return the model's arguments, energies and forces."""
    pos, forces = (
        np.concatenate([f(structures[i]) for i in chosen]) for f in (lambda a: a.positions, EMT().get_forces)
    )
    pos, forces = (torch.tensor(array, dtype=torch.float32, device=device) for array in (pos, forces))
    z = torch.tensor(np.concatenate([structures[i].numbers for i in chosen]), device=device)
    energy = torch.tensor([structures[i].get_potential_energy() - mean for i in chosen], dtype=torch.float32)
    batch_index = torch.arange(len(chosen), device=device).repeat_interleave(13)
    return z, pos, model.neighbors(pos, batch_index), energy.to(device), forces


torch.manual_seed(0)
model = DimeNetPlusPlus(16, 1, 2, 8, 4, 16, 5, 4, cutoff=5.0).to(device)
field = ForceField(model)  # DistributedDataParallel only affects calls of the module it wraps
wrapped = DistributedDataParallel(field) if is_distributed else field
average = AveragedModel(model, device=device, multi_avg_fn=get_ema_multi_avg_fn(0.98))
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
training_state = {"model": model, "average": average, "optimizer": optimizer, "schedule": schedule}
first_epoch = 0
if os.path.exists(path):
    saved = torch.load(path, map_location=device, weights_only=True)
    first_epoch = saved.pop("epochs")
    for name, state in saved.items():
        training_state[name].load_state_dict(state)

for epoch in range(first_epoch, epochs):
    order = torch.randperm(len(structures), generator=torch.Generator().manual_seed(epoch)).tolist()
    for start in range(rank, len(order), 4 * world_size):  # four structures per process
        z, pos, neighbors, energy, forces = make_batch_tensors(order[start : start + 4 * world_size : world_size])
        mixed = torch.autocast(pos.device.type, torch.bfloat16) if dtype == "bfloat16" else nullcontext()
        with mixed:
            found = wrapped(z, pos, neighbors=neighbors)
        loss = (found.energy - energy).square().mean() / 13 + (found.forces - forces).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        average.update_parameters(model)
    schedule.step()
    if rank == 0:
        torch.save(
            {name: part.state_dict() for name, part in training_state.items()} | {"epochs": epoch + 1}, f"{path}.new"
        )
        os.replace(f"{path}.new", path)  # atomic, so that the checkpoint is always complete
        z, pos, neighbors, _, forces = make_batch_tensors(range(len(structures)))
        error = average.module.energy_forces_stress(z, pos, neighbors=neighbors).forces - forces
        print(f"epoch {epoch + 1}: averaged weights {error.square().mean().sqrt():.4f} eV/Å")
if is_distributed:
    distributed.destroy_process_group()
