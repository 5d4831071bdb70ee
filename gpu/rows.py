"""Lanes for kernels that gather rows of columns (kernels/rows.cuh), and the arrays that results go to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from trigraph.gpu.sums import Kernels, bits, cover
from trigraph.operators import result_type

__all__ = ["ACCESS", "THREADS", "Fields", "Lanes", "Like", "aligned", "is_wide"]

THREADS = 128  # of a block
WARP_BITS = 5
POSITION_BITS = 3
ACCESS = 16  # bytes that a lane reads at a time, where addresses and widths allow it


def is_wide(width: int, dtype: Any) -> bool:
    """Whether lanes read ACCESS bytes at a time. It depends on the width alone, and so do the bits of sums."""
    return bool(width * dtype.itemsize % ACCESS == 0)


def aligned(array: Any) -> Any:
    """Return the array, or a copy if its address does not allow for such accesses; None for None."""
    return array if array is None or _is_aligned(array) else array.copy()


def _is_aligned(array: Any) -> bool:
    address = array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr
    return bool(address % ACCESS == 0)


class Like(NamedTuple):
    """The shape and dtype of an array that is not there yet."""

    shape: tuple[int, ...]
    dtype: Any


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


class Fields:
    """The results of one call: where they go, and which are asked for; addresses allow for wide accesses.

    Parameters
    ----------
    name : str
        The operator.
    wrt : sequence of str or None
    out : mapping or None
        Field -> the caller's array.
    like : mapping
        Field -> something of its shape and dtype; a field that is None there is None in the result.
    kernels : Kernels
    """

    def __init__(
        self,
        name: str,
        wrt: Sequence[str] | None,
        out: Mapping[str, Any] | None,
        like: Mapping[str, Any],
        kernels: Kernels,
    ) -> None:
        self._type = result_type(name)
        self._given = dict(out or {})
        self.arrays = {
            field: self._given[field] if self._usable(field) else kernels.xp.empty(array.shape, array.dtype)
            for field, array in like.items()
            if array is not None and (wrt is None or field in wrt)
        }

    def _usable(self, field: str) -> bool:
        return field in self._given and _is_aligned(self._given[field])

    def __getitem__(self, field: str) -> Any:
        """Return the array of a field, None where it is not asked for."""
        return self.arrays.get(field)

    def any_of(self, *fields: str) -> bool:
        """Whether one of these fields is asked for."""
        return any(field in self.arrays for field in fields)

    def zeros(self) -> Any:
        """Return zeros in every field."""
        for array in self.arrays.values():
            array.fill(0)
        return self.result()

    def result(self) -> Any:
        """Return the operator's NamedTuple."""
        for field in self.arrays.keys() & self._given.keys():
            if self.arrays[field] is not self._given[field]:
                self._given[field][...] = self.arrays[field]
                self.arrays[field] = self._given[field]
        return self._type(*(self.arrays.get(field) for field in self._type._fields))
