"""
Write your own message-passing potential
========================================

Derive a class from `Potential`, and compute the energies of atoms from the vectors to their neighbours. The class
inherits the rest: neighbour search, periodic cells, batches, forces and stress, compilation, Hessians, and the
calculators for ASE, torch-sim and LAMMPS. This tutorial writes a SchNet-like model in twenty lines, trains it on forces
of ASE's EMT potential, relaxes a crystal with it, and computes its Hessian.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.optimize import BFGS
from torch.nn import Embedding, Linear, ModuleList, Sequential, SiLU

from trigraph.ase import Calculator
from trigraph.torch.nn import ForceField, Potential

plt.style.use("tableau-colorblind10")
STRUCTURES, EPOCHS, STEPS = 40, 60, 200
rng = np.random.default_rng(0)
torch.manual_seed(0)

# %%
# The model
# ---------
# A row of `vec` is the vector of an edge, from its destination to its source. ``neighbors.of_sources(x)`` is
# ``x[src]``, the row of the source atom of each edge. ``neighbors.into_atoms(values)`` sums the rows of edges at their
# destinations. Both are operators of trigraph, with exact derivatives of any order. The model uses only distances, so
# its energy is invariant under rotations. The envelope makes it smooth at the cutoff.


class SchNet(Potential):
    """Continuous-filter convolutions (Schütt et al., 2017, arXiv:1706.08566)."""

    cutoff = 5.0

    def __init__(self, width=32, num_blocks=3, num_rbf=16):
        super().__init__()
        self.embedding = Embedding(100, width)
        self.register_buffer("centers", torch.linspace(0, self.cutoff, num_rbf))
        self.inputs, self.filters, self.outputs = (
            ModuleList(Sequential(Linear(size, width), SiLU(), Linear(width, width)) for _ in range(num_blocks))
            for size in (width, num_rbf, width)
        )
        self.energy = Sequential(Linear(width, width), SiLU(), Linear(width, 1))

    def atoms_of_vectors(self, z, vec, neighbors):
        """Return the energy of each atom."""
        distance = vec.square().sum(dim=1, keepdim=True).sqrt()
        envelope = 0.5 + 0.5 * torch.cos(torch.pi * distance / self.cutoff)
        rbf = torch.exp(-4.0 * (distance - self.centers).square())
        x = self.embedding(z)
        for source, weight, update in zip(self.inputs, self.filters, self.outputs, strict=True):
            x = x + update(neighbors.into_atoms(envelope * weight(rbf) * neighbors.of_sources(source(x))))
        return self.energy(x)


# %%
# Training on forces
# ------------------
# Calling a `ForceField` returns energies, forces and stresses, as wrappers such as DistributedDataParallel require.


def draw_labelled_crystal():
    """Return a distorted alloy crystal with its forces."""
    atoms = bulk("Cu", cubic=True, a=3.7 * rng.normal(1, 0.02)).repeat((2, 1, 1))
    atoms.numbers = rng.choice([29, 79], len(atoms))
    atoms.positions += rng.normal(scale=rng.uniform(0.03, 0.15), size=atoms.positions.shape)
    atoms.calc = EMT()
    return atoms


def make_batch_tensors(crystals):
    """Return the tensors of one batch of crystals."""
    z = torch.tensor(np.concatenate([a.numbers for a in crystals]))
    pos, forces = (
        torch.tensor(np.concatenate(arrays), dtype=torch.float32)
        for arrays in zip(*((a.positions, a.get_forces()) for a in crystals), strict=True)
    )
    cell = torch.tensor(np.array([a.cell.array for a in crystals]), dtype=torch.float32)
    batch = torch.arange(len(crystals)).repeat_interleave(torch.tensor([len(a) for a in crystals]))
    return z, pos, cell, model.neighbors(pos, batch, cell), forces


model = SchNet()
field = ForceField(model)
crystals = [draw_labelled_crystal() for _ in range(STRUCTURES)]
batches = [make_batch_tensors(crystals[i : i + 8]) for i in range(0, STRUCTURES, 8)]
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
errors = []
for _ in range(EPOCHS):
    for z, pos, cell, neighbors, forces in batches:
        loss = (field(z, pos, cell=cell, neighbors=neighbors).forces - forces).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        errors.append(loss.item() ** 0.5)
    schedule.step()
print(f"error of a force component, first and last epoch: {errors[0]:.2f} and {errors[-1]:.2f} eV/Å")

# %%
# In ASE
# ------
# The forces are the exact derivative of the energy, so a relaxation converges. Afterwards, all eigenvalues of the
# Hessian are positive, except those of the three rigid translations.

model.double().requires_grad_(False)
atoms = bulk("Cu", cubic=True, a=3.7)
atoms.rattle(0.05, seed=1)
atoms.calc = Calculator(model)
BFGS(atoms, logfile=None).run(fmax=1e-3, steps=STEPS)
hessian = atoms.calc.get_hessian(atoms).reshape(3 * len(atoms), 3 * len(atoms))
eigenvalues = np.linalg.eigvalsh(hessian)
assert np.abs(hessian.reshape(-1, len(atoms), 3).sum(axis=1)).max() < 1e-10 * np.abs(hessian).max()
print("eigenvalues of the Hessian in eV/Å²:", eigenvalues.round(2))

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
left.semilogy(errors)
left.set(xlabel="step of training", ylabel="error of a force (eV/Å)")
right.stem(eigenvalues)
right.set(xlabel="number", ylabel="eigenvalue of the Hessian (eV/Å²)")
plt.show()
