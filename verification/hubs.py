"""Graphs of hubs: every sum that an operator or a derivative of it makes has very many terms at one place.

A chunked sum is within 8 eps of the judge however long it is, because partial sums are added pairwise; one that adds
them one after the other is found here and nowhere else. Widths are small, so that the judge can pay for the edges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from trigraph.edge_graph import EdgeGraph
from trigraph.graphs import CSC
from trigraph.segments import Segments

if TYPE_CHECKING:
    from trigraph.verification.variants import Variant

__all__ = ["HUBS", "SETTINGS", "WIDTH", "WIDTHS"]

WIDTHS = {"n_radial": 1, "n_emb": 1, "n_mid": 1, "num_heads": 1}
WIDTH = 2  # of everything else

# Choices with sums of their own; the others differ in what is summed.
SETTINGS: dict[str, tuple[dict[str, Any], ...]] = {
    "mha_gat_n2n": ({"activation": "ELU"},),
    "agg_weighted_n2n": ({"op": "sum"}, {"op": "mean", "mean_by": "weight"}),
    "interaction_bilinear": ({}, {"atoms": None}),
}


def _csc(variant: Variant, sizes: dict[str, int], rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    """Destination 0 has `degree` in-edges, each from a source of its own; source 0 has as many out-edges.

    The latter share one row, so that the gradient of that row is a long sum, too.
    """
    count = variant.degree
    hub, others = np.zeros(count, variant.index), np.arange(1, count + 1, dtype=variant.index)
    rows = np.concatenate([others, hub])
    graph = CSC.from_coo(np.concatenate([others, hub]), np.concatenate([hub, others]), count + 1, count + 1, rows)
    sizes |= {n: getattr(graph, n) for n in ("num_src_nodes", "num_dst_nodes", "num_positions", "num_edges")}
    return {"graph": graph}, {}


def _edges(variant: Variant, sizes: dict[str, int], rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    """Node n has n in-edges and the one edge to node n + 1, which has n out-edges."""
    count = variant.degree
    every = np.arange(count)
    src = np.concatenate([every, [count], np.full(count, count + 1)])
    dst = np.concatenate([np.full(count, count), [count + 1], every + count + 2])
    vec = rng.uniform(0.5, 1.5, (len(src), 3))
    if variant.data == "constant":
        vec[:] = vec[0]
    graph = EdgeGraph(src.astype(variant.index), dst.astype(variant.index), 2 * count + 2, vec=vec)
    sizes |= {"num_nodes": graph.num_nodes, "num_edges": graph.num_edges}
    return {"graph": graph}, {"vec": vec}


def _segments(
    variant: Variant, sizes: dict[str, int], rng: np.random.Generator
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Give the last edge `degree` triplets, the others one each; atom 0 all edges but one; an input half the triplets.

    That edge is the last, since a first term that outweighs all others makes every later addition err alike, however
    few terms a chunk has: sums over edges would be beyond what chunks promise.
    """
    count, index = variant.degree, variant.index
    hub, others = np.full(count, count, index), np.arange(count, dtype=index)
    graphs: dict[str, Any] = {"triplets": Segments(np.concatenate([others, hub]), count + 1)}
    sizes |= {"num_triplets": 2 * count, "num_edges": count + 1}
    if "num_outputs" in sizes:
        atom = np.repeat(np.array([0, 1], index), [count, 1])
        atoms = None if "atoms" in variant.setting else Segments(atom, 2)
        graphs |= {"atoms": atoms, "idx_in": Segments(np.concatenate([hub, others]), count + 1)}
        sizes |= {"num_inputs": count + 1, "num_outputs": count + 1 if atoms is None else 2}
    return graphs, {}


def _no_graph(
    variant: Variant, sizes: dict[str, int], rng: np.random.Generator
) -> tuple[dict[str, Any], dict[str, Any]]:
    """As many edges: parameter gradients are the sums."""
    sizes["num_edges"] = variant.degree
    return {}, {}


# By kind of graph, as in case_graphs.
HUBS: dict[str | None, Callable[[Variant, dict[str, int], np.random.Generator], tuple[dict[str, Any], dict[str, Any]]]]
HUBS = {"csc": _csc, "edges": _edges, "triplets": _segments, "bilinear": _segments, None: _no_graph}
