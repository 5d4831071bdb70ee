"""Workloads and programs of `trigraph bench --device`, at sizes that exceed any cache, in order of importance.

The workloads are those of the host at other sizes, with int32 indices and with the peers that run on a CUDA device.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trigraph.benchmarks import dimenet, gat, gemnet, gno, weighted
from trigraph.benchmarks.models import PROGRAMS
from trigraph.benchmarks.programs import Program
from trigraph.benchmarks.workloads import Workload

GRAPH = {"num_src_nodes": 1_000_000, "num_dst_nodes": 1_000_000, "num_positions": 16_000_000, "num_edges": 16_000_000}
# A quarter of the sizes above, so that several copies of a peer's messages, shape (edges, 256), fit in 80 GB.
HEADS = {**{n: number // 4 for n, number in GRAPH.items()}, "num_heads": 8, "dim_head": 32}
CRYSTAL = {"num_nodes": 30_000, "num_edges": 1_500_000}
POINTS = {"num_src_nodes": 133_000, "num_dst_nodes": 133_000, "num_positions": 4_000_000, "num_edges": 4_000_000}
CATALYST = {"num_edges": 200_000, "num_outputs": 200_000, "num_triplets": 2_400_000, "num_inputs": 2_400_000}
NUMBERS_OF_HEADS = "num_positions*num_heads*dim_head"
_NAMED: dict[str, Any] = {w.name: w for f in (weighted, gat, gno, gemnet, dimenet) for w in f.WORKLOADS}
_NAMED |= {program.name: program for program in PROGRAMS}


def _make_device_workload(base: str, name: str, summary: str, sizes: Mapping[str, int], **changes: Any) -> Workload:
    """Return a host workload at other sizes."""
    base_sizes = _NAMED[base].sizes
    changes |= {"name": name, "summary": summary, "sizes": {**base_sizes, **sizes}, "backends": ("gpu",)}
    return replace(_NAMED[base], **changes)


WORKLOADS = (
    _make_device_workload(
        "weighted-sum",
        "weighted-64",
        "weighted sum, dim 64",
        GRAPH,
        gathered="num_positions*dim",
        peers={**weighted.PRODUCTS, **weighted.GATHERS},
    ),
    _make_device_workload("gat", "gat", "attention, 8 x 32, with backward", HEADS, gathered=f"3*{NUMBERS_OF_HEADS}"),
    _make_device_workload("dimenet-aggregate", "dimenet", "triplet sum", CRYSTAL),
    _make_device_workload("gno-message", "gno", "message, with backward", POINTS),
    _make_device_workload("gemnet", "gemnet", "both operators, with backward", CATALYST),
    _make_device_workload(
        "weighted-sum-backward",
        "weighted-64-backward",
        "weighted sum, dim 64, with backward",
        GRAPH,
        gathered="3*num_positions*dim",
    ),
    _make_device_workload(
        "gat", "gat-forward", "attention, 8 x 32", HEADS, gathered=NUMBERS_OF_HEADS, steps=_NAMED["gat"].steps[:1]
    ),
    _make_device_workload("dimenet-aggregate-backward", "dimenet-backward", "triplet sum, with backward", CRYSTAL),
)
_FORCES = ("dimenet-molecules", "dimenet-energy-forces", "dimenet-copper")
_CURVATURE = ("dimenet-molecules-curvature", "dimenet-slab-curvature", "dimenet-copper-curvature")
_TRAINING = (*(f"{name}-training" for name in (*_FORCES, *_CURVATURE)), "gat-minibatches-600000")
DEVICE: tuple[Workload | Program, ...] = (*WORKLOADS, *(_NAMED[name] for name in (*_TRAINING, *_FORCES)))
