"""The module that MLPerf HPC's DimeNet++ (Open Catalyst) imports: two differentiable functions of tensors.

Both raise TypeError or ValueError for arguments that do not fit.
"""

import torch

from trigraph.compat.pylibcugraphops.dimenet import MMAOp, edge_graph
from trigraph.torch import agg_edge_to_edge
from trigraph.torch import radial_basis as basis

__all__ = ["MMAOp", "ib_agg_edge", "radial_basis"]


def radial_basis(dist: torch.Tensor, frequencies: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the radial basis (num_edges, 6) and the radial part (num_edges, 42) of the spherical one.

    `dist`, of shape (num_edges, 1), has distances over the cutoff.
    """
    if not isinstance(dist, torch.Tensor):
        raise TypeError(f"radial_basis: dist is a {type(dist).__name__}; expected a torch.Tensor")
    if dist.ndim != 2 or dist.shape[1] != 1:
        raise ValueError(f"radial_basis: dist has shape {tuple(dist.shape)}; expected (num_edges, 1)")
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
    """Triplet sum of DimeNet++, as `trigraph.torch.agg_edge_to_edge`, of edges sorted by the first row of `edge_index`.

    The original must not be given a `pos_diff` that requires grad: its forces lack the angular part. Here it may.
    """
    given = {"src_offsets": src_offsets, "dst_offsets": dst_offsets, "dst_edge_index": dst_edge_index}
    graph = edge_graph("ib_agg_edge", {"coo_idx": edge_index, "mma_operation": mma_operation, **given})
    return agg_edge_to_edge(pos_diff, sbf_rad, x_kj, lin_sbf, graph)
