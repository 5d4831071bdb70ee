"""Groups of triplets by edge, edges by atom, and triplets by row of m (`trigraph.Segments`) in generated cases."""

from typing import Any

import numpy as np

from trigraph.graphs.segments import Segments
from trigraph.verification.case import Case
from trigraph.verification.graphs import base
from trigraph.verification.kinds import CaseVariant

# For each argument, the symbols for its numbers of members and of segments.
SEGMENT_SIZES = {
    "triplets": ("num_triplets", "num_edges"),
    "atoms": ("num_edges", "num_outputs"),
    "idx_in": ("num_triplets", "num_inputs"),
}


class SegmentsBuilder(base.CaseGraphBuilder):
    """Implementation of `CaseGraphBuilder` for `trigraph.Segments`."""

    variants = (
        CaseVariant("regular", 0, np.int64),
        CaseVariant("second sizes", 1, np.int32),
        CaseVariant("skewed", 1, np.int64),
        CaseVariant("boundaries", 1, np.int32),
        CaseVariant("wide", 0, np.int32),
        CaseVariant("one channel", 0, np.int64),
        CaseVariant("integers", 0, np.int64),
        CaseVariant("one edge", 0, np.int32),
        CaseVariant("no edges", 0, np.int64),
        CaseVariant("no nodes", 0, np.int32),
        CaseVariant("scaled cotangents", 1, np.int32),
    )
    members = "num_triplets"

    def build_variant_graphs(
        self, variant: CaseVariant, sizes: dict[str, int], rng: np.random.Generator
    ) -> base.GraphsAndInputs:
        """Return `triplets` and, if the definition has them, `atoms` and `idx_in`."""
        if variant.name == "boundaries":
            return _draw_boundary_segments(variant, sizes, rng), {}
        if variant.name == "skewed":
            sizes |= {"num_triplets": 700, "num_edges": 290}
        elif variant.name == "wide":
            sizes |= {"num_triplets": 5, "num_edges": 3}
        absent = {name for name, value in variant.setting.items() if value is None}
        graphs: dict[str, Segments | None] = {
            "triplets": _draw_segments(variant, sizes["num_triplets"], sizes["num_edges"], rng),
            "atoms": None,
            "idx_in": None,
        }
        if "num_outputs" not in sizes:
            return {"triplets": graphs["triplets"]}, {}
        if "atoms" in absent or (sizes["num_edges"] and not sizes["num_outputs"]):
            sizes["num_outputs"] = sizes["num_edges"]
        else:
            graphs["atoms"] = _draw_segments(variant, sizes["num_edges"], sizes["num_outputs"], rng)
        if "idx_in" in absent or (sizes["num_triplets"] and not sizes["num_inputs"]):
            sizes["num_inputs"] = sizes["num_triplets"]
        else:
            graphs["idx_in"] = _draw_segments(variant, sizes["num_triplets"], sizes["num_inputs"], rng)
        return graphs, {}

    def build_hub_graphs(
        self, variant: CaseVariant, sizes: dict[str, int], rng: np.random.Generator
    ) -> base.GraphsAndInputs:
        """Return an edge with `degree` triplets, an atom with all other edges, and an input with half of the triplets.

        The edge with `degree` triplets is the last: after a dominant first term, all later additions in a sum over
        edges would round in the same direction, even in chunked sums.
        """
        count, index = variant.degree, variant.index
        hub, spread = np.full(count, count, index), np.arange(count, dtype=index)
        graphs: dict[str, Any] = {"triplets": Segments(np.concatenate([spread, hub]), count + 1)}
        sizes |= {"num_triplets": 2 * count, "num_edges": count + 1}
        if "num_outputs" in sizes:
            atom = np.repeat(np.array([0, 1], index), [count, 1])
            atoms = None if "atoms" in variant.setting else Segments(atom, 2)
            graphs |= {"atoms": atoms, "idx_in": Segments(np.concatenate([hub, spread]), count + 1)}
            sizes |= {"num_inputs": count + 1, "num_outputs": count + 1 if atoms is None else 2}
        return graphs, {}

    def renumber_graphs(self, case: Case, rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Renumber edges, triplets and atoms at random.

        Without `atoms`, outputs are renumbered like edges; without `idx_in`, inputs are renumbered like triplets.
        """
        orders, values = base.draw_permutations(case, rng), case.values
        groups = {name: sizes for name, sizes in SEGMENT_SIZES.items() if name in values}
        for name, (members, segments) in groups.items():
            if values[name] is None:
                orders[segments] = orders[members]
        new = {name: np.argsort(order) for name, order in orders.items()}
        graphs: dict[str, Any] = {}
        for name, (members, segments) in groups.items():
            old = values[name]
            if old is not None:
                index = new[segments][old.index[orders[members]]].astype(old.index.dtype)
                graphs[name] = Segments(index, old.num_segments)
        return graphs, orders

    def embed_graphs_in_batch(
        self, case: Case, before: base.Counts, after: base.Counts, rng: np.random.Generator
    ) -> dict[str, Any]:
        """Embed the case's graphs; members added before (after) the case belong to segments before (after) it."""
        graphs = {}
        for name, (members, segments) in SEGMENT_SIZES.items():
            own = case.values.get(name)
            if own is not None:
                index = base.draw_batch_groups(own.index, members, segments, case, before, after, rng)
                graphs[name] = Segments(index, before[segments] + own.num_segments + after[segments])
        return graphs

    def draw_graphs(self, sizes: dict[str, int], index: type, rng: np.random.Generator) -> dict[str, Any]:
        """Draw graphs with members in any order; include `atoms` and `idx_in` if the operator has them."""

        def draw_segments(count: int, segments: str) -> Segments:
            bound = sizes[segments]
            return Segments(rng.integers(0, max(bound, 1), count if bound else 0).astype(index), bound)

        if "num_outputs" not in sizes:
            return {"triplets": draw_segments(sizes["num_triplets"], "num_edges")}
        sizes["num_edges"] *= sizes["num_outputs"] > 0
        triplets = sizes["num_triplets"] * (min(sizes["num_edges"], sizes["num_inputs"]) > 0)
        return {
            "triplets": draw_segments(triplets, "num_edges"),
            "atoms": draw_segments(sizes["num_edges"], "num_outputs"),
            "idx_in": draw_segments(triplets, "num_inputs"),
        }


def _draw_segments(variant: CaseVariant, count: int, bound: int, rng: np.random.Generator) -> Segments:
    """Draw segments, of which the last and a middle one are empty; in "skewed", one segment has most of the members."""
    used = np.setdiff1d(np.arange(bound), [bound // 2, bound - 1]) if bound > 3 else np.arange(bound)
    index = rng.choice(used, count) if count else np.empty(0, np.int64)
    if variant.name == "skewed" and count:
        index[rng.random(count) < 0.9] = used[1 % len(used)]
    return Segments(index.astype(variant.index), bound)


def _draw_boundary_segments(
    variant: CaseVariant, sizes: dict[str, int], rng: np.random.Generator
) -> dict[str, Segments | None]:
    """Return segments of which some, including the first and the last, have 256, 257 or 512 members."""
    several = "num_outputs" in sizes
    total, index = int(base.BY_DESTINATION.sum()), variant.index

    def draw_segments_of_lengths(lengths: np.ndarray) -> Segments:
        return Segments(base.draw_rows_of_members(lengths, rng).astype(index), len(lengths))

    # If edges are summed into atoms, there are as many edges as triplets, so most edges have no triplets.
    lengths = base.BY_DESTINATION
    if several:
        lengths = np.insert(lengths, -1, np.zeros(total - len(lengths), int))
    graphs: dict[str, Segments | None] = {"triplets": draw_segments_of_lengths(lengths)}
    sizes |= {"num_triplets": total, "num_edges": len(lengths)}
    if several:
        absent = {name for name, value in variant.setting.items() if value is None}
        graphs["atoms"] = None if "atoms" in absent else draw_segments_of_lengths(base.BY_SOURCE)
        graphs["idx_in"] = None if "idx_in" in absent else draw_segments_of_lengths(base.BY_ROW)
        sizes |= {"num_outputs": total if "atoms" in absent else len(base.BY_SOURCE)}
        sizes |= {"num_inputs": total if "idx_in" in absent else len(base.BY_ROW)}
    return graphs
