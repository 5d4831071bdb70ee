"""The public functions, which bind and check arguments like the functions of `trigraph`, but never check values."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from trigraph.arrays import ArrayLibrary
from trigraph.checks import (
    bind_arguments,
    check_and_convert_attributes,
    check_and_convert_graphs,
    check_dtypes_and_devices,
    check_graph_consistency,
    find_symbol_sizes,
    squeeze_columns,
)
from trigraph.graphs import GRAPH_TYPES
from trigraph.jax.graphs import copy_graph_to_jax, require_jax_cpu_array
from trigraph.jax.primitive import CallSpec, compute_wanted_fields
from trigraph.table import DEFINITIONS, OPERATORS, Definition, result_type
from trigraph.table.public import jax_docstring, set_function_metadata

MAX_SIZE = 2**31 - 1


class _JaxArrayLibrary(ArrayLibrary):
    """JAX and NumPy arrays. Checks use shapes and dtypes alone, so that arrays may be traced."""

    floats = "float32 or float64"

    def __init__(self) -> None:
        self.kind, self.backend = "jax", ""

    def is_array(self, value: Any) -> bool:
        return isinstance(value, (jax.Array, np.ndarray))

    def get_dtype_and_device(self, caller: str, name: str, value: Any, first: str = "") -> tuple[Any, str]:
        if not self.is_array(value):
            expected = "expected a jax.Array of float32 or float64"
            raise TypeError(f"{caller}: {name} is a {type(value).__name__}; {expected}")
        return value.dtype, "host"

    def convert_graph(self, value: Any) -> Any:
        return copy_graph_to_jax(value) if type(value) in GRAPH_TYPES.values() else value


ARRAYS = _JaxArrayLibrary()


def _make_public_function(spec: Definition) -> Callable[..., Any]:
    op = OPERATORS[f"{spec.name}_fwd"]
    result = None if op.returns_array else result_type(op.name)
    graph_kind = op.graph_kind
    arrays_of_graphs = [n for n, _ in graph_kind.forward + graph_kind.fast + graph_kind.reverse] if graph_kind else []

    def call_forward_operator(*args: Any, **kwargs: Any) -> Any:
        values = bind_arguments(op, args, kwargs, op.signature)
        check_and_convert_attributes(op, values)
        _, device = check_dtypes_and_devices(op, values, ARRAYS)
        for a in op.select_present_arguments(values):
            values[a.name] = require_jax_cpu_array(values[a.name], f"{op.name}: {a.name}")
        check_and_convert_graphs(op, values, ARRAYS, device)
        check_graph_consistency(op, values)
        squeeze_columns(op, values)
        sizes = find_symbol_sizes(op, values)
        for name in spec.symbols:
            if sizes[name] > MAX_SIZE:
                raise ValueError(f"{op.name}: {name} is {sizes[name]}; the Fortran backend takes at most {MAX_SIZE}")
        operands = {n: graph_kind.find_attribute(n, values) for n in arrays_of_graphs}  # type: ignore[union-attr]
        operands = {n: a for n, a in operands.items() if a is not None} | {
            a.name: values[a.name] for a in op.select_present_arguments(values)
        }
        attributes = tuple((a.name, values[a.name]) for a in op.attributes)
        wanted = tuple(f.name for f in op.list_returned_fields(values, sizes))
        fields = compute_wanted_fields(CallSpec(spec.name, 0, tuple(sizes.items()), attributes), operands, wanted)
        return fields[wanted[0]] if result is None else result(*(fields.get(f.name) for f in op.fields))

    set_function_metadata(call_forward_operator, "trigraph.jax", spec.name, op.signature, jax_docstring(op))
    return call_forward_operator


FUNCTIONS = {spec.name: _make_public_function(spec) for spec in DEFINITIONS}
