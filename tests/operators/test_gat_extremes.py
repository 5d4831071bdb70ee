"""Graph attention at the ends of its domain, in every panel; expected values are written out, or NumPy's own."""

import numpy as np
import pytest
from table_calls import CPU_PANELS

import trigraph
from trigraph import CSC

pytestmark = pytest.mark.parametrize("panel", CPU_PANELS)
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


def call(order, panel, *args, **keywords):
    """Call the operator with what NumPy warns about in inf - inf left to the test."""
    with np.errstate(all="ignore"):
        return getattr(trigraph, f"mha_gat_n2n_{order}")(*args, panel=panel, **keywords)


def softmax(scores):
    e = np.exp(scores - np.max(scores))
    return e / e.sum()


def star(num_src, index=np.int64):
    """One destination with an in-edge from every source; a second without any."""
    return CSC(np.array([0, num_src, num_src], index), np.arange(num_src, dtype=index), num_src)


def scored(scores, dtype, shift=0.0):
    """One head of width 2: first the score, then 1, 2, 3, ...; `shift` is what the destination adds to the score."""
    src = np.column_stack([scores, np.arange(1, len(scores) + 1)]).astype(dtype)
    dst = np.array([[shift, 0], [7, 7]], dtype)
    return src, dst, np.array([1, 0, 1, 0], dtype)


def close(got, expected, dtype, scale=1.0):
    assert got.dtype == dtype
    assert got.shape == np.shape(expected)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.isfinite(got), finite)
    np.testing.assert_array_equal(got[~finite], np.asarray(expected)[~finite])
    assert not (np.max(abs(got[finite] - np.asarray(expected)[finite]), initial=0) > scale * TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("largest", [1e4, -1e4, 6e4])
def test_large_scores_do_not_overflow(panel, largest, dtype):
    scores = np.array([largest - 3, largest, largest - 1, largest - 2e4])
    src, dst, weights = scored(scores, dtype)
    options = {"num_heads": 1, "activation": "linear"}
    found = call("fwd", panel, src, dst, weights, star(4), **options)
    post, x = softmax(scores), src.astype(np.float64)
    close(found.softmax_scores, np.array([[scores], [post]]), dtype)
    close(found.output_embedding[:, 1], np.array([post @ x[:, 1], 0]), dtype, 4)
    g = np.array([[0, 1], [5, 5]], dtype)
    grads = call("bwd", panel, g, src, dst, weights, star(4), **options)
    draw = post * (x[:, 1] - post @ x[:, 1])
    close(grads.src_embedding, np.column_stack([draw, post]), dtype, 8)
    close(grads.dst_embedding, np.zeros((2, 2)), dtype, 8)
    close(grads.attention_weights, np.array([draw @ x[:, 0], draw @ x[:, 1], 0, 0]), dtype, 8 * abs(largest))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_shift_of_all_scores_changes_nothing(panel, dtype):
    # Exact in both precisions: small integers, and 2**13 besides.
    scores, graph, options = np.array([0.0, 1, 3, -2]), star(4), {"num_heads": 1, "activation": "linear"}
    rng = np.random.default_rng(0)
    g = rng.integers(-3, 4, (2, 2)).astype(dtype)
    ggs = [rng.integers(-3, 4, shape).astype(dtype) for shape in ((4, 2), (2, 2), 4)]
    ggs[2][2] = 0  # the weight of the shift itself
    results = []
    for shift in (0, 2**13):
        src, dst, weights = scored(scores, dtype, shift)
        post = call("fwd", panel, src, dst, weights, graph, **options).softmax_scores[1]
        second = call("bwd2", panel, *ggs, None, g, src, dst, weights, graph, **options)
        results.append((post, second.grad_output_embedding, second.src_embedding, second.attention_weights[:2]))
    for plain, shifted in zip(*results, strict=True):
        close(shifted, plain, dtype, 64)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_scores_share_equally(panel, dtype, activation):
    src, dst, weights = scored(np.full(7, -0.5), dtype)
    found = call("fwd", panel, src, dst, weights, star(7), 1, activation=activation)
    close(found.softmax_scores[1], np.full((1, 7), 1 / 7), dtype)
    close(found.output_embedding, np.array([[-0.5, 4], [0, 0]]), dtype, 4)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_neighbour_gets_all(panel, dtype, activation):
    rng = np.random.default_rng(1)
    src, dst, weights = (rng.standard_normal(s).astype(dtype) for s in ((3, 6), (2, 6), 18))
    edges = rng.standard_normal((2, 6)).astype(dtype)
    graph = CSC(np.array([0, 1, 2]), np.array([2, 0]), 3)
    options = {"num_heads": 2, "activation": activation, "edge_embedding": edges}
    found = call("fwd", panel, src, dst, weights, graph, **options)
    close(found.softmax_scores[1], np.ones((2, 2)), dtype)
    close(found.output_embedding, src[[2, 0]], dtype, 4)
    g = rng.standard_normal((2, 6)).astype(dtype)
    grads = call("bwd", panel, g, src, dst, weights, graph, **options)
    close(grads.src_embedding, np.stack([g[1], np.zeros(6), g[0]]), dtype, 16)
    for field in (grads.dst_embedding, grads.edge_embedding, grads.attention_weights):
        close(field, np.zeros(field.shape), dtype, 16)
    ggs = [rng.standard_normal(a.shape).astype(dtype) for a in (src, dst, weights, edges)]
    second = call("bwd2", panel, *ggs, g, src, dst, weights, graph, **options)
    close(second.grad_output_embedding, ggs[0][[2, 0]], dtype, 16)
    for field in (second.src_embedding, second.dst_embedding, second.edge_embedding, second.attention_weights):
        close(field, np.zeros(field.shape), dtype, 64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_duplicated_edges_count_each(panel, dtype):
    src, dst, weights = scored(np.array([0.5, 1.5]), dtype)
    graph = CSC(np.array([0, 4, 4]), np.array([1, 0, 1, 1]), 2)
    found = call("fwd", panel, src, dst, weights, graph, 1, activation="tanh")
    e = np.exp(np.tanh([1.5, 0.5, 1.5, 1.5]))
    post = e / e.sum()
    close(found.softmax_scores[1], post[None], dtype)
    close(found.output_embedding[0], np.array([1.5 - post[1], 2 - post[1]]), dtype, 4)
    g = np.array([[0, 1], [0, 0]], dtype)
    grads = call("bwd", panel, g, src, dst, weights, graph, 1, activation="tanh")
    close(grads.src_embedding[:, 1], np.array([post[1], 1 - post[1]]), dtype, 4)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("infinite", [np.inf, -np.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_infinite_scores_give_what_ieee_gives(panel, dtype, infinite, activation):
    """Infinite features of one in-edge of destination 0, of all of destination 1, of none of destination 2."""
    graph = CSC(np.array([0, 3, 5, 7]), np.array([0, 1, 2, 0, 1, 1, 2]), 3)
    edges = np.zeros((7, 2), dtype)
    edges[:, 0] = [0.5, infinite, -1, infinite, infinite, 0.25, -0.5]
    src = np.array([[0, 1], [0, 2], [0, 4]], dtype)
    dst, weights = np.zeros((3, 2), dtype), np.array([1, 0, 1, 0, 1, 0], dtype)
    options = {"num_heads": 1, "activation": activation, "negative_slope": 0.25, "edge_embedding": edges}
    found = call("fwd", panel, src, dst, weights, graph, **options)
    with np.errstate(all="ignore"):
        pre = ACTIVATIONS[activation](edges[:, 0].astype(np.float64))
        post = np.concatenate([softmax(pre[:3]), softmax(pre[3:5]), softmax(pre[5:])])
    close(found.softmax_scores, np.array([[pre], [post]]), dtype)
    expected = [part @ values for part, values in zip(np.split(post, (3, 5)), ([1, 2, 4], [1, 2], [2, 4]), strict=True)]
    close(found.output_embedding[:, 1], np.array(expected), dtype, 4)
    grads = call("bwd", panel, np.ones((3, 2), dtype), src, dst, weights, graph, **options)
    reached = np.array([np.isnan(post[[0, 3]]).any(), np.isnan(post[[1, 4, 5]]).any(), np.isnan(post[[2, 6]]).any()])
    np.testing.assert_array_equal(np.isnan(grads.src_embedding[:, 1]), reached)
    assert np.isfinite(grads.dst_embedding[2]).all()
    masked = (edges[:, 0] <= 0) & (activation == "ReLU")  # selects zero, whatever the gradient is
    np.testing.assert_array_equal(np.isnan(grads.edge_embedding[:, 0]), np.isnan(post) & ~masked)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["LeakyReLU", "ReLU", "ELU", "tanh"])
def test_nan_reaches_only_what_depends_on_it(panel, activation, dtype):
    """NaN in head 1 of source 2, whose edges go to destinations 0 and 3."""
    graph = CSC(np.array([0, 2, 4, 4, 7, 8]), np.array([2, 0, 1, 3, 2, 4, 2, 5]), 7)
    rng = np.random.default_rng(2)
    inputs = [rng.standard_normal(s).astype(dtype) for s in ((7, 6), (5, 6), 18, (8, 6))]
    ggs = [rng.standard_normal(a.shape).astype(dtype) for a in inputs]
    g = rng.standard_normal((5, 6)).astype(dtype)
    clean = every_order(panel, ggs, g, inputs, graph, activation)
    inputs[0][2, 4] = np.nan
    dirty = every_order(panel, ggs, g, inputs, graph, activation)
    nodes, reached_src = np.isin(np.arange(5), [0, 3]), np.isin(np.arange(7), [0, 2, 4])
    positions = np.repeat(nodes, np.diff(graph.offsets))
    rows = {
        "output_embedding": nodes,
        "src_embedding": reached_src,
        "dst_embedding": nodes,
        "edge_embedding": positions,
    }
    rows["grad_output_embedding"] = nodes
    for order, fields in dirty.items():
        for name, got in fields.items():
            reached = np.zeros(got.shape, bool)
            if name == "softmax_scores":
                reached[1, 1, positions] = reached[0, 1, [0, 4, 6]] = True
            elif name == "attention_weights":
                reached.reshape(3, 2, 3)[:, 1] = True
            else:
                reached.reshape(len(got), 2, 3)[rows[name], 1] = True
            assert np.isfinite(got[~reached]).all(), (order, name)
            np.testing.assert_allclose(got[~reached], clean[order][name][~reached], rtol=1e-5, atol=1e-5)
            if order != "bwd2" and not (activation == "ReLU" and name == "edge_embedding"):  # masks select zeros
                assert np.isnan(got[reached]).all(), (order, name)


def every_order(panel, ggs, g, inputs, graph, activation):
    """Fields of fwd, bwd and bwd2; the scores given back make no difference to bwd."""
    options = {"num_heads": 2, "activation": activation, "edge_embedding": inputs[3]}
    fwd = call("fwd", panel, *inputs[:3], graph, **options)
    bwd = call("bwd", panel, g, *inputs[:3], graph, **options)
    given = call("bwd", panel, g, *inputs[:3], graph, **options, softmax_scores=fwd.softmax_scores)
    for mine, other in zip(bwd, given, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-4)
    bwd2 = call("bwd2", panel, *ggs, g, *inputs[:3], graph, **options)
    return {"fwd": fwd._asdict(), "bwd": bwd._asdict(), "bwd2": bwd2._asdict()}


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_nothing_reads_does_not_matter(panel, dtype):
    """NaN in a source without out-edges, an unused row, and a destination without in-edges, and in its gradient."""
    graph = CSC(np.array([0, 2, 2]), np.array([0, 1]), 3, np.array([1, 1]), 3)
    rng = np.random.default_rng(3)
    src, dst, weights, edges = (rng.standard_normal(s).astype(dtype) for s in ((3, 4), (2, 4), 12, (3, 4)))
    ggs = [rng.standard_normal(a.shape).astype(dtype) for a in (src, dst, weights, edges)]
    g = rng.standard_normal((2, 4)).astype(dtype)
    for array, row in ((src, 2), (dst, 1), (edges, 0), (edges, 2), (g, 1), (ggs[0], 2), (ggs[1], 1), (ggs[3], 0)):
        array[row] = np.nan
    options = {"num_heads": 2, "edge_embedding": edges}
    found = call("fwd", panel, src, dst, weights, graph, **options)
    grads = call("bwd", panel, g, src, dst, weights, graph, **options)
    second = call("bwd2", panel, *ggs, g, src, dst, weights, graph, **options)
    for field in (*found, *grads, *second):
        assert np.isfinite(field).all()
    for empty in (found.output_embedding[1], second.grad_output_embedding[1]):
        assert not empty.any()
    for result in (grads, second):
        assert not result.src_embedding[2].any()
        assert not result.dst_embedding[1].any()
        assert not result.edge_embedding[[0, 2]].any()


@pytest.mark.parametrize("concat_heads", [True, False])
def test_no_edges_at_all(panel, concat_heads):
    graph = CSC(np.zeros(3, np.int64), np.zeros(0, np.int64), 4)
    src, dst, weights = np.ones((4, 6)), np.ones((2, 6)), np.ones(12)
    options = {"num_heads": 2, "concat_heads": concat_heads}
    found = call("fwd", panel, src, dst, weights, graph, **options)
    assert found.softmax_scores.shape == (2, 2, 0)
    g = np.ones_like(found.output_embedding)
    grads = call("bwd", panel, g, src, dst, weights, graph, **options)
    second = call("bwd2", panel, src, dst, weights, None, g, src, dst, weights, graph, **options)
    assert grads.edge_embedding is None
    assert second.edge_embedding is None
    for field in (found.output_embedding, *grads[:3], *second[:4]):
        assert not field.any()


@pytest.mark.parametrize("activation", ["ReLU", "LeakyReLU", "ELU"])
def test_derivative_at_zero_is_that_of_the_negative_side(panel, activation):
    """Scores 0 and log 3: post = 1/4, 3/4, so that dpre = 3/16 (x_0 - x_1) g, which the slope at 0 multiplies."""
    src = np.array([[0, 5], [np.log(3), 1]])
    dst, weights = np.zeros((1, 2)), np.array([1, 0, 0, 0.0])
    graph = CSC(np.array([0, 2]), np.array([0, 1]), 2)
    options = {"num_heads": 1, "activation": activation, "negative_slope": 0.25}
    grads = call("bwd", panel, np.array([[0, 1.0]]), src, dst, weights, graph, **options)
    slope = {"ReLU": 0, "LeakyReLU": 0.25, "ELU": 1}[activation]
    close(grads.src_embedding[:, 0], np.array([slope * 0.75, -0.75]), np.float64, 8)
