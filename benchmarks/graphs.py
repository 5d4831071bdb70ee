"""Typical graphs for timed calls, by kind of graph and distribution of degrees.

Unlike these, the graphs of `trigraph verify` are small and unusual (shared rows, hubs, isolated nodes).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from trigraph.graphs import CSC
from trigraph.graphs.edge_graph import EdgeGraph
from trigraph.graphs.segments import Segments
from trigraph.verification.networks import draw_power_law_graph

EXPONENT = 0.6  # degrees decrease as rank**-EXPONENT


def _draw_random_csc(sizes: Mapping[str, int], rng: np.random.Generator) -> dict[str, Any]:
    """Draw sources and destinations and, unless there are as many rows as positions, random edge rows."""
    n_dst, n_src = sizes["num_dst_nodes"], sizes["num_src_nodes"]
    positions, rows = sizes["num_positions"], sizes["num_edges"]
    degrees = np.bincount(rng.integers(n_dst, size=positions), minlength=n_dst)
    offsets = np.concatenate([[0], np.cumsum(degrees)])
    edge_ids = None if rows == positions else rng.integers(rows, size=positions)
    return {"graph": CSC(offsets, rng.integers(n_src, size=positions), n_src, edge_ids, rows)}


def _draw_power_law_csc(sizes: Mapping[str, int], rng: np.random.Generator) -> dict[str, Any]:
    """Draw in-degrees from a power law, as in verification; each position has its own row of edge arrays."""
    seed = int(rng.integers(2**31))
    return {"graph": draw_power_law_graph(sizes["num_dst_nodes"], sizes["num_positions"], EXPONENT, seed)}


def _draw_random_edge_graph(sizes: Mapping[str, int], rng: np.random.Generator) -> dict[str, Any]:
    """Draw pairs of nodes, each with edges in both directions, without repetition if there are enough pairs."""
    nodes, rows = sizes["num_nodes"], sizes["num_edges"]
    pairs, half = max(nodes * (nodes - 1) // 2, 1), (rows + 1) // 2
    number = rng.choice(pairs, half, replace=half > pairs)
    # Pair (i, j) with j < i has index i (i - 1) / 2 + j; a graph of one node has no pairs and gets self-loops.
    i = np.floor((1 + np.sqrt(8.0 * number + 1)) / 2).astype(np.int64)
    j = number - i * (i - 1) // 2
    i %= nodes
    src, dst = np.concatenate([i, j])[:rows], np.concatenate([j, i])[:rows]
    return {"graph": EdgeGraph.from_unsorted(src, dst, nodes).graph}


def _draw_triplets(sizes: Mapping[str, int], rng: np.random.Generator, exponent: float = 0.0) -> dict[str, Any]:
    """Return triplets sorted by edge; the number per edge decreases as rank**-exponent for randomly ranked edges."""
    triplets, edges = sizes["num_triplets"], sizes["num_edges"]
    share = np.cumsum(np.arange(1, edges + 1) ** -exponent)
    ranks = np.searchsorted(share, share[-1:] * (np.arange(triplets) + 0.5) / triplets)
    counts = rng.permutation(np.bincount(ranks, minlength=edges))
    return {"triplets": Segments(np.repeat(np.arange(edges), counts), edges)}


def _draw_bilinear_graphs(sizes: Mapping[str, int], rng: np.random.Generator, exponent: float = 0.0) -> dict[str, Any]:
    """Draw triplets and, if the case has them, `atoms` (edges sorted by atom) and `idx_in` (row of m by triplet)."""
    graphs = {**_draw_triplets(sizes, rng, exponent), "atoms": None, "idx_in": None}
    if sizes["has_atoms"]:
        atoms = sizes["num_outputs"]
        graphs["atoms"] = Segments(np.sort(rng.integers(atoms, size=sizes["num_edges"])), atoms)
    if sizes["has_idx_in"]:
        rows = sizes["num_inputs"]
        graphs["idx_in"] = Segments(rng.integers(rows, size=sizes["num_triplets"]), rows)
    return graphs


# Functions that draw graph objects (by argument name) for given sizes, by kind of graph and layout.
GRAPH_MAKERS: dict[tuple[str, str], Callable[[Mapping[str, int], np.random.Generator], dict[str, Any]]] = {
    ("csc", "uniform"): _draw_random_csc,
    ("csc", "power law"): _draw_power_law_csc,
    ("edges", "uniform"): _draw_random_edge_graph,
    ("triplets", "uniform"): _draw_triplets,
    ("bilinear", "uniform"): _draw_bilinear_graphs,
    ("bilinear", "power law"): partial(_draw_bilinear_graphs, exponent=EXPONENT),
}
