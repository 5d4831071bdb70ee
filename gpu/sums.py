"""Sums in a fixed order, used by all families: bitwise reproducible, and without long chains of additions.

The kernels are in kernels/sums.cuh; ``instances.py`` lists the instances that each family uses. Rows of a CSR array are
summed in pieces of at most PART_SIZE positions, rows of matrices in chunks of ROWS.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from trigraph.gpu.instances import TENSOR_SUFFIX, uses_tensor_cores
from trigraph.gpu.launcher import Extents, Types, select_runtime
from trigraph.graphs import LongRows
from trigraph.table.constants import MATRIX_ROWS, PART_SIZE, THREADS

ROWS = 256  # number of matrix rows in a chunk of a sum
# Bytes for the arrays of one block of rows. It determines the number of rows per block, and thus the order of sums over
# blocks; it is the same on all devices, so that results do not depend on the device.
WORKSPACE = 1 << 30
# Possible numbers of columns of a block in kernels/matrices.cuh.
MATRIX_COLUMNS = (16, 32, 64)
MAX_BLOCKS = 256  # maximum number of blocks; for more rows, blocks are larger
MAX_LAUNCH_ROWS = 65535 * ROWS  # rows per launch, limited by the number of blocks along the second axis
MAX_LEVELS = 16  # maximum number of levels in the tree of block sums


class KernelLauncher:
    """Launches kernels of a family for the device and dtype of an array."""

    def __init__(self, family: str, array: Any) -> None:
        self.family, self.dtype = family, array.dtype
        self.runtime = select_runtime(array)
        self.xp = self.runtime.xp

    def empty(self, *shape: int) -> Any:
        """Return uninitialized workspace."""
        return self.xp.empty(shape, self.dtype)

    def launch(
        self, kernel: str, types: Types, grid: Extents, block: Extents, /, *, shared_mem: int = 0, **arguments: Any
    ) -> None:
        """Launch a kernel of the family with these named arguments; see `Runtime.launch`."""
        self.runtime.launch(self.family, kernel, types, grid, block, shared_mem=shared_mem, **arguments)

    def launch_elementwise(self, kernel: str, types: Types, count: int, /, **arguments: Any) -> None:
        """Launch a kernel with a thread for each of `count` elements."""
        self.launch(kernel, types, (ceil_divide(count, THREADS),), (THREADS,), **arguments)

    def select_tensor_variant(self, kernel: str) -> str:
        """Return the name of the tensor-core version of `kernel` if float32 kernels use tensor cores, else `kernel`."""
        return kernel + TENSOR_SUFFIX if self.dtype == "float32" and uses_tensor_cores() else kernel

    def matmul(self, left: Any, right: Any, out: Any = None, add: bool = False) -> Any:
        """Return left @ right, optionally written or added to `out`; a `right` that is not C-contiguous is copied.

        kernels/matrices.cuh is used instead of a BLAS library, whose rounding depends on the number of rows, which may
        compute in TF32, and which a CUDA graph cannot capture.
        """
        depth, width = right.shape
        if out is None:
            out = self.xp.empty((len(left), width), left.dtype)
        columns = next((c for c in MATRIX_COLUMNS if width <= c), MATRIX_COLUMNS[-1])
        self.launch(
            self.select_tensor_variant("multiply"),
            (left.dtype, columns),
            (ceil_divide(len(left), MATRIX_ROWS * 4 // left.itemsize) * ceil_divide(width, columns),),
            (THREADS,),
            left=left,
            right=right if right.flags.c_contiguous else self.xp.ascontiguousarray(right),
            num_rows=len(left),
            depth=depth,
            width=width,
            add=add,
            out=out,
        )
        return out


def ceil_divide(count: int, size: int) -> int:
    """Return the number of blocks of `size` elements that cover `count` elements."""
    return -(-count // size)


def ceil_log2(number: int) -> int:
    """Return the exponent of the smallest power of two >= `number` >= 1."""
    return (number - 1).bit_length()


@contextmanager
def small_blocks() -> Iterator[None]:
    """Use the smallest workspaces, so that small graphs are split into as many blocks as large ones.

    This is for verification; no operator may run in another thread at the same time.
    """
    global WORKSPACE
    before, WORKSPACE = WORKSPACE, 1
    try:
        yield
    finally:
        WORKSPACE = before


def iterate_row_blocks(count: int, bytes_per_row: int) -> Iterator[tuple[int, int]]:
    """Yield the first row and the number of rows of each block; all numbers but the last are multiples of ROWS."""
    step = ceil_divide(max(WORKSPACE // bytes_per_row, ceil_divide(count, MAX_BLOCKS)), ROWS) * ROWS
    for first in range(0, count, step):
        yield first, min(step, count - first)


def sum_rows(kernels: KernelLauncher, values: Any, total: Any, outer: int = 1, fresh: bool = False) -> None:
    """Add the sum over the first axis of `values` to `total`; see `PairwiseSum` for `outer` and `fresh`."""
    with PairwiseSum(kernels, total, outer, fresh) as sums:
        sums.add(values)


class PairwiseSum:
    """Pairwise sum of parts, written to `total` at the end of the ``with`` block.

    Rows of an array store sums of 1, 2, 4, ... parts until another sum of equally many parts is available. One launch
    sums a part and adds it to the sums that it completes. The final launch adds the last part and all stored sums.

    If `outer` > 1, rows of the parts are matrices (outer, rest), and `total` has the transposed shape. If `fresh`, the
    sum replaces `total`; by default, it is added to `total`.
    """

    def __init__(self, kernels: KernelLauncher, total: Any, outer: int = 1, fresh: bool = False) -> None:
        self._kernels, self._total, self._outer, self._fresh = kernels, total, outer, fresh
        self._waiting: Any = None  # the last part, reduced to at most ROWS rows, which is not yet in `_sums`
        self._sums: Any = None
        self._count = 0  # number of parts in `_sums`; its set bits are the rows of `_sums` in use

    def add(self, values: Any) -> None:
        """Add a part, which is summed over the first axis."""
        if len(values) == 0:
            return
        if self._waiting is not None:
            self._merge_waiting_part()
        while len(values) > ROWS:
            sums = self._kernels.xp.empty((ceil_divide(len(values), ROWS), self._total.size), self._total.dtype)
            self._launch_sum_rows(values, sums, 1, None, 0, False)
            values = sums
        self._waiting = values

    def _merge_waiting_part(self) -> None:
        """Add the waiting part to the sums that it completes."""
        if self._sums is None:
            self._sums = self._kernels.xp.empty((MAX_LEVELS, self._total.size), self._total.dtype)
        completed = (self._count ^ (self._count + 1)).bit_length() - 1  # number of trailing one bits of `_count`
        level = self._count.bit_count() - completed
        self._launch_sum_rows(self._waiting, self._sums[level:], 1, self._sums[level:], completed, False)
        self._count += 1

    def _launch_sum_rows(
        self, values: Any, out: Any, outer: int, earlier: Any, num_earlier: int, accumulate: bool
    ) -> None:
        width = self._total.size
        for first in range(0, len(values), MAX_LAUNCH_ROWS):  # a single iteration unless there are millions of rows
            part = values[first : first + MAX_LAUNCH_ROWS]
            self._kernels.launch(
                "sum_rows",
                (out.dtype,),
                (ceil_divide(width, 32), ceil_divide(len(part), ROWS)),
                (32, 8),
                values=part,
                num_rows=len(part),
                width=width,
                block_rows=ROWS,
                outer=outer,
                earlier=earlier,
                num_earlier=num_earlier,
                accumulate=accumulate,
                sums=out[first // ROWS :],
            )

    def __enter__(self) -> "PairwiseSum":
        return self

    def __exit__(self, error_type: Any, *_: object) -> None:
        if error_type is None and self._waiting is not None:
            self._launch_sum_rows(
                self._waiting, self._total, self._outer, self._sums, self._count.bit_count(), not self._fresh
            )
        elif error_type is None and self._fresh:
            self._total.fill(0)


class RowPartition(NamedTuple):
    """Rows and their pieces (``RowPartition`` in kernels/sums.cuh)."""

    offsets: Any
    parts: Any
    num_rows: int
    num_pieces: int


class CsrRows(NamedTuple):
    """Rows of a CSR array and their pieces.

    Row i has the positions offsets[i]..offsets[i+1]-1, or the entries of `order` there. A row with at most PART_SIZE
    positions is one piece, numbered like the row. Longer rows are cut into parts; part t is piece num_rows + t.
    """

    offsets: Any
    order: Any
    num_rows: int
    num_positions: int
    long: LongRows | None  # None if no row is cut

    @property
    def num_parts(self) -> int:
        """Number of parts of all long rows."""
        return 0 if self.long is None else int(self.long.parts.shape[1])

    @property
    def num_pieces(self) -> int:
        """Number of rows and parts."""
        return self.num_rows + self.num_parts

    @property
    def partition(self) -> RowPartition:
        """The kernel argument ``partition``."""
        parts = None if self.long is None else self.long.parts
        return RowPartition(self.offsets, parts, self.num_rows, self.num_pieces)

    def long_row_grid_and_arguments(self, width: int) -> tuple[tuple[int], dict[str, Any]]:
        """Return the grid (a block for each long row and 32 columns), and the kernel arguments for ``LongRow``."""
        assert self.long is not None
        count = self.long.rows.shape[1]
        return (count * ceil_divide(width, 32),), {"long_rows": self.long.rows, "num_long": count}


def group_by_destination(graph: Any) -> CsrRows:
    """Return the positions of a `CSC` grouped by destination."""
    long = graph.long_rows("offsets") if graph.max_in_degree > PART_SIZE else None
    return CsrRows(graph.offsets, None, graph.num_dst_nodes, graph.num_positions, long)


def group_by_source(graph: Any) -> CsrRows:
    """Return the positions of a `CSC` grouped by source."""
    offsets, order = graph.prepare()[1:3]
    return CsrRows(offsets, order, graph.num_src_nodes, graph.num_positions, graph.long_rows("src_offsets"))


def group_by_edge_row(graph: Any) -> CsrRows:
    """Return the positions of a `CSC` grouped by edge row, without offsets and order if rows and positions coincide."""
    if graph.edges_in_order:
        return CsrRows(None, None, graph.num_positions, graph.num_positions, None)
    offsets, order = graph.prepare()[3:]
    return CsrRows(offsets, order, graph.num_edges, graph.num_positions, graph.long_rows("row_offsets"))


def edge_ids(graph: Any) -> Any:
    """Return the edge row of each position, or None if rows and positions coincide."""
    return None if graph.edges_in_order else graph.edge_ids


def zero_unused_rows(graph: Any, out: Any) -> None:
    """Set to zero the rows of an edge array after the last position, which `group_by_edge_row` omits."""
    if graph.edges_in_order and graph.num_edges > graph.num_positions:
        out[graph.num_positions :].fill(0)


def allocate_long_row_parts(kernels: KernelLauncher, rows: CsrRows, out: Any) -> Any:
    """Return workspace for the sums of parts of long rows, or None if no row is long."""
    return None if rows.long is None else kernels.xp.empty((rows.num_parts, out.shape[1]), out.dtype)


def sum_long_row_parts(kernels: KernelLauncher, rows: CsrRows, overflow: Any, out: Any, divisor: Any = None) -> None:
    """Sum the parts of each long row, divide the sum by `divisor`, if given, and write it to `out`."""
    if rows.long is None:
        return
    width = out.shape[1]
    grid, long_rows = rows.long_row_grid_and_arguments(width)
    arguments = {"overflow": overflow, **long_rows, "width": width, "divisor": divisor, "out": out}
    kernels.launch("sum_long_row_parts", (out.dtype, rows.offsets.dtype), grid, (32, 8), **arguments)


def launch_position_sums(
    kernels: KernelLauncher,
    kernel: str,
    types: Types,
    grid: Extents,
    rows: CsrRows,
    out: Any,
    divisor: Any = None,
    /,
    **arguments: Any,
) -> None:
    """Launch a kernel that sums over the positions of every piece, and write the sum of each row to `out`.

    The kernel also receives ``partition`` and the outputs ``out`` (whole rows) and ``overflow`` (parts).
    """
    overflow = allocate_long_row_parts(kernels, rows, out)
    arguments |= {"partition": rows.partition, "out": out, "overflow": overflow}
    kernels.launch(kernel, types, grid, (THREADS,), **arguments)
    sum_long_row_parts(kernels, rows, overflow, out, divisor)


def sum_gathered_rows(kernels: KernelLauncher, values: Any, rows: CsrRows, out: Any) -> None:
    """Write out[i], the sum of values[position] over the positions of row i."""
    width = out.shape[1]
    lane_bits = min(ceil_log2(width), 7)
    arguments = {"values": values, "order": rows.order, "width": width, "lane_bits": lane_bits}
    grid = (ceil_divide(rows.num_pieces, THREADS >> lane_bits),)
    launch_position_sums(kernels, "sum_gathered_rows", (out.dtype, rows.offsets.dtype), grid, rows, out, **arguments)


def copy_rows_to_pieces(kernels: KernelLauncher, rows: CsrRows, values: Any) -> Any:
    """Return the row of `values` for each piece, or zeros for empty pieces."""
    out = kernels.xp.empty((rows.num_pieces, values.shape[1]), values.dtype)
    arguments = {"values": values, "partition": rows.partition, "width": values.shape[1], "out": out}
    kernels.launch_elementwise("copy_rows_to_pieces", (out.dtype, rows.offsets.dtype), out.size, **arguments)
    return out


def sum_pieces(kernels: KernelLauncher, rows: CsrRows, values: Any, out: Any) -> None:
    """Write out[i], the sum of the rows of `values` that belong to pieces of row i."""
    sizes = {"num_rows": rows.num_rows, "width": out.shape[1]}
    arguments = {"values": values, "offsets": rows.offsets, **sizes, "out": out}
    kernels.launch_elementwise("copy_nonempty_rows", (out.dtype, rows.offsets.dtype), out.size, **arguments)
    sum_long_row_parts(kernels, rows, values[rows.num_rows :], out)
