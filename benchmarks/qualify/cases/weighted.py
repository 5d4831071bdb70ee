"""Cases that reach every kernel of weighted aggregation, small enough for a sanitizer, compared with pyref."""

from __future__ import annotations

from typing import Any

import numpy as np

import trigraph.gpu as gpu
import trigraph.pyref as pyref
from trigraph import CSC
from trigraph.benchmarks.qualify.cases.comparison import close
from trigraph.benchmarks.qualify.place import Device

__all__ = ["run"]

# float, index, in-degrees, dim: a node with many in-edges and isolated ones, rows of two and of three pieces; widths
# that 16 bytes divide and others; more columns than a warp has lanes; more than one block of rows.
CASES = {
    "hub": (np.float32, np.int32, [3, 0, 0, 0, 300, 128, 0, 1], 5),
    "hub, wide": (np.float32, np.int32, [3, 0, 0, 0, 300, 128, 0, 1], 4),
    "broad": (np.float64, np.int64, [3, 0, 130], 67),
    "broad, wide": (np.float64, np.int64, [3, 0, 130], 66),
    "many": (np.float64, np.int64, [1, 0, 2] * 90, 1),
    "broad float": (np.float32, np.int32, [4, 3, 5], 132),
}
OPERATIONS = [("sum", "weight"), ("mean", "weight"), ("mean", "count"), ("min", "weight"), ("max", "weight")]


def make(name: str) -> tuple[Any, ...]:
    """Graph and arrays by name; the first row is shared by many positions, some rows and sources are not used.

    What a mean takes from a row that most positions of a node share nearly cancels. In 1 of 15 draws so little is left
    of it that 200 eps of that are less than the roundings, in whichever order terms are added; this is another draw.
    """
    real, index, degrees, dim = CASES[name]
    rng = np.random.default_rng(4)
    offsets = np.cumsum([0, *degrees]).astype(index)
    positions, sources = int(offsets[-1]), len(degrees) + 2
    rows = rng.permutation(np.maximum(0, np.arange(positions) - positions // 2)).astype(index)
    graph = CSC(offsets, rng.integers(0, sources - 1, positions).astype(index), sources, rows, positions)
    embedding, gg_embedding = rng.standard_normal((2, sources, dim))
    edge_weight, gg_edge_weight = rng.uniform(0.5, 2, (2, positions))
    g = rng.standard_normal((len(degrees), dim))
    return graph, [a.astype(real) for a in (gg_embedding, gg_edge_weight, g, embedding, edge_weight)]


def results(panel: Any, graph: Any, arrays: list[Any]) -> dict[str, Any]:
    """Every field of every operator, for each operation, with and without weights and cotangents."""
    u, v, g, x, w = arrays
    fields = {}
    for how in OPERATIONS:
        fields[how, "fwd"] = panel.agg_weighted_n2n_fwd(x, w, graph, *how)
        fields[how, "bwd"] = panel.agg_weighted_n2n_bwd(g, x, w, graph, *how)
        fields[how, "bwd2"] = panel.agg_weighted_n2n_bwd2(u, v, g, x, w, graph, *how)
        fields[how, "bwd2 of weights"] = panel.agg_weighted_n2n_bwd2(None, v, g, x, w, graph, *how)
        fields[how, "bwd2 of embeddings"] = panel.agg_weighted_n2n_bwd2(u, None, g, x, w, graph, *how)
        fields[how, "fwd without weights"] = panel.agg_weighted_n2n_fwd(x, None, graph, *how)
        fields[how, "bwd2 without weights"] = panel.agg_weighted_n2n_bwd2(u, None, g, x, None, graph, *how)
    return {f"{how} {call}, {f}": a for (how, call), r in fields.items() for f, a in r._asdict().items()}


def run(place: Device) -> dict[str, np.ndarray]:
    """Compare all cases with the readable panel in float64 and return what the kernels gave."""
    collected: dict[str, np.ndarray] = {}
    for name in CASES:
        graph, arrays = case = make(name)
        expected = results(pyref, graph, [a.astype(np.float64) for a in arrays])
        for what, mine in place.hosted(results(gpu, *place.moved(case))).items():
            if mine is None or mine.dtype.kind == "i":
                assert np.array_equal(mine, expected[what]), f"{name}: {what}"
            else:
                close(f"{name}: {what}", mine, expected[what])
            if mine is not None:
                collected[f"{name}: {what}"] = mine
    return collected
