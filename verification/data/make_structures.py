"""Create structures/*.npz: two molecules, a slab with an adsorbate, and a crystal, all with their neighbours.

    python make_structures.py      (needs ase)

Geometries are from ase.build: benzene and ethanol from the G2 set; two layers of 2x2 Cu(111) cells, periodic along the
surface, with CO on top of a copper atom; and the primitive cell of rock salt, where every neighbour is an image of one
of two atoms. Positions have eight decimals. Neighbours are stored so that NumPy suffices to read the files.
"""

from pathlib import Path

import numpy as np
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc111, molecule

from trigraph.verification.structures import SHIPPED, make_structure

CUTOFF = 5.0  # in angstrom


def make_copper_slab_with_co() -> Atoms:
    """Return a copper slab with CO, whose carbon atom is next to the surface."""
    copper = fcc111("Cu", size=(2, 2, 2), vacuum=8.0)
    add_adsorbate(copper, Atoms("CO", [[0, 0, 0], [0, 0, 1.15]]), 1.85, "ontop")
    return copper


STRUCTURES = {
    "benzene": molecule("C6H6"),
    "ethanol": molecule("CH3CH2OH"),
    "copper slab with CO": make_copper_slab_with_co(),
    "rock salt": bulk("NaCl", "rocksalt", a=5.64),
}


def main() -> None:
    """Write the files next to this script."""
    folder = Path(__file__).with_name("structures")
    for name, atoms in STRUCTURES.items():
        atoms.positions = atoms.positions.round(8)
        structure = make_structure(name, atoms, CUTOFF)
        neighbours = {key: getattr(structure, key).astype(np.int32) for key in ("src", "dst", "shifts")}
        arrays = {"positions": structure.positions, "cell": structure.cell, "pbc": atoms.pbc, **neighbours}
        np.savez_compressed(folder / f"{SHIPPED[name]}.npz", cutoff=CUTOFF, **arrays)


if __name__ == "__main__":
    main()
