"""What a division of a graph costs each rank: members that it computes and rows that it receives, by counting alone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from trigraph.distributed.divide import members_of, owners_of
from trigraph.distributed.kinds import Kind, Owners
from trigraph.distributed.owners import blocks as block_owners
from trigraph.graphs import CSC
from trigraph.graphs.edge_graph import EdgeGraph

__all__ = ["Cost", "Traffic", "traffic"]


class Cost(NamedTuple):
    """What a call costs each rank, by rank.

    Attributes
    ----------
    members : int64 array, shape (parts,)
        Positions of a CSC, edges of an EdgeGraph, that the rank computes; one that two calls of the operator compute,
        for the interior and for the boundary or for two chunks, counts twice.
    received : dict of int64 arrays, shape (parts,)
        By symbol of the operator table, rows that come from other ranks for each array that has such rows.
    neighbours : int64 array, shape (parts,)
        Ranks that these come from.
    """

    members: np.ndarray
    received: dict[str, np.ndarray]
    neighbours: np.ndarray


class Traffic(NamedTuple):
    """What a division of a graph costs.

    Attributes
    ----------
    owned : dict of int64 arrays, shape (parts,)
        By symbol, entities that each rank owns: the rows that its arrays have.
    forward : Cost
        Of outputs, and of gradients that belong to one block: the layout `Partition.outputs`.
    backward : Cost
        Of gradients of which some belong to shared entities: `Partition.everything`.
    sums : Cost
        Of gradients of parameters: `Partition.chunks`.
    """

    owned: dict[str, np.ndarray]
    forward: Cost
    backward: Cost
    sums: Cost


def traffic(graph: CSC | EdgeGraph, owner: Any, parts: int, source_owner: Any = None) -> Traffic:
    """Count what each rank of a division would compute and receive, in one process.

    Parameters
    ----------
    graph : CSC or EdgeGraph
        On the host.
    owner, source_owner
        As of `partition`.
    parts : int
        Number of ranks.

    Returns
    -------
    Traffic
        What `partition` with a communicator of so many ranks has.

    Raises
    ------
    TypeError, ValueError
        As `partition`.

    Notes
    -----
    The sets are those of `Partition`, built for one rank after the other. Time and memory of a rank's are in proportion
    to the members of its blocks and of the blocks next to them; of graphs that no owners cut well, these are many.
    """
    if not isinstance(graph, (CSC, EdgeGraph)):
        raise TypeError(f"traffic: graph is a {type(graph).__name__}; expected a CSC or an EdgeGraph")
    kind, sizes, table, unused = members_of(graph, None, None)
    owners = owners_of(kind, sizes, parts, owner, source_owner)
    if isinstance(graph, CSC):  # a row of edge arrays belongs to the destination of its first position
        table[:, 4] = owners.blocks[table[:, 4]]
    counts = _Counts(kind, table, owners, sizes[kind.block], parts)
    owned = {s: counts.owned(s) for s in counts.entities}
    owned[kind.block] = np.bincount(owners.blocks, minlength=parts)
    if isinstance(graph, CSC):
        owned["num_src_nodes"] = np.bincount(owners.sources, minlength=parts)
        owned["num_edges"] += np.bincount(block_owners(unused.size, parts), minlength=parts)
    return Traffic(owned, *counts.costs())


class _Counts:
    """The members of a graph by block, and what they read."""

    def __init__(self, kind: Kind, table: np.ndarray, owners: Owners, blocks: int, parts: int) -> None:
        self.kind, self.owners, self.blocks, self.parts = kind, owners.blocks, blocks, parts
        self.entities = kind.entities(table, owners)  # each row of the table reads one of each symbol
        self.columns = [np.ascontiguousarray(table[:, c]) for c in kind.block_columns]
        self.orders = [None if (np.diff(c) >= 0).all() else np.argsort(c, kind="stable") for c in self.columns]
        self.ends = [np.concatenate([[0], np.cumsum(np.bincount(c, minlength=blocks))]) for c in self.columns]
        self.chosen = np.zeros(blocks, bool)  # scratch: the blocks at hand
        self.shared = {s: self.entities[s] for s in kind.shared}

    def owned(self, symbol: str) -> np.ndarray:
        """Return how many of some entities each rank owns, of those that members read."""
        ids, owners, _ = self.entities[symbol]
        if symbol in self.shared:
            owners = owners[np.unique(ids, return_index=True)[1]]
        return np.bincount(owners, minlength=self.parts)

    def costs(self) -> tuple[Cost, Cost, Cost]:
        """Return what forward, backward and sums cost each rank."""
        order = np.argsort(self.owners, kind="stable")
        own = np.split(order, np.cumsum(np.bincount(self.owners, minlength=self.parts))[:-1])
        cut = self._cut()
        edges = np.searchsorted(cut, np.arange(self.parts + 1) * self.blocks)
        chunk, number = self.kind.chunk, max(-(-self.blocks // self.kind.chunk), 1)
        keeper = np.arange(self.blocks) // chunk * self.parts // number
        kept = np.searchsorted(keeper, np.arange(self.parts + 1))
        found: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
        for rank, (begin, end) in enumerate(pairwise(edges)):
            near = cut[begin:end] - rank * self.blocks
            found[0].append(self._forward(rank, own[rank]))
            found[1].append(self._backward(rank, own[rank], near))
            found[2].append(self._sums(rank, np.arange(kept[rank], kept[rank + 1])))
        return _cost(found[0]), _cost(found[1]), _cost(found[2])

    def _cut(self) -> np.ndarray:
        """Return ``rank * blocks + block``, ascending, of blocks that read what another rank than their own owns."""
        found = [np.empty(0, np.int64)]
        for ids in self.shared.values():
            for column in self.columns:
                there = ids.owners != self.owners[column]
                found.append(ids.owners[there] * self.blocks + column[there])
        return _distinct(np.concatenate(found))

    def _rows(self, blocks: np.ndarray) -> list[np.ndarray]:
        """Return the rows of the table that some blocks read, by column that names the block."""
        found = []
        for order, ends in zip(self.orders, self.ends, strict=True):
            sizes = ends[blocks + 1] - ends[blocks]
            stops = np.cumsum(sizes)
            rows = np.arange(stops[-1] if stops.size else 0) + np.repeat(ends[blocks] - stops + sizes, sizes)
            found.append(rows if order is None else order[rows])
        return found

    def _once(self, blocks: np.ndarray) -> np.ndarray:
        """Return the rows of the table that some blocks read, each once."""
        rows = self._rows(blocks)
        self.chosen[blocks] = True
        for at in range(1, len(rows)):
            for before in self.columns[:at]:
                rows[at] = rows[at][~self.chosen[before[rows[at]]]]
        self.chosen[blocks] = False
        return np.concatenate(rows)

    def _outside(self, rank: int, blocks: np.ndarray) -> np.ndarray:
        """Return which of some blocks read what a rank does not own."""
        for column, rows in zip(self.columns, self._rows(blocks), strict=True):
            for ids in self.entities.values():
                self.chosen[column[rows[ids.owners[rows] != rank]]] = True
        found: np.ndarray = self.chosen[blocks]
        self.chosen[blocks] = False
        return found

    def _received(self, rank: int, rows: np.ndarray, blocks: np.ndarray) -> tuple[dict[str, int], int]:
        """Return the foreign entities, by symbol, among some rows of the table and blocks; and whose they are."""
        others = self.owners[blocks][self.owners[blocks] != rank]
        found, ranks = {self.kind.block: others.size}, np.bincount(others, minlength=self.parts)
        for s, (ids, owners, _) in self.entities.items():
            foreign = rows[owners[rows] != rank]
            found[s] = _distinct(ids[foreign]).size if s in self.shared else foreign.size
            ranks += np.bincount(owners[foreign], minlength=self.parts)
        return found, int(np.count_nonzero(ranks))

    def _forward(self, rank: int, own: np.ndarray) -> tuple[int, tuple[dict[str, int], int]]:
        outside = self._outside(rank, own)
        boundary = self._once(own[outside])
        return boundary.size + self._once(own[~outside]).size, self._received(rank, boundary, own[outside])

    def _backward(self, rank: int, own: np.ndarray, near: np.ndarray) -> tuple[int, tuple[dict[str, int], int]]:
        blocks = np.concatenate([own, near])
        outside = self._outside(rank, blocks)
        kept = self._once(blocks[outside])
        needed = outside.copy()  # and those that read what these do, of what the rank owns
        for ids in self.shared.values():
            wanted = _distinct(ids.ids[kept[ids.owners[kept] == rank]])
            for column, rows in zip(self.columns, self._rows(blocks), strict=True):
                self.chosen[column[rows[np.isin(ids.ids[rows], wanted)]]] = True
            needed |= self.chosen[blocks]
            self.chosen[blocks] = False
        boundary = self._once(blocks[needed])
        return boundary.size + self._once(blocks[~outside]).size, self._received(rank, boundary, blocks[needed])

    def _sums(self, rank: int, blocks: np.ndarray) -> tuple[int, tuple[dict[str, int], int]]:
        of_chunk = blocks // self.kind.chunk
        starts = np.flatnonzero(np.diff(of_chunk, prepend=-1))
        members = sum(self._once(b).size for b in np.split(blocks, starts[1:]) if b.size)
        return members, self._received(rank, self._once(blocks), blocks)


def _distinct(values: np.ndarray) -> np.ndarray:
    """Return the values in ascending order, each once, as np.unique: which hashes, and takes five times as long."""
    values = np.sort(values)
    return values[np.diff(values, prepend=-1) > 0]  # no value is negative


def _cost(found: list[tuple[int, tuple[dict[str, int], int]]]) -> Cost:
    """Put the numbers of the ranks into arrays."""
    members, received = (np.array([m for m, _ in found]), [r for _, r in found])
    symbols = received[0][0]
    return Cost(
        members,
        {s: np.array([rows[s] for rows, _ in received]) for s in symbols},
        np.array([number for _, number in received]),
    )
