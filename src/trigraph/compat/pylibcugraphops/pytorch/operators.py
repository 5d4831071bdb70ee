"""Operators of ``pylibcugraphops.pytorch.operators`` that PyTorch Geometric's layers call, twice differentiable.

Features are a tensor, whose first rows are the destinations', or a pair of tensors of shapes (num_src_nodes, dim) and
(num_dst_nodes, dim). All raise TypeError or ValueError for arguments that do not fit.
"""

from typing import Any

import torch

from trigraph.compat.pylibcugraphops.graphs import Graph
from trigraph.compat.pylibcugraphops.pytorch.graphs import HeteroCSC
from trigraph.torch import agg_weighted_n2n
from trigraph.torch import mha_gat_n2n as attention

Features = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


def _sides(caller: str, feat: Any, graph: Any, kind: type[Graph] = Graph) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features of sources and destinations."""
    if not isinstance(graph, kind):
        raise TypeError(f"{caller}: graph is a {type(graph).__name__}; expected a {kind.__name__} of pylibcugraphops")
    one = isinstance(feat, torch.Tensor)
    pair = (feat, feat[: graph.n_dst_nodes]) if one else feat
    if not isinstance(pair, (tuple, list)) or [isinstance(side, torch.Tensor) for side in pair] != [True, True]:
        raise TypeError(f"{caller}: feat is a {type(feat).__name__}; expected a tensor or two of them")
    for k, (side, rows) in enumerate(zip(pair, (graph.n_src_nodes, graph.n_dst_nodes), strict=True)):
        if side.ndim != 2 or len(side) != rows:
            name = "feat" if one else f"feat[{k}]"
            raise ValueError(f"{caller}: {name} has shape {tuple(side.shape)}; expected ({rows}, dim)")
    return pair[0], pair[1]


def mha_gat_n2n(
    feat: Features,
    attn_weights: torch.Tensor,
    graph: Graph,
    num_heads: int = 1,
    activation: Any = "LeakyReLU",
    negative_slope: float = 0.2,
    concat_heads: bool = True,
    edge_feat: torch.Tensor | None = None,
    deterministic_dgrad: bool = False,
    deterministic_wgrad: bool = False,
    high_precision_dgrad: bool = False,
    high_precision_wgrad: bool = False,
) -> torch.Tensor:
    """Multi-head attention from source to destination nodes, as `trigraph.torch.mha_gat_n2n`.

    Edge features of width 0 are none. The last four arguments are accepted for the original's sake: gradients are the
    same in every run, and of the tensors' precision.
    """
    src, dst = _sides("mha_gat_n2n", feat, graph)
    if edge_feat is not None and edge_feat.ndim == 2 and edge_feat.shape[1] == 0:
        edge_feat = None
    return attention(
        src, dst, attn_weights, graph.csc, num_heads, concat_heads, activation, negative_slope, edge_feat
    ).output_embedding


def agg_concat_n2n(
    feat: Features, graph: Graph, aggr: Any = "sum", edge_weight: torch.Tensor | None = None
) -> torch.Tensor:
    """Aggregate sources as `trigraph.torch.agg_weighted_n2n`, and put the destination's own features behind."""
    src, dst = _sides("agg_concat_n2n", feat, graph)
    return torch.cat([agg_weighted_n2n(src, edge_weight, graph.csc, op=aggr).output_embedding, dst], 1)


def agg_hg_basis_n2n_post(
    feat: Features,
    weights_comb: torch.Tensor | None,
    graph: HeteroCSC,
    concat_own: bool = False,
    norm_by_out_degree: bool = False,
) -> torch.Tensor:
    """Sum sources with a weight by type of edge, once for each basis.

    `weights_comb`, of shape (num_edge_types, num_bases), has the weight of each type in each basis; None stands for one
    basis for each type, with only the edges of this type. With `concat_own` the destination's own features come last;
    with `norm_by_out_degree` each edge is divided by the number of edges of its type into its destination.
    """
    caller = "agg_hg_basis_n2n_post"
    src, dst = _sides(caller, feat, graph, HeteroCSC)
    if weights_comb is None:
        weights_comb = torch.eye(graph.num_edge_types, dtype=src.dtype, device=src.device)
    if not isinstance(weights_comb, torch.Tensor):
        raise TypeError(f"{caller}: weights_comb is a {type(weights_comb).__name__}; expected a tensor or None")
    if weights_comb.ndim != 2 or len(weights_comb) != graph.num_edge_types:
        shape = tuple(weights_comb.shape)
        raise ValueError(f"{caller}: weights_comb has shape {shape}; expected ({graph.num_edge_types}, num_bases)")
    if weights_comb.device != src.device:
        raise ValueError(f"{caller}: weights_comb is on {weights_comb.device}; expected {src.device}, where feat is")
    weights = weights_comb[graph.edge_types.to(src.device)]
    if norm_by_out_degree:
        weights = weights / graph.edges_of_type[:, None]
    bases = [agg_weighted_n2n(src, weight, graph.csc).output_embedding for weight in weights.unbind(1)]
    return torch.cat([*bases, dst] if concat_own else bases, 1)
