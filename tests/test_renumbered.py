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
    x, g, features = (rng.standard_normal((n, 8)) for n in (60, 60, 200))
    weights = rng.standard_normal(24)

    def gradients(graph, x, g):
        return trigraph.mha_gat_n2n_bwd(g, x, x, weights, graph, 2, edge_embedding=features, panel=panel)

    expected, got = gradients(graph, x, g), gradients(other, x[order], g[order])
    for name in ("src_embedding", "dst_embedding"):
        np.testing.assert_allclose(getattr(got, name), getattr(expected, name)[order], rtol=1e-12, atol=1e-12)
    for name in ("attention_weights", "edge_embedding"):
        np.testing.assert_allclose(getattr(got, name), getattr(expected, name), rtol=1e-12, atol=1e-12)


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
