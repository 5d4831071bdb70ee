"""Interface for kinds of graph in verification; each of the other files in this folder implements it for one kind."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from trigraph.table import SYMBOLS
from trigraph.verification.case import Case
from trigraph.verification.kinds import CaseVariant

# Row lengths: 256 and 512 (whole chunks), 257, and 1; the first and last rows are long. The number of rows exceeds two
# blocks of 48 nodes.
BY_DESTINATION = np.array([257, *[1] * 100, 256, 0, 512])
BY_SOURCE = np.array([512, 0, 256, *[1] * 100, 257])
BY_ROW = np.array([256, *[1] * 100, 257, 512])


# In a batch, the edges before the case's edges are in at most CROWDED rows, which are longer than a kernel's chunks.
MAX_CROWDED_ROWS = 3

Counts = Mapping[str, int]
# Graph objects by argument name, and input arrays that depend on the graphs.
GraphsAndInputs = tuple[dict[str, Any], dict[str, np.ndarray]]


class CaseGraphBuilder(ABC):
    """One kind of graph (`trigraph.table.GRAPHS`), or no graph, in the cases of its definitions.

    Methods return graph objects by argument name (none in this base class), and update `sizes` in place. `members` is
    the size that is 0 in the "no edges" variant, in which edge arrays keep rows that are unused.
    """

    variants: tuple[CaseVariant, ...]
    members: str

    def build_variant_graphs(
        self, variant: CaseVariant, sizes: dict[str, int], rng: np.random.Generator
    ) -> GraphsAndInputs:
        """Return the graph objects of a variant, and input arrays that depend on the graphs."""
        return {}, {}

    @abstractmethod
    def build_hub_graphs(
        self, variant: CaseVariant, sizes: dict[str, int], rng: np.random.Generator
    ) -> GraphsAndInputs:
        """Return graph objects with a row of `variant.degree` terms for every sum, and inputs that depend on them.

        Chunked sums of any length are within 8 eps of the judge, because partial sums are added pairwise. Only hubs
        reveal code that adds partial sums sequentially.
        """

    def renumber_graphs(self, case: Case, rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return the graph objects of a renumbered case, and for each size the old numbers of the entities."""
        return {}, draw_permutations(case, rng)

    def embed_graphs_in_batch(
        self, case: Case, before: Counts, after: Counts, rng: np.random.Generator
    ) -> dict[str, Any]:
        """Return the graph objects of a batch, with other nodes, edges and so on before and after the case."""
        return {}

    def draw_graphs(self, sizes: dict[str, int], index: type, rng: np.random.Generator) -> dict[str, Any]:
        """Return random graph objects with any `sizes`, even if too large for the judge.

        Tests and benchmarks call ``GRAPHS[definition.graph].draw_graphs(sizes, np.int64, rng)``.
        """
        return {}


class NoGraphBuilder(CaseGraphBuilder):
    """Implementation of `CaseGraphBuilder` for definitions without a graph."""

    variants = (
        CaseVariant("regular", 0, np.int64),
        CaseVariant("second sizes", 1, np.int64),
        CaseVariant("length 700", 2, np.int64),
        CaseVariant("length 256", 2, np.int64),
        CaseVariant("length 257", 2, np.int64),
        CaseVariant("length 512", 2, np.int64),
        CaseVariant("wide", 0, np.int64),
        CaseVariant("one channel", 0, np.int64),
        CaseVariant("integers", 0, np.int64),
        CaseVariant("one edge", 0, np.int64),
        CaseVariant("no edges", 0, np.int64),
        CaseVariant("scaled cotangents", 1, np.int32),
    )
    members = "num_edges"

    def build_hub_graphs(
        self, variant: CaseVariant, sizes: dict[str, int], rng: np.random.Generator
    ) -> GraphsAndInputs:
        """Set the number of edges, because in these cases the long sums are gradients of parameters."""
        sizes["num_edges"] = variant.degree
        return {}, {}


def draw_rows_of_members(lengths: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the row of each member, in random order, given the row lengths."""
    return rng.permutation(np.repeat(np.arange(len(lengths)), lengths))


def draw_permutations(case: Case, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return a random permutation for each number of entities (nodes, edges and so on)."""
    names = (n for n in case.definition.symbols if SYMBOLS[n].minimum == 0)
    return {n: rng.permutation(case.sizes[n]) for n in names}


def draw_batch_groups(own: Any, members: str, groups: str, case: Case, before: Counts, after: Counts, rng: Any) -> Any:
    """Return the group of each member of a batch; members before (after) the case are in groups before (after) it."""
    first = rng.integers(0, min(before[groups], MAX_CROWDED_ROWS), before[members])
    last = rng.integers(0, after[groups], after[members]) + before[groups] + case.sizes[groups]
    return np.concatenate([first, own + before[groups], last]).astype(own.dtype)
