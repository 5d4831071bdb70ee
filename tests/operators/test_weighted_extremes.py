"""Weighted aggregation at the ends of its domain, in every panel; expected values are written out, or NumPy's own.

NaN in every argument, graphs without edges, what nothing reads: that is what `trigraph verify` shows.
"""

import numpy as np
import pytest
from table_calls import CPU_PANELS

import trigraph
from trigraph import CSC

pytestmark = pytest.mark.parametrize("panel", CPU_PANELS)
PICK = {"min": np.argmin, "max": np.argmax}
NAN, INF = np.nan, np.inf


def call(order, panel, *args, **keywords):
    """Call the operator with what NumPy warns about in inf - inf left to the test."""
    with np.errstate(all="ignore"):
        return getattr(trigraph, f"agg_weighted_n2n_{order}")(*args, panel=panel, **keywords)


def star(messages, index=np.int64):
    """A destination for each list of messages: sources of one feature each, weights of one."""
    offsets = np.cumsum([0, *map(len, messages)]).astype(index)
    values = np.concatenate([*map(np.asarray, messages), [0.5]])  # the last source is isolated
    return values[:, None], CSC(offsets, np.arange(offsets[-1], dtype=index), len(values))


@pytest.mark.parametrize(("dtype", "index"), [(np.float32, np.int64), (np.float64, np.int32)])
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
        grads = call("bwd", panel, g, values, weights, graph, op=op)
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
    grads = call("bwd", panel, g, embedding, weights, graph, op=op)
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
    grads = call("bwd", panel, g, embedding, weights, graph, op="mean")
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
