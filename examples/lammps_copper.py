"""
Molecular dynamics of copper in LAMMPS
======================================

This program runs dynamics at constant energy and draws the energies in `lammps.png`. The model is a Morse
potential for copper (Girifalco and Weizer, 1959) with a smooth cutoff, written as a `trigraph.torch.nn.Potential`. Any
other model is used in the same way.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from ase.build import bulk

import trigraph.ase
import trigraph.lammps
from trigraph.torch.nn import Potential

plt.style.use("tableau-colorblind10")
CELLS, STEPS = 4, 1000
SCRIPT = """
units metal
lattice fcc 3.6
region box block 0 {0} 0 {0} 0 {0}
create_box 1 box
create_atoms 1 box
mass 1 63.546
pair_style zero 6.0 full
pair_coeff * *
fix potential all external pf/callback 1 1
velocity all create 600 1
fix move all nve
timestep 0.002
thermo 100
"""


class Morse(Potential):
    """The Morse potential of copper."""

    cutoff = 6.0

    def __init__(self):
        super().__init__()
        self.depth = torch.nn.Parameter(torch.tensor(0.3429, dtype=torch.float64))

    def atoms_of_vectors(self, z, vec, neighbors):
        """Return the energy of each atom, half the energy of its pairs; the last factor makes the cutoff smooth."""
        square = vec.square().sum(dim=1, keepdim=True)
        well = (1 - torch.exp(-1.3588 * (square.sqrt() - 2.866))).square() - 1
        return neighbors.into_atoms(0.5 * self.depth * well * (1 - (square / self.cutoff**2).clamp(max=1) ** 4) ** 3)


# %%
# LAMMPS creates the crystal and moves the atoms. The final forces are compared with those of the ASE calculator.

with open("in.copper", "w") as file:
    file.write(SCRIPT.format(CELLS))
model = Morse().requires_grad_(False)
lmp = trigraph.lammps.run(model, "in.copper", ["Cu"], arguments=["-log", "none", "-screen", "none"], skin=0.5)
rows = []
for _ in range(STEPS // 10):
    lmp.command("run 10 post no")
    rows.append([lmp.get_thermo(name) for name in ("step", "pe", "ke", "etotal")])
positions, forces = (np.array(lmp.gather_atoms(name, 1, 3)).reshape(-1, 3) for name in ("x", "f"))
lmp.close()
atoms = bulk("Cu", cubic=True, a=3.6).repeat(CELLS)
atoms.positions, atoms.calc = positions, trigraph.ase.Calculator(model)
error = np.abs(forces - atoms.get_forces()).max()
steps, pe, ke, total = np.array(rows).T
drift = np.polyfit(steps * 0.002, total, 1)[0] / len(atoms)
print(f"{len(atoms)} atoms, {STEPS} steps of 2 fs: largest difference of a force from ASE's {error:.1e} eV/Å,")
print(f"total energy within {1e3 * np.ptp(total) / len(atoms):.3f} meV an atom, drift {1e3 * drift:.4f} meV/ps an atom")
assert error < 1e-12

figure, axes = plt.subplots(2, sharex=True, figsize=(6, 4), layout="constrained")
for label, energy in (("potential", pe - pe[0]), ("kinetic", ke - ke[0])):
    axes[0].plot(steps * 0.002, 1e3 * energy / len(atoms), label=label)
axes[1].plot(steps * 0.002, 1e3 * (total - total[0]) / len(atoms), "k", label="total")
axes[1].set(xlabel="time (ps)")
for ax in axes:
    ax.set_ylabel("change (meV/atom)")
    ax.legend(loc="upper right")
figure.savefig("lammps.png", dpi=150)
