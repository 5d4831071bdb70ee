"""Build a partition from a graph that every rank has, or from pieces of a graph that no rank has as a whole."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from mpi4py import MPI

from trigraph.arrays import check_range, require_count
from trigraph.distributed.block_tables import (
    BlockTableFormat,
    CSCTableFormat,
    EdgeTableFormat,
    Ids,
    OwnerRanks,
    SegmentTableFormat,
    sort_unique,
    sort_unique_rows,
)
from trigraph.distributed.exchange import Halo, compute_digest, require_agreement, send_and_receive_rows
from trigraph.distributed.owners import blocks as block_owners
from trigraph.distributed.partition import Partition
from trigraph.distributed.processors import limit_threads_to_share
from trigraph.graphs import CSC
from trigraph.graphs.edge_graph import EdgeGraph
from trigraph.graphs.segments import Segments


def partition(
    graph: CSC | EdgeGraph | Segments,
    comm: MPI.Comm,
    owner: Any = None,
    source_owner: Any = None,
    *,
    atoms: Segments | None = None,
    idx_in: Segments | None = None,
    cuda_aware: bool = False,
) -> Partition:
    """Divide a graph among the ranks; every rank must have the whole graph.

    Parameters
    ----------
    graph : CSC, EdgeGraph or Segments
        Graph on the host, the same on all ranks. For GemNet-OC's operators, the triplets.
    comm : MPI.Comm
        Communicator, which is duplicated.
    owner : integer array, optional
        Rank that owns each destination, node or output (atoms, or edges without `atoms`); the same on all
        ranks, from `owners.blocks` (default), `owners.bisection` or elsewhere.
    source_owner : integer array, optional
        Rank that owns each source, or each input of `idx_in`. Default: `owner` if its length fits, otherwise blocks.
    atoms, idx_in : Segments, optional
        As for `trigraph.interaction_bilinear_fwd`.
    cuda_aware : bool
        Whether MPI accepts arrays on a device.

    Returns
    -------
    Partition
        Ranks own positions by destination, edges of an `EdgeGraph` by source, and triplets by output.

    Raises
    ------
    TypeError, ValueError
        On all ranks, if an argument is wrong on one rank or differs between ranks.

    Examples
    --------
    >>> import numpy as np
    >>> from mpi4py import MPI
    >>> from trigraph import CSC, distributed
    >>> graph = CSC.from_coo(np.array([0, 1, 1]), np.array([1, 0, 1]))
    >>> part = distributed.partition(graph, MPI.COMM_WORLD)  # one rank: whole graph
    >>> distributed.agg_weighted_n2n_fwd(np.ones((2, 1)), None, part).output_embedding
    array([[1.],
           [2.]])
    """
    comm = _duplicate_communicator(comm)
    with require_agreement(comm, ("the call", "partition")) as facts:
        kind, sizes, members, unused = _convert_graph_to_table(graph, atoms, idx_in)
        owners = _choose_owners(kind, sizes, comm.size, owner, source_owner)
        arguments = {"graph": (graph, atoms, idx_in), "owner": owners.blocks, "source_owner": owners.sources}
        facts += [(name, compute_digest(value)) for name, value in arguments.items()]
    begin, end = (len(members) * r // comm.size for r in (comm.rank, comm.rank + 1))
    piece = members[begin:end]
    if isinstance(kind, CSCTableFormat):  # an edge row belongs to the owner of its first position's destination
        piece[:, 4] = owners.blocks[piece[:, 4]]
    unused = unused[block_owners(unused.size, comm.size) == comm.rank]
    return _build_partition(comm, kind, sizes, owners, piece, {"num_edges": unused}, cuda_aware)


def partition_pieces(
    graph_type: type[CSC | EdgeGraph | Segments],
    pieces: Iterable[Sequence[np.ndarray]],
    comm: MPI.Comm,
    num_nodes: int | tuple[int, int],
    owner: Any = None,
    source_owner: Any = None,
    *,
    atoms: Iterable[np.ndarray] | None = None,
    cuda_aware: bool = False,
) -> Partition:
    """Divide a graph from pieces: each rank passes some edges or triplets, and no rank ever holds all of them.

    Parameters
    ----------
    graph_type : type
        `CSC`; `EdgeGraph`, whose edges are sorted by source over all pieces of all ranks; or `Segments`, for the
        triplets of GemNet-OC's operators.
    pieces : iterable of tuples of integer arrays
        Pieces of this rank: a list, a generator, or arrays of ``.npz`` files. A piece of a `CSC` is (src, dst). A piece
        of an `EdgeGraph` is (src, dst) or (src, dst, reverse_edge), where -1 means none. A piece of `Segments` is
        (edge,), the edge of each triplet, or (edge, input) if the operator has `idx_in`, with the input that each
        triplet reads. Edges or triplets are numbered by rank, piece and row; `reverse_edge` uses these numbers.
    comm : MPI.Comm
        Communicator, which is duplicated.
    num_nodes : int or (int, int)
        Number of nodes of the whole graph, or (num_src_nodes, num_dst_nodes). For `Segments`, the number of outputs,
        or (num_inputs, num_outputs) if triplets read inputs.
    owner, source_owner, cuda_aware
        As for `partition`.
    atoms : iterable of integer arrays, optional
        For `Segments`: the output to which each edge of this rank is added. Edges are numbered in the order of the
        ranks and arrays. Without `atoms`, every edge is an output.

    Returns
    -------
    Partition
        Partition in which row k of edge arrays belongs to edge k. Index arrays are int64.

    Raises
    ------
    TypeError, ValueError
        On all ranks, if an argument is wrong on one rank or differs between ranks.

    Examples
    --------
    >>> import numpy as np
    >>> from mpi4py import MPI
    >>> from trigraph import CSC, distributed
    >>> piece = np.array([0, 1, 1]), np.array([1, 0, 1])  # sources, destinations
    >>> part = distributed.partition_pieces(CSC, [piece], MPI.COMM_WORLD, num_nodes=2)
    >>> distributed.agg_weighted_n2n_fwd(np.ones((2, 1)), None, part).output_embedding
    array([[1.],
           [2.]])
    """
    comm = _duplicate_communicator(comm)
    int64, outputs = np.dtype(np.int64), None
    with require_agreement(comm, ("the call", "partition_pieces")) as facts:
        if graph_type not in (CSC, EdgeGraph, Segments):
            expected = "trigraph.CSC, trigraph.EdgeGraph or trigraph.Segments"
            raise TypeError(f"partition_pieces: graph_type is {graph_type!r}; expected {expected}")
        if atoms is not None and graph_type is not Segments:
            raise TypeError(f"partition_pieces: atoms is given for a {graph_type.__name__}; expected Segments")
        inputs = isinstance(num_nodes, tuple)
        if inputs and graph_type is EdgeGraph:
            raise TypeError(f"partition_pieces: num_nodes is {num_nodes} for an EdgeGraph; expected an int")
        pair = num_nodes if isinstance(num_nodes, tuple) else (num_nodes, num_nodes)
        num_src, num_dst = (require_count("partition_pieces", "num_nodes", n) for n in pair)
        sizes = {"num_src_nodes": num_src, "num_dst_nodes": num_dst, "num_nodes": num_dst}
        ends: dict[str, int | None] = {"src": num_src, "dst": num_dst}
        if graph_type is CSC:
            kind: BlockTableFormat = CSCTableFormat(int64, False, True)
            table, lengths = _check_and_concatenate_pieces(pieces, ends, 2)
        elif graph_type is EdgeGraph:
            table, lengths = _check_and_concatenate_pieces(pieces, {**ends, "reverse_edge": None}, 2, sorted_by="src")
            kind = EdgeTableFormat(int64, 3 in lengths, False)
        else:
            if source_owner is not None and not inputs:
                expected = "(num_inputs, num_outputs)"
                raise TypeError(f"partition_pieces: source_owner is given, num_nodes is an int; expected {expected}")
            kind = SegmentTableFormat(int64, atoms is not None, inputs)
            sizes = {"num_inputs": num_src, "num_outputs": num_dst}
            triplet_columns: dict[str, int | None] = {"edge": None, "input": num_src} if inputs else {"edge": None}
            table, lengths = _check_and_concatenate_pieces(pieces, triplet_columns, len(triplet_columns))
            if atoms is not None:
                outputs = _check_and_concatenate_pieces(((array,) for array in atoms), {"atoms": num_dst}, 1)[0][:, 0]
        owners = _choose_owners(kind, sizes, comm.size, owner, source_owner)
        facts += [("num_nodes", str((num_src, num_dst))), ("graph_type", graph_type.__name__)]
        if graph_type is Segments:
            facts += [("atoms", "None" if atoms is None else "given")]
            facts += [("num_nodes", "(num_inputs, num_outputs)" if inputs else "num_outputs")]
        facts += [("owner", compute_digest(owners.blocks)), ("source_owner", compute_digest(owners.sources))]
    numbers = comm.allgather(len(table))
    member = np.arange(sum(numbers[: comm.rank]), sum(numbers[: comm.rank + 1]))
    counted = ("num_triplets",) if graph_type is Segments else ("num_edges", "num_positions")
    sizes |= dict.fromkeys(counted, sum(numbers))
    if graph_type is EdgeGraph:
        have_reverse = _check_order_and_reverse(comm, table, lengths)
        divided = _build_partition(comm, kind, sizes, owners, np.column_stack([member, table]), {}, cuda_aware)
        return replace(
            divided, kind=EdgeTableFormat(int64, have_reverse, _has_ambiguous_reverse(divided, have_reverse))
        )
    if graph_type is CSC:
        table = _build_csc_table(comm, sizes, owners, np.column_stack([member, table]))
    else:
        if not inputs:
            table = np.stack([table[:, 0], member], 1)  # each triplet has its own input
            sizes["num_inputs"] = sizes["num_triplets"]
        table = _build_triplet_table(comm, sizes, owners, np.column_stack([member, table]), outputs)
    return _build_partition(comm, kind, sizes, owners, table, {}, cuda_aware)


def _check_and_concatenate_pieces(
    pieces: Iterable[Sequence[np.ndarray]], limits: Mapping[str, int | None], least: int, sorted_by: str | None = None
) -> tuple[np.ndarray, set[int]]:
    """Return the columns of all pieces, shape (any, columns), and the set of the numbers of arrays per piece.

    `limits` maps the name of each column to the bound of its entries, or to None if the bound is unknown. A piece has
    at least the first `least` columns; missing columns are filled with -1. `sorted_by` names a column that must ascend.
    """
    tables, lengths = [np.empty((0, len(limits)), np.int64)], set()
    for number, piece in enumerate(pieces):
        columns = dict(zip(limits, map(np.asarray, piece), strict=False))
        if not least <= len(piece) <= len(limits):
            allowed = " or ".join(map(str, range(least, len(limits) + 1)))
            raise ValueError(f"partition_pieces: piece {number} has {len(piece)} arrays; expected {allowed}")
        first = next(iter(columns.values()))
        if any(c.ndim != 1 or c.size != first.size or c.dtype.kind not in "iu" for c in columns.values()):
            shapes = ", ".join(f"{c.dtype} {c.shape}" for c in columns.values())
            raise ValueError(f"partition_pieces: piece {number} has {shapes}; expected integers of one length")
        for name, column in columns.items():
            limit = limits[name]
            if limit is not None:
                check_range("partition_pieces", f"pieces[{number}].{name}", column, limit, "num_nodes")
            if name == sorted_by and (np.diff(column) < 0).any():
                raise ValueError(
                    f"partition_pieces: {name} of piece {number} decreases; expected edges sorted by source"
                )
        missing = np.full((first.size, len(limits) - len(columns)), -1)
        tables.append(np.column_stack([*(c.astype(np.int64) for c in columns.values()), missing]))
        lengths.add(len(columns))
    return np.concatenate(tables), lengths


def _build_csc_table(comm: MPI.Comm, sizes: Mapping[str, int], owners: OwnerRanks, edges: np.ndarray) -> np.ndarray:
    """Return the table of a CSC for this rank's destinations; columns of `edges`: number, source, destination."""
    edge, src, dst = edges.T
    members = np.stack([edge, dst, src, edge, owners.blocks[dst]], 1)
    # Positions are ordered by destination, then by edge.
    degrees = np.bincount(dst, minlength=sizes["num_dst_nodes"])
    comm.Allreduce(MPI.IN_PLACE, degrees)
    table = send_and_receive_rows(comm, members, owners.blocks[dst])
    table = table[np.lexsort((table[:, 0], table[:, 1]))]
    nodes, begins = np.unique(table[:, 1], return_index=True)
    before = np.cumsum(degrees) - degrees
    within = np.arange(len(table)) - begins[np.searchsorted(nodes, table[:, 1])] if len(table) else begins
    table[:, 0] = before[table[:, 1]] + within
    return table


def _build_triplet_table(
    comm: MPI.Comm, sizes: dict[str, int], owners: OwnerRanks, triplets: np.ndarray, outputs: np.ndarray | None
) -> np.ndarray:
    """Return the table of this rank's edges and of its triplets, which have the columns number, edge and input.

    `outputs` holds the output of each edge that this rank passes; None if the edges are the outputs.
    """
    edge = triplets[:, 1]
    if outputs is None:
        ends = np.array([sizes["num_outputs"]])
        edges = output_of_edge = np.flatnonzero(owners.blocks == comm.rank)
    else:
        ends = np.cumsum(comm.allgather(outputs.size))
        edges, output_of_edge = ends[comm.rank] - outputs.size + np.arange(outputs.size), outputs
    sizes["num_edges"] = number = int(ends[-1])
    with require_agreement(comm):
        check_range("partition_pieces", "edge", edge, number, "num_edges")
    output = edge
    if outputs is not None:  # only the rank that passed an edge knows the edge's output
        wanted = sort_unique(edge)
        halo = Halo(comm, edges, wanted, np.searchsorted(ends, wanted, side="right"))
        output = halo.start(outputs).wait()[np.searchsorted(wanted, edge)]
    no_triplet = np.full(edges.size, -1)
    with_triplets = np.column_stack([triplets[:, 0], edge, output, triplets[:, 2]])
    return np.concatenate([with_triplets, np.column_stack([no_triplet, edges, output_of_edge, no_triplet])])


def _check_order_and_reverse(comm: MPI.Comm, edges: np.ndarray, lengths: set[int]) -> bool:
    """Raise unless the edges of all ranks are sorted by source; return whether they have a reverse_edge."""
    ends = comm.allgather((int(edges[0, 0]), int(edges[-1, 0])) if len(edges) else None)
    end_nodes = [node for pair in ends if pair is not None for node in pair]
    if end_nodes != sorted(end_nodes):
        raise ValueError("partition_pieces: src decreases from one rank to the next; expected edges sorted by source")
    lengths = set().union(*comm.allgather(lengths))
    if len(lengths) > 1:
        raise ValueError("partition_pieces: some pieces have a reverse_edge and some have none; expected all or none")
    return 3 in lengths


def _has_ambiguous_reverse(divided: Partition, have_reverse: bool) -> bool:
    """Return whether the reverse of an edge is ambiguous; raise if a given reverse is wrong."""
    comm, edges = divided.comm, divided.table
    own_edges = edges[divided.owners.blocks[edges[:, 1]] == comm.rank]
    with require_agreement(comm):
        if have_reverse:  # the block of an edge's source contains both the edge and its reverse
            paired = own_edges[own_edges[:, 3] >= 0]
            reverse_rows = edges[np.minimum(np.searchsorted(edges[:, 0], paired[:, 3]), max(len(edges) - 1, 0))]
            if (own_edges[:, 3] < -1).any() or (reverse_rows != paired[:, [3, 2, 1, 0]]).any():
                raise ValueError(
                    "partition_pieces: reverse_edge names an edge that does not go back, or that has another reverse; "
                    "expected the number of its reverse, or -1"
                )
    parallel = len(np.unique(own_edges[:, 1:3], axis=0)) < len(own_edges)
    return comm.allreduce(bool(parallel), MPI.LOR) and not have_reverse


@cache
def _get_communicator_key() -> int:
    """Return the key under which a communicator stores its duplicate."""
    return MPI.Comm.Create_keyval()


def _duplicate_communicator(comm: MPI.Comm) -> MPI.Comm:
    """Return the duplicate of a communicator, made once, so that messages never mix with the caller's messages."""
    own: Any = comm.Get_attr(_get_communicator_key())
    if own is None:
        own = comm.Dup()
        limit_threads_to_share(own)
        comm.Set_attr(_get_communicator_key(), own)
    return own


PARTITION_NUMBERS = itertools.count(1)  # numbers of the partitions, which all ranks make in the same order


def _convert_graph_to_table(
    graph: Any, atoms: Segments | None, idx_in: Segments | None
) -> tuple[BlockTableFormat, dict[str, int], np.ndarray, np.ndarray]:
    """Return the table format, sizes and table of a whole graph, and the rows of edge arrays that no position uses."""
    if not isinstance(graph, (CSC, EdgeGraph, Segments)) or graph.kind != "numpy":
        shown = type(graph).__name__ if not hasattr(graph, "kind") else f"{type(graph).__name__} on {graph.device}"
        raise TypeError(f"partition: graph is a {shown}; expected a CSC, EdgeGraph or Segments of NumPy arrays")
    no_rows = np.empty(0, np.int64)
    for name, segments in (("atoms", atoms), ("idx_in", idx_in)):
        if not (segments is None or isinstance(segments, Segments)):
            raise TypeError(f"partition: {name} is a {type(segments).__name__}; expected a trigraph.Segments")
    if not isinstance(graph, Segments) and (atoms is not None or idx_in is not None):
        raise TypeError(f"partition: atoms or idx_in is given for a {type(graph).__name__}; expected Segments")
    if isinstance(graph, EdgeGraph):
        sizes = {"num_nodes": graph.num_nodes, "num_edges": graph.num_edges}
        have_reverse = graph.reverse_edge is not None
        reverse = graph.reverse_edge if have_reverse else np.full(graph.num_edges, -1)
        columns = [np.arange(graph.num_edges), graph.src, graph.dst, reverse]
        table_format: BlockTableFormat = EdgeTableFormat(graph.src.dtype, have_reverse, not have_reverse)
        return table_format, sizes, np.stack(columns, 1).astype(np.int64, copy=False), no_rows
    if isinstance(graph, CSC):
        names = ("num_src_nodes", "num_dst_nodes", "num_positions", "num_edges")
        dst, rows = graph.prepare().destinations, graph.edge_ids
        used, first = np.unique(rows, return_index=True)
        dst_of_row = np.zeros(graph.num_edges, np.int64)
        dst_of_row[used] = dst[first]
        table_format = CSCTableFormat(graph.offsets.dtype, graph.edges_in_order, used.size == rows.size)
        columns = [np.arange(graph.num_positions), dst, graph.indices, rows, dst_of_row[rows]]
        table = np.stack(columns, 1).astype(np.int64, copy=False)
        unused = np.setdiff1d(np.arange(graph.num_edges), used, assume_unique=True)
        return table_format, {n: getattr(graph, n) for n in names}, table, unused
    edge = graph.index.astype(np.int64)
    if atoms is not None and atoms.num_members != graph.num_segments:
        raise ValueError(f"partition: atoms has {atoms.num_members} members; expected {graph.num_segments} edges")
    if idx_in is not None and idx_in.num_members != graph.num_members:
        raise ValueError(f"partition: idx_in has {idx_in.num_members} members; expected {graph.num_members} triplets")
    output = np.arange(graph.num_segments) if atoms is None else atoms.index.astype(np.int64)
    triplet = np.arange(graph.num_members)
    input_of_triplet = triplet if idx_in is None else idx_in.index
    no_triplet = np.full(graph.num_segments, -1)
    edges = np.arange(graph.num_segments)
    table = np.concatenate(
        [
            np.stack([triplet, edge, output[edge], input_of_triplet], 1),
            np.stack([no_triplet, edges, output, no_triplet], 1),
        ]
    ).astype(np.int64, copy=False)
    sizes = {
        "num_edges": graph.num_segments,
        "num_triplets": graph.num_members,
        "num_outputs": graph.num_segments if atoms is None else atoms.num_segments,
        "num_inputs": graph.num_members if idx_in is None else idx_in.num_segments,
    }
    return SegmentTableFormat(graph.index.dtype, atoms is not None, idx_in is not None), sizes, table, no_rows


def _choose_owners(
    table_format: BlockTableFormat, sizes: Mapping[str, int], ranks: int, owner: Any, source_owner: Any
) -> OwnerRanks:
    """Check and return the given owners, or return the default owners."""
    symbol = {CSCTableFormat: "num_src_nodes", SegmentTableFormat: "num_inputs"}.get(
        type(table_format), table_format.block
    )
    owners: list[np.ndarray] = []
    for name, ranks_given, counted in (("owner", owner, table_format.block), ("source_owner", source_owner, symbol)):
        number = sizes[counted]
        if ranks_given is None:
            same = bool(owners) and number == owners[0].size
            owners.append(owners[0] if same else block_owners(number, ranks))
            continue
        array = np.asarray(ranks_given)
        if array.shape != (number,) or array.dtype.kind not in "iu":
            raise ValueError(
                f"partition: {name} has {array.dtype} {array.shape}; expected integers ({counted},) = ({number},)"
            )
        check_range("partition", name, array, ranks, "the number of ranks")
        owners.append(array.astype(np.int64))
    return OwnerRanks(*owners)


def _build_partition(
    comm: MPI.Comm,
    table_format: BlockTableFormat,
    sizes: Mapping[str, int],
    owners: OwnerRanks,
    piece: np.ndarray,
    extra_rows: Ids,
    cuda_aware: bool,
) -> Partition:
    """Send each row of a table to the owners of its blocks; `extra_rows` holds owned rows that are not in the table."""
    tables = [send_and_receive_rows(comm, piece, owners.blocks[piece[:, c]]) for c in table_format.block_columns]
    table = sort_unique_rows(np.concatenate(tables))
    owned: Ids = {}
    for s, entities in table_format.list_referenced_ids(table, owners).items():
        owned[s] = sort_unique(entities.ids[entities.owners == comm.rank], extra_rows.get(s, piece[:0, 0]))
    owned[table_format.block] = np.flatnonzero(owners.blocks == comm.rank)
    if isinstance(table_format, (CSCTableFormat, SegmentTableFormat)) and table_format.shared_symbols:
        owned[table_format.shared_symbols[0]] = np.flatnonzero(owners.sources == comm.rank)
    name = ("the partition", f"number {next(PARTITION_NUMBERS)}")
    return Partition(comm, table_format, sizes, owned, owners, table, cuda_aware, name)
