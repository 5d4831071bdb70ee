"""Neighbour search for padded structures. All operations have fixed sizes, so that a CUDA graph can replay them.

The search overwrites the edges of `PaddedBuffers`. The edges are bitwise identical to those found on the CPU.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from trigraph.table.constants import NEIGHBOR_FRAME, NEIGHBOR_LANES
from trigraph.torch.arrays import has_storage, use_torch_stream_and_allocator, view_tensor_as_array
from trigraph.torch.potentials.padding import OWNER, PaddedBuffers
from trigraph.torch.potentials.replay import Replay
from trigraph.torch.potentials.structures import find_periodic_directions

_WORKSPACE = ("frames", "bins", "crossed", "refused")


def _view_tensors_as_arrays(*tensors: Tensor | None) -> list[Any]:
    return [view_tensor_as_array(t) for t in tensors]


# The kernels are registered as torch operators, so that tracers and profilers record them.


@torch.library.custom_op("trigraph::bin_atoms", mutates_args=_WORKSPACE)
def _bin_atoms(
    pos: Tensor,
    cells: Tensor | None,
    periodic: Tensor,
    batch: Tensor,
    offsets: Tensor,
    members: Tensor,
    cutoff: float,
    frames: Tensor,
    bins: Tensor,
    crossed: Tensor,
    refused: Tensor,
) -> None:
    from trigraph.gpu.neighbors import bin_atoms

    with use_torch_stream_and_allocator(pos):
        inputs = _view_tensors_as_arrays(pos, cells, periodic, batch, offsets, members)
        bin_atoms(*[*inputs, cutoff, _view_tensors_as_arrays(frames, bins, crossed, refused)])


@torch.library.custom_op("trigraph::find_pairs", mutates_args=("counts", "edges"))
def _count_or_write_pairs(
    pos: Tensor,
    batch: Tensor,
    offsets: Tensor,
    frames: Tensor,
    bins: Tensor,
    crossed: Tensor,
    order: Tensor,
    starts: Tensor,
    cutoff: float,
    max_degree: int,
    counts: Tensor,
    ends: Tensor | None = None,
    fits: Tensor | None = None,
    edges: Tensor | None = None,
) -> None:
    from trigraph.gpu.neighbors import count_or_write_pairs

    with use_torch_stream_and_allocator(pos):
        by_atom, by_bin = _view_tensors_as_arrays(frames, bins, crossed), _view_tensors_as_arrays(order, starts)
        outputs = _view_tensors_as_arrays(counts, ends, fits, edges)
        count_or_write_pairs(
            *[*_view_tensors_as_arrays(pos, batch, offsets), by_atom, by_bin, cutoff, max_degree, *outputs]
        )


@torch.library.custom_op("trigraph::link_edges", mutates_args=("arrays", "shifts"))
def _sort_and_link_edges(
    pos: Tensor, row_offsets: Tensor, edges: Tensor, arrays: list[Tensor], shifts: Tensor | None
) -> None:
    from trigraph.gpu.neighbors import sort_and_link_edges

    with use_torch_stream_and_allocator(pos):
        sort_and_link_edges(
            *[
                *_view_tensors_as_arrays(pos, row_offsets, edges),
                _view_tensors_as_arrays(*arrays),
                view_tensor_as_array(shifts),
            ]
        )


def _is_tensor_of_shape(value: Any, pos: Tensor, shapes: list[tuple[int, ...]]) -> bool:
    """Return whether a value is an ordinary tensor of one of `shapes`, on the device of the positions."""
    return type(value) is Tensor and has_storage(value) and value.device == pos.device and tuple(value.shape) in shapes


class PaddedNeighborSearch:
    """Neighbour search for the structures in `PaddedBuffers`, valid as long as only positions and cells change.

    Attributes
    ----------
    z, batch, periodic : Tensor
        Arguments of the current call. The search is refused if any differs from what `record_checked_atoms` recorded.
    """

    def __init__(self, padding: PaddedBuffers, cutoff: float, pool: Any) -> None:
        self.padding, self.cutoff = padding, cutoff
        self.z, self.batch = torch.empty_like(padding.z), torch.empty_like(padding.batch)
        self._periodic = torch.zeros(padding.rows[2] - 2, 3, dtype=torch.bool, device=padding.pos.device)
        self.periodic = self._periodic.clone()
        # The search is never recaptured, because neither the cutoff nor the memory of padding and search ever changes.
        self._replay = Replay(f"{OWNER}: search", self.find_and_write_edges, padding.pos.device, pool)
        self._flags = np.zeros((0, 3), bool)
        self._host_result = torch.zeros(2, dtype=torch.int64, pin_memory=padding.pos.is_cuda)
        self._event: Any = None

    def record_checked_atoms(self, flags: np.ndarray) -> None:
        """Record the atoms in the padding and `flags`, the periodic directions of each structure, as checked."""
        self._flags = flags
        self.z.copy_(self.padding.z)
        self.batch.copy_(self.padding.batch)
        self._periodic.zero_()[: len(flags)].copy_(torch.from_numpy(flags))

    def load_arguments(self, z: Tensor, pos: Tensor, batch: Tensor | None, cell: Any, pbc: Any) -> bool:
        """Copy arguments with the same number of atoms, or return False if `prepare_neighbors_and_cells` must check."""
        padding, (atoms, structures) = self.padding, self.padding.sizes
        cells = padding.cells
        if batch is None:
            fits = structures == 1
        else:
            fits = _is_tensor_of_shape(batch, pos, [(atoms,)]) and batch.dtype in (torch.int32, torch.int64)
        if cells is None or cell is None:
            fits = fits and cells is cell
        else:
            fits = fits and _is_tensor_of_shape(cell, pos, [(structures, 3, 3), *[(3, 3)] * (structures == 1)])
            fits = fits and cell.is_floating_point()
        flags = pbc
        if not _is_tensor_of_shape(pbc, pos, [(), (3,), (structures, 3)]):
            if fits and not np.array_equal(find_periodic_directions(OWNER, pbc, cell, structures), self._flags):
                return False
            flags = None
        elif pbc.dtype != torch.bool:
            return False
        if not fits:
            return False
        with torch.no_grad():
            padding.invalidate_graphs()
            padding.pos[:atoms].copy_(pos)
            self.z[:atoms].copy_(z)
            if batch is None:
                self.batch[:atoms].zero_()
            else:
                self.batch[:atoms].copy_(batch)
            if cells is not None:
                cells[:structures].copy_(cell)
            self.periodic.copy_(self._periodic)
            if flags is not None:
                self.periodic[:structures].copy_(flags)
        return True

    def start_search(self) -> None:
        """Start the search and the asynchronous copy of its result to the host."""
        (result,) = self._replay()
        self._host_result.copy_(result, non_blocking=True)  # type: ignore[arg-type]
        self._event = torch.cuda.Event()
        self._event.record()

    def wait_for_result(self) -> tuple[bool, int]:
        """Wait for the search but not for later work; return whether it was refused, and the number of edges."""
        self._event.synchronize()
        refused, total = self._host_result.tolist()
        return bool(refused), total

    def find_and_write_edges(self) -> tuple[Tensor]:
        """Write the edges to the padding (none if refused), and return the int64 tensor [refused, num_edges]."""
        with torch.no_grad():
            return (self._find_and_write_edges(),)

    def _find_and_write_edges(self) -> Tensor:
        padding, (atoms, _, _), pos = self.padding, self.padding.rows, self.padding.pos
        most_edges, degree = padding.capacity.edges, padding.capacity.degree
        int32: Any = {"dtype": torch.int32, "device": pos.device}
        offsets, members = padding.members[:2]
        frames = torch.empty(len(self._periodic), NEIGHBOR_FRAME, dtype=torch.float64, device=pos.device)
        bins, crossed, refused = (torch.empty(*size, **int32) for size in ((atoms,), (atoms, 3), (atoms,)))
        _bin_atoms(
            pos, padding.cells, self._periodic, padding.batch, offsets, members, self.cutoff, frames, bins, crossed,
            refused,
        )  # fmt: skip
        ascending, order = torch.sort(bins, stable=True)
        starts = torch.searchsorted(ascending, torch.arange(atoms + 1, **int32), out_int32=True)
        search_arguments = (
            pos,
            padding.batch,
            offsets,
            frames,
            bins,
            crossed,
            order.to(torch.int32),
            starts,
            self.cutoff,
            degree,
        )
        counts = torch.empty(atoms, NEIGHBOR_LANES, **int32)
        _count_or_write_pairs(*search_arguments, counts)
        ends = counts.flatten().cumsum(0)
        changed = (self.z != padding.z).any() | (self.batch != padding.batch).any()
        changed |= (self.periodic != self._periodic).any()
        is_too_much = (ends[-1] > most_edges) | (counts.sum(1).max() > degree)
        padding.refused.copy_(changed | is_too_much | (refused != 0).any())
        fits = ~padding.refused
        rows = torch.cat([ends.new_zeros(1), ends[NEIGHBOR_LANES - 1 :: NEIGHBOR_LANES]])
        rows = torch.where(fits, rows, 0).to(torch.int32)
        edges = torch.empty(5, most_edges, **int32)
        _count_or_write_pairs(*search_arguments, counts, ends, fits, edges)
        for name, array in padding.edges.items():
            if "offsets" in name:
                array.copy_(rows)
        arrays = [array for name, array in padding.edges.items() if "offsets" not in name]
        _sort_and_link_edges(pos, rows, edges, arrays, padding.shifts)
        padding.append_ghost_edges(rows[-1].to(arrays[0].dtype))
        return torch.stack([padding.refused.long(), ends[-1]])
