"""Workloads that do little but gather rows, beside the time of gathering them: `trigraph bench --family gather`.

The forward of weighted aggregation and of attention has to gather the rows of the sources by destination; their
gradients need these rows, and those of the destinations' cotangents by source. What attention's first pass leaves for
its second is gathered too, but is narrower than a row and does not count.
"""

from __future__ import annotations

from typing import Any

from trigraph.benchmarks.workloads import Step, Target, Workload

GRAPHS = {"20k": (20_000, 400_000), "100k": (100_000, 1_600_000)}
LARGEST = {"1m": (1_000_000, 16_000_000)}  # once: rows of 64 numbers, uniform
WIDTHS = (32, 64, 128)
HEADS = 4

# Name: what it is, the operator, the gathers, and the least share of the bound.
OPERATORS: dict[str, tuple[str, str, tuple[str, ...], float]] = {
    "weighted-forward": ("weighted sum", "agg_weighted_n2n_fwd", ("sources",), 0.85),
    "weighted-backward": (
        "gradients of a weighted sum in embedding and weights",
        "agg_weighted_n2n_bwd",
        ("destinations", "sources"),
        0.75,
    ),
    "attention-forward": ("attention, 4 heads", "mha_gat_n2n_fwd", ("sources",), 0.65),
    "attention-backward": (
        "gradients of attention, 4 heads, without its scores",
        "mha_gat_n2n_bwd",
        ("sources", "destinations"),
        0.65,
    ),
}


def _workload(name: str, graph: str, width: int, layout: str) -> Workload:
    about, operator, gathers, share = OPERATORS[name]
    nodes, edges = (GRAPHS | LARGEST)[graph]
    sizes = {"num_src_nodes": nodes, "num_dst_nodes": nodes, "num_positions": edges, "num_edges": edges}
    settings: dict[str, Any] = {}
    if operator.startswith("mha"):
        sizes |= {"num_heads": HEADS, "dim_head": width // HEADS}
        settings = {"edge_embedding": None, "negative_slope": 0.2}
    else:
        sizes |= {"dim": width}
    return Workload(
        name=f"{name}-{graph}-{width}" + "-power-law" * (layout == "power law"),
        family="gather",
        summary=f"{about}, rows of {width} numbers, {layout}",
        steps=(Step(operator),),
        sizes=sizes,
        panels=("fortran",),
        targets=(Target("fortran", gather=share),),
        settings=settings,
        layout=layout,
        gathers=gathers,
    )


WORKLOADS = tuple(
    _workload(name, graph, width, layout)
    for name in OPERATORS
    for graph in GRAPHS
    for width in WIDTHS
    for layout in ("uniform", "power law")
) + tuple(_workload(name, "1m", 64, "uniform") for name in OPERATORS)
