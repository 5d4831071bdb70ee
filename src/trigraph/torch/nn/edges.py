"""Edges of layers: graph objects of PyTorch Geometric's ``edge_index``, self loops, and checks of node features."""

from __future__ import annotations

from typing import Any

import torch

from trigraph.graphs import CSC
from trigraph.torch.graphs import tensors

__all__ = ["add_self_loops", "check_edge_index", "check_rows", "ends_of", "graph_of", "source_and_destination"]

REDUCTIONS = {"add": "sum", "sum": "sum", "mean": "mean", "mul": "prod", "min": "amin", "max": "amax"}


def check_rows(owner: str, name: str, value: Any, width: int, symbols: str) -> None:
    """Raise unless a value is a tensor of rank 2 with so many columns; `symbols` is what messages call its shape."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{owner}: {name} is a {type(value).__name__}; expected a torch.Tensor")
    if value.dim() != 2 or value.shape[1] != width:
        raise ValueError(f"{owner}: {name} has shape {tuple(value.shape)}; expected ({symbols}) with {width} columns")


def check_edge_index(owner: str, edge_index: Any) -> None:
    """Raise unless a value is an ``edge_index``: a dense tensor of int32 or int64, of shape (2, num_edges)."""
    if not isinstance(edge_index, torch.Tensor):
        raise TypeError(
            f"{owner}: edge_index is a {type(edge_index).__name__}; expected a torch.Tensor or a trigraph.CSC"
        )
    if edge_index.layout is not torch.strided:
        raise TypeError(f"{owner}: edge_index is a tensor of layout {edge_index.layout}; expected torch.strided")
    if edge_index.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{owner}: edge_index has dtype {edge_index.dtype}; expected torch.int32 or torch.int64")
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise ValueError(f"{owner}: edge_index has shape {tuple(edge_index.shape)}; expected (2, num_edges)")


def graph_of(owner: str, edge_index: Any, num_src_nodes: int, num_dst_nodes: int) -> CSC:
    """Return a prepared graph as it is, and the graph of an ``edge_index`` (row 0 sources, row 1 destinations)."""
    if isinstance(edge_index, CSC):
        return edge_index
    check_edge_index(owner, edge_index)
    try:
        return CSC.from_coo(edge_index[0], edge_index[1], num_src_nodes, num_dst_nodes)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{owner}: edge_index: {error}") from None


def ends_of(graph: CSC) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return source, destination and row of the edge arrays of each position of a graph."""
    offsets, indices, edge_ids = tensors(graph, False)[:3]
    nodes = torch.arange(graph.num_dst_nodes, dtype=offsets.dtype, device=offsets.device)
    dst = torch.repeat_interleave(nodes, offsets[1:] - offsets[:-1], output_size=graph.num_positions)
    return indices, dst, edge_ids


def source_and_destination(x: Any) -> tuple[Any, Any]:
    """Return the features of sources and of destinations: the same, where `x` is no pair."""
    return tuple(x) if isinstance(x, (tuple, list)) and len(x) == 2 else (x, x)  # type: ignore[return-value]


def _loop_attributes(edge_attr: torch.Tensor, dst: torch.Tensor, num_nodes: int, fill_value: Any) -> torch.Tensor:
    """Return the edge features of the self loops of nodes ``0 .. num_nodes-1``."""
    shape = (num_nodes, *edge_attr.shape[1:])
    if not isinstance(fill_value, str):
        value = torch.as_tensor(fill_value, dtype=edge_attr.dtype, device=edge_attr.device)
        return value.expand(shape)
    if fill_value not in REDUCTIONS:
        raise ValueError(
            f"add_self_loops: fill_value is {fill_value!r}; expected a number, a tensor, or one of "
            f"{', '.join(REDUCTIONS)}"
        )
    into = dst < num_nodes  # of a bipartite graph, destinations without a source of their number have no self loop
    dst, edge_attr = dst[into].long(), edge_attr[into]
    each = dst.view(-1, *(1 for _ in shape[1:])).expand_as(edge_attr)
    product = fill_value == "mul"
    start = edge_attr.new_full(shape, float(product))
    return start.scatter_reduce(0, each, edge_attr, REDUCTIONS[fill_value], include_self=product)


def add_self_loops(
    edge_index: torch.Tensor,
    edge_attr: torch.Tensor | None = None,
    num_nodes: int | None = None,
    fill_value: float | torch.Tensor | str = "mean",
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Give every node one self loop, in place of those that there are, as PyTorch Geometric's GATConv does.

    Parameters
    ----------
    edge_index : tensor of int32 or int64, shape (2, num_edges)
    edge_attr : tensor, shape (num_edges, ...), optional
    num_nodes : int, optional
        Nodes ``0 .. num_nodes-1`` get a loop (default: up to the largest index).
    fill_value : float, tensor or str, optional
        Edge features of the loops: a value, or how those of the edges into the node are reduced ("mean", "add", "mul",
        "min", "max"). A node without edges gets 0, for "mul" 1.

    Returns
    -------
    edge_index : tensor, shape (2, num_edges + num_nodes - removed)
        Edges that are no loops in their order, then the loops.
    edge_attr : tensor or None

    Raises
    ------
    TypeError, ValueError
    """
    check_edge_index("add_self_loops", edge_index)
    if edge_attr is not None and not isinstance(edge_attr, torch.Tensor):
        raise TypeError(f"add_self_loops: edge_attr is a {type(edge_attr).__name__}; expected a torch.Tensor")
    if edge_attr is not None and len(edge_attr) != edge_index.shape[1]:
        raise ValueError(
            f"add_self_loops: edge_attr has shape {tuple(edge_attr.shape)}; expected (num_edges, ...) with "
            f"{edge_index.shape[1]} rows"
        )
    if num_nodes is None:
        num_nodes = int(edge_index.max()) + 1 if edge_index.numel() else 0
    kept = edge_index[0] != edge_index[1]
    edge_index = edge_index[:, kept]
    loops = torch.arange(num_nodes, dtype=edge_index.dtype, device=edge_index.device)
    if edge_attr is not None:
        edge_attr = edge_attr[kept]
        edge_attr = torch.cat([edge_attr, _loop_attributes(edge_attr, edge_index[1], num_nodes, fill_value)])
    return torch.cat([edge_index, loops.expand(2, -1)], dim=1), edge_attr
