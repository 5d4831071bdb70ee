"""The public functions, which bind and check arguments like the functions of `trigraph`, but never check values."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from trigraph.arrays import ArrayLibrary
from trigraph.checks import (
    bind_arguments,
    bind_sizes,
    check_arrays,
    check_attributes,
    check_graphs,
    check_members,
    squeeze_columns,
)
from trigraph.graphs import GRAPH_TYPES
from trigraph.jax.graphs import as_cpu_array, rebuild_graph
from trigraph.jax.primitive import Form, call
from trigraph.table import DEFINITIONS, OPERATORS, Definition, result_type
from trigraph.table.public import jax_docstring, publish

MAX_SIZE = 2**31 - 1


class _JaxArrays(ArrayLibrary):
    """JAX and NumPy arrays. Checks use shapes and dtypes alone, so that arrays may be traced."""

    floats = "float32 or float64"

    def __init__(self) -> None:
        self.kind, self.backend = "jax", ""

    def is_array(self, value: Any) -> bool:
        return isinstance(value, (jax.Array, np.ndarray))

    def look(self, caller: str, name: str, value: Any, first: str = "") -> tuple[Any, str]:
        if not self.is_array(value):
            expected = "expected a jax.Array of float32 or float64"
            raise TypeError(f"{caller}: {name} is a {type(value).__name__}; {expected}")
        return value.dtype, "host"

    def graph_of(self, value: Any) -> Any:
        return rebuild_graph(value) if type(value) in GRAPH_TYPES.values() else value


ARRAYS = _JaxArrays()


def _make_function(spec: Definition) -> Callable[..., Any]:
    op = OPERATORS[f"{spec.name}_fwd"]
    result = None if op.single else result_type(op.name)
    graph_kind = op.graph
    arrays_of_graphs = [n for n, _ in graph_kind.forward + graph_kind.fast + graph_kind.reverse] if graph_kind else []

    def function(*args: Any, **kwargs: Any) -> Any:
        values = bind_arguments(op, args, kwargs, op.signature)
        check_attributes(op, values)
        _, device = check_arrays(op, values, ARRAYS)
        for a in op.select_present(values):
            values[a.name] = as_cpu_array(values[a.name], f"{op.name}: {a.name}")
        check_graphs(op, values, ARRAYS, device)
        check_members(op, values)
        squeeze_columns(op, values)
        sizes = bind_sizes(op, values)
        for name in spec.symbols:
            if sizes[name] > MAX_SIZE:
                raise ValueError(f"{op.name}: {name} is {sizes[name]}; the Fortran backend takes at most {MAX_SIZE}")
        operands = {n: graph_kind.find(n, values) for n in arrays_of_graphs}  # type: ignore[union-attr]
        operands = {n: a for n, a in operands.items() if a is not None} | {
            a.name: values[a.name] for a in op.select_present(values)
        }
        attributes = tuple((a.name, values[a.name]) for a in op.attributes)
        wanted = tuple(f.name for f in op.list_returned(values, sizes))
        fields = call(Form(spec.name, 0, tuple(sizes.items()), attributes), operands, wanted)
        return fields[wanted[0]] if result is None else result(*(fields.get(f.name) for f in op.fields))

    publish(function, "trigraph.jax", spec.name, op.signature, jax_docstring(op))
    return function


FUNCTIONS = {spec.name: _make_function(spec) for spec in DEFINITIONS}
