"""Edges of an interatomic graph, their adjacent edges, and the edges that an angular sum leaves out.

For the edge e = (j -> i), the sum of `agg_edge_to_edge` runs over the in-edges e' = (k -> j) of its source, except for
edges that the exclusion rule leaves out. The graph finds both sets once, when it is built.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from trigraph.arrays import (
    INDEX_DTYPES,
    check_and_copy_index_array,
    check_range,
    convert_to_tensor_like,
    copy_read_only,
    describe_dtype,
    find_device,
    get_array_module,
    get_max_addressable_count,
    name_library,
    require_count,
    view_tensor_memory,
)
from trigraph.graphs.base import ImmutableGraph, on_argument_device
from trigraph.graphs.counting import call_library_function, counts_fit_c_int, sort_positions_by_key
from trigraph.graphs.neighbors import FLOATS, LARGEST_SHIFT, find_neighbor_pairs
from trigraph.graphs.reverse import find_reverse_positions
from trigraph.table.former_names import keep_former_names
from trigraph.table.graph_kinds import GRAPH_PARTS

# The pair number source * num_nodes + destination must fit into int64.
MAX_NODES = math.isqrt(2**63 - 1)


class ExcludedInEdges(NamedTuple):
    """Excluded in-edges of the source of each edge `e`: ``dst_edge_index[start[e]:stop[e]]``.

    Exclusion is symmetric: if `e` leaves out `f`, then `f` leaves out `e`.
    """

    start: Any
    stop: Any


class Triplets(NamedTuple):
    """Pairs of edges, sorted by `outer`; edge `inner` is a term in the sum of edge `outer`."""

    outer: Any
    inner: Any


class SortedEdges(NamedTuple):
    """Graph and the permutation that sorted its edges; ``x[permutation]`` sorts an edge array."""

    graph: "EdgeGraph"
    permutation: Any


class NeighborEdges(NamedTuple):
    """Graph of neighbours, sorted by source, destination and shift.

    For other positions of the same atoms, compute ``vec = positions[graph.src] - positions[graph.dst] + offset``. For
    another cell, compute ``offset = shifts @ cell``. `vec` and `offset` (num_edges, 3) have the dtype and unit of the
    positions. `shifts` (num_edges, 3) count whole cells: ASE's S with i = dst and j = src.
    """

    graph: "EdgeGraph"
    vec: Any
    offset: Any
    shifts: Any


@keep_former_names(sorted="from_unsorted", left_out="excluded_in_edges")
class EdgeGraph(ImmutableGraph):
    """Directed edges sorted by source, with their order by destination and the edges left out by exclusion rules.

    The vector of edge e is ``pos[src[e]] - pos[dst[e]] + offset[e]``; a periodic offset is a lattice vector.

    Parameters
    ----------
    src, dst : arrays of int32 or int64, shape (num_edges,)
        Source and destination of each edge; `src` must not decrease (see `from_unsorted`). Parallel edges are periodic
        images.
    num_nodes : int
    shifts : array of int32 or int64, shape (num_edges, 3), optional
        Cells crossed by each edge: ASE's S with i = dst and j = src. The reverse of (j, i, S) is (i, j, -S).
    vec : array of float32 or float64, shape (num_edges, 3), optional
        Vector of each edge; not stored. Without `shifts`, the reverse of edge e is the edge from dst[e] to src[e] with
        the opposite vector, within 64 eps of its length.

    Attributes
    ----------
    src, dst : arrays, shape (num_edges,)
    src_offsets, dst_offsets : arrays, shape (num_nodes + 1,)
        Edges out of j are ``src_offsets[j]:src_offsets[j+1]``.
    dst_edge_index : array, shape (num_edges,)
        Edges in a stable order by destination. The edges into j, sorted by source, are
        ``dst_edge_index[dst_offsets[j]:dst_offsets[j+1]]``.
    reverse_start, reverse_stop : arrays, shape (num_edges,)
        Edges from dst[e] to src[e], including periodic images: ``dst_edge_index[reverse_start[e]:reverse_stop[e]]``.
    reverse_edge : array, shape (num_edges,), or None
        Reverse of each edge, which has the opposite vector; -1 if there is none. The array is None if reverses are
        ambiguous, because there are parallel edges and neither `shifts` nor `vec` was given.
    num_nodes, num_edges : int
    max_in_degree, max_out_degree : int
    max_parallel_edges : int
        Largest number of edges that share source and destination.

    Raises
    ------
    TypeError, ValueError
        If an array has the wrong type, dtype or shape, a value is out of range, the edges are not sorted by source, a
        vector has zero length, or an edge has two reverses.

    Notes
    -----
    A graph is immutable, picklable and safe to share between threads. Device arrays remain writable; see `CSC`.

    Examples
    --------
    >>> import numpy as np
    >>> from trigraph import EdgeGraph
    >>> graph = EdgeGraph(np.array([0, 0, 1, 2]), np.array([1, 2, 0, 0]), 3)
    >>> graph.reverse_edge
    array([2, 3, 0, 1])
    >>> graph.triplets("node")
    Triplets(outer=array([0, 1]), inner=array([3, 2]))
    """

    __slots__ = GRAPH_PARTS["EdgeGraph"].attributes

    src: Any
    dst: Any
    src_offsets: Any
    dst_offsets: Any
    dst_edge_index: Any
    reverse_start: Any
    reverse_stop: Any
    reverse_edge: Any
    num_nodes: int
    num_edges: int
    max_in_degree: int
    max_out_degree: int
    max_parallel_edges: int
    _edge_start: Any
    _edge_stop: Any

    @on_argument_device
    def __init__(self, src: Any, dst: Any, num_nodes: int, shifts: Any = None, vec: Any = None) -> None:
        src, dst, num_nodes = _copy_checked_ends(src, dst, num_nodes)
        _check_sorted_by_source(src)
        shifts, vec = _view_checked_geometry(src, dst, shifts, vec)
        self._set_from_edges(src, dst, num_nodes, shifts, vec, None)

    def _set_from_edges(self, src: Any, dst: Any, num_nodes: int, shifts: Any, vec: Any, reverse_edge: Any) -> None:
        """Set every attribute; reverse edges follow from whichever of `shifts`, `vec`, `reverse_edge` is given."""
        xp, dtype = get_array_module(src), src.dtype
        # src is sorted, so the order by source is the order of the edges.
        src_offsets, _, out_degree, _ = sort_positions_by_key("EdgeGraph", "src", src, "num_nodes", num_nodes)
        dst_offsets, by_dst, in_degree, _ = sort_positions_by_key("EdgeGraph", "dst", dst, "num_nodes", num_nodes)
        has_no_geometry = shifts is None and vec is None
        needs_reverse = reverse_edge is None and (has_no_geometry or shifts is not None)
        start, stop, max_parallel, found = _find_opposite_edges(
            src, dst, num_nodes, dst_offsets, by_dst, shifts, needs_reverse
        )
        edge_start = edge_stop = None
        if found:
            edge_start, edge_stop, reverse_edge = found
        elif reverse_edge is not None or not has_no_geometry or max_parallel < 2:
            if reverse_edge is None:
                pairs = _compute_pair_keys(dst[by_dst], src[by_dst], num_nodes)
                position = find_reverse_positions(src, dst, by_dst, pairs, start, stop, shifts, vec)
            else:
                position_of_edge = xp.empty_like(by_dst)
                position_of_edge[by_dst] = xp.arange(by_dst.size, dtype=dtype)
                position = xp.where(reverse_edge >= 0, position_of_edge[reverse_edge], -1)
            has_reverse = position >= 0
            edge_start = copy_read_only(xp.where(has_reverse, position, start).astype(dtype))
            edge_stop = copy_read_only((edge_start + has_reverse).astype(dtype))
            reverse_edge = copy_read_only(xp.where(has_reverse, by_dst[position], -1).astype(dtype))
        self._set_attributes_once(
            src=src,
            dst=dst,
            src_offsets=copy_read_only(src_offsets),  # a copy, so that the order's memory is freed
            dst_offsets=dst_offsets,
            dst_edge_index=by_dst,
            reverse_start=start,
            reverse_stop=stop,
            reverse_edge=reverse_edge,
            _edge_start=edge_start,
            _edge_stop=edge_stop,
            num_nodes=num_nodes,
            num_edges=int(src.size),
            max_in_degree=in_degree,
            max_out_degree=out_degree,
            max_parallel_edges=max_parallel,
            **self._make_common_attributes(src),
        )

    @classmethod
    @on_argument_device
    def from_unsorted(cls, src: Any, dst: Any, num_nodes: int, shifts: Any = None, vec: Any = None) -> SortedEdges:
        """Build a graph from edges in any order.

        Parameters
        ----------
        src, dst, num_nodes, shifts, vec
            As for `EdgeGraph`, with edges in any order.

        Returns
        -------
        SortedEdges
            The graph and the permutation of the edges; ``x[permutation]`` sorts an edge array.

        Raises
        ------
        TypeError, ValueError
            As for `EdgeGraph`. If an edge has two reverses, the message gives their numbers in the sorted order.
        """
        like = src
        src, dst, num_nodes = _copy_checked_ends(src, dst, num_nodes)
        shifts, vec = _view_checked_geometry(src, dst, shifts, vec)
        permutation = sort_positions_by_key(
            "EdgeGraph", "src", src, "num_nodes", num_nodes
        ).positions.copy()  # a copy for the caller
        shifts, vec = (None if x is None else x[permutation] for x in (shifts, vec))
        graph = cls(src[permutation], dst[permutation], num_nodes, shifts, vec)
        return SortedEdges(graph, convert_to_tensor_like(permutation, like))

    @classmethod
    def from_positions(cls, positions: Any, cutoff: float, cell: Any = None, pbc: Any = False) -> NeighborEdges:
        """Build a graph from atoms, with an edge for each pair closer than `cutoff`, including periodic images.

        Parameters
        ----------
        positions : numpy.ndarray or CPU tensor of float32 or float64, shape (num_nodes, 3)
        cutoff : float
            Cutoff in the unit of the positions.
        cell : numpy.ndarray or CPU tensor of float32 or float64, shape (3, 3), optional
            Cell vectors in rows. Only the vectors of periodic directions are used.
        pbc : bool or three bools
            Whether each direction is periodic.

        Returns
        -------
        NeighborEdges
            The graph, with int64 indices, and `vec`, `offset` and `shifts` of its edges. If `positions` is a tensor,
            these three are tensors without a gradient.

        Raises
        ------
        ImportError
            If neither matscipy nor ase is installed.
        TypeError, ValueError
            If an argument has the wrong type, dtype or shape, a periodic direction has no cell vector, two atoms
            coincide, or an atom is more than 2^18 cells (float64) or 2896 cells (float32) from the origin, where the
            position has too few digits.
        """
        like, positions = positions, view_tensor_memory(positions, "EdgeGraph: positions")
        cell, pbc = view_tensor_memory(cell, "EdgeGraph: cell"), view_tensor_memory(pbc, "EdgeGraph: pbc")
        src, dst, shifts, offset = find_neighbor_pairs(positions, cutoff, cell, pbc)
        vec = positions[src] - positions[dst] + offset
        graph = cls(src, dst, len(positions), shifts, vec)
        return NeighborEdges(graph, *(convert_to_tensor_like(a, like) for a in (vec, offset, shifts)))

    @classmethod
    def from_ase(cls, atoms: Any, cutoff: float) -> NeighborEdges:
        """Build a graph from ``ase.Atoms``, with their cell and periodic directions.

        Parameters
        ----------
        atoms : ase.Atoms
        cutoff : float
            Cutoff in the unit of the positions.

        Returns
        -------
        NeighborEdges
            As for `from_positions`.
        """
        if not all(hasattr(atoms, name) for name in ("positions", "cell", "pbc")):
            raise TypeError(f"EdgeGraph: atoms is a {type(atoms).__name__}; expected an ase.Atoms")
        return cls.from_positions(atoms.positions, cutoff, np.asarray(atoms.cell), atoms.pbc)

    def excluded_in_edges(self, exclude: str | None, operator: str = "EdgeGraph") -> ExcludedInEdges:
        """Return, for each edge, the in-edges of its source that its sum leaves out.

        Parameters
        ----------
        exclude : {"node", "edge", None}
            "node": in-edges that come from the edge's own destination. "edge": only the edge's `reverse_edge`.
        operator : str
            Name for error messages.

        Returns
        -------
        ExcludedInEdges
            Existing arrays of the graph; nothing is computed.

        Raises
        ------
        TypeError, ValueError
            If the rule does not exist, or if the rule is "edge" and the reverse of an edge is ambiguous.
        """
        if exclude is not None and not isinstance(exclude, str):
            raise TypeError(f"{operator}: exclude is a {type(exclude).__name__}; expected 'node', 'edge' or None")
        if exclude is None:
            return ExcludedInEdges(self.reverse_start, self.reverse_start)
        if exclude == "node":
            return ExcludedInEdges(self.reverse_start, self.reverse_stop)
        if exclude == "edge":
            self.require_reverse(operator)
            return ExcludedInEdges(self._edge_start, self._edge_stop)
        raise ValueError(f"{operator}: exclude is {exclude!r}; expected 'node', 'edge' or None")

    @on_argument_device
    def require_reverse(self, operator: str) -> None:
        """Raise ValueError if the reverse of an edge is ambiguous."""
        if self.reverse_edge is not None:
            return
        if self.kind == "jax":  # the indices of edges are unknown while JAX traces
            raise ValueError(
                f"{operator}: exclude is 'edge' and graph has parallel edges; expected an EdgeGraph built with shifts "
                "or vec, which identify the reverse of an edge"
            )
        src, dst = self.src[self.dst_edge_index], self.dst[self.dst_edge_index]
        at = int(get_array_module(src).argmax((src[1:] == src[:-1]) & (dst[1:] == dst[:-1])))
        first, second = int(self.dst_edge_index[at]), int(self.dst_edge_index[at + 1])
        raise ValueError(
            f"{operator}: exclude is 'edge' and graph has parallel edges ({first} and {second}, both from node "
            f"{int(src[at])} to node {int(dst[at])}); expected an EdgeGraph built with shifts or vec, which identify "
            "the reverse of an edge"
        )

    @on_argument_device
    def num_triplets(self, exclude: str | None = "node") -> int:
        """Return the number of terms in the sums of all edges."""
        start, stop = self.excluded_in_edges(exclude)
        in_degree = self.dst_offsets[1:] - self.dst_offsets[:-1]
        return int(in_degree[self.src].sum()) - int((stop - start).sum())

    @on_argument_device
    def triplets(self, exclude: str | None = "node") -> Triplets:
        """Return the pairs of edges that are terms of the sums.

        Parameters
        ----------
        exclude : {"node", "edge", None}

        Returns
        -------
        Triplets
            Arrays of the graph's dtype, shape (num_triplets,).
        """
        xp, dtype = get_array_module(self.src), self.src.dtype
        start, stop = self.excluded_in_edges(exclude)
        first = self.dst_offsets[self.src]
        terms = self.dst_offsets[self.src + 1] - first - (stop - start)
        ends = xp.cumsum(terms, dtype=np.int64)
        triplet = xp.arange(int(ends[-1]) if self.num_edges else 0)
        # Use searchsorted, because cupy.repeat needs its counts on the host.
        outer = xp.searchsorted(ends, triplet, side="right")
        position = first[outer] + (triplet - (ends - terms)[outer])
        position += xp.where(position >= start[outer], (stop - start)[outer], 0)
        return Triplets(outer.astype(dtype), self.dst_edge_index[position])

    def prepare(self) -> "EdgeGraph":
        """Return the graph itself, which already has every order. Only a `CSC` builds orders in `prepare`."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (build_with_reverse, (self.src, self.dst, self.num_nodes, self.reverse_edge))

    def __repr__(self) -> str:
        return f"EdgeGraph(num_nodes={self.num_nodes}, num_edges={self.num_edges}, {self.src.dtype}, {self.device})"


@on_argument_device
def build_with_reverse(src: Any, dst: Any, num_nodes: int, reverse_edge: Any) -> EdgeGraph:
    """Build a graph with known reverse edges, for unpickling or for a subgraph, and check everything."""
    src, dst, num_nodes = _copy_checked_ends(src, dst, num_nodes)
    _check_sorted_by_source(src)
    if reverse_edge is not None:
        reverse_edge = _copy_checked_reverse(src, dst, reverse_edge)
    graph = EdgeGraph.__new__(EdgeGraph)
    graph._set_from_edges(src, dst, num_nodes, None, None, reverse_edge)
    return graph


def _copy_checked_reverse(src: Any, dst: Any, reverse_edge: Any) -> Any:
    """Return a copy of `reverse_edge`; raise unless each reverse leads back and has the edge as its own reverse."""
    xp = get_array_module(src)
    reverse_edge = check_and_copy_index_array("EdgeGraph", "reverse_edge", reverse_edge, src, "src")
    if reverse_edge.size != src.size:
        raise ValueError(f"EdgeGraph: reverse_edge has shape {reverse_edge.shape}; expected (num_edges,) = {src.shape}")
    edges, is_paired = xp.arange(src.size), reverse_edge != -1
    back = xp.where(is_paired, reverse_edge, 0)
    check_range("EdgeGraph", "reverse_edge", back, src.size, "num_edges")
    wrong = is_paired & ((src[back] != dst) | (dst[back] != src) | (reverse_edge[back] != edges) | (back == edges))
    if bool(wrong.any()):
        at = int(xp.argmax(wrong))
        raise ValueError(f"EdgeGraph: reverse_edge[{at}] is {int(back[at])}, which is not the reverse of edge {at}")
    return reverse_edge


def _copy_checked_ends(src: Any, dst: Any, num_nodes: Any) -> tuple[Any, Any, int]:
    src = check_and_copy_index_array("EdgeGraph", "src", src)
    dst = check_and_copy_index_array("EdgeGraph", "dst", dst, src, "src")
    if src.size != dst.size:
        raise ValueError(f"EdgeGraph: dst has shape {dst.shape}; expected (num_edges,) = {src.shape}")
    number = require_count(
        "EdgeGraph", "num_nodes", num_nodes, maximum=min(MAX_NODES, get_max_addressable_count(src.dtype))
    )
    check_range("EdgeGraph", "src", src, number, "num_nodes")
    check_range("EdgeGraph", "dst", dst, number, "num_nodes")
    return src, dst, number


def _check_sorted_by_source(src: Any) -> None:
    decreases = src[1:] < src[:-1]
    if bool(decreases.any()):
        at = int(get_array_module(src).argmax(decreases))
        raise ValueError(
            f"EdgeGraph: src[{at + 1}] is {int(src[at + 1])}, below src[{at}] = {int(src[at])}; "
            "expected edges sorted by source (EdgeGraph.from_unsorted sorts them)"
        )


def _view_checked_vectors(name: str, value: Any, src: Any, dtypes: tuple[Any, ...]) -> Any:
    """Check an array of three numbers per edge, shape (num_edges, 3)."""
    library, expected = name_library(src), " or ".join(d.name for d in dtypes)
    value = view_tensor_memory(value, f"EdgeGraph: {name}")
    if name_library(value) != library:
        type_name = name_library(value)
        type_name = type(value).__name__ if type_name is None else f"{type_name}.ndarray"
        raise TypeError(f"EdgeGraph: {name} is a {type_name}; expected a {library}.ndarray of {expected}")
    if value.dtype not in dtypes or not value.dtype.isnative:
        raise TypeError(f"EdgeGraph: {name} has dtype {describe_dtype(value.dtype)}; expected native {expected}")
    if value.shape != (src.size, 3):
        raise ValueError(f"EdgeGraph: {name} has shape {value.shape}; expected (num_edges, 3) = ({src.size}, 3)")
    if find_device(value) != find_device(src):
        raise ValueError(f"EdgeGraph: {name} is on {find_device(value)}; expected {find_device(src)}, where src is")
    return value


def _view_checked_geometry(src: Any, dst: Any, shifts: Any, vec: Any) -> tuple[Any, Any]:
    """Check shapes and types, and that no edge has zero length according to `shifts` and `vec`."""
    xp = get_array_module(src)
    if shifts is not None:
        shifts = _view_checked_vectors("shifts", shifts, src, INDEX_DTYPES)
        if shifts.size and not (shifts.min() >= -LARGEST_SHIFT and shifts.max() <= LARGEST_SHIFT):
            at = int(xp.argmax(((shifts < -LARGEST_SHIFT) | (shifts > LARGEST_SHIFT)).any(axis=1)))
            raise ValueError(
                f"EdgeGraph: shifts[{at}] is {shifts[at].tolist()}; expected at most {LARGEST_SHIFT} cells either way"
            )
        has_zero_length = (src == dst) & _find_zero_rows(shifts)
        if bool(has_zero_length.any()):
            at = int(xp.argmax(has_zero_length))
            raise ValueError(
                f"EdgeGraph: shifts[{at}] is zero and edge {at} goes from node {int(src[at])} to itself; "
                "expected edges of non-zero length"
            )
    if vec is not None:
        vec = _view_checked_vectors("vec", vec, src, FLOATS)
        bad = _find_zero_rows(vec)
        if not xp.isfinite(vec).all() or bool(bad.any()):
            at = int(xp.argmax(bad | ~xp.isfinite(vec).all(axis=1)))
            raise ValueError(
                f"EdgeGraph: vec[{at}] is {vec[at].tolist()} (edge from node {int(src[at])} to node {int(dst[at])}); "
                "expected a finite vector of non-zero length"
            )
    return shifts, vec


def _find_zero_rows(rows: Any) -> Any:
    """Return whether each row of three numbers is zero; NumPy is faster column by column."""
    return (rows[:, 0] == 0) & (rows[:, 1] == 0) & (rows[:, 2] == 0)


def _find_opposite_edges(
    src: Any, dst: Any, num_nodes: int, dst_offsets: Any, by_dst: Any, shifts: Any, needs_reverse: bool
) -> tuple[Any, Any, int, list[Any]]:
    """Return, for each edge, the range of edges in the opposite direction, and the largest number of parallel edges.

    With `needs_reverse`, the last result is `edge_start`, `edge_stop` and `reverse_edge`, or empty if an edge has
    several reverses or the search in libtrigraph would take too long.
    """
    n = int(src.size)
    if name_library(src) == "numpy" and counts_fit_c_int(n, num_nodes):
        shifts = None if shifts is None else np.ascontiguousarray(shifts, src.dtype)
        given = src, dst, shifts, dst_offsets, by_dst
        lengths = [n, n] + [n if needs_reverse else 0] * 3
        status, (max_parallel, *_), (start, stop, *found) = call_library_function(
            "edges_back", (num_nodes, n, needs_reverse), given, lengths
        )
        return start, stop, max_parallel, found if status == 0 else []
    # In-edges of a node are sorted by source, so that parallel edges are contiguous.
    xp, dtype = get_array_module(src), src.dtype
    pairs, opposite_pairs = (
        _compute_pair_keys(dst[by_dst], src[by_dst], num_nodes),
        _compute_pair_keys(src, dst, num_nodes),
    )
    start, stop = (
        xp.searchsorted(pairs, opposite_pairs, side="left"),
        xp.searchsorted(pairs, opposite_pairs, side="right"),
    )
    num_parallel = xp.searchsorted(pairs, pairs, side="right") - xp.searchsorted(pairs, pairs, side="left")
    return (
        copy_read_only(start.astype(dtype)),
        copy_read_only(stop.astype(dtype)),
        int(num_parallel.max()) if n else 0,
        [],
    )


def _compute_pair_keys(major: Any, minor: Any, num_nodes: int) -> Any:
    return major.astype(np.int64) * num_nodes + minor
