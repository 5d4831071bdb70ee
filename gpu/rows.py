"""Lanes for kernels that gather rows of columns (kernels/rows.cuh)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from trigraph.gpu.sums import bits, cover

THREADS = 128  # of a block
WARP_BITS = 5
POSITION_BITS = 3
ACCESS = 16  # bytes that a lane reads at a time, where addresses and widths allow it


def is_wide(width: int, dtype: Any) -> bool:
    """Whether lanes read ACCESS bytes at a time. It depends on the width alone, and so do the bits of sums."""
    return bool(width * dtype.itemsize % ACCESS == 0)


def aligned(array: Any) -> Any:
    """Return the array, or a copy if its address does not allow for such accesses; None for None."""
    return array if array is None or is_aligned(array) else array.copy()


def is_aligned(array: Any) -> bool:
    """Whether the array's address allows for such accesses."""
    address = array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr
    return bool(address % ACCESS == 0)


class Lanes(NamedTuple):
    """Lanes of a group as exponents of two: along the columns, and along the positions of a piece."""

    column_bits: int
    position_bits: int
    elements: int  # columns of a lane

    @classmethod
    def of(cls, width: int, elements: int, position_bits: int = POSITION_BITS) -> Lanes:
        """Return at most a warp for rows of `width` columns.

        The order of sums must not depend on a graph, so neither do lanes: 8 along the positions suit rows of 8 to 100.
        """
        column_bits = min(bits(cover(max(width, 1), elements)), WARP_BITS)
        return cls(column_bits, min(position_bits, WARP_BITS - column_bits), elements)

    @property
    def groups(self) -> int:
        """Groups of a block."""
        return THREADS >> (self.column_bits + self.position_bits)

    def tiles(self, width: int) -> int:
        """Tiles of columns."""
        return cover(width, self.elements << self.column_bits)

    def grid(self, pieces: int, width: int) -> tuple[int]:
        """Blocks for all tiles of all pieces."""
        return (cover(pieces, self.groups) * self.tiles(width),)
