"""Graphs of edges between atoms (`trigraph.EdgeGraph`) in generated cases."""

from typing import Any

import numpy as np

from trigraph.graphs.edge_graph import EdgeGraph
from trigraph.verification.case import Case
from trigraph.verification.graphs.base import (
    CaseGraphBuilder,
    Counts,
    GraphsAndInputs,
    draw_batch_groups,
    draw_permutations,
)
from trigraph.verification.kinds import CaseVariant


class EdgeGraphBuilder(CaseGraphBuilder):
    """Implementation of `CaseGraphBuilder` for `trigraph.EdgeGraph`."""

    variants = (
        CaseVariant("regular", 0, np.int64),
        CaseVariant("periodic", 1, np.int32),
        CaseVariant("square", 2, np.int32),
        CaseVariant("skewed", 1, np.int64),
        CaseVariant("boundaries", 1, np.int32),
        CaseVariant("wide", 0, np.int32),
        CaseVariant("one channel", 0, np.int64),
        CaseVariant("one edge", 0, np.int64),
        CaseVariant("no edges", 0, np.int32),
        CaseVariant("no nodes", 0, np.int64),
        CaseVariant("images", 1, np.int32, {"exclude": "node"}),
        CaseVariant("scaled cotangents", 1, np.int32),
    )
    members = "num_positions"

    def build_variant_graphs(
        self, variant: CaseVariant, sizes: dict[str, int], rng: np.random.Generator
    ) -> GraphsAndInputs:
        """Return the graph of a variant and the vectors of its edges, and update `sizes`.

        Edges connect atoms in a skew cell; reverse edges have opposite vectors. A third of the edges have no reverse.
        Periodic cells yield parallel edges (images of one neighbour) and edges from an atom to its own image.
        """
        if variant.name == "boundaries":
            return _draw_boundary_graph(variant, sizes, rng)
        nodes = sizes["num_nodes"]
        pairs = 0 if nodes == 0 or variant.name in ("no edges", "one edge") else 2 * nodes
        near = 1 if variant.name in ("periodic", "wide") else 0
        first, second = (rng.integers(0, max(1, nodes - 1), pairs) for _ in range(2))  # the last node is isolated
        shift = rng.integers(-near, near + 1, (pairs, 3))
        if variant.name == "skewed":
            # Node 1 has 270 in-edges from images of even nodes, more than a chunk of 256. Node 0 has 270 out-edges to
            # images of odd nodes. There are few other edges, to limit the number of triplets.
            many, few, number = 270, nodes // 2, np.arange(270)
            image_nodes = 2 * (number % (nodes // 2 - 1)) + 2
            first = np.concatenate([first[:few], image_nodes, np.zeros(many, int)])
            second = np.concatenate([second[:few], np.ones(many, int), image_nodes + 1])
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

    def build_hub_graphs(
        self, variant: CaseVariant, sizes: dict[str, int], rng: np.random.Generator
    ) -> GraphsAndInputs:
        """Give node n, where n is the degree, n in-edges and an edge to node n + 1, which has n out-edges."""
        count = variant.degree
        every = np.arange(count)
        src = np.concatenate([every, [count], np.full(count, count + 1)])
        dst = np.concatenate([np.full(count, count), [count + 1], every + count + 2])
        vec = rng.uniform(0.5, 1.5, (len(src), 3))
        if variant.distribution == "constant":
            vec[:] = vec[0]
        graph = EdgeGraph(src.astype(variant.index), dst.astype(variant.index), 2 * count + 2, vec=vec)
        sizes |= {"num_nodes": graph.num_nodes, "num_edges": graph.num_edges}
        return {"graph": graph}, {"vec": vec}

    def renumber_graphs(self, case: Case, rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Renumber nodes at random; sort edges by new source, with random order for each source."""
        orders = draw_permutations(case, rng)
        graph, edges = renumber_graph(
            case.values["graph"], case.values["vec"], orders["num_nodes"], orders["num_edges"]
        )
        return {"graph": graph}, {**orders, "num_edges": edges}

    def embed_graphs_in_batch(
        self, case: Case, before: Counts, after: Counts, rng: np.random.Generator
    ) -> dict[str, Any]:
        """Embed the case's graph; edges stay sorted by source, and the case's edges keep their order."""
        graph = case.values["graph"]
        src, dst = (
            draw_batch_groups(own, "num_edges", "num_nodes", case, before, after, rng) for own in (graph.src, graph.dst)
        )
        is_other = np.ones(src.size, bool)
        is_other[before["num_edges"] : before["num_edges"] + graph.num_edges] = False
        src[is_other] = np.sort(src[is_other])  # the case's edges are already sorted
        reverse = None
        if graph.reverse_edge is not None:
            reverse = np.full_like(src, -1)
            own = graph.reverse_edge
            reverse[~is_other] = np.where(own >= 0, own + before["num_edges"], -1)
        function, _ = graph.__reduce__()
        number = before["num_nodes"] + graph.num_nodes + after["num_nodes"]
        whole: EdgeGraph = function(src, dst, number, reverse)
        return {"graph": whole}

    def draw_graphs(self, sizes: dict[str, int], index: type, rng: np.random.Generator) -> dict[str, Any]:
        """Draw a graph whose parallel edges differ in shifts; most edges have a reverse edge.

        The number of edges is limited, because the backends with direct sums visit every triplet.
        """
        nodes = sizes["num_nodes"]
        count = min(sizes["num_edges"] // 2, 6 * nodes)
        src, dst = rng.integers(0, max(nodes, 1), (2, count))
        half = np.column_stack([src, dst, np.arange(count) + 1, rng.integers(-1, 2, (count, 2))])
        back = np.column_stack([dst, src, -half[:, 2:]])[rng.random(count) < 0.7]
        both = np.concatenate([half, back])
        both = both[np.argsort(both[:, 0], kind="stable")].astype(index)
        return {"graph": EdgeGraph(both[:, 0].copy(), both[:, 1].copy(), nodes, both[:, 2:].copy())}


def renumber_graph(
    graph: EdgeGraph, vec: np.ndarray, nodes: np.ndarray, edges: np.ndarray
) -> tuple[EdgeGraph, np.ndarray]:
    """Return the graph whose node k was ``nodes[k]``, sorted by source, and the old edge numbers."""
    new = np.argsort(nodes).astype(graph.src.dtype)
    edges = edges[np.argsort(new[graph.src[edges]], kind="stable")]
    return EdgeGraph(new[graph.src[edges]], new[graph.dst[edges]], graph.num_nodes, vec=vec[edges]), edges


def _draw_boundary_graph(variant: CaseVariant, sizes: dict[str, int], rng: np.random.Generator) -> GraphsAndInputs:
    """Return a graph with nodes that have 256, 257 or 512 in-edges and two out-edges, or vice versa.

    To limit triplets, in-edges come from nodes 2 to 11, and out-edges lead to nodes 12 to 21, except one to node 2.
    """
    wide = ((0, 257), (22, 256), (25, 512))  # (node, number of in-edges), including the first and the last node
    pairs = [
        pair for node, count in wide for pair in [*((2 + n % 10, node) for n in range(count)), (node, 2), (node, 12)]
    ]
    tall = ((1, 256), (23, 257), (24, 512))  # (node, number of out-edges)
    pairs += [
        pair for node, count in tall for pair in [*((node, 12 + n % 10) for n in range(count)), (3, node), (4, node)]
    ]
    src, dst = np.array(sorted(pairs, key=lambda pair: (pair[0], rng.random())), variant.index).T
    vec = rng.standard_normal((len(src), 3))
    graph = EdgeGraph(src, dst, 26, vec=vec)
    sizes |= {"num_nodes": graph.num_nodes, "num_edges": graph.num_edges}
    return {"graph": graph}, {"vec": vec}
