"""Graph objects, which are validated when they are built and immutable afterwards.

A graph owns copies of its index arrays, so that they cannot change after the range check. NumPy copies are stored in
bytes objects, which cannot be made writeable, neither by ``setflags`` nor through the array's base. CuPy has no
read-only arrays, so writes to the device arrays of a graph are not checked.
"""

from typing import Any, NamedTuple

import numpy as np

from trigraph.arrays import (
    check_and_copy_index_array,
    check_memory,
    check_range,
    copy_read_only,
    describe_type,
    get_array_module,
    get_max_addressable_count,
    name_library,
    require_count,
    view_tensor_memory,
    wait_until_written,
)
from trigraph.graphs.base import GRAPH_HOOKS, ImmutableGraph, on_argument_device
from trigraph.graphs.counting import (
    call_library_function,
    counts_fit_c_int,
    sort_edges_by_destination,
    sort_positions_by_key,
)
from trigraph.table.former_names import keep_former_names
from trigraph.table.graph_kinds import GRAPH_PARTS


class ReverseCSC(NamedTuple):
    """Orders in which derivatives gather rows. The arrays have the graph's type and dtype.

    Attributes
    ----------
    destinations : array, shape (num_positions,)
        Destination of each position.
    src_offsets : array, shape (num_src_nodes + 1,)
    src_positions : array, shape (num_positions,)
        Positions in a stable order by source; source j has ``src_positions[src_offsets[j]:src_offsets[j+1]]``.
    row_offsets : array, shape (num_edges + 1,)
    row_positions : array, shape (num_positions,)
        Positions in a stable order by row of the edge arrays.
    """

    destinations: Any
    src_offsets: Any
    src_positions: Any
    row_offsets: Any
    row_positions: Any


def infer_count_from_indices(name: str, values: Any) -> int:
    """Return the largest value + 1; raise ValueError if it exceeds the limit for the dtype."""
    if values.size == 0:
        return 0
    number, largest = int(values.max()) + 1, get_max_addressable_count(values.dtype)
    if number > largest:
        at = int(values.argmax())
        raise ValueError(f"CSC: {name}[{at}] is {int(values[at])}; expected less than {largest}")
    return max(number, 0)


def _check_and_count_edge_rows(edge_ids: Any, num_edges: Any, ends: Any, name: str) -> tuple[Any, int]:
    """Return the checked `edge_ids`, one per entry of `ends` (`name` in messages), or None, and the number of rows."""
    rows = (
        None
        if num_edges is None
        else require_count("CSC", "num_edges", num_edges, maximum=get_max_addressable_count(ends.dtype))
    )
    if edge_ids is None:
        rows = ends.size if rows is None else rows
        if rows < ends.size:
            raise ValueError(f"CSC: num_edges is {rows}; expected at least len({name}) = {ends.size}")
        return None, int(rows)
    edge_ids = check_and_copy_index_array("CSC", "edge_ids", edge_ids, ends, name)
    if edge_ids.size != ends.size:
        raise ValueError(f"CSC: edge_ids has shape {edge_ids.shape}; expected {ends.shape}, the shape of {name}")
    rows = infer_count_from_indices("edge_ids", edge_ids) if rows is None else rows
    check_range("CSC", "edge_ids", edge_ids, rows, "num_edges")
    return edge_ids, rows


@keep_former_names(renumbered="renumber_nodes")
class CSC(ImmutableGraph):
    """Directed bipartite graph whose in-edges are stored by destination (compressed sparse columns).

    The in-edges of destination `i` are the positions ``offsets[i]:offsets[i+1]``; their sources are ``indices[...]``.

    Parameters
    ----------
    offsets : array of int32 or int64, shape (num_dst_nodes + 1,)
        Offsets, which start at 0, never decrease, and end at the number of positions.
    indices : array, same dtype, shape (num_positions,)
        Source of each position.
    num_src_nodes : int, optional
        Default: the number of destinations.
    edge_ids : array, same dtype, shape (num_positions,), optional
        Row of the edge arrays for each position (default: the position itself). Positions may share a row; their
        gradients are then added. The gradients of unused rows are exactly 0.
    num_edges : int, optional
        Number of rows of edge arrays. Default: the number of positions, or ``max(edge_ids) + 1``.

    Raises
    ------
    TypeError, ValueError
        If an array has the wrong type, dtype, rank or length, or a value is out of range.

    Notes
    -----
    A graph is immutable, picklable and safe to share between threads. The first derivative calls `prepare`, which
    builds the orders in which derivatives gather rows. NumPy arrays of a graph cannot be made writeable. CuPy arrays
    remain writable; the graph is not checked again after a write.

    Examples
    --------
    >>> import numpy as np
    >>> from trigraph import CSC
    >>> graph = CSC(np.array([0, 2, 3]), np.array([0, 1, 1]))
    >>> graph.num_dst_nodes, graph.num_positions
    (2, 3)
    """

    __slots__ = GRAPH_PARTS["CSC"].attributes

    offsets: Any
    indices: Any
    edge_ids: Any
    edges_in_order: bool  # whether position p has row p, because no edge_ids were given
    num_src_nodes: int
    num_dst_nodes: int
    num_positions: int
    num_edges: int
    max_in_degree: int

    @on_argument_device
    def __init__(
        self,
        offsets: Any,
        indices: Any,
        num_src_nodes: int | None = None,
        edge_ids: Any = None,
        num_edges: int | None = None,
    ) -> None:
        offsets = check_and_copy_index_array("CSC", "offsets", offsets)
        indices = check_and_copy_index_array("CSC", "indices", indices, offsets)
        if offsets.size == 0:
            raise ValueError("CSC: offsets is empty; expected (num_dst_nodes + 1,) values")
        num_dst, num_positions = int(offsets.size) - 1, int(indices.size)
        if int(offsets[0]) != 0 or int(offsets[-1]) != num_positions:
            raise ValueError(
                f"CSC: offsets run from {int(offsets[0])} to {int(offsets[-1])}; "
                f"expected 0 to len(indices) = {num_positions}"
            )
        decreases = offsets[1:] < offsets[:-1]  # a comparison, because a difference could overflow
        if bool(decreases.any()):
            at = int(decreases.argmax())
            raise ValueError(
                f"CSC: offsets[{at + 1}] is {int(offsets[at + 1])}, below offsets[{at}] = {int(offsets[at])}; "
                "expected offsets that never decrease"
            )
        if num_src_nodes is None:
            num_src = num_dst
        else:
            num_src = require_count(
                "CSC", "num_src_nodes", num_src_nodes, maximum=get_max_addressable_count(indices.dtype)
            )
        check_range("CSC", "indices", indices, num_src, "num_src_nodes")
        edge_ids, rows = _check_and_count_edge_rows(edge_ids, num_edges, indices, "indices")
        in_order = edge_ids is None
        if in_order:
            edge_ids = copy_read_only(get_array_module(indices).arange(num_positions, dtype=indices.dtype))
        degree = int((offsets[1:] - offsets[:-1]).max()) if num_dst else 0
        self._set_attributes(offsets, indices, edge_ids, in_order, num_src, rows, degree)

    def _set_attributes(
        self, offsets: Any, indices: Any, edge_ids: Any, in_order: bool, num_src: int, rows: int, degree: int
    ) -> None:
        """Set every attribute from checked values; no other code may write to the arrays."""
        self._set_attributes_once(
            offsets=offsets,
            indices=indices,
            edge_ids=edge_ids,
            edges_in_order=in_order,
            num_src_nodes=num_src,
            num_dst_nodes=int(offsets.size) - 1,
            num_positions=int(indices.size),
            num_edges=rows,
            max_in_degree=degree,
            **self._make_common_attributes(offsets),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        edge_ids = None if self.edges_in_order else self.edge_ids
        return (CSC, (self.offsets, self.indices, self.num_src_nodes, edge_ids, self.num_edges))

    def __repr__(self) -> str:
        return (
            f"CSC(num_src_nodes={self.num_src_nodes}, num_dst_nodes={self.num_dst_nodes}, "
            f"num_positions={self.num_positions}, num_edges={self.num_edges}, {self.offsets.dtype}, {self.device})"
        )

    def prepare(self) -> ReverseCSC:
        """Build the orders in which derivatives gather rows; later calls return the first result.

        Threads that call this at the same time all build the orders, and all return the result that is finished first.
        A lock could block forever in a process forked while it is held, or in a signal handler.

        Returns
        -------
        ReverseCSC
        """
        reverse: ReverseCSC | None = self._built.get("reverse")
        if reverse is None:
            with self._enter_allocation_device():
                reverse = self._built.setdefault("reverse", self._build_reverse_orders())
            if self.kind == "cupy":  # built now, so that CUDA graphs can capture later calls
                self.long_rows("offsets")
                self.long_rows("src_offsets")
                if not self.edges_in_order:
                    self.long_rows("row_offsets")
            for view in GRAPH_HOOKS:
                view(self)
        return reverse

    def _build_reverse_orders(self) -> ReverseCSC:
        xp, dtype = get_array_module(self.offsets), self.offsets.dtype
        if xp is np:
            check_memory("CSC", "num_src_nodes", self.num_src_nodes, 2 * dtype.itemsize)
            check_memory("CSC", "num_edges", self.num_edges, 2 * dtype.itemsize)
            sizes = self.num_src_nodes, self.num_dst_nodes, self.num_positions, self.num_edges
            if counts_fit_c_int(*sizes):
                ids = None if self.edges_in_order else self.edge_ids
                n, given = self.num_positions, (self.offsets, self.indices, ids)
                lengths = (n, self.num_src_nodes + 1, n, self.num_edges + 1, 0 if ids is None else n)
                status, _, arrays = call_library_function("csc_orders", sizes, given, lengths)
                if status != 0:
                    raise ValueError(
                        "CSC: an index is out of range, or offsets decrease: the graph's tensors were modified"
                    )
                return ReverseCSC._make([*arrays[:4], self.edge_ids if ids is None else arrays[4]])
        positions = xp.arange(self.num_positions, dtype=dtype)
        destinations = xp.searchsorted(self.offsets[1:], positions, side="right").astype(dtype)
        by_src = sort_positions_by_key("CSC", "indices", self.indices, "num_src_nodes", self.num_src_nodes)
        if self.edges_in_order:
            row_offsets, row_positions = xp.arange(self.num_edges + 1, dtype=dtype), self.edge_ids
            row_offsets[self.num_positions :] = self.num_positions
        else:
            row_offsets, row_positions, *_ = sort_positions_by_key(
                "CSC", "edge_ids", self.edge_ids, "num_edges", self.num_edges
            )
        reverse = ReverseCSC(copy_read_only(destinations), *by_src[:2], copy_read_only(row_offsets), row_positions)
        wait_until_written(self.offsets)
        return reverse

    @on_argument_device
    def renumber_nodes(self) -> "tuple[CSC, Any]":
        """Return the graph with its nodes renumbered so that neighbours are close in memory, and the new order.

        Operators gather the rows of neighbours, which is faster if the rows are close together in memory. Renumbering
        helps for meshes and atoms in an arbitrary order; it does not help for random graphs. The new order is SciPy's
        reverse Cuthill-McKee order, computed on the host.

        Returns
        -------
        graph : CSC
            The renumbered graph. Edge arrays keep their order; `edge_ids` holds the permutation.
        order : array of the graph's dtype, shape (num_nodes,)
            Node `k` of the new graph is node ``order[k]`` of this graph: the new embedding is ``x[order]``, and
            ``result[order] = new_result`` restores the order of a result.

        Raises
        ------
        ValueError
            If the numbers of destinations and sources differ (they must be the same nodes) or exceed 2^31 - 1.
        """
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import reverse_cuthill_mckee

        number, dtype, xp = self.num_dst_nodes, self.offsets.dtype, get_array_module(self.offsets)
        if number != self.num_src_nodes:
            raise ValueError(
                f"CSC: num_src_nodes is {self.num_src_nodes}, num_dst_nodes is {number}; expected equal numbers of "
                "nodes, to renumber them"
            )
        if number > (largest := np.iinfo(np.int32).max):
            raise ValueError(f"CSC: num_dst_nodes is {number}; expected at most {largest}, to renumber them")
        src, dst, edge_ids = (
            a if self.kind == "numpy" else a.get() for a in (self.indices, self.prepare().destinations, self.edge_ids)
        )
        ends = (src.astype(np.int32), dst.astype(np.int32))  # SciPy's function requires int32
        neighbours = csr_array((np.ones(src.size, np.int8), ends), (number, number))
        order = reverse_cuthill_mckee(neighbours).astype(dtype) if number else np.empty(0, dtype)
        new_numbers = np.empty_like(order)
        new_numbers[order] = np.arange(number, dtype=dtype)
        src, dst, edge_ids, order = (xp.asarray(a) for a in (new_numbers[src], new_numbers[dst], edge_ids, order))
        return CSC.from_coo(src, dst, number, number, edge_ids, self.num_edges), order

    @classmethod
    @on_argument_device
    def from_coo(
        cls,
        src: Any,
        dst: Any,
        num_src_nodes: int | None = None,
        num_dst_nodes: int | None = None,
        edge_ids: Any = None,
        num_edges: int | None = None,
    ) -> "CSC":
        """Build a graph from the source and the destination of each edge, in any order.

        Parameters
        ----------
        src, dst : arrays of int32 or int64, shape (num_edges,)
        num_src_nodes, num_dst_nodes : int, optional
            Default: 1 + the largest node number in `src` and `dst`, or the other argument if that is larger.
        edge_ids : array, shape (num_edges,), optional
            Row of the edge arrays for each edge (default: its position in `src`).
        num_edges : int, optional

        Returns
        -------
        CSC
            Edge arrays keep the caller's order; `edge_ids` of the graph holds the permutation.
        """
        src = check_and_copy_index_array("CSC", "src", src)
        dst = check_and_copy_index_array("CSC", "dst", dst, src, "src")
        if dst.size != src.size:
            raise ValueError(f"CSC: dst has shape {dst.shape}; expected {src.shape}, the shape of src")
        edge_ids, rows = _check_and_count_edge_rows(edge_ids, num_edges, src, "src")
        numbers = [
            None if value is None else require_count("CSC", name, value, maximum=get_max_addressable_count(src.dtype))
            for name, value in (("num_src_nodes", num_src_nodes), ("num_dst_nodes", num_dst_nodes))
        ]
        largest = (
            max(infer_count_from_indices("src", src), infer_count_from_indices("dst", dst)) if None in numbers else 0
        )
        n_src, n_dst = (max(largest, *(n or 0 for n in numbers)) if n is None else n for n in numbers)
        if name_library(src) == "numpy" and counts_fit_c_int(src.size, n_src, n_dst):
            return cls._build_on_host(src, dst, n_src, n_dst, edge_ids, rows)
        check_range("CSC", "src", src, n_src, "num_src_nodes")
        offsets, order, _, rises = sort_positions_by_key("CSC", "dst", dst, "num_dst_nodes", n_dst)
        if edge_ids is None:
            return cls(offsets, src, n_src, None, rows) if rises else cls(offsets, src[order], n_src, order, rows)
        return cls(offsets, src[order], n_src, edge_ids[order], rows)

    @classmethod
    def _build_on_host(
        cls, src: Any, dst: Any, num_src: int, num_dst: int, edge_ids: Any = None, rows: int = -1, loops: int = -1
    ) -> "CSC":
        """Check the nodes and build a graph from read-only arrays whose sizes `counts_fit_c_int`.

        See `sort_edges_by_destination` for `loops`. ``rows=-1`` means one row for each edge.
        """
        (offsets, edges, degree, rises), indices = sort_edges_by_destination(src, dst, num_src, num_dst, loops)
        graph, in_order = cls.__new__(cls), edge_ids is None and rises
        ids = edges if edge_ids is None else copy_read_only(edge_ids[edges])
        graph._set_attributes(offsets, indices, ids, in_order, num_src, edges.size if rows < 0 else rows, degree)
        return graph

    @classmethod
    @on_argument_device
    def from_edge_index(cls, edge_index: Any, num_nodes: int | None = None) -> "CSC":
        """Build a graph from PyTorch Geometric's ``edge_index``, with sources in row 0 and destinations in row 1.

        Parameters
        ----------
        edge_index : array or tensor of int32 or int64, shape (2, num_edges)
        num_nodes : int, optional
            Default: 1 + the largest index.
        """
        edge_index = view_tensor_memory(edge_index, "CSC: edge_index")
        if name_library(edge_index) is None:
            got = describe_type(edge_index)
            raise TypeError(f"CSC: edge_index is {got}; expected a numpy.ndarray, cupy.ndarray or torch.Tensor")
        if edge_index.ndim != 2 or edge_index.shape[0] != 2:
            raise ValueError(f"CSC: edge_index has shape {edge_index.shape}; expected (2, num_edges)")
        return cls.from_coo(edge_index[0], edge_index[1], num_nodes, num_nodes)

    @classmethod
    def from_scipy(cls, matrix: Any) -> "CSC":
        """Build a graph from a sparse matrix: ``A[i, j]`` is the edge j -> i, so that sum aggregation is ``A @ X``.

        Parameters
        ----------
        matrix : scipy.sparse matrix or array, shape (num_dst_nodes, num_src_nodes)
            Stored entries are edges, including explicit zeros and duplicates. Arrays of CSR, CSC and BSR may be longer
            than ``indptr[-1]``; the excess is not read. For CSR and CSC, the excess counts as unused edge rows.

        Returns
        -------
        CSC
            Edge arrays have the order of ``matrix.data`` for the formats COO, CSR and CSC, which store one value per
            entry. For other formats (BSR, DIA, DOK, LIL), the edges and their order follow ``matrix.tocoo().data``;
            SciPy then omits the zeros that a DIA matrix stores.

        Raises
        ------
        TypeError, ValueError
            If `matrix` is not a sparse matrix, or if its index arrays are not valid.
        """
        from scipy import sparse

        if not sparse.issparse(matrix):
            raise TypeError(f"CSC: matrix is a {type(matrix).__name__}; expected a scipy.sparse matrix or array")
        if matrix.ndim != 2:
            raise ValueError(f"CSC: matrix has shape {matrix.shape}; expected (num_dst_nodes, num_src_nodes)")
        num_dst, num_src = (int(n) for n in matrix.shape)
        if matrix.format in ("csr", "csc"):
            dtype = np.promote_types(matrix.indptr.dtype, matrix.indices.dtype)
            offsets, indices = matrix.indptr.astype(dtype), matrix.indices.astype(dtype)
            indices = indices[: offsets[-1]] if offsets.size else indices
            rows = max(len(matrix.data), indices.size)
            if matrix.format == "csr":
                return cls(offsets, indices, num_src, num_edges=rows)
            by_column = cls(offsets, indices, num_dst)  # checks the arrays, unlike SciPy's conversions
            columns = np.repeat(np.arange(by_column.num_dst_nodes, dtype=dtype), np.diff(offsets))
            return cls.from_coo(columns, indices, num_src, num_dst, num_edges=rows)
        if matrix.format == "bsr":
            matrix = matrix.copy()
            matrix.prune()
        coo = matrix.tocoo(copy=False)
        dtype = np.promote_types(coo.row.dtype, coo.col.dtype)
        return cls.from_coo(coo.col.astype(dtype), coo.row.astype(dtype), num_src, num_dst)

    @classmethod
    def from_networkx(cls, graph: Any) -> "CSC":
        """Build a graph from a networkx graph, with nodes numbered in the order of ``graph.nodes``.

        Parameters
        ----------
        graph : networkx.Graph, DiGraph, MultiGraph or MultiDiGraph
            Edge u -> v of a directed graph is an in-edge of v. An undirected edge becomes two positions that share a
            row, the edge's index in ``list(graph.edges)``; a self-loop becomes one position.
        """
        if not (hasattr(graph, "is_directed") and hasattr(graph, "edges")):
            raise TypeError(f"CSC: graph is a {type(graph).__name__}; expected a networkx graph")
        number = {node: i for i, node in enumerate(graph.nodes)}
        ends = np.array([(number[u], number[v]) for u, v in graph.edges()], np.int64).reshape(-1, 2)
        rows = np.arange(len(ends), dtype=np.int64)
        if not graph.is_directed():
            is_not_loop = ends[:, 0] != ends[:, 1]
            rows = np.concatenate([rows, rows[is_not_loop]])
            ends = np.concatenate([ends, ends[is_not_loop, ::-1]])
        src, dst = np.ascontiguousarray(ends[:, 0]), np.ascontiguousarray(ends[:, 1])
        num_edges = int(rows.max()) + 1 if rows.size else 0
        return cls.from_coo(src, dst, len(number), len(number), rows, num_edges)
