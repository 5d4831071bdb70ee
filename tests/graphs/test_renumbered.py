"""`CSC.renumbered`: the same graph, with neighbours near each other."""

import numpy as np
import pytest

import trigraph
from trigraph import CSC


def random_graph(dtype, nodes=60, edges=300, rows=200):
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, nodes - 1, (2, edges)).astype(dtype)  # the last node is isolated
    return CSC.from_coo(src, dst, nodes, nodes, rng.integers(0, rows, edges).astype(dtype), rows)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("panel", ["fortran", "gpu-host"])
def test_operators_give_the_same_in_the_new_order(dtype, panel):
    graph = random_graph(dtype)
    other, order = graph.renumbered()
    assert order.dtype == other.offsets.dtype == dtype
    assert sorted(order) == list(range(60))
    rng = np.random.default_rng(1)
    # Sums of products of small integers are exact in every order.
    x, g, weights = (rng.integers(-3, 4, shape).astype(float) for shape in ((60, 8), (60, 8), 200))

    def results(graph, x, g):
        out = trigraph.agg_weighted_n2n_fwd(x, weights, graph, panel=panel).output_embedding
        return out, *trigraph.agg_weighted_n2n_bwd(g, x, weights, graph, panel=panel)

    expected, got = results(graph, x, g), results(other, x[order], g[order])
    for right, mine in zip(expected[:2], got[:2], strict=True):  # by node
        np.testing.assert_array_equal(mine, right[order])
    np.testing.assert_array_equal(got[2], expected[2])  # by row of edge_weight


def test_neighbours_of_a_shuffled_path_are_next_to_each_other():
    path = np.random.default_rng(0).permutation(500)
    graph, _ = CSC.from_coo(path[:-1], path[1:], 500, 500).renumbered()
    assert np.abs(graph.indices - graph.prepare().destinations).max() == 1


@pytest.mark.parametrize("nodes", [0, 3])
def test_graphs_without_edges(nodes):
    graph, order = CSC(np.zeros(nodes + 1, int), np.empty(0, int), num_edges=2).renumbered()
    assert (graph.num_dst_nodes, graph.num_src_nodes, graph.num_edges) == (nodes, nodes, 2)
    assert sorted(order) == list(range(nodes))


def test_sources_and_destinations_must_be_the_same_nodes():
    text = r"^CSC: num_src_nodes is 5, num_dst_nodes is 1; expected equal numbers of nodes, to renumber them$"
    with pytest.raises(ValueError, match=text):
        CSC(np.array([0, 1]), np.array([2]), 5).renumbered()
