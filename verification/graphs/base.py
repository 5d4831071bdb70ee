"""What verification needs of a kind of graph, all in one class: each file beside this one has that of a kind."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from trigraph.table import SYMBOLS
from trigraph.verification.kinds import Variant

if TYPE_CHECKING:
    from trigraph.verification.cases import Case

# Lengths of rows: of 256 and 512 members, which are whole pieces, of one more, and long ones first and last;
# in all more rows than two blocks of nodes (48) have.
BY_DESTINATION = np.array([257, *[1] * 100, 256, 0, 512])
BY_SOURCE = np.array([512, 0, 256, *[1] * 100, 257])
BY_ROW = np.array([256, *[1] * 100, 257, 512])


# In a batch, nodes before the case's have CROWDED rows at most, each with more members than a kernel sums in one piece.
CROWDED = 3

Counts = Mapping[str, int]
# Graph objects by argument name, and inputs that belong to them.
GraphsAndInputs = tuple[dict[str, Any], dict[str, np.ndarray]]


class CaseGraphs(ABC):
    """One kind of graph (`trigraph.table.GRAPHS`), or none, in the cases of definitions that take it.

    Methods return graph objects by argument name, here none. What sizes these have is written into `sizes`, if given.
    `members` is the size that is 0 in "no edges": edge arrays keep their rows, which nothing reads then.
    """

    variants: tuple[Variant, ...]
    members: str

    def of(self, variant: Variant, sizes: dict[str, int], rng: np.random.Generator) -> GraphsAndInputs:
        """Return the graph objects of a variant, and inputs that belong to them."""
        return {}, {}

    @abstractmethod
    def hub(self, variant: Variant, sizes: dict[str, int], rng: np.random.Generator) -> GraphsAndInputs:
        """Return graph objects whose every sum has `variant.degree` terms at one place, and inputs that belong to them.

        A chunked sum is within 8 eps of the judge however long it is, because partial sums are added pairwise; one that
        adds them one after the other is found here and nowhere else.
        """

    def renumbered(self, case: "Case", rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return the graph objects of a case with new numbers for everything, and for each size the old numbers."""
        return {}, any_orders(case, rng)

    def embedded(self, case: "Case", before: Counts, after: Counts, rng: np.random.Generator) -> dict[str, Any]:
        """Return the graph objects of a case in a batch: with other graphs' nodes, edges and so on before and after."""
        return {}

    def at_random(self, sizes: dict[str, int], index: type, rng: np.random.Generator) -> dict[str, Any]:
        """Return graph objects of some `sizes`, large ones too, for calls that the judge need not follow.

        ``GRAPHS[definition.graph].at_random(sizes, np.int64, rng)``: for the soak test, benchmarks and tests.
        """
        return {}


class NoGraphCases(CaseGraphs):
    """Those of definitions without a graph."""

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

    def hub(self, variant: Variant, sizes: dict[str, int], rng: np.random.Generator) -> GraphsAndInputs:
        """As many edges: parameter gradients are the sums."""
        sizes["num_edges"] = variant.degree
        return {}, {}


def in_rows(lengths: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the row of each member, in any order."""
    return rng.permutation(np.repeat(np.arange(len(lengths)), lengths))


def any_orders(case: "Case", rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return a permutation of everything whose number may be zero: nodes, edges and so on."""
    names = (n for n in case.definition.symbols if SYMBOLS[n].minimum == 0)
    return {n: rng.permutation(case.sizes[n]) for n in names}


def among(own: Any, members: str, owners: str, case: "Case", before: Counts, after: Counts, rng: Any) -> Any:
    """Return the owner of each member of a batch: other graphs' members have owners on their side, those before few."""
    first = rng.integers(0, min(before[owners], CROWDED), before[members])
    last = rng.integers(0, after[owners], after[members]) + before[owners] + case.sizes[owners]
    return np.concatenate([first, own + before[owners], last]).astype(own.dtype)
