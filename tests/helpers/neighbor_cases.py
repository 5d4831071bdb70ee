"""Random structures for tests of neighbour searches, and the edges that the CPU search finds in them."""

import numpy as np

from trigraph.graphs.neighbors import neighbors

CUTOFF = 1.0
KINDS = ("crystal", "skewed", "tiny", "slab", "wire", "molecule", "cluster", "lattice", "unwrapped", "empty")


def draw_structure(kind, rng):
    """Return positions, cell vectors (as rows) and periodic flags."""
    flags, cell = np.ones(3, bool), np.diag(rng.uniform(1.0, 4.0, 3)) + rng.normal(0, 0.2, (3, 3))
    number = int(rng.integers(1, 30))
    if kind == "skewed":
        cell = np.array([[1.5, 0, 0], [3.1, 1.2, 0], [-2.2, 2.7, 1.9]])[rng.permutation(3)] * rng.choice([-1, 1])
    elif kind == "tiny":
        cell, number = rng.uniform(0.35, 0.7) * (np.eye(3) + rng.normal(0, 0.15, (3, 3))), int(rng.integers(1, 4))
    elif kind in ("slab", "wire"):
        flags = rng.permutation([True, kind == "slab", False])
    elif kind in ("molecule", "cluster"):
        flags, cell = np.zeros(3, bool), np.eye(3)
        cell, number = (4 * cell, 80) if kind == "cluster" else (cell, number)
    elif kind == "lattice":  # many distances equal the cutoff, and many atoms are on the faces of bins
        cell = np.diag(rng.integers(1, 5, 3).astype(float)) * 0.5
        flags = rng.random(3) < 0.7
        sides = (2 * np.diag(cell)).astype(int)
        return np.stack(np.meshgrid(*map(np.arange, sides)), -1).reshape(-1, 3) * 0.5, cell, flags
    elif kind == "empty":
        number = 0
    at = rng.random((number, 3)) * np.where(flags, 1.0, rng.uniform(0.3, 3.0))
    if kind == "unwrapped":
        at += rng.integers(-40, 40, at.shape)
    return at @ cell, cell, flags


def draw_batch(seed, dtype):
    """Return positions, each atom's structure number, cells and periodic flags; odd seeds shuffle the atoms."""
    rng = np.random.default_rng(seed)
    kinds = rng.choice(KINDS, rng.integers(1, 5))
    if set(kinds) == {"empty"}:
        kinds[0] = KINDS[seed % 9]
    several = [draw_structure(kind, rng) for kind in kinds]
    of_atom = np.repeat(np.arange(len(several)), [len(pos) for pos, _, _ in several])
    mixed = rng.permutation(len(of_atom)) if seed % 2 else np.arange(len(of_atom))
    pos, cells, flags = (np.concatenate([one[k].reshape(-1, 3) for one in several]) for k in range(3))
    return pos[mixed].astype(dtype), of_atom[mixed], cells.reshape(-1, 3, 3).astype(dtype), flags.reshape(-1, 3)


def judge(pos, of_atom, cells, flags, cutoff=CUTOFF):
    """Return the sorted edges as an array of shape (edges, 5): source, destination and shift."""
    columns = [np.zeros((0, 5), np.int64)]
    for s, (cell, periodic) in enumerate(zip(cells, flags, strict=True)):
        atoms = np.flatnonzero(of_atom == s)
        src, dst, shifts, _ = neighbors(pos[atoms], cutoff, cell, periodic)
        columns.append(np.column_stack([atoms[src], atoms[dst], shifts]))
    edges = np.concatenate(columns)
    return edges[np.lexsort(edges.T[::-1])]
