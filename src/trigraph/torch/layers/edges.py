"""Construction of graphs from ``edge_index``, self-loops, and checks of node and edge features."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from trigraph.arrays import (
    check_memory,
    check_range,
    copy_read_only,
    describe_type,
    find_device,
    name_library,
    require_count,
    view_tensor_memory,
)
from trigraph.graphs import CSC, enter_device
from trigraph.graphs.counting import counts_fit_c_int
from trigraph.torch.arrays import call_in_new_thread, has_storage, is_batched_by_vmap
from trigraph.torch.graphs import GraphTensors, exclude_from_compilation, list_graph_tensors, view_as_tensor
from trigraph.torch.layers.arguments import require_cpu_or_cuda

REDUCTIONS = {"add": "sum", "sum": "sum", "mean": "mean", "mul": "prod", "min": "amin", "max": "amax"}


def check_matrix_shape(
    owner: str, name: str, value: Any, width: int | None, symbols: str, rows: int | None = None
) -> None:
    """Raise unless a value is a tensor of shape (rows, width); None matches any size. Errors show `symbols`."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{owner}: {name} is a {type(value).__name__}; expected a torch.Tensor")
    require_cpu_or_cuda(owner, name, value)
    if value.dim() != 2 or width not in (None, value.shape[1]):
        more = "" if width is None else f" with {width} columns"
        raise ValueError(f"{owner}: {name} has shape {tuple(value.shape)}; expected ({symbols}){more}")
    if rows is not None and value.shape[0] != rows:  # `shape[0]` stays symbolic in a traced program, unlike len()
        raise ValueError(f"{owner}: {name} has shape {tuple(value.shape)}; expected ({symbols}) with {rows} rows")


def check_node_features(owner: str, src: Any, dst: Any, src_width: int | None, dst_width: int | None) -> None:
    """Raise unless the features of sources, and of destinations if given, have the given widths."""
    names = ("x", "x") if src is dst else ("x[0]", "x[1]")
    check_matrix_shape(owner, names[0], src, src_width, "num_src_nodes, in_channels")
    if dst is not None:
        check_matrix_shape(owner, names[1], dst, dst_width, "num_dst_nodes, in_channels")


def check_features_match_graph(owner: str, src: torch.Tensor, dst: torch.Tensor | None, graph: CSC) -> None:
    """Raise unless features have a row for each node of the graph and are on the graph's device."""
    if graph.device != find_device(src):
        raise ValueError(f"{owner}: edge_index is on {graph.device}; expected {find_device(src)}, where x is")
    names = ("x", "x") if src is dst else ("x[0]", "x[1]")
    numbers = (("num_src_nodes", graph.num_src_nodes), ("num_dst_nodes", graph.num_dst_nodes))
    for name, value, (symbol, number) in zip(names, (src, dst), numbers, strict=True):
        if value is not None and value.shape[0] != number:
            raise ValueError(
                f"{owner}: {name} has shape {tuple(value.shape)}; expected (num_nodes, in_channels) with {number} "
                f"rows, {symbol} of the graph"
            )


def check_edge_index(owner: str, edge_index: Any, like: torch.Tensor | None = None) -> None:
    """Raise unless a value is a dense int32 or int64 tensor of shape (2, num_edges) on the device of `like`."""
    if not isinstance(edge_index, torch.Tensor):
        raise TypeError(
            f"{owner}: edge_index is a {type(edge_index).__name__}; expected a torch.Tensor, a trigraph.CSC or "
            "trigraph.torch.GraphTensors"
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
    require_cpu_or_cuda(owner, "edge_index", edge_index)
    if torch.compiler.is_compiling():
        return
    if is_batched_by_vmap(edge_index):
        raise TypeError(f"{owner}: edge_index is {describe_type(edge_index)}; expected the same edges for all entries")
    if edge_index.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"{owner}: edge_index is a tensor, whose values the host has to read, while a CUDA graph is captured; "
            "expected a trigraph.CSC, built before the capture"
        )


MATRIX_LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)


def is_sparse_matrix(edge_index: Any) -> bool:
    """Return whether `edge_index` is a sparse adjacency matrix."""
    return isinstance(edge_index, torch.Tensor) and edge_index.layout in MATRIX_LAYOUTS


def list_matrix_edges(owner: str, matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ``edge_index`` and values of a sparse adjacency matrix, in storage order.

    Rows are destinations and columns are sources, as for ``adj.t()`` in PyTorch Geometric.
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


def make_sparse_matrix(
    edge_index: torch.Tensor, values: torch.Tensor, num_src_nodes: int, num_dst_nodes: int, layout: torch.layout
) -> torch.Tensor:
    """Return edge values as a sparse matrix (num_dst_nodes, num_src_nodes, ...) in the given layout."""
    size = (num_dst_nodes, num_src_nodes, *values.shape[1:])
    matrix = torch.sparse_coo_tensor(edge_index.flip(0), values, size, check_invariants=False).coalesce()
    return matrix if layout is torch.sparse_coo else matrix.to_sparse(layout=layout)


def check_node_indices(owner: str, edge_index: torch.Tensor, num_src_nodes: int, num_dst_nodes: int) -> None:
    """Raise ValueError, like `check_and_find_graph`, if a node index is out of range; compiled programs do not."""
    if torch.compiler.is_compiling():
        return
    rows = view_tensor_memory(edge_index, f"{owner}: edge_index")
    if name_library(rows) is None:  # the tensor is symbolic, or batched by torch.vmap
        return
    with _name_layer_in_errors(owner), enter_device(rows):
        _check_index_ranges(rows, num_src_nodes, num_dst_nodes)


def _check_index_ranges(edges: Any, num_src_nodes: int, num_dst_nodes: int) -> None:
    check_range("CSC", "src", edges[0], num_src_nodes, "num_src_nodes")
    check_range("CSC", "dst", edges[1], num_dst_nodes, "num_dst_nodes")


@contextlib.contextmanager
def _name_layer_in_errors(owner: str) -> Iterator[None]:
    """Prefix error messages with the name of the layer."""
    try:
        yield
    except (TypeError, ValueError, MemoryError) as error:
        kind = MemoryError if isinstance(error, MemoryError) else type(error)  # NumPy's MemoryError accepts no message
        raise kind(f"{owner}: edge_index: {error}") from None


def narrow_indices(*indices: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Convert indices to int32 if all values and lengths fit, which halves the memory traffic."""
    largest = torch.iinfo(torch.int32).max
    fits = all(i.numel() < largest and (i.numel() == 0 or int(i.max()) < largest) for i in indices)
    return tuple(i.to(torch.int32) for i in indices) if fits else indices


class _GraphCacheEntry:
    """Private copy of an edge_index, and the graphs built from it, by (num_src_nodes, num_dst_nodes, self-loops)."""

    def __init__(self, edges: Any) -> None:
        numpy = name_library(edges) == "numpy"
        self.edges = copy_read_only(edges) if numpy else edges.copy()
        self.graphs: dict[tuple[int, int, bool], CSC] = {}

    def matches_edges(self, edges: Any) -> bool:
        """Return whether an array equals the copy, also in type, device and dtype; synchronizes a CUDA device."""
        own = self.edges
        alike = type(own) is type(edges) and own.dtype == edges.dtype and own.shape == edges.shape
        return alike and find_device(own) == find_device(edges) and bool((own == edges).all())


MAX_CACHED_TENSORS = (
    16  # maximum number of tensors with cached graphs; a graph needs several times the memory of its tensor
)
# Cached graphs by the caller's tensor object, then by numbers of nodes and self-loops (`_GraphCacheEntry.graphs`). Each
# lookup compares the contents of the tensor with the private copy, because writes by NumPy, DLPack, `Tensor.data` or
# other processes cannot be detected otherwise.
_graph_cache = WeakTensorKeyDictionary()


@exclude_from_compilation
def find_or_build_graph(
    owner: str, edge_index: torch.Tensor, num_src_nodes: int, num_dst_nodes: int, loops: bool = False
) -> CSC:
    """Return the graph of an ``edge_index``, with the self-loops of `replace_self_loops` if `loops`.

    The graph is cached by tensor object, except for subclasses of torch.Tensor and torch.func wrappers.
    """
    with _name_layer_in_errors(owner):
        edges = view_tensor_memory(edge_index, "the tensor")
        if name_library(edges) is None:
            raise TypeError(f"CSC: src is {describe_type(edge_index)}; expected a torch.Tensor of integers")
        with enter_device(edge_index):
            is_cacheable = type(edge_index) is torch.Tensor and has_storage(edge_index)
            entry: _GraphCacheEntry | None = _graph_cache.get(edge_index) if is_cacheable else None  # type: ignore[no-untyped-call]
            if entry is None or not entry.matches_edges(edges):
                entry = _GraphCacheEntry(edges)
            key = (num_src_nodes, num_dst_nodes, loops)
            if key not in entry.graphs:
                entry.graphs[key] = _build_graph(entry.edges, *key)
    if is_cacheable and _graph_cache.get(edge_index) is not entry:  # type: ignore[no-untyped-call]
        if len(_graph_cache) >= MAX_CACHED_TENSORS:
            _graph_cache.clear()
        _graph_cache[edge_index] = entry
    return entry.graphs[key]


def _build_graph(edges: Any, num_src_nodes: int, num_dst_nodes: int, loops: bool) -> CSC:
    """Build the graph of an edge array, which must never change."""
    num_loops = min(num_src_nodes, num_dst_nodes)
    if name_library(edges) == "numpy" and counts_fit_c_int(edges.shape[1] + num_loops, num_src_nodes, num_dst_nodes):
        return CSC._build_on_host(edges[0], edges[1], num_src_nodes, num_dst_nodes, loops=num_loops if loops else -1)
    if loops or name_library(edges) == "cupy":
        _check_index_ranges(edges, num_src_nodes, num_dst_nodes)  # before positions change, because errors show them
        edges = call_in_new_thread(_make_edge_tensor, edges, num_loops if loops else None)
    return CSC.from_coo(edges[0], edges[1], num_src_nodes, num_dst_nodes)


def _make_edge_tensor(edges: Any, num_nodes: int | None) -> torch.Tensor:
    """Return edges as a tensor, with self-loops if `num_nodes` is given; call `narrow_indices` on CUDA devices."""
    edge_index: torch.Tensor = view_as_tensor(edges)
    if num_nodes is not None:
        edge_index, _ = replace_self_loops(edge_index, None, num_nodes, None)
    return narrow_indices(edge_index)[0] if edge_index.is_cuda else edge_index


def unwrap_graph_tensors(owner: str, edge_index: Any) -> Any:
    """Return the graph of a `GraphTensors`; return anything else unchanged."""
    if not isinstance(edge_index, GraphTensors):
        return edge_index
    if edge_index.type_name != "CSC":
        raise TypeError(f"{owner}: edge_index is GraphTensors of type {edge_index.type_name}; expected CSC")
    return edge_index.graph()


def check_and_find_graph(
    owner: str, edge_index: Any, src: Any, dst: Any, src_width: int | None, dst_width: int | None
) -> CSC:
    """Check node features, and return the given prepared graph or the graph of an ``edge_index``.

    Destination features may be None only with a prepared graph.
    """
    check_node_features(owner, src, dst, src_width, dst_width)
    edge_index = unwrap_graph_tensors(owner, edge_index)
    if not isinstance(edge_index, CSC):
        check_edge_index(owner, edge_index, src)
        if dst is None:
            raise ValueError(f"{owner}: x[1] is None and edge_index is a tensor; expected a trigraph.CSC")
        return find_or_build_graph(owner, edge_index, len(src), len(dst))
    check_features_match_graph(owner, src, dst, edge_index)
    return edge_index


def list_edge_ends(graph: CSC) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the source, the destination and the row in edge arrays for each position of a CSC graph."""
    offsets, indices, edge_ids = list_graph_tensors(graph, False)[:3]
    nodes = torch.arange(graph.num_dst_nodes, dtype=offsets.dtype, device=offsets.device)
    dst = torch.repeat_interleave(nodes, offsets[1:] - offsets[:-1], output_size=graph.num_positions)
    return indices, dst, edge_ids


def split_bipartite_features(x: Any) -> tuple[Any, Any]:
    """Return the features of sources and of destinations, which are the same unless `x` is a pair."""
    return tuple(x) if isinstance(x, (tuple, list)) and len(x) == 2 else (x, x)  # type: ignore[return-value]


def check_reduction(owner: str, fill_value: str) -> None:
    """Raise unless `fill_value` names a reduction."""
    if fill_value not in REDUCTIONS:
        raise ValueError(
            f"{owner}: fill_value is {fill_value!r}; expected a number, a tensor, or one of {', '.join(REDUCTIONS)}"
        )


def _make_loop_attributes(edge_attr: torch.Tensor, dst: torch.Tensor, num_nodes: int, fill_value: Any) -> torch.Tensor:
    """Return edge features for the self-loops of nodes ``0 .. num_nodes-1``."""
    shape = (num_nodes, *edge_attr.shape[1:])
    if not isinstance(fill_value, str):
        fill = 1.0 if fill_value is None else fill_value
        value = torch.as_tensor(fill, dtype=edge_attr.dtype, device=edge_attr.device)
        return value.expand(shape)
    check_reduction("add_self_loops", fill_value)
    has_loop = dst < num_nodes  # in a bipartite graph, some destinations have no self-loop
    dst, edge_attr = dst[has_loop].long(), edge_attr[has_loop]
    each = dst.view(-1, *(1 for _ in shape[1:])).expand_as(edge_attr)
    product = fill_value == "mul"
    start = edge_attr.new_full(shape, float(product))
    return start.scatter_reduce(0, each, edge_attr, REDUCTIONS[fill_value], include_self=product)


def replace_self_loops(
    edge_index: torch.Tensor, edge_attr: torch.Tensor | None, num_nodes: int, fill_value: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute `add_self_loops` for checked arguments."""
    no_loop = edge_index[0] != edge_index[1]
    edge_index = edge_index[:, no_loop]
    loops = torch.arange(num_nodes, dtype=edge_index.dtype, device=edge_index.device)
    if edge_attr is not None:
        edge_attr = edge_attr[no_loop]
        edge_attr = torch.cat([edge_attr, _make_loop_attributes(edge_attr, edge_index[1], num_nodes, fill_value)])
    return torch.cat([edge_index, loops.expand(2, -1)], dim=1), edge_attr


def add_self_loops(
    edge_index: torch.Tensor,
    edge_attr: torch.Tensor | None = None,
    num_nodes: int | None = None,
    fill_value: float | torch.Tensor | str | None = "mean",
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Replace all self-loops by exactly one per node, like PyTorch Geometric's GATConv.

    Parameters
    ----------
    edge_index : tensor of int32 or int64, shape (2, num_edges)
    edge_attr : tensor, shape (num_edges, ...), optional
    num_nodes : int, optional
        Nodes ``0 .. num_nodes-1`` get a loop (default: up to the largest index). For a bipartite graph, pass the
        smaller of the numbers of sources and destinations.
    fill_value : float, tensor, str or None, optional
        Edge features of the loops: a value (None means 1.0, PyTorch Geometric's default), or a reduction ("mean",
        "add", "mul", "min" or "max") of the features of the node's in-edges; without in-edges, 0, or 1 for "mul".

    Returns
    -------
    edge_index : tensor, shape (2, num_edges + num_nodes - removed)
        The other edges in their original order, followed by the loops.
    edge_attr : tensor or None

    Raises
    ------
    TypeError, ValueError, MemoryError
        If a tensor has the wrong dtype, shape or device, `num_nodes` is not an int >= 0 that fits the dtype of
        `edge_index`, `fill_value` is an unknown name, or there is not enough memory for the loops.

    See Also
    --------
    trigraph.torch.nn.GATConv

    Examples
    --------
    >>> import torch
    >>> from trigraph.torch.nn import add_self_loops
    >>> add_self_loops(torch.tensor([[0, 1, 1], [1, 0, 1]]))[0]
    tensor([[0, 1, 0, 1],
            [1, 0, 0, 1]])
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
    if type(num_nodes) is not int or not 0 <= num_nodes <= largest:  # torch.compile does not support `require_count`
        num_nodes = require_count("add_self_loops", "num_nodes", num_nodes, maximum=largest)
    if edge_index.is_cpu and not torch.compiler.is_compiling():  # memory of the self-loops and the result
        check_memory("add_self_loops", "num_nodes", num_nodes, 3 * edge_index.dtype.itemsize)
    return replace_self_loops(edge_index, edge_attr, num_nodes, fill_value)
