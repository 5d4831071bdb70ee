"""Operators of ``pylibcugraphops.pytorch.operators``: functions of tensors, twice differentiable.

All raise TypeError or ValueError for arguments that do not fit.
"""

from typing import Any, Literal

import torch

from trigraph.compat.pylibcugraphops.covered import stand_in
from trigraph.compat.pylibcugraphops.graphs import Graph
from trigraph.compat.pylibcugraphops.pytorch.graphs import HeteroCSC
from trigraph.torch import agg_weighted_n2n
from trigraph.torch import mha_gat_n2n as attention

__all__ = ["agg_concat_n2n", "agg_hg_basis_n2n_post", "mha_gat_n2n"]

Features = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


def _sides(caller: str, feat: Any, graph: Any, kind: type[Graph] = Graph) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features of sources and destinations; those of one tensor's destinations are its first rows."""
    if not isinstance(graph, kind):
        expected = "a HeteroCSC" if kind is HeteroCSC else "one of the graph classes of pylibcugraphops.pytorch"
        raise TypeError(f"{caller}: graph is a {type(graph).__name__}; expected {expected}")
    pair = tuple(feat) if isinstance(feat, (tuple, list)) else (feat, feat)
    if len(pair) != 2 or not all(isinstance(side, torch.Tensor) for side in pair):
        kinds = ", ".join(type(side).__name__ for side in pair)
        raise TypeError(f"{caller}: feat is a {type(feat).__name__} of {kinds}; expected a tensor or two of them")
    if isinstance(feat, torch.Tensor):
        if len(feat) < graph.n_dst_nodes:
            raise ValueError(
                f"{caller}: feat has {len(feat)} rows; expected at least {graph.n_dst_nodes}, those of the destinations"
            )
        pair = (feat, feat[: graph.n_dst_nodes])
    for name, side, rows in zip(("feat[0]", "feat[1]"), pair, (graph.n_src_nodes, graph.n_dst_nodes), strict=True):
        if side.ndim != 2 or len(side) != rows:
            name = "feat" if isinstance(feat, torch.Tensor) else name
            raise ValueError(f"{caller}: {name} has shape {tuple(side.shape)}; expected ({rows}, dim)")
    return pair


def mha_gat_n2n(
    feat: Features,
    attn_weights: torch.Tensor,
    graph: Graph,
    num_heads: int = 1,
    activation: Literal["linear", "ReLU", "LeakyReLU", "ELU", "sigmoid", "tanh"] = "LeakyReLU",
    negative_slope: float = 0.2,
    concat_heads: bool = True,
    edge_feat: torch.Tensor | None = None,
    deterministic_dgrad: bool = False,
    deterministic_wgrad: bool = False,
    high_precision_dgrad: bool = False,
    high_precision_wgrad: bool = False,
) -> torch.Tensor:
    """Multi-head attention from source to destination nodes.

    Parameters
    ----------
    feat : tensor or pair of tensors, shapes (num_src_nodes, dim) and (num_dst_nodes, dim)
        Features, heads one after the other. Of one tensor the first rows are the destinations'.
    attn_weights : tensor, shape (2*dim,), or (3*dim,) with edge features
    graph : Graph
    num_heads, activation, negative_slope, concat_heads
        As of `trigraph.torch.mha_gat_n2n`.
    edge_feat : tensor, shape (num_edges, dim), optional
        One of width 0 is none.
    deterministic_dgrad, deterministic_wgrad, high_precision_dgrad, high_precision_wgrad : bool
        Taken for the original's sake: gradients are the same in every run, and of the tensors' precision.

    Returns
    -------
    tensor, shape (num_dst_nodes, dim), or (num_dst_nodes, dim // num_heads) where heads are averaged
    """
    src, dst = _sides("mha_gat_n2n", feat, graph)
    if edge_feat is not None and edge_feat.ndim == 2 and edge_feat.shape[1] == 0:
        edge_feat = None
    return attention(
        src, dst, attn_weights, graph.csc, num_heads, concat_heads, activation, negative_slope, edge_feat
    ).output_embedding


def agg_concat_n2n(
    feat: Features,
    graph: Graph,
    aggr: Literal["sum", "mean", "min", "max"] = "sum",
    edge_weight: torch.Tensor | None = None,
) -> torch.Tensor:
    """Aggregate sources, and put the destination's own features behind.

    Parameters
    ----------
    feat : tensor or pair of tensors, shapes (num_src_nodes, dim) and (num_dst_nodes, dim_own)
        Of one tensor the first rows are the destinations'.
    graph : Graph
    aggr : {'sum', 'mean', 'min', 'max'}
        The mean divides by the sum of the weights.
    edge_weight : tensor, shape (num_edges,), optional

    Returns
    -------
    tensor, shape (num_dst_nodes, dim + dim_own)
    """
    src, dst = _sides("agg_concat_n2n", feat, graph)
    aggregate = agg_weighted_n2n(src, edge_weight, graph.csc, op=aggr).output_embedding
    return torch.cat([aggregate, dst], 1)


def agg_hg_basis_n2n_post(
    feat: Features,
    weights_comb: torch.Tensor | None,
    graph: HeteroCSC,
    concat_own: bool = False,
    norm_by_out_degree: bool = False,
) -> torch.Tensor:
    """Sum sources with a weight by type of edge, once for each basis.

    Parameters
    ----------
    feat : tensor or pair of tensors, shapes (num_src_nodes, dim) and (num_dst_nodes, dim_own)
        Of one tensor the first rows are the destinations'.
    weights_comb : tensor, shape (num_edge_types, num_bases), or None
        Weight of each type in each basis. None: one basis for each type, with only the edges of this type.
    graph : HeteroCSC
    concat_own : bool
        Whether the destination's own features come last.
    norm_by_out_degree : bool
        Whether each edge is divided by the number of edges of its type into its destination.

    Returns
    -------
    tensor, shape (num_dst_nodes, num_bases*dim), or (num_dst_nodes, num_bases*dim + dim_own) with `concat_own`
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
    if weights_comb.device != graph.edge_types.device:
        raise ValueError(
            f"{caller}: weights_comb is on {weights_comb.device}; expected {graph.edge_types.device}, where graph is"
        )
    weights = weights_comb[graph.edge_types]
    if norm_by_out_degree:
        weights = weights / graph.edges_of_type[:, None]
    bases = [agg_weighted_n2n(src, weight, graph.csc).output_embedding for weight in weights.unbind(1)]
    return torch.cat([*bases, dst] if concat_own else bases, 1)


def __getattr__(name: str) -> Any:
    return stand_in("pylibcugraphops.pytorch.operators", name)
