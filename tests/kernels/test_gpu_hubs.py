"""Hubs on gpu-host: 3e4 to 1e6 equal positive terms in one node, one row or one parameter, within 8 eps of the scale.

Roundings of equal terms all go the same way, so a chain of additions shows here what it hides in random data.
`trigraph verify` has 8,100 such terms: too few for a chain of the sums of chunks to show. `make test` has as many as it
takes for that, in second derivatives, which launch the kernels of the other modes; the rest is slow.
"""

import numpy as np
import pytest
from table_calls import SIZES, fields

from trigraph import CSC, EdgeGraph, Segments
from trigraph.checks import choice_number, shape_of
from trigraph.panels import FUNCTIONS
from trigraph.table import OPERATORS, SYMBOLS
from trigraph.verification import tolerances
from trigraph.verification.accuracy import field_error
from trigraph.verification.judged import ask

TOLERANCE = tolerances.accuracy(True, 1)
OTHERS = ("agg_edge_to_edge", "mha_gat_n2n", "radial_basis")
LINEAR = [op.name for op in OPERATORS.values() if op.restriction is None and op.definition.name not in OTHERS]
FEW = 30_000  # the sums of 117 chunks of 256 terms, added in a chain, err by more than 8 eps
MANY = 70_000  # more than 256 times 256: sums of chunks have as many levels as with millions
MILLION = 1_000_000  # each of the eight threads that add the sums of a row's parts has a thousand of them
COUNTS = [(FEW, "float32"), (MANY, "float32"), (MANY, "float64")]
CASES = [(name, shared) for name in LINEAR for shared in (False, True) if OPERATORS[name].graph or not shared]
LONGEST = ("agg_weighted_n2n_fwd", False, MILLION)
MODES = ("fwd", "bwd", "bwd2")


def some(rows, quick):
    """Return parameters that begin with those of a case; all but those that are quick are slow."""
    return [pytest.param(*row, marks=() if quick(*row) else pytest.mark.slow) for row in rows]


def graph_of(kind, count, shared):
    """Return `count` positions from node 0 into node 0; if `shared`, of one row (triplets: of as many edges)."""
    zeros = np.zeros(count, np.int32)
    if kind == "csc":
        return {"graph": CSC(np.array([0, count], np.int32), zeros, 1, *((zeros, 1) if shared else (None, count)))}
    triplets = Segments(np.arange(count, dtype=np.int32), count) if shared else Segments(zeros, 1)
    if kind == "triplets":
        return {"triplets": triplets}
    edges = triplets.num_segments
    return {"triplets": triplets, "atoms": Segments(np.zeros(edges, np.int32), 1), "idx_in": Segments(zeros, 1)}


def alike(op, count, dtype, shared=False, /, **attributes):
    """Arguments of `op` for `count` edges or triplets, each array filled with one positive number of its own."""
    rng = np.random.default_rng(0)
    graphs = graph_of(op.definition.graph, count, shared) if op.graph else {}
    sizes = {s: SIZES.get(s, SYMBOLS[s].typical[0]) for s in op.definition.symbols}
    sizes |= {s: op.graph.find(s, graphs) for s in op.graph.sizes} if op.graph else {"num_edges": count}
    others = {a.name: a.choices[0] if a.choices else a.default if a.real else sizes[a.name] for a in op.attributes}
    others |= attributes
    sizes |= {f"has_{name}": 1 for name in op.definition.optional}
    sizes |= {a.name: choice_number(a.choices, others[a.name]) for a in op.attributes if a.choices}
    inputs = [a for a in op.arguments if not a.given_back]
    arrays = {a.name: None for a in op.arguments}
    arrays |= {a.name: np.full(shape_of(a, sizes), rng.uniform(0.5, 1.5), dtype) for a in inputs}
    values = arrays | others | graphs
    return {name: values[name] for name in op.parameters}


def judged(op, values):
    return ask(op, {n: v for n, v in values.items() if not any(a.given_back and a.name == n for a in op.arguments)})


def assert_accurate(op, values, expected, times=1):
    """Compare with the judge's triples, which are multiplied by `times` where they have the result's shape."""
    got = fields(op, FUNCTIONS[op.name](**values, panel="gpu-host"))
    for field in op.fields:
        if field.name in expected and not field.index:
            array, triple = got[field.name], expected[field.name]
            triple = triple * times if triple.shape[1:] == array.shape else triple
            error = field_error(array, field, triple, str(array.dtype))
            assert error <= TOLERANCE, f"{op.name}, {field.name}: {error} eps of the scale"


@pytest.mark.parametrize(
    ("name", "shared", "count", "dtype"),
    some(
        [(*case, *count) for case in CASES for count in (*COUNTS, (MILLION, "float32"))],
        lambda name, shared, count, _: (name.endswith("bwd2") and count == FEW) or (name, shared, count) == LONGEST,
    ),
)
def test_equal_terms(name, count, dtype, shared):
    """What `count` like edges give is `count` times what the judge says of one, where edges are summed."""
    op = OPERATORS[name]
    attributes = {"op": "sum"} if name.startswith("agg_weighted") else {}
    many, one = (alike(op, n, dtype, shared, **attributes) for n in (count, 1))
    assert_accurate(op, many, judged(op, one), count)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "dtype"), COUNTS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("name", "attributes"), [("mha_gat_n2n", {}), ("agg_weighted_n2n", {"op": "mean"})])
def test_means_of_equal_terms(name, attributes, mode, count, dtype):
    """Softmax and mean, whose terms depend on their number: the judge adds all of them."""
    op = OPERATORS[f"{name}_{mode}"]
    values = alike(op, count, dtype, **attributes)
    assert_accurate(op, values, judged(op, values))


@pytest.mark.parametrize(
    ("mode", "count", "dtype"),
    some([(mode, *count) for mode in MODES for count in COUNTS], lambda mode, count, _: (mode, count) == ("bwd2", FEW)),
)
def test_equal_edges_of_the_radial_basis(mode, count, dtype):
    op = OPERATORS[f"radial_basis_{mode}"]
    many, one = (alike(op, n, dtype) for n in (count, 1))
    for values in (many, one):
        values["dist"] /= 2  # below the cutoff
    assert_accurate(op, many, judged(op, one), count)


def star(op, ins, outs, dtype):
    """Arguments of `op` for a node of so many in-edges, which come first, and out-edges; those of a kind are alike."""
    sizes = {"n_spherical": 2, "n_radial": 1, "n_emb": 1, "n_mid": 1}
    ends = [np.repeat([0, ins], [ins, outs]), np.repeat([ins, 0], [ins, outs])]
    ends[0][:ins], ends[1][ins:] = np.arange(ins), ins + 1 + np.arange(outs)
    vec = np.repeat(np.array([[0.5, 0.75, 1.25], [1.5, 0.5, 0.75]], dtype), [ins, outs], axis=0)
    graph = EdgeGraph(*(end.astype(np.int32) for end in ends), ins + outs + 1, vec=vec)
    rng = np.random.default_rng(0)
    sizes |= {symbol: op.graph.find(symbol, {"graph": graph}) for symbol in op.graph.sizes}
    values = {
        a.name: np.full(shape_of(a, sizes), rng.uniform(0.5, 1.5), dtype) for a in op.arguments if not a.given_back
    }
    return values | {"vec": vec, "graph": graph, "n_spherical": 2, "n_radial": 1, "exclude": "node"}


@pytest.mark.parametrize("many_in", [True, False])
@pytest.mark.parametrize(
    ("mode", "count", "dtype"),
    some([(mode, *count) for mode in MODES for count in COUNTS], lambda mode, count, _: (mode, count) == ("bwd", FEW)),
)
def test_equal_edges_of_one_node(mode, many_in, count, dtype):
    """A node with more in-edges and out-edges than degrees, so that its state is summed, over very many of either.

    Each in-edge meets every out-edge: the judge says what one of each gives.
    """
    op, (ins, outs) = OPERATORS[f"agg_edge_to_edge_{mode}"], (count, 9) if many_in else (9, count)
    got = fields(op, FUNCTIONS[op.name](**star(op, ins, outs, dtype), panel="gpu-host"))
    expected = judged(op, star(op, 1, 1, dtype))
    for field in op.fields:
        array, triple = got[field.name], expected[field.name]
        if field.dims[0] == "num_edges":
            triple = np.repeat(triple * np.reshape([outs, ins], (2,) + (1,) * (array.ndim - 1)), [ins, outs], axis=1)
        else:
            triple = triple * ins * outs
        error = field_error(array, field, triple, dtype)
        assert error <= TOLERANCE, f"{op.name}, {field.name}: {error} eps of the scale"
