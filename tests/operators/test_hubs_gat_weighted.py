"""Attention and weighted aggregation where one sum has very many equal terms: fast path against the judge.

A small graph is repeated so often that its judged results, times the number of repetitions where they add up, are those
of the large one. Scales add up the same way.
"""

import numpy as np
import pytest

import trigraph
from trigraph import CSC
from trigraph.table import OPERATORS
from trigraph.verification.judged import ask

HEADS = DIM = 2
ATTENTION = ("mha_gat_n2n_fwd", "mha_gat_n2n_bwd", "mha_gat_n2n_bwd2")
WEIGHTED = ("agg_weighted_n2n_fwd", "agg_weighted_n2n_bwd", "agg_weighted_n2n_bwd2")
BY_DESTINATION = ("dst_embedding", "grad_output_embedding", "output_embedding", "node_degree", "gg_dst_embedding")


# A million in float64 takes longest, and adds nothing to a million in float32 and a hundred thousand in float64.
HUBS = [
    (100_000, np.float32),
    (100_000, np.float64),
    (1_000_000, np.float32),
    pytest.param(1_000_000, np.float64, marks=pytest.mark.slow),
]


def small():
    """One destination with an in-edge from each of two sources, which have rows of their own."""
    return CSC(np.array([0, 2]), np.array([0, 1]), 2)


def hub(kind, times):
    """The small graph with `times` destinations (hubs are sources and rows), or with each in-edge so often."""
    edges = np.tile(np.arange(2), times)
    offsets = 2 * np.arange(times + 1) if kind == "sources" else np.array([0, 2 * times])
    return CSC(offsets, edges, 2, edge_ids=edges, num_edges=2)


def arrays(op, dtype):
    """Positive arguments of the small graph."""
    width = HEADS * DIM
    rows = {"src_embedding": 2, "edge_embedding": 2, "dst_embedding": 1, "grad_output_embedding": 1, "embedding": 2}
    shapes = {name: (n, width) for name, n in rows.items()} | {"attention_weights": (3 * width,), "edge_weight": (2,)}
    rng = np.random.default_rng(5)
    names = [a.name for a in op.arguments if not a.given_back]
    values = {n: rng.uniform(0.5, 1.5, shapes[n.removeprefix("gg_")]).astype(dtype) for n in names}
    if "attention_weights" in values:
        values["attention_weights"] *= dtype(1e-3)  # small scores: what they were rounded to hardly widens the scale
    return values


def check(name, kind, times, dtype, options, adds_up):
    """Compare every field with the judge: times so many where `adds_up` says so."""
    op = OPERATORS[name]
    values = arrays(op, dtype)
    judged = ask(op, values | options | {"graph": small()})
    tiled = {n: np.tile(v, (times, 1)) for n, v in values.items() if kind == "sources" and n in BY_DESTINATION}
    result = getattr(trigraph, name)(**(values | tiled | options), graph=hub(kind, times))
    for field in judged.keys() - {"softmax_scores", "output_extrema_location"}:
        hi, lo, scale = judged[field].astype(np.longdouble)
        factor = 1 if kind == "sources" and field in BY_DESTINATION else adds_up(field)
        error = abs((getattr(result, field) - factor * hi) - factor * lo)
        assert (error <= 8 * np.finfo(dtype).eps * factor * scale).all(), f"{field}: {error / (factor * scale)}"


@pytest.mark.parametrize(("times", "dtype"), HUBS)
@pytest.mark.parametrize("kind", ["sources", "destination"])
@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name, kind, dtype, times):
    options = {"num_heads": HEADS, "activation": "sigmoid"}
    check(name, kind, times, dtype, options, lambda field: times if kind == "sources" else 1)


@pytest.mark.parametrize(("times", "dtype"), HUBS)
@pytest.mark.parametrize("kind", ["sources", "destination"])
@pytest.mark.parametrize(
    ("op", "mean_by"), [("sum", "weight"), ("mean", "weight"), ("mean", "count"), ("max", "weight")]
)
@pytest.mark.parametrize("name", WEIGHTED)
def test_weighted(name, op, mean_by, kind, dtype, times):
    def adds_up(field):
        return times if kind == "sources" or op == "sum" or field == "node_degree" else 1

    check(name, kind, times, dtype, {"op": op, "mean_by": mean_by}, adds_up)
