"""The interface of a kind of graph in verification; every other file in this folder implements it for one kind."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from trigraph.table import SYMBOLS
from trigraph.verification.case import Case
from trigraph.verification.kinds import Variant

# Numbers of members of rows: 256 and 512 (whole chunks) and 257, with long rows first and last. There are more rows
# than two blocks of 48 nodes.
BY_DESTINATION = np.array([257, *[1] * 100, 256, 0, 512])
BY_SOURCE = np.array([512, 0, 256, *[1] * 100, 257])
BY_ROW = np.array([256, *[1] * 100, 257, 512])


# In a batch, edges before the case's edges belong to at most CROWDED rows, which are longer than a kernel's chunks.
CROWDED = 3

Counts = Mapping[str, int]
# Graph objects by argument name, and input arrays that depend on them.
GraphsAndInputs = tuple[dict[str, Any], dict[str, np.ndarray]]


class CaseGraphs(ABC):
    """One kind of graph (`trigraph.table.GRAPHS`), or no graph, in the cases of its definitions.

    Methods return graph objects by argument name (no objects in this class), and update `sizes` in place. `members`
    names the size that is 0 in the "no edges" variant; edge arrays keep their rows, which are then unused.
    """

    variants: tuple[Variant, ...]
    members: str

    def build(self, variant: Variant, sizes: dict[str, int], rng: np.random.Generator) -> GraphsAndInputs:
        """Return the graph objects of a variant, and input arrays that depend on them."""
        return {}, {}

    @abstractmethod
    def build_hub(self, variant: Variant, sizes: dict[str, int], rng: np.random.Generator) -> GraphsAndInputs:
        """Return graph objects with a row of `variant.degree` terms in every sum, and inputs that depend on them.

        Chunked sums of any length are within 8 eps of the judge, because partial sums are added pairwise. Only these
        cases reveal partial sums that are added one after the other.
        """

    def renumber_graphs(self, case: Case, rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return the graph objects of a renumbered case, and the old number of each new entity, by size."""
        return {}, draw_permutations(case, rng)

    def embed_graphs(self, case: Case, before: Counts, after: Counts, rng: np.random.Generator) -> dict[str, Any]:
        """Return the graph objects of a batch, with other nodes, edges and so on before and after the case."""
        return {}

    def draw_graphs(self, sizes: dict[str, int], index: type, rng: np.random.Generator) -> dict[str, Any]:
        """Return random graph objects of any `sizes`, also too large for the judge.

        Tests and benchmarks call ``GRAPHS[definition.graph].draw_graphs(sizes, np.int64, rng)``.
        """
        return {}


class NoGraphCases(CaseGraphs):
    """Definitions without a graph."""

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
        Variant("scaled cotangents", 1, np.int32),
    )
    members = "num_edges"

    def build_hub(self, variant: Variant, sizes: dict[str, int], rng: np.random.Generator) -> GraphsAndInputs:
        """Set the number of edges, since the long sums of these cases are gradients of parameters."""
        sizes["num_edges"] = variant.degree
        return {}, {}


def shuffle_row_numbers(lengths: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the row of each member in random order, for rows of the given lengths."""
    return rng.permutation(np.repeat(np.arange(len(lengths)), lengths))


def draw_permutations(case: Case, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return a permutation for each size that counts entities (nodes, edges and so on)."""
    names = (n for n in case.definition.symbols if SYMBOLS[n].minimum == 0)
    return {n: rng.permutation(case.sizes[n]) for n in names}


def draw_batch_groups(own: Any, members: str, groups: str, case: Case, before: Counts, after: Counts, rng: Any) -> Any:
    """Return the group of each member of a batch; members before (after) the case have groups before (after) it."""
    first = rng.integers(0, min(before[groups], CROWDED), before[members])
    last = rng.integers(0, after[groups], after[members]) + before[groups] + case.sizes[groups]
    return np.concatenate([first, own + before[groups], last]).astype(own.dtype)
