"""The results of a call in the gpu panels: which fields are asked for (`wrt`), and where they go (`out`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trigraph.gpu.rows import is_aligned
from trigraph.gpu.sums import Kernels
from trigraph.table import OPERATORS, result_type

__all__ = ["Fields", "Like", "Out", "Wrt"]

Out = Mapping[str, Any] | None
Wrt = Sequence[str] | None


class Like(NamedTuple):
    """The shape and dtype of an array that is not there yet."""

    shape: tuple[int, ...]
    dtype: Any


class Fields:
    """The fields of one call that are asked for. Their addresses allow for accesses of 16 bytes.

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

    def __init__(self, name: str, wrt: Wrt, out: Out, like: Mapping[str, Any], kernels: Kernels) -> None:
        self._operator = OPERATORS[name]
        self._given = dict(out or {})
        self.arrays = {
            field: self._given[field] if self._usable(field) else kernels.xp.empty(array.shape, array.dtype)
            for field, array in like.items()
            if array is not None and (wrt is None or field in wrt)
        }

    def _usable(self, field: str) -> bool:
        return field in self._given and is_aligned(self._given[field])

    def __contains__(self, field: str) -> bool:
        """Whether a field is asked for."""
        return field in self.arrays

    def __getitem__(self, field: str) -> Any:
        """Return the array of a field, None where it is not asked for."""
        return self.arrays.get(field)

    def any_of(self, *fields: str) -> bool:
        """Whether one of these fields is asked for."""
        return any(field in self.arrays for field in fields)

    def clear(self, *fields: str) -> None:
        """Set these fields to zero, where they are asked for: those that sums are added to."""
        for field in fields:
            if field in self.arrays:
                self.arrays[field].fill(0)

    def zeros(self) -> Any:
        """Return zeros in every field."""
        self.clear(*self.arrays)
        return self.result()

    def result(self) -> Any:
        """Return the operator's array or NamedTuple."""
        for field in self.arrays.keys() & self._given.keys():
            if self.arrays[field] is not self._given[field]:
                self._given[field][...] = self.arrays[field]
                self.arrays[field] = self._given[field]
        if self._operator.single:
            return self.arrays[self._operator.fields[0].name]
        return result_type(self._operator.name)(*(self.arrays.get(field.name) for field in self._operator.fields))
