"""Sums in a fixed order on the device, for every family: the same bits each time, and no long chain of roundings.

The kernels are in kernels/sums.cuh; a family that uses them includes it and lists ``instances.SUMS``. Rows of a CSR
array are summed in pieces of at most PART_SIZE positions, rows of matrices ROWS at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from trigraph.gpu.launcher import Args, Extents, Types, runtime
from trigraph.graphs import PART_SIZE, LongRows

ROWS = 256  # rows of a matrix that are summed at a time
# Bytes that the arrays of one block may take. How many rows a block has follows from it, and so does the order of a sum
# over blocks: it is the same number on every device.
WORKSPACE = 1 << 30
# Threads, rows and, the least that suffice, columns of a block of kernels/matrices.cuh.
MATRIX_THREADS, MATRIX_ROWS, MATRIX_COLUMNS = 256, 128, (16, 32, 64)
MAX_BLOCKS = 256  # blocks grow instead
MAX_LEVELS = 16  # of the tree that their sums are added up in


class Kernels:
    """The kernels of a family where an array of NumPy or CuPy lives; `dtype` is the array's."""

    def __init__(self, family: str, array: Any) -> None:
        self.family, self.dtype = family, array.dtype
        self.runtime = runtime(array)
        self.xp = self.runtime.xp

    def empty(self, *shape: int) -> Any:
        """Return workspace of the dtype."""
        return self.xp.empty(shape, self.dtype)

    def launch(self, kernel: str, types: Types, grid: Extents, block: Extents, args: Args, shared_mem: int = 0) -> None:
        """Launch a kernel; a plain integer is an ``int`` of the kernel."""
        values = [np.int32(value) if type(value) in (int, bool) else value for value in args]
        self.runtime.launch(self.family, kernel, types, grid, block, values, shared_mem)

    def matmul(self, left: Any, right: Any, out: Any = None, add: bool = False) -> Any:
        """Return left right, or add it to `out`, for matrices in C order or, `right`, the transposition of one.

        By the own kernel of kernels/matrices.cuh: a library's product has other bits for another number of rows, may
        round to fewer (TF32), and cannot be captured.
        """
        depth, width = right.shape
        if out is None:
            out = self.xp.empty((len(left), width), left.dtype)
        in_order = right.flags.c_contiguous
        columns = next((c for c in MATRIX_COLUMNS if width <= c), MATRIX_COLUMNS[-1])
        strides = (width, 1) if in_order else (1, depth)
        sizes = (np.int64(len(left)), depth, width, *map(np.int64, strides))
        grid = (cover(len(left), MATRIX_ROWS) * cover(width, columns),)
        args = (left, right if in_order else right.T, *sizes, add, out)
        self.launch("multiply", (left.dtype, columns), grid, (MATRIX_THREADS,), args)
        return out


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

    With `outer`, the parts' rows are matrices (outer, rest), and `total` is their transpose. A `fresh` sum replaces
    what is in `total`; by default it is added to that.
    """

    def __init__(self, kernels: Kernels, total: Any, outer: int = 1, fresh: bool = False) -> None:
        self._kernels, self._total, self._outer, self._fresh = kernels, total, outer, fresh
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
            self._sum(self._waiting, self._total, self._outer, self._sums, self._count.bit_count(), not self._fresh)
        elif kind is None and self._fresh:
            self._total.fill(0)


class Rows(NamedTuple):
    """Rows of a CSR array and their pieces.

    Row i has the positions offsets[i]..offsets[i+1]-1, or what `order` holds there. A row of at most PART_SIZE
    positions is the piece of its number; part t of the longer ones is piece num_rows + t.
    """

    offsets: Any
    order: Any
    num_rows: int
    num_positions: int
    long: LongRows | None  # None where all rows are whole

    @property
    def num_parts(self) -> int:
        """Parts of all long rows."""
        return 0 if self.long is None else int(self.long.parts.shape[1])

    @property
    def num_pieces(self) -> int:
        """Rows and parts."""
        return self.num_rows + self.num_parts

    @property
    def cut(self) -> tuple[Any, Any, Any, Any]:
        """What kernels take for their ``Cut``."""
        parts = None if self.long is None else self.long.parts
        return self.offsets, parts, np.int64(self.num_rows), np.int64(self.num_pieces)

    def long_blocks(self, width: int) -> tuple[tuple[int], tuple[Any, Any]]:
        """Grid of a kernel with a block for each long row and 32 columns, and what it takes for its ``LongRow``."""
        assert self.long is not None
        count = self.long.rows.shape[1]
        return (count * cover(width, 32),), (self.long.rows, np.int64(count))


def by_destination(graph: Any) -> Rows:
    """Positions of a `CSC` by destination."""
    long = graph.long_rows("offsets", graph.offsets) if graph.max_in_degree > PART_SIZE else None
    return Rows(graph.offsets, None, graph.num_dst_nodes, graph.num_positions, long)


def by_source(graph: Any) -> Rows:
    """Positions of a `CSC` by source."""
    offsets, order = graph.prepare()[1:3]
    return Rows(offsets, order, graph.num_src_nodes, graph.num_positions, graph.long_rows("src_offsets", offsets))


def by_row(graph: Any) -> Rows:
    """Positions of a `CSC` by row of its edge arrays; no offsets and no order where row and position are the same."""
    if graph.edges_in_order:
        return Rows(None, None, graph.num_positions, graph.num_positions, None)
    offsets, order = graph.prepare()[3:]
    return Rows(offsets, order, graph.num_edges, graph.num_positions, graph.long_rows("row_offsets", offsets))


def edge_ids(graph: Any) -> Any:
    """Rows of the edge arrays by position; None where row and position are the same."""
    return None if graph.edges_in_order else graph.edge_ids


def clear_unused(graph: Any, out: Any) -> None:
    """Set to zero what `by_row` leaves out: rows of the edge arrays after the last position."""
    if graph.edges_in_order and graph.num_edges > graph.num_positions:
        out[graph.num_positions :].fill(0)


def overflow_for(kernels: Kernels, rows: Rows, out: Any) -> Any:
    """Workspace for what the parts of long rows sum up to; None where there are none."""
    return None if rows.long is None else kernels.xp.empty((rows.num_parts, out.shape[1]), out.dtype)


def finish(kernels: Kernels, rows: Rows, overflow: Any, out: Any, divisor: Any = None) -> None:
    """Write what the parts of each long row sum up to, divided by the row's divisor, to its row of `out`."""
    if rows.long is None:
        return
    grid, index = rows.long_blocks(out.shape[1])
    args = (overflow, *index, out.shape[1], divisor, out)
    kernels.launch("finish_rows", (out.dtype, rows.offsets.dtype), grid, (32, 8), args)


def sum_positions(
    kernels: Kernels, kernel: str, types: Types, grid: Extents, args: Args, rows: Rows, out: Any, divisor: Any = None
) -> None:
    """Launch a kernel that sums over the positions of every piece, and write the sum of each row to `out`.

    The kernel takes `args` and, last, where the sums of whole rows and those of parts go.
    """
    overflow = overflow_for(kernels, rows, out)
    kernels.launch(kernel, types, grid, (128,), (*args, out, overflow))
    finish(kernels, rows, overflow, out, divisor)


def gather(kernels: Kernels, values: Any, rows: Rows, out: Any) -> None:
    """out[i] = sum of values[position] over the positions of row i."""
    width = out.shape[1]
    lane_bits = min(bits(width), 7)
    args = (values, rows.order, *rows.cut, width, lane_bits)
    grid = (cover(rows.num_pieces, 128 >> lane_bits),)
    sum_positions(kernels, "gather_rows", (out.dtype, rows.offsets.dtype), grid, args, rows, out)


def spread(kernels: Kernels, rows: Rows, values: Any) -> Any:
    """Return values[row] of each piece, zero where the piece is empty."""
    out = kernels.xp.empty((rows.num_pieces, values.shape[1]), values.dtype)
    args = (values, *rows.cut, values.shape[1], out)
    kernels.launch("spread_rows", (out.dtype, rows.offsets.dtype), (cover(out.size, 128),), (128,), args)
    return out


def sum_pieces(kernels: Kernels, rows: Rows, values: Any, out: Any) -> None:
    """out[i] = sum over row i's pieces, which `values` has as rows."""
    args = (values, rows.offsets, np.int64(rows.num_rows), out.shape[1], out)
    kernels.launch("rows_of_pieces", (out.dtype, rows.offsets.dtype), (cover(out.size, 128),), (128,), args)
    finish(kernels, rows, values[rows.num_rows :], out)
