"""Graphs from sources to destinations (`trigraph.CSC`) in generated cases."""

from typing import Any

import numpy as np

from trigraph.graphs import CSC
from trigraph.verification.case import Case
from trigraph.verification.graphs import base
from trigraph.verification.kinds import CaseVariant


def uses_positions_as_edge_rows(case: Case) -> bool:
    """Return whether a case's graph is a CSC in which position p uses row p of the edge arrays."""
    graph = case.values.get("graph")
    return isinstance(graph, CSC) and np.array_equal(graph.edge_ids, np.arange(graph.num_edges))


def _draw_edge_ends(
    variant: CaseVariant, sizes: dict[str, int], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sources and destinations of all edges, in any order."""
    n_src, n_dst, count = sizes["num_src_nodes"], sizes["num_dst_nodes"], sizes["num_positions"]
    if variant.name == "skewed":
        # Source 2 and destination 1 have more than two chunks of 256 edges each.
        src = np.concatenate([rng.integers(0, n_src, 620), np.full(620, 2)])
        dst = np.concatenate([np.full(620, 1), rng.integers(0, n_dst, 620)])
        return src, dst
    if min(n_src, n_dst, count) < 4:
        return rng.integers(0, max(n_src, 1), count), rng.integers(0, max(n_dst, 1), count)
    # The last and a middle source and destination are isolated; 0 and 1 have self-loops; there are two edges 2 -> 1.
    sources = np.setdiff1d(np.arange(n_src), [n_src // 2, n_src - 1])
    if variant.name == "saturated":  # about seven parallel edges per pair
        sources = sources[:3]
    targets = np.setdiff1d(np.arange(n_dst), [n_dst // 2, n_dst - 1])
    src = np.concatenate([[0, 1, 2, 2], rng.choice(sources, count - 4)])
    dst = np.concatenate([[0, 1, 1, 1], rng.choice(targets, count - 4)])
    return src, dst


class CSCBuilder(base.CaseGraphBuilder):
    """Implementation of `CaseGraphBuilder` for `trigraph.CSC`."""

    variants = (
        CaseVariant("regular", 0, np.int64),
        CaseVariant("shared rows", 2, np.int32),
        CaseVariant("square", 1, np.int32),
        CaseVariant("skewed", 1, np.int64),
        CaseVariant("boundaries", 1, np.int32),
        CaseVariant("wide", 0, np.int32),
        CaseVariant("one channel", 0, np.int32),
        CaseVariant("integers", 0, np.int64),
        CaseVariant("one edge", 0, np.int64),
        CaseVariant("no edges", 0, np.int32),
        CaseVariant("no nodes", 0, np.int64),
        CaseVariant("unused rows", 0, np.int32),
        CaseVariant("saturated", 0, np.int32),
        CaseVariant("heads of 8", 0, np.int32),
        CaseVariant("heads of 16", 0, np.int64),
        CaseVariant("rows of 132", 0, np.int32),
        CaseVariant("features of 132", 0, np.int64),
        CaseVariant("slabs", 0, np.int32),
        CaseVariant("scaled cotangents", 1, np.int32),
    )
    members = "num_positions"

    def build_variant_graphs(
        self, variant: CaseVariant, sizes: dict[str, int], rng: np.random.Generator
    ) -> base.GraphsAndInputs:
        """Return the graph of a variant, and update `sizes`."""
        if variant.name == "square":
            sizes["num_src_nodes"] = sizes["num_dst_nodes"]
        if variant.name == "boundaries":
            sizes |= {"num_src_nodes": len(base.BY_SOURCE), "num_dst_nodes": len(base.BY_DESTINATION)}
            src, dst = (
                base.draw_rows_of_members(base.BY_SOURCE, rng),
                base.draw_rows_of_members(base.BY_DESTINATION, rng),
            )
        else:
            src, dst = _draw_edge_ends(variant, sizes, rng)
        order = rng.permutation(len(src))
        src, dst = src[order], dst[order]
        count, edge_ids, rows = len(src), None, None
        if variant.name == "no edges":
            rows, edge_ids = sizes["num_edges"], np.empty(0, variant.index)
        elif variant.name == "shared rows":
            rows = count
            # There are as many rows as positions. Three rows are unused; the other rows are drawn with replacement.
            edge_ids = rng.choice(np.setdiff1d(np.arange(rows), [0, rows // 2, rows - 1]), count).astype(variant.index)
        elif variant.name == "boundaries":
            rows, edge_ids = len(base.BY_ROW), base.draw_rows_of_members(base.BY_ROW, rng).astype(variant.index)
        elif variant.name == "skewed":
            # 600 positions, more than two chunks, share one row; every other position has its own row.
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
        if variant.name == "regular":  # position p uses row p
            graph = CSC(graph.offsets, graph.indices, graph.num_src_nodes)
        elif variant.name == "unused rows":  # like "regular", with three additional rows at the end
            graph = CSC(graph.offsets, graph.indices, graph.num_src_nodes, num_edges=graph.num_positions + 3)
        sizes |= {name: int(getattr(graph, name)) for name in ("num_positions", "num_edges")}
        return {"graph": graph}, {}

    def build_hub_graphs(
        self, variant: CaseVariant, sizes: dict[str, int], rng: np.random.Generator
    ) -> base.GraphsAndInputs:
        """Give destination 0 `degree` in-edges, each from a different source, and source 0 `degree` out-edges.

        The out-edges share one row of the edge arrays, whose gradient is therefore also a long sum.
        """
        count = variant.degree
        hub, spread = np.zeros(count, variant.index), np.arange(1, count + 1, dtype=variant.index)
        rows = np.concatenate([spread, hub])
        graph = CSC.from_coo(np.concatenate([spread, hub]), np.concatenate([hub, spread]), count + 1, count + 1, rows)
        sizes |= {n: getattr(graph, n) for n in ("num_src_nodes", "num_dst_nodes", "num_positions", "num_edges")}
        return {"graph": graph}, {}

    def renumber_graphs(self, case: Case, rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Renumber nodes and rows, and reorder the positions of each destination."""
        graph, orders = case.values["graph"], base.draw_permutations(case, rng)
        new = {name: np.argsort(order).astype(graph.indices.dtype) for name, order in orders.items()}
        positions = rng.permutation(graph.num_positions)
        destinations = graph.prepare().destinations
        other = CSC.from_coo(
            new["num_src_nodes"][graph.indices[positions]],
            new["num_dst_nodes"][destinations[positions]],
            graph.num_src_nodes,
            graph.num_dst_nodes,
            new["num_edges"][graph.edge_ids[positions]],
            graph.num_edges,
        )
        return {"graph": other}, orders

    def embed_graphs_in_batch(
        self, case: Case, before: base.Counts, after: base.Counts, rng: np.random.Generator
    ) -> dict[str, Any]:
        """Embed the case's graph; if its edge rows equal its positions, the same holds for the batch."""
        graph = case.values["graph"]
        src, dst, rows = (
            base.draw_batch_groups(own, "num_positions", groups, case, before, after, rng)
            for own, groups in (
                (graph.indices, "num_src_nodes"),
                (graph.prepare().destinations, "num_dst_nodes"),
                (graph.edge_ids, "num_edges"),
            )
        )
        if uses_positions_as_edge_rows(case):
            rows = None
        sizes = (before[n] + case.sizes[n] + after[n] for n in ("num_src_nodes", "num_dst_nodes"))
        number = before["num_edges"] + case.sizes["num_edges"] + after["num_edges"]
        order = np.argsort(dst, kind="stable")
        num_src, num_dst = sizes
        offsets = np.searchsorted(dst[order], np.arange(num_dst + 1)).astype(dst.dtype)
        return {"graph": CSC(offsets, src[order], num_src, None if rows is None else rows[order], number)}

    def draw_graphs(self, sizes: dict[str, int], index: type, rng: np.random.Generator) -> dict[str, Any]:
        """Draw a graph whose edge rows may be shared or unused, and in which a few nodes may have most edges."""
        n_src, n_dst, rows = sizes["num_src_nodes"], sizes["num_dst_nodes"], sizes["num_edges"]
        count = sizes["num_positions"] if min(n_src, n_dst, rows) else 0
        power = rng.choice([1, 1, 4])
        src, dst, ids = ((bound * rng.random(count) ** power).astype(index) for bound in (n_src, n_dst, rows))
        return {"graph": CSC.from_coo(src, dst, n_src, n_dst, ids, rows)}
