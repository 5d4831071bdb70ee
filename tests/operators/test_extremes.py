"""Attention, weighted aggregation and DimeNet++ at the ends of their domain, and many numbers and widths of heads.

Values elsewhere, large scores, NaN in every argument, graphs without edges are what `trigraph verify` shows.
"""

import importlib

import numpy as np
import pytest
from table_calls import CPU_BACKENDS, OPS, assert_right, call, draw

import trigraph
from trigraph import CSC, EdgeGraph
from trigraph.backends import BACKENDS
from trigraph.fortran import levels
from trigraph.table import OPERATORS
from trigraph.verification.judged import ask

EACH_BACKEND = pytest.mark.parametrize("backend", CPU_BACKENDS)
ACTIVATIONS = {
    "linear": lambda x: x,
    "ReLU": lambda x: np.where(x > 0, x, 0),
    "LeakyReLU": lambda x: np.where(x > 0, x, x / 4),
    "ELU": lambda x: np.where(x > 0, x, np.exp(np.minimum(x, 0)) - 1),
    "sigmoid": lambda x: np.array([1 / (1 + np.exp(-v)) if v > -700 else 0.0 for v in x]),
    "tanh": np.tanh,
}
DTYPES = (np.float32, np.float64)
TOLERANCE = {np.float32: 2e-6, np.float64: 1e-14}


def run(name, backend, *args, **keywords):
    """Call an operator with what NumPy warns about in inf - inf left to the test."""
    with np.errstate(all="ignore"):
        return getattr(trigraph, name)(*args, backend=backend, **keywords)


def softmax(scores):
    e = np.exp(scores - np.max(scores))
    return e / e.sum()


def close(got, expected, dtype, scale=1.0):
    assert got.dtype == dtype
    assert got.shape == np.shape(expected)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.isfinite(got), finite)
    np.testing.assert_array_equal(got[~finite], np.asarray(expected)[~finite])
    assert not (np.max(abs(got[finite] - np.asarray(expected)[finite]), initial=0) > scale * TOLERANCE[dtype])


@EACH_BACKEND
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("infinite", [np.inf, -np.inf])
def test_infinite_scores_give_what_ieee_gives(backend, infinite, activation):
    """Infinite features of one in-edge of destination 0, of all of destination 1, of none of destination 2."""
    dtype = np.float32
    graph = CSC(np.array([0, 3, 5, 7]), np.array([0, 1, 2, 0, 1, 1, 2]), 3)
    edges = np.zeros((7, 2), dtype)
    edges[:, 0] = [0.5, infinite, -1, infinite, infinite, 0.25, -0.5]
    src = np.array([[0, 1], [0, 2], [0, 4]], dtype)
    dst, weights = np.zeros((3, 2), dtype), np.array([1, 0, 1, 0, 1, 0], dtype)
    options = {"num_heads": 1, "activation": activation, "negative_slope": 0.25, "edge_embedding": edges}
    found = run("mha_gat_n2n_fwd", backend, src, dst, weights, graph, return_softmax_scores=True, **options)
    with np.errstate(all="ignore"):
        logit = ACTIVATIONS[activation](edges[:, 0].astype(np.float64))
        alpha = np.concatenate([softmax(logit[:3]), softmax(logit[3:5]), softmax(logit[5:])])
    close(found.softmax_scores, np.array([[logit], [alpha]]), dtype)
    expected = [
        part @ values for part, values in zip(np.split(alpha, (3, 5)), ([1, 2, 4], [1, 2], [2, 4]), strict=True)
    ]
    close(found.output_embedding[:, 1], np.array(expected), dtype, 4)
    grads = run("mha_gat_n2n_bwd", backend, np.ones((3, 2), dtype), src, dst, weights, graph, **options)
    reached = np.array([np.isnan(alpha[[0, 3]]).any(), np.isnan(alpha[[1, 4, 5]]).any(), np.isnan(alpha[[2, 6]]).any()])
    np.testing.assert_array_equal(np.isnan(grads.src_embedding[:, 1]), reached)
    assert np.isfinite(grads.dst_embedding[2]).all()
    masked = (edges[:, 0] <= 0) & (activation == "ReLU")  # selects zero, whatever the gradient is
    np.testing.assert_array_equal(np.isnan(grads.edge_embedding[:, 0]), np.isnan(alpha) & ~masked)


def parallel(score):
    """One destination with two equal in-edges of this score: the derivatives in the scores are exactly zero."""
    return {
        "src_embedding": np.array([[score, 0.3]]),
        "dst_embedding": np.array([[1.0, 1.0]]),
        "attention_weights": np.array([1.0, 0.0, 0.0, 0.0]),
        "graph": CSC(np.array([0, 2]), np.zeros(2, np.int64), 1),
        "num_heads": 1,
        "edge_embedding": None,
    }


@pytest.mark.parametrize(("activation", "score"), [("sigmoid", s) for s in (37.0, 50.0, 70.0)] + [("tanh", 25.0)])
def test_scale_of_a_slope_that_float64_calls_zero(activation, score):
    values = parallel(score) | {"activation": activation, "grad_output_embedding": np.array([[1.0, 0.7]])}
    fields = ask(OPERATORS["mha_gat_n2n_bwd"], values)
    assert (fields["attention_weights"][2] > 0).all()


@pytest.mark.parametrize("level", levels.available())
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tanh_is_within_two_epsilon(level, dtype):
    """One in-edge: the score before the softmax is tanh of the first number of the source."""
    rng = np.random.default_rng(3)
    x = np.concatenate([rng.uniform(-1, 1, 4000) * 2.0 ** rng.integers(-100, 6, 4000), [0.0, np.inf, -np.inf, 1e-40]])
    x = x.astype(dtype)
    src = np.column_stack([x, np.ones_like(x)])
    n = len(x)
    graph = CSC(np.arange(n + 1), np.arange(n), n)
    before = trigraph.get_cpu_level()
    trigraph.set_cpu_level(level)
    try:
        options = {"activation": "tanh", "return_softmax_scores": True}
        found = trigraph.mha_gat_n2n_fwd(src, np.zeros_like(src), np.array([1, 0, 0, 0], dtype), graph, 1, **options)
    finally:
        trigraph.set_cpu_level(before)
    expected = np.tanh(x.astype(np.longdouble))
    error = abs(found.softmax_scores[0, 0] - expected)
    assert (error <= 2 * np.finfo(dtype).eps * abs(expected) + np.finfo(dtype).smallest_subnormal).all()


@pytest.mark.parametrize("backend", ["fortran", "gpu-host"])
@pytest.mark.parametrize("heads", [1, 3, 4, 5, 8, 9])
def test_any_number_and_width_of_heads(heads, backend):
    """They decide how rows are cut into vectors and lanes."""
    for number, width in enumerate([1, 3, 4, 8, 12, 16, 24, 32]):
        setting = {"activation": "tanh", "concat_heads": (heads + number) % 3 > 0}
        for op in (o for o in OPS if o.definition.name == "mha_gat_n2n"):
            values = draw(op, DTYPES[number % 2], setting=setting, num_heads=heads, dim_head=width)
            assert_right(op, values, call(op, values, backend=backend), chunked=True)


# Weighted aggregation: expected values are written out, or NumPy's own.

PICK = {"min": np.argmin, "max": np.argmax}
NAN, INF = np.nan, np.inf


def star(messages, index=np.int64):
    """A destination for each list of messages: sources of one feature each, weights of one."""
    offsets = np.cumsum([0, *map(len, messages)]).astype(index)
    values = np.concatenate([*map(np.asarray, messages), [0.5]])  # the last source is isolated
    return values[:, None], CSC(offsets, np.arange(offsets[-1], dtype=index), len(values))


@EACH_BACKEND
@pytest.mark.parametrize(("dtype", "index"), [(np.float32, np.int64), (np.float64, np.int32)])
@pytest.mark.parametrize("op", PICK)
def test_location_is_that_of_numpy(backend, op, dtype, index):
    messages = [
        [1, 3, 3, 1],
        [2.5],
        [],
        [1, NAN, 5, NAN, -7],
        [NAN],
        [INF, INF],
        [-INF, -INF, -INF],
        [-INF, INF, 0, INF, -INF],
        [NAN, INF, -INF],
        [INF, NAN],
        [0.0, -0.0, 0.0],
    ]
    values, graph = star(messages, index)
    values = values.astype(dtype)
    for weights in (np.ones(graph.num_edges, dtype), None):
        found = run("agg_weighted_n2n_fwd", backend, values, weights, graph, op=op)
        starts = zip(graph.offsets, messages, strict=False)
        expected = np.array([start + PICK[op](m) if m else -1 for start, m in starts])
        assert found.output_extrema_location.dtype == index
        assert found.node_degree is None
        np.testing.assert_array_equal(found.output_extrema_location[:, 0], expected)
        np.testing.assert_array_equal(found.output_embedding[:, 0], [values[p, 0] if p >= 0 else 0 for p in expected])
        g = np.arange(1, len(messages) + 1, dtype=dtype)[:, None]
        grads = run("agg_weighted_n2n_bwd", backend, g, values, weights, graph, op=op)
        chosen = expected >= 0
        assert not np.delete(grads.embedding[:, 0], expected[chosen]).any()
        np.testing.assert_array_equal(grads.embedding[expected[chosen], 0], g[chosen, 0])
        if weights is not None:
            assert not np.delete(grads.edge_weight, expected[chosen]).any()


@EACH_BACKEND
@pytest.mark.parametrize("op", PICK)
@pytest.mark.parametrize("first", [3, 300, 699])
def test_ties_and_nan_far_apart(backend, op, first):
    """More in-edges than two chunks of 256: a tie, and a NaN, beyond the first."""
    sign = 1 if op == "max" else -1
    messages = np.cos(np.arange(700.0)) * 0.5
    messages[[first, 699]] = sign * 2.0
    values, graph = star([messages, np.where(np.arange(700) >= first, NAN, messages)])
    found = run("agg_weighted_n2n_fwd", backend, values, None, graph, op=op)
    np.testing.assert_array_equal(found.output_extrema_location[:, 0], [first, 700 + first])
    np.testing.assert_array_equal(found.output_embedding[:, 0], [sign * 2.0, NAN])


@EACH_BACKEND
@pytest.mark.parametrize("op", PICK)
def test_losers_get_zero_whatever_they_are(backend, op):
    """Weight inf and feature NaN-free: the loser's gradient is a selected zero, not 0 * inf."""
    lost = INF if op == "min" else -INF
    embedding, weights = np.array([[2.0], [3.0]]), np.array([lost, 1.0])
    graph = CSC(np.array([0, 2]), np.array([0, 1]), 2)
    g = np.array([[5.0]])
    grads = run("agg_weighted_n2n_bwd", backend, g, embedding, weights, graph, op=op)
    np.testing.assert_array_equal(grads.embedding, [[0], [5]])
    np.testing.assert_array_equal(grads.edge_weight, [0, 15])
    ggs = np.array([[7.0], [11]]), np.array([13.0, 17])
    second = run("agg_weighted_n2n_bwd2", backend, *ggs, g, embedding, weights, graph, op=op)
    np.testing.assert_array_equal(second.grad_output_embedding, [[11 + 17 * 3]])
    np.testing.assert_array_equal(second.embedding, [[0], [17 * 5]])
    np.testing.assert_array_equal(second.edge_weight, [0, 11 * 5])


@EACH_BACKEND
def test_weights_that_sum_to_zero(backend):
    """Destinations with 1 - 1: 0/0 and 1/0; the others do not notice."""
    graph = CSC(np.array([0, 2, 4, 4, 6]), np.array([0, 0, 0, 1, 2, 3]), 5)
    embedding = np.array([[2.0, -4], [1, -4], [3, 6], [9, 0], [1, 1]])
    weights = np.array([1, -1, 1, -1, 1, 0.5])
    found = run("agg_weighted_n2n_fwd", backend, embedding, weights, graph, op="mean")
    np.testing.assert_array_equal(found.node_degree, [0, 0, 0, 1.5])
    np.testing.assert_array_equal(found.output_embedding[:3], [[NAN, NAN], [INF, NAN], [0, 0]])
    np.testing.assert_allclose(found.output_embedding[3], [5, 4], rtol=1e-15)
    g = np.ones((4, 2))
    grads = run("agg_weighted_n2n_bwd", backend, g, embedding, weights, graph, op="mean")
    np.testing.assert_array_equal(np.isfinite(grads.embedding[:, 0]), [False, False, True, True, True])
    np.testing.assert_array_equal(np.isfinite(grads.edge_weight), [False] * 4 + [True] * 2)
    np.testing.assert_allclose(grads.embedding[2:], [[2 / 3] * 2, [1 / 3] * 2, [0, 0]], rtol=1e-15)
    np.testing.assert_allclose(grads.edge_weight[4:], [(3 - 5 + 6 - 4) / 1.5, (9 - 5 + 0 - 4) / 1.5], atol=1e-15)
    second = run("agg_weighted_n2n_bwd2", backend, embedding, weights, g, embedding, weights, graph, op="mean")
    assert np.isfinite(second.grad_output_embedding[2:]).all()
    assert np.isfinite(second.embedding[2:]).all()
    assert np.isfinite(second.edge_weight[4:]).all()
    counted = run("agg_weighted_n2n_fwd", backend, embedding, weights, graph, op="mean", mean_by="count")
    np.testing.assert_array_equal(counted.node_degree, [2, 2, 0, 2])
    np.testing.assert_array_equal(counted.output_embedding[:3], [[0, 0], [0.5, 0], [0, 0]])


# DimeNet++: vectors of any length, NaN under constant harmonics, no distance, parallel edges.

S, R, C, M = 5, 3, 6, 4


def complete_graph(nodes=9):
    """Every node has nodes - 1 edges either way: more than S, so that fast backends take the linear form."""
    src, dst = np.nonzero(~np.eye(nodes, dtype=bool))
    return EdgeGraph(src, dst, nodes)


def drawn(rng, edges, dtype):
    shapes = {"vec": (edges, 3), "sbf_rad": (edges, S * R), "embedding": (edges, C), "weights": (S * R + C, M)}
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


def all_orders(backend, graph, inputs, cotangents, grad_out, exclude):
    """Results of the five operators by name."""
    attributes = {"num_spherical": S, "num_radial": R, "exclude": exclude, "backend": backend}
    call = {**inputs, "graph": graph, **attributes}
    two = {name: cotangents[name] for name in ("gg_sbf_rad", "gg_embedding")}
    found = {"out": trigraph.agg_edge_to_edge_fwd(**call)}
    found["bwd2_grad"] = trigraph.agg_edge_to_edge_bwd2_grad(**two, **call)
    for order, given in (("bwd", {}), ("bwd2", cotangents), ("bwd2_main", two)):
        result = getattr(trigraph, f"agg_edge_to_edge_{order}")(grad_out=grad_out, **given, **call)
        found |= {f"{order}.{name}": array for name, array in result._asdict().items()}
    return found


def lengths(dtype):
    """Powers of two from the smallest subnormal number to the largest finite one, in no order."""
    info = np.finfo(dtype)
    powers = np.linspace(info.minexp - info.nmant, info.maxexp, 72).astype(int)
    return np.random.default_rng(1).permutation(powers)[:, None]


@pytest.mark.parametrize("dtype", DTYPES)
@EACH_BACKEND
def test_only_directions_matter(backend, dtype):
    """A vector times a power of two: the same bits everywhere, and gradients in it divided by that power."""
    rng, graph, powers = np.random.default_rng(2), complete_graph(), lengths(dtype)
    base = drawn(rng, graph.num_edges, dtype)
    # Largest component below one, so that the largest power is within the range. Subnormal vectors have few digits.
    base["vec"] = rng.uniform(-1, 1, base["vec"].shape).astype(dtype)
    base["vec"][:, 0] = rng.choice([-1, 1], len(powers)) * np.nextafter(dtype(1), dtype(0))
    along = rng.uniform(-1, 1, base["vec"].shape).astype(dtype)
    vec, gg_vec = np.ldexp(base["vec"], powers), np.ldexp(along, powers)
    base["vec"], along = np.ldexp(vec, -powers), np.ldexp(gg_vec, -powers)
    assert np.isfinite(vec).all()
    assert (np.abs(vec).max(1) < np.finfo(dtype).tiny).any()
    cotangents = {f"gg_{name}": array for name, array in drawn(rng, graph.num_edges, dtype).items()}
    grad_out = rng.standard_normal((graph.num_edges, C)).astype(dtype)
    here = all_orders(backend, graph, base, cotangents | {"gg_vec": along}, grad_out, "node")
    with np.errstate(over="ignore"):  # what is of size 1 / |vec| may overflow
        there = all_orders(backend, graph, base | {"vec": vec}, cotangents | {"gg_vec": gg_vec}, grad_out, "node")
        expected = {n: np.ldexp(array, -powers) if n.endswith(".vec") else array for n, array in here.items()}
    for name, array in here.items():
        assert np.isfinite(array).all(), name
        np.testing.assert_array_equal(there[name], expected[name], err_msg=name)


@pytest.mark.parametrize("exclude", [None, "node"])
@pytest.mark.parametrize("nodes", [3, 14])
@EACH_BACKEND
def test_nan_stays_under_constant_harmonics(backend, nodes, exclude):
    """Y_0 is constant: vec's gradients do not depend on sbf_rad of degree 0, nor those of degree 0 on gg_vec."""
    rng, graph = np.random.default_rng(4), complete_graph(nodes)
    inputs = drawn(rng, graph.num_edges, np.float64)
    cotangents = {f"gg_{n}": a for n, a in drawn(rng, graph.num_edges, np.float64).items()}
    grad_out = rng.standard_normal((graph.num_edges, C))
    with_nan = dict(inputs, sbf_rad=inputs["sbf_rad"].copy())
    with_nan["sbf_rad"][::3, :R] = np.nan
    clean = all_orders(backend, graph, inputs, cotangents, grad_out, exclude)
    found = all_orders(backend, graph, with_nan, cotangents, grad_out, exclude)
    assert np.isnan(found["out"]).any()
    for name in ("bwd.vec", "bwd2.vec"):
        # The fast backends may sum in another order where something is not finite.
        np.testing.assert_allclose(found[name], clean[name], rtol=1e-9, atol=1e-9)
    cotangents["gg_vec"] = cotangents["gg_vec"].copy()
    cotangents["gg_vec"][::3] = np.nan
    found = all_orders(backend, graph, inputs, cotangents, grad_out, exclude)
    assert np.isnan(found["bwd2.sbf_rad"][:, R:]).any()
    np.testing.assert_allclose(found["bwd2.sbf_rad"][:, :R], clean["bwd2.sbf_rad"][:, :R], rtol=1e-9, atol=1e-9)


@EACH_BACKEND
@pytest.mark.parametrize("wrong", [0.0, -0.25, -np.inf])
def test_no_distance(backend, wrong):
    """Refused at the front door, NaN where a backend is called directly; NaN is let through."""
    dist, freq = np.array([0.5, wrong, 0.25, wrong]), np.pi * np.arange(1, 4)
    with pytest.raises(ValueError, match=rf"radial_basis_fwd: dist\[1\] is {wrong}; expected a number > 0"):
        trigraph.radial_basis_fwd(dist, freq, backend=backend)
    assert np.isnan(trigraph.radial_basis_fwd(np.array([0.5, np.nan]), freq, backend=backend).rbf[1]).all()
    grads = {"grad_rbf": np.ones((4, 3)), "grad_sbf_rad": np.ones((4, 6))}
    with pytest.raises(ValueError, match=r"radial_basis_bwd: dist\[1\]"):
        trigraph.radial_basis_bwd(**grads, dist=dist, freq=freq, num_spherical=2, backend=backend)
    module = importlib.import_module(BACKENDS[backend][0])
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        first = module.radial_basis_fwd(dist, freq, num_spherical=2)
        found = {"rbf": first.rbf, "sbf_rad": first.sbf_rad}
        second = module.radial_basis_bwd(**grads, dist=dist, freq=freq, num_spherical=2)
        found["dist"] = second.dist[:, None]
        third = module.radial_basis_bwd2(np.ones(4), np.ones(3), **grads, dist=dist, freq=freq, num_spherical=2)
        found |= {"grad_rbf": third.grad_rbf, "grad_sbf_rad": third.grad_sbf_rad, "second dist": third.dist[:, None]}
    for name, array in found.items():
        assert np.isnan(array[1::2]).all(), name
        assert np.isfinite(array[::2]).all(), name
    assert np.isnan(second.freq).all()
    assert np.isnan(third.freq).all()


@pytest.mark.parametrize("dtype", DTYPES)
@EACH_BACKEND
def test_parallel_edges_that_are_most_of_a_sum(backend, dtype):
    """Each of four is a quarter of it and together they are nearly all: what leaves them out is accurate."""
    rng, nodes = np.random.default_rng(6), 12
    src, dst = np.nonzero(~np.eye(nodes, dtype=bool))
    more = np.array([0, 1]), np.array([1, 0])
    src, dst = np.concatenate([src, *[more[0]] * 3]), np.concatenate([dst, *[more[1]] * 3])
    by_source = np.lexsort((dst, src))
    graph = EdgeGraph(src[by_source], dst[by_source], nodes)
    inputs = drawn(rng, graph.num_edges, dtype)
    pair = (graph.src < 2) & (graph.dst < 2)
    inputs["embedding"][pair], inputs["sbf_rad"][pair] = dtype(2.0**20), inputs["sbf_rad"][0]
    call = {"graph": graph, "num_spherical": S, "num_radial": R}
    right = trigraph.agg_edge_to_edge_fwd(
        **{n: a.astype(np.float64) for n, a in inputs.items()}, **call, backend="pyref"
    )
    found = trigraph.agg_edge_to_edge_fwd(**inputs, **call, backend=backend)
    sizes = np.abs(right[pair]).max()
    assert np.abs(found[pair] - right[pair]).max() <= 200 * np.finfo(dtype).eps * sizes
