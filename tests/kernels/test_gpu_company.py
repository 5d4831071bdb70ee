"""What belongs to a row has the same bits whatever else a graph holds: blocks without edges between them, on gpu-host.

A structure alone and the same structure behind and before others, of which every offset, position and number is moved.
"""

import itertools

import numpy as np
import pytest
from table_calls import OPERATORS, assert_same_bits, call, draw

from trigraph import CSC

NAMES = [f"{name}_{mode}" for name in ("agg_weighted_n2n", "mha_gat_n2n") for mode in ("fwd", "bwd", "bwd2")]
# In-degrees of a structure: none, fewer and more than lanes, one piece, a part more than a piece, many parts.
DEGREES = [3, 0, 9, 33, 128, 129, 1, 700, 17]
BEFORE, AFTER = [0, 5, 131, 2, 61, 1, 1], [40] * 31 + [2] * 100


def block(degrees, in_order, seed):
    """Ends and rows of a structure, the nodes of which have these in-degrees."""
    rng = np.random.default_rng(seed)
    dst = np.repeat(np.arange(len(degrees)), degrees)
    src = np.minimum(rng.geometric(0.3, len(dst)) - 1, len(degrees) - 1)  # the first is a hub of out-edges, too
    rows = np.arange(len(dst)) if in_order else rng.integers(0, len(dst) // 2, len(dst))
    return src, dst, rows, len(degrees)


def joined(blocks, in_order):
    """Graph of the blocks side by side, and where each begins: node and row."""
    nodes = np.cumsum([0, *(b[3] for b in blocks)])
    edges = np.cumsum([0, *(len(b[0]) for b in blocks)])
    moved = [(s + n, d + n, r + e) for (s, d, r, _), n, e in zip(blocks, nodes, edges, strict=False)]
    src, dst, rows = (np.concatenate(parts).astype(np.int32) for parts in zip(*moved, strict=True))
    offsets = np.searchsorted(dst, np.arange(nodes[-1] + 1)).astype(np.int32)
    graph = CSC(offsets, src, int(nodes[-1]), None if in_order else rows, None if in_order else len(rows))
    return graph, nodes, edges


def part(array, dims, ranges):
    """Return what belongs to one block of an array."""
    return np.ascontiguousarray(array[tuple(slice(*ranges.get(symbol, (None,))) for symbol in dims)])


def settings(op):
    """Every choice of the attributes that decide what is summed."""
    names = [a.name for a in op.attributes if a.choices and a.name != "activation"]
    choices = [a.choices for a in op.attributes if a.name in names]
    return [dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*choices)]


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("width", [1, 3, 20, 132])
@pytest.mark.parametrize("name", NAMES)
def test_company_changes_no_bit(name, width, in_order):
    op = OPERATORS[name]
    blocks = [block(BEFORE, in_order, 1), block(DEGREES, in_order, 2), block(AFTER, in_order, 3)]
    (graph, nodes, edges), (alone, *_) = joined(blocks, in_order), joined(blocks[1:2], in_order)
    ranges = {"num_src_nodes": nodes[1:3], "num_dst_nodes": nodes[1:3]}
    ranges |= {"num_edges": edges[1:3], "num_positions": edges[1:3]}
    for setting in settings(op):
        values = draw(op, np.float32, graph=graph, setting=setting, dim=width, dim_head=width, num_heads=2)
        mine = dict(values, graph=alone)
        for a in op.arguments:
            if a.given_back:
                values[a.name] = mine[a.name] = None
            elif values[a.name] is not None:
                mine[a.name] = part(values[a.name], a.dims, ranges)
        everything, got = call(op, values, panel="gpu-host"), call(op, mine, panel="gpu-host")
        for field in op.fields:
            if field.name in got and ranges.keys() & set(field.dims):
                expected = part(everything[field.name], field.dims, ranges)
                if field.index:
                    expected[expected >= 0] -= edges[1]
                assert got[field.name].tobytes() == expected.tobytes(), (field.name, setting)


@pytest.mark.parametrize("name", [op.name for op in OPERATORS.values() if op.definition.graph == "csc"])
def test_edges_in_order_need_no_edge_ids(name, monkeypatch):
    """Where position and row are the same, nothing looks up rows; those after the last position get zeros."""
    op = OPERATORS[name]
    offsets, indices = np.array([0, 3, 3, 140], np.int32), np.arange(140, dtype=np.int32) % 4
    given = CSC(offsets, indices, 4, np.arange(140, dtype=np.int32), 143)
    in_order = CSC(offsets, indices, 4, None, 143)
    assert (given.edges_in_order, in_order.edges_in_order) == (False, True)
    values = draw(op, np.float32, graph=given)
    monkeypatch.setattr(np, "empty", lambda shape, dtype=float: np.full(shape, -1, dtype))  # what nobody has written
    expected = call(op, values, panel="gpu-host")
    assert_same_bits(call(op, dict(values, graph=in_order), panel="gpu-host"), expected)
