"""Definitions without a graph in generated cases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trigraph.verification.graphs.base import CaseGraphs, Counts, GraphsAndInputs, any_orders
from trigraph.verification.kinds import Variant

if TYPE_CHECKING:
    from trigraph.verification.cases import Case


class NoGraphCases(CaseGraphs):
    """See `CaseGraphs`."""

    variants = (
        Variant("regular", 0, np.int64),
        Variant("second sizes", 1, np.int64),
        Variant("length 700", 2, np.int64),
        Variant("length 256", 2, np.int64),
        Variant("length 257", 2, np.int64),
        Variant("length 512", 2, np.int64),
        Variant("wide", 0, np.int64),
        Variant("one channel", 0, np.int64),
        Variant("integers", 0, np.int64),
        Variant("one edge", 0, np.int64),
        Variant("no edges", 0, np.int64),
    )
    members = "num_edges"

    def of(self, variant: Variant, sizes: dict[str, int], rng: np.random.Generator) -> GraphsAndInputs:
        """Return nothing: sizes are those of the variant."""
        return {}, {}

    def hub(self, variant: Variant, sizes: dict[str, int], rng: np.random.Generator) -> GraphsAndInputs:
        """As many edges: parameter gradients are the sums."""
        sizes["num_edges"] = variant.degree
        return {}, {}

    def renumbered(self, case: Case, rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Give edges new numbers."""
        return {}, any_orders(case, rng)

    def embedded(self, case: Case, before: Counts, after: Counts, rng: np.random.Generator) -> dict[str, Any]:
        """Return nothing: edges know of no others."""
        return {}

    def at_random(self, sizes: dict[str, int], index: type, rng: np.random.Generator) -> dict[str, Any]:
        """Return nothing."""
        return {}
