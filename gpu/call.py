"""Arguments and requested results of one operator call in the gpu backends."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from trigraph.checks import find_field_shape_and_dtype
from trigraph.gpu.rows import is_aligned
from trigraph.gpu.sums import KernelLauncher
from trigraph.table import Operator, result_type


class OperatorCall:
    """Operator call whose arguments have passed the checks. A cotangent of None means zero.

    `inputs` are the inputs of the operator, `dots` the cotangents of their gradients (None in fwd and bwd), and `along`
    the cotangents ggg_ of inputs and gradients (None except in bwd3). `grad` is the gradient with respect to the first
    output (None in fwd). `second` is True for bwd2. `output` is the array for the first output or its derivative, or
    None if it is not requested.
    """

    def __init__(
        self, op: Operator, values: Mapping[str, Any], sizes: Mapping[str, int], wanted: Sequence[str], out: Any
    ) -> None:
        spec = op.definition
        self.values, self.sizes, self.second = values, sizes, op.order == 2
        self.inputs = SimpleNamespace(**{a.name: values[a.name] for a in spec.inputs})
        self.dots = SimpleNamespace(**{a.name: values.get(f"gg_{a.name}") for a in spec.inputs})
        fields = [a.name for a in spec.inputs] + [f"grad_{a.name}" for a in spec.outputs]
        self.along = SimpleNamespace(**{name: values.get(f"ggg_{name}") for name in fields})
        gradient = f"grad_{spec.outputs[0].name}"
        self.grad: Any = values.get(gradient)
        self.graph: Any = values.get("graph")
        self.kernels = KernelLauncher(op.family, values[spec.inputs[0].name])
        self.fields = RequestedFields(op, values, sizes, wanted, out, self.kernels)
        self.output = self.fields[gradient if op.order else spec.outputs[0].name]


class RequestedFields:
    """Arrays of the requested fields of a call, aligned to 16 bytes."""

    def __init__(
        self,
        op: Operator,
        values: Mapping[str, Any],
        sizes: Mapping[str, int],
        wanted: Sequence[str],
        out: Mapping[str, Any],
        kernels: KernelLauncher,
    ) -> None:
        self._operator, self._given = op, dict(out)
        self.arrays = {
            field.name: self._given[field.name]
            if self._is_given_and_aligned(field.name)
            else kernels.xp.empty(*find_field_shape_and_dtype(op, field, values, sizes))
            for field in op.fields
            if field.name in wanted
        }

    def _is_given_and_aligned(self, field: str) -> bool:
        return field in self._given and is_aligned(self._given[field])

    def __contains__(self, field: str) -> bool:
        return field in self.arrays

    def __getitem__(self, field: str) -> Any:
        """Return the array of a field, or None if it is not requested."""
        return self.arrays.get(field)

    def requests_any(self, *fields: str) -> bool:
        """Return whether one of these fields is requested."""
        return any(field in self.arrays for field in fields)

    def fill_zeros(self, *fields: str) -> None:
        """Set the requested ones among these fields (default: all) to zero, before sums are added to them."""
        for field in fields or self.arrays:
            if field in self.arrays:
                self.arrays[field].fill(0)

    def store_and_return_outputs(self) -> Any:
        """Return the result of the operator: an array or a NamedTuple."""
        for field in self.arrays.keys() & self._given.keys():
            if self.arrays[field] is not self._given[field]:
                self._given[field][...] = self.arrays[field]
                self.arrays[field] = self._given[field]
        if self._operator.returns_array:
            return self.arrays[self._operator.fields[0].name]
        return result_type(self._operator.name)(*(self.arrays.get(field.name) for field in self._operator.fields))
