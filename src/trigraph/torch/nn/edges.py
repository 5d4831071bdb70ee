"""Edges of layers: graph objects of PyTorch Geometric's ``edge_index``, self loops, and checks of features."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from trigraph.graphs import CSC, array_kind, as_array, check_memory, check_range, count, device_of, entered
from trigraph.torch.graphs import tensors, uncompiled
from trigraph.torch.nn.arguments import check_device

REDUCTIONS = {"add": "sum", "sum": "sum", "mean": "mean", "mul": "prod", "min": "amin", "max": "amax"}


def check_rows(owner: str, name: str, value: Any, width: int | None, symbols: str, rows: int | None = None) -> None:
    """Raise unless a value is a tensor of rank 2 with so many columns and rows; `symbols` is what messages call it."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{owner}: {name} is a {type(value).__name__}; expected a torch.Tensor")
    check_device(owner, name, value)
    if value.dim() != 2 or width not in (None, value.shape[1]):
        more = "" if width is None else f" with {width} columns"
        raise ValueError(f"{owner}: {name} has shape {tuple(value.shape)}; expected ({symbols}){more}")
    if rows is not None and len(value) != rows:
        raise ValueError(f"{owner}: {name} has shape {tuple(value.shape)}; expected ({symbols}) with {rows} rows")


def check_features(owner: str, src: Any, dst: Any, src_width: int | None, dst_width: int | None) -> None:
    """Raise unless the features of sources, and those of destinations if there are any, have so many columns."""
    names = ("x", "x") if src is dst else ("x[0]", "x[1]")
    check_rows(owner, names[0], src, src_width, "num_src_nodes, in_channels")
    if dst is not None:
        check_rows(owner, names[1], dst, dst_width, "num_dst_nodes, in_channels")


def check_nodes(owner: str, src: torch.Tensor, dst: torch.Tensor | None, graph: CSC) -> None:
    """Raise unless the features of sources and destinations are where a graph is and have a row for each node."""
    if graph.device != device_of(src):
        raise ValueError(f"{owner}: edge_index is on {graph.device}; expected {device_of(src)}, where x is")
    names = ("x", "x") if src is dst else ("x[0]", "x[1]")
    numbers = (("num_src_nodes", graph.num_src_nodes), ("num_dst_nodes", graph.num_dst_nodes))
    for name, value, (symbol, number) in zip(names, (src, dst), numbers, strict=True):
        if value is not None and len(value) != number:
            raise ValueError(
                f"{owner}: {name} has shape {tuple(value.shape)}; expected (num_nodes, in_channels) with {number} "
                f"rows, {symbol} of the graph"
            )


def check_edge_index(owner: str, edge_index: Any, like: torch.Tensor | None = None) -> None:
    """Raise unless a value is an ``edge_index``: a dense tensor of int32 or int64, of shape (2, num_edges).

    Features `like` those of the nodes are on the device where it must be.
    """
    if not isinstance(edge_index, torch.Tensor):
        raise TypeError(
            f"{owner}: edge_index is a {type(edge_index).__name__}; expected a torch.Tensor or a trigraph.CSC"
        )
    if edge_index.layout is not torch.strided:
        raise TypeError(f"{owner}: edge_index is a tensor of layout {edge_index.layout}; expected torch.strided")
    if torch.jit.is_tracing():  # type: ignore[attr-defined]
        raise NotImplementedError(
            f"{owner}: torch.jit.trace would keep this edge_index in the traced program as a constant; expected "
            "torch.compile, torch.export, or a prepared trigraph.CSC, which is a constant"
        )
    if edge_index.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{owner}: edge_index has dtype {edge_index.dtype}; expected torch.int32 or torch.int64")
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise ValueError(f"{owner}: edge_index has shape {tuple(edge_index.shape)}; expected (2, num_edges)")
    if like is not None and edge_index.device != like.device:
        raise ValueError(f"{owner}: edge_index is on {edge_index.device}; expected {like.device}, where x is")
    check_device(owner, "edge_index", edge_index)


MATRIX_LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)


def is_matrix(edge_index: Any) -> bool:
    """Return whether edges come as a sparse adjacency matrix."""
    return isinstance(edge_index, torch.Tensor) and edge_index.layout in MATRIX_LAYOUTS


def edges_of_matrix(owner: str, matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ``edge_index`` of a sparse adjacency matrix, and its values, in the order in which it stores them.

    Rows are destinations and columns are sources, as in PyTorch Geometric's layers, which take ``adj.t()``.
    """
    if matrix.sparse_dim() != 2:
        raise ValueError(
            f"{owner}: edge_index is a sparse tensor with {matrix.sparse_dim()} sparse dimensions; expected 2, "
            "(num_dst_nodes, num_src_nodes)"
        )
    if matrix.layout is torch.sparse_coo:
        matrix = matrix.coalesce()
        dst, src = matrix.indices()
    else:
        by_row = matrix.layout is torch.sparse_csr
        offsets = matrix.crow_indices() if by_row else matrix.ccol_indices()
        inner = matrix.col_indices() if by_row else matrix.row_indices()
        lines = torch.arange(len(offsets) - 1, device=offsets.device)
        outer = torch.repeat_interleave(lines, offsets.diff(), output_size=len(inner))
        dst, src = (outer, inner) if by_row else (inner, outer)
    return torch.stack([src.long(), dst.long()]), matrix.values()


def matrix_of(
    edge_index: torch.Tensor, values: torch.Tensor, num_src_nodes: int, num_dst_nodes: int, layout: torch.layout
) -> torch.Tensor:
    """Return values of edges as a sparse matrix (num_dst_nodes, num_src_nodes, ...) of a layout."""
    size = (num_dst_nodes, num_src_nodes, *values.shape[1:])
    matrix = torch.sparse_coo_tensor(edge_index.flip(0), values, size, check_invariants=False).coalesce()
    return matrix if layout is torch.sparse_coo else matrix.to_sparse(layout=layout)


def check_indices(owner: str, edge_index: torch.Tensor, num_src_nodes: int, num_dst_nodes: int) -> None:
    """Raise ValueError, as `graph_of` does, unless sources and destinations are numbers of nodes.

    Compiled programs do not look at them.
    """
    if torch.compiler.is_compiling():
        return
    rows = as_array(edge_index, f"{owner}: edge_index")
    if array_kind(rows) is None:  # a traced program has no values, torch.vmap many
        return
    with _named(owner), entered(rows):
        check_range("CSC", "src", rows[0], num_src_nodes, "num_src_nodes")
        check_range("CSC", "dst", rows[1], num_dst_nodes, "num_dst_nodes")


@contextlib.contextmanager
def _named(owner: str) -> Iterator[None]:
    """Let errors say whose `edge_index` they are about."""
    try:
        yield
    except (TypeError, ValueError, MemoryError) as error:
        raise type(error)(f"{owner}: edge_index: {error}") from None


@uncompiled
def build_graph(owner: str, edge_index: torch.Tensor, num_src_nodes: int, num_dst_nodes: int) -> CSC:
    """Return the graph of an ``edge_index``: row 0 sources, row 1 destinations."""
    with _named(owner):
        return CSC.from_coo(edge_index[0], edge_index[1], num_src_nodes, num_dst_nodes)


def graph_of(owner: str, edge_index: Any, src: Any, dst: Any, src_width: int | None, dst_width: int | None) -> CSC:
    """Return a prepared graph as it is, and the graph of an ``edge_index``; `src` and `dst` are features of its nodes.

    Those of the destinations may be None with a prepared graph alone.
    """
    check_features(owner, src, dst, src_width, dst_width)
    if not isinstance(edge_index, CSC):
        check_edge_index(owner, edge_index, src)
        if dst is None:
            raise ValueError(f"{owner}: x[1] is None and edge_index is a tensor; expected a trigraph.CSC")
        return build_graph(owner, edge_index, len(src), len(dst))
    check_nodes(owner, src, dst, edge_index)
    return edge_index


def ends_of(graph: CSC) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return source, destination and row of the edge arrays of each position of a graph."""
    offsets, indices, edge_ids = tensors(graph, False)[:3]
    nodes = torch.arange(graph.num_dst_nodes, dtype=offsets.dtype, device=offsets.device)
    dst = torch.repeat_interleave(nodes, offsets[1:] - offsets[:-1], output_size=graph.num_positions)
    return indices, dst, edge_ids


def source_and_destination(x: Any) -> tuple[Any, Any]:
    """Return the features of sources and of destinations: the same, where `x` is no pair."""
    return tuple(x) if isinstance(x, (tuple, list)) and len(x) == 2 else (x, x)  # type: ignore[return-value]


def check_reduction(owner: str, fill_value: str) -> None:
    """Raise unless a name is that of a reduction."""
    if fill_value not in REDUCTIONS:
        raise ValueError(
            f"{owner}: fill_value is {fill_value!r}; expected a number, a tensor, or one of {', '.join(REDUCTIONS)}"
        )


def _loop_attributes(edge_attr: torch.Tensor, dst: torch.Tensor, num_nodes: int, fill_value: Any) -> torch.Tensor:
    """Return the edge features of the self loops of nodes ``0 .. num_nodes-1``."""
    shape = (num_nodes, *edge_attr.shape[1:])
    if not isinstance(fill_value, str):
        fill = 1.0 if fill_value is None else fill_value
        value = torch.as_tensor(fill, dtype=edge_attr.dtype, device=edge_attr.device)
        return value.expand(shape)
    check_reduction("add_self_loops", fill_value)
    into = dst < num_nodes  # of a bipartite graph, destinations without a source of their number have no self loop
    dst, edge_attr = dst[into].long(), edge_attr[into]
    each = dst.view(-1, *(1 for _ in shape[1:])).expand_as(edge_attr)
    product = fill_value == "mul"
    start = edge_attr.new_full(shape, float(product))
    return start.scatter_reduce(0, each, edge_attr, REDUCTIONS[fill_value], include_self=product)


def with_loops(
    edge_index: torch.Tensor, edge_attr: torch.Tensor | None, num_nodes: int, fill_value: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return what `add_self_loops` returns, of arguments that were looked at."""
    no_loop = edge_index[0] != edge_index[1]
    edge_index = edge_index[:, no_loop]
    loops = torch.arange(num_nodes, dtype=edge_index.dtype, device=edge_index.device)
    if edge_attr is not None:
        edge_attr = edge_attr[no_loop]
        edge_attr = torch.cat([edge_attr, _loop_attributes(edge_attr, edge_index[1], num_nodes, fill_value)])
    return torch.cat([edge_index, loops.expand(2, -1)], dim=1), edge_attr


def add_self_loops(
    edge_index: torch.Tensor,
    edge_attr: torch.Tensor | None = None,
    num_nodes: int | None = None,
    fill_value: float | torch.Tensor | str | None = "mean",
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Give every node one self loop, in place of those that there are, as PyTorch Geometric's GATConv does.

    Parameters
    ----------
    edge_index : tensor of int32 or int64, shape (2, num_edges)
    edge_attr : tensor, shape (num_edges, ...), optional
    num_nodes : int, optional
        Nodes ``0 .. num_nodes-1`` get a loop (default: up to the largest index). In a bipartite graph these are the
        fewer of sources and destinations.
    fill_value : float, tensor, str or None, optional
        Edge features of the loops: a value, or how those of the edges into the node are reduced ("mean", "add", "mul",
        "min", "max"). A node without edges gets 0, for "mul" 1. None is 1.0, PyTorch Geometric's default.

    Returns
    -------
    edge_index : tensor, shape (2, num_edges + num_nodes - removed)
        Edges that are no loops in their order, then the loops.
    edge_attr : tensor or None
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
    largest = torch.iinfo(edge_index.dtype).max
    if type(num_nodes) is not int or not 0 <= num_nodes <= largest:  # torch cannot compile `count`
        num_nodes = count("add_self_loops", "num_nodes", num_nodes, maximum=largest)
    if edge_index.is_cpu and not torch.compiler.is_compiling():  # the loops, then all edges
        check_memory("add_self_loops", "num_nodes", num_nodes, 3 * edge_index.dtype.itemsize)
    return with_loops(edge_index, edge_attr, num_nodes, fill_value)
