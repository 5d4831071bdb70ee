"""Graphs as tables of integers that ranks can send to each other; each row is a term of an operator's sum.

Every operator is a sum over blocks. A block is a destination with its in-edges; for an `EdgeGraph`, a node with its in-
and out-edges; for GemNet-OC, an output with its edges and their triplets. A block reads rows of entities: nodes, edges,
positions or triplets, counted by the sizes of the operator table. The results for an entity, for any order of
derivative, are complete on a rank that has all blocks that read the entity.

A table has one row for each member of the blocks: a position, an edge or a triplet. The columns hold global numbers.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from trigraph.graphs import CSC
from trigraph.graphs.edge_graph import EdgeGraph, build_with_reverse
from trigraph.graphs.segments import Segments

Ids = dict[str, np.ndarray]  # ascending global numbers by symbol


class OwnerRanks(NamedTuple):
    """Rank that owns each block and each source. The two arrays are identical if sources are blocks."""

    blocks: np.ndarray
    sources: np.ndarray


class ReferencedIds(NamedTuple):
    """Entities that the rows of a table name, with repetitions: number, owner and table row of each entity."""

    ids: np.ndarray
    owners: np.ndarray
    rows: np.ndarray


def _collect_referenced_ids(table: np.ndarray, columns: dict[int, np.ndarray]) -> ReferencedIds:
    """Return the entities named in some columns; `columns` maps each column to the owner of each row's entity."""
    rows = np.arange(len(table))
    parts = [(table[:, c], owners, rows) for c, owners in columns.items()]
    return ReferencedIds(*(np.concatenate(x) for x in zip(*parts, strict=True)))


def sort_unique(*arrays: np.ndarray) -> np.ndarray:
    """Return the distinct numbers of some arrays in ascending order; faster than `numpy.unique` if most differ."""
    numbers = np.sort(np.concatenate(arrays))
    return numbers[np.concatenate([[True], numbers[1:] != numbers[:-1]])] if numbers.size else numbers


def sort_unique_rows(table: np.ndarray) -> np.ndarray:
    """Return the distinct rows in ascending order of the first two columns."""
    if table.shape[1] > 1:
        table = table[np.lexsort((table[:, 1], table[:, 0]))]
        is_first = np.ones(len(table), bool)
        is_first[1:] = (table[1:, :2] != table[:-1, :2]).any(1)
        table = table[is_first]
    return table


@dataclass(frozen=True)
class BlockTableFormat:
    """Table format: the entities that rows name and the graph that rows represent. The base class has no graph."""

    dtype: np.dtype

    block: ClassVar[str] = ""  # symbol of the size that counts blocks
    block_columns: ClassVar[tuple[int, ...]] = ()  # columns of the table that name blocks
    chunk: ClassVar[int] = 256  # blocks in each chunk of a sum over all blocks
    width: ClassVar[int] = 1  # number of columns of the table

    @property
    def shared_symbols(self) -> tuple[str, ...]:
        """Entities that several blocks may read."""
        return ()

    def list_referenced_ids(self, table: np.ndarray, owners: OwnerRanks) -> dict[str, ReferencedIds]:
        """Return the entities that the rows of a table read, by symbol."""
        return {}

    def build_graphs(self, table: np.ndarray, ids: Ids) -> dict[str, Any]:
        """Return the graph arguments of a call from sorted table rows, with numbers replaced by positions in `ids`."""
        return {}


class GraphlessFormat(BlockTableFormat):
    """Format without a graph: each row of the edge arrays is a block, and the table is empty."""

    block = "num_edges"
    chunk = 4096


@dataclass(frozen=True)
class CSCTableFormat(BlockTableFormat):
    """Table with the columns position, destination, source, edge row, and rank that owns the edge row."""

    in_order: bool  # whether position p has edge row p
    one_to_one: bool  # whether no two positions share a row

    block = "num_dst_nodes"
    block_columns = (1,)
    width = 5

    @property
    def shared_symbols(self) -> tuple[str, ...]:
        return ("num_src_nodes",) if self.one_to_one else ("num_src_nodes", "num_edges")

    def list_referenced_ids(self, table: np.ndarray, owners: OwnerRanks) -> dict[str, ReferencedIds]:
        dst = owners.blocks[table[:, 1]]
        return {
            "num_positions": _collect_referenced_ids(table, {0: dst}),
            "num_src_nodes": _collect_referenced_ids(table, {2: owners.sources[table[:, 2]]}),
            "num_edges": _collect_referenced_ids(table, {3: table[:, 4]}),
        }

    def build_graphs(self, table: np.ndarray, ids: Ids) -> dict[str, Any]:
        dst = np.searchsorted(ids["num_dst_nodes"], table[:, 1])
        offsets = np.searchsorted(dst, np.arange(ids["num_dst_nodes"].size + 1)).astype(self.dtype)
        src = np.searchsorted(ids["num_src_nodes"], table[:, 2]).astype(self.dtype)
        rows = None if self.in_order else np.searchsorted(ids["num_edges"], table[:, 3]).astype(self.dtype)
        return {"graph": CSC(offsets, src, ids["num_src_nodes"].size, rows, ids["num_edges"].size)}


@dataclass(frozen=True)
class EdgeTableFormat(BlockTableFormat):
    """Table with the columns edge, source, destination, reverse edge (or -1). Outputs belong to the source's block."""

    has_reverse: bool  # whether the caller gave reverse edges; otherwise end nodes determine them
    ambiguous: bool  # whether reverse edges are ambiguous

    block = "num_nodes"
    block_columns = (1, 2)
    width = 4

    @property
    def shared_symbols(self) -> tuple[str, ...]:
        return ("num_edges",)

    def list_referenced_ids(self, table: np.ndarray, owners: OwnerRanks) -> dict[str, ReferencedIds]:
        return {"num_edges": _collect_referenced_ids(table, {0: owners.blocks[table[:, 1]]})}

    def build_graphs(self, table: np.ndarray, ids: Ids) -> dict[str, Any]:
        nodes, edges = sort_unique(table[:, 1], table[:, 2]), ids["num_edges"]
        src, dst = (np.searchsorted(nodes, table[:, c]).astype(self.dtype) for c in (1, 2))
        if not self.has_reverse:
            return {"graph": EdgeGraph(src, dst, nodes.size)}
        edge_positions = np.minimum(np.searchsorted(edges, table[:, 3]), max(edges.size - 1, 0))
        reverse = np.where(edges[edge_positions] == table[:, 3], edge_positions, -1).astype(self.dtype)
        return {"graph": build_with_reverse(src, dst, nodes.size, reverse)}


@dataclass(frozen=True)
class SegmentTableFormat(BlockTableFormat):
    """Table with the columns triplet, edge, output, input. Each edge also has a row without a triplet, marked by -1."""

    atoms: bool  # whether edges are summed into outputs; otherwise each edge is an output
    inputs: bool  # whether triplets share inputs; otherwise each triplet has its own input

    block = "num_outputs"
    block_columns = (2,)
    width = 4

    @property
    def shared_symbols(self) -> tuple[str, ...]:
        return ("num_inputs",) if self.inputs else ()

    def list_referenced_ids(self, table: np.ndarray, owners: OwnerRanks) -> dict[str, ReferencedIds]:
        owner_of_row = owners.blocks[table[:, 2]]
        rows = np.flatnonzero(table[:, 0] >= 0)
        triplets = ReferencedIds(table[rows, 0], owner_of_row[rows], rows)
        inputs = triplets
        if self.inputs:
            inputs = ReferencedIds(table[rows, 3], owners.sources[table[rows, 3]], rows)
        return {
            "num_edges": _collect_referenced_ids(table, {1: owner_of_row}),
            "num_triplets": triplets,
            "num_inputs": inputs,
        }

    def build_graphs(self, table: np.ndarray, ids: Ids) -> dict[str, Any]:
        triplets, edges = table[table[:, 0] >= 0], ids["num_edges"]
        edge_rows = table[table[:, 0] < 0]
        outputs = edge_rows[np.argsort(edge_rows[:, 1]), 2]
        return {
            "triplets": self._build_segments(triplets[:, 1], edges),
            "atoms": self._build_segments(outputs, ids["num_outputs"]) if self.atoms else None,
            "idx_in": self._build_segments(triplets[:, 3], ids["num_inputs"]) if self.inputs else None,
        }

    def _build_segments(self, index: np.ndarray, ids: np.ndarray) -> Segments:
        return Segments(np.searchsorted(ids, index).astype(self.dtype), ids.size)
