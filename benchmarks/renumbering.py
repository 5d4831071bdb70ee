"""What `CSC.renumbered` gains: graphs whose nodes came in any order, beside the same graphs renumbered.

    python -m trigraph.benchmarks.renumbering RECORD.json    # some minutes and 3 GB

64 features, or 4 heads of 16; the time of renumbering stands beside them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import trigraph
from trigraph import CSC, EdgeGraph
from trigraph.benchmarks.calls import Call
from trigraph.benchmarks.programs import Contender, Program
from trigraph.benchmarks.script import measure
from trigraph.verification.networks import power_law

ROUNDS, HEADS = 7, 4
OPERATORS = ("agg_weighted_n2n_fwd", "agg_weighted_n2n_bwd", "mha_gat_n2n_fwd", "mha_gat_n2n_bwd")
# Cells of a slab of copper, whose neighbours are those of two shells (the cutoff is in tenths of an angstrom); random
# graphs.
SIZES = {"cells": 100, "layers": 10, "cutoff": 37, "nodes": 100_000, "edges": 1_600_000, "dim": 64}
SMALL = {"cells": 5, "layers": 3, "nodes": 100, "edges": 1_600}


def _graph(kind: str, sizes: Mapping[str, int], rng: np.random.Generator) -> CSC:
    """Return a slab whose atoms come in any order, random ends for each edge, or a few nodes with very many edges."""
    if kind == "slab":
        from ase.build import fcc111

        slab = fcc111("Cu", (sizes["cells"], sizes["cells"], sizes["layers"]), vacuum=8.0)
        graph = EdgeGraph.from_ase(slab, sizes["cutoff"] / 10).graph
        number = rng.permutation(graph.num_nodes)
        return CSC.from_coo(number[graph.src], number[graph.dst], graph.num_nodes, graph.num_nodes)
    if kind == "power law":
        return power_law(sizes["nodes"], sizes["edges"])
    src, dst = rng.integers(0, sizes["nodes"], (2, sizes["edges"]))
    return CSC.from_coo(src, dst, sizes["nodes"], sizes["nodes"])


def _without_results(function: Callable[[], Any]) -> Call:
    """Return a call whose results are not compared: those of renumbered nodes are in another order."""

    def run() -> dict[str, Any]:
        function()
        return {}

    return run


def call(sizes: Mapping[str, int], dtype: str, kind: str, operator: str, order: str) -> Call:
    """Return an operator on a graph, renumbered or not, or the renumbering."""
    rng = np.random.default_rng(0)
    graph = _graph(kind, sizes, rng)
    if order == "renumbering":
        return _without_results(graph.renumbered)
    graph = graph.renumbered()[0] if order == "renumbered" else graph
    graph.prepare()
    x = rng.standard_normal((graph.num_src_nodes, sizes["dim"])).astype(dtype)
    weights, attention = (rng.standard_normal(n).astype(dtype) for n in (graph.num_edges, 2 * sizes["dim"]))
    function: Any = getattr(trigraph, operator)
    given = (x, weights, graph) if operator.startswith("agg") else (x, x, attention, graph, HEADS)
    given = (x, *given) if operator.endswith("bwd") else given
    return _without_results(partial(function, *given))


PROGRAMS = tuple(
    Program(
        name=f"{operator}, {kind}",
        family="renumbering",
        summary="nodes in any order, renumbered, and the renumbering",
        contenders={
            order: Contender(partial(call, kind=kind, operator=operator, order=order), order, ("ase",))
            for order in ("given", "renumbered", "renumbering")
        },
        sizes=SIZES,
        small=SMALL,
    )
    for kind in ("slab", "uniform", "power law")
    for operator in OPERATORS
)


if __name__ == "__main__":
    measure(PROGRAMS, Path(sys.argv[1]), ROUNDS)
