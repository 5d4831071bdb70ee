"""Workloads and programs of `trigraph bench --device`, at sizes that exceed any cache, in order of importance.

The workloads are those of the host at other sizes, with int32 indices and with the peers that run on a CUDA device.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from trigraph.benchmarks import dimenet, gat, gemnet, gno, weighted
from trigraph.benchmarks.models import OURS, PROGRAMS, WIDTHS, make_dynamics_call
from trigraph.benchmarks.programs import Contender, Program
from trigraph.benchmarks.workloads import Workload

GRAPH = {"num_src_nodes": 1_000_000, "num_dst_nodes": 1_000_000, "num_positions": 16_000_000, "num_edges": 16_000_000}
HEADS = {"num_heads": 8, "dim_head": 32}
# A quarter of the sizes above, so that several copies of a peer's messages, shape (edges, 256), fit in 80 GB.
QUARTER_GRAPH = {n: number // 4 for n, number in GRAPH.items()}
CRYSTAL = {"num_nodes": 30_000, "num_edges": 1_500_000, "n_emb": 64, "n_mid": 8}
POINTS = {"num_src_nodes": 133_000, "num_dst_nodes": 133_000, "num_positions": 4_000_000, "num_edges": 4_000_000}
ROWS_OF_HEADS = "num_positions*num_heads*dim_head"
CATALYST = {"num_edges": 200_000, "num_outputs": 200_000, "num_triplets": 2_400_000, "num_inputs": 2_400_000}

_NAMED = {w.name: w for family in (weighted, gat, gno, gemnet, dimenet) for w in family.WORKLOADS}
_SUM, _SUM_BACKWARD = _NAMED["weighted-sum"], _NAMED["weighted-sum-backward"]
_GAT, _MESSAGE, _GEMNET = _NAMED["gat"], _NAMED["gno-message"], _NAMED["gemnet"]
_ANGULAR, _ANGULAR_BACKWARD = _NAMED["dimenet-aggregate"], _NAMED["dimenet-aggregate-backward"]
_ANGULAR_FORCES = _NAMED["dimenet-force-training"]
_SUMS = {**weighted.PRODUCTS, **weighted.GATHERS}
_SPARSE = {"pyg-sparse-cuda": weighted.PRODUCTS["pyg-sparse-cuda"]}  # torch's sparse product, which is cuSPARSE's


def _make_device_workload(
    base: Workload,
    name: str,
    summary: str,
    sizes: Mapping[str, int],
    gathered: str = "0",
    **more: Any,
) -> Workload:
    """Return a host workload at other sizes, without the peers that run on the host."""
    peers = {n: p for n, p in more.pop("peers", base.peers).items() if p.device or not p.requires}
    changed = {"sizes": {**base.sizes, **sizes}, "peers": peers, "backends": ("gpu",), "gathered": gathered, **more}
    return replace(base, name=name, summary=summary, **changed)


WORKLOADS = (
    _make_device_workload(
        _SUM, "weighted-64", "weighted sum, dim 64", {**GRAPH, "dim": 64}, "num_positions*dim", peers=_SUMS
    ),
    _make_device_workload(
        _GAT, "gat", "attention, 8 x 32, with backward", {**QUARTER_GRAPH, **HEADS}, f"3*{ROWS_OF_HEADS}"
    ),
    _make_device_workload(_ANGULAR, "dimenet", "triplet sum", CRYSTAL),
    _make_device_workload(_MESSAGE, "gno", "message, with backward", POINTS),
    _make_device_workload(_GEMNET, "gemnet", "both operators, with backward", CATALYST),
    _make_device_workload(
        _SUM_BACKWARD,
        "weighted-64-backward",
        "weighted sum, dim 64, with backward",
        {**GRAPH, "dim": 64},
        "3*num_positions*dim",
    ),
    _make_device_workload(
        _GAT,
        "gat-forward",
        "attention, 8 x 32",
        {**QUARTER_GRAPH, **HEADS},
        ROWS_OF_HEADS,
        steps=_GAT.steps[:1],
    ),
    _make_device_workload(_ANGULAR_BACKWARD, "dimenet-backward", "triplet sum, with backward", CRYSTAL),
    # This workload has no peers, because a peer would run out of memory.
    _make_device_workload(
        _ANGULAR_FORCES,
        "dimenet-forces",
        "triplet sum, with backward to vectors",
        CRYSTAL,
        steps=_ANGULAR_FORCES.steps[:2],
        peers={},
    ),
    _make_device_workload(_MESSAGE, "gno-forward", "message", POINTS, steps=_MESSAGE.steps[:1], peers={}),
    *(
        _make_device_workload(
            _SUM, f"weighted-{n}", f"weighted sum, dim {n}", {**GRAPH, "dim": n}, "num_positions*dim", peers=_SPARSE
        )
        for n in (256, 128)
    ),
)
_FORCES = ("dimenet-molecules", "dimenet-energy-forces", "dimenet-copper")
_TRAINING = (*_FORCES, *(f"dimenet-{structure}-curvature" for structure in ("molecules", "slab", "copper")), "gat")
_PRIORITY = (*(f"{name}-training" for name in _TRAINING), *_FORCES)


def _add_cuda_graph_contenders(program: Program) -> Program:
    """Add a captured potential to the contenders of a DimeNet++ program and, if it computes forces, a compiled peer."""
    contenders = dict(program.contenders)
    forms = {"trigraph-captured": ("trigraph", "captured in a CUDA graph")}
    if program.name in _FORCES:
        forms["pyg-compiled"] = "pyg", "compiled for these sizes, with CUDA graphs"
    for form, (base, what) in forms.items():
        make: Any = contenders[base].make
        again = partial(make.func, **{**make.keywords, "form": form})
        contenders[form] = replace(contenders[base], make=again, about=f"{contenders[base].about}, {what}")
    return replace(program, contenders=contenders)


_PROGRAMS = sorted((p for p in PROGRAMS if p.name in _PRIORITY), key=lambda program: _PRIORITY.index(program.name))
_DYNAMICS = (
    Program(
        name=f"dimenet-dynamics-{4 * cells**3}",
        summary=f"ten steps of dynamics of {4 * cells**3} copper atoms through torch-sim, neighbours included",
        contenders={
            "trigraph": Contender(partial(make_dynamics_call, form="trigraph"), OURS, ("torch", "ase", "torch_sim"))
        },
        sizes={"cells": cells, "steps": 10, **WIDTHS},
        small={"cells": 2, "steps": 3},
    )
    for cells in (3, 10, 20)
)
DEVICE: tuple[Workload | Program, ...] = (
    *WORKLOADS,
    *(_add_cuda_graph_contenders(p) if p.name.startswith("dimenet-") else p for p in (*_PROGRAMS, *_DYNAMICS)),
)
