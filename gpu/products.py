"""Sums over rows of products of two matrices, left^T right, by own kernels (kernels/products.cuh).

A library's product adds as many terms as there are rows one by one; here no chain of additions has more than 16 terms.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from trigraph.gpu.sums import ROWS, Kernels, bits, cover


class Tile(NamedTuple):
    """Lanes of the largest of a block's small products, see kernels/products.cuh, as exponents of two."""

    row_bits: int
    col_bits: int

    @classmethod
    def of(cls, rows: int, cols: int) -> Tile:
        """Return lanes for a product of about these extents; at most 16 slices are left of a warp."""
        col_bits = min(bits(cover(cols, 2)), 4)
        return cls(max(min(bits(cover(rows, 4)), 3), 1 - col_bits), col_bits)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 1 << max(self.row_bits + self.col_bits, 5)

    def tiles(self, rows: int, cols: int) -> int:
        """Tiles that cover a matrix."""
        return cover(rows, 4 << self.row_bits) * cover(cols, 2 << self.col_bits)


class Columns(NamedTuple):
    """Some columns of a matrix: `width` of them from number `first` on."""

    matrix: Any
    first: int
    width: int


def product_rows(kernels: Kernels, left: Any, right: Any) -> Any:
    """Return left^T right, summed over each ROWS rows: (chunks, left columns, right columns)."""
    left, right = (x if isinstance(x, Columns) else Columns(x, 0, x.shape[1]) for x in (left, right))
    num_rows = len(left.matrix)
    tile = Tile.of(left.width, right.width)
    out = kernels.xp.empty((cover(num_rows, ROWS), left.width, right.width), left.matrix.dtype)
    factors = [value for x in (left, right) for value in (x.matrix, np.int64(x.matrix.shape[1]), x.first)]
    args = (*factors, np.int64(num_rows), ROWS, left.width, right.width, *tile, out)
    grid = (len(out) * tile.tiles(left.width, right.width),)
    kernels.launch("product_rows", (out.dtype,), grid, (tile.threads,), args)
    return out
