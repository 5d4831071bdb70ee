"""The judge's scale where a float64 difference is zero, and the fast path's own functions."""

import numpy as np
import pytest

import trigraph
from trigraph import CSC
from trigraph.fortran import levels
from trigraph.table import OPERATORS
from trigraph.verification.judged import ask


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
        found = trigraph.mha_gat_n2n_fwd(
            src, np.zeros_like(src), np.array([1, 0, 0, 0], dtype), graph, 1, activation="tanh"
        )
    finally:
        trigraph.set_cpu_level(before)
    expected = np.tanh(x.astype(np.longdouble))
    error = abs(found.softmax_scores[0, 0] - expected)
    assert (error <= 2 * np.finfo(dtype).eps * abs(expected) + np.finfo(dtype).smallest_subnormal).all()


@pytest.mark.skipif(not {"v3", "v4"} <= set(levels.available()), reason="this processor has no x86-64-v4")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 8, 12, 16, 24, 33, 64, 100, 128])
def test_equal_bits_on_v3_and_v4(dtype, width):
    """Dot products, tanh, fused multiply-adds, and the sums of rows longer than a piece."""
    rng = np.random.default_rng(width)
    offsets = np.array([0, 0, 3, 700, 719])
    edges = rng.integers(0, 600, 719)
    graph = CSC(offsets, rng.integers(0, 5, 719), 5, edge_ids=edges, num_edges=600)
    heads = 4 if width % 4 == 0 else 1

    def draw(*shape):
        return rng.uniform(0.5, 1.5, shape).astype(dtype)

    values = {"src_embedding": draw(5, width), "dst_embedding": draw(4, width), "edge_embedding": draw(600, width)}
    values |= {"attention_weights": draw(3 * width), "embedding": draw(5, width), "edge_weight": draw(600)}
    values |= {"grad_output_embedding": draw(4, width)}
    values |= {f"gg_{name}": draw(*value.shape) for name, value in values.items()}

    def results():
        for op in OPERATORS.values():
            if op.family not in ("gat", "weighted"):
                continue
            given = {a.name: values[a.name] for a in op.arguments if not a.given_back} | {"graph": graph}
            settings = [{"num_heads": heads, "activation": a} for a in ("LeakyReLU", "ELU", "sigmoid", "tanh")]
            if op.family == "weighted":
                settings = [{"op": name} for name in ("sum", "mean", "max")]
            for setting in settings:
                found = getattr(trigraph, op.name)(**given, **setting)
                yield op.name, setting, [b"" if f is None else f.tobytes() for f in found]

    before = trigraph.get_cpu_level()
    try:
        trigraph.set_cpu_level("v3")
        three = list(results())
        trigraph.set_cpu_level("v4")
        four = list(results())
    finally:
        trigraph.set_cpu_level(before)
    assert three == four
