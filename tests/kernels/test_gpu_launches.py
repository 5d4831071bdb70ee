"""Launches of each call on a device, counted with the stand-in for CuPy: those of our kernels, of CuPy and of cuBLAS.

A launch costs some microseconds of the host's time and leaves a device idle where it is small.
"""

import cupy_stand_in
import numpy as np
import pytest
from cupy_stand_in import asarray, moved_call, ndarray
from table_calls import OPERATORS, call, graphs_of

import trigraph
from trigraph import CSC

WIDTH, HEADS, HIDDEN, D = 32, 8, 64, 3


def regular(num_nodes, degree):
    """Every node has as many in-edges, and as many out-edges."""
    offsets = np.arange(num_nodes + 1, dtype=np.int32) * degree
    indices = (np.arange(num_nodes * degree, dtype=np.int32) * 7) % num_nodes
    graph = CSC(asarray(offsets), asarray(indices))
    graph.prepare()
    return graph


def floats(*shape):
    """Numbers that no kernel reads."""
    return ndarray(np.empty(shape, np.float32))


def calls(graph):
    """Operator and arguments by name of the test."""
    n, edges = graph.num_dst_nodes, graph.num_edges
    x, y, w = floats(n, WIDTH), floats(n, WIDTH), floats(edges)
    attention = x, x, floats(2 * WIDTH), graph, HEADS
    params = floats((D + 1) * HIDDEN + (HIDDEN + 1) * WIDTH**2)
    message = x, floats(edges, D), params, graph, WIDTH, WIDTH
    return {
        "agg_weighted_n2n_fwd": (x, w, graph),
        "agg_weighted_n2n_bwd": (y, x, w, graph),
        "mha_gat_n2n_fwd": attention,
        "mha_gat_n2n_bwd": (y, *attention),
        "gno_message_fwd": message,
        "gno_message_bwd": (y, *message),
        "gno_message_bwd2": (*message[:3], y, *message),
    }


# With 320 thousand and with 4 million edges: no row is long, so nothing joins pieces, and only the bound of a block's
# memory (sums.WORKSPACE) makes more launches of more edges, where a message's moments are 19 and 36 KB for each node.
MOST = {
    "agg_weighted_n2n_fwd": (1, 1),
    "agg_weighted_n2n_bwd": (2, 2),
    "mha_gat_n2n_fwd": (3, 3),
    "mha_gat_n2n_bwd": (9, 10),
    "gno_message_fwd": (3, 5),
    "gno_message_bwd": (12, 44),
    "gno_message_bwd2": (20, 140),
}


@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize(("size", "edges"), [(0, 320_000), (1, 4_000_000)])
@pytest.mark.parametrize("name", MOST)
def test_launches_of_a_call(name, size, edges):
    graph = regular(edges // 16, 16)
    cupy_stand_in.state.dry = True
    before = cupy_stand_in.state.launches
    getattr(trigraph, name)(*calls(graph)[name])
    assert cupy_stand_in.state.launches - before <= MOST[name][size]


MOLECULE = {
    "num_nodes": 5,
    "num_src_nodes": 5,
    "num_dst_nodes": 5,
    "num_outputs": 5,
    "num_edges": 20,
    "num_positions": 20,
    "num_inputs": 20,
    "num_triplets": 60,
}


@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize("name", OPERATORS)
def test_a_batch_costs_what_a_molecule_does(name):
    """256 molecules take the launches of one; a sum over all of their edges may have one level more."""
    op, counts = OPERATORS[name], []
    for molecules in (1, 256):
        sizes = {s: n * molecules for s, n in MOLECULE.items() if s in symbols(op)}
        _, values = moved_call(op, **sizes)
        for graph in graphs_of(op, values).values():
            graph.prepare()
        before, cupy_stand_in.state.dry = cupy_stand_in.state.launches, True
        call(op, values)
        counts.append(cupy_stand_in.state.launches - before)
        cupy_stand_in.state.dry = False
    over_all = any(f.name in ("params", "weights") for f in op.fields)
    assert counts[1] <= counts[0] + over_all


def symbols(op):
    return {*op.definition.symbols, *(op.graph.sizes if op.graph else ())}
