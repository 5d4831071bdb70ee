"""Tests of EdgeGraph: edge orders, excluded edges and reverse edges compared with loops, and invalid geometry.

Sums over triplets are compared with golden vectors by `trigraph verify`.
"""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_calls import assert_raises

from trigraph.graphs.edge_graph import EdgeGraph

RULES = ["node", "edge", None]
DTYPES = [np.int32, np.int64]


# Expected values, computed by loops that follow the definitions.


def find_reverse_edges_by_loop(src, dst, shifts):
    edge = {(j, i, *s): e for e, (j, i, s) in enumerate(zip(src.tolist(), dst.tolist(), shifts.tolist(), strict=True))}
    return [edge.get((i, j, *(-c for c in s)), -1) for j, i, *s in edge]


def find_triplets_by_loop(src, dst, exclude, reverse):
    pairs = []
    into = [[f for f in range(len(src)) if dst[f] == j] for j in range(max([*src, *dst], default=-1) + 1)]
    for e in range(len(src)):
        for f in into[src[e]]:
            if exclude == "node" and src[f] == dst[e]:
                continue
            if exclude == "edge" and f == reverse[e]:
                continue
            pairs.append((e, f))
    return pairs


def check_edge_graph_by_loops(graph, src, dst, num_nodes, reverse):
    """Compare every array of a graph with loops; `reverse` is None if parallel edges make reverses ambiguous."""
    np.testing.assert_array_equal(graph.src, src)
    np.testing.assert_array_equal(graph.dst, dst)
    assert (graph.num_nodes, graph.num_edges) == (num_nodes, len(src))
    dst_order = np.argsort(dst, kind="stable")
    np.testing.assert_array_equal(graph.dst_edge_index, dst_order)
    np.testing.assert_array_equal(graph.src_offsets, np.searchsorted(src, np.arange(num_nodes + 1)))
    np.testing.assert_array_equal(graph.dst_offsets, np.searchsorted(dst[dst_order], np.arange(num_nodes + 1)))
    assert graph.max_in_degree == max(np.bincount(dst, minlength=1))
    assert graph.max_out_degree == max(np.bincount(src, minlength=1))
    ends = list(zip(src.tolist(), dst.tolist(), strict=True))
    assert graph.max_parallel_edges == max(map(ends.count, ends), default=0)
    back = [[f for f in graph.dst_edge_index.tolist() if ends[f] == (i, j)] for j, i in ends]
    spans = zip(graph.reverse_start.tolist(), graph.reverse_stop.tolist(), strict=True)
    assert [graph.dst_edge_index[a:b].tolist() for a, b in spans] == back
    if reverse is None:
        assert graph.reverse_edge is None
    else:
        np.testing.assert_array_equal(graph.reverse_edge, reverse)
    for rule in RULES:
        if rule == "edge" and reverse is None:
            continue
        check_triplets_by_loop(graph, rule, reverse)
    for array in list_graph_arrays(graph):
        assert array.dtype == src.dtype
        assert array.flags.c_contiguous
        assert not array.flags.writeable


def list_graph_arrays(graph):
    return [a for n in graph.__slots__ if isinstance(a := getattr(graph, n), np.ndarray)]


def check_triplets_by_loop(graph, rule, reverse):
    expected = find_triplets_by_loop(graph.src.tolist(), graph.dst.tolist(), rule, reverse)
    outer, inner = graph.triplets(rule)
    assert outer.dtype == inner.dtype == graph.src.dtype
    assert sorted(zip(outer.tolist(), inner.tolist(), strict=True)) == expected
    assert bool((outer[1:] >= outer[:-1]).all())
    assert graph.num_triplets(rule) == len(expected)
    start, stop = graph.excluded_in_edges(rule)
    out = [graph.dst_edge_index[a:b].tolist() for a, b in zip(start.tolist(), stop.tolist(), strict=True)]
    assert all(e in out[f] for e in range(graph.num_edges) for f in out[e]), "leaving out is mutual"
    # Excluded edges form one range of the source's in-edges, which a loop over in-edges can skip.
    assert bool((start >= graph.dst_offsets[graph.src]).all())
    assert bool((stop <= graph.dst_offsets[graph.src + 1]).all())


# Random graphs with cell shifts.


@st.composite
def draw_edges_with_shifts(draw):
    num_nodes = draw(st.integers(1, 4))
    node, cell = st.integers(0, num_nodes - 1), st.integers(-1, 1)
    rows = draw(st.lists(st.tuples(node, node, cell, cell, st.just(0)), max_size=14, unique=True))
    rows += [(i, j, -x, -y, -z) for j, i, x, y, z in rows[: draw(st.integers(0, len(rows)))]]
    rows = list(dict.fromkeys(r for r in rows if r[0] != r[1] or any(r[2:])))
    return num_nodes, np.array(rows, np.int64).reshape(-1, 5)


def compute_edge_vectors(src, dst, shifts, dtype=np.float64):
    positions = np.random.default_rng(4).normal(size=(4, 3))
    cell = np.array([[2.1, 0.3, 0.0], [0.0, 1.9, 0.4], [0.5, 0.0, 2.2]])
    v = positions[src] - positions[dst]
    return (v + sum(shifts[:, c : c + 1] * cell[c] for c in range(3))).astype(dtype)


@settings(deadline=None, max_examples=80)
@given(draw_edges_with_shifts(), st.sampled_from(DTYPES))
def test_random_edge_graphs_equal_loops(case, dtype):
    num_nodes, rows = case
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    src, dst, shifts = rows[:, 0].astype(dtype), rows[:, 1].astype(dtype), rows[:, 2:]
    reverse = find_reverse_edges_by_loop(src, dst, shifts)
    check_edge_graph_by_loops(EdgeGraph(src, dst, num_nodes, shifts), src, dst, num_nodes, reverse)
    check_edge_graph_by_loops(EdgeGraph(src, dst, num_nodes, shifts.astype(np.int32)), src, dst, num_nodes, reverse)
    for vec_dtype in (np.float32, np.float64):
        vec = compute_edge_vectors(src, dst, shifts, vec_dtype)
        check_edge_graph_by_loops(EdgeGraph(src, dst, num_nodes, vec=vec), src, dst, num_nodes, reverse)
    has_parallel_edges = len({(j, i) for j, i, *_ in rows.tolist()}) < len(rows)
    single = [
        next((f for f in range(len(src)) if f != e and (src[f], dst[f]) == (dst[e], src[e])), -1)
        for e in range(len(src))
    ]
    check_edge_graph_by_loops(
        EdgeGraph(src, dst, num_nodes), src, dst, num_nodes, None if has_parallel_edges else single
    )


@settings(deadline=None, max_examples=30)
@given(draw_edges_with_shifts(), st.randoms(use_true_random=False))
def test_from_unsorted_returns_graph_and_permutation(case, random):
    num_nodes, rows = case
    rows = rows[random.sample(range(len(rows)), len(rows))].reshape(-1, 5)
    src, dst, shifts = rows[:, 0], rows[:, 1], rows[:, 2:]  # columns are non-contiguous views
    order = np.argsort(src, kind="stable")
    expected = find_reverse_edges_by_loop(src[order], dst[order], shifts[order])
    for given_ in ({"shifts": shifts}, {"vec": np.asfortranarray(compute_edge_vectors(src, dst, shifts))}):
        graph, permutation = EdgeGraph.from_unsorted(src, dst, num_nodes, **given_)
        np.testing.assert_array_equal(permutation, order)
        check_edge_graph_by_loops(graph, src[order], dst[order], num_nodes, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_nodes", [0, 1, 5])
@pytest.mark.parametrize("geometry", [{}, {"shifts": np.zeros((0, 3), int)}, {"vec": np.zeros((0, 3))}])
def test_edge_graph_accepts_no_edges(dtype, num_nodes, geometry):
    none = np.zeros(0, dtype)
    check_edge_graph_by_loops(EdgeGraph(none, none, num_nodes, **geometry), none, none, num_nodes, [])
    graph, _ = EdgeGraph.from_unsorted(none, none, num_nodes, **geometry)
    check_edge_graph_by_loops(graph, none, none, num_nodes, [])


def test_shifts_decide_reverse_edges_before_vec():
    src, dst = np.array([0, 0, 1, 1]), np.array([1, 1, 0, 0])
    shifts = np.array([[0, 0, 0], [1, 0, 0], [0, 0, 0], [-1, 0, 0]])
    vec = np.array([[1.0, 0, 0], [2, 0, 0], [-2, 0, 0], [-1, 0, 0]])
    np.testing.assert_array_equal(EdgeGraph(src, dst, 2, shifts).reverse_edge, [2, 3, 0, 1])
    np.testing.assert_array_equal(EdgeGraph(src, dst, 2, vec=vec).reverse_edge, [3, 2, 1, 0])
    np.testing.assert_array_equal(EdgeGraph(src, dst, 2, shifts, vec).reverse_edge, [2, 3, 0, 1])


@pytest.mark.parametrize("shifts", [[[2**19, 1, -(2**19)]], [[0, -(2**19), 2**19]]])
def test_largest_shifts_identify_reverse_edges(shifts):
    both = np.array(shifts + [[-c for c in s] for s in shifts])
    np.testing.assert_array_equal(EdgeGraph(np.array([0, 0]), np.array([0, 0]), 1, both).reverse_edge, [1, 0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_reverse_edge_vectors_may_be_rounded(dtype):
    src, dst, eps = np.array([0, 1]), np.array([1, 0]), np.finfo(dtype).eps
    vec = np.array([[1, 2, 2], [-1, -2, -2]], dtype)

    def find_reverse_with_vec_error(error):
        moved = vec.astype(np.float64)
        moved[1, 0] -= 3 * error
        return EdgeGraph(src, dst, 2, vec=moved.astype(dtype)).reverse_edge.tolist()

    assert find_reverse_with_vec_error(60 * eps) == [1, 0]
    with pytest.raises(ValueError, match="differs from -vec"):
        find_reverse_with_vec_error(70 * eps)
    with pytest.raises(ValueError, match="differs from -vec"):
        find_reverse_with_vec_error(0.9 * np.sqrt(eps))
    assert find_reverse_with_vec_error(1.2 * np.sqrt(eps)) == [-1, -1]


@pytest.mark.parametrize("scale", [1e-300, 1e-5, 1e5, 1e300])
def test_reverse_edges_do_not_depend_on_length_unit(scale):
    src, dst = np.array([0, 0, 1, 1]), np.array([1, 1, 0, 0])
    vec = scale * np.array([[1.0, 2, 3], [1, 2, -3], [-1, -2, 3], [-1, -2, -3]])
    np.testing.assert_array_equal(EdgeGraph(src, dst, 2, vec=vec).reverse_edge, [3, 2, 1, 0])


def test_reverses_with_equal_projections_are_distinguished():
    """Reverse edges are found by projecting vectors; the vectors themselves distinguish equal projections."""
    direction = np.sqrt([0.2, 0.3, 0.5])
    across = np.cross(direction, [1.0, 0, 0])
    forward = np.array([3 * direction + c * across for c in np.linspace(-1, 1, 9)])
    vec = np.concatenate([forward, -forward[::-1]])
    src = np.repeat([0, 1], 9)
    np.testing.assert_array_equal(EdgeGraph(src, 1 - src, 2, vec=vec).reverse_edge, np.arange(17, -1, -1))


# Parallel edges and exclusion rules.


def make_small_graph(dtype=np.int64, **geometry):
    return EdgeGraph(np.array([0, 0, 1, 2], dtype), np.array([1, 2, 0, 0], dtype), 3, **geometry)


def make_parallel_edge_graph(**geometry):
    return EdgeGraph(np.array([0, 1, 1, 1]), np.array([1, 0, 2, 0]), 3, **geometry)


def test_parallel_edges_need_geometry_for_the_edge_rule():
    graph = make_parallel_edge_graph()
    text = (
        "agg_edge_to_edge_fwd: exclude is 'edge' and graph has parallel edges (1 and 3, both from node 1 to node 0); "
        "expected an EdgeGraph built with shifts or vec, which identify the reverse of an edge"
    )
    for call in (graph.require_reverse, lambda operator: graph.excluded_in_edges("edge", operator)):
        assert_raises(ValueError, text, call, "agg_edge_to_edge_fwd")
    for call in (graph.num_triplets, graph.triplets):
        with pytest.raises(ValueError, match=r"^EdgeGraph: exclude is 'edge' and graph has parallel edges"):
            call("edge")
    check_edge_graph_by_loops(graph, graph.src, graph.dst, 3, None)
    make_parallel_edge_graph(vec=np.arange(1.0, 13).reshape(4, 3)).require_reverse("agg_edge_to_edge_fwd")
    make_small_graph().require_reverse("agg_edge_to_edge_fwd")


def test_unknown_exclusion_rule_raises_value_error():
    text = "agg: exclude is 'nodes'; expected 'node', 'edge' or None"
    assert_raises(ValueError, text, make_small_graph().excluded_in_edges, "nodes", "agg")


# Invalid geometry of the edges 0 -> 1 and 1 -> 0, or of other edges.

TWO_EDGES = {"src": np.array([0, 1]), "dst": np.array([1, 0]), "num_nodes": 2}
TWICE = {"src": np.array([0, 0, 1]), "dst": np.array([1, 1, 0])}
V, S = np.array([[1.0, 0, 0], [-1.0, 0, 0]]), np.array([[1, 0, 0], [-1, 0, 0]])
NAN, NEARLY = V * [[np.nan, 1, 1], [1, 1, 1]], np.array([[1.0, 0, 0], [-1.0 + 1e-12, 0, 0]])
FINITE = "expected a finite vector of non-zero length"
BOTH_REVERSE = "edges 0 and 1 are both the reverse of edge 2; expected every edge listed once"
NON_NATIVE = "float64 with non-native byte order; expected native float32 or float64"
BAD_GEOMETRY = [
    ({"shifts": V}, TypeError, "shifts has dtype float64; expected native int32 or int64"),
    ({"shifts": S[:, :2]}, ValueError, "shifts has shape (2, 2); expected (num_edges, 3) = (2, 3)"),
    ({"shifts": S * 2**20}, ValueError, "shifts[0] is [1048576, 0, 0]; expected at most 524288 cells either way"),
    (
        {"shifts": S * 0, "dst": np.array([1, 1])},
        ValueError,
        "shifts[1] is zero and edge 1 goes from node 1 to itself; expected edges of non-zero length",
    ),
    (TWICE | {"shifts": np.zeros((3, 3), int)}, ValueError, BOTH_REVERSE),
    ({"vec": np.ma.array(V)}, TypeError, "vec is a MaskedArray; expected a numpy.ndarray of float32 or float64"),
    ({"vec": V.astype(">f8")}, TypeError, f"vec has dtype {NON_NATIVE}"),
    ({"vec": V[0]}, ValueError, "vec has shape (3,); expected (num_edges, 3) = (2, 3)"),
    ({"vec": V * [[1], [0]]}, ValueError, f"vec[1] is [-0.0, 0.0, 0.0] (edge from node 1 to node 0); {FINITE}"),
    ({"vec": NAN, "shifts": S}, ValueError, f"vec[0] is [nan, 0.0, 0.0] (edge from node 0 to node 1); {FINITE}"),
    (TWICE | {"vec": V[[0, 0, 1]]}, ValueError, BOTH_REVERSE),
    (
        {"vec": NEARLY},
        ValueError,
        "vec[1] differs from -vec[0] by 1.0e-12 of its length; "
        "expected at most 64 eps = 1.4e-14, or shifts, which identify the reverse",
    ),
]


@pytest.mark.parametrize(("changes", "error", "text"), BAD_GEOMETRY, ids=range(len(BAD_GEOMETRY)))
def test_bad_edge_geometry_is_refused(changes, error, text):
    assert_raises(error, f"EdgeGraph: {text}", EdgeGraph, **TWO_EDGES | changes)
    with pytest.raises(error):
        EdgeGraph.from_unsorted(**TWO_EDGES | changes)


def test_reverse_search_among_many_images_is_fast():
    """Reverse edges among 68,920 images of one atom are found within a second, since the search is not quadratic."""
    n = np.arange(-20, 21)
    shifts = np.stack(np.meshgrid(n, n, n, indexing="ij"), axis=-1).reshape(-1, 3)
    shifts = shifts[shifts.any(axis=1)]
    loop = np.zeros(len(shifts), np.int64)
    for given_ in ({"shifts": shifts}, {"vec": shifts * 1.7}):
        start = time.perf_counter()
        graph = EdgeGraph(loop, loop, 1, **given_)
        assert time.perf_counter() - start < 1.0
        np.testing.assert_array_equal(graph.reverse_edge, loop + np.arange(len(shifts))[::-1])
