"""Cases that reach every kernel of the GNO family, small enough for a sanitizer, compared with the readable panel."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np

import trigraph.gpu as gpu
import trigraph.pyref as pyref
from trigraph import CSC
from trigraph.benchmarks.qualify.cases.comparison import close_fields
from trigraph.benchmarks.qualify.place import Device
from trigraph.gpu import sums

__all__ = ["run"]

# float, index, in-degrees, d, H, f_in, f_out: a node with many in-edges and isolated ones; more than one block; widths
# beyond one tile in each direction; widths of one.
CASES = {
    "hub": (np.float32, np.int32, [3, 0, 0, 0, 300, 128, 0, 1], 3, 5, 3, 2),
    "many": (np.float64, np.int64, [1, 0, 2] * 90, 1, 9, 2, 1),
    "wide": (np.float32, np.int32, [3, 0, 20], 2, 34, 35, 2),
    "tall": (np.float64, np.int64, [3, 0, 2], 1, 2, 1, 131),
    "narrow": (np.float64, np.int64, [1], 1, 1, 1, 1),
}


def make(name: str) -> tuple[Any, ...]:
    """Graph and arguments by name; the first row is shared by many positions, and with a hub some are not used."""
    real, index, degrees, d, hidden, f_in, f_out = CASES[name]
    rng = np.random.default_rng(3)
    offsets, width = np.cumsum([0, *degrees]).astype(index), f_in * f_out
    positions, sources = int(offsets[-1]), len(degrees) + 2
    used, spare = positions // 2 + 1, 3 if name == "hub" else 0
    rows = rng.permutation(np.maximum(0, np.arange(positions) - positions + used)).astype(index)
    indices = rng.integers(0, sources, positions).astype(index)
    graph = CSC(offsets, indices, sources, rows, used + spare)
    shapes = {
        "features": (sources, f_in),
        "coords": (graph.num_edges, d),
        "params": (hidden * (d + 1 + width) + width,),
        "kernel": (graph.num_edges, width),
        "message": (graph.num_dst_nodes, f_out),
    }
    values = {key: rng.standard_normal(shape).astype(real) for key, shape in shapes.items()}
    values |= {f"gg_{key}": rng.standard_normal(shape).astype(real) for key, shape in shapes.items()}
    return graph, values, (f_in, f_out)


def results(panel: Any, graph: Any, v: dict[str, Any], widths: tuple[int, int]) -> dict[str, Any]:
    """Every field of every operator."""
    x, p, h, k = v["coords"], v["params"], v["features"], v["kernel"]
    gx, gp, gh, gk, g = v["gg_coords"], v["gg_params"], v["gg_features"], v["gg_kernel"], v["message"]
    return {
        "kernel_fwd": (panel.gno_kernel_fwd(x, p, *widths),),
        "kernel_bwd": panel.gno_kernel_bwd(k, x, p, *widths),
        "kernel_bwd2": panel.gno_kernel_bwd2(gx, gp, k, x, p, *widths),
        "aggregate_fwd": (panel.gno_aggregate_fwd(h, k, graph, *widths),),
        "aggregate_bwd": panel.gno_aggregate_bwd(g, h, k, graph, *widths),
        "aggregate_bwd2": panel.gno_aggregate_bwd2(gh, gk, g, h, k, graph, *widths),
        "message_fwd": (panel.gno_message_fwd(h, x, p, graph, *widths),),
        "message_bwd": panel.gno_message_bwd(g, h, x, p, graph, *widths),
        "message_bwd2": panel.gno_message_bwd2(gh, gx, gp, g, h, x, p, graph, *widths),
        "message_bwd2 of coords": panel.gno_message_bwd2(None, gx, None, g, h, x, p, graph, *widths),
        "message_bwd2 of features": panel.gno_message_bwd2(gh, None, None, g, h, x, p, graph, *widths),
    }


def run(place: Device) -> dict[str, np.ndarray]:
    """Compare all cases with the readable panel and return what the kernels gave."""
    collected: dict[str, np.ndarray] = {}
    with mock.patch.object(sums, "WORKSPACE", 1):  # blocks as small as they get
        for name in CASES:
            case = make(name)
            collected |= close_fields(name, place.hosted(results(gpu, *place.moved(case))), results(pyref, *case))
    return collected
