"""Arguments for all of a definition's operators, and directions for finite differences."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from trigraph.table import Array, ArrayArgument, Definition, Operator


@dataclass(frozen=True)
class Case:
    """Arguments of the operators of one definition."""

    name: str  # name of the variant or of the real input
    definition: Definition
    sizes: Mapping[str, int]  # size by symbol
    values: Mapping[str, Any]  # arguments of fwd: inputs, graph objects, attributes
    grads: Mapping[str, np.ndarray]  # ``grad_<output>``: cotangents of the outputs
    ggs: Mapping[str, np.ndarray]  # ``gg_<input>``: cotangents of the gradients
    directions: Mapping[str, np.ndarray]  # finite-difference directions of inputs, ``grad_<output>`` and ``gg_<input>``
    largest_step: float  # largest finite-difference step that crosses no kink
    note: str = ""  # remark for readers of the results
    # Whether many terms of a sum are equal, for example because many edges share few rows. The rounding errors of a
    # direct sum then add up instead of partly cancelling.
    equal_terms: bool = False
    half: str | None = None  # half-precision dtype that represents the numbers of some arrays exactly
    gggs: Mapping[str, np.ndarray] = field(default_factory=dict)  # ``ggg_<field>``: cotangents of the fields of bwd2

    @property
    def inputs(self) -> tuple[Array, ...]:
        """Inputs that are present; optional inputs may be absent."""
        return tuple(a for a in self.definition.inputs if self.values[a.name] is not None)

    def select_present_arguments(self, op: Operator) -> tuple[ArrayArgument, ...]:
        """Return an operator's array arguments that are present."""
        return op.select_present_arguments(self.arguments(op))

    def list_returned_fields(self, op: Operator) -> tuple[Array, ...]:
        """Return the fields that an operator returns for these inputs and choices."""
        return op.list_returned_fields(self.values, self.sizes)

    def list_differentiable_outputs(self, op: Operator) -> tuple[Array, ...]:
        """Return the fields that have a derivative."""
        return tuple(f for f in self.list_returned_fields(op) if f not in self.definition.auxiliary)

    @cached_property  # safe to cache: the fields never change
    def dtype(self) -> str:
        """Dtype of the arrays, ``"float32"`` or ``"float64"``."""
        return str(self.values[self.definition.inputs[0].name].dtype)

    def arguments(self, op: Operator) -> dict[str, Any]:
        """Return the keyword arguments of one of the definition's operators, except `wrt` and results of fwd."""
        absent = [f"{prefix}{a.name}" for a in self.definition.inputs if a.optional for prefix in ("gg_", "ggg_")]
        absent += [a.name for a in op.arguments if a.given_back]
        values = {**dict.fromkeys(absent), **self.values, **self.grads, **self.ggs, **self.gggs}
        return {name: values[name] for name in op.parameter_names}

    def map_arrays(self, change: Callable[[tuple[str, ...], np.ndarray], np.ndarray]) -> "Case":
        """Return the case with ``change(dims, array)`` applied to every array (inputs, cotangents and directions)."""
        dims = {f"{prefix}{a.name}": a.dims for a in self.definition.inputs for prefix in ("", "gg_", "ggg_")}
        dims |= {f"{prefix}{a.name}": a.dims for a in self.definition.outputs for prefix in ("grad_", "ggg_grad_")}

        def map_named_arrays(arrays: Mapping[str, Any]) -> dict[str, Any]:
            return {
                n: make_read_only(change(dims[n], a)) if n in dims and a is not None else a for n, a in arrays.items()
            }

        values, grads, ggs, gggs = map(map_named_arrays, (self.values, self.grads, self.ggs, self.gggs))
        return replace(
            self, values=values, grads=grads, ggs=ggs, gggs=gggs, directions=map_named_arrays(self.directions)
        )


def make_read_only(array: np.ndarray) -> np.ndarray:
    """Make an array read-only and return it."""
    array.setflags(write=False)
    return array
