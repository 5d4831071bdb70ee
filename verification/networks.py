"""Realistic graphs for graph attention and weighted aggregation: a mesh, a social network, and a power-law graph.

The mesh is pyamg's airfoil, and the network is Zachary's karate club. The power-law graph is generated, with 30,000
edges and degrees as uneven as in large social networks or knowledge graphs.
"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from trigraph.graphs import CSC
from trigraph.table import Definition

DATA = Path(__file__).parent / "data"
NEAR = 8  # number of destinations in the part of the mesh that is compared with the judge
NODES, EDGES = 3_000, 30_000
PATCH = 40  # number of destinations, with tens of in-edges each, in the patch of the power-law graph
HEADS, DIM_HEAD = 2, 3


@cache  # safe to cache: the arrays depend only on the installed file
def load_airfoil_arrays() -> dict[str, np.ndarray]:
    """Return the arrays of airfoil.npz: pyamg's mesh and athena's weights."""
    with np.load(DATA / "airfoil.npz") as archive:
        return dict(archive)


def load_airfoil_mesh(patch: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return node positions, sources and destinations; a patch contains only the in-edges of `NEAR` nodes."""
    z = load_airfoil_arrays()
    positions, offsets, src = z["positions"], z["offsets"], z["indices"]
    dst = np.repeat(np.arange(len(positions), dtype=src.dtype), np.diff(offsets))
    if patch:
        near = np.argsort(np.linalg.norm(positions, axis=1), kind="stable")[:NEAR]
        inside = np.isin(dst, near)
        src, dst = src[inside], dst[inside]
        nodes, numbers = np.unique(np.concatenate([src, dst]), return_inverse=True)
        src, dst = numbers.astype(src.dtype).reshape(2, -1)
        positions = positions[nodes]
    return positions, src, dst


def draw_power_law_graph(nodes: int = NODES, edges: int = EDGES, exponent: float = 0.6, seed: int = 0) -> CSC:
    """Return a graph whose in- and out-degrees decrease as rank**-exponent; rows of edge arrays are positions.

    Exponents are between 0 and 1; the largest degree is about ``(1 - exponent) * edges / nodes**(1 - exponent)``. Both
    ends of every edge are drawn independently, with a probability proportional to ``r**-exponent`` for the node of rank
    r, by inversion of the continuous distribution: ``r = nodes * u**(1/(1 - exponent))``, where u is uniform in [0, 1)
    from NumPy's PCG64. Random permutations assign ranks to destinations and to sources. Edges are stably sorted by
    destination. Duplicates and self-loops are kept.
    """
    rng = np.random.default_rng(seed)
    ends = []
    for _ in range(2):
        ranks = (nodes * rng.random(edges) ** (1 / (1 - exponent))).astype(np.int64)
        ends.append(rng.permutation(nodes)[ranks])
    dst, src = ends
    offsets = np.concatenate([[0], np.cumsum(np.bincount(dst, minlength=nodes))])
    return CSC(offsets, src[np.argsort(dst, kind="stable")], nodes)


@cache  # safe to cache: the results depend only on the installed file
def load_karate_club() -> tuple[CSC, np.ndarray, np.ndarray]:
    """Return Zachary's karate club: graph (both directions share a row of edge arrays), edge weights, and sides."""
    with np.load(DATA / "karate.npz") as archive:
        ends, weights, side = archive["ends"], archive["weights"], archive["side"]
    rows = np.tile(np.arange(len(ends)), 2)
    src, dst = np.concatenate([ends, ends[:, ::-1]]).T
    return CSC.from_coo(src, dst, len(side), len(side), rows, len(ends)), weights, side


def _select_in_edges(graph: CSC, nodes: np.ndarray) -> CSC:
    """Return the graph of the in-edges of some destinations, with sources and rows renumbered."""
    spans = [np.arange(graph.offsets[i], graph.offsets[i + 1]) for i in nodes]
    sources, numbers = np.unique(graph.indices[np.concatenate(spans)], return_inverse=True)
    offsets = np.concatenate([[0], np.cumsum([len(s) for s in spans])])
    return CSC(offsets, numbers.astype(np.int64), len(sources))


def _make_sine_features(nodes: int, width: int, phase: float) -> np.ndarray:
    """Return node features: a different sine in each column."""
    return np.sin(np.outer(np.arange(nodes) + 1, np.sqrt(np.arange(width) + 2)) + phase)


def _fill_missing_arguments(graph: CSC, settings: dict[str, Any], **arrays: Any) -> dict[str, Any]:
    """Return arguments of fwd: the given arguments, with sines for the other features."""
    heads, width = settings.get("num_heads", HEADS), settings.get("num_heads", HEADS) * DIM_HEAD
    values = {
        "graph": graph,
        "num_heads": heads,
        "concat_heads": True,
        "return_softmax_scores": True,
        "activation": "tanh",
        "negative_slope": 0.2,
        "src_embedding": _make_sine_features(graph.num_src_nodes, width, 0.0),
        "dst_embedding": _make_sine_features(graph.num_dst_nodes, width, 1.0),
        "edge_embedding": None,
        "embedding": _make_sine_features(graph.num_src_nodes, width, 0.0),
        "edge_weight": 1 + 0.5 * np.sin(np.arange(graph.num_edges)),
        "op": "mean",
        "mean_by": "weight",
        **settings,
        **arrays,
    }
    parts = 2 if values["edge_embedding"] is None else 3
    values.setdefault("attention_weights", np.cos(np.arange(parts * width) + 0.5))
    return values


def make_airfoil_arguments(definition: Definition, patch: bool, keep: np.ndarray | None) -> dict[str, Any]:
    """Return arguments for the airfoil mesh; features depend on positions, and shorter edges have larger weights."""
    positions, src, dst = load_airfoil_mesh(patch)
    graph = CSC.from_coo(src, dst, len(positions), len(positions))
    along = positions[src] - positions[dst]
    length = np.linalg.norm(along, axis=1, keepdims=True)
    sums = positions.sum(1, keepdims=True)
    sines = np.concatenate([np.sin(positions), np.cos(positions), np.sin(sums), positions[:, :1]], 1)
    directions = np.tile(along / length, (1, HEADS * DIM_HEAD // 2))
    arrays = {"src_embedding": sines, "dst_embedding": sines, "edge_embedding": directions, "embedding": sines}
    return _fill_missing_arguments(graph, {}, **arrays, edge_weight=1 / (1 + length[:, 0]))


def make_karate_club_arguments(definition: Definition, patch: bool, keep: np.ndarray | None) -> dict[str, Any]:
    """Return arguments for the karate club: sides of members, and numbers of contexts in which two members met."""
    graph, weights, side = load_karate_club()
    member = _make_sine_features(graph.num_src_nodes, HEADS * DIM_HEAD, 0.0)
    member[:, 0] = 2 * side - 1
    arrays = {"src_embedding": member, "dst_embedding": member, "embedding": member, "edge_weight": weights}
    return _fill_missing_arguments(graph, {"activation": "sigmoid", "concat_heads": False, "op": "sum"}, **arrays)


def make_power_law_arguments(definition: Definition, patch: bool, keep: np.ndarray | None) -> dict[str, Any]:
    """Return arguments for the power-law graph; a patch contains the in-edges of some destinations of middle rank."""
    graph = draw_power_law_graph()
    if patch:
        order = np.argsort(-np.diff(graph.offsets), kind="stable")
        graph = _select_in_edges(graph, order[NODES // 10 : NODES // 10 + PATCH])
    return _fill_missing_arguments(graph, {"num_heads": 1})
