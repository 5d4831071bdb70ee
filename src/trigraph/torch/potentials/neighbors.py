"""Neighbour search on the device of the atoms, with the same results as `trigraph.graphs.neighbors`.

The search uses a cell list, built with torch's sorts and searches: cells are divided into parts no thinner than the
cutoff, atoms are sorted by part, and each atom is compared with the atoms in the surrounding parts.
"""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from trigraph.graphs.neighbors import LARGEST_NUMBER, LARGEST_SHIFT, MAX_CUTOFFS, get_max_cells_from_origin
from trigraph.torch.arrays import convert_to_numpy_dtype

MOST_PARTS = 2**14  # maximum number of parts of a cell per direction
CANDIDATES = 2**22  # maximum number of atom pairs tested at a time


def search_neighbors(
    pos: Tensor, cutoff: float, boxes: np.ndarray, flags: np.ndarray, of_atom: Tensor
) -> tuple[Tensor, ...] | None:
    """Return source, destination, shifts and offset of every pair closer than the cutoff, sorted by the first three.

    The offset is the float64 contribution of the cells to the vector of an edge. `boxes` contains the cell of each
    structure, `flags` its periodic directions, and `of_atom` the structure of each atom. The result is None if an
    argument is invalid or out of range; the search on the host then raises an error.
    """
    flags = flags.copy()  # torch warns about read-only arrays
    boxes = np.where(flags[..., None], boxes, 0.0)
    independent = np.isfinite(boxes).all() and (np.linalg.matrix_rank(boxes) == flags.sum(1)).all()
    fits = isinstance(cutoff, (int, float)) and 1 / LARGEST_NUMBER <= cutoff <= LARGEST_NUMBER
    if not (independent and fits and len(pos)):
        return None
    frames = boxes.copy()
    for frame, periodic in zip(frames, flags, strict=True):
        frame[~periodic] = np.linalg.svd(frame[periodic])[2][periodic.sum() :]
    inverses = np.linalg.inv(frames)
    heights = 1 / np.linalg.norm(inverses, axis=1)  # distances between opposite faces
    most_cutoffs = np.where(flags.any(1, keepdims=True), MAX_CUTOFFS, math.inf)
    coordinate_limit = np.where(flags, get_max_cells_from_origin(convert_to_numpy_dtype(pos.dtype)), most_cutoffs)
    coordinate_limit = (coordinate_limit + 1) * np.where(flags, 1.0, cutoff)
    box, pbc, inverse, height, limit = (
        torch.from_numpy(a).to(pos.device) for a in (boxes, flags, inverses, heights, coordinate_limit)
    )
    positions = pos.double()
    fractional = (positions[:, None] @ inverse[of_atom])[:, 0]
    if not bool(((positions.abs() <= LARGEST_NUMBER) & (fractional.abs() < limit[of_atom])).all()):
        return None
    crossed = torch.where(pbc[of_atom], fractional.floor(), 0.0)
    each, none = of_atom[:, None].expand_as(fractional), fractional.new_zeros(len(boxes), 3)
    ends = [none.scatter_reduce(0, each, fractional, reduce, include_self=False) for reduce in ("amin", "amax")]
    lowest, width = torch.where(pbc, 0.0, ends[0]), torch.where(pbc, 1.0, (ends[1] - ends[0]).clamp(min=1e-300))
    reach = 1.000001 * cutoff
    parts = (height * width / reach).floor().clamp(1, MOST_PARTS)
    search_range = torch.where(pbc, (reach * parts / height).ceil(), 1.0).long()
    part = ((fractional - crossed - lowest[of_atom]) / width[of_atom] * parts[of_atom]).long()
    part = part.clamp(min=0).minimum(parts[of_atom].long() - 1)
    pairs = list(
        _yield_neighbor_pairs(positions, cutoff, of_atom, box, pbc, parts.long(), search_range, part, crossed.long())
    )
    src, dst, shifts = (torch.cat(tensors) for tensors in zip(*pairs, strict=True))
    src, dst, shifts = _sort_edges(src, dst, shifts, len(pos))
    return src, dst, shifts, _compute_cell_offsets(shifts, box[of_atom[src]])


def _yield_neighbor_pairs(
    positions: Tensor,
    cutoff: float,
    of_atom: Tensor,
    box: Tensor,
    pbc: Tensor,
    parts: Tensor,
    search_range: Tensor,
    part: Tensor,
    crossed: Tensor,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield source, destination and shifts for one chunk of atoms at a time.

    `parts` is the number of parts of each cell, `search_range` the largest distance between neighbours in parts, and
    `part` the part that contains each atom after a translation by minus `crossed` cells.
    """
    span = parts.amax(0) + 1
    numbers = ((of_atom * span[0] + part[:, 0]) * span[1] + part[:, 1]) * span[2] + part[:, 2]
    order = numbers.argsort(stable=True)
    ascending = numbers[order]
    steps = torch.cartesian_prod(*(torch.arange(-n, n + 1, device=part.device) for n in search_range.amax(0).tolist()))
    chunk = max(1, CANDIDATES // len(steps))
    for atoms in torch.arange(len(positions), device=part.device).split(chunk):
        own = of_atom[atoms][:, None]
        neighbor_part = part[atoms][:, None] + steps
        shift = torch.where(pbc[own], neighbor_part.div(parts[own], rounding_mode="floor"), 0)
        neighbor_part = neighbor_part - shift * parts[own]
        inside = ((neighbor_part >= 0) & (neighbor_part < parts[own]) & (steps.abs() <= search_range[own])).all(-1)
        number = ((own * span[0] + neighbor_part[..., 0]) * span[1] + neighbor_part[..., 1]) * span[2] + neighbor_part[
            ..., 2
        ]
        begin, end = (torch.searchsorted(ascending, number, right=right) for right in (False, True))
        counts = torch.where(inside, end - begin, 0).flatten()
        stops = counts.cumsum(0)
        for first in range(0, int(stops[-1]), CANDIDATES):
            candidate = torch.arange(first, min(first + CANDIDATES, int(stops[-1])), device=part.device)
            range_index = torch.searchsorted(stops, candidate, right=True)
            place = begin.flatten()[range_index] + candidate - (stops - counts)[range_index]
            i, j = atoms[range_index // len(steps)], order[place]
            cells = shift.view(-1, 3)[range_index] + crossed[i] - crossed[j]
            vec = positions[j] - positions[i] + _compute_cell_offsets(cells, box[of_atom[i]])
            is_near = compute_lengths(vec) < cutoff
            is_near &= (i != j) | (cells != 0).any(1)
            yield j[is_near], i[is_near], cells[is_near]


def _compute_cell_offsets(shifts: Tensor, box: Tensor) -> Tensor:
    """Return ``shifts @ box`` for each row, with exactly opposite results for opposite shifts."""
    return shifts[:, :1] * box[:, 0] + shifts[:, 1:2] * box[:, 1] + shifts[:, 2:] * box[:, 2]


def compute_lengths(vec: Tensor) -> Tensor:
    """Return the length of each row, with squares added in the same order as in NumPy's sum."""
    x, y, z = vec.unbind(1)
    return (x * x + y * y + z * z).sqrt()


def _sort_edges(src: Tensor, dst: Tensor, shifts: Tensor, num_atoms: int) -> tuple[Tensor, Tensor, Tensor]:
    base = 2 * LARGEST_SHIFT + 1
    cells = (shifts[:, 0] * base + shifts[:, 1]) * base + shifts[:, 2]
    order = cells.argsort(stable=True)
    order = order[(src * num_atoms + dst)[order].argsort(stable=True)]
    return src[order], dst[order], shifts[order]


def mask_nearest_edges(dst: Tensor, length: Tensor, number: int) -> Tensor:
    """Return a mask of the `number` shortest edges into each destination; of equal lengths, the first are kept."""
    order = length.argsort(stable=True)
    order = order[dst[order].argsort(stable=True)]
    ends = dst[order]
    rank = torch.arange(len(dst), device=dst.device) - torch.searchsorted(ends, ends)
    keep = torch.zeros_like(dst, dtype=torch.bool)
    keep[order[rank < number]] = True
    return keep
