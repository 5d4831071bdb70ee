"""The graphs of generated cases, by variant: what is isolated, doubled, shared, or has very many edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from trigraph.edge_graph import EdgeGraph
from trigraph.graphs import CSC
from trigraph.segments import Segments

if TYPE_CHECKING:
    from trigraph.verification.cases import Variant

__all__ = ["GRAPHS"]


def _pairs(variant: Variant, sizes: dict[str, int], rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Source and destination of every edge, in any order."""
    n_src, n_dst, count = sizes["num_src_nodes"], sizes["num_dst_nodes"], sizes["num_positions"]
    if variant.name == "skewed":
        # Source 2 and destination 1 each have more than two chunks of 256 edges.
        src = np.concatenate([rng.integers(0, n_src, 620), np.full(620, 2)])
        dst = np.concatenate([np.full(620, 1), rng.integers(0, n_dst, 620)])
        return src, dst
    if min(n_src, n_dst, count) < 4:
        return rng.integers(0, max(n_src, 1), count), rng.integers(0, max(n_dst, 1), count)
    # Isolated: the last and a middle source and destination. Self loops at 0 and 1, the edge 2 -> 1 twice.
    sources = np.setdiff1d(np.arange(n_src), [n_src // 2, n_src - 1])
    targets = np.setdiff1d(np.arange(n_dst), [n_dst // 2, n_dst - 1])
    src = np.concatenate([[0, 1, 2, 2], rng.choice(sources, count - 4)])
    dst = np.concatenate([[0, 1, 1, 1], rng.choice(targets, count - 4)])
    return src, dst


def _csc(variant: Variant, sizes: dict[str, int], rng: np.random.Generator) -> CSC:
    """Return the graph of a variant; writes the sizes it has into `sizes`."""
    if variant.name == "square":
        sizes["num_src_nodes"] = sizes["num_dst_nodes"]
    src, dst = _pairs(variant, sizes, rng)
    order = rng.permutation(len(src))
    src, dst = src[order], dst[order]
    count, edge_ids, rows = len(src), None, None
    if variant.name == "no edges":
        rows, edge_ids = sizes["num_edges"], np.empty(0, variant.index)
    elif variant.name == "shared rows":
        rows = count
        # As many as positions. Three unused, the others drawn with replacement: some shared by several positions.
        edge_ids = rng.choice(np.setdiff1d(np.arange(rows), [0, rows // 2, rows - 1]), count).astype(variant.index)
    elif variant.name == "skewed":
        # One row shared by more than two chunks, the rest a permutation as `from_coo` makes.
        rows = count - 599
        edge_ids = rng.permutation(np.concatenate([np.zeros(600, int), np.arange(1, rows)])).astype(variant.index)
    graph = CSC.from_coo(
        src.astype(variant.index),
        dst.astype(variant.index),
        sizes["num_src_nodes"],
        sizes["num_dst_nodes"],
        edge_ids,
        rows,
    )
    if variant.name == "regular":  # positions are rows
        graph = CSC(graph.offsets, graph.indices, graph.num_src_nodes)
    sizes |= {name: int(getattr(graph, name)) for name in ("num_positions", "num_edges")}
    return graph


def _edges(
    variant: Variant, sizes: dict[str, int], rng: np.random.Generator
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the graph of a variant and the vectors of its edges; writes the sizes it has into `sizes`.

    Atoms in a skew cell: an edge and its reverse have opposite vectors. Periodic cells have parallel edges (images of
    one neighbour) and edges from an atom to its own image; a third of the edges has no reverse.
    """
    nodes = sizes["num_nodes"]
    pairs = 0 if nodes == 0 or variant.name in ("no edges", "one edge") else 2 * nodes
    near = 1 if variant.name in ("periodic", "wide") else 0
    first, second = (rng.integers(0, max(1, nodes - 1), pairs) for _ in range(2))  # the last node is isolated
    shift = rng.integers(-near, near + 1, (pairs, 3))
    if variant.name == "skewed":
        # Node 1 has more than a chunk of 256 in-edges, node 0 as many out-edges: images of even and of odd nodes, and
        # few edges besides, so that there are few triplets.
        many, few, number = 270, nodes // 2, np.arange(270)
        others = 2 * (number % (nodes // 2 - 1)) + 2
        first = np.concatenate([first[:few], others, np.zeros(many, int)])
        second = np.concatenate([second[:few], np.ones(many, int), others + 1])
        far = np.tile(np.stack([number - 135, number // 16, number % 16], axis=1), (2, 1))
        shift = np.concatenate([shift[:few], far])
    if variant.name == "one edge":
        first, second, shift = np.zeros(1, int), np.ones(1, int) % nodes, np.ones((1, 3), int)
    images = np.unique(np.column_stack([first, second, shift]), axis=0)
    images = images[(images[:, 0] != images[:, 1]) | images[:, 2:].any(axis=1)]
    mirrored = rng.random(len(images)) < (0.02 if variant.name == "skewed" else 2 / 3)
    back = images[mirrored] if len(images) > 1 else images[:0]
    both = np.unique(np.concatenate([images, np.column_stack([back[:, 1], back[:, 0], -back[:, 2:]])]), axis=0)
    src, dst = both[:, 0], both[:, 1]
    positions = rng.uniform(0, 1, (nodes, 3))
    cell = np.eye(3) + rng.uniform(0, 0.2, (3, 3))
    vec = positions[src] - positions[dst] + both[:, 2:] @ cell
    graph = EdgeGraph(src.astype(variant.index), dst.astype(variant.index), nodes, vec=vec)
    sizes["num_edges"] = graph.num_edges
    return {"graph": graph}, {"vec": vec}


def _members(variant: Variant, count: int, bound: int, rng: np.random.Generator) -> Segments:
    """Members of segments in any order; the last and a middle segment have none, in "skewed" one has most."""
    used = np.setdiff1d(np.arange(bound), [bound // 2, bound - 1]) if bound > 3 else np.arange(bound)
    index = rng.choice(used, count) if count else np.empty(0, np.int64)
    if variant.name == "skewed" and count:
        index[rng.random(count) < 0.9] = used[1 % len(used)]
    return Segments(index.astype(variant.index), bound)


def _triplets(variant: Variant, sizes: dict[str, int], rng: np.random.Generator) -> dict[str, Segments | None]:
    """Return the graph objects of a variant; writes the sizes they have into `sizes`."""
    if variant.name == "skewed":
        sizes |= {"num_triplets": 700, "num_edges": 290}
    elif variant.name == "wide":
        sizes |= {"num_triplets": 5, "num_edges": 3}
    absent = {name for name, value in variant.setting.items() if value is None}
    graphs: dict[str, Segments | None] = {
        "triplets": _members(variant, sizes["num_triplets"], sizes["num_edges"], rng),
        "atoms": None,
        "idx_in": None,
    }
    if "num_outputs" not in sizes:
        return {"triplets": graphs["triplets"]}
    if "atoms" in absent or (sizes["num_edges"] and not sizes["num_outputs"]):
        sizes["num_outputs"] = sizes["num_edges"]
    else:
        graphs["atoms"] = _members(variant, sizes["num_edges"], sizes["num_outputs"], rng)
    if "idx_in" in absent or (sizes["num_triplets"] and not sizes["num_inputs"]):
        sizes["num_inputs"] = sizes["num_triplets"]
    else:
        graphs["idx_in"] = _members(variant, sizes["num_triplets"], sizes["num_inputs"], rng)
    return graphs


# By kind of graph: the graph objects of a variant, and inputs that belong to them.
GRAPHS: dict[
    str | None, Callable[[Variant, dict[str, int], np.random.Generator], tuple[dict[str, Any], dict[str, Any]]]
] = {
    "csc": lambda variant, sizes, rng: ({"graph": _csc(variant, sizes, rng)}, {}),
    "edges": _edges,
    "triplets": lambda variant, sizes, rng: (_triplets(variant, sizes, rng), {}),
    "bilinear": lambda variant, sizes, rng: (_triplets(variant, sizes, rng), {}),
}
