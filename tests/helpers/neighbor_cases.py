"""Random structures for tests of neighbour searches."""

import numpy as np

CUTOFF = 1.0
STRUCTURE_TYPES = ("crystal", "skewed", "tiny", "slab", "wire", "molecule", "cluster", "lattice", "unwrapped", "empty")


def draw_structure(structure_type, rng):
    """Return positions, cell vectors (as rows) and periodic flags."""
    flags, cell = np.ones(3, bool), np.diag(rng.uniform(1.0, 4.0, 3)) + rng.normal(0, 0.2, (3, 3))
    number = int(rng.integers(1, 30))
    if structure_type == "skewed":
        cell = np.array([[1.5, 0, 0], [3.1, 1.2, 0], [-2.2, 2.7, 1.9]])[rng.permutation(3)] * rng.choice([-1, 1])
    elif structure_type == "tiny":
        cell, number = rng.uniform(0.35, 0.7) * (np.eye(3) + rng.normal(0, 0.15, (3, 3))), int(rng.integers(1, 4))
    elif structure_type in ("slab", "wire"):
        flags = rng.permutation([True, structure_type == "slab", False])
    elif structure_type in ("molecule", "cluster"):
        flags, cell = np.zeros(3, bool), np.eye(3)
        cell, number = (4 * cell, 80) if structure_type == "cluster" else (cell, number)
    elif structure_type == "lattice":  # many distances equal the cutoff, and many atoms are on the faces of bins
        cell = np.diag(rng.integers(1, 5, 3).astype(float)) * 0.5
        flags = rng.random(3) < 0.7
        sides = (2 * np.diag(cell)).astype(int)
        return np.stack(np.meshgrid(*map(np.arange, sides)), -1).reshape(-1, 3) * 0.5, cell, flags
    elif structure_type == "empty":
        number = 0
    fractional = rng.random((number, 3)) * np.where(flags, 1.0, rng.uniform(0.3, 3.0))
    if structure_type == "unwrapped":
        fractional += rng.integers(-40, 40, fractional.shape)
    return fractional @ cell, cell, flags


def draw_structure_batch(seed, dtype):
    """Return positions, each atom's structure number, cells and periodic flags; odd seeds shuffle the atoms."""
    rng = np.random.default_rng(seed)
    structure_types = rng.choice(STRUCTURE_TYPES, rng.integers(1, 5))
    if set(structure_types) == {"empty"}:
        structure_types[0] = STRUCTURE_TYPES[seed % 9]
    drawn_structures = [draw_structure(structure_type, rng) for structure_type in structure_types]
    of_atom = np.repeat(np.arange(len(drawn_structures)), [len(pos) for pos, _, _ in drawn_structures])
    order = rng.permutation(len(of_atom)) if seed % 2 else np.arange(len(of_atom))
    pos, cells, flags = (np.concatenate([one[k].reshape(-1, 3) for one in drawn_structures]) for k in range(3))
    return pos[order].astype(dtype), of_atom[order], cells.reshape(-1, 3, 3).astype(dtype), flags.reshape(-1, 3)
