"""
Phonons from an analytic Hessian
================================

Vibrations of a crystal follow from the second derivatives of its energy. Finite displacements approximate these
derivatives; a model with exact second derivatives gives them directly. This tutorial trains a small DimeNet++ on forces
of copper, and computes its phonon dispersion from three rows of the Hessian.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from ase import units
from ase.build import bulk
from ase.calculators.emt import EMT

from trigraph.torch.nn import DimeNetPlusPlus

plt.style.use("tableau-colorblind10")
STRUCTURES, EPOCHS, REPEATS = 48, 40, 5
rng = np.random.default_rng(0)
torch.manual_seed(0)

# %%
# Train on forces
# ---------------
# The labels are forces of ASE's EMT potential on copper cells of 16 atoms: strained, and with displaced atoms. Eight
# cells form a batch, whose neighbours are found once, since positions stay as they are.


def copper():
    """Return a displaced crystal with its forces."""
    atoms = bulk("Cu", cubic=True, a=3.6 * rng.normal(1, 0.02)).repeat((2, 2, 1))
    atoms.positions += rng.normal(scale=rng.uniform(0.02, 0.12), size=atoms.positions.shape)
    atoms.calc = EMT()
    return atoms


def batch_of(crystals):
    """Return the tensors of some crystals in one batch."""
    joined = [np.concatenate([f(a) for a in crystals]) for f in (lambda a: a.positions, lambda a: a.get_forces())]
    pos, forces = (torch.tensor(array, dtype=torch.float32) for array in joined)
    z = torch.full((len(pos),), 29)
    cell = torch.tensor(np.array([a.cell.array for a in crystals]), dtype=torch.float32)
    batch = torch.arange(len(crystals)).repeat_interleave(16)
    return z, pos, cell, model.neighbors(pos, batch, cell, torch.ones(len(crystals), 3, dtype=torch.bool)), forces


model = DimeNetPlusPlus(32, 1, 1, 16, 4, 32, 5, 6, cutoff=4.0, num_output_layers=2)
crystals = [copper() for _ in range(STRUCTURES)]
batches = [batch_of(crystals[i : i + 8]) for i in range(0, STRUCTURES, 8)]
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
for _ in range(EPOCHS):
    errors = []
    for z, pos, cell, neighbors, forces in batches:
        results = model.energy_forces_stress(z, pos, cell=cell, neighbors=neighbors, create_graph=True)
        loss = (results.forces - forces).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        errors.append(loss.item())
    schedule.step()
print(f"root mean square error of a force component: {1000 * np.mean(errors) ** 0.5:.1f} meV/Å")

# %%
# Three rows of the Hessian
# -------------------------
# All atoms of this crystal are alike, so that the second derivatives with one of the displaced atoms are all that
# there is to know: three rows of the Hessian, each the gradient of one force component.

primitive = bulk("Cu", a=3.6)
supercell = primitive.repeat(REPEATS)
model = model.double().requires_grad_(False)
z, pos, cell = map(torch.tensor, (supercell.numbers, supercell.positions, supercell.cell.array))
analytic = model.hessian(z, pos, cell=cell, atoms=[0])[0].numpy()

# %%
# A rigid shift of the crystal changes no force: the rows add up to zero, to rounding.

assert np.abs(analytic.sum(axis=1)).max() < 1e-12 * np.abs(analytic).max()

# %%
# The potential behind the labels has no analytic second derivatives here, so its rows come from displacements.


def emt_forces(axis, step):
    """Return the forces after atom 0 was displaced."""
    moved = supercell.copy()
    moved.positions[0, axis] += step
    moved.calc = EMT()
    return moved.get_forces()


displaced = np.stack([(emt_forces(axis, -0.01) - emt_forces(axis, 0.01)) / 0.02 for axis in range(3)])

# %%
# Dispersion
# ----------
# The eigenvalues of the dynamical matrix at a wave vector are squares of angular frequencies. A pair of atoms counts
# by its nearest periodic images.

shifts = np.stack(np.meshgrid(*[[-1, 0, 1]] * 3), axis=-1).reshape(-1, 3) @ supercell.cell.array
images = (supercell.positions - supercell.positions[0])[:, None] + shifts
lengths = np.linalg.norm(images, axis=2)
share = lengths < lengths.min(axis=1, keepdims=True) + 1e-6
share = share / share.sum(axis=1, keepdims=True)
TO_THZ = 1000 * units.fs / (2 * np.pi)  # from ASE's unit of time to picoseconds, from angular frequency to frequency


def frequencies(rows, wave_vectors):
    """Return the three frequencies at each wave vector, in THz."""
    phases = (share * np.exp(1j * np.einsum("qa,nia->qni", wave_vectors, images))).sum(axis=-1)
    dynamical = np.einsum("qn,anb->qab", phases, rows) / primitive.get_masses()[0]
    squares = np.linalg.eigvalsh((dynamical + dynamical.conj().swapaxes(1, 2)) / 2)
    return TO_THZ * np.sign(squares) * np.sqrt(np.abs(squares))


path = primitive.cell.bandpath("GXWKGL", npoints=150)
along, ticks, labels = path.get_linear_kpoint_axis()
wave_vectors = 2 * np.pi * path.cartesian_kpts()
predicted, expected = (frequencies(rows, wave_vectors) for rows in (analytic, displaced))
print(f"largest difference of a frequency: {np.abs(predicted - expected).max():.2f} THz of {expected.max():.2f} THz")

figure, ax = plt.subplots(figsize=(6, 3.8), layout="constrained")
lines = ax.plot(along, predicted, "C0", linewidth=2.5), ax.plot(along, expected, "k--", linewidth=1)
ax.set_xticks(ticks, ["Γ" if label == "G" else label for label in labels])
ax.grid(axis="x")
ax.set(xlim=(0, along[-1]), ylim=(0, None), xlabel="wave vector", ylabel="frequency (THz)")
ax.legend([line[0] for line in lines], ["DimeNet++, analytic Hessian", "EMT, finite displacements"])
plt.show()
