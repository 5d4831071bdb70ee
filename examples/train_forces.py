"""Train DimeNet++ on forces, and run dynamics with it.

Copper-gold clusters and slabs are made and labelled by ASE's EMT potential on the spot. The model is trained on the
energies and forces of some, and its errors are those of the others, which it has not seen. It then moves one of these
at constant energy: how well the total energy is kept shows that the forces are the derivative of the energy.

Needs torch and ase: pip install 'trigraph[torch,ase]'.
"""

from pathlib import Path

import click
import numpy as np
import torch
from ase import units
from ase.build import fcc111
from ase.calculators.emt import EMT
from ase.cluster import Icosahedron
from ase.md.verlet import VelocityVerlet
from matplotlib.figure import Figure
from rich.progress import Progress

from trigraph.ase import Calculator
from trigraph.torch.nn import DimeNetPlusPlus

ELEMENTS, SPACING = (29, 79), {29: 3.61, 79: 4.08}  # copper, gold; lattice constants in angstrom
FORCE_WEIGHT, BATCH = 1.0, 8


def structures(number, rng):
    """Clusters of 13 atoms and slabs of 12, of random composition, at its mean lattice constant, atoms displaced."""
    for i in range(number):
        share = rng.random()
        spacing = (1 - share) * SPACING[29] + share * SPACING[79]
        atoms = Icosahedron("Cu", 2, spacing) if i % 2 else fcc111("Cu", (2, 2, 3), spacing, vacuum=5.0)
        atoms.numbers = rng.choice(ELEMENTS, len(atoms), p=(1 - share, share))
        atoms.positions += rng.normal(scale=rng.uniform(0.02, 0.2), size=atoms.positions.shape)
        yield atoms


def labelled(atoms):
    """Atomic numbers, positions, cell, periodic directions, energy and forces, as tensors."""
    atoms.calc = EMT()
    arrays = (atoms.positions, np.array(atoms.cell), atoms.pbc, atoms.get_potential_energy(), atoms.get_forces())
    z, position, cell, pbc, energy, forces = (torch.tensor(a) for a in (atoms.numbers, *arrays))
    return z, position.float(), cell.float(), pbc, energy.float(), forces.float()


def batches(data, model):
    """Structures put together, BATCH at a time, with their neighbours: found once, since positions stay."""
    for start in range(0, len(data), BATCH):
        z, pos, cell, pbc, energy, forces = zip(*data[start : start + BATCH], strict=True)
        size = torch.tensor([len(n) for n in z])
        batch = torch.repeat_interleave(torch.arange(len(z)), size)
        cells = torch.stack(cell)
        kept = model.neighbors(torch.cat(pos), batch, cells, torch.stack(pbc))
        yield torch.cat(z), torch.cat(pos), cells, kept, size, torch.stack(energy), torch.cat(forces)


def results(model, batch, create_graph=False):
    """Energies per atom and forces, of the model and of the labels."""
    z, pos, cells, neighbors, size, energy, forces = batch
    found = model.energy_forces_stress(z, pos, cell=cells, neighbors=neighbors, create_graph=create_graph)
    return found.energy / size, found.forces, energy / size, forces


def errors(model, data):
    """Root mean square errors: of the energy per atom (meV), of the components of the forces (meV/angstrom)."""
    energy, forces, energy_true, forces_true = (
        torch.cat(x) for x in zip(*(results(model, b) for b in data), strict=True)
    )
    return [1000 * (a - b).square().mean().sqrt().item() for a, b in ((energy, energy_true), (forces, forces_true))]


def train(model, train_data, held_out, epochs, progress):
    """Adam with a decreasing rate; return the errors on held-out structures before and after each epoch."""
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    history = [errors(model, held_out)]
    task = progress.add_task("training", total=epochs)
    for _ in range(epochs):
        for i in torch.randperm(len(train_data)).tolist():
            energy, forces, energy_true, forces_true = results(model, train_data[i], create_graph=True)
            loss = (energy - energy_true).square().mean() + FORCE_WEIGHT * (forces - forces_true).square().mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
        schedule.step()
        history.append(errors(model, held_out))
        progress.update(task, advance=1, description=f"training, forces to {history[-1][1]:.0f} meV/Å")
    return history


def run_dynamics(model, atoms, steps, rng, progress):
    """Constant energy from 300 K in steps of 1 fs; return potential and total energies per atom, in meV."""
    atoms.calc = Calculator(model)
    spread = np.sqrt(atoms.get_masses()[:, None] * units.kB * 300)
    atoms.set_momenta(spread * rng.standard_normal((len(atoms), 3)))
    energies = []
    task = progress.add_task("dynamics", total=steps)

    def record():
        energies.append((atoms.get_potential_energy(), atoms.get_total_energy()))
        progress.advance(task)

    dynamics = VelocityVerlet(atoms, timestep=units.fs)
    dynamics.attach(record)
    dynamics.run(steps)
    return 1000 * np.array(energies) / len(atoms)


def plot(history, model, held_out, energies, path):
    """Learning curve, parity of the forces, and energies over time."""
    figure = Figure(figsize=(15, 3.4), layout="constrained")
    learning, parity, potential, total = figure.subplots(1, 4)
    learning.semilogy(history, label=["energy (meV/atom)", "forces (meV/Å)"])
    learning.set(xlabel="epoch", ylabel="error on held-out structures")
    learning.legend()
    found = [results(model, b) for b in held_out]
    forces, forces_true = (torch.cat([f[k] for f in found]).flatten() for k in (1, 3))
    parity.plot(forces_true, forces, ".", markersize=3)
    parity.axline((0, 0), slope=1, color="0.5", linewidth=1)
    parity.set(xlabel="force by EMT (eV/Å)", ylabel="force by DimeNet++ (eV/Å)")
    for axes, change, name in zip((potential, total), (energies - energies[0]).T, ("potential", "total"), strict=True):
        axes.plot(change)
        axes.set(xlabel="time (fs)", ylabel=f"change of {name} energy (meV/atom)")
    figure.savefig(path, dpi=150)


@click.command()
@click.option(
    "--number",
    default=120,
    show_default=True,
    type=click.IntRange(5),
    help="Structures; a fifth of them are held out.",
)
@click.option("--epochs", default=60, show_default=True, type=click.IntRange(0))
@click.option("--steps", default=500, show_default=True, type=click.IntRange(0), help="Steps of the dynamics.")
@click.option("--plot", "path", default="train_forces.png", show_default=True, type=click.Path(path_type=Path))
def main(number, epochs, steps, path):
    """Train DimeNet++ on forces of copper-gold clusters and slabs, and run dynamics with it."""
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    model = DimeNetPlusPlus(32, 1, 2, 16, 4, 32, 5, 6, cutoff=5.0, num_output_layers=2)
    atoms = list(structures(number, rng))
    data = [labelled(a) for a in atoms]
    # The part of the energy that is proportional to the numbers of atoms has no forces; it is fitted and taken off.
    counts = torch.stack([torch.stack([(d[0] == n).sum() for n in ELEMENTS]) for d in data]).float()
    first = number - number // 5
    per_atom = torch.linalg.lstsq(counts[:first], torch.stack([d[4] for d in data[:first]])[:, None]).solution[:, 0]
    data = [(*d[:4], d[4] - c @ per_atom, d[5]) for d, c in zip(data, counts, strict=True)]
    train_data, held_out = (list(batches(part, model)) for part in (data[:first], data[first:]))
    with Progress() as progress:
        history = train(model, train_data, held_out, epochs, progress)
        energies = run_dynamics(model, atoms[-1], steps, rng, progress)
    plot(history, model, held_out, energies, path)
    (before, after), change = (history[0][1], history[-1][1]), energies - energies[0]
    print(f"{first} structures trained, {number - first} held out")
    print(f"error of energies: {history[0][0]:.1f} meV/atom before, {history[-1][0]:.1f} after {epochs} epochs")
    print(f"error of forces: {before:.1f} meV/Å before, {after:.1f} after")
    print(
        f"total energy within {np.abs(change[:, 1]).max():.3f} meV/atom over {steps} fs, potential energy within "
        f"{np.abs(change[:, 0]).max():.3f}"
    )
    print(f"plot: {path}")


if __name__ == "__main__":
    main()
