"""Neighbours of atoms, from the neighbour lists of matscipy or ASE, in an order that is the same for both packages."""

import math
from typing import Any

import numpy as np

from trigraph.arrays import describe_dtype, format_value, name_library, require_nonnegative_number
from trigraph.graphs.counting import sort_positions_by_key

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
# An EdgeGraph packs the shifts of an edge into one int64, as three digits of base 2 * LARGEST_SHIFT + 1.
LARGEST_SHIFT = 2**19
# Limit of positions, cells and cutoffs, whose square does not overflow and whose inverse square does not underflow.
LARGEST_NUMBER = 2.0**500
# If any direction is periodic, atoms may be this many cutoffs from the origin along the other directions. The 52 bits
# of float64 then leave 26 bits for distances below the cutoff.
MAX_CUTOFFS = 2**26


def find_neighbor_pairs(
    positions: Any, cutoff: Any, cell: Any, pbc: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return source, destination, shifts and offset of every pair closer than the cutoff, sorted by the first three.

    See ``EdgeGraph.from_positions`` for arguments, shapes and errors. Offsets have the dtype of the positions.
    """
    _require_matrix("positions", positions, "(num_nodes, 3)")
    pbc = _require_pbc_flags(pbc)
    box = np.zeros((3, 3)) if cell is None else _require_matrix("cell", cell, "(3, 3)").astype(np.float64)
    # Non-periodic rows are zeroed, not dropped: NumPy 2.0 to 2.4.0 raises for the rank of a matrix without rows.
    if np.linalg.matrix_rank(box * pbc[:, None]) < pbc.sum():
        shown_cell = None if cell is None else box.tolist()
        raise ValueError(
            f"EdgeGraph: cell is {shown_cell} with pbc {pbc.tolist()}; "
            "expected independent vectors in periodic directions"
        )
    most_cells = get_max_cells_from_origin(positions.dtype)
    src, dst, shifts = _find_pairs(positions.astype(np.float64), _require_cutoff(cutoff), box, pbc, most_cells)
    return src, dst, shifts, _compute_offset(shifts, box).astype(positions.dtype)


def find_neighbors_of_molecules(
    positions: np.ndarray, cutoff: Any, of_atom: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the results of `find_neighbor_pairs` for many structures without cells, in one search.

    `of_atom` holds the index of each atom's structure. Error messages do not name the structure.
    """
    _require_matrix("positions", positions, "(num_nodes, 3)")
    box, pbc = np.zeros((3, 3)), np.zeros(3, bool)
    src, dst, shifts = _find_pairs(positions.astype(np.float64), _require_cutoff(cutoff), box, pbc, 0, of_atom)
    return src, dst, shifts, np.zeros(shifts.shape, positions.dtype)


def _require_pbc_flags(pbc: Any) -> np.ndarray:
    flags = np.asarray(pbc)
    if flags.dtype != np.bool_:
        raise TypeError(f"EdgeGraph: pbc is {format_value(pbc)}; expected a bool or three bools")
    if flags.shape not in ((), (3,)):
        raise ValueError(f"EdgeGraph: pbc has shape {flags.shape}; expected a bool or three bools")
    return np.array(np.broadcast_to(flags, (3,)))


def _require_matrix(name: str, value: Any, expected: str) -> np.ndarray:
    """Check that an array is finite, floating and has three columns; `expected` is the shape for messages."""
    if name_library(value) != "numpy":
        raise TypeError(
            f"EdgeGraph: {name} is a {type(value).__name__}; expected a numpy.ndarray or a CPU tensor of float32 or "
            "float64"
        )
    if value.dtype not in FLOATS or not value.dtype.isnative:
        raise TypeError(
            f"EdgeGraph: {name} has dtype {describe_dtype(value.dtype)}; expected native float32 or float64"
        )
    if value.ndim != 2 or value.shape[1] != 3 or (expected == "(3, 3)" and len(value) != 3):
        raise ValueError(f"EdgeGraph: {name} has shape {value.shape}; expected {expected}")
    bad = ~(np.abs(value) <= min(LARGEST_NUMBER, float(np.finfo(value.dtype).max))).all(axis=1)
    if bad.any():
        at = int(bad.argmax())
        finite = np.isfinite(value[at]).all()
        bound = f"absolute values of at most 2^500 = {LARGEST_NUMBER:.1e}" if finite else "finite values"
        raise ValueError(f"EdgeGraph: {name}[{at}] is {value[at].tolist()}; expected {bound}")
    return value


def _require_cutoff(cutoff: Any) -> float:
    number = require_nonnegative_number("EdgeGraph", "cutoff", cutoff, positive=True)
    if not 1 / LARGEST_NUMBER <= number <= LARGEST_NUMBER:
        bounds = f"2^-500 = {1 / LARGEST_NUMBER:.1e} to 2^500 = {LARGEST_NUMBER:.1e}"
        raise ValueError(f"EdgeGraph: cutoff is {number}; expected a number from {bounds}")
    return number


def get_max_cells_from_origin(dtype: np.dtype) -> int:
    """Return the largest allowed distance of an atom from the origin along a periodic direction, in cells.

    A position that is N cells away is rounded by up to N eps / 2 of a cell, which leaves half of the digits for
    N = 1 / sqrt(eps). Two atoms on opposite sides of the origin can be twice as far from each other.
    """
    return min(int(float(np.finfo(dtype).eps) ** -0.5), LARGEST_SHIFT // 2)


def _find_pairs(
    positions: np.ndarray,
    cutoff: float,
    cell: np.ndarray,
    pbc: np.ndarray,
    most_cells: int,
    of_atom: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return source, destination and shifts of every pair closer than the cutoff, sorted by all three.

    Without periodic directions, `of_atom` may hold the structure of each atom; different structures share no pairs.
    """
    if len(positions) == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 3), np.int64)
    box, moved, crossed = _move_atoms_into_search_box(positions, cutoff, cell, pbc, most_cells, of_atom)
    # Search slightly beyond the cutoff, then select by distances that are bitwise equal for an edge and its reverse.
    reach = _choose_bin_width(box, 1.000001 * cutoff, len(positions))
    i, j, shifts = (a.astype(np.int64) for a in _call_neighbor_list(moved / reach, 1.0, box / reach, pbc))
    shifts += crossed[i] - crossed[j]
    inside = np.linalg.norm(positions[j] - positions[i] + _compute_offset(shifts, cell), axis=1) < cutoff
    if of_atom is not None:  # rounding of distant positions can bring structures together
        inside &= of_atom[i] == of_atom[j]
    i, j, shifts = i[inside], j[inside], shifts[inside]
    order = _find_pair_order(j, i, shifts, len(positions))
    return j[order], i[order], shifts[order]


def _find_pair_order(src: np.ndarray, dst: np.ndarray, shifts: np.ndarray, number: int) -> np.ndarray:
    """Return the order by source, destination and shifts, from stable counting sorts that start with the last key."""
    columns = shifts.T
    lowest, highest = ([int(m) for m in extreme(columns, axis=1, initial=0)] for extreme in (np.min, np.max))
    sizes = [high - low + 1 for low, high in zip(lowest, highest, strict=True)]
    if math.prod(sizes) > max(len(src), 2**16):  # too many cells for a counting sort
        return np.lexsort((*columns[::-1], dst, src))
    cells = np.ravel_multi_index([s - low for s, low in zip(columns, lowest, strict=True)], sizes)
    order = sort_positions_by_key("EdgeGraph", "shifts", cells, "cells", math.prod(sizes)).positions
    for ends in (dst, src):
        order = order[sort_positions_by_key("EdgeGraph", "positions", ends[order], "num_nodes", number).positions]
    return order


def _compute_offset(shifts: np.ndarray, cell: np.ndarray) -> np.ndarray:
    """Return ``shifts @ cell`` as an exactly odd function of the shifts, which a matrix product need not be."""
    counts, offset = shifts.T.astype(np.float64), np.empty(shifts.shape)
    for k in range(3):
        offset[:, k] = counts[0] * cell[0, k] + counts[1] * cell[1, k] + counts[2] * cell[2, k]
    return offset


def _move_atoms_into_search_box(
    positions: np.ndarray,
    cutoff: float,
    cell: np.ndarray,
    pbc: np.ndarray,
    most_cells: int,
    of_atom: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a cell that contains all atoms, the atoms moved into it, and the number of cells by which each was moved.

    Neighbour lists sort atoms into bins of the cell. Along directions that are not periodic, the cell must fit the
    atoms: otherwise all atoms share one bin, which takes quadratic time, or empty bins take memory. Shifts along these
    directions are zero, so the choice of their cell vectors does not affect the result. Along periodic directions,
    neighbour lists accept atoms outside the cell, but matscipy counts the cells in int32.
    """
    box = cell.copy()
    periodic = box[pbc]
    box[~pbc] = np.linalg.svd(periodic)[2][len(periodic) :]
    coordinates = np.linalg.solve(box.T, positions.T).T
    _check_distances_from_origin(positions, coordinates, np.where(pbc, 1.0, cutoff), pbc, most_cells)
    origin, new_coordinates = np.trunc(coordinates), np.zeros_like(coordinates)
    crossed = np.where(pbc, origin, 0.0).astype(np.int64)
    for k in np.flatnonzero(~pbc):
        origin[:, k], new_coordinates[:, k] = _compute_group_moves(
            coordinates[:, k], cutoff, of_atom if k == 0 else None
        )
    width = np.where(pbc, 1.0, (coordinates - origin + new_coordinates).max(axis=0) + cutoff)
    return width[:, None] * box, positions - (origin - new_coordinates) @ box, crossed


def _check_distances_from_origin(
    positions: np.ndarray, coordinates: np.ndarray, units: np.ndarray, pbc: np.ndarray, most_cells: int
) -> None:
    """Raise ValueError if an atom is too many cells (in periodic directions) or cutoffs from the origin.

    Without periodic directions, positions are not rounded, and any distance is allowed.
    """
    most = np.where(pbc, most_cells, MAX_CUTOFFS if pbc.any() else math.inf)
    bad = ~(np.abs(coordinates) < (most + 1) * units)
    if bad.any():
        atom, k = (int(n) for n in np.argwhere(bad)[0])
        unit, direction_note = ("cells", "") if pbc[k] else ("cutoffs", ", which is not periodic")
        raise ValueError(
            f"EdgeGraph: positions[{atom}] is {positions[atom].tolist()}, "
            f"{abs(coordinates[atom, k]) / units[k]:.10g} {unit} "
            f"from the origin along cell[{k}]{direction_note}; "
            f"expected at most {int(most[k])}, beyond which too few digits are "
            "left"
        )


def _choose_bin_width(box: np.ndarray, cutoff: float, num_nodes: int) -> float:
    """Return the width of the bins: the cutoff, or more if that would give too many, mostly empty bins.

    Neighbour lists store data for each bin and count bins in int32. There are at most max(2^20, num_nodes) bins.
    """
    heights = 1 / np.linalg.norm(np.linalg.inv(box / cutoff), axis=0)
    reach = 1.0
    while math.prod(max(1.0, height / reach) for height in heights.tolist()) > max(num_nodes, 2**20):
        reach *= 2
    return reach * cutoff


def _compute_group_moves(
    coordinates: np.ndarray, cutoff: float, of_atom: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest coordinate of each atom's group and its new value, with small gaps between groups.

    Gaps within a group are at most two cutoffs wide; the new gaps between groups are two cutoffs wide. With `of_atom`,
    the structure of each atom, a group has atoms of one structure only.
    """
    order = np.argsort(coordinates, kind="stable") if of_atom is None else np.lexsort((coordinates, of_atom))
    ascending = coordinates[order]
    begins = np.append(True, np.diff(ascending) > 2 * cutoff)
    if of_atom is not None:
        begins[1:] |= np.diff(of_atom[order]) != 0
    lowest, highest = ascending[begins], ascending[np.append(begins[1:], True)]
    new_lowest = cutoff + np.append(0.0, np.cumsum(highest - lowest + 2 * cutoff)[:-1])
    group = np.empty_like(order)
    group[order] = np.cumsum(begins) - 1
    return lowest[group], new_lowest[group]


def _call_neighbor_list(positions: np.ndarray, cutoff: float, cell: np.ndarray, pbc: np.ndarray) -> Any:
    """Return i, j and S as defined by ASE. They come from matscipy, if it is installed, else from ASE."""
    try:
        from matscipy.neighbours import neighbour_list
    except ImportError:
        pass
    else:
        return neighbour_list("ijS", positions=positions, cell=cell, pbc=pbc, cutoff=cutoff)
    try:
        from ase.neighborlist import primitive_neighbor_list
    except ImportError:
        raise ImportError("EdgeGraph: neighbour lists need ase or matscipy: pip install 'trigraph[ase]'") from None
    return primitive_neighbor_list("ijS", pbc, cell, positions, cutoff)
