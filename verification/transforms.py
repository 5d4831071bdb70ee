"""Transformations of a case that must not change its results: renumbering, and embedding in a batch.

In a batch, nodes and edges of other graphs come before and after those of the case, and no edge connects the graphs.
The result for a node or an edge must be bitwise identical to the result for the case alone: it must not depend on other
nodes and edges or on positions in the arrays.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from trigraph.table import SYMBOLS, Array, Operator
from trigraph.verification.case import Case
from trigraph.verification.graphs import GRAPHS
from trigraph.verification.graphs.csc import uses_positions_as_edge_rows

# A batch holds graphs before and after the case. Before it, few rows (graphs.CROWDED) have many members; after it,
# many rows have few members. Every mean degree thus changes. No number is a multiple of a size by which backends divide
# their work.
BEFORE = {"nodes": 3, "edges": 437, "positions": 411, "triplets": 901}
AFTER = {"nodes": 389, "edges": 31, "positions": 23, "triplets": 11}
ENTITIES = {
    "num_edges": "edges",
    "num_positions": "positions",
    "num_src_nodes": "nodes",
    "num_dst_nodes": "nodes",
    "num_nodes": "nodes",
    "num_triplets": "triplets",
    "num_inputs": "nodes",
    "num_outputs": "nodes",
}


def renumber_case(case: Case, seed: int) -> tuple[Case, dict[str, np.ndarray]]:
    """Return a case with renumbered entities (edges, nodes), and the permutation for each size.

    Row k of an array with leading size `name` is row ``orders[name][k]`` in the original case.
    """
    graphs, orders = GRAPHS[case.definition.graph].renumber_graphs(case, np.random.default_rng(seed))

    def reorder_array(dims: tuple[str, ...], array: np.ndarray) -> np.ndarray:
        return np.asarray(array[orders[dims[0]]]) if dims[0] in orders else array

    other = case.map_arrays(reorder_array)
    return replace(other, values={**other.values, **graphs}), orders


@dataclass(frozen=True)
class BatchWithCase:
    """A batch that contains a case; entity k of the case is entity ``first[size] + k`` of the batch."""

    case: Case
    first: Mapping[str, int]

    def extract_case_part(self, field: Array, array: np.ndarray, sizes: Mapping[str, int]) -> np.ndarray:
        """Return the part of a field that belongs to the embedded case, which has the given sizes."""
        axis, entity = _find_graph_axis(field.dims)
        part = np.take(array, np.arange(self.first[entity], self.first[entity] + sizes[entity]), axis)
        return np.where(part >= 0, part - self.first["num_positions"], part) if field.index else part


def _find_graph_axis(dims: tuple[str, ...]) -> tuple[int, str]:
    """Return an array's first axis over entities (nodes, edges, ...), -1 if there is none, and the name of its size."""
    return next(((k, dim) for k, dim in enumerate(dims) if dim in ENTITIES), (-1, ""))


def list_fields_with_graph_axis(case: Case, op: Operator) -> list[Array]:
    """Return the fields with an axis over entities (nodes, edges, ...); other fields are sums over all entities."""
    return [field for field in case.list_returned_fields(op) if _find_graph_axis(field.dims)[0] >= 0]


def embed_in_batch(case: Case, seed: int) -> BatchWithCase:
    """Embed a case in a batch, between other graphs with random edges and array rows."""
    rng = np.random.default_rng(seed)
    names = [n for n in case.definition.symbols if SYMBOLS[n].minimum == 0 and n in ENTITIES]
    same = {"num_outputs": "num_edges"} if case.values.get("atoms", ...) is None else {}
    same |= {"num_inputs": "num_triplets"} if case.values.get("idx_in", ...) is None else {}
    before, after = ({n: number[ENTITIES[same.get(n, n)]] for n in names} for number in (BEFORE, AFTER))
    if uses_positions_as_edge_rows(case):  # so that position p of the batch also uses edge row p
        before["num_edges"] = before["num_positions"]
    sizes = {**case.sizes, **{n: before[n] + case.sizes[n] + after[n] for n in names}}

    def embed_array(dims: tuple[str, ...], array: np.ndarray) -> np.ndarray:
        axis, entity = _find_graph_axis(dims)
        if axis < 0:
            return array
        number = array.shape[axis]
        if not number:  # an empty case has no rows to copy, and any positive value is valid
            return np.ones((*array.shape[:axis], sizes[entity], *array.shape[axis + 1 :]), array.dtype)
        first, last = (rng.integers(0, number, count[entity]) for count in (before, after))
        return np.take(array, np.concatenate([first, np.arange(number), last]), axis)

    graphs = GRAPHS[case.definition.graph].embed_graphs_in_batch(case, before, after, rng)
    whole = case.map_arrays(embed_array)
    return BatchWithCase(replace(whole, sizes=sizes, values={**whole.values, **graphs}), before)
