"""Sums of very many equal terms, in every sum of every operator of the fast path: within 8 eps of the judge's.

Roundings of equal terms all go the same way, so a chain of additions shows here what it hides in random data. A small
call is repeated so often that what the judge says of it, times the number of repetitions where they add up, is right
for the large one; scales add up the same way. `trigraph verify` has 8,100 terms, and a slow test a million
(test_verification_hubs.py).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from table_calls import OPS, call, draw

from trigraph import CSC, EdgeGraph, Segments
from trigraph.table import DEFINITIONS, SYMBOLS
from trigraph.verification.judged import ask

EPS = 8  # what the accuracy rule allows sums in chunks, of whatever length
TERMS = 100_000
WIDTH = 3  # of every axis that is not one of edges, nodes and the like
# Both are instances of one template.
DTYPES = pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])


def csc(sizes):
    """Edges from sources 0 and 1 in turn into one node, or into one for each pair; with two rows, or one for each."""
    src = np.tile(np.arange(2), sizes["num_positions"] // 2)
    dst = np.repeat(np.arange(sizes["num_dst_nodes"]), sizes["num_positions"] // sizes["num_dst_nodes"])
    rows = src if sizes["num_edges"] == 2 else np.arange(len(src))
    return {"graph": CSC.from_coo(src, dst, 2, sizes["num_dst_nodes"], rows, sizes["num_edges"])}


def segments(sizes):
    """Members that are shared equally among segments."""

    def members(number, bound):
        return Segments(np.repeat(np.arange(bound), number // bound), bound)

    graphs = {"triplets": members(sizes["num_triplets"], sizes["num_edges"])}
    if "num_outputs" in sizes:
        graphs["atoms"] = members(sizes["num_edges"], sizes["num_outputs"])
        graphs["idx_in"] = members(sizes["num_triplets"], sizes["num_inputs"])
    return graphs


class Kind(NamedTuple):
    """How the small call of a kind of graph grows: in each arrangement some sizes do, beside the number of terms.

    They do so as often as there are terms, divided by a number.
    """

    make: Callable  # of the graph objects, from sizes
    few: dict  # sizes of the small call
    terms: str  # the size that counts terms
    arrangements: list


INTO_ONE, OUT_OF_ONE = {}, {"num_dst_nodes": 1}
PAIR = {"num_positions": 2, "num_src_nodes": 2, "num_dst_nodes": 1, "num_edges": 2}
EDGE = {"num_triplets": 1, "num_edges": 1}
INTO_ATOM, FROM_ROW = {"num_edges": 1, "num_inputs": 1}, {"num_edges": 1, "num_outputs": 1}
FEWER_EDGES = {"num_edges": 50, "num_inputs": 1}  # into an atom, of edges with several triplets
KINDS = {
    None: Kind(lambda _: {}, {"num_edges": 1}, "num_edges", [{}]),
    "csc": Kind(csc, PAIR, "num_positions", [INTO_ONE, OUT_OF_ONE, {"num_edges": 1}]),
    "triplets": Kind(segments, EDGE, "num_triplets", [{}, {"num_edges": 1}]),
    "bilinear": Kind(
        segments, EDGE | {"num_outputs": 1, "num_inputs": 1}, "num_triplets", [{}, INTO_ATOM, FEWER_EDGES, FROM_ROW]
    ),
}
# Settings in which an operator is linear in its terms, where not all are; the others give a mean of them, or one term.
LINEAR = {"agg_weighted_n2n": [{"op": "sum"}], "mha_gat_n2n": []}
MEANS = {
    "agg_weighted_n2n": [{"op": "mean", "mean_by": "weight"}, {"op": "mean", "mean_by": "count"}, {"op": "max"}],
    "mha_gat_n2n": [{"activation": "sigmoid"}],
}
CASES = [
    pytest.param(d, setting, grown, mean, id=f"{d.name} {setting} {grown}")
    for d in DEFINITIONS
    if d.graph in KINDS
    for mean, settings in ((False, LINEAR.get(d.name, [{}])), (True, MEANS.get(d.name, [])))
    for setting in settings
    for grown in KINDS[d.graph].arrangements[: 2 if mean else None]
]


def small_call(op, dtype, graphs, setting=None, seed=5):
    """Positive arguments of a call of few edges and nodes; nothing is given back."""
    sizes = {s: min(WIDTH, SYMBOLS[s].maximum or WIDTH) for s in op.definition.symbols} | {"num_edges": 1}
    values = draw(op, dtype, graph=graphs, seed=seed, setting=setting, data="positive", **sizes)
    if "attention_weights" in values:  # small scores: what they were rounded to hardly widens the scale
        values["attention_weights"] *= dtype(1e-3)
    return values | {a.name: None for a in op.arguments if a.given_back}


def assert_times(got, judged, factor, what):
    """Compare with the judge's triples, so many times."""
    high, low, scale = judged.astype(np.longdouble)
    error = np.abs((got - factor * high) - factor * low)
    assert np.all(error <= EPS * np.finfo(got.dtype).eps * factor * scale), what


@DTYPES
@pytest.mark.parametrize(("definition", "setting", "grown", "mean"), CASES)
def test_equal_terms(definition, setting, grown, mean, dtype):
    make, few, terms, _ = KINDS[definition.graph]
    times = {terms: TERMS} | {name: TERMS // less for name, less in grown.items()}
    for op in (o for o in OPS if o.definition is definition):
        values = small_call(op, dtype, make(few), setting)
        large = values | make({name: size * times.get(name, 1) for name, size in few.items()})
        for a in op.arguments:
            if a.dims[0] in times and not a.given_back:
                large[a.name] = np.tile(values[a.name], (times[a.dims[0]], *[1] * (len(a.dims) - 1)))
        got, judged = call(op, large), ask(op, values)
        for field in (f for f in op.fields if f.name in judged and not f.index and f.name != "softmax_scores"):
            repeated = times.get(field.dims[0], 1)
            one_by_one = mean and grown == INTO_ONE and field.name != "node_degree"
            factor = 1 if one_by_one else TERMS // repeated
            values_of_each = got[field.name].reshape(repeated, *judged[field.name].shape[1:])
            assert_times(values_of_each, judged[field.name], factor, (op.name, field.name))


def star(n_in, n_out):
    """Node 0 has n_in in-edges and n_out out-edges; the latter come first."""
    src = np.concatenate([np.zeros(n_out, np.int64), np.arange(1, n_in + 1)])
    dst = np.concatenate([np.arange(n_in + 1, n_in + n_out + 1), np.zeros(n_in, np.int64)])
    return {"graph": EdgeGraph(src, dst, 1 + n_in + n_out)}


STARS = [(30_000, 1), (30_000, 12), (1, 100_000), (12, 100_000), (1000, 200)]
# In-edges take longer than out-edges; a chain of the sums of 30000 terms' chunks would already show.
STARS += [pytest.param(100_000, n_out, marks=pytest.mark.slow) for n_out in (1, 12)]


@DTYPES
@pytest.mark.parametrize(("n_in", "n_out"), STARS)
def test_equal_edges_at_one_node(n_in, n_out, dtype):
    """All in-edges are alike, and all out-edges: the first edge goes out, the last comes in."""
    for op in (o for o in OPS if o.definition.graph == "edges"):
        values = small_call(op, dtype, star(1, 1))
        rows = {a.name: np.repeat(values[a.name], [n_out, n_in], axis=0) for a in op.arguments if "num_edges" in a.dims}
        got, judged = call(op, values | rows | star(n_in, n_out)), ask(op, values)
        for name, triples in judged.items():
            if name == "weights":
                assert_times(got[name], triples, n_in * n_out, (op.name, name))
            else:
                assert_times(got[name][0], triples[:, 0], n_in, (op.name, name))
                assert_times(got[name][-1], triples[:, 1], n_out, (op.name, name))


@DTYPES
@pytest.mark.parametrize(
    "degrees",
    [
        pytest.param([1_950] + [1] * 1_950, id="hub first"),
        pytest.param([1] * 1_000 + [1_950] + [1] * 950, id="hub between"),
        pytest.param(([256] + [1] * 47) * 20, id="hub in every block"),
        pytest.param([64] + [1] * 47, id="one block"),
    ],
)
def test_parameters_where_degrees_differ(degrees, dtype):
    """Their gradient is a sum over nodes, whose own sums have very different numbers of equal terms."""
    total = sum(degrees)
    dst = np.repeat(np.arange(len(degrees)), degrees)
    graph = CSC.from_coo(dst * 0, dst, 1, len(degrees))
    numbers = {"num_edges": total, "num_dst_nodes": len(degrees)}
    one_edge = CSC.from_coo(dst[:1] * 0, dst[:1], 1, 1)
    for op in (o for o in OPS if o.definition.name == "gno_message" and o.selective):
        for seed in range(5):
            values = small_call(op, dtype, {"graph": one_edge}, seed=seed)
            rows = {a.name: np.repeat(values[a.name], numbers.get(a.dims[0], 1), axis=0) for a in op.arguments}
            got = call(op, values | rows | {"graph": graph}, wrt="params")
            assert_times(got["params"], ask(op, values)["params"], total, op.name)
