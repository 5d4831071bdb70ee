"""Every kernel of graph attention under the race build, AddressSanitizer and three orders of blocks and threads.

Run as a program with the path of a library, it does the work of one build in a process of its own.
"""

import sys

import numpy as np
import pytest
import sanitizers

import trigraph.gpu as gpu
import trigraph.pyref as pyref
from trigraph import CSC

ml_dtypes = pytest.importorskip("ml_dtypes")

SUBSET = sanitizers.subset("gat")

# What embeddings are stored in, index, in-degrees, heads, dim_head, concat_heads, activation, edge features: a node
# with many in-edges and isolated ones, rows of two and of three pieces; head dims that 16 bytes divide and others, some
# wider than a warp and some of one; more heads than a block of the softmax has.
CASES = {
    "hub": (np.float32, np.int32, [3, 0, 0, 0, 300, 128, 0, 1], 2, 3, True, "LeakyReLU", True),
    "hub, wide": (np.float32, np.int32, [3, 0, 0, 0, 300, 128, 0, 1], 3, 4, False, "ELU", True),
    "broad": (np.float64, np.int64, [3, 0, 130], 2, 67, False, "sigmoid", False),
    "broad, wide": (np.float64, np.int64, [3, 0, 130], 2, 66, True, "tanh", True),
    "many": (np.float64, np.int64, [1, 0, 2] * 90, 1, 1, True, "ReLU", False),
    "many heads": (np.float64, np.int64, [2, 140], 35, 1, True, "LeakyReLU", True),
    "broad float": (np.float32, np.int32, [2, 3], 1, 132, True, "ELU", False),
    "half": (np.float16, np.int32, [3, 0, 0, 0, 300, 128, 0, 1], 2, 3, True, "LeakyReLU", True),
    "half, wide": (np.float16, np.int32, [3, 0, 0, 0, 300, 128, 0, 1], 2, 8, False, "ELU", True),
    "brain": (ml_dtypes.bfloat16, np.int32, [3, 0, 130], 2, 3, False, "tanh", False),
    "brain, wide": (ml_dtypes.bfloat16, np.int32, [3, 0, 130], 3, 16, True, "sigmoid", True),
}


def make(name):
    """Graph, arrays and attributes by name; the first row is shared by many positions, some rows are not used."""
    real, index, degrees, heads, dim_head, concat, activation, with_edges = CASES[name]
    rng = np.random.default_rng(3)
    offsets = np.cumsum([0, *degrees]).astype(index)
    positions, sources, width = int(offsets[-1]), len(degrees) + 2, heads * dim_head
    rows = rng.permutation(np.maximum(0, np.arange(positions) - positions // 2)).astype(index)
    graph = CSC(offsets, rng.integers(0, sources - 1, positions).astype(index), sources, rows, positions)
    shapes = [(sources, width), (len(degrees), width), (width * (3 if with_edges else 2),), (positions, width)]
    reals = [real, real, np.float32 if np.dtype(real).itemsize == 2 else real, real]
    inputs = [rng.standard_normal(shape).astype(kind) for shape, kind in zip(shapes, reals, strict=True)]
    cotangents = [rng.standard_normal(shape).astype(kind) for shape, kind in zip(shapes, reals, strict=True)]
    inputs[2] /= reals[2](dim_head**0.5)
    if not with_edges:
        inputs[3] = cotangents[3] = None
    g = rng.standard_normal((len(degrees), width if concat else dim_head)).astype(real)
    return graph, cotangents, g, inputs, (heads, concat, activation, 0.3)


def results(panel, graph, cotangents, g, inputs, attributes):
    """Every field of every operator, with and without scores and cotangents; outputs also with heads the other way."""
    *nodes, edge = inputs
    heads, concat, *others = attributes
    other = (*nodes, graph, heads, not concat, *others, edge)
    other_g = np.ones((len(g), g.shape[1] // heads if concat else g.shape[1] * heads), g.dtype)
    rest = (*nodes, graph, *attributes, edge)
    some = [[c if k in kept else None for k, c in enumerate(cotangents)] for kept in ((0,), (1, 2), ())]
    forward = panel.mha_gat_n2n_fwd(*rest)
    fields = {
        "fwd": forward,
        "bwd": panel.mha_gat_n2n_bwd(g, *rest),
        "bwd with scores": panel.mha_gat_n2n_bwd(g, *rest, softmax_scores=forward.softmax_scores),
        "bwd2": panel.mha_gat_n2n_bwd2(*cotangents, g, *rest),
        **{f"bwd2 of {k}": panel.mha_gat_n2n_bwd2(*given, g, *rest) for k, given in enumerate(some)},
        "bwd of weights": panel.mha_gat_n2n_bwd(g, *rest, wrt=("attention_weights",)),
        "fwd of heads the other way": panel.mha_gat_n2n_fwd(*other),
        "bwd2 of heads the other way": panel.mha_gat_n2n_bwd2(
            *cotangents, other_g, *other, wrt=("grad_output_embedding",)
        ),
        "bwd2 of output": panel.mha_gat_n2n_bwd2(*cotangents, g, *rest, wrt=("grad_output_embedding",)),
    }
    return {f"{call}, {f}": array for call, result in fields.items() for f, array in result._asdict().items()}


def as_double(arrays):
    return [None if a is None else a.astype(np.float64) for a in arrays]


def run():
    """Compare all cases with the readable panel in float64 and return what the kernels gave."""
    collected = {}
    for name in CASES:
        graph, cotangents, g, inputs, attributes = make(name)
        double = as_double(cotangents), g.astype(np.float64), as_double(inputs)
        expected = results(pyref, graph, *double, attributes)
        for what, mine in results(gpu, graph, cotangents, g, inputs, attributes).items():
            factor = 1 if mine is not None and mine.itemsize == 2 else 2000  # one rounding, or many
            sanitizers.close(f"{name}: {what}", mine, expected[what], factor)
            if mine is not None:
                collected[f"{name}: {what}"] = mine
    return collected


@pytest.mark.parametrize("order", sanitizers.ORDERS)
def test_order(order):
    sanitizers.check(sanitizers.installed("gat"), order, SUBSET, run)


def test_race():
    sanitizers.check(sanitizers.build("gat", "race", SUBSET), "random", SUBSET, run)


def test_asan():
    sanitizers.run_program(__file__, sanitizers.build("gat", "asan", SUBSET))


if __name__ == "__main__":
    sanitizers.check(sys.argv[1], "random", SUBSET, run)
    print("all right")
