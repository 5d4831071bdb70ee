"""Weighted aggregation at the ends of its domain, in every panel; expected values are written out, or NumPy's own."""

import numpy as np
import pytest
from table_calls import CPU_PANELS

import trigraph
from trigraph import CSC

pytestmark = pytest.mark.parametrize("panel", CPU_PANELS)
PICK = {"min": np.argmin, "max": np.argmax}
OPS = ("sum", "mean", "min", "max")
BACK = ("output_embedding", "node_degree", "output_extrema_location")
NAN, INF = np.nan, np.inf


def call(order, panel, *args, **keywords):
    """Call the operator with what NumPy warns about in inf - inf left to the test."""
    with np.errstate(all="ignore"):
        return getattr(trigraph, f"agg_weighted_n2n_{order}")(*args, panel=panel, **keywords)


def bwd(panel, g, embedding, edge_weight, graph, **options):
    """Gradients; what fwd returned, given back, makes no difference."""
    grads = call("bwd", panel, g, embedding, edge_weight, graph, **options)
    found = call("fwd", panel, embedding, edge_weight, graph, **options)
    given = call("bwd", panel, g, embedding, edge_weight, graph, **options, **{n: getattr(found, n) for n in BACK})
    for mine, other in zip(grads, given, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5)
    return grads


def star(messages, index=np.int64):
    """A destination for each list of messages: sources of one feature each, weights of one."""
    offsets = np.cumsum([0, *map(len, messages)]).astype(index)
    values = np.concatenate([*map(np.asarray, messages), [0.5]])  # the last source is isolated
    return values[:, None], CSC(offsets, np.arange(offsets[-1], dtype=index), len(values))


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("op", PICK)
def test_location_is_that_of_numpy(panel, op, dtype, index):
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
        found = call("fwd", panel, values, weights, graph, op=op)
        starts = zip(graph.offsets, messages, strict=False)
        expected = np.array([start + PICK[op](m) if m else -1 for start, m in starts])
        assert found.output_extrema_location.dtype == index
        assert found.node_degree is None
        np.testing.assert_array_equal(found.output_extrema_location[:, 0], expected)
        np.testing.assert_array_equal(found.output_embedding[:, 0], [values[p, 0] if p >= 0 else 0 for p in expected])
        g = np.arange(1, len(messages) + 1, dtype=dtype)[:, None]
        grads = bwd(panel, g, values, weights, graph, op=op)
        chosen = expected >= 0
        assert not np.delete(grads.embedding[:, 0], expected[chosen]).any()
        np.testing.assert_array_equal(grads.embedding[expected[chosen], 0], g[chosen, 0])
        if weights is not None:
            assert not np.delete(grads.edge_weight, expected[chosen]).any()


@pytest.mark.parametrize("op", PICK)
@pytest.mark.parametrize("first", [3, 300, 699])
def test_ties_and_nan_far_apart(panel, op, first):
    """More in-edges than two chunks of 256: a tie, and a NaN, beyond the first."""
    sign = 1 if op == "max" else -1
    messages = np.cos(np.arange(700.0)) * 0.5
    messages[[first, 699]] = sign * 2.0
    values, graph = star([messages, np.where(np.arange(700) >= first, NAN, messages)])
    found = call("fwd", panel, values, None, graph, op=op)
    np.testing.assert_array_equal(found.output_extrema_location[:, 0], [first, 700 + first])
    np.testing.assert_array_equal(found.output_embedding[:, 0], [sign * 2.0, NAN])


@pytest.mark.parametrize("op", PICK)
def test_losers_get_zero_whatever_they_are(panel, op):
    """Weight inf and feature NaN-free: the loser's gradient is a selected zero, not 0 * inf."""
    lost = INF if op == "min" else -INF
    embedding, weights = np.array([[2.0], [3.0]]), np.array([lost, 1.0])
    graph = CSC(np.array([0, 2]), np.array([0, 1]), 2)
    g = np.array([[5.0]])
    grads = bwd(panel, g, embedding, weights, graph, op=op)
    np.testing.assert_array_equal(grads.embedding, [[0], [5]])
    np.testing.assert_array_equal(grads.edge_weight, [0, 15])
    second = call("bwd2", panel, np.array([[7.0], [11]]), np.array([13.0, 17]), g, embedding, weights, graph, op=op)
    np.testing.assert_array_equal(second.grad_output_embedding, [[11 + 17 * 3]])
    np.testing.assert_array_equal(second.embedding, [[0], [17 * 5]])
    np.testing.assert_array_equal(second.edge_weight, [0, 11 * 5])


def test_weights_that_sum_to_zero(panel):
    """Destinations with 1 - 1: 0/0 and 1/0; the others do not notice."""
    graph = CSC(np.array([0, 2, 4, 4, 6]), np.array([0, 0, 0, 1, 2, 3]), 5)
    embedding = np.array([[2.0, -4], [1, -4], [3, 6], [9, 0], [1, 1]])
    weights = np.array([1, -1, 1, -1, 1, 0.5])
    found = call("fwd", panel, embedding, weights, graph, op="mean")
    np.testing.assert_array_equal(found.node_degree, [0, 0, 0, 1.5])
    np.testing.assert_array_equal(found.output_embedding[:3], [[NAN, NAN], [INF, NAN], [0, 0]])
    np.testing.assert_allclose(found.output_embedding[3], [5, 4], rtol=1e-15)
    g = np.ones((4, 2))
    grads = bwd(panel, g, embedding, weights, graph, op="mean")
    np.testing.assert_array_equal(np.isfinite(grads.embedding[:, 0]), [False, False, True, True, True])
    np.testing.assert_array_equal(np.isfinite(grads.edge_weight), [False] * 4 + [True] * 2)
    np.testing.assert_allclose(grads.embedding[2:], [[2 / 3] * 2, [1 / 3] * 2, [0, 0]], rtol=1e-15)
    np.testing.assert_allclose(grads.edge_weight[4:], [(3 - 5 + 6 - 4) / 1.5, (9 - 5 + 0 - 4) / 1.5], atol=1e-15)
    second = call("bwd2", panel, embedding, weights, g, embedding, weights, graph, op="mean")
    assert np.isfinite(second.grad_output_embedding[2:]).all()
    assert np.isfinite(second.embedding[2:]).all()
    assert np.isfinite(second.edge_weight[4:]).all()
    counted = call("fwd", panel, embedding, weights, graph, op="mean", mean_by="count")
    np.testing.assert_array_equal(counted.node_degree, [2, 2, 0, 2])
    np.testing.assert_array_equal(counted.output_embedding[:3], [[0, 0], [0.5, 0], [0, 0]])


@pytest.mark.parametrize("mean_by", ["weight", "count"])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("where", ["embedding", "edge_weight"])
def test_nan_reaches_only_what_depends_on_it(panel, where, op, mean_by):
    """NaN in source 2, or in its row 1 alone: its edges go to destinations 0 and 3, row 1 to destination 3."""
    graph = CSC(np.array([0, 2, 4, 4, 7]), np.array([2, 0, 1, 3, 2, 4, 5]), 6, np.array([0, 2, 3, 4, 1, 5, 4]), 7)
    rng = np.random.default_rng(4)
    inputs = {"embedding": rng.standard_normal((6, 3)), "edge_weight": rng.uniform(0.5, 2, 7)}
    ggs = [rng.standard_normal(a.shape) for a in inputs.values()]
    g = rng.standard_normal((4, 3))
    options = {"graph": graph, "op": op, "mean_by": mean_by}
    inputs[where][2 if where == "embedding" else 1] = NAN
    nodes = np.isin(np.arange(4), [0, 3] if where == "embedding" else [3])
    positions = np.repeat(nodes, np.diff(graph.offsets))
    reached = {
        "output_embedding": nodes,
        "grad_output_embedding": nodes,
        "node_degree": nodes,
        "embedding": np.isin(np.arange(6), graph.indices[positions]),
        "edge_weight": np.isin(np.arange(7), graph.edge_ids[positions]),
    }
    found = call("fwd", panel, **inputs, **options)
    assert np.isnan(found.output_embedding[nodes]).all()
    if op in PICK:
        np.testing.assert_array_equal(found.output_extrema_location[nodes], [[0] * 3] * (nodes.sum() - 1) + [[4] * 3])
    grads = bwd(panel, g, **inputs, **options)
    second = call("bwd2", panel, *ggs, g, **inputs, **options)
    for result in (found, grads, second):
        for name, got in result._asdict().items():
            if got is not None and name in reached:
                assert np.isfinite(got[~reached[name]]).all(), name
    assert grads.edge_weight[6] == second.edge_weight[6] == 0  # unused


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_nothing_reads_does_not_matter(panel, dtype, op):
    """NaN in an isolated source, an unused row and the gradient of a destination without in-edges."""
    graph = CSC(np.array([0, 2, 2]), np.array([0, 1]), 3, np.array([1, 1]), 3)
    embedding = np.array([[1, 2], [3, 1], [NAN, NAN]], dtype)
    weights, g = np.array([NAN, 2, NAN], dtype), np.array([[1, 1], [NAN, NAN]], dtype)
    found = call("fwd", panel, embedding, weights, graph, op=op)
    expected = {"sum": [8, 6], "mean": [2, 1.5], "min": [2, 2], "max": [6, 4]}[op]
    np.testing.assert_allclose(found.output_embedding, [expected, [0, 0]], rtol=1e-6)
    grads = bwd(panel, g, embedding, weights, graph, op=op)
    second = call("bwd2", panel, embedding, weights, g, embedding, weights, graph, op=op)
    for result in (grads, second):
        assert not result.embedding[2].any()
        assert not result.edge_weight[[0, 2]].any()
        assert all(np.isfinite(field).all() for field in result)
    assert not second.grad_output_embedding[1].any()
    if op == "mean":
        np.testing.assert_array_equal(found.node_degree, [4, 0])


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("op", OPS)
def test_no_edges_at_all(panel, op, weighted):
    graph = CSC(np.zeros(3, np.int32), np.zeros(0, np.int32), 4, num_edges=5)
    embedding, weights = np.ones((4, 3)), np.ones(5) if weighted else None
    found = call("fwd", panel, embedding, weights, graph, op=op)
    assert found.output_embedding.shape == (2, 3)
    assert not found.output_embedding.any()
    if op in PICK:
        np.testing.assert_array_equal(found.output_extrema_location, np.full((2, 3), -1))
    grads = bwd(panel, np.ones((2, 3)), embedding, weights, graph, op=op)
    second = call("bwd2", panel, embedding, weights, np.ones((2, 3)), embedding, weights, graph, op=op)
    for field in (*grads, *second):
        assert field is None or not field.any()
    assert (grads.edge_weight is None) == (not weighted)


@pytest.mark.parametrize("op", OPS)
def test_duplicated_edges_and_shared_rows(panel, op):
    """Two equal edges that share a row: their gradients add up; of equal messages the first wins."""
    graph = CSC(np.array([0, 3]), np.array([1, 1, 0]), 2, np.array([0, 0, 1]), 2)
    embedding, weights, g = np.array([[1.0], [3]]), np.array([2.0, 4]), np.array([[1.0]])
    found = call("fwd", panel, embedding, weights, graph, op=op)
    out = {"sum": 16, "mean": 2, "min": 4, "max": 6}[op]
    np.testing.assert_array_equal(found.output_embedding, [[out]])
    grads = bwd(panel, g, embedding, weights, graph, op=op)
    expected = {
        "sum": ([4, 4], [6, 1]),
        "mean": ([0.5, 0.5], [2 * (3 - 2) / 8, (1 - 2) / 8]),
        "min": ([4, 0], [0, 1]),
        "max": ([0, 2], [3, 0]),
    }[op]
    np.testing.assert_array_equal(grads.embedding[:, 0], expected[0])
    np.testing.assert_array_equal(grads.edge_weight, expected[1])
