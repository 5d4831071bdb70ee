"""A call of an operator in the gpu panels: its arguments, and the results that are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from trigraph.checks import index_dtype, shape_of
from trigraph.gpu.rows import is_aligned
from trigraph.gpu.sums import Kernels
from trigraph.table import Array, Operator, result_type


class Call:
    """A call that has passed the checks; a cotangent that is None is zero.

    `inputs` and `dots` are the inputs of the operator, and the cotangents of their gradients: all None below the second
    order. `grad` is the gradient of a scalar in the first output, None in the forward operator. `second` is whether
    this is an operator of second order; `output` the field of the first output or of its derivative, where that is
    asked for.
    """

    def __init__(
        self, op: Operator, values: Mapping[str, Any], sizes: Mapping[str, int], wanted: Sequence[str], out: Any
    ) -> None:
        spec = op.definition
        self.values, self.sizes, self.second = values, sizes, op.order == 2
        self.inputs = SimpleNamespace(**{a.name: values[a.name] for a in spec.inputs})
        self.dots = SimpleNamespace(**{a.name: values.get(f"gg_{a.name}") for a in spec.inputs})
        gradient = f"grad_{spec.outputs[0].name}"
        self.grad: Any = values.get(gradient)
        self.graph: Any = values.get("graph")
        self.kernels = Kernels(op.family, values[spec.inputs[0].name])
        self.fields = Fields(op, values, sizes, wanted, out, self.kernels)
        self.output = self.fields[gradient if op.order else spec.outputs[0].name]


class Fields:
    """The fields of one call (see `Call`) that are asked for. Their addresses allow for accesses of 16 bytes."""

    def __init__(
        self,
        op: Operator,
        values: Mapping[str, Any],
        sizes: Mapping[str, int],
        wanted: Sequence[str],
        out: Mapping[str, Any],
        kernels: Kernels,
    ) -> None:
        self._operator, self._given = op, dict(out)
        self.arrays = {
            field.name: self._given[field.name]
            if self._usable(field.name)
            else _empty(op, field, values, sizes, kernels)
            for field in op.fields
            if field.name in wanted
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
        """Set these fields, by default all, to zero, where they are asked for: those that sums are added to."""
        for field in fields or self.arrays:
            if field in self.arrays:
                self.arrays[field].fill(0)

    def result(self) -> Any:
        """Return the operator's array or NamedTuple."""
        for field in self.arrays.keys() & self._given.keys():
            if self.arrays[field] is not self._given[field]:
                self._given[field][...] = self.arrays[field]
                self.arrays[field] = self._given[field]
        if self._operator.single:
            return self.arrays[self._operator.fields[0].name]
        return result_type(self._operator.name)(*(self.arrays.get(field.name) for field in self._operator.fields))


def _empty(op: Operator, field: Array, values: Mapping[str, Any], sizes: Mapping[str, int], kernels: Kernels) -> Any:
    """Return an array for a field: like the argument that it is a derivative in, or as the table says."""
    known = values.get(field.name)
    if known is not None:
        return kernels.xp.empty(known.shape, known.dtype)
    dtype = index_dtype(op, values) if field.index else kernels.dtype
    if dtype.itemsize == 2 and not field.half:
        dtype = np.dtype(np.float32)
    return kernels.xp.empty(shape_of(field, sizes), dtype)
