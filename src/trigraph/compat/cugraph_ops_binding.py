"""Replacement of the module that MLPerf HPC's DimeNet++ (Open Catalyst) imports: two differentiable functions.

Both functions raise TypeError or ValueError if an argument has the wrong type or shape.
"""

import enum

import torch

from trigraph.arrays import view_tensor_memory
from trigraph.graphs import EdgeGraph
from trigraph.torch import agg_edge_to_edge
from trigraph.torch import radial_basis as basis

__all__ = ["MMAOp", "ib_agg_edge", "radial_basis"]


class MMAOp(enum.Enum):
    """Precision of matrix products in the original; ignored, because trigraph uses the precision of the tensors."""

    HighPrecision = 0
    LowPrecision = 1


def _check_matrix_size(caller: str, name: str, tensor: torch.Tensor, axis: int, size: int, expected: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{caller}: {name} is a {type(tensor).__name__}; expected a torch.Tensor")
    if tensor.ndim != 2 or tensor.shape[axis] != size:
        raise ValueError(f"{caller}: {name} has shape {tuple(tensor.shape)}; expected {expected}")


def radial_basis(dist: torch.Tensor, frequencies: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the radial basis (num_edges, 6) and the radial part (num_edges, 42) of the spherical basis.

    `dist`, of shape (num_edges, 1), holds distances divided by the cutoff.
    """
    _check_matrix_size("radial_basis", "dist", dist, 1, 1, "(num_edges, 1)")
    rbf, sbf_rad = basis(dist[:, 0], frequencies)
    return rbf, sbf_rad


def ib_agg_edge(
    pos_diff: torch.Tensor,
    sbf_rad: torch.Tensor,
    x_kj: torch.Tensor,
    lin_sbf: torch.Tensor,
    edge_index: torch.Tensor,
    src_offsets: torch.Tensor,
    dst_offsets: torch.Tensor,
    dst_edge_index: torch.Tensor,
    mma_operation: MMAOp,
) -> torch.Tensor:
    """Sum triplets like `trigraph.torch.agg_edge_to_edge`, for edges sorted by the first row of `edge_index`.

    `src_offsets`, `dst_offsets` and `dst_edge_index` must match `edge_index`. `pos_diff` may require grad; in the
    original it must not, because forces would lack the angular part.
    """
    _check_matrix_size("ib_agg_edge", "edge_index", edge_index, 0, 2, "(2, num_edges)")
    given = {"src_offsets": src_offsets, "dst_offsets": dst_offsets, "dst_edge_index": dst_edge_index}
    for name, tensor in given.items():
        if not isinstance(tensor, torch.Tensor) or tensor.dim() != 1:
            raise TypeError(f"ib_agg_edge: {name} is a {type(tensor).__name__}; expected a torch.Tensor of rank 1")
    graph = EdgeGraph(edge_index[0], edge_index[1], max(len(src_offsets) - 1, 0))
    for name, tensor in given.items():
        array, built = view_tensor_memory(tensor), getattr(graph, name)
        if array.shape != built.shape or not (array == built).all():
            raise ValueError(f"ib_agg_edge: {name} does not match edge_index")
    return agg_edge_to_edge(pos_diff, sbf_rad, x_kj, lin_sbf, graph)
