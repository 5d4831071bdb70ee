"""A rank of test_distributed.py: graphs that no rank has as a whole, and owners that cut space or few edges."""

import numpy as np
from mpi4py import MPI

import trigraph
from trigraph import CSC, EdgeGraph, distributed

COMM = MPI.COMM_WORLD
RNG = np.random.default_rng(1)  # the same numbers on all ranks
NODES, EDGES = 40, 300


def pieces(*columns):
    """The edges of this rank, some at a time: later ranks have more."""
    number = len(columns[0])
    begin, end = number * COMM.rank**2 // COMM.size**2, number * (COMM.rank + 1) ** 2 // COMM.size**2
    middle = (2 * begin + end) // 3
    return (tuple(c[a:b] for c in columns) for a, b in ((begin, middle), (middle, end), (end, end))), slice(begin, end)


def same(part, found, expected, symbol):
    return part.collect(found, symbol).tobytes() == expected.tobytes()


def attention():
    """Edges in any order; rows of edge arrays are in that order, and come from whoever has them."""
    src, dst = RNG.integers(0, NODES, EDGES), RNG.integers(0, NODES // 2, EDGES)
    nodes, edges = RNG.normal(size=(NODES, 6)), RNG.normal(size=(EDGES, 6))
    weights, grads = RNG.normal(size=18), RNG.normal(size=(NODES // 2, 6))
    graph = CSC.from_coo(src, dst, NODES, NODES // 2)
    given, mine = pieces(src, dst)
    part = distributed.partition_pieces(CSC, given, COMM, (NODES, NODES // 2))
    rows = part.distribute(edges[mine], np.arange(EDGES)[mine], "num_edges")
    assert rows.tobytes() == part.take(edges, "num_edges").tobytes()
    local = part.take(nodes, "num_src_nodes"), part.take(nodes[: NODES // 2], "num_dst_nodes")
    expected = trigraph.mha_gat_n2n_bwd(grads, nodes, nodes[: NODES // 2], weights, graph, 2, edge_embedding=edges)
    found = distributed.mha_gat_n2n_bwd(
        part.take(grads, "num_dst_nodes"), *local, weights, part, 2, edge_embedding=rows
    )
    assert same(part, found.src_embedding, expected.src_embedding, "num_src_nodes")
    assert same(part, found.edge_embedding, expected.edge_embedding, "num_edges")
    assert found.attention_weights.tobytes() == expected.attention_weights.tobytes()


def directions():
    """Edges with a reverse; nodes owned by bisection and by METIS."""
    positions = RNG.uniform(0, 5, (NODES, 3))
    neighbors = trigraph.EdgeGraph.from_positions(positions, 2.0)
    graph, vec = neighbors.graph, neighbors.vec
    unit = vec / np.linalg.norm(vec, axis=1)[:, None]
    arrays = [unit, RNG.normal(size=(graph.num_edges, 6)), RNG.normal(size=(graph.num_edges, 4))]
    weights, grads = RNG.normal(size=(10, 3)), RNG.normal(size=(graph.num_edges, 4))
    by_space = distributed.owners.bisection(positions, COMM.size)
    by_edges = distributed.owners.metis(graph, COMM.size)
    for owner in (by_space, by_edges):
        assert sorted(set(owner)) == list(range(COMM.size))
        assert np.bincount(owner).max() <= 1.2 * NODES / COMM.size + 1
        for columns in ((graph.src, graph.dst), (graph.src, graph.dst, graph.reverse_edge)):
            given, _ = pieces(*columns)
            part = distributed.partition_pieces(EdgeGraph, given, COMM, NODES, owner)
            local = [part.take(a, "num_edges") for a in arrays]
            for exclude in ("node", "edge", None):
                call = trigraph.agg_edge_to_edge_bwd(grads, *arrays, weights, graph, 3, 2, exclude)
                found = distributed.agg_edge_to_edge_bwd(
                    part.take(grads, "num_edges"), *local, weights, part, 3, 2, exclude
                )
                for name in ("vec", "rbf", "embedding"):
                    assert same(part, getattr(found, name), getattr(call, name), "num_edges"), name
                assert found.weights.tobytes() == call.weights.tobytes()


attention()
directions()
print("right")
