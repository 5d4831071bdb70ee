"""Hubs on gpu-host: 7e4 and 1e6 equal positive terms in one node, one row or one parameter, within 8 eps of the scale.

Roundings of equal terms all go the same way, so a chain of additions shows here what it hides in random data.
"""

import numpy as np
import pytest
from table_calls import FUNCTIONS, OPERATORS, SIZES, choice_number, fields, shape_of

from trigraph import CSC, EdgeGraph, Segments
from trigraph.table import SYMBOLS
from trigraph.verification import tolerances
from trigraph.verification.accuracy import field_error
from trigraph.verification.judged import ask

TOLERANCE = tolerances.accuracy(True, 1)
LINEAR = [
    op.name
    for op in OPERATORS.values()
    if op.restriction is None and op.definition.name not in ("agg_edge_to_edge", "mha_gat_n2n", "radial_basis")
]
MANY = 70_000  # more than 256 times 256: sums of chunks have as many levels as with millions
# The kernels add up float64 as they do float32, in more time on the emulated device.
DTYPES = ["float32", pytest.param("float64", marks=pytest.mark.slow)]
CASES = [(name, shared) for name in LINEAR for shared in (False, True) if OPERATORS[name].graph or not shared]
OTHERS = [f"{name}_{mode}" for name in ("mha_gat_n2n", "agg_weighted_n2n") for mode in ("fwd", "bwd", "bwd2")]


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
    ("count", "dtype"),
    [
        (MANY, "float32"),
        pytest.param(MANY, "float64", marks=pytest.mark.slow),
        pytest.param(1_000_000, "float32", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(("name", "shared"), CASES)
def test_equal_terms(name, count, dtype, shared):
    """What `count` like edges give is `count` times what the judge says of one, where edges are summed."""
    op = OPERATORS[name]
    attributes = {"op": "sum"} if name.startswith("agg_weighted") else {}
    many, one = (alike(op, n, dtype, shared, **attributes) for n in (count, 1))
    assert_accurate(op, many, judged(op, one), count)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OTHERS)
def test_means_of_equal_terms(name, dtype):
    """Softmax and mean, whose terms depend on their number: the judge adds all of them."""
    op = OPERATORS[name]
    attributes = {"op": "mean"} if name.startswith("agg_weighted") else {}
    values = alike(op, MANY, dtype, **attributes)
    assert_accurate(op, values, judged(op, values))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["fwd", "bwd", "bwd2"])
def test_equal_edges_of_the_radial_basis(mode, dtype):
    op = OPERATORS[f"radial_basis_{mode}"]
    many, one = (alike(op, count, dtype) for count in (MANY, 1))
    for values in (many, one):
        values["dist"] /= 2  # below the cutoff
    assert_accurate(op, many, judged(op, one), MANY)


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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("ins", "outs"), [(MANY, 9), (9, MANY)])
@pytest.mark.parametrize("mode", ["fwd", "bwd", "bwd2"])
def test_equal_edges_of_one_node(mode, ins, outs, dtype):
    """A node with more in-edges and out-edges than degrees, so that its state is summed, over very many of either.

    Each in-edge meets every out-edge: the judge says what one of each gives.
    """
    op = OPERATORS[f"agg_edge_to_edge_{mode}"]
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
