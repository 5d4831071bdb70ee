"""Sums in a fixed order on the device, for every family: the same bits each time, and no long chain of roundings.

The kernels are in kernels/sums.cuh; a family that uses them includes it and lists ``instances.SUMS``. Rows of a CSR
array are summed in pieces of at most CHUNK positions, rows of matrices ROWS at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from trigraph.gpu.launcher import runtime

__all__ = [
    "CHUNK",
    "ROWS",
    "Kernels",
    "Pieces",
    "Rows",
    "Total",
    "bits",
    "blocks",
    "by_destination",
    "by_row",
    "by_source",
    "cover",
    "cut",
    "finish",
    "gather",
    "overflow_for",
    "small_blocks",
    "spread",
    "sum_pieces",
    "sum_rows",
    "workspace",
]

CHUNK = 128  # most positions of a piece
ROWS = 256  # rows of a matrix that are summed at a time
WORKSPACE = 32 << 20  # bytes of the arrays of one block: they stay in the cache of a device
MAX_BLOCKS = 256  # blocks grow instead
MAX_LEVELS = 16  # of the tree that their sums are added up in


class Kernels:
    """The kernels of a family, where an array lives.

    Parameters
    ----------
    family : str
    array : array
        Of NumPy or CuPy.
    """

    def __init__(self, family: str, array: Any) -> None:
        self.family = family
        self.runtime = runtime(array)
        self.xp = self.runtime.xp

    def launch(
        self,
        kernel: str,
        types: Sequence[Any],
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[Any],
        shared_mem: int = 0,
    ) -> None:
        """Launch a kernel; a plain integer is an ``int`` of the kernel."""
        values = [np.int32(value) if type(value) in (int, bool) else value for value in args]
        self.runtime.launch(self.family, kernel, types, grid, block, values, shared_mem)

    def matmul(self, left: Any, right: Any, out: Any = None) -> Any:
        """Return left right."""
        self.runtime.before_product()
        return self.xp.matmul(left, right, out=out)


def cover(count: int, size: int) -> int:
    """Blocks of a size that cover a count."""
    return -(-count // size)


def bits(number: int) -> int:
    """Exponent of the lowest power of two that is not below `number` >= 1."""
    return (number - 1).bit_length()


_small = False  # see small_blocks


def workspace(usual: int) -> int:
    """Return how large a work space may be: as large as usual, or as small as can be within `small_blocks`."""
    return 1 if _small else usual


@contextmanager
def small_blocks() -> Iterator[None]:
    """Let work spaces be as small as can be: small graphs then take the many blocks that large ones take.

    For verification. No operator may run in another thread meanwhile.
    """
    global _small
    _small = True
    try:
        yield
    finally:
        _small = False


def blocks(count: int, bytes_per_row: int) -> Iterator[tuple[int, int]]:
    """First row and number of rows of each block whose workspace is bounded; a multiple of ROWS, but for the last."""
    step = cover(max(workspace(WORKSPACE) // bytes_per_row, cover(count, MAX_BLOCKS)), ROWS) * ROWS
    for first in range(0, count, step):
        yield first, min(step, count - first)


def sum_rows(kernels: Kernels, values: Any, total: Any, outer: int = 1) -> None:
    """Add the sum over the first axis of `values` to `total`, transposing (outer, rest) matrices."""
    with Total(kernels, total, outer) as sums:
        sums.add(values)


class Total:
    """A sum that comes in parts and goes to `total` when the ``with`` block ends, all parts added pairwise.

    The sums of 1, 2, 4, ... parts that wait for as many others are rows of one array. Each part is summed and added to
    those that it completes by the same launch; the last one adds up all of them, so it waits for the end.

    Parameters
    ----------
    kernels : Kernels
    total : array
        What is there is added to.
    outer : int
        The parts' rows are matrices (outer, rest), and `total` is their transpose.
    """

    def __init__(self, kernels: Kernels, total: Any, outer: int = 1) -> None:
        self._kernels, self._total, self._outer = kernels, total, outer
        self._waiting: Any = None  # the last part, at most ROWS rows
        self._sums: Any = None
        self._count = 0  # parts in `_sums`; its bits say which rows there are

    def add(self, values: Any) -> None:
        """Add the sum over the first axis of a part."""
        if len(values) == 0:
            return
        if self._waiting is not None:
            self._complete()
        while len(values) > ROWS:
            sums = self._kernels.xp.empty((cover(len(values), ROWS), self._total.size), self._total.dtype)
            self._sum(values, sums, 1, None, 0, False)
            values = sums
        self._waiting = values

    def _complete(self) -> None:
        """Add the waiting part to the sums of as many parts as it completes."""
        if self._sums is None:
            self._sums = self._kernels.xp.empty((MAX_LEVELS, self._total.size), self._total.dtype)
        completed = (self._count ^ (self._count + 1)).bit_length() - 1  # ones at the end
        there = self._count.bit_count() - completed
        self._sum(self._waiting, self._sums[there:], 1, self._sums[there:], completed, False)
        self._count += 1

    def _sum(self, values: Any, out: Any, outer: int, earlier: Any, num_earlier: int, accumulate: bool) -> None:
        width = self._total.size
        grid = (cover(width, 32), cover(len(values), ROWS))
        sizes = (np.int64(len(values)), np.int64(width), ROWS, np.int64(outer))
        args = (values, *sizes, earlier, num_earlier, accumulate, out)
        self._kernels.launch("sum_rows", (out.dtype,), grid, (32, 8), args)

    def __enter__(self) -> Total:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None and self._waiting is not None:
            self._sum(self._waiting, self._total, self._outer, self._sums, self._count.bit_count(), True)


class Rows(NamedTuple):
    """Rows of a CSR array: row i has the positions offsets[i]..offsets[i+1]-1, or what `order` holds there."""

    offsets: Any
    order: Any
    num_rows: int
    num_positions: int


class Pieces(NamedTuple):
    """Rows cut into pieces of at most CHUNK positions; the table is (3, num_pieces): row, begin and end of each."""

    rows: Rows
    table: Any
    num_pieces: int


def by_destination(graph: Any) -> Rows:
    """Positions of a `CSC` by destination."""
    return Rows(graph.offsets, None, graph.num_dst_nodes, graph.num_positions)


def by_source(graph: Any) -> Rows:
    """Positions of a `CSC` by source."""
    reverse = graph.prepare()
    return Rows(reverse.src_offsets, reverse.src_positions, graph.num_src_nodes, graph.num_positions)


def by_row(graph: Any) -> Rows:
    """Positions of a `CSC` by row of its edge arrays."""
    reverse = graph.prepare()
    return Rows(reverse.row_offsets, reverse.row_positions, graph.num_edges, graph.num_positions)


def cut(kernels: Kernels, rows: Rows) -> Pieces:
    """Cut rows into pieces."""
    count = rows.num_rows + rows.num_positions // CHUNK
    table = kernels.xp.empty((3, count), rows.offsets.dtype)
    args = (rows.offsets, np.int64(rows.num_rows), CHUNK, np.int64(count), table)
    kernels.launch("cut_rows", (table.dtype,), (cover(count, 128),), (128,), args)
    return Pieces(rows, table, count)


def overflow_for(kernels: Kernels, rows: Rows, out: Any) -> Any:
    """Workspace for what the pieces of a row beyond the first one sum up to."""
    return kernels.xp.empty((rows.num_positions // CHUNK + 1, out.shape[1]), out.dtype)


def finish(kernels: Kernels, rows: Rows, overflow: Any, out: Any, by_piece: bool = False) -> None:
    """Add to `out` what a row's pieces beyond the first one sum up to; `overflow` has a row for each tile or piece."""
    width = out.shape[1]
    grid = (rows.num_positions // CHUNK * cover(width, 32),)
    args = (overflow, rows.offsets, np.int64(rows.num_rows), CHUNK, by_piece, width, out)
    kernels.launch("add_overflow", (out.dtype, rows.offsets.dtype), grid, (32, 8), args)


def gather(kernels: Kernels, values: Any, rows: Rows, out: Any) -> None:
    """out[i] = sum of values[position] over the positions of row i."""
    pieces, overflow, width = cut(kernels, rows), overflow_for(kernels, rows, out), out.shape[1]
    lane_bits = min(bits(width), 7)
    grid = (cover(pieces.num_pieces, 128 >> lane_bits),)
    args = (
        values,
        rows.order,
        pieces.table,
        rows.offsets,
        np.int64(pieces.num_pieces),
        width,
        lane_bits,
        out,
        overflow,
    )
    kernels.launch("gather_rows", (out.dtype, rows.offsets.dtype), grid, (128,), args)
    finish(kernels, rows, overflow, out)


def spread(kernels: Kernels, pieces: Pieces, values: Any) -> Any:
    """Return values[row] of each piece, zero where the piece is empty."""
    out = kernels.xp.empty((pieces.num_pieces, values.shape[1]), values.dtype)
    args = (values, pieces.table, np.int64(pieces.num_pieces), values.shape[1], out)
    kernels.launch("spread_rows", (out.dtype, pieces.table.dtype), (cover(out.size, 128),), (128,), args)
    return out


def sum_pieces(kernels: Kernels, pieces: Pieces, values: Sequence[Any], out: Any) -> None:
    """out[i] = sum over row i's pieces, which `values`, one array or two, have as rows."""
    rows, second = pieces.rows, values[1] if len(values) > 1 else None
    args = (values[0], second, rows.offsets, np.int64(rows.num_rows), CHUNK, out.shape[1], out)
    kernels.launch("first_pieces", (out.dtype, rows.offsets.dtype), (cover(out.size, 128),), (128,), args)
    for array in values:
        finish(kernels, rows, array, out, by_piece=True)
