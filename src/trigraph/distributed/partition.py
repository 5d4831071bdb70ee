"""A graph that is divided among ranks: the rows that each rank owns and the rows that it needs for a call."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from trigraph.arrays import check_range, find_device, get_array_module, name_library
from trigraph.distributed.block_tables import (
    BlockTableFormat,
    EdgeTableFormat,
    GraphlessFormat,
    Ids,
    OwnerRanks,
    sort_unique,
    sort_unique_rows,
)
from trigraph.distributed.exchange import Halo, exchange_integer_arrays, require_agreement, send_and_receive_rows
from trigraph.graphs import to_device
from trigraph.table.former_names import keep_former_names
from trigraph.table.lazy import lazy


class Subgraph(NamedTuple):
    """Part of the graph for one call of an operator."""

    ids: Ids  # ascending global numbers of the entities that the call reads, by symbol
    places: dict[str, np.ndarray | None]  # positions of their rows in the call's arrays; None: all rows, in order
    graphs: dict[str, Any]  # graph arguments of the call
    # For a chunk of an `EdgeGraph`: whether the output of each edge belongs to a block of the chunk. The other edges
    # end in the chunk but start in blocks whose edges are not all present.
    inside: np.ndarray | None
    moved: dict[str, dict[str, Any]]  # cached copies of `graphs`, by device

    def get_graphs_on_device(self, array: Any) -> dict[str, Any]:
        """Return the graph arguments on the device of an array; each device gets one copy."""
        if name_library(array) == "numpy":
            return self.graphs
        device = find_device(array)
        if device not in self.moved:
            self.moved[device] = {name: to_device(graph) for name, graph in self.graphs.items()}
        return self.moved[device]


class SubgraphLayout(NamedTuple):
    """Subgraph of a call, exchange of the rows that it reads, and positions of this rank's own rows.

    An entry of `own` is None if the subgraph has exactly the rank's own rows.
    """

    subgraph: Subgraph
    halos: dict[str, Halo]
    own: dict[str, np.ndarray | None]


class SubgraphChunks(NamedTuple):
    """Consecutive chunks that this rank sums, from `first` of `number` chunks, and the exchange of their rows."""

    subgraphs: list[Subgraph]
    halos: dict[str, Halo]
    first: int
    number: int


@keep_former_names(
    rows="get_row_partition", outputs="output_layout", everything="full_layout", nothing="empty_subgraph"
)
@dataclass(frozen=True, eq=False)
class Partition:
    """Graph divided among the ranks of a communicator, made by `partition`, `partition_pieces` or `get_row_partition`.

    Attributes
    ----------
    comm : MPI.Comm
    kind : BlockTableFormat
    sizes : mapping
        Global number of nodes, edges and so on, by symbol of the operator table.
    owned : mapping
        Ascending global numbers of the rows that this rank owns and its arrays contain, by symbol; read-only.
    cuda_aware : bool
        Whether device arrays are passed to MPI directly; otherwise they are copied through pinned host memory.
    """

    comm: MPI.Comm
    kind: BlockTableFormat
    sizes: Mapping[str, int]
    owned: Ids
    owners: OwnerRanks
    table: np.ndarray  # rows of the blocks that this rank owns
    cuda_aware: bool = False
    name: tuple[str, str] = ("the partition", "")  # identifies the partition; the same name on all ranks

    def __post_init__(self) -> None:
        for array in (*self.owned.values(), *self.owners, self.table):
            array.setflags(write=False)  # cached layouts, chunks and row partitions depend on these arrays

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name}={ids.size} of {self.sizes[name]}" for name, ids in self.owned.items())
        return f"Partition(rank {self.comm.rank} of {self.comm.size}, {numbers})"

    # ---- arrays ------------------------------------------------------------------------------------------------------

    def take(self, array: Any, symbol: str, axis: int = 0) -> Any:
        """Select the rows that this rank owns from an array of all rows.

        Parameters
        ----------
        array : array
        symbol : str
            Name of the axis's size in the operator table, such as ``"num_edges"``.
        axis : int
        """
        xp, own = get_array_module(array), self._list_own_ids(symbol)
        if array.ndim <= axis or array.shape[axis] != self.sizes[symbol]:
            raise ValueError(
                f"take: array has shape {array.shape}; expected {self.sizes[symbol]} {symbol} along axis {axis}"
            )
        return xp.take(array, xp.asarray(own), axis)

    def collect(self, array: Any, symbol: str, axis: int = 0) -> np.ndarray:
        """Gather the rows that each rank owns into one array on every rank. All ranks must call this method."""
        with require_agreement(self.comm, ("collect", "collect"), self.name, ("symbol", symbol)) as facts:
            own = self._list_own_ids(symbol)
            rows = np.moveaxis(array if isinstance(array, np.ndarray) else array.get(), axis, 0)
            if len(rows) != own.size:
                raise ValueError(
                    f"collect: array has shape {array.shape} on rank {self.comm.rank}; expected {own.size} along axis "
                    f"{axis}, the rows of {symbol} that the rank owns"
                )
            facts.append(("array", f"of {rows.dtype} with rows of shape {rows.shape[1:]}"))
        whole = np.empty((self.sizes[symbol], *rows.shape[1:]), rows.dtype)
        for ids, theirs in self.comm.allgather((own, rows)):
            whole[ids] = theirs
        return np.ascontiguousarray(np.moveaxis(whole, 0, axis))

    def distribute(self, rows: np.ndarray, ids: np.ndarray, symbol: str) -> np.ndarray:
        """Return the rows that this rank owns, given arbitrary rows on each rank. All ranks must call this method.

        Parameters
        ----------
        rows : array, shape (any, ...)
        ids : integer array, shape (any,)
            Global number of each row; every number must be passed once, by one rank.
        symbol : str

        Raises
        ------
        TypeError, ValueError
            On all ranks, if an argument is wrong on one rank, or a number is passed twice or not at all.
        """
        comm, size = self.comm, self.comm.size
        with require_agreement(comm, ("distribute", "distribute"), self.name, ("symbol", symbol)) as facts:
            own, number = self._list_own_ids(symbol), self.sizes[symbol]
            rows, ids = np.asarray(rows), np.asarray(ids)
            if ids.ndim != 1 or ids.dtype.kind not in "iu" or len(rows) != ids.size:
                shown = f"{ids.dtype} {ids.shape} for rows of shape {rows.shape}"
                raise ValueError(f"distribute: ids has {shown}; expected an integer for each row")
            ids = ids.astype(np.int64)
            check_range("distribute", "ids", ids, number, symbol)
            facts.append(("rows", f"of {rows.dtype} with rows of shape {rows.shape[1:]}"))

        def find_recording_rank(numbers: np.ndarray) -> np.ndarray:  # rank that records the owner of each number
            return numbers * size // max(number, 1)

        owners_by_id = send_and_receive_rows(
            comm, np.stack([ids, np.full(ids.size, comm.rank)], 1), find_recording_rank(ids)
        )
        owners_by_id = owners_by_id[np.argsort(owners_by_id[:, 0])]
        everything = np.arange(number)
        expected = everything[find_recording_rank(everything) == comm.rank]
        with require_agreement(comm):
            counts = np.bincount(owners_by_id[:, 0], minlength=number)
            wrong = expected[counts[expected] != 1]
            if wrong.size:
                times = counts[wrong[0]]
                raise ValueError(f"distribute: number {wrong[0]} of {symbol} is given {times} times; expected once")
        ranks = find_recording_rank(own)
        asked = exchange_integer_arrays(comm, [own[ranks == r][:, None] for r in range(size)])
        answers = [owners_by_id[np.searchsorted(owners_by_id[:, 0], q[:, 0])][:, 1:] for q in asked]
        holders = np.concatenate(exchange_integer_arrays(comm, answers))[
            :, 0
        ]  # in the order of own, because keeper(own) ascends
        order = np.argsort(ids)
        return Halo(comm, ids[order], own, holders).start(rows[order]).wait()

    def get_row_partition(self, symbol: str = "num_edges") -> "Partition":
        """Return a partition of the rows of `symbol` for operators without a graph, which call these rows edges.

        Parameters
        ----------
        symbol : str
        """
        if symbol not in self._row_partitions:
            owners = OwnerRanks(np.empty(0, np.int64), np.empty(0, np.int64))
            owned, sizes = {"num_edges": self._list_own_ids(symbol)}, {"num_edges": self.sizes[symbol]}
            table, kind = np.empty((0, 1), np.int64), GraphlessFormat(self.kind.dtype)
            name = (self.name[0], f"the {symbol} of {self.name[1]}")
            self._row_partitions[symbol] = Partition(
                self.comm, kind, sizes, owned, owners, table, self.cuda_aware, name
            )
        return self._row_partitions[symbol]

    @lazy
    def _row_partitions(self) -> "dict[str, Partition]":
        return {}

    def _list_own_ids(self, symbol: str) -> np.ndarray:
        if symbol not in self.owned:
            raise ValueError(f"Partition: no rows are counted by {symbol!r}; expected one of {', '.join(self.owned)}")
        return self.owned[symbol]

    # ---- work --------------------------------------------------------------------------------------------------------

    @lazy
    def output_layout(self) -> SubgraphLayout:
        """Layout for results that depend only on this rank's blocks: outputs and entities that no other block reads."""
        return self._build_layout(self.owned[self.kind.block], self.table)

    @lazy
    def full_layout(self) -> SubgraphLayout:
        """Layout for results of all entities of this rank, with all blocks that read them, on any rank."""
        return self._build_layout(*self._find_neighbour_blocks())

    @lazy
    def chunks(self) -> SubgraphChunks:
        """Chunks of a sum over all blocks, whose boundaries do not depend on the number of ranks."""
        comm, kind, own = self.comm, self.kind, self.owned[self.kind.block]
        number = -(-self.sizes[kind.block] // kind.chunk)

        def find_summing_rank(blocks: np.ndarray) -> np.ndarray:
            return blocks // kind.chunk * comm.size // max(number, 1)

        owners_by_id = send_and_receive_rows(
            comm, np.stack([own, np.full(own.size, comm.rank)], 1), find_summing_rank(own)
        )
        owners_by_id = owners_by_id[np.argsort(owners_by_id[:, 0])]
        tables = [np.empty((0, kind.width), np.int64)]
        for column in kind.block_columns:
            rows_of_rank = self.table[self.owners.blocks[self.table[:, column]] == comm.rank]
            tables.append(send_and_receive_rows(comm, rows_of_rank, find_summing_rank(rows_of_rank[:, column])))
        table = sort_unique_rows(np.concatenate(tables))
        ids, owners = self._find_ids_and_owners(table)
        ids[kind.block], owners[kind.block] = owners_by_id[:, 0], owners_by_id[:, 1]
        halos = self._make_halos(ids, owners)
        first, last = (
            int(np.searchsorted(find_summing_rank(np.arange(number) * kind.chunk), r))
            for r in (comm.rank, comm.rank + 1)
        )
        # Sort the rows of the table by block, for each column that names blocks, so that a chunk's rows are contiguous.
        orders = [np.argsort(table[:, c], kind="stable") for c in kind.block_columns]
        by_block = [table[order, c] for order, c in zip(orders, kind.block_columns, strict=True)]
        subgraphs = []
        for chunk in range(first, last):
            limits = [chunk * kind.chunk, (chunk + 1) * kind.chunk]
            begin, end = np.searchsorted(owners_by_id[:, 0], limits)
            slices = [slice(*np.searchsorted(blocks, limits)) for blocks in by_block]
            rows = [order[slice_of_chunk] for order, slice_of_chunk in zip(orders, slices, strict=True)]
            of_chunk = table[sort_unique(*rows)] if rows else table
            subgraphs.append(self._build_subgraph(of_chunk, owners_by_id[begin:end, 0], ids))
        return SubgraphChunks(subgraphs, halos, first, number)

    @lazy
    def empty_subgraph(self) -> Subgraph:
        """Subgraph without blocks."""
        return self._build_subgraph(self.table[:0], self.owned[self.kind.block][:0], self.owned)

    def _find_neighbour_blocks(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all blocks, including other ranks' blocks, that read entities of this rank, and their table."""
        comm, own = self.comm, self.owned[self.kind.block]
        columns = list(self.kind.block_columns)
        pairs = [own[:0]]  # blocks of this rank, with the owners of the entities that they read
        for column in columns:
            of_own = np.isin(self.table[:, column], own)
            for _, owners, rows in self.kind.list_referenced_ids(self.table, self.owners).values():
                read = of_own[rows]
                pairs.append(self.table[rows[read], column] * comm.size + owners[read])
        wanted = sort_unique(*pairs)
        going = [own[:0] if r == comm.rank else wanted[wanted % comm.size == r] // comm.size for r in range(comm.size)]
        tables = [
            self.table[np.isin(self.table[:, columns], blocks).any(1) if blocks.size else slice(0)] for blocks in going
        ]
        blocks = np.concatenate([own[:, None], *exchange_integer_arrays(comm, [b[:, None] for b in going])])[:, 0]
        return np.sort(blocks), sort_unique_rows(np.concatenate([self.table, *exchange_integer_arrays(comm, tables)]))

    def _find_ids_and_owners(self, table: np.ndarray) -> tuple[Ids, Ids]:
        """Return the entities that the rows of a table read and their owners, both by symbol."""
        ids, owners = {}, {}
        for s, entities in self.kind.list_referenced_ids(table, self.owners).items():
            ids[s], at = np.unique(entities.ids, return_index=True)
            owners[s] = entities.owners[at]
        return ids, owners

    def _build_subgraph(self, rows: np.ndarray, blocks: np.ndarray, available_ids: Ids) -> Subgraph:
        """Return the subgraph of blocks from their table rows and the rows `available_ids` of the call's arrays."""
        ids, _ = self._find_ids_and_owners(rows)
        ids[self.kind.block] = blocks
        places = {s: _find_positions(available_ids[s], ids[s]) for s in ids}
        inside = np.isin(rows[:, 1], blocks) if isinstance(self.kind, EdgeTableFormat) else None
        return Subgraph(ids, places, self.kind.build_graphs(rows, ids), inside, {})

    def _make_halos(self, ids: Ids, owners: Ids) -> dict[str, Halo]:
        return {s: Halo(self.comm, self.owned[s], ids[s], owners[s], self.cuda_aware) for s in sorted(ids)}

    def _build_layout(self, blocks: np.ndarray, table: np.ndarray) -> SubgraphLayout:
        """Return the layout of some blocks, given their table, and of everything else that this rank owns."""
        read, owners_read = self._find_ids_and_owners(table)
        read[self.kind.block] = blocks
        if self.owners.blocks.size:
            owners_read[self.kind.block] = self.owners.blocks[blocks]
        ids, owners = {}, {}
        for s, own in self.owned.items():
            ids[s] = sort_unique(read[s], own)
            owners[s] = np.full(ids[s].size, self.comm.rank)
            if s in owners_read:
                owners[s][np.searchsorted(ids[s], read[s])] = owners_read[s]
        subgraph = Subgraph(ids, dict.fromkeys(ids), self.kind.build_graphs(table, ids), None, {})
        return SubgraphLayout(
            subgraph, self._make_halos(ids, owners), {s: _find_positions(ids[s], own) for s, own in self.owned.items()}
        )


def _find_positions(ids: np.ndarray, some: np.ndarray) -> np.ndarray | None:
    """Return the positions of `some` within `ids`, or None if `some` is all of `ids`."""
    return None if some.size == ids.size else np.searchsorted(ids, some)
