"""Assignment of lanes to columns and positions for kernels that gather rows (kernels/rows.cuh)."""

from typing import Any, NamedTuple

import numpy as np

from trigraph.gpu.sums import ceil_divide, ceil_log2
from trigraph.table.constants import THREADS

WARP_BITS = 5
POSITION_BITS = 3
ACCESS_BYTES = 16  # bytes that a lane reads at a time if the address and the row size are multiples of 16


def allows_wide_access(width: int, dtype: Any) -> bool:
    """Return whether lanes read ACCESS bytes at a time; like the order of sums, this depends only on the row size."""
    return bool(width * dtype.itemsize % ACCESS_BYTES == 0)


def align(array: Any) -> Any:
    """Return the array, or a copy if its address is not a multiple of ACCESS; None remains None."""
    return array if array is None or is_aligned(array) else array.copy()


def is_aligned(array: Any) -> bool:
    """Return whether the array's address is a multiple of ACCESS."""
    address = array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr
    return bool(address % ACCESS_BYTES == 0)


class LaneLayout(NamedTuple):
    """Numbers of lanes of a group along the columns and positions of a piece, as exponents of two."""

    column_bits: int
    position_bits: int

    @classmethod
    def for_width(cls, width: int, elements: int, position_bits: int = POSITION_BITS) -> "LaneLayout":
        """Return lanes, at most a warp, for rows of `width` columns; each lane processes `elements` columns.

        Lanes, and thus the order of sums, do not depend on the graph; 8 lanes along positions suit degrees of 8 to 100.
        """
        column_bits = min(ceil_log2(ceil_divide(max(width, 1), elements)), WARP_BITS)
        return cls(column_bits, min(position_bits, WARP_BITS - column_bits))

    @property
    def groups_per_block(self) -> int:
        """Number of groups in a block."""
        return THREADS >> sum(self)

    def grid(self, pieces: int, width: int, elements: int) -> tuple[int]:
        """Return the grid for all tiles of columns of all pieces."""
        return (ceil_divide(pieces, self.groups_per_block) * ceil_divide(width, elements << self.column_bits),)


class HeadLaneLayout(NamedTuple):
    """Numbers of lanes of a group along a head's columns, heads, and positions, as exponents of two."""

    column_bits: int
    head_bits: int
    position_bits: int

    @classmethod
    def for_heads(cls, num_heads: int, dim_head: int, elements: int) -> "HeadLaneLayout":
        """Return lanes, at most a warp, which do not depend on the graph (see `LaneLayout.for_width`)."""
        column_bits = min(ceil_log2(ceil_divide(max(dim_head, 1), elements)), WARP_BITS)
        head_bits = min(ceil_log2(num_heads), WARP_BITS - column_bits)
        return cls(column_bits, head_bits, min(POSITION_BITS, WARP_BITS - column_bits - head_bits))

    @property
    def groups_per_block(self) -> int:
        """Number of groups in a block."""
        return THREADS >> sum(self)
