"""Neighbours of atoms: pairs of an atom and an image of another, or of itself, that are closer than a cutoff."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trigraph.graphs.arrays import array_kind, check_memory, shown
from trigraph.graphs.scalars import real_number

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
# An EdgeGraph packs the shifts of one edge into one int64, three digits of base 2 * LARGEST_SHIFT + 1.
LARGEST_SHIFT = 2**19
# Squares of positions, cells and cutoffs up to here do not overflow, nor does the square of its inverse underflow.
LARGEST_NUMBER = 2.0**500
# In a cell with a periodic direction, the others are searched this many cutoffs from the origin: the search is done in
# float64, and 26 of its 52 bits are then left below a cutoff.
MOST_CUTOFFS = 2**26


def neighbors(
    positions: Any, cutoff: Any, cell: Any, pbc: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return source, destination, shifts and offset of every pair closer than the cutoff, sorted by the first three.

    Arguments, shapes and errors are those of ``EdgeGraph.from_positions``; offsets have the dtype of the positions.
    """
    _check_matrix("positions", positions, "(num_nodes, 3)")
    pbc = _check_pbc(pbc)
    box = np.zeros((3, 3)) if cell is None else _check_matrix("cell", cell, "(3, 3)").astype(np.float64)
    # Zeros for the other directions, not a selection: NumPy 2.0 to 2.4.0 knows no rank of a matrix without rows.
    if np.linalg.matrix_rank(box * pbc[:, None]) < pbc.sum():
        came = None if cell is None else box.tolist()
        raise ValueError(
            f"EdgeGraph: cell is {came} with pbc {pbc.tolist()}; expected independent vectors in periodic directions"
        )
    most_cells = _most_cells(positions.dtype)
    src, dst, shifts = _pairs(positions.astype(np.float64), _check_cutoff(cutoff), box, pbc, most_cells)
    return src, dst, shifts, _offset(shifts, box).astype(positions.dtype)


def _check_pbc(pbc: Any) -> np.ndarray:
    flags = np.asarray(pbc)
    if flags.dtype != np.bool_:
        raise TypeError(f"EdgeGraph: pbc is {shown(pbc)}; expected a bool or three of them")
    if flags.shape not in ((), (3,)):
        raise ValueError(f"EdgeGraph: pbc has shape {flags.shape}; expected a bool or three of them")
    return np.array(np.broadcast_to(flags, (3,)))


def _check_matrix(name: str, value: Any, expected: str) -> np.ndarray:
    """Finite floating array of rows of three; `expected` is its shape."""
    if array_kind(value) != "numpy":
        raise TypeError(
            f"EdgeGraph: {name} is a {type(value).__name__}; expected a numpy.ndarray or a CPU tensor of float32 or "
            "float64"
        )
    if value.dtype not in FLOATS or not value.dtype.isnative:
        raise TypeError(f"EdgeGraph: {name} has dtype {value.dtype.str}; expected native float32 or float64")
    if value.ndim != 2 or value.shape[1] != 3 or (expected == "(3, 3)" and len(value) != 3):
        raise ValueError(f"EdgeGraph: {name} has shape {value.shape}; expected {expected}")
    bad = ~(np.abs(value) <= min(LARGEST_NUMBER, float(np.finfo(value.dtype).max))).all(axis=1)
    if bad.any():
        at = int(bad.argmax())
        finite = np.isfinite(value[at]).all()
        bound = f"absolute values of at most 2^500 = {LARGEST_NUMBER:.1e}" if finite else "finite values"
        raise ValueError(f"EdgeGraph: {name}[{at}] is {value[at].tolist()}; expected {bound}")
    matrix: np.ndarray = value
    return matrix


def _check_cutoff(cutoff: Any) -> float:
    number = real_number("EdgeGraph", "cutoff", cutoff, positive=True)
    if not 1 / LARGEST_NUMBER <= number <= LARGEST_NUMBER:
        bounds = f"2^-500 = {1 / LARGEST_NUMBER:.1e} to 2^500 = {LARGEST_NUMBER:.1e}"
        raise ValueError(f"EdgeGraph: cutoff is {number}; expected a number from {bounds}")
    return number


def _most_cells(dtype: np.dtype) -> int:
    """Return how many cells from the origin an atom may be along a periodic direction.

    A position that is N cells away is rounded by up to N eps / 2 of a cell: half of the digits are left where N is
    1 / sqrt(eps). Two atoms on opposite sides are twice as far from each other as one from the origin.
    """
    return min(int(float(np.finfo(dtype).eps) ** -0.5), LARGEST_SHIFT // 2)


def _pairs(
    positions: np.ndarray, cutoff: float, cell: np.ndarray, pbc: np.ndarray, most_cells: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Source, destination and shifts of every pair closer than the cutoff, sorted by all of these."""
    if len(positions) == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 3), np.int64)
    box = cell.copy()
    # Vectors that are not periodic are replaced: shifts along them are zero, so that they appear in no result.
    box[~pbc] = np.linalg.svd(cell[pbc])[2][pbc.sum() :]
    at = np.linalg.solve(box.T, positions.T).T
    _check_distances(positions, at, np.where(pbc, 1.0, cutoff), pbc, most_cells)
    crossed = np.where(pbc, np.rint(at), 0.0).astype(np.int64)
    i, j, shifts = _search(positions - crossed @ box, cutoff, box, pbc, np.abs(crossed).max())
    shifts += crossed[i] - crossed[j]
    # Searched a little further and decided here, by distances that are the same bits for an edge and its reverse.
    inside = np.linalg.norm(positions[j] - positions[i] + _offset(shifts, cell), axis=1) < cutoff
    i, j, shifts = i[inside], j[inside], shifts[inside]
    order = np.lexsort((shifts[:, 2], shifts[:, 1], shifts[:, 0], i, j))
    return j[order], i[order], shifts[order]


def _search(
    positions: np.ndarray, cutoff: float, box: np.ndarray, pbc: np.ndarray, most_crossed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return pairs of atoms of a cell and images of them, and the images' shifts: all that are closer than the cutoff.

    Atoms are within half a cell of the origin along periodic directions, moved there over `most_crossed` cells.
    """
    from scipy.spatial import cKDTree  # slow to import, and not needed to import trigraph

    heights = 1 / np.linalg.norm(np.linalg.inv(box / cutoff), axis=0)
    numbers = [int(1.000001 / height) + 1 if periodic else 0 for height, periodic in zip(heights, pbc, strict=True)]
    check_memory("EdgeGraph", "number of cells within the cutoff", math.prod(2 * n + 1 for n in numbers), 6 * 8)
    rounding = 2.0**-48 * np.abs(box[pbc]).max(initial=0.0) * (most_crossed + max(numbers) + 1)
    reach = 1.000001 * cutoff + rounding
    low, high = positions.min(axis=0) - reach, positions.max(axis=0) + reach
    grid = np.stack(np.meshgrid(*(np.arange(-n, n + 1) for n in numbers), indexing="ij"), -1).reshape(-1, 3)
    atoms, shifts, images = [], [], []
    for some in np.array_split(grid, -(-len(grid) * len(positions) // 2**20)):
        moved = positions + (some @ box)[:, None]
        which, atom = np.nonzero(((moved >= low) & (moved <= high)).all(axis=2))
        atoms.append(atom)
        shifts.append(some[which])
        images.append(moved[which, atom])
    atom, shift = np.concatenate(atoms), np.concatenate(shifts)
    found = cKDTree(positions).sparse_distance_matrix(cKDTree(np.concatenate(images)), reach, output_type="ndarray")
    i, j, shift = found["i"], atom[found["j"]], shift[found["j"]]
    other = (i != j) | shift.any(axis=1)
    return i[other], j[other], shift[other]


def _offset(shifts: np.ndarray, cell: np.ndarray) -> np.ndarray:
    """``shifts @ cell``, exactly odd in the shifts, which a matrix product need not be."""
    total: np.ndarray = shifts[:, :1] * cell[0] + shifts[:, 1:2] * cell[1] + shifts[:, 2:] * cell[2]
    return total


def _check_distances(
    positions: np.ndarray, at: np.ndarray, units: np.ndarray, pbc: np.ndarray, most_cells: int
) -> None:
    """Raise ValueError unless atoms are near the origin, in cells along periodic directions, in cutoffs along others.

    Where no direction is periodic, nothing is rounded, and atoms may be anywhere.
    """
    most = np.where(pbc, most_cells, MOST_CUTOFFS if pbc.any() else math.inf)
    bad = ~(np.abs(at) < (most + 1) * units)
    if bad.any():
        atom, k = (int(n) for n in np.argwhere(bad)[0])
        unit, more = ("cells", "") if pbc[k] else ("cutoffs", ", which is not periodic")
        raise ValueError(
            f"EdgeGraph: positions[{atom}] is {positions[atom].tolist()}, {abs(at[atom, k]) / units[k]:.10g} {unit} "
            f"from the origin along cell[{k}]{more}; expected at most {int(most[k])}, beyond which too few digits are "
            "left"
        )
