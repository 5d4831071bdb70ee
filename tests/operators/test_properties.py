"""Every operator on graphs, sizes and memory layouts that hypothesis makes up: right by the judge, whatever the layout.

The same examples each time (`derandomize`), so that a failure is a change of the code.
"""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from table_calls import OPS, assert_same_bits, call, draw, fields

from trigraph import CSC, EdgeGraph, Segments
from trigraph.checks import bind_sizes
from trigraph.panels import FUNCTIONS
from trigraph.table import SYMBOLS, evaluate
from trigraph.verification import tolerances
from trigraph.verification.accuracy import field_error
from trigraph.verification.judged import ask

ALL = [pytest.param(op, id=op.name) for op in OPS]
EXAMPLES = 30  # of each operator: half a minute of one processor for all
SETTINGS = settings(max_examples=EXAMPLES, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


def positions(draw_, *bounds, most=18):
    """Rows of one number below each of the bounds; none where a bound is 0."""
    if 0 in bounds:
        return np.zeros((0, len(bounds)), np.int64)
    row = st.tuples(*(st.integers(0, bound - 1) for bound in bounds))
    return np.array(draw_(st.lists(row, max_size=most)), np.int64).reshape(-1, len(bounds))


@st.composite
def csc(draw_, index):
    """Nodes without edges on either side, parallel edges, rows that positions share or nothing uses."""
    n_src, n_dst, rows = (draw_(st.integers(0, 6)) for _ in range(3))
    src, dst, row = positions(draw_, n_src, n_dst, rows).astype(index).T
    return {"graph": CSC.from_coo(src, dst, n_src, n_dst, row, rows)}


@st.composite
def edges(draw_, index):
    """Images of a pair told apart by their shifts, nodes that are their own neighbours, edges without a reverse."""
    nodes = draw_(st.integers(0, 4))
    found = {(j, i, s - 1) for j, i, s in positions(draw_, nodes, nodes, 3, most=12).tolist() if j != i or s != 1}
    back = draw_(st.booleans())
    found |= {(i, j, -s) for j, i, s in found} if back else set()
    src, dst, shift = np.array(sorted(found), index).reshape(-1, 3).T
    shifts = np.stack([shift, 0 * shift, 0 * shift], axis=1)
    return {"graph": EdgeGraph(src, dst, nodes, shifts)}


@st.composite
def triplets(draw_, index):
    """Members of segments in any order, segments without any."""
    num_edges = draw_(st.integers(0, 6))
    return {"triplets": Segments(positions(draw_, num_edges)[:, 0].astype(index), num_edges)}


@st.composite
def bilinear(draw_, index):
    """The same, edges of atoms, and a row of m for each triplet."""
    graphs = draw_(triplets(index))
    num_edges, num_triplets = graphs["triplets"].num_segments, graphs["triplets"].num_members

    def of_any(members):
        bound = draw_(st.integers(min(members, 1), 5))
        numbers = st.lists(st.integers(0, max(bound - 1, 0)), min_size=members, max_size=members)
        return Segments(np.array(draw_(numbers), index), bound)

    return graphs | {"atoms": of_any(num_edges), "idx_in": of_any(num_triplets)}


GRAPHS = {"csc": csc, "edges": edges, "triplets": triplets, "bilinear": bilinear}


@st.composite
def calls(draw_, op):
    """Arguments of an operator: graph, sizes, dtypes and choices."""
    index, dtype = draw_(st.sampled_from([np.int32, np.int64])), draw_(st.sampled_from([np.float32, np.float64]))
    graph = draw_(GRAPHS[op.definition.graph](index)) if op.definition.graph else None
    chosen = {}
    for name in op.definition.symbols:
        symbol = SYMBOLS[name]
        if graph is None or name not in op.graph.sizes:
            chosen[name] = draw_(st.integers(symbol.minimum, min(symbol.maximum or 5, 5)))
    setting = draw_(st.sampled_from([{}, *op.definition.settings]))
    return draw(op, dtype, index, graph, draw_(st.integers(0, 99)), setting, **chosen)


def misaligned(a):
    """Return a copy that begins one byte after an element's place."""
    memory = np.empty(a.nbytes + 1, np.int8)
    moved = np.ndarray(a.shape, a.dtype, buffer=memory[1:].data)
    moved[...] = a
    return moved


def padded(a):
    """Return a view with memory between the elements of every axis."""
    view = np.zeros([2 * n for n in a.shape], a.dtype)[tuple(slice(None, None, 2) for _ in a.shape)]
    view[...] = a
    return view


def frozen(a):
    return np.ndarray(a.shape, a.dtype, buffer=a.tobytes())


LAYOUTS = {
    "C order": lambda a: a,
    "Fortran order": np.asfortranarray,
    "negative strides": lambda a: np.flip(np.flip(a).copy()),
    "padded": padded,
    "misaligned": misaligned,
    "read-only": frozen,
    "one row again and again": lambda a: np.broadcast_to(a[:1], a.shape),
}


def assert_in_accuracy(op, values, got, direct):
    sizes = bind_sizes(op, values, {a.name: values[a.name].shape for a in op.given(values)})
    terms = evaluate(op.definition.terms, sizes)
    expected = ask(op, values)
    for field in op.returned(values, sizes):
        dtype = str(values[op.definition.inputs[0].name].dtype)
        error = field_error(got[field.name], field, expected[field.name], dtype)
        assert error <= (0 if field.index else tolerances.accuracy(not direct, terms)), field.name


@pytest.mark.parametrize("op", ALL)
def test_any_graph_in_any_layout(op):
    """The fast path and the readable panel are right, and give the same bits for the same numbers in other layouts."""

    @SETTINGS
    @given(st.data())
    def property_(data):
        values = data.draw(calls(op))
        names = [n for n, v in values.items() if isinstance(v, np.ndarray)]
        layouts = {n: data.draw(st.sampled_from(sorted(LAYOUTS)), label=n) for n in names}
        back = {a.name for a in op.arguments if a.given_back}
        moved = {n: LAYOUTS[layouts[n]](values[n]) for n in names if n not in back}
        plain = values | {n: np.ascontiguousarray(v) for n, v in moved.items()}
        if back:  # belongs to these numbers
            plain |= dict.fromkeys(back)
        for panel in ("fortran", "pyref"):
            expected = call(op, plain, panel=panel)
            assert_in_accuracy(op, plain, expected, panel == "pyref")
            assert_same_bits(call(op, plain | moved, panel=panel), expected)
        for name in moved:
            other = moved[name].astype(moved[name].dtype.newbyteorder())
            with pytest.raises(TypeError, match=rf"^{op.name}: {name} has dtype {other.dtype.str}; expected native"):
                FUNCTIONS[op.name](**(plain | {name: other}))

    property_()


@pytest.mark.parametrize("op", [p for p in ALL if any(a.given_back for a in p.values[0].arguments)])
def test_what_is_given_back_in_any_layout(op):
    @SETTINGS
    @given(st.data())
    def property_(data):
        values = data.draw(calls(op))
        back = [a.name for a in op.arguments if a.given_back and values[a.name] is not None]
        usual = [layout for layout in sorted(LAYOUTS) if layout != "one row again and again"]
        moved = {n: LAYOUTS[data.draw(st.sampled_from(usual), label=n)](values[n]) for n in back}
        assert_same_bits(call(op, values | moved), fields(op, FUNCTIONS[op.name](**values)))

    property_()
