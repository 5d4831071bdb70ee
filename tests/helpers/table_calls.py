"""Small calls of every operator, drawn from the operator table: no operator is known by name here."""

import re

import numpy as np
import pytest

from trigraph import CSC, EdgeGraph, Segments
from trigraph.checks import bind_sizes, choice_number, shape_of
from trigraph.panels import FUNCTIONS, PANELS
from trigraph.table import OPERATORS, SYMBOLS, evaluate
from trigraph.verification import tolerances
from trigraph.verification.accuracy import field_error
from trigraph.verification.judged import ask

OPS = tuple(OPERATORS.values())
CPU_PANELS = tuple(name for name, (_, kind) in PANELS.items() if kind == "numpy")
SIZES = {"num_edges": 8, "num_src_nodes": 6, "num_dst_nodes": 5, "num_positions": 11, "f_in": 3, "f_out": 4}


def csc(sizes, index, rng):
    """Rows shared by positions, rows and nodes that nothing uses, self loops and parallel edges."""
    n_src, n_dst, n = (sizes[s] for s in ("num_src_nodes", "num_dst_nodes", "num_positions"))
    src, dst = rng.integers(0, max(n_src - 1, 1), n), rng.integers(0, max(n_dst - 1, 1), n)
    rows = rng.integers(0, max(sizes["num_edges"] - 1, 1), n)
    return CSC.from_coo(*(a.astype(index) for a in (src, dst)), n_src, n_dst, rows.astype(index), sizes["num_edges"])


def edges(sizes, index, rng):
    """Self images and parallel edges, told apart by their shifts; about half have their reverse."""
    nodes, number = sizes["num_nodes"], sizes["num_edges"]
    if min(nodes, number) == 0:
        none = np.zeros(0, index)
        return EdgeGraph(none, none, nodes, np.zeros((0, 3), index))
    src, dst = rng.integers(0, max(nodes - 1, 1), (2, number // 2 + 1))
    src[:2], dst[:2] = 0, min(1, nodes - 1)  # parallel, so that the rules for what is left out differ
    half = np.column_stack([src, dst, np.arange(len(src)) + 1, rng.integers(-1, 2, (len(src), 2))])
    back = np.column_stack([dst, src, -half[:, 2:]])
    both = np.concatenate([half, back])[:number]
    both = both[np.argsort(both[:, 0], kind="stable")].astype(index)
    return EdgeGraph(*(np.ascontiguousarray(both[:, c]) for c in (0, 1)), nodes, np.ascontiguousarray(both[:, 2:]))


def segments(sizes, index, rng):
    """Members in any order, of segments some of which have none; atoms and rows of m where the operator has them."""

    def members(count, bound):
        return Segments(rng.integers(0, max(bound - 1, 1), count).astype(index), bound)

    graphs = {"triplets": members(sizes["num_triplets"], sizes["num_edges"])}
    if "num_outputs" in sizes:
        graphs["atoms"] = members(sizes["num_edges"], sizes["num_outputs"])
        graphs["idx_in"] = members(sizes["num_triplets"], sizes["num_inputs"])
    return graphs


GRAPHS = {
    "csc": lambda *args: {"graph": csc(*args)},
    "edges": lambda *args: {"graph": edges(*args)},
    "triplets": segments,
    "bilinear": segments,
}
# Numbers of an array that cannot be any: distances are positive.
SAMPLES = {
    "unit interval": lambda rng, shape: rng.uniform(0.1, 1.1, shape),
    "positive": lambda rng, shape: rng.uniform(0.5, 1.5, shape),
}


def draw(op, dtype=np.float64, index=np.int64, graph=None, seed=0, setting=None, **sizes):
    """Return arguments of `op` by name, in signature order; `sizes` replace the usual ones, `graph` the usual graph.

    For an operator of several graph objects `graph` is a mapping from name to object.

    Everything optional is there, unless `setting` says None; what bwd is given back is what fwd returns.
    """
    rng = np.random.default_rng(seed)
    chosen = {s: sizes.get(s, SIZES.get(s, SYMBOLS[s].typical[0])) for s in op.definition.symbols}
    graphs, setting = {}, setting or {}
    if op.graph is not None:
        graphs = graph if isinstance(graph, dict) else {"graph": graph}
        if graph is None:
            graphs = GRAPHS[op.definition.graph](chosen, index, rng)
        graphs |= {n: None for n in graphs if n in setting}
        chosen |= {s: op.graph.find(s, graphs) for s in op.graph.sizes}
    others = {a.name: a.choices[-1] if a.choices else a.default if a.real else chosen[a.name] for a in op.attributes}
    others |= {n: v for n, v in setting.items() if n in others}
    chosen |= {f"has_{n}": int(n not in setting or setting[n] is not None) for n in op.definition.optional}
    chosen |= {a.name: choice_number(a.choices, others[a.name]) for a in op.attributes if a.choices}
    normal = np.random.Generator.standard_normal
    arrays = {}
    for a in op.arguments:
        if not a.given_back:
            arrays[a.name] = SAMPLES.get(a.sample, normal)(rng, shape_of(a, chosen)).astype(dtype)
    absent = [n for n in op.definition.optional if n in setting]
    arrays |= {n: None for n in arrays if n.removeprefix("gg_") in absent}
    values = arrays | others | graphs
    if any(a.given_back for a in op.arguments):
        fwd = OPERATORS[f"{op.definition.name}_fwd"]
        found = FUNCTIONS[fwd.name](**{n: values[n] for n in fwd.parameters}, panel="fortran-reference")
        values |= {a.name: getattr(found, a.name) for a in op.arguments if a.given_back}
    return {name: values[name] for name in op.parameters}


def graphs_of(op, values):
    """Return the graph objects among the arguments of `op`."""
    return {a.name: values[a.name] for a in op.graph.arguments} if op.graph else {}


def fields(op, result):
    """Return the result of `op` as a mapping from field to array; without what the choices do not give."""
    if op.single:
        return {op.fields[0].name: result}
    return {f.name: v for f, v in zip(op.fields, result, strict=True) if v is not None or not f.when}


def call(op, values, **keywords):
    """Call `op` through the front door; a mapping from field to array."""
    return fields(op, FUNCTIONS[op.name](**values, **keywords))


def assert_right(op, values, got):
    """Elementwise what the judge says, by the accuracy rule: for derivatives whose terms cancel, too."""
    sizes = bind_sizes(op, values, {a.name: values[a.name].shape for a in op.given(values)})
    tolerance = tolerances.accuracy(False, evaluate(op.definition.terms, sizes))
    expected = ask(op, values)
    for field in op.returned(values, sizes):
        dtype = str(values[op.definition.inputs[0].name].dtype)
        error = field_error(got[field.name], field, expected[field.name], dtype)
        assert error <= (0 if field.index else tolerance), field.name


def assert_same_bits(got, expected):
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        if value is None:
            assert got[name] is None
            continue
        assert type(got[name]) is np.ndarray
        assert got[name].dtype == value.dtype
        assert got[name].shape == value.shape
        assert got[name].tobytes() == value.tobytes(), name


def assert_close(got, expected):
    """Equal up to rounding, relative to the largest value of each field: values are small sums of normal numbers."""
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert got[name].shape == value.shape
        if value.dtype.kind == "i":
            np.testing.assert_array_equal(got[name], value)
            continue
        error = np.max(np.abs(got[name] - value), initial=0)
        assert error <= 256 * np.finfo(value.dtype).eps * np.max(np.abs(value), initial=0), name


def raises(kind, text, function, *args, **kwargs):
    """Assert that a call raises exactly `kind` with exactly `text` (a compiled pattern: all of it matches)."""
    with pytest.raises(kind) as caught:
        function(*args, **kwargs)
    assert caught.type is kind
    if isinstance(text, re.Pattern):
        assert text.fullmatch(str(caught.value)), str(caught.value)
    else:
        assert str(caught.value) == text
