"""Tests that sums over very many equal terms are within 8 eps of the judge, for every operator.

The same bound applies to parameter gradients, which are summed over nodes of very different degrees.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from table_calls import OPS, compute_fields, draw_operator_arguments

from trigraph import CSC, EdgeGraph, Segments
from trigraph.table import DEFINITIONS
from trigraph.verification.judged import compute_with_judge

EPS = 8  # maximum error of chunked sums of any length, in machine epsilons
WIDTH = 3  # size of axes other than edges, nodes and similar entities


class HubSettings(NamedTuple):
    """A backend, the number and dtype of the terms, and the derivative orders to test."""

    backend: str
    terms: int
    dtype: type = np.float32
    orders: tuple[int, ...] = (0, 1, 2)


FAST = HubSettings("fortran", 100_000)
# Adding 117 chunks one by one would exceed 8 eps; second derivatives also launch the kernels of lower orders.
EMULATED = HubSettings("gpu-host", 30_000, orders=(2,))
# One template serves both dtypes; sums of 70,000 > 256 * 256 terms use all levels of the summation tree.
SLOW = [FAST._replace(dtype=np.float64), FAST._replace(terms=1_000_000), HubSettings("gpu-host", 70_000)]
HUB_SETTINGS = [FAST, EMULATED, *(pytest.param(run, marks=pytest.mark.slow) for run in SLOW)]


def make_hub_graph(sizes):
    """Return edges from sources 0 and 1 into one node or one node per pair; there are two edge rows or one per edge."""
    src = np.tile(np.arange(2), sizes["num_positions"] // 2)
    dst = np.repeat(np.arange(sizes["num_dst_nodes"]), sizes["num_positions"] // sizes["num_dst_nodes"])
    rows = src if sizes["num_edges"] == 2 else np.arange(len(src))
    return {"graph": CSC.from_coo(src, dst, 2, sizes["num_dst_nodes"], rows, sizes["num_edges"])}


def make_equal_segments(sizes):
    """Return Segments in which all segments have the same number of members."""

    def make_even_segments(number, bound):
        return Segments(np.repeat(np.arange(bound), number // bound), bound)

    graphs = {"triplets": make_even_segments(sizes["num_triplets"], sizes["num_edges"])}
    if "num_outputs" in sizes:
        graphs["atoms"] = make_even_segments(sizes["num_edges"], sizes["num_outputs"])
        graphs["idx_in"] = make_even_segments(sizes["num_triplets"], sizes["num_inputs"])
    return graphs


class CallEnlargement(NamedTuple):
    """Describes how a small call is enlarged, for one type of graph.

    An arrangement maps sizes to divisors: each size is multiplied by the number of terms divided by its divisor.
    """

    make: Callable  # function that maps sizes to graph objects
    small_sizes: dict  # sizes of the small call
    terms: str  # name of the size that is the number of terms
    arrangements: list


INTO_ONE, OUT_OF_ONE = {}, {"num_dst_nodes": 1}
PAIR = {"num_positions": 2, "num_src_nodes": 2, "num_dst_nodes": 1, "num_edges": 2}
EDGE = {"num_triplets": 1, "num_edges": 1}
INTO_ATOM, FROM_ROW = {"num_edges": 1, "num_inputs": 1}, {"num_edges": 1, "num_outputs": 1}
FEWER_EDGES = {"num_edges": 50, "num_inputs": 1}  # sums into an atom over edges with 50 triplets each
HUB_GRAPHS = {
    None: CallEnlargement(lambda _: {}, {"num_edges": 1}, "num_edges", [{}]),
    "csc": CallEnlargement(make_hub_graph, PAIR, "num_positions", [INTO_ONE, OUT_OF_ONE, {"num_edges": 1}]),
    "triplets": CallEnlargement(make_equal_segments, EDGE, "num_triplets", [{}, {"num_edges": 1}]),
    "bilinear": CallEnlargement(
        make_equal_segments,
        EDGE | {"num_outputs": 1, "num_inputs": 1},
        "num_triplets",
        [{}, INTO_ATOM, FEWER_EDGES, FROM_ROW],
    ),
}
# Settings that are linear in the terms (all, for operators not listed), and settings that average or select terms.
LINEAR = {"agg_weighted_n2n": [{"op": "sum"}], "mha_gat_n2n": []}
MEANS = {
    "agg_weighted_n2n": [{"op": "mean", "mean_by": "weight"}, {"op": "mean", "mean_by": "count"}, {"op": "max"}],
    "mha_gat_n2n": [{"activation": "sigmoid"}],
}
CASES = [
    pytest.param(d, setting, grown, mean, id=f"{d.name} {setting} {grown}")
    for d in DEFINITIONS
    if d.graph in HUB_GRAPHS
    for mean, settings in ((False, LINEAR.get(d.name, [{}])), (True, MEANS.get(d.name, [])))
    for setting in settings
    for grown in HUB_GRAPHS[d.graph].arrangements[: 2 if mean else None]
]


def draw_small_arguments(op, dtype, graphs, setting=None, seed=5):
    """Return positive arguments of a call with few edges and nodes, without results of fwd."""
    sizes = {s: min(WIDTH, op.definition.get_limited_symbol(s).maximum or WIDTH) for s in op.definition.symbols} | {
        "num_edges": 1
    }
    values = draw_operator_arguments(op, dtype, graph=graphs, seed=seed, setting=setting, data="positive", **sizes)
    if "attention_weights" in values:  # make scores small, so that their rounding errors hardly matter
        values["attention_weights"] *= dtype(1e-3)
    return values | {a.name: None for a in op.arguments if a.given_back}


def assert_multiple(got, judged, factor, what):
    """Assert that results agree with the judge's triples (high, low, scale) multiplied by a factor."""
    high, low, scale = judged.astype(np.longdouble)
    error = np.abs((got - factor * high) - factor * low)
    assert np.all(error <= EPS * np.finfo(got.dtype).eps * factor * scale), what


def enlarge_arguments(op, values, repetitions, make, small_sizes):
    """Return the arguments of the large call; `repetitions` maps each axis to the number of repetitions of its rows."""
    arrays = [a for a in op.arguments if a.dims[0] in repetitions and not a.given_back]
    tiles = {a.name: (repetitions[a.dims[0]], *[1] * (len(a.dims) - 1)) for a in arrays}
    rows = {name: np.tile(values[name], tile) for name, tile in tiles.items()}
    return values | make({name: size * repetitions.get(name, 1) for name, size in small_sizes.items()}) | rows


def assert_sums_are_multiples(settings_of_hub, definition, setting, size_divisors, mean):
    """Compare a definition's operators for large calls with multiples of the judge's results for a small call."""
    make, small_sizes, terms, _ = HUB_GRAPHS[definition.graph]
    repetitions = {name: settings_of_hub.terms // divisor for name, divisor in ({terms: 1} | size_divisors).items()}
    for op in (o for o in OPS if o.definition is definition and o.order in settings_of_hub.orders):
        values = draw_small_arguments(op, settings_of_hub.dtype, make(small_sizes), setting)
        large = enlarge_arguments(op, values, repetitions, make, small_sizes)
        got, judged = compute_fields(op, large, backend=settings_of_hub.backend), compute_with_judge(op, values)
        for field in (f for f in op.fields if f.name in judged and not f.index and f.name != "softmax_scores"):
            rows = repetitions.get(field.dims[0], 1)
            is_averaged = mean and size_divisors == INTO_ONE and field.name != "node_degree"
            factor = 1 if is_averaged else settings_of_hub.terms // rows
            results_by_row = got[field.name].reshape(rows, *judged[field.name].shape[1:])
            assert_multiple(results_by_row, judged[field.name], factor, (op.name, field.name))


@pytest.mark.parametrize("settings_of_hub", HUB_SETTINGS)
@pytest.mark.parametrize(("definition", "setting", "size_divisors", "mean"), CASES)
def test_sums_of_equal_terms_are_accurate(definition, setting, size_divisors, mean, settings_of_hub):
    assert_sums_are_multiples(settings_of_hub, definition, setting, size_divisors, mean)


def test_sum_of_million_terms_is_accurate_in_emulator():
    """A sum of a million terms in gpu-host, where eight threads add a thousand partial sums each."""
    definition = next(d for d in DEFINITIONS if d.name == "agg_weighted_n2n")
    assert_sums_are_multiples(
        HubSettings("gpu-host", 1_000_000, orders=(0,)), definition, {"op": "sum"}, INTO_ONE, False
    )


def make_star_graph(n_in, n_out):
    """Return a graph in which node 0 has n_in in-edges and n_out out-edges; the out-edges come first."""
    src = np.concatenate([np.zeros(n_out, np.int64), np.arange(1, n_in + 1)])
    dst = np.concatenate([np.arange(n_in + 1, n_in + n_out + 1), np.zeros(n_in, np.int64)])
    return {"graph": EdgeGraph(src, dst, 1 + n_in + n_out)}


# In-edges take longer than out-edges; sums of 30,000 terms fail if their chunks are added one by one.
FIRST = EMULATED._replace(orders=(1,))
STARS = [(FAST, 30_000, 1), (FAST, 30_000, 12), (FAST, 1, 100_000), (FAST, 12, 100_000), (FAST, 1000, 200)]
STARS += [(FIRST, 30_000, 9), (FIRST, 9, 30_000)]
MANY = [(run, min(run.terms, 100_000)) for run in SLOW]
STARS += [pytest.param(run, *ends, marks=pytest.mark.slow) for run, many in MANY for ends in ((many, 12), (12, many))]


@pytest.mark.parametrize(("settings_of_hub", "n_in", "n_out"), STARS)
def test_sums_over_equal_edges_are_accurate(settings_of_hub, n_in, n_out):
    """At one node, all in-edges are equal and all out-edges are equal, so that sums are multiples of one term."""
    for op in (o for o in OPS if o.definition.graph == "edges" and o.order in settings_of_hub.orders):
        values = draw_small_arguments(op, settings_of_hub.dtype, make_star_graph(1, 1))
        rows = {a.name: np.repeat(values[a.name], [n_out, n_in], axis=0) for a in op.arguments if "num_edges" in a.dims}
        large = values | rows | make_star_graph(n_in, n_out)
        got, judged = compute_fields(op, large, backend=settings_of_hub.backend), compute_with_judge(op, values)
        for name, triples in judged.items():
            if name == "weights":
                assert_multiple(got[name], triples, n_in * n_out, (op.name, name))
            else:
                assert_multiple(got[name][:n_out], triples[:, :1], n_in, (op.name, name))
                assert_multiple(got[name][n_out:], triples[:, 1:], n_out, (op.name, name))


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "degrees",
    [
        pytest.param([1_950] + [1] * 1_950, id="hub first"),
        pytest.param([1] * 1_000 + [1_950] + [1] * 950, id="hub between"),
        pytest.param(([256] + [1] * 47) * 20, id="hub in every block"),
        pytest.param([64] + [1] * 47, id="one block"),
    ],
)
def test_parameter_gradients_are_accurate_for_unequal_degrees(degrees, dtype):
    """Parameter gradients are accurate sums over nodes of very different degrees."""
    total = sum(degrees)
    dst = np.repeat(np.arange(len(degrees)), degrees)
    graph = CSC.from_coo(dst * 0, dst, 1, len(degrees))
    numbers = {"num_edges": total, "num_dst_nodes": len(degrees)}
    one_edge = CSC.from_coo(dst[:1] * 0, dst[:1], 1, 1)
    for op in (o for o in OPS if o.definition.name == "gno_message" and o.accepts_wrt):
        for seed in range(5):
            values = draw_small_arguments(op, dtype, {"graph": one_edge}, seed=seed)
            rows = {a.name: np.repeat(values[a.name], numbers.get(a.dims[0], 1), axis=0) for a in op.arguments}
            got = compute_fields(op, values | rows | {"graph": graph}, wrt="params")
            assert_multiple(got["params"], compute_with_judge(op, values)["params"], total, op.name)
