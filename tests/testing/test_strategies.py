"""The strategies for graphs make what they promise, and shrink to it."""

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings

from trigraph import CSC, EdgeGraph, Segments
from trigraph.testing.strategies import csc, edge_graph, graph_arguments, segments

FIND = settings(
    max_examples=3000,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
    phases=[Phase.generate],
)


def in_degrees(graph):
    return np.diff(graph.offsets)


def pairs(graph):
    ends = np.stack([graph.indices, np.repeat(np.arange(graph.num_dst_nodes), in_degrees(graph))], 1)
    return len(ends) - len(np.unique(ends, axis=0))


CSCS = {
    "a hub": lambda g: g.num_dst_nodes > 2 and in_degrees(g).max() >= 8 and (in_degrees(g) == 0).any(),
    "multi-edges": lambda g: pairs(g) >= 2,
    "shared rows": lambda g: len(np.unique(g.edge_ids)) < g.num_positions,
    "no edges": lambda g: g.num_positions == 0 and g.num_dst_nodes == 3,
    "nothing": lambda g: g.num_src_nodes == g.num_dst_nodes == g.num_edges == 0,
    "bipartite": lambda g: g.num_src_nodes > g.num_dst_nodes > 0 and g.num_positions > 3,
    "int32": lambda g: g.indices.dtype == np.int32 and g.num_positions > 0,
}


@pytest.mark.parametrize("name", CSCS)
def test_csc(name):
    assert isinstance(find(csc(), CSCS[name], settings=FIND), CSC)


def test_a_graph_shrinks():
    graph = find(csc(), CSCS["multi-edges"], settings=settings(FIND, phases=[Phase.generate, Phase.shrink]))
    assert (graph.num_positions, graph.num_src_nodes, graph.num_dst_nodes, graph.num_edges) == (3, 1, 1, 1)


EDGES = {
    "images": lambda g: g.num_edges > len(np.unique(np.stack([g.src, g.dst]), axis=1).T) > 0,
    "own image": lambda g: (g.src == g.dst).any(),
    "an atom alone": lambda g: len(np.union1d(g.src, g.dst)) < g.num_nodes and g.num_edges > 2,
    "no edges": lambda g: g.num_edges == 0 and g.num_nodes == 2,
    "nothing": lambda g: g.num_nodes == 0,
}


@pytest.mark.parametrize("name", EDGES)
def test_edge_graph(name):
    assert isinstance(find(edge_graph(), EDGES[name], settings=FIND), EdgeGraph)


SEGMENTS = {
    "one has most": lambda s: (
        s.num_members > 8 and np.diff(s.offsets).max() > 0.8 * s.num_members and s.num_segments > 2
    ),
    "one has none": lambda s: (np.diff(s.offsets) == 0).any() and s.num_members > 0,
    "nothing": lambda s: s.num_segments == 0,
    "not in order": lambda s: (np.diff(s.index) < 0).any(),
}


@pytest.mark.parametrize("name", SEGMENTS)
def test_segments(name):
    assert isinstance(find(segments(), SEGMENTS[name], settings=FIND), Segments)


@settings(FIND, max_examples=50)
@given(graph_arguments("bilinear", np.int32))
def test_graphs_of_one_operator_fit(found):
    assert found["atoms"].num_members == found["triplets"].num_segments
    assert found["idx_in"].num_members == found["triplets"].num_members
