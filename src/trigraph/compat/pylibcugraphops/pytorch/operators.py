"""The twice-differentiable operators that PyTorch Geometric's layers call.

The first rows of the features belong to the destinations. All operators raise TypeError or ValueError if an argument
has the wrong type or shape.
"""

from typing import Any

import torch

from trigraph.compat.pylibcugraphops.pytorch import CSC, HeteroCSC
from trigraph.torch import agg_weighted_n2n
from trigraph.torch import mha_gat_n2n as attention


def _select_destination_features(caller: str, feat: torch.Tensor, graph: CSC, cls: type[CSC] = CSC) -> torch.Tensor:
    """Check features and graph, and return the features of the destinations."""
    if not isinstance(graph, cls):
        raise TypeError(f"{caller}: graph is a {type(graph).__name__}; expected a {cls.__name__} of pylibcugraphops")
    if not isinstance(feat, torch.Tensor):
        raise TypeError(f"{caller}: feat is a {type(feat).__name__}; expected a torch.Tensor")
    if feat.ndim != 2 or len(feat) != graph.csc.num_src_nodes:
        shape = tuple(feat.shape)
        raise ValueError(f"{caller}: feat has shape {shape}; expected ({graph.csc.num_src_nodes}, dim)")
    return feat[: graph.csc.num_dst_nodes]


def mha_gat_n2n(
    feat: torch.Tensor,
    attn_weights: torch.Tensor,
    graph: CSC,
    num_heads: int = 1,
    activation: Any = "LeakyReLU",
    negative_slope: float = 0.2,
    concat_heads: bool = True,
    edge_feat: torch.Tensor | None = None,
) -> torch.Tensor:
    """Apply multi-head attention like `trigraph.torch.mha_gat_n2n`. Edge features of width 0 count as None."""
    dst = _select_destination_features("mha_gat_n2n", feat, graph)
    if edge_feat is not None and edge_feat.ndim == 2 and edge_feat.shape[1] == 0:
        edge_feat = None
    settings = (num_heads, concat_heads, activation, negative_slope)
    return attention(feat, dst, attn_weights, graph.csc, *settings, edge_feat).output_embedding


def agg_concat_n2n(feat: torch.Tensor, graph: CSC, aggr: Any = "sum") -> torch.Tensor:
    """Aggregate sources like `trigraph.torch.agg_weighted_n2n`, and append the destination's own features."""
    dst = _select_destination_features("agg_concat_n2n", feat, graph)
    return torch.cat([agg_weighted_n2n(feat, None, graph.csc, op=aggr).output_embedding, dst], 1)


def agg_hg_basis_n2n_post(
    feat: torch.Tensor,
    weights_comb: torch.Tensor | None,
    graph: HeteroCSC,
    concat_own: bool = False,
    norm_by_out_degree: bool = False,
) -> torch.Tensor:
    """Sum the sources of each destination once for each basis, with weights that depend on the type of edge.

    `weights_comb`, of shape (num_edge_types, num_bases), holds the weight of each type in each basis. None means one
    basis for each type, which sums the edges of that type only. `concat_own` appends the destination's own features.
    `norm_by_out_degree` divides each edge by the number of edges of its type into its destination.
    """
    caller = "agg_hg_basis_n2n_post"
    dst = _select_destination_features(caller, feat, graph, HeteroCSC)
    if weights_comb is None:
        weights_comb = torch.eye(graph.num_edge_types, dtype=feat.dtype, device=feat.device)
    if weights_comb.ndim != 2 or len(weights_comb) != graph.num_edge_types or weights_comb.device != feat.device:
        raise ValueError(
            f"{caller}: weights_comb has shape {tuple(weights_comb.shape)} on {weights_comb.device}; expected "
            f"({graph.num_edge_types}, num_bases) on {feat.device}, where feat is"
        )
    weights = weights_comb[graph.edge_types.to(feat.device)]
    if norm_by_out_degree:
        weights = weights / graph.edges_of_type[:, None]
    bases = [agg_weighted_n2n(feat, weight, graph.csc).output_embedding for weight in weights.unbind(1)]
    return torch.cat([*bases, dst] if concat_own else bases, 1)
