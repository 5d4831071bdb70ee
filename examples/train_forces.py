"""
Train DimeNet++ on forces, then run dynamics
============================================

Training on forces differentiates a gradient, and needs exact second derivatives. This tutorial labels copper-gold
clusters and slabs with ASE's EMT potential, trains DimeNet++ on their energies and forces, and tests it on structures
that it has not seen. Then it runs dynamics at constant energy with the model. The total energy stays constant only if
the forces are the derivative of the energy. :doc:`/lammps` shows how to run a model in LAMMPS.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from ase import units
from ase.build import fcc111
from ase.calculators.emt import EMT
from ase.cluster import Icosahedron
from ase.md.verlet import VelocityVerlet

from trigraph.ase import Calculator
from trigraph.torch.nn import DimeNetPlusPlus

plt.style.use("tableau-colorblind10")
STRUCTURES, EPOCHS, STEPS, BATCH = 120, 40, 400, 8
ELEMENTS, SPACING = (29, 79), {29: 3.61, 79: 4.08}  # copper, gold; lattice constants in angstrom
rng = np.random.default_rng(0)
torch.manual_seed(0)

# %%
# Labelled structures
# -------------------
# Clusters have 13 atoms, slabs 12. Their random composition determines the mean lattice constant. The displacements
# have a standard deviation between 0.02 and 0.2 Å.


def draw_labelled_structure(cluster):
    """Return a labelled cluster or slab."""
    share = rng.random()
    spacing = (1 - share) * SPACING[29] + share * SPACING[79]
    atoms = Icosahedron("Cu", 2, spacing) if cluster else fcc111("Cu", (2, 2, 3), spacing, vacuum=5.0)
    atoms.numbers = rng.choice(ELEMENTS, len(atoms), p=(1 - share, share))
    atoms.positions += rng.normal(scale=rng.uniform(0.02, 0.2), size=atoms.positions.shape)
    atoms.calc = EMT()
    return atoms


structures = [draw_labelled_structure(i % 2 == 1) for i in range(STRUCTURES)]
num_train = STRUCTURES - STRUCTURES // 5  # hold out the last fifth of the structures

# %%
# The energies of free atoms do not affect forces. They are fitted to the training set and subtracted from all labels.

energies = np.array([atoms.get_potential_energy() for atoms in structures])
counts = np.array([[np.sum(atoms.numbers == n) for n in ELEMENTS] for atoms in structures])
energies -= counts @ np.linalg.lstsq(counts[:num_train], energies[:num_train])[0]

# %%
# Batches
# -------
# Eight structures form one batch. Their neighbours are found once, since positions do not change.

model = DimeNetPlusPlus(32, 1, 2, 16, 4, 32, 5, 6, cutoff=5.0, num_output_layers=2)


def make_batch_tensors(atoms, energy):
    """Return tensors: the model's arguments, the numbers of atoms, the energies per atom, and the forces."""
    size = torch.tensor([len(a) for a in atoms])
    concatenated = [np.concatenate([f(a) for a in atoms]) for f in (lambda a: a.positions, lambda a: a.get_forces())]
    pos, forces = (torch.tensor(array, dtype=torch.float32) for array in concatenated)
    cell = torch.tensor(np.array([a.cell.array for a in atoms]), dtype=torch.float32)
    pbc = torch.tensor(np.array([a.pbc for a in atoms]))
    neighbors = model.neighbors(pos, torch.arange(len(atoms)).repeat_interleave(size), cell, pbc)
    z = torch.tensor(np.concatenate([a.numbers for a in atoms]))
    return z, pos, cell, neighbors, size, torch.tensor(energy, dtype=torch.float32) / size, forces


batches = [make_batch_tensors(structures[i : i + BATCH], energies[i : i + BATCH]) for i in range(0, STRUCTURES, BATCH)]
train, held_out = batches[: num_train // BATCH], batches[num_train // BATCH :]

# %%
# Training
# --------
# ``create_graph=True`` makes the forces differentiable with respect to the parameters.


def compute_energies_and_forces(batch, create_graph=False):
    """Return the model's energies per atom and forces."""
    z, pos, cell, neighbors, size, *_ = batch
    computed = model.energy_forces_stress(z, pos, cell=cell, neighbors=neighbors, create_graph=create_graph)
    return computed.energy / size, computed.forces


def compute_held_out_errors():
    """Return the root mean square errors of held-out energies (meV/atom) and force components (meV/Å)."""
    pairs = [(compute_energies_and_forces(batch), batch[-2:]) for batch in held_out]
    differences = [torch.cat([(got[k] - expected[k]).flatten() for got, expected in pairs]) for k in (0, 1)]
    return [1000 * d.square().mean().sqrt().item() for d in differences]


optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
history = [compute_held_out_errors()]
for _ in range(EPOCHS):
    for i in torch.randperm(len(train)).tolist():
        (energy, forces), (energy_true, forces_true) = (
            compute_energies_and_forces(train[i], create_graph=True),
            train[i][-2:],
        )
        loss = (energy - energy_true).square().mean() + (forces - forces_true).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
    schedule.step()
    history.append(compute_held_out_errors())
print("held-out structures, before and after training:")
print(f"energy {history[0][0]:.1f} and {history[-1][0]:.1f} meV/atom")
print(f"forces {history[0][1]:.0f} and {history[-1][1]:.0f} meV/Å")
assert history[-1][1] < history[0][1]

# %%
# Parity
# ------

forces = torch.cat([compute_energies_and_forces(batch)[1] for batch in held_out]).flatten()
forces_true = torch.cat([batch[-1] for batch in held_out]).flatten()
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
left.axline((0, 0), slope=1, color="0.6", linewidth=1)
left.plot(forces_true, forces, ".", markersize=4)
left.set(xlabel="force by EMT (eV/Å)", ylabel="force by DimeNet++ (eV/Å)", title="held-out structures", aspect="equal")
right.semilogy([h[1] for h in history], label="forces (meV/Å)")
right.semilogy([h[0] for h in history], "--", label="energy (meV/atom)")
right.set(xlabel="epoch", ylabel="root mean square error", title="learning curve")
right.legend()
plt.show()

# %%
# Dynamics at constant energy
# ---------------------------
# :class:`trigraph.ase.Calculator` turns the model into an ASE calculator. The velocities correspond to 300 K, and a
# step is 1 fs long. Potential and kinetic energy are exchanged; their sum stays constant.

atoms = structures[-1]
atoms.calc = Calculator(model)
atoms.set_momenta(np.sqrt(atoms.get_masses()[:, None] * units.kB * 300) * rng.standard_normal((len(atoms), 3)))
energy_history = []
dynamics = VelocityVerlet(atoms, timestep=units.fs)
dynamics.attach(lambda: energy_history.append((atoms.get_potential_energy(), atoms.get_total_energy())))
dynamics.run(STEPS)
change = 1000 * (np.array(energy_history) - energy_history[0]) / len(atoms)
spread = np.abs(change).max(axis=0)
print(f"over {STEPS} fs the potential energy changed by {spread[0]:.2f}, the total by {spread[1]:.3f} meV/atom")
assert spread[1] < spread[0] / 100

figure, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
ax.plot(change[:, 0], label="potential energy")
ax.plot(change[:, 1], "--", label="total energy", linewidth=2)
ax.set(xlabel="time (fs)", ylabel="change of energy (meV/atom)")
ax.legend()
plt.show()
