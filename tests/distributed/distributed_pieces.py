"""Checks of test_distributed.py: graphs of which each rank has a piece; owners by bisection of space or of edges."""

import numpy as np
from mpi4py import MPI

import trigraph
from trigraph import CSC, EdgeGraph, Segments, distributed

COMM = MPI.COMM_WORLD
RNG = np.random.default_rng(1)  # the same numbers on all ranks
NODES, EDGES = 40, 300


def pieces(*columns):
    """Return this rank's edges as a list of pieces, and their positions; later ranks have more."""
    number = len(columns[0])
    begin, end = number * COMM.rank**2 // COMM.size**2, number * (COMM.rank + 1) ** 2 // COMM.size**2
    middle = (2 * begin + end) // 3
    return (tuple(c[a:b] for c in columns) for a, b in ((begin, middle), (middle, end), (end, end))), slice(begin, end)


def same(part, got, expected, symbol):
    return part.collect(got, symbol).tobytes() == expected.tobytes()


def attention():
    """A graph from unordered pieces has the bits of the whole; edge rows are distributed in the pieces' order."""
    src, dst = RNG.integers(0, NODES, EDGES), RNG.integers(0, NODES // 2, EDGES)
    nodes, edges = RNG.normal(size=(NODES, 6)), RNG.normal(size=(EDGES, 6))
    weights, grads = RNG.normal(size=18), RNG.normal(size=(NODES // 2, 6))
    graph = CSC.from_coo(src, dst, NODES, NODES // 2)
    own_pieces, own = pieces(src, dst)
    part = distributed.partition_pieces(CSC, own_pieces, COMM, (NODES, NODES // 2))
    rows = part.distribute(edges[own], np.arange(EDGES)[own], "num_edges")
    assert rows.tobytes() == part.take(edges, "num_edges").tobytes()
    own = distributed.owners.blocks(NODES // 2, COMM.size)[dst] == COMM.rank
    foreign = distributed.owners.blocks(NODES, COMM.size)[np.unique(src[own])] != COMM.rank
    assert part.outputs.halos["num_src_nodes"].received == foreign.sum()
    local = part.take(nodes, "num_src_nodes"), part.take(nodes[: NODES // 2], "num_dst_nodes")
    expected = trigraph.mha_gat_n2n_bwd(grads, nodes, nodes[: NODES // 2], weights, graph, 2, edge_embedding=edges)
    returned = distributed.mha_gat_n2n_bwd(
        part.take(grads, "num_dst_nodes"), *local, weights, part, 2, edge_embedding=rows
    )
    assert same(part, returned.src_embedding, expected.src_embedding, "num_src_nodes")
    assert same(part, returned.edge_embedding, expected.edge_embedding, "num_edges")
    assert returned.attention_weights.tobytes() == expected.attention_weights.tobytes()


def directions():
    """The same with reverse edges, for nodes owned by bisection and at random."""
    positions = RNG.uniform(0, 5, (NODES, 3))
    neighbors = trigraph.EdgeGraph.from_positions(positions, 2.0)
    graph, vec = neighbors.graph, neighbors.vec
    unit = vec / np.linalg.norm(vec, axis=1)[:, None]
    arrays = [unit, RNG.normal(size=(graph.num_edges, 6)), RNG.normal(size=(graph.num_edges, 4))]
    weights, grads = RNG.normal(size=(10, 3)), RNG.normal(size=(graph.num_edges, 4))
    by_space = distributed.owners.bisection(positions, COMM.size)
    by_chance = RNG.permutation(NODES) % COMM.size
    for owner in (by_space, by_chance):
        assert sorted(set(owner)) == list(range(COMM.size))
        assert np.bincount(owner).max() <= 1.2 * NODES / COMM.size + 1
        for columns in ((graph.src, graph.dst), (graph.src, graph.dst, graph.reverse_edge)):
            own_pieces, _ = pieces(*columns)
            part = distributed.partition_pieces(EdgeGraph, own_pieces, COMM, NODES, owner)
            local = [part.take(a, "num_edges") for a in arrays]
            for exclude in ("node", "edge", None):
                call = trigraph.agg_edge_to_edge_bwd(grads, *arrays, weights, graph, 3, 2, exclude)
                returned = distributed.agg_edge_to_edge_bwd(
                    part.take(grads, "num_edges"), *local, weights, part, 3, 2, exclude
                )
                for name in ("vec", "sbf_rad", "embedding"):
                    assert same(part, getattr(returned, name), getattr(call, name), "num_edges"), name
                assert returned.weights.tobytes() == call.weights.tobytes()


def triplets():
    """The same with triplets whose edges other ranks have; some edges, outputs and inputs have no triplets."""
    number, outputs, inputs = 500, 30, 90
    edge, of = RNG.integers(0, EDGES - 20, number), RNG.integers(5, inputs, number)
    atom = RNG.integers(0, outputs - 3, EDGES)
    rad, sph, weight = RNG.normal(size=(EDGES, 2, 3)), RNG.normal(size=(number, 3)), RNG.normal(size=(4, 10))
    for with_atoms in (True, False):
        for with_inputs in (True, False):
            sizes = {"num_outputs": outputs if with_atoms else EDGES, "num_inputs": inputs if with_inputs else number}
            m, grads = RNG.normal(size=(sizes["num_inputs"], 5)), RNG.normal(size=(sizes["num_outputs"], 4))
            triplets = Segments(edge, EDGES)
            optional = {
                "atoms": Segments(atom, outputs) if with_atoms else None,
                "idx_in": Segments(of, inputs) if with_inputs else None,
            }
            call = trigraph.interaction_bilinear_bwd(grads, rad, sph, m, weight, triplets, **optional)
            own_pieces, _ = pieces(*((edge, of) if with_inputs else (edge,)))
            of_edges = (piece for (piece,) in pieces(atom)[0]) if with_atoms else None
            counted = (inputs, sizes["num_outputs"]) if with_inputs else sizes["num_outputs"]
            owner = RNG.integers(0, COMM.size, sizes["num_outputs"])
            part = distributed.partition_pieces(Segments, own_pieces, COMM, counted, owner, atoms=of_edges)
            assert part.sizes == sizes | {"num_edges": EDGES, "num_triplets": number}
            rows = [(rad, "num_edges"), (sph, "num_triplets"), (m, "num_inputs")]
            arrays = [(grads, "num_outputs"), *rows]
            returned = distributed.interaction_bilinear_bwd(*(part.take(*a) for a in arrays), weight, part)
            for name, (_, symbol) in zip(("rad_W1", "sph", "m"), rows, strict=True):
                assert same(part, getattr(returned, name), getattr(call, name), symbol), name
            whole = distributed.partition(triplets, COMM, **optional)
            other = distributed.interaction_bilinear_bwd(*(whole.take(*a) for a in arrays), weight, whole)
            assert returned.weight.tobytes() == other.weight.tobytes()
