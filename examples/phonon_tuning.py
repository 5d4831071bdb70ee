"""
Phonon fine-tuning: training on the Hessian
===========================================

A potential trained on the forces of some structures may have the wrong curvature for others, and therefore the wrong
phonons. Phonon fine-tuning (Koker et al., 2026, arXiv:2601.07742) adds columns of the Hessian to the loss. Each step
uses one random column for each structure, computed as a product of the Hessian with a vector. The gradient of this loss
with respect to the weights is a third derivative of the energy, which is exact here. This tutorial trains a small
DimeNet++ on clusters of copper and gold, labelled by ASE's EMT potential. Then it tunes the model on columns for small
crystals, and compares phonons of copper and of an ordered alloy that the model has not seen.
"""

import copy

import matplotlib.pyplot as plt
import numpy as np
import torch
from ase import units
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.cluster import Icosahedron

from trigraph.torch.nn import DimeNetPlusPlus

plt.style.use("tableau-colorblind10")
BATCHES, EPOCHS, STEPS, FACTOR = 4, 80, 400, 3
COPPER, ALLOY = 5, 3  # repetitions of the primitive cell along each axis
rng = np.random.default_rng(0)
torch.manual_seed(0)

# %%
# Clusters and crystals
# ---------------------
# A batch contains four structures, in which about 0, 1/8, 3/8 and 1/2 of the atoms are gold. At first the model learns
# only energies and forces of clusters of 13 atoms. Later it also learns columns of the Hessians of crystals, which are
# cells of eight atoms.


def draw_labelled_batch(geometry):
    """Return displaced structures and the tensors of their batch: the model's arguments, energies and forces."""
    structures = []
    for gold in (0.0, 0.125, 0.375, 0.5):
        spacing = (3.59 + 0.47 * gold) * rng.normal(1, 0.02)
        atoms = Icosahedron("Cu", 2, spacing) if geometry == "cluster" else bulk("Cu", a=spacing).repeat(2)
        atoms.numbers[rng.permutation(len(atoms))[: round(gold * len(atoms))]] = 79
        atoms.positions += rng.normal(scale=0.1 if geometry == "cluster" else 0.03, size=atoms.positions.shape)
        atoms.calc = EMT()
        structures.append(atoms)
    z = torch.tensor(np.concatenate([a.numbers for a in structures]))
    pos, forces = (
        concatenate_to_tensor([a.positions for a in structures]),
        concatenate_to_tensor([a.get_forces() for a in structures]),
    )
    cell = None if geometry == "cluster" else concatenate_to_tensor([a.cell.array for a in structures]).reshape(4, 3, 3)
    neighbors = model.neighbors(pos, torch.arange(4).repeat_interleave(len(pos) // 4), cell)
    energy = torch.tensor([a.get_potential_energy() for a in structures], dtype=torch.float32)
    return structures, (z, pos), {"cell": cell, "neighbors": neighbors}, energy, forces


def concatenate_to_tensor(arrays):
    """Concatenate the arrays of several structures into one float32 tensor."""
    return torch.tensor(np.concatenate(arrays), dtype=torch.float32)


model = DimeNetPlusPlus(16, 1, 1, 8, 4, 16, 5, 6, cutoff=4.0, num_output_layers=2)
clusters, crystals = ([draw_labelled_batch(kind) for _ in range(BATCHES)] for kind in ("cluster", "crystal"))
held_out = {kind: draw_labelled_batch(kind) for kind in ("cluster", "crystal")}

# %%
# The loss
# --------
# ASE's EMT has no analytic Hessian; its columns are computed from forces at two opposite displacements. The model's
# columns are exact, and ``create_graph=True`` makes them differentiable.


def compute_emt_hessian_product(atoms, direction, step=0.01):
    """Return the product of EMT's Hessian with a direction, computed by central differences of forces."""
    forces = []
    for sign in (-1, 1):
        moved = atoms.copy()
        moved.positions += sign * step * direction
        moved.calc = EMT()
        forces.append(moved.get_forces())
    return (forces[0] - forces[1]) / (2 * step)


def make_unit_displacement(atoms, atom, axis):
    """Return a unit displacement of one atom along one axis."""
    direction = np.zeros((len(atoms), 3))
    direction[atom, axis] = 1.0
    return direction


def compute_energy_force_loss(batch):
    """Return the loss for the energies per atom and the forces of clusters."""
    _, atoms, periodic, energy, forces = batch
    found = model.energy_forces_stress(*atoms, **periodic, create_graph=True)
    return ((found.energy - energy) / 13).square().mean() + (found.forces - forces).square().mean()


def compute_hessian_column_loss(batch):
    """Return the mean squared error of a random column of each structure's Hessian."""
    structures, (z, pos), periodic, *_ = batch
    directions = [make_unit_displacement(atoms, rng.integers(len(atoms)), rng.integers(3)) for atoms in structures]
    expected = concatenate_to_tensor(
        [compute_emt_hessian_product(*pair) for pair in zip(structures, directions, strict=True)]
    )
    found = model.hessian_vector_product(z, pos, concatenate_to_tensor(directions), **periodic, create_graph=True)
    return (found - expected).square().mean()


def train_model(steps, rate, weight):
    """Train on the forces of clusters and, if `weight` is not zero, on Hessian columns of crystals."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        loss = compute_energy_force_loss(clusters[step % BATCHES])
        if weight:
            loss = loss + weight * compute_hessian_column_loss(crystals[step % BATCHES])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        schedule.step()


# %%
# Phonons
# -------
# A few rows of the Hessian of a supercell give the dispersion. The alloy is ordered Cu₃Au, a composition that no
# crystal above has. Imaginary frequencies are shown as negative.

alloy = bulk("Cu", cubic=True, a=3.708)  # EMT's stress-free lattice constant
alloy.numbers[0] = 79
CRYSTALS = {"Cu": (bulk("Cu", a=3.59), COPPER, "GXWKGL"), "Cu₃Au": (alloy, ALLOY, "GXMGR")}


def compute_emt_hessian_rows(supercell, atoms):
    """Return rows of EMT's Hessian."""
    return np.array(
        [
            [compute_emt_hessian_product(supercell, make_unit_displacement(supercell, atom, axis)) for axis in range(3)]
            for atom in atoms
        ]
    )


def compute_model_hessian_rows(supercell, atoms):
    """Return rows of the model's Hessian."""
    z, pos, cell = map(torch.tensor, (supercell.numbers, supercell.positions, supercell.cell.array))
    return copy.deepcopy(model).double().hessian(z, pos, cell=cell, atoms=atoms).numpy()


def compute_phonon_frequencies(compute_rows, primitive, repeats, path):
    """Return the frequencies in THz at each wave vector along a path."""
    supercell, size = primitive.repeat(repeats), 3 * len(primitive)
    rows = compute_rows(supercell, range(len(primitive)))
    shifts = (np.array(list(np.ndindex(3, 3, 3))) - 1) @ supercell.cell.array
    images = (supercell.positions - primitive.positions[:, None])[:, :, None] + shifts
    lengths = np.linalg.norm(images, axis=-1)
    image_weights = (
        lengths < lengths.min(axis=-1, keepdims=True) + 1e-6
    )  # only the nearest images of a pair are included
    image_weights = image_weights / image_weights.sum(axis=-1, keepdims=True)
    masses = np.repeat(primitive.get_masses(), 3)
    result = []
    for wave_vector in 2 * np.pi * primitive.cell.bandpath(path, npoints=100).cartesian_kpts():
        phases = (image_weights * np.exp(1j * images @ wave_vector)).sum(axis=-1)
        dynamical = np.einsum("ij,iajb->iajb", phases, rows).reshape(size, -1, size).sum(axis=1)
        dynamical = dynamical / np.sqrt(np.outer(masses, masses))
        squares = np.linalg.eigvalsh((dynamical + dynamical.conj().T) / 2)
        result.append(np.sign(squares) * np.sqrt(np.abs(squares)))
    return 1000 * units.fs / (2 * np.pi) * np.array(result)


expected = {name: compute_phonon_frequencies(compute_emt_hessian_rows, *crystal) for name, crystal in CRYSTALS.items()}
assert min(each.min() for each in expected.values()) > -0.05  # both crystals are stable in EMT


def evaluate_and_report_model(title):
    """Print the root mean square errors; return the frequencies of both crystals and their errors."""
    found = {
        name: compute_phonon_frequencies(compute_model_hessian_rows, *crystal) for name, crystal in CRYSTALS.items()
    }
    errors = {name: np.sqrt(np.square(found[name] - expected[name]).mean()) for name in CRYSTALS}
    text = [f"{name} {error:.3f} THz" for name, error in errors.items()]
    for kind, (_, atoms, periodic, _, forces) in held_out.items():
        error = (model.energy_forces_stress(*atoms, **periodic).forces - forces).square().mean().sqrt()
        text.append(f"forces of a {kind} {1000 * error:.0f} meV/Å")
    print(f"{title}: {', '.join(text)}")
    return found, errors


# %%
# Before and after
# ----------------
# For comparison, the model is also trained for as many steps without Hessian columns. The clusters stay in the loss,
# so that the model does not forget them.

train_model(EPOCHS * BATCHES, rate=4e-3, weight=0.0)
before, errors = evaluate_and_report_model("trained on forces")
trained = copy.deepcopy(model.state_dict())
train_model(STEPS, rate=3e-3, weight=0.0)
evaluate_and_report_model("more steps without columns")
model.load_state_dict(trained)
train_model(STEPS, rate=3e-3, weight=0.5)
after, tuned = evaluate_and_report_model("steps with columns")
for name in CRYSTALS:
    print(f"{name}: the error of frequencies fell by a factor of {errors[name] / tuned[name]:.1f}")
    assert errors[name] > FACTOR * tuned[name]

figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
for ax, (name, (primitive, _, path)) in zip(axes, CRYSTALS.items(), strict=True):
    path_distance, ticks, labels = primitive.cell.bandpath(path, npoints=100).get_linear_kpoint_axis()
    curves = ((before, "C1-", 1.5), (after, "C0-", 2.5), (expected, "k--", 1))
    lines = [ax.plot(path_distance, found[name], style, linewidth=width)[0] for found, style, width in curves]
    ax.set_xticks(ticks, ["Γ" if label == "G" else label for label in labels])
    ax.grid(axis="x")
    ax.set(title=name, xlim=(0, path_distance[-1]), ylabel="frequency (THz)")
names = ["DimeNet++, trained on forces of clusters", "tuned on columns of the Hessian", "EMT"]
figure.legend(lines, names, loc="outside lower center", ncols=3)
plt.show()
