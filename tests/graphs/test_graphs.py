"""Tests of CSC: sizes, constructors, renumbered nodes, and the order by source compared with brute force."""

import re
import sys

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from test_graph_objects import INDEX, csc_arguments, draw_edges_and_csc, int_array

import trigraph
from trigraph import CSC


def test_csc_infers_sizes_from_arrays():
    assert CSC(**csc_arguments()).max_in_degree == 2
    assert CSC(int_array(0, 0, 2), int_array(0, 1)).edge_ids.tolist() == [0, 1]
    assert CSC(int_array(0, 0, 2), int_array(0, 1), num_edges=5).num_edges == 5
    assert CSC(int_array(0, 0, 2), int_array(0, 1), edge_ids=int_array(3, 0)).num_edges == 4


# The order by source


def find_offsets_and_order_by_loop(keys, num_keys):
    groups = [[p for p, key in enumerate(keys) if key == k] for k in range(num_keys)]
    offsets = np.cumsum([0, *(len(g) for g in groups)])
    return offsets.tolist(), [p for group in groups for p in group]


@settings(deadline=None, max_examples=60, database=None)
@given(data=st.data(), index=st.sampled_from(INDEX))
def test_csc_and_reverse_orders_equal_loops(data, index):
    n_src, n_dst, n_rows = (data.draw(st.integers(0, 6)) for _ in range(3))
    n = data.draw(st.integers(0, 30)) if min(n_src, n_dst, n_rows) else 0
    ends = [np.array(data.draw(st.lists(st.integers(0, max(size - 1, 0)), min_size=n, max_size=n)), index)
            for size in (n_src, n_dst, n_rows)]  # fmt: skip
    src, dst, rows = ends
    graph = CSC.from_coo(src, dst, n_src, n_dst, rows, n_rows)
    offsets, order = find_offsets_and_order_by_loop(dst, n_dst)
    assert graph.offsets.tolist() == offsets
    assert graph.indices.tolist() == src[order].tolist()
    assert graph.edge_ids.tolist() == rows[order].tolist()
    assert graph.max_in_degree == max(np.diff(offsets), default=0)
    reverse = graph.prepare()
    assert reverse.destinations.tolist() == sorted(dst.tolist())
    assert (reverse.src_offsets.tolist(), reverse.src_positions.tolist()) == find_offsets_and_order_by_loop(
        graph.indices, n_src
    )
    assert (reverse.row_offsets.tolist(), reverse.row_positions.tolist()) == find_offsets_and_order_by_loop(
        graph.edge_ids, n_rows
    )
    assert {array.dtype for array in reverse} == {np.dtype(index)}


# Constructors


def test_from_coo_infers_or_accepts_sizes():
    src, dst = int_array(0, 4), int_array(2, 1)
    for counts, sizes in [((), (5, 5)), ((6,), (6, 6)), ((None, 7), (7, 7)), ((5, 3), (5, 3)), ((8, 9), (8, 9))]:
        graph = CSC.from_coo(src, dst, *counts)
        assert (graph.num_src_nodes, graph.num_dst_nodes) == sizes
    assert CSC.from_coo(src, dst, num_edges=9).num_edges == 9
    assert CSC.from_coo(src, dst, edge_ids=int_array(3, 1)).num_edges == 4


def test_from_edge_index_equals_from_coo():
    edge_index = np.array([[0, 1, 3, 3], [2, 2, 0, 2]])
    graph = CSC.from_edge_index(edge_index)
    expected = CSC.from_coo(edge_index[0], edge_index[1])
    assert repr(graph) == repr(expected)
    for name in ("offsets", "indices", "edge_ids"):
        assert np.array_equal(getattr(graph, name), getattr(expected, name))
    assert graph.offsets.tolist() == [0, 1, 1, 4, 4]
    assert graph.indices.tolist() == [3, 0, 1, 3]
    assert graph.edge_ids.tolist() == [2, 0, 1, 3]  # edge k is column k of edge_index
    assert CSC.from_edge_index(edge_index, 6).num_dst_nodes == 6
    assert CSC.from_edge_index(np.zeros((2, 0), np.int32)).num_positions == 0


def make_coo_matrix(kind):
    """Return a COO matrix with entries in random order, explicit zeros and duplicates."""
    rng = np.random.default_rng(0)
    values = np.where(rng.random(40) < 0.2, 0, rng.standard_normal(40))
    return kind((values, (rng.integers(0, 6, 40), rng.integers(0, 9, 40))), shape=(6, 9))


@pytest.mark.parametrize("matrix_format", ["coo", "csr", "csc", "bsr", "dia", "dok", "lil"])
@pytest.mark.parametrize("kind", [sparse.coo_array, sparse.coo_matrix])
def test_from_scipy_keeps_the_order_of_data(matrix_format, kind):
    """With `data` as weights, the weighted sum is the matrix product, since edge_ids follow the order of `data`."""
    matrix = make_coo_matrix(kind)
    if matrix_format in ("csr", "csc"):  # shuffle within rows by hand, since SciPy's conversion would merge duplicates
        rows, columns = matrix.coords if matrix_format == "csr" else matrix.coords[::-1]
        order = np.argsort(rows, kind="stable")
        offsets = np.searchsorted(rows[order], np.arange(matrix.shape[matrix_format == "csc"] + 1))
        make = type(matrix.asformat(matrix_format))
        matrix = make((matrix.data[order], columns[order], offsets), shape=matrix.shape)
    elif matrix_format == "bsr":
        matrix = matrix.tobsr((3, 3))
    else:
        matrix = matrix.asformat(matrix_format)
    data = matrix.data if matrix_format in ("coo", "csr", "csc") else matrix.tocoo().data
    graph = CSC.from_scipy(matrix)
    assert (graph.num_dst_nodes, graph.num_src_nodes, graph.num_edges) == (*matrix.shape, len(data))
    if matrix_format in ("coo", "csr", "csc"):
        assert len(data) == 40
        assert matrix_format == "csr" or not np.array_equal(data, matrix.tocsr().data)  # `data` is not in CSR order
    x = np.random.default_rng(1).standard_normal((9, 2))
    np.testing.assert_allclose(trigraph.agg_weighted_n2n_fwd(x, data, graph)[0], matrix @ x, rtol=1e-14, atol=1e-14)
    empty = CSC.from_scipy(type(matrix)((0, 3)))
    assert (empty.num_dst_nodes, empty.num_src_nodes, empty.num_edges) == (0, 3, 0)


@pytest.mark.parametrize("matrix_format", ["csr", "csc"])
def test_from_scipy_refuses_corrupted_indptr(matrix_format):
    matrix = make_coo_matrix(sparse.coo_array).asformat(matrix_format)
    for at, value, text in ((1, 10**6, "offsets[2] is"), (-1, 10**6, "offsets run from 0 to 1000000")):
        changed = matrix.copy()
        changed.indptr[at] = value
        with pytest.raises(ValueError, match=rf"^CSC: {re.escape(text)}"):
            CSC.from_scipy(changed)


@pytest.mark.parametrize("matrix_format", ["csr", "csc", "bsr"])
@pytest.mark.parametrize("surplus", [np.array([2, 0, 1]), np.array([10**6, -1, 7])])
def test_from_scipy_ignores_surplus_entries(matrix_format, surplus):
    """As in SciPy's products, `indices` and `data` may be longer than the last entry of `indptr`."""
    matrix = make_coo_matrix(sparse.coo_array).asformat(matrix_format)
    x = np.random.default_rng(1).standard_normal((9, 2))
    expected, data = matrix @ x, matrix.tocoo().data.copy()
    matrix.indices = np.concatenate([matrix.indices, surplus.astype(matrix.indices.dtype)])
    matrix.data = np.concatenate([matrix.data, matrix.data[:3]])
    np.testing.assert_array_equal(matrix @ x, expected)
    graph, weights = CSC.from_scipy(matrix), data if matrix_format == "bsr" else matrix.data
    assert (graph.num_positions, graph.num_edges) == (len(data), len(weights))
    np.testing.assert_allclose(trigraph.agg_weighted_n2n_fwd(x, weights, graph)[0], expected, rtol=1e-14, atol=1e-14)


def list_ends_and_networkx_edges(graph, rows):
    """Return the sorted triples (source, destination, networkx edge), one per position."""
    destinations = graph.prepare().destinations
    return sorted(
        (int(j), int(i), rows[r]) for j, i, r in zip(graph.indices, destinations, graph.edge_ids, strict=True)
    )


@pytest.mark.parametrize("kind", [nx.DiGraph, nx.Graph, nx.MultiGraph])
def test_from_networkx_shares_rows_of_undirected_edges(kind):
    """Both directions of an undirected edge share one row of edge arrays; a self-loop has only one position."""
    g = kind([("a", "b"), ("c", "b"), ("b", "b"), ("c", "a"), ("a", "c")])
    graph = CSC.from_networkx(g)
    number = {node: i for i, node in enumerate(g.nodes)}
    edges = list(g.edges)
    ends = [({(e[0], e[1])} if g.is_directed() else {(e[0], e[1]), (e[1], e[0])}) for e in edges]
    expected = [(number[u], number[v], e) for e, pairs in zip(edges, ends, strict=True) for u, v in pairs]
    assert graph.num_edges == len(edges)
    assert graph.num_positions == len(expected) == (1 if g.is_directed() else 2) * len(edges) - (not g.is_directed())
    assert list_ends_and_networkx_edges(graph, edges) == sorted(expected)


def test_from_networkx_keeps_parallel_edges_and_isolated_nodes():
    g = nx.MultiDiGraph([(0, 1), (0, 1), (2, 1)])
    g.add_node(7)
    graph = CSC.from_networkx(g)
    assert (graph.num_positions, graph.num_edges, graph.num_dst_nodes) == (3, 3, 4)
    assert list_ends_and_networkx_edges(graph, list(g.edges)) == [
        (0, 1, (0, 1, 0)),
        (0, 1, (0, 1, 1)),
        (2, 1, (2, 1, 0)),
    ]
    for empty in (nx.Graph(), nx.DiGraph(), nx.empty_graph(3)):
        graph = CSC.from_networkx(empty)
        assert (graph.num_positions, graph.num_edges, graph.num_dst_nodes) == (0, 0, len(empty))


# Renumbered nodes


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("backend", ["fortran", "gpu-host"])
def test_renumbering_permutes_results(dtype, backend):
    src, dst, rows, _ = draw_edges_and_csc(0, 59, 59, 300, 200, dtype)
    graph = CSC.from_coo(src, dst, 60, 60, rows, 200)  # the last node is isolated
    other, order = graph.renumber_nodes()
    assert order.dtype == other.offsets.dtype == dtype
    assert sorted(order) == list(range(60))
    rng = np.random.default_rng(1)
    # Sums of products of small integers are exact in any order.
    x, g, weights = (rng.integers(-3, 4, shape).astype(float) for shape in ((60, 8), (60, 8), 200))

    def aggregate_with_gradients(graph, x, g):
        out = trigraph.agg_weighted_n2n_fwd(x, weights, graph, backend=backend).output_embedding
        return out, *trigraph.agg_weighted_n2n_bwd(g, x, weights, graph, backend=backend)

    expected, got = aggregate_with_gradients(graph, x, g), aggregate_with_gradients(other, x[order], g[order])
    for right, reordered in zip(expected[:2], got[:2], strict=True):  # these results have one row per node
        np.testing.assert_array_equal(reordered, right[order])
    np.testing.assert_array_equal(got[2], expected[2])  # this result has one row per edge


def test_renumbering_makes_path_neighbors_adjacent():
    path = np.random.default_rng(0).permutation(500)
    graph, _ = CSC.from_coo(path[:-1], path[1:], 500, 500).renumber_nodes()
    assert np.abs(graph.indices - graph.prepare().destinations).max() == 1


@pytest.mark.parametrize("nodes", [0, 3])
def test_renumbering_accepts_graphs_without_edges(nodes):
    graph, order = CSC(np.zeros(nodes + 1, int), np.empty(0, int), num_edges=2).renumber_nodes()
    assert (graph.num_dst_nodes, graph.num_src_nodes, graph.num_edges) == (nodes, nodes, 2)
    assert sorted(order) == list(range(nodes))


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_edges_in_order_are_recognized(monkeypatch, index):
    """Edges that are already in order are not sorted."""
    src, dst = np.array([0, 0, 1, 2, 2, 2], index), np.array([1, 1, 1, 3, 3, 4], index)
    shuffled = np.array([3, 0, 5, 1, 4, 2])
    other = CSC.from_coo(src[shuffled], dst[shuffled], 4, 6)
    expected = other.prepare()
    monkeypatch.setitem(sys.modules, "scipy", None)
    graph = CSC.from_coo(src, dst, 4, 6)
    assert graph.edges_in_order
    assert not other.edges_in_order
    assert np.array_equal(graph.offsets, other.offsets)
    assert np.array_equal(graph.edge_ids, np.arange(6))
    for name in ("destinations", "src_offsets", "src_positions"):
        array = getattr(graph.prepare(), name)
        assert array.dtype == index
        assert np.array_equal(array, getattr(expected, name)) or name == "src_positions"
    assert np.array_equal(graph.prepare().src_positions, np.arange(6))
