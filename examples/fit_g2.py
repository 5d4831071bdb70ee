"""Fit atomization energies of molecules with DimeNet++: the G2/97 set that ships with ASE.

The label is the experimental atomization energy without vibrations: enthalpies of formation of molecule and atoms,
with zero-point energy and thermal correction taken off (K. Raghavachari, P. C. Redfern, J. A. Pople, J. Chem. Phys.
106, 1063 (1997); V. N. Staroverov et al., J. Chem. Phys. 119, 12129 (2003)). Geometries are the set's, MP2/6-31G(d).
A model of atoms alone, a fitted energy for each element, is what DimeNet++ starts from and has to beat on molecules
that were held out. 148 molecules are few: this shows how a fit is made, not how good one can be.

Needs torch and ase: pip install 'trigraph[torch,ase]'.
"""

from pathlib import Path

import click
import numpy as np
import torch
from ase import Atoms, units
from ase.data.g2 import data, molecule_names
from matplotlib.figure import Figure
from rich.progress import track

from trigraph.torch.nn import DimeNetPlusPlus


def atomization_energy(name):
    """Of a molecule of the set, in eV."""
    entry = data[name]
    parts = [data[symbol] for symbol in Atoms(entry["symbols"]).symbols]
    atoms = sum(part["enthalpy"] - part["thermal correction"] for part in parts)
    return (atoms - entry["enthalpy"] + entry["ZPE"] + entry["thermal correction"]) * units.kcal / units.mol


def batch_of(molecules):
    """Atomic numbers, positions and molecule of each atom."""
    z = torch.cat([torch.tensor(m.numbers) for m in molecules])
    pos = torch.cat([torch.tensor(m.positions).float() for m in molecules])
    return z, pos, torch.repeat_interleave(torch.arange(len(molecules)), torch.tensor([len(m) for m in molecules]))


def plot(curve, label, baseline, found, train, held_out, path):
    """Learning curve and parity."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    learning, parity = figure.subplots(1, 2)
    learning.semilogy(curve, label=["trained on", "held out"])
    learning.set(xlabel="step", ylabel="mean absolute error (eV)")
    learning.legend()
    for part, name in ((train, "trained on"), (held_out, "held out")):
        parity.plot(label[part], found[part] - label[part], ".", label=name)
    parity.plot(label[held_out], (baseline - label)[held_out], "+", color="0.5", label="held out, elements alone")
    parity.axhline(0, color="0.5", linewidth=1)
    parity.set(xlabel="experimental atomization energy (eV)", ylabel="error (eV)")
    parity.legend()
    figure.savefig(path, dpi=150)


@click.command()
@click.option("--steps", default=300, show_default=True, type=click.IntRange(0))
@click.option("--plot", "path", default="fit_g2.png", show_default=True, type=click.Path(path_type=Path))
def main(steps, path):
    """Fit the atomization energies of the G2/97 molecules."""
    torch.manual_seed(0)
    names = sorted(molecule_names)
    molecules = [Atoms(data[n]["symbols"], data[n]["positions"]) for n in names]
    label = torch.tensor([atomization_energy(n) for n in names])
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(names)))
    held_out, train = order[: len(names) // 5], order[len(names) // 5 :]
    z, pos, batch = batch_of(molecules)
    elements = z.unique()
    counts = torch.zeros(len(names), len(elements)).index_put_(
        (batch, torch.searchsorted(elements, z)), torch.ones(len(z)), accumulate=True
    )
    per_atom = torch.linalg.lstsq(counts[train], label[train].float()[:, None], driver="gelsd").solution
    baseline = (counts @ per_atom)[:, 0]
    # Small and with a strong weight decay: larger ones learn the molecules by heart.
    model = DimeNetPlusPlus(16, 1, 2, 8, 4, 16, 4, 4, cutoff=3.0, num_output_layers=2)
    neighbors = model.neighbors(pos, batch)  # the molecules stay as they are
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 1))
    curve = []
    for _ in track(range(steps + 1), "fitting"):
        found = baseline + model(z, pos, neighbors=neighbors)[:, 0]
        error = (found - label).abs()
        curve.append([error[part].mean().item() for part in (train, held_out)])
        optimizer.zero_grad()
        torch.nn.functional.smooth_l1_loss(found[train], label[train].float(), beta=0.2).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
    plot(curve, label, baseline, found.detach(), train, held_out, path)
    print(f"{len(train)} molecules trained on, {len(held_out)} held out")
    print(f"mean absolute error, elements alone: {curve[0][0]:.3f} eV trained on, {curve[0][1]:.3f} held out")
    print(f"mean absolute error, after {steps} steps: {curve[-1][0]:.3f} eV trained on, {curve[-1][1]:.3f} held out")
    print(f"plot: {path}")


if __name__ == "__main__":
    main()
