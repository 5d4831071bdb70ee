"""Graphs without edges, with one, with parallel edges or unused rows, through every operator and CPU panel."""

import numpy as np
import pytest
from small_graphs import INDEX, ints
from table_calls import CPU_PANELS, OPS, assert_close, assert_right, call, draw

from trigraph import CSC, EdgeGraph
from trigraph.table import SYMBOLS

CSC_OPS, EDGE_OPS = ([pytest.param(op, id=op.name) for op in OPS if op.definition.graph == g] for g in ("csc", "edges"))


def _graph(sizes, src=(), dst=(), rows=None, index=np.int64):
    n_src, n_dst, num_edges = sizes
    rows = None if rows is None else ints(*rows, dtype=index)
    return CSC.from_coo(ints(*src, dtype=index), ints(*dst, dtype=index), n_src, n_dst, rows, num_edges)


ODD = {
    "nothing": ((0, 0, 0),),
    "no edges": ((3, 2, 0),),
    "rows that nothing uses": ((3, 2, 4),),
    "no destinations": ((3, 0, 2),),
    "no sources": ((0, 3, 2),),
    "one edge": ((1, 1, 1), (0,), (0,)),
    "one edge of many": ((4, 5, 6), (2,), (3,), (4,)),
    "one row for all": ((3, 2, 1), (0, 1, 2, 2), (0, 1, 1, 0), (0, 0, 0, 0)),
    "shared and unused rows": ((5, 4, 6), (0, 1, 1, 3, 3), (0, 1, 1, 3, 2), (5, 2, 5, 2, 2)),
    "parallel edges and self loops": ((3, 3, 4), (1, 1, 2, 0), (1, 1, 2, 1)),
}


@pytest.mark.parametrize("panel", CPU_PANELS)
@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("op", CSC_OPS)
def test_odd_graphs(op, name, panel):
    for index in INDEX:
        graph = _graph(*ODD[name], index=index)
        for dtype in (np.float32, np.float64):
            values = draw(op, dtype, graph=graph)
            got = call(op, values, panel=panel)
            assert_right(op, values, got)
            for field in (f for f in op.fields if f.name in got):
                value, rows = got[field.name], np.ones(got[field.name].shape[0], bool)
                used = {"num_edges": graph.edge_ids, "num_src_nodes": graph.indices}.get(field.dims[0], rows)
                if field.dims[0] == "num_dst_nodes":
                    used = graph.prepare().destinations
                rows[used] = False
                assert value.dtype == (index if field.index else dtype)
                nothing = -1 if field.index else 0
                assert (value[rows] == nothing).all()  # gradients of what nothing uses are exactly 0
                assert graph.num_positions or (value == nothing).all()


# Nodes, sources, destinations and shifts along one axis. A triplet of an edge with itself is never alone: its
# derivative in vec is zero but for rounding, and results are compared relative to the largest value.
ODD_EDGES = {
    "nothing": (0,),
    "no edges": (3,),
    "one edge": (2, (0,), (1,), (0,)),
    "edges to its own images": (1, (0, 0), (0, 0), (1, 2)),
    "an edge and its reverse": (4, (1, 2), (2, 1), (0, 0)),
    "images of itself": (2, (0, 0, 0), (0, 0, 0), (1, -1, 2)),
    "parallel edges": (2, (0, 0, 1, 1, 1), (1, 1, 0, 0, 0), (0, 1, 0, -1, 3)),
    "a chain": (5, (0, 1, 2), (1, 2, 3), (0, 0, 0)),
    "a node that is entered only": (3, (0, 1), (2, 2), (0, 0)),
    "a node that is left only": (3, (1, 1), (0, 2), (0, 0)),
}


@pytest.mark.parametrize("panel", CPU_PANELS)
@pytest.mark.parametrize("name", ODD_EDGES)
@pytest.mark.parametrize("op", EDGE_OPS)
def test_odd_edge_graphs(op, name, panel):
    nodes, src, dst, along = (*ODD_EDGES[name], (), (), ())[:4]
    shifts = [(s, 0, 0) for s in along]
    for index in INDEX:
        graph = EdgeGraph(
            ints(*src, dtype=index), ints(*dst, dtype=index), nodes, ints(*shifts, dtype=index).reshape(-1, 3)
        )
        for exclude in ("node", "edge", None):
            outer, inner = graph.triplets(exclude)
            used = {"out": outer, "rbf": inner, "embedding": inner, "vec": np.concatenate([outer, inner])}
            for dtype in (np.float32, np.float64):
                values = draw(op, dtype, graph=graph) | {"exclude": exclude}
                got = call(op, values, panel=panel)
                assert_close(got, call(op, values, panel="pyref"))
                for field, value in got.items():
                    rows = np.ones(len(value), bool)
                    rows[used.get(field.removeprefix("grad_"), slice(None if len(outer) else 0))] = False
                    assert value.dtype == dtype
                    assert not value[rows].any()  # what is in no triplet is exactly 0


@pytest.mark.parametrize("panel", CPU_PANELS)
@pytest.mark.parametrize("op", [pytest.param(op, id=op.name) for op in OPS if not op.graph])
def test_no_rows_and_one_row(op, panel):
    entities = {s for s in op.definition.symbols if SYMBOLS[s].minimum == 0}
    for size in (0, 1):
        values = draw(op, **dict.fromkeys(entities, size))
        got = call(op, values, panel=panel)
        assert_close(got, call(op, values, panel="pyref"))
        assert size or not any(value.any() for value in got.values())
