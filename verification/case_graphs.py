"""The graphs of generated cases, by variant: what is isolated, doubled, shared, or has very many edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from trigraph.edge_graph import EdgeGraph
from trigraph.graphs import CSC
from trigraph.segments import Segments

if TYPE_CHECKING:
    from trigraph.verification.variants import Variant

__all__ = ["GRAPHS"]

# Lengths of rows: of 256 and 512 members, which are whole pieces, of one more, and long ones first and last;
# in all more rows than two blocks of nodes (48) have.
BY_DESTINATION = np.array([257, *[1] * 100, 256, 0, 512])
BY_SOURCE = np.array([512, 0, 256, *[1] * 100, 257])
BY_ROW = np.array([256, *[1] * 100, 257, 512])


def _in_rows(lengths: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the row of each member, in any order."""
    return rng.permutation(np.repeat(np.arange(len(lengths)), lengths))


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
    if variant.name == "boundaries":
        sizes |= {"num_src_nodes": len(BY_SOURCE), "num_dst_nodes": len(BY_DESTINATION)}
        src, dst = _in_rows(BY_SOURCE, rng), _in_rows(BY_DESTINATION, rng)
    else:
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
    elif variant.name == "boundaries":
        rows, edge_ids = len(BY_ROW), _in_rows(BY_ROW, rng).astype(variant.index)
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
    elif variant.name == "unused rows":  # and three rows come after those of the last position
        graph = CSC(graph.offsets, graph.indices, graph.num_src_nodes, num_edges=graph.num_positions + 3)
    sizes |= {name: int(getattr(graph, name)) for name in ("num_positions", "num_edges")}
    return graph


def _edges(
    variant: Variant, sizes: dict[str, int], rng: np.random.Generator
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the graph of a variant and the vectors of its edges; writes the sizes it has into `sizes`.

    Atoms in a skew cell: an edge and its reverse have opposite vectors. Periodic cells have parallel edges (images of
    one neighbour) and edges from an atom to its own image; a third of the edges has no reverse.
    """
    if variant.name == "boundaries":
        return _edge_boundaries(variant, sizes, rng)
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
    if variant.name == "images":
        first, second = np.tile(np.triu_indices(nodes, 1), 2)
        shift = np.repeat([[0, 0, 0], [1, -1, 0]], len(first) // 2, axis=0)
    if variant.name == "one edge":
        first, second, shift = np.zeros(1, int), np.ones(1, int) % nodes, np.ones((1, 3), int)
    images = np.unique(np.column_stack([first, second, shift]), axis=0)
    images = images[(images[:, 0] != images[:, 1]) | images[:, 2:].any(axis=1)]
    mirrored = rng.random(len(images)) < {"skewed": 0.02, "images": 1}.get(variant.name, 2 / 3)
    back = images[mirrored] if len(images) > 1 else images[:0]
    both = np.unique(np.concatenate([images, np.column_stack([back[:, 1], back[:, 0], -back[:, 2:]])]), axis=0)
    src, dst = both[:, 0], both[:, 1]
    positions = rng.uniform(0, 1, (nodes, 3))
    cell = np.eye(3) + rng.uniform(0, 0.2, (3, 3))
    vec = positions[src] - positions[dst] + both[:, 2:] @ cell
    graph = EdgeGraph(src.astype(variant.index), dst.astype(variant.index), nodes, vec=vec)
    sizes["num_edges"] = graph.num_edges
    return {"graph": graph}, {"vec": vec}


def _edge_boundaries(
    variant: Variant, sizes: dict[str, int], rng: np.random.Generator
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return nodes with 256, 257 or 512 in-edges and two out-edges, or the other way round; the rest have few triplets.

    In-edges come from nodes 2 to 11 and out-edges go to nodes 12 to 21, but for one that goes back to node 2.
    """
    wide = ((0, 257), (22, 256), (25, 512))  # node, in-edges: the first and the last node are among them
    pairs = [
        pair for node, count in wide for pair in [*((2 + n % 10, node) for n in range(count)), (node, 2), (node, 12)]
    ]
    tall = ((1, 256), (23, 257), (24, 512))  # node, out-edges
    pairs += [
        pair for node, count in tall for pair in [*((node, 12 + n % 10) for n in range(count)), (3, node), (4, node)]
    ]
    src, dst = np.array(sorted(pairs, key=lambda pair: (pair[0], rng.random())), variant.index).T
    vec = rng.standard_normal((len(src), 3))
    graph = EdgeGraph(src, dst, 26, vec=vec)
    sizes |= {"num_nodes": graph.num_nodes, "num_edges": graph.num_edges}
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
    if variant.name == "boundaries":
        return _segment_boundaries(variant, sizes, rng)
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


def _segment_boundaries(
    variant: Variant, sizes: dict[str, int], rng: np.random.Generator
) -> dict[str, Segments | None]:
    """Return edges, atoms and inputs with 256, 257 or 512 members, the first and the last among them."""
    several = "num_outputs" in sizes
    total, index = int(BY_DESTINATION.sum()), variant.index

    def segments(lengths: np.ndarray) -> Segments:
        return Segments(_in_rows(lengths, rng).astype(index), len(lengths))

    # As many edges as triplets where atoms are segments of them: most edges then have no triplet.
    lengths = np.insert(BY_DESTINATION, -1, np.zeros(total - len(BY_DESTINATION), int)) if several else BY_DESTINATION
    graphs: dict[str, Segments | None] = {"triplets": segments(lengths)}
    sizes |= {"num_triplets": total, "num_edges": len(lengths)}
    if several:
        absent = {name for name, value in variant.setting.items() if value is None}
        graphs["atoms"] = None if "atoms" in absent else segments(BY_SOURCE)
        graphs["idx_in"] = None if "idx_in" in absent else segments(BY_ROW)
        sizes |= {"num_outputs": total if "atoms" in absent else len(BY_SOURCE)}
        sizes |= {"num_inputs": total if "idx_in" in absent else len(BY_ROW)}
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
