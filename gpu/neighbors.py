"""Neighbour search on the device with a fixed capacity, by the kernels in kernels/neighbors.cuh.

Between calls of these functions, `PaddedNeighborSearch` sorts the atoms by bin and sums the counts. `batch` is int64,
`frames` is float64 (num_structures, NEIGHBOR_FRAME), and the other arrays are int32: bins and refused (num_atoms,),
crossed (num_atoms, 3), counts (num_atoms, NEIGHBOR_LANES), and edges (5, most_edges): source, destination and shifts.

No library is suitable: on a device, vesin makes the host wait for the number of pairs, and nvalchemi-toolkit-ops
returns pairs in an order that differs between calls.
"""

from typing import Any

import numpy as np

from trigraph.gpu.sums import KernelLauncher
from trigraph.graphs.neighbors import MAX_CUTOFFS, get_max_cells_from_origin
from trigraph.table.constants import NEIGHBOR_LANES, THREADS

_FAMILY = "dimenet"  # the kernel family that potentials use


def bin_atoms(
    pos: Any, cells: Any, periodic: Any, batch: Any, offsets: Any, members: Any, cutoff: float, outputs: Any
) -> None:
    """Write the frame of each structure, and for each atom its bin, its offset in cells, and whether it is refused.

    `periodic` has shape (num_structures, 3). Atoms whose structure number is num_structures or above are ghosts.
    """
    frames, bins, crossed, refused = outputs
    kernels, types = KernelLauncher(_FAMILY, pos), (pos.dtype, offsets.dtype)
    kernels.launch(
        "neighbor_frames", types, (len(periodic),), (THREADS,), pos=pos, cells=cells, periodic=periodic,
        offsets=offsets, members=members, cutoff=np.float64(cutoff), frames=frames,
    )  # fmt: skip
    # The second limit applies along nonperiodic directions. It is half of the limit of the CPU search, which uses
    # different axes.
    limits = np.float64(get_max_cells_from_origin(pos.dtype)), np.float64(cutoff * MAX_CUTOFFS / 2)
    kernels.launch_elementwise(
        "neighbor_bins", types, len(pos), pos=pos, batch=batch, offsets=offsets, frames=frames, num_atoms=len(pos),
        num_structures=len(periodic), most_cells=limits[0], most_length=limits[1], bins=bins, crossed=crossed,
        refused=refused,
    )  # fmt: skip


def count_or_write_pairs(
    pos: Any,
    batch: Any,
    offsets: Any,
    atoms: Any,
    bins: Any,
    cutoff: float,
    most: int,
    counts: Any,
    ends: Any = None,
    fits: Any = None,
    edges: Any = None,
) -> None:
    """Count the neighbours that each thread of an atom finds (at most `most` + 1), or write edges to the neighbours.

    `atoms` is (frames, bins, crossed); `bins` is (order, starts): the atoms sorted by bin, and the start of each bin.
    Edges are written, in any order, if `ends` (cumulative sums of the counts, int64) is given and `fits` is true.
    """
    frames, own, crossed = atoms
    order, starts = bins
    kernels, writes = KernelLauncher(_FAMILY, pos), ends is not None
    kernels.launch_elementwise(
        "neighbor_pairs",
        (pos.dtype, offsets.dtype, writes),
        len(pos) * NEIGHBOR_LANES,
        pos=pos, batch=batch, offsets=offsets, frames=frames, bins=own, crossed=crossed, order=order, starts=starts,
        num_atoms=len(pos), num_structures=len(frames), cutoff=np.float64(cutoff), most=most, ends=ends,
        fits=fits, counts=counts, edges=edges, most_edges=edges.shape[1] if writes else 0,
    )  # fmt: skip


def sort_and_link_edges(pos: Any, row_offsets: Any, edges: Any, arrays: Any, shifts: Any) -> None:
    """Sort edges by source, destination and shifts, and write the arrays of their `EdgeGraph` except the offsets."""
    kernels = KernelLauncher(_FAMILY, pos)
    most, num_atoms = edges.shape[1], len(row_offsets) - 1
    ordered = kernels.xp.empty(edges.shape, edges.dtype)
    sizes = {"row_offsets": row_offsets, "num_atoms": num_atoms, "most_edges": most}
    kernels.launch_elementwise("neighbor_sort_edges", (), most, edges=edges, sorted=ordered, **sizes)
    types = kernels.dtype, arrays[0].dtype
    names = "dst_edge_index", "src", "dst", "reverse_start", "reverse_stop", "reverse_edge", "edge_start", "edge_stop"
    outputs = dict(zip(names, arrays, strict=True))
    kernels.launch_elementwise("neighbor_link_edges", types, most, sorted=ordered, shifts=shifts, **sizes, **outputs)
