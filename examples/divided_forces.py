"""Train DimeNet++ on the forces of one slab whose atoms are divided among MPI ranks.

    mpiexec -n 2 python examples/divided_forces.py

Each rank owns the atoms in its part of the slab and their edges. Rank 0 prints the losses and a digest of the trained
parameters, which are bitwise identical for any number of ranks. The labels are computed by ASE's EMT potential.

Needs torch, ASE, mpi4py and an MPI: pip install 'trigraph[torch,ase,mpi]' matscipy mpich.
"""

import hashlib

import click
import torch
from ase.build import fcc111
from ase.calculators.emt import EMT
from mpi4py import MPI

from trigraph import EdgeGraph
from trigraph.distributed import nn, owners
from trigraph.distributed.torch import total

COMM = MPI.COMM_WORLD
CUTOFF = 4.0  # in angstrom


def make_labelled_slab(repeats, seed):
    """Return a rattled copper slab with some gold atoms, and the forces on its atoms in eV / Angstrom."""
    atoms = fcc111("Cu", (2 * repeats, 3 * repeats, 3), vacuum=6.0)
    atoms.numbers[:: repeats + 3] = 79
    atoms.rattle(0.1, seed=seed)
    atoms.calc = EMT()
    return atoms, torch.from_numpy(atoms.get_forces()).float()


@click.command()
@click.option(
    "--repeats",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Repetitions of a slab of 18 atoms along both sides.",
)
@click.option("--steps", default=20, show_default=True, type=click.IntRange(0), help="Steps of the optimizer.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**32 - 1))
def main(repeats, steps, seed):
    """Fit the forces of a slab."""
    atoms, expected = make_labelled_slab(repeats, seed)
    graph, _, offset, _ = EdgeGraph.from_ase(atoms, CUTOFF)
    owner = owners.bisection(atoms.positions, COMM.size)
    neighbors = nn.DividedNeighbors.divide(graph, offset, COMM, owner)
    own_atoms = torch.from_numpy(neighbors.into.owned["num_dst_nodes"])
    rows = neighbors.into.get_row_partition("num_dst_nodes")
    z, pos = torch.from_numpy(atoms.numbers)[own_atoms], torch.from_numpy(atoms.positions).float()[own_atoms]

    torch.manual_seed(seed)  # gives all ranks the same parameters
    model = nn.DimeNetPlusPlus(32, 1, 2, 16, 4, 32, 4, 4, cutoff=CUTOFF, output_initializer="glorot_orthogonal")
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(steps + 1):
        _, forces = model.energy_forces(z, pos, neighbors, create_graph=True)
        loss = total((forces - expected[own_atoms]).square().sum(dim=1), rows) / len(atoms)
        if COMM.rank == 0 and step % 5 == 0:
            print(f"step {step}: root of the mean squared error of a force {loss.item() ** 0.5:.9f} eV/A", flush=True)
        optimizer.zero_grad()
        loss.backward()  # every rank has complete parameter gradients
        optimizer.step()
    if COMM.rank == 0:
        parameters = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
        print(f"{len(atoms)} atoms, {graph.num_edges} edges; parameters {hashlib.sha256(parameters).hexdigest()[:16]}")


if __name__ == "__main__":
    main()
