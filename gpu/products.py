"""Products left^T right of two matrices, summed over rows by the kernels of kernels/products.cuh.

A library would add the terms of all rows in one chain; these kernels limit chains of additions to 16 terms.
"""

from typing import Any, NamedTuple

from trigraph.gpu.sums import ROWS, KernelLauncher, ceil_divide, ceil_log2
from trigraph.table.constants import THREADS


class TileLanes(NamedTuple):
    """Lanes along rows and columns of a block's tile (see kernels/products.cuh), as exponents of two."""

    row_bits: int
    col_bits: int

    @classmethod
    def for_product(cls, rows: int, cols: int) -> "TileLanes":
        """Return the lanes for a product with `rows` rows and `cols` columns, with at most 16 slices per warp."""
        col_bits = min(ceil_log2(ceil_divide(cols, 2)), 4)
        return cls(max(min(ceil_log2(ceil_divide(rows, 4)), 3), 1 - col_bits), col_bits)

    @property
    def num_threads(self) -> int:
        """Number of threads in a block."""
        return 1 << max(self.row_bits + self.col_bits, 5)

    def count_tiles(self, rows: int, cols: int) -> int:
        """Return the number of tiles that cover a matrix."""
        return ceil_divide(rows, 4 << self.row_bits) * ceil_divide(cols, 2 << self.col_bits)


class ColumnRange(NamedTuple):
    """Columns ``first .. first + width - 1`` of a matrix."""

    matrix: Any
    first: int
    width: int


# Rows and columns of the tiles of multiply_chunks_tiled (for wide float32 matrices), by maximum width of the left
# matrix.
TILES = {32: (32, 128), 64: (64, 128), 128: (128, 64)}


def multiply_chunks(kernels: KernelLauncher, left: Any, right: Any) -> Any:
    """Return left^T right for chunks of ROWS rows, with shape (chunks, left columns, right columns)."""
    left, right = (x if isinstance(x, ColumnRange) else ColumnRange(x, 0, x.shape[1]) for x in (left, right))
    num_rows = len(left.matrix)
    out = kernels.xp.empty((ceil_divide(num_rows, ROWS), left.width, right.width), left.matrix.dtype)
    arguments = {
        "left": left.matrix,
        "left_stride": left.matrix.shape[1],
        "left_first": left.first,
        "right": right.matrix,
        "right_stride": right.matrix.shape[1],
        "right_first": right.first,
        "num_rows": num_rows,
        "chunk": ROWS,
        "num_y": left.width,
        "num_z": right.width,
        "products": out,
    }
    if out.dtype == "float32" and left.width > 16 and right.width > 32:
        rows, cols = next((TILES[width] for width in TILES if left.width <= width), TILES[128])
        blocks = len(out) * ceil_divide(left.width, rows) * ceil_divide(right.width, cols)
        kernels.launch(
            kernels.select_tensor_variant("multiply_chunks_tiled"),
            (out.dtype, rows, cols),
            (blocks,),
            (THREADS,),
            **arguments,
        )
    else:
        tile = TileLanes.for_product(left.width, right.width)
        blocks = len(out) * tile.count_tiles(left.width, right.width)
        arguments |= {"row_bits": tile.row_bits, "col_bits": tile.col_bits}
        kernels.launch("multiply_chunks", (out.dtype,), (blocks,), (tile.num_threads,), **arguments)
    return out
