"""Tests of attention, weighted aggregation and DimeNet++: inf, NaN, ties, extreme lengths and unusual head widths.

`trigraph verify` covers ordinary values, large scores, NaN in every argument and graphs without edges.
"""

import importlib
import itertools

import numpy as np
import pytest
from table_calls import CPU_BACKENDS, OPS, assert_accurate, compute_fields, draw_operator_arguments

import trigraph
from trigraph import CSC, EdgeGraph
from trigraph.backends import BACKENDS
from trigraph.fortran import levels
from trigraph.table import OPERATORS
from trigraph.verification.judged import compute_with_judge

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


def call_operator_without_warnings(name, backend, *args, **keywords):
    """Call an operator, and suppress NumPy's warnings about inf - inf."""
    with np.errstate(all="ignore"):
        return getattr(trigraph, name)(*args, backend=backend, **keywords)


def softmax(scores):
    e = np.exp(scores - np.max(scores))
    return e / e.sum()


def assert_close(got, expected, dtype, scale=1.0):
    assert got.dtype == dtype
    assert got.shape == np.shape(expected)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.isfinite(got), finite)
    np.testing.assert_array_equal(got[~finite], np.asarray(expected)[~finite])
    assert not (np.max(abs(got[finite] - np.asarray(expected)[finite]), initial=0) > scale * TOLERANCE[dtype])


@EACH_BACKEND
def test_infinite_scores_follow_ieee(backend):
    """Results follow IEEE arithmetic if one (node 0), all (node 1) or none (node 2) of a node's scores is infinite."""
    for activation, infinite in itertools.product(ACTIVATIONS, (np.inf, -np.inf)):
        dtype = np.float32
        graph = CSC(np.array([0, 3, 5, 7]), np.array([0, 1, 2, 0, 1, 1, 2]), 3)
        edges = np.zeros((7, 2), dtype)
        edges[:, 0] = [0.5, infinite, -1, infinite, infinite, 0.25, -0.5]
        src = np.array([[0, 1], [0, 2], [0, 4]], dtype)
        dst, weights = np.zeros((3, 2), dtype), np.array([1, 0, 1, 0, 1, 0], dtype)
        options = {"num_heads": 1, "activation": activation, "negative_slope": 0.25, "edge_embedding": edges}
        inputs = src, dst, weights, graph
        result = call_operator_without_warnings(
            "mha_gat_n2n_fwd", backend, *inputs, return_softmax_scores=True, **options
        )
        with np.errstate(all="ignore"):
            logit = ACTIVATIONS[activation](edges[:, 0].astype(np.float64))
            alpha = np.concatenate([softmax(logit[:3]), softmax(logit[3:5]), softmax(logit[5:])])
        assert_close(result.softmax_scores, np.array([[logit], [alpha]]), dtype)
        parts = zip(np.split(alpha, (3, 5)), ([1, 2, 4], [1, 2], [2, 4]), strict=True)
        expected = [part @ values for part, values in parts]
        assert_close(result.output_embedding[:, 1], np.array(expected), dtype, 4)
        grads = call_operator_without_warnings("mha_gat_n2n_bwd", backend, np.ones((3, 2), dtype), *inputs, **options)
        reached = np.array([np.isnan(alpha[p]).any() for p in ([0, 3], [1, 4, 5], [2, 6])])
        np.testing.assert_array_equal(np.isnan(grads.src_embedding[:, 1]), reached)
        assert np.isfinite(grads.dst_embedding[2]).all()
        masked = (edges[:, 0] <= 0) & (activation == "ReLU")  # relu sets the gradient to 0, even if it is NaN
        np.testing.assert_array_equal(np.isnan(grads.edge_embedding[:, 0]), np.isnan(alpha) & ~masked)


def make_two_edge_attention_arguments(score):
    """Return arguments of attention for one node with two equal in-edges."""
    return {
        "src_embedding": np.array([[score, 0.3]]),
        "dst_embedding": np.array([[1.0, 1.0]]),
        "attention_weights": np.array([1.0, 0.0, 0.0, 0.0]),
        "graph": CSC(np.array([0, 2]), np.zeros(2, np.int64), 1),
        "num_heads": 1,
        "edge_embedding": None,
    }


@pytest.mark.parametrize(("activation", "score"), [("sigmoid", s) for s in (37.0, 50.0, 70.0)] + [("tanh", 25.0)])
def test_underflowing_slope_has_a_positive_scale(activation, score):
    values = make_two_edge_attention_arguments(score) | {
        "activation": activation,
        "grad_output_embedding": np.array([[1.0, 0.7]]),
    }
    fields = compute_with_judge(OPERATORS["mha_gat_n2n_bwd"], values)
    assert (fields["attention_weights"][2] > 0).all()


@pytest.mark.parametrize("level", levels.list_runnable_levels())
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tanh_is_within_two_epsilon(level, dtype):
    """The scores tanh(x) are within 2 eps of NumPy's tanh in long double precision."""
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
        result = trigraph.mha_gat_n2n_fwd(src, np.zeros_like(src), np.array([1, 0, 0, 0], dtype), graph, 1, **options)
    finally:
        trigraph.set_cpu_level(before)
    expected = np.tanh(x.astype(np.longdouble))
    error = abs(result.softmax_scores[0, 0] - expected)
    assert (error <= 2 * np.finfo(dtype).eps * abs(expected) + np.finfo(dtype).smallest_subnormal).all()


@pytest.mark.parametrize("backend", ["fortran", "gpu-host"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [1, 2, 3, 4, 5, 8, 9])
def test_any_head_count_and_width_is_accurate(heads, dtype, backend):
    """Results agree with the judge for many head counts and widths, which determine how rows are vectorised."""
    for number, width in enumerate([1, 3, 4, 8, 12, 16, 24, 32, 64]):
        setting = {"activation": "tanh", "concat_heads": (heads + number) % 3 > 0}
        for op in (o for o in OPS if o.definition.name == "mha_gat_n2n"):
            values = draw_operator_arguments(op, dtype, setting=setting, num_heads=heads, dim_head=width)
            assert_accurate(op, values, compute_fields(op, values, backend=backend), chunked=True)


# Weighted aggregation, compared with explicit values or with NumPy.

ARG_EXTREMUM = {"min": np.argmin, "max": np.argmax}
NAN, INF = np.nan, np.inf


def make_message_graph(messages, index=np.int64):
    """Return features, and a graph with one destination per list of messages and one source per message."""
    offsets = np.cumsum([0, *map(len, messages)]).astype(index)
    values = np.concatenate([*map(np.asarray, messages), [0.5]])  # the last source is isolated
    return values[:, None], CSC(offsets, np.arange(offsets[-1], dtype=index), len(values))


@EACH_BACKEND
@pytest.mark.parametrize(("dtype", "index"), [(np.float32, np.int64), (np.float64, np.int32)])
@pytest.mark.parametrize("op", ARG_EXTREMUM)
def test_extremum_location_equals_numpy(backend, op, dtype, index):
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
    values, graph = make_message_graph(messages, index)
    values = values.astype(dtype)
    for weights in (np.ones(graph.num_edges, dtype), None):
        result = call_operator_without_warnings("agg_weighted_n2n_fwd", backend, values, weights, graph, op=op)
        starts = zip(graph.offsets, messages, strict=False)
        expected = np.array([start + ARG_EXTREMUM[op](m) if m else -1 for start, m in starts])
        assert result.output_extrema_location.dtype == index
        assert result.node_degree is None
        np.testing.assert_array_equal(result.output_extrema_location[:, 0], expected)
        np.testing.assert_array_equal(result.output_embedding[:, 0], [values[p, 0] if p >= 0 else 0 for p in expected])
        g = np.arange(1, len(messages) + 1, dtype=dtype)[:, None]
        grads = call_operator_without_warnings("agg_weighted_n2n_bwd", backend, g, values, weights, graph, op=op)
        chosen = expected >= 0
        assert not np.delete(grads.embedding[:, 0], expected[chosen]).any()
        np.testing.assert_array_equal(grads.embedding[expected[chosen], 0], g[chosen, 0])
        if weights is not None:
            assert not np.delete(grads.edge_weight, expected[chosen]).any()


@EACH_BACKEND
def test_first_extremum_or_nan_is_selected(backend):
    """Among 700 in-edges (three chunks), the first of equal extrema is selected, or the first NaN in any chunk."""
    for op, first in itertools.product(ARG_EXTREMUM, (3, 300, 699)):
        sign = 1 if op == "max" else -1
        messages = np.cos(np.arange(700.0)) * 0.5
        messages[[first, 699]] = sign * 2.0
        values, graph = make_message_graph([messages, np.where(np.arange(700) >= first, NAN, messages)])
        result = call_operator_without_warnings("agg_weighted_n2n_fwd", backend, values, None, graph, op=op)
        np.testing.assert_array_equal(result.output_extrema_location[:, 0], [first, 700 + first])
        np.testing.assert_array_equal(result.output_embedding[:, 0], [sign * 2.0, NAN])


@EACH_BACKEND
def test_mean_with_zero_weight_sum_is_nonfinite(backend):
    """A mean whose weights sum to 0 is NaN (0/0) or infinite (x/0); other destinations are unaffected."""
    graph = CSC(np.array([0, 2, 4, 4, 6]), np.array([0, 0, 0, 1, 2, 3]), 5)
    embedding = np.array([[2.0, -4], [1, -4], [3, 6], [9, 0], [1, 1]])
    weights = np.array([1, -1, 1, -1, 1, 0.5])
    result = call_operator_without_warnings("agg_weighted_n2n_fwd", backend, embedding, weights, graph, op="mean")
    np.testing.assert_array_equal(result.node_degree, [0, 0, 0, 1.5])
    np.testing.assert_array_equal(result.output_embedding[:3], [[NAN, NAN], [INF, NAN], [0, 0]])
    np.testing.assert_allclose(result.output_embedding[3], [5, 4], rtol=1e-15)
    g = np.ones((4, 2))
    grads = call_operator_without_warnings("agg_weighted_n2n_bwd", backend, g, embedding, weights, graph, op="mean")
    np.testing.assert_array_equal(np.isfinite(grads.embedding[:, 0]), [False, False, True, True, True])
    np.testing.assert_array_equal(np.isfinite(grads.edge_weight), [False] * 4 + [True] * 2)
    np.testing.assert_allclose(grads.embedding[2:], [[2 / 3] * 2, [1 / 3] * 2, [0, 0]], rtol=1e-15)
    np.testing.assert_allclose(grads.edge_weight[4:], [(3 - 5 + 6 - 4) / 1.5, (9 - 5 + 0 - 4) / 1.5], atol=1e-15)
    inputs = embedding, weights
    second = call_operator_without_warnings("agg_weighted_n2n_bwd2", backend, *inputs, g, *inputs, graph, op="mean")
    assert np.isfinite(second.grad_output_embedding[2:]).all()
    assert np.isfinite(second.embedding[2:]).all()
    assert np.isfinite(second.edge_weight[4:]).all()
    counted = call_operator_without_warnings(
        "agg_weighted_n2n_fwd", backend, embedding, weights, graph, op="mean", mean_by="count"
    )
    np.testing.assert_array_equal(counted.node_degree, [2, 2, 0, 2])
    np.testing.assert_array_equal(counted.output_embedding[:3], [[0, 0], [0.5, 0], [0, 0]])


# DimeNet++: extreme vector lengths, NaN without effect, nonpositive distances, and parallel edges.

S, R, C, M = 5, 3, 6, 4


def make_complete_graph(nodes=9):
    """Return a complete graph; fast backends sum over harmonics at nodes with more than num_spherical edges."""
    src, dst = np.nonzero(~np.eye(nodes, dtype=bool))
    return EdgeGraph(src, dst, nodes)


def draw_edge_inputs(rng, edges, dtype):
    shapes = {"vec": (edges, 3), "sbf_rad": (edges, S * R), "embedding": (edges, C), "weights": (S * R + C, M)}
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


def compute_edge_to_edge_orders(backend, graph, inputs, cotangents, grad_out, exclude):
    """Return the results of the five agg_edge_to_edge operators by name."""
    attributes = {"num_spherical": S, "num_radial": R, "exclude": exclude, "backend": backend}
    call = {**inputs, "graph": graph, **attributes}
    main_cotangents = {name: cotangents[name] for name in ("gg_sbf_rad", "gg_embedding")}
    arrays = {"out": trigraph.agg_edge_to_edge_fwd(**call)}
    arrays["bwd2_grad"] = trigraph.agg_edge_to_edge_bwd2_grad(**main_cotangents, **call)
    for order, keywords in (("bwd", {}), ("bwd2", cotangents), ("bwd2_main", main_cotangents)):
        result = getattr(trigraph, f"agg_edge_to_edge_{order}")(grad_out=grad_out, **keywords, **call)
        arrays |= {f"{order}.{name}": array for name, array in result._asdict().items()}
    return arrays


def draw_extreme_exponents(dtype):
    """Return shuffled exponents of powers of two, from the smallest subnormal to beyond the largest finite power."""
    info = np.finfo(dtype)
    powers = np.linspace(info.minexp - info.nmant, info.maxexp, 72).astype(int)
    return np.random.default_rng(1).permutation(powers)[:, None]


@pytest.mark.parametrize("dtype", DTYPES)
@EACH_BACKEND
def test_scaled_vectors_change_only_vector_gradients(backend, dtype):
    """Multiplying vec by powers of two divides its gradients by them and leaves other results bitwise unchanged."""
    rng, graph, powers = np.random.default_rng(2), make_complete_graph(), draw_extreme_exponents(dtype)
    base = draw_edge_inputs(rng, graph.num_edges, dtype)
    # Components are below 1, so that scaled vectors are finite; subnormal vectors have fewer digits.
    base["vec"] = rng.uniform(-1, 1, base["vec"].shape).astype(dtype)
    base["vec"][:, 0] = rng.choice([-1, 1], len(powers)) * np.nextafter(dtype(1), dtype(0))
    along = rng.uniform(-1, 1, base["vec"].shape).astype(dtype)
    vec, gg_vec = np.ldexp(base["vec"], powers), np.ldexp(along, powers)
    base["vec"], along = np.ldexp(vec, -powers), np.ldexp(gg_vec, -powers)
    assert np.isfinite(vec).all()
    assert (np.abs(vec).max(1) < np.finfo(dtype).tiny).any()
    cotangents = {f"gg_{name}": array for name, array in draw_edge_inputs(rng, graph.num_edges, dtype).items()}
    grad_out = rng.standard_normal((graph.num_edges, C)).astype(dtype)
    base_results = compute_edge_to_edge_orders(backend, graph, base, cotangents | {"gg_vec": along}, grad_out, "node")
    with np.errstate(over="ignore"):  # gradients grow as 1 / |vec|
        rescaled = compute_edge_to_edge_orders(
            backend, graph, base | {"vec": vec}, cotangents | {"gg_vec": gg_vec}, grad_out, "node"
        )
        expected = {n: np.ldexp(array, -powers) if n.endswith(".vec") else array for n, array in base_results.items()}
    for name, array in base_results.items():
        assert np.isfinite(array).all(), name
        np.testing.assert_array_equal(rescaled[name], expected[name], err_msg=name)


@pytest.mark.parametrize("exclude", [None, "node"])
@pytest.mark.parametrize("nodes", [3, 14])
@EACH_BACKEND
def test_nan_in_degree_zero_spares_vector_gradients(backend, nodes, exclude):
    """Y_0 is constant: NaN in degree 0 of sbf_rad does not affect vec's gradient, nor does gg_vec affect degree 0."""
    rng, graph = np.random.default_rng(4), make_complete_graph(nodes)
    inputs = draw_edge_inputs(rng, graph.num_edges, np.float64)
    cotangents = {f"gg_{n}": a for n, a in draw_edge_inputs(rng, graph.num_edges, np.float64).items()}
    grad_out = rng.standard_normal((graph.num_edges, C))
    with_nan = dict(inputs, sbf_rad=inputs["sbf_rad"].copy())
    with_nan["sbf_rad"][::3, :R] = np.nan
    clean = compute_edge_to_edge_orders(backend, graph, inputs, cotangents, grad_out, exclude)
    results = compute_edge_to_edge_orders(backend, graph, with_nan, cotangents, grad_out, exclude)
    assert np.isnan(results["out"]).any()
    for name in ("bwd.vec", "bwd2.vec"):
        # The fast backends may use another summation order for inputs that are not finite.
        np.testing.assert_allclose(results[name], clean[name], rtol=1e-9, atol=1e-9)
    cotangents["gg_vec"] = cotangents["gg_vec"].copy()
    cotangents["gg_vec"][::3] = np.nan
    results = compute_edge_to_edge_orders(backend, graph, inputs, cotangents, grad_out, exclude)
    assert np.isnan(results["bwd2.sbf_rad"][:, R:]).any()
    np.testing.assert_allclose(results["bwd2.sbf_rad"][:, :R], clean["bwd2.sbf_rad"][:, :R], rtol=1e-9, atol=1e-9)


@EACH_BACKEND
@pytest.mark.parametrize("wrong", [0.0, -0.25, -np.inf])
def test_nonpositive_distances_are_refused_or_give_nan(backend, wrong):
    """Public functions reject dist <= 0, for which backends return NaN; if dist is NaN, so is the result."""
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
        arrays = {"rbf": first.rbf, "sbf_rad": first.sbf_rad}
        second = module.radial_basis_bwd(**grads, dist=dist, freq=freq, num_spherical=2)
        arrays["dist"] = second.dist[:, None]
        third = module.radial_basis_bwd2(np.ones(4), np.ones(3), **grads, dist=dist, freq=freq, num_spherical=2)
        arrays |= {"grad_rbf": third.grad_rbf, "grad_sbf_rad": third.grad_sbf_rad, "second dist": third.dist[:, None]}
    for name, array in arrays.items():
        assert np.isnan(array[1::2]).all(), name
        assert np.isfinite(array[::2]).all(), name
    assert np.isnan(second.freq).all()
    assert np.isnan(third.freq).all()


@EACH_BACKEND
def test_excluding_dominant_parallel_edges_stays_accurate(backend):
    """The remainder is accurate if four parallel edges that dominate their node's sum are excluded."""
    rng, nodes = np.random.default_rng(6), 12
    src, dst = np.nonzero(~np.eye(nodes, dtype=bool))
    more = np.array([0, 1]), np.array([1, 0])
    src, dst = np.concatenate([src, *[more[0]] * 3]), np.concatenate([dst, *[more[1]] * 3])
    by_source = np.lexsort((dst, src))
    graph = EdgeGraph(src[by_source], dst[by_source], nodes)
    for dtype in DTYPES:
        inputs = draw_edge_inputs(rng, graph.num_edges, dtype)
        pair = (graph.src < 2) & (graph.dst < 2)
        inputs["embedding"][pair], inputs["sbf_rad"][pair] = dtype(2.0**20), inputs["sbf_rad"][0]
        call = {"graph": graph, "num_spherical": S, "num_radial": R}
        wide = {n: a.astype(np.float64) for n, a in inputs.items()}
        right = trigraph.agg_edge_to_edge_fwd(**wide, **call, backend="pyref")
        out = trigraph.agg_edge_to_edge_fwd(**inputs, **call, backend=backend)
        sizes = np.abs(right[pair]).max()
        assert np.abs(out[pair] - right[pair]).max() <= 200 * np.finfo(dtype).eps * sizes


@EACH_BACKEND
def test_excluding_one_dominant_edge_stays_accurate(backend):
    """The twelfth of the 40 in-edges of node 0 dominates, and only its own reverse excludes it.

    gpu-host stages eight edges at a time, so the excluded edge is in the second group.
    """
    src, dst = np.r_[np.arange(1, 41), 0, 0], np.r_[np.zeros(40, int), 12, 41]
    by_source = np.argsort(src, kind="stable")
    graph = EdgeGraph(src[by_source], dst[by_source], 42)
    sizes = {"num_spherical": 7, "num_radial": 2, "n_emb": 3, "n_mid": 2}
    for op in (OPERATORS[f"agg_edge_to_edge_{order}"] for order in ("fwd", "bwd", "bwd2")):
        values = draw_operator_arguments(op, np.float32, graph=graph, setting={"exclude": "edge"}, **sizes)
        for name in {"embedding", "gg_embedding"} & values.keys():
            values[name][graph.src == 12] *= 2.0**20
        assert_accurate(op, values, compute_fields(op, values, backend=backend), backend in ("fortran", "gpu-host"))


def test_rows_of_64_channels_are_accurate():
    """GemNet-OC's kernels copy a row of 64 channels to shared memory in several pieces of 16 bytes."""
    sizes = {"emb_in": 64, "emb_out": 64, "interm": 16, "num_spherical": 7}
    for op in (OPERATORS[f"interaction_bilinear_{order}"] for order in ("fwd", "bwd", "bwd2")):
        values = draw_operator_arguments(op, np.float32, **sizes)
        assert_accurate(op, values, compute_fields(op, values, backend="gpu-host"), chunked=True)
