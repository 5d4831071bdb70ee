"""Tests that the hypothesis strategies draw graphs with all documented features, and shrink them."""

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings

from trigraph.testing.strategies import csc, edge_graph, graph_arguments, segments

FIND = settings(
    max_examples=3000,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
    phases=[Phase.generate],
)


def compute_in_degrees(graph):
    return np.diff(graph.offsets)


def count_parallel_edges(graph):
    ends = np.stack([graph.indices, np.repeat(np.arange(graph.num_dst_nodes), compute_in_degrees(graph))], 1)
    return len(ends) - len(np.unique(ends, axis=0))


WANTED = [
    (
        csc,
        "a hub",
        lambda g: g.num_dst_nodes > 2 and compute_in_degrees(g).max() >= 8 and (compute_in_degrees(g) == 0).any(),
    ),
    (csc, "multi-edges", lambda g: count_parallel_edges(g) >= 2),
    (csc, "shared rows", lambda g: len(np.unique(g.edge_ids)) < g.num_positions),
    (csc, "no edges", lambda g: g.num_positions == 0 and g.num_dst_nodes == 3),
    (csc, "nothing", lambda g: g.num_src_nodes == g.num_dst_nodes == g.num_edges == 0),
    (csc, "bipartite", lambda g: g.num_src_nodes > g.num_dst_nodes > 0 and g.num_positions > 3),
    (csc, "int32", lambda g: g.indices.dtype == np.int32 and g.num_positions > 0),
    (edge_graph, "images", lambda g: g.num_edges > len(np.unique(np.stack([g.src, g.dst]), axis=1).T) > 0),
    (edge_graph, "own image", lambda g: (g.src == g.dst).any()),
    (edge_graph, "alone", lambda g: len(np.union1d(g.src, g.dst)) < g.num_nodes and g.num_edges > 2),
    (edge_graph, "no edges", lambda g: g.num_edges == 0 and g.num_nodes == 2),
    (segments, "one has most", lambda s: s.num_segments > 2 and np.diff(s.offsets).max() > 0.8 * s.num_members > 6),
    (segments, "one has none", lambda s: (np.diff(s.offsets) == 0).any() and s.num_members > 0),
    (segments, "nothing", lambda s: s.num_segments == 0),
    (segments, "not in order", lambda s: (np.diff(s.index) < 0).any()),
]


@pytest.mark.parametrize(("strategy", "name", "wanted"), WANTED)
def test_graphs_of_every_form_are_drawn(strategy, name, wanted):
    assert find(strategy(), wanted, settings=FIND)


def test_csc_shrinks_to_smallest_graph():
    shrinking = settings(FIND, phases=[Phase.generate, Phase.shrink])
    graph = find(csc(), lambda g: count_parallel_edges(g) >= 2, settings=shrinking)
    assert (graph.num_positions, graph.num_src_nodes, graph.num_dst_nodes, graph.num_edges) == (3, 1, 1, 1)


@settings(FIND, max_examples=50)
@given(graph_arguments("bilinear", np.int32))
def test_graphs_of_one_call_have_matching_sizes(graphs):
    assert graphs["atoms"].num_members == graphs["triplets"].num_segments
    assert graphs["idx_in"].num_members == graphs["triplets"].num_members
