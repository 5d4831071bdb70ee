"""Hypothesis strategies for graphs with high-degree nodes, isolated nodes, multi-edges, shared rows, or no nodes.

The strategies require hypothesis (extra ``testing``). Graphs shrink to few nodes and edges.

>>> from hypothesis import given
>>> from trigraph.testing.strategies import csc
>>> @given(csc())
... def test_something(graph):
...     assert graph.num_positions >= 0
"""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from trigraph.graphs import CSC, EdgeGraph, Segments

Draw = st.DrawFn
INDEX_DTYPES = (np.int32, np.int64)


def _draw_indices(draw: Draw, count: int, bound: int, index: Any) -> np.ndarray:
    """Draw `count` numbers below `bound`, which are sometimes mostly equal; no numbers if `bound` is 0."""
    if not bound:
        return np.zeros(0, index)
    number_strategy = st.integers(0, bound - 1)
    if draw(st.booleans()):  # a repeated number makes a node of high degree
        number_strategy = st.just(draw(number_strategy)) | number_strategy
    return np.array(draw(st.lists(number_strategy, min_size=count, max_size=count)), index)


def index_dtypes() -> st.SearchStrategy[Any]:
    """Return a strategy for the dtypes of indices, int32 and int64."""
    return st.sampled_from(INDEX_DTYPES)


@st.composite
def csc(draw: Draw, max_nodes: int = 6, max_edges: int = 18, index: Any = None) -> CSC:
    """Return a strategy for bipartite graphs stored by destination.

    Parameters
    ----------
    max_nodes, max_edges : int
        Largest numbers of sources, destinations and rows of edge arrays, and largest number of positions.
    index : dtype, optional
        Dtype of the indices (default: int32 or int64).

    Returns
    -------
    strategy of trigraph.CSC
        Graphs with parallel edges, high-degree nodes, nodes without edges, positions that share a row of the edge
        arrays, or unused rows, and graphs without edges or nodes.
    """
    index = index or draw(index_dtypes())
    n_src, n_dst, rows = (draw(st.integers(0, max_nodes)) for _ in range(3))
    count = draw(st.integers(0, max_edges)) if min(n_src, n_dst, rows) else 0
    src, dst, ids = (_draw_indices(draw, count, bound, index) for bound in (n_src, n_dst, rows))
    return CSC.from_coo(src, dst, n_src, n_dst, ids, rows)


@st.composite
def edge_graph(draw: Draw, max_nodes: int = 6, max_edges: int = 18, index: Any = None) -> EdgeGraph:
    """Return a strategy for edges between atoms.

    Parameters
    ----------
    max_nodes, max_edges : int
    index : dtype, optional
        Dtype of the indices (default: int32 or int64).

    Returns
    -------
    strategy of trigraph.EdgeGraph
        Graphs with periodic images that differ in their shifts, edges from a node to its own image, high-degree nodes,
        atoms without edges, or edges with and without their reverse, and graphs without edges or nodes.
    """
    index, nodes = index or draw(index_dtypes()), draw(st.integers(0, max_nodes))
    count = draw(st.integers(0, max_edges // 2)) if nodes else 0
    src, dst = (_draw_indices(draw, count, nodes, index) for _ in range(2))
    # All pairs have different shifts.
    forward_edges = np.column_stack(
        [src, dst, np.arange(1, count + 1), *(_draw_indices(draw, count, 3, index) - 1 for _ in range(2))]
    )
    reverse = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)), bool)
    backward_edges = np.column_stack([dst, src, -forward_edges[:, 2:]])[reverse]
    all_edges = np.concatenate([forward_edges, backward_edges])
    all_edges = all_edges[np.argsort(all_edges[:, 0], kind="stable")].astype(index)
    return EdgeGraph(all_edges[:, 0].copy(), all_edges[:, 1].copy(), nodes, all_edges[:, 2:].copy())


@st.composite
def segments(
    draw: Draw, max_segments: int = 6, max_members: int = 18, index: Any = None, num_members: int | None = None
) -> Segments:
    """Return a strategy for members of segments, such as the triplets of edges.

    Parameters
    ----------
    max_segments, max_members : int
    index : dtype, optional
        Dtype of the indices (default: int32 or int64).
    num_members : int, optional
        Number of members (default: random); if positive, there is at least one segment.

    Returns
    -------
    strategy of trigraph.Segments
        Segments with members in any order; some have most of the members, and some are empty.
    """
    index = index or draw(index_dtypes())
    bound = draw(st.integers(1 if num_members else 0, max_segments))
    if num_members is None:
        num_members = draw(st.integers(0, max_members)) if bound else 0
    return Segments(_draw_indices(draw, num_members, bound, index), bound)


@st.composite
def graph_arguments(draw: Draw, kind: str | None, index: Any) -> dict[str, Any]:
    """Return a strategy for consistent graph arguments of an operator, by name.

    `kind` is a key of `trigraph.table.GRAPHS`, or None for operators without a graph.
    """
    if kind is None:
        return {}
    if kind in ("csc", "edges"):
        return {"graph": draw((csc if kind == "csc" else edge_graph)(index=index))}
    triplets = draw(segments(index=index))
    graphs = {"triplets": triplets}
    if kind == "bilinear":
        graphs["atoms"] = draw(segments(index=index, num_members=triplets.num_segments))
        graphs["idx_in"] = draw(segments(index=index, num_members=triplets.num_members))
    return graphs
