"""Exchange of rows between ranks: integers while a partition is built, rows of arrays in every call."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
from mpi4py import MPI

from trigraph.arrays import get_array_module, name_library, wait_until_written
from trigraph.graphs import CSC
from trigraph.graphs.edge_graph import EdgeGraph
from trigraph.graphs.segments import Segments
from trigraph.table.former_names import keep_former_names


def exchange_integer_arrays(comm: MPI.Comm, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Send ``parts[r]``, int64 of shape (any, columns), to rank r; return the array received from each rank."""
    columns = parts[0].shape[1]
    counts = np.array([part.size for part in parts])
    coming = np.empty_like(counts)
    comm.Alltoall(counts, coming)
    received = np.empty(int(coming.sum()), np.int64)
    comm.Alltoallv((np.concatenate(parts).ravel(), counts), (received, coming))
    return [block.reshape(-1, columns) for block in np.split(received, np.cumsum(coming)[:-1])]


def send_and_receive_rows(comm: MPI.Comm, rows: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Send row k of a two-dimensional int64 array to rank ``ranks[k]``; return the rows received, by rank."""
    order = np.argsort(ranks, kind="stable")
    ends = np.searchsorted(ranks[order], np.arange(comm.size + 1))
    return np.concatenate(exchange_integer_arrays(comm, [rows[order[a:b]] for a, b in pairwise(ends)]))


@contextmanager
def require_agreement(comm: MPI.Comm, *facts: tuple[str, str]) -> Iterator[list[tuple[str, str]]]:
    """Return a context that, on exit, raises on all ranks if one rank has an error or if facts differ between ranks.

    Facts are (name, value) pairs that must be the same on all ranks. The first fact names the call; the caller may
    append facts to the list. A rank with an error raises that error. The other ranks raise RuntimeError with its rank
    and text. If a fact differs, all ranks raise ValueError with the call, the fact and two ranks.
    """
    own_facts, error, message = list(facts), None, None
    try:
        yield own_facts
    except Exception as caught_error:
        error, message = caught_error, f"{type(caught_error).__name__}: {caught_error}"
    all_reports = comm.allgather((message, own_facts))
    if error is not None:
        raise error
    for rank, (text, _) in enumerate(all_reports):
        if text is not None:
            raise RuntimeError(f"rank {rank}: {text}")
    first = all_reports[0][1]
    for rank, (_, other) in enumerate(all_reports):
        for (name, expected), (_, value) in zip(first, other, strict=False):
            if value != expected:
                raise ValueError(f"{first[0][1]}: {name} is {expected} on rank 0 and {value} on rank {rank}")


def compute_digest(value: Any) -> str:
    """Return a digest of an array, a graph object, a number or None, or of a tuple of these."""
    if isinstance(value, (CSC, EdgeGraph, Segments)):
        value = value.__reduce__()[1]
    if isinstance(value, tuple):
        contents = "".join(map(compute_digest, value)).encode()
    elif isinstance(value, np.ndarray):
        contents = f"{value.dtype.str} {value.shape}".encode() + value.tobytes()
    else:
        contents = repr(value).encode()
    return hashlib.blake2b(contents, digest_size=16).hexdigest()


@keep_former_names(received="num_received_rows")
class Halo:
    """Plan for the exchange of rows between ranks, which all arrays with the same rows can use.

    Parameters
    ----------
    comm : MPI.Comm
    own : int64 array
        Ascending global numbers of the rows that this rank has.
    wanted : int64 array
        Ascending global numbers of the rows that this rank needs.
    owners : int64 array, shape (len(wanted),)
        Rank that has each wanted row.
    cuda_aware : bool
        Whether MPI accepts device arrays; otherwise they are copied through pinned host memory.
    """

    def __init__(
        self, comm: MPI.Comm, own: np.ndarray, wanted: np.ndarray, owners: np.ndarray, cuda_aware: bool = False
    ) -> None:
        self._comm, self._cuda_aware, self.size = comm, cuda_aware, len(wanted)
        is_local = owners == comm.rank
        # Indices of the local rows in `own` and in `wanted`.
        self._local_indices = np.searchsorted(own, wanted[is_local]), np.flatnonzero(is_local)
        self._is_identity = bool(is_local.all()) and wanted.size == own.size  # all rows are local: nothing is copied
        places = [np.flatnonzero(owners == r) if r != comm.rank else np.empty(0, np.int64) for r in range(comm.size)]
        asked = exchange_integer_arrays(comm, [wanted[at][:, None] for at in places])
        self._coming = {r: at for r, at in enumerate(places) if at.size}
        self._going = {r: np.searchsorted(own, ids[:, 0]) for r, ids in enumerate(asked) if ids.size}

    @property
    def num_received_rows(self) -> int:
        """Number of rows that come from other ranks."""
        return sum(at.size for at in self._coming.values())

    def start(self, array: Any, axis: int = 0) -> "PendingExchange":
        """Start to send rows along an axis to ranks that need them, and to receive wanted rows, without waiting."""
        return PendingExchange(self, array, axis)


class PendingExchange:
    """Exchange of rows in progress; `wait` completes it."""

    def __init__(self, halo: Halo, array: Any, axis: int) -> None:
        self._halo, self._axis, xp = halo, axis, get_array_module(array)
        shape = (*array.shape[:axis], halo.size, *array.shape[axis + 1 :])
        self._out = array if halo._is_identity else xp.empty(shape, array.dtype)
        self._coming = {r: self._allocate_mpi_rows(at.size) for r, at in halo._coming.items()}
        going = {r: self._make_readable_by_mpi(xp.take(array, xp.asarray(at), axis)) for r, at in halo._going.items()}
        comm = halo._comm
        self._requests = [comm.Irecv(_view_as_mpi_bytes(memory), source=r) for r, memory in self._coming.items()]
        self._requests += [comm.Isend(_view_as_mpi_bytes(rows), dest=r) for r, rows in going.items()]
        self._going = going  # keep the rows alive until they are sent
        if not halo._is_identity:
            own_rows, wanted_rows = halo._local_indices
            self._write_received_rows(wanted_rows, xp.take(array, xp.asarray(own_rows), axis))

    def wait(self) -> Any:
        """Wait for the exchange and return the array of the wanted rows."""
        MPI.Request.Waitall(self._requests)
        for rank, rows in self._coming.items():
            self._write_received_rows(self._halo._coming[rank], get_array_module(self._out).asarray(rows))
        return self._out

    def _write_received_rows(self, at: np.ndarray, rows: Any) -> None:
        xp = get_array_module(self._out)
        self._out[(slice(None),) * self._axis + (xp.asarray(at),)] = rows

    def _allocate_mpi_rows(self, number: int) -> Any:
        """Return memory for `number` rows that MPI can write to: on the device, or pinned host memory."""
        out, axis = self._out, self._axis
        shape = (*out.shape[:axis], number, *out.shape[axis + 1 :])
        if name_library(out) == "numpy" or self._halo._cuda_aware:
            return get_array_module(out).empty(shape, out.dtype)
        import cupyx  # type: ignore[import-not-found]

        return cupyx.empty_pinned(shape, out.dtype)

    def _make_readable_by_mpi(self, rows: Any) -> Any:
        """Return rows in memory that MPI can read, after waiting for the device, because MPI ignores streams."""
        if name_library(rows) == "numpy":
            return rows
        if self._halo._cuda_aware:
            wait_until_written(rows)
            return rows
        return rows.get(out=self._allocate_mpi_rows(rows.shape[self._axis]))


def _view_as_mpi_bytes(array: Any) -> list[Any]:
    return [array.reshape(-1).view("u1"), MPI.BYTE]
