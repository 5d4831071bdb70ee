"""Cases that reach every kernel of graph attention, small enough for a sanitizer, compared with the readable panel."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import numpy as np

import trigraph.gpu as gpu
import trigraph.pyref as pyref
from trigraph import CSC
from trigraph.benchmarks.qualify.cases.comparison import ROUNDINGS, close
from trigraph.benchmarks.qualify.place import Device

__all__ = ["run"]

# Without ml_dtypes no array has that dtype.
BFLOAT16 = None if importlib.util.find_spec("ml_dtypes") is None else importlib.import_module("ml_dtypes").bfloat16

# What embeddings are stored in, index, in-degrees, heads, dim_head, concat_heads, activation, edge features: a node
# with many in-edges and isolated ones, rows of two and of three pieces; head dims that 16 bytes divide and others, some
# wider than a warp and some of one; more heads than a block of the softmax has.
CASES: dict[str, tuple[Any, ...]] = {
    "hub": (np.float32, np.int32, [3, 0, 0, 0, 300, 128, 0, 1], 2, 3, True, "LeakyReLU", True),
    "hub, wide": (np.float32, np.int32, [3, 0, 0, 0, 300, 128, 0, 1], 3, 4, False, "ELU", True),
    "broad": (np.float64, np.int64, [3, 0, 130], 2, 67, False, "sigmoid", False),
    "broad, wide": (np.float64, np.int64, [3, 0, 130], 2, 66, True, "tanh", True),
    "many": (np.float64, np.int64, [1, 0, 2] * 90, 1, 1, True, "ReLU", False),
    "many heads": (np.float64, np.int64, [2, 140], 35, 1, True, "LeakyReLU", True),
    "broad float": (np.float32, np.int32, [2, 3], 1, 132, True, "ELU", False),
    "half": (np.float16, np.int32, [3, 0, 0, 0, 300, 128, 0, 1], 2, 3, True, "LeakyReLU", True),
    "half, wide": (np.float16, np.int32, [3, 0, 0, 0, 300, 128, 0, 1], 2, 8, False, "ELU", True),
    "brain": (BFLOAT16, np.int32, [3, 0, 130], 2, 3, False, "tanh", False),
    "brain, wide": (BFLOAT16, np.int32, [3, 0, 130], 3, 16, True, "sigmoid", True),
}


def make(name: str) -> tuple[Any, ...]:
    """Graph, arrays and attributes by name; the first row is shared by many positions, some rows are not used."""
    real, index, degrees, heads, dim_head, concat, activation, with_edges = CASES[name]
    rng = np.random.default_rng(3)
    offsets = np.cumsum([0, *degrees]).astype(index)
    positions, sources, width = int(offsets[-1]), len(degrees) + 2, heads * dim_head
    rows = rng.permutation(np.maximum(0, np.arange(positions) - positions // 2)).astype(index)
    graph = CSC(offsets, rng.integers(0, sources - 1, positions).astype(index), sources, rows, positions)
    shapes = [(sources, width), (len(degrees), width), (width * (3 if with_edges else 2),), (positions, width)]
    reals = [real, real, np.float32 if np.dtype(real).itemsize == 2 else real, real]
    inputs: list[Any] = [rng.standard_normal(shape).astype(kind) for shape, kind in zip(shapes, reals, strict=True)]
    cotangents: list[Any] = [rng.standard_normal(shape).astype(kind) for shape, kind in zip(shapes, reals, strict=True)]
    inputs[2] /= reals[2](dim_head**0.5)
    if not with_edges:
        inputs[3] = cotangents[3] = None
    g = rng.standard_normal((len(degrees), width if concat else dim_head)).astype(real)
    other_g = np.ones((len(degrees), dim_head if concat else width), real)
    return graph, cotangents, [g, other_g], inputs, (heads, concat, activation, 0.3)


def results(
    panel: Any, graph: Any, cotangents: list[Any], grads: list[Any], inputs: list[Any], attributes: tuple[Any, ...]
) -> dict[str, Any]:
    """Every field of every operator, with and without scores and cotangents; outputs also with heads the other way."""
    (g, other_g), (*nodes, edge), (heads, concat, *others) = grads, inputs, attributes
    other = (*nodes, graph, heads, not concat, *others, edge)
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


def as_double(arrays: list[Any]) -> list[Any]:
    return [None if a is None else a.astype(np.float64) for a in arrays]


def run(place: Device) -> dict[str, np.ndarray]:
    """Compare all cases with the readable panel in float64 and return what the kernels gave."""
    collected: dict[str, np.ndarray] = {}
    for name in CASES:
        if not place.takes(CASES[name][0]):
            continue
        graph, cotangents, grads, inputs, attributes = case = make(name)
        double = as_double(cotangents), as_double(grads), as_double(inputs)
        expected = results(pyref, graph, *double, attributes)
        for what, mine in place.hosted(results(gpu, *place.moved(case))).items():
            half = mine is not None and mine.itemsize == 2  # sums are made in float32 and rounded once
            close(f"{name}: {what}", mine, expected[what], 1 if half else ROUNDINGS)
            if mine is not None:
                collected[f"{name}: {what}"] = mine
    return collected
