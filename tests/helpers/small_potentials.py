"""Potentials that compute quickly, and a crystal, for tests of calculators."""

import torch
from ase.build import bulk

from trigraph.torch.nn import DimeNetPlusPlus, Potential


def make_small_dimenet():
    torch.manual_seed(1)
    model = DimeNetPlusPlus(
        8, 1, 1, 4, 2, 8, 3, 3, cutoff=4.0, num_output_layers=1, output_initializer="glorot_orthogonal"
    )
    return model.double()


def make_crystal():
    atoms = bulk("Cu", cubic=True)
    atoms.symbols[0] = "Au"
    atoms.rattle(0.1, seed=0)
    return atoms


class PairPotential(Potential):
    """Pair interactions that are repulsive at short and attractive at longer distances, and smooth at the cutoff."""

    cutoff = 4.5

    def __init__(self):
        super().__init__()
        self.depth = torch.nn.Parameter(torch.tensor(1.0, dtype=torch.float64))

    def atoms_of_vectors(self, z, vec, neighbors):
        square = vec.square().sum(dim=1, keepdim=True)
        pairs = (1 - square / self.cutoff**2).clamp(min=0) ** 3 * ((2.4**2 / square) ** 3 - 1)
        return neighbors.into_atoms(self.depth * pairs)
