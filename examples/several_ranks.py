"""
One graph on several ranks
==========================

A graph that is too large for one process can be divided among MPI ranks. Each rank owns some nodes, and receives the
rows of neighbours that other ranks own. The results are bitwise identical for any number of ranks. This tutorial
divides a slab of atoms, plots the atoms of each rank, and trains DimeNet++ on one rank and on two.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from ase.build import fcc111

from trigraph import EdgeGraph
from trigraph.distributed import owners

plt.style.use("tableau-colorblind10")
CUTOFF, STEPS = 4.0, 10

# %%
# Ownership
# ---------
# ``owners.bisection`` repeatedly halves the atoms along the longest side. An edge belongs to the rank of its source
# atom. If the edge ends at an atom of another rank, its source is a *halo* atom of that rank, whose data it receives
# before every call.

slab = fcc111("Cu", (12, 12, 1), orthogonal=True)
slab.pbc = False
owner = np.asarray(owners.bisection(slab.positions, 4))
graph = EdgeGraph.from_ase(slab, CUTOFF).graph
crossing = owner[graph.src] != owner[graph.dst]
received = [len(np.unique(graph.src[crossing & (owner[graph.dst] == rank)])) for rank in range(4)]
print(f"{len(slab)} atoms and {graph.num_edges} edges, of which {crossing.sum()} cross a border")
print(f"atoms of each rank: {np.bincount(owner).tolist()}; halo atoms: {received}")

figure, ax = plt.subplots(figsize=(6, 4.8), layout="constrained")
halo = np.unique(graph.src[crossing & (owner[graph.dst] == 0)])
for rank, marker in enumerate("os^D"):
    x, y, _ = slab.positions[owner == rank].T
    ax.plot(x, y, marker, color=f"C{rank}", markersize=9, label=f"rank {rank}")
ax.plot(*slab.positions[halo, :2].T, "o", color="none", markeredgecolor="black", markersize=16, label="halo of rank 0")
ax.set(xlabel="x (Å)", ylabel="y (Å)", aspect="equal")
figure.legend(loc="outside right upper")
plt.show()

# %%
# The same training on one rank and on two
# ----------------------------------------
# ``examples/divided_forces.py`` fits the forces of a slab. Each rank holds only its own atoms and edges, and the
# optimizers of all ranks take the same steps. Rank 0 prints the losses and a digest of the trained parameters.

folder = Path.cwd() if "__file__" not in globals() else Path(__file__).parent
# A virtual environment has its own mpiexec next to its Python.
search_path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
mpiexec = shutil.which("mpiexec", path=search_path) or "mpiexec"
program = [sys.executable, folder / "divided_forces.py", "--steps", str(STEPS)]
outputs = {}
for ranks in (1, 2):
    command = [mpiexec, "-n", str(ranks), *program] if ranks > 1 else program
    outputs[ranks] = subprocess.run(command, capture_output=True, text=True, check=True).stdout
print(outputs[2])
assert outputs[1] == outputs[2]

# %%
losses = {n: [float(x.split()[-2]) for x in text.splitlines() if "force" in x] for n, text in outputs.items()}
figure, ax = plt.subplots(figsize=(6, 3), layout="constrained")
ax.plot(range(0, STEPS + 1, 5), losses[1], "o-", markersize=10, label="one rank")
ax.plot(range(0, STEPS + 1, 5), losses[2], "s--", label="two ranks")
ax.set(xlabel="step", ylabel="error of a force (eV/Å)")
ax.legend()
plt.show()
