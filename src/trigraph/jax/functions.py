"""The public functions: they bind and check their arguments as those of `trigraph` do, by shapes and dtypes alone."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from trigraph.checks import (
    bind_arguments,
    bind_sizes,
    check_members,
    checked_attribute,
    graph_expected,
    squeeze_columns,
)
from trigraph.graphs import GRAPH_TYPES, Segments
from trigraph.jax.graphs import leaves_of, on_cpu
from trigraph.jax.primitive import Form, call
from trigraph.table import DEFINITIONS, OPERATORS, Definition, Operator, result_type
from trigraph.table.public import jax_docstring, publish

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
LARGEST = 2**31 - 1


def _check_arrays(op: Operator, values: dict[str, Any]) -> None:
    """Check the floating arrays, in the order in which they bind sizes; NumPy arrays become JAX arrays."""
    first = None
    for a in op.binding_order:
        value = values[a.name]
        if value is None and a.nullable:
            continue
        if not isinstance(value, (jax.Array, np.ndarray)):
            raise TypeError(
                f"{op.name}: {a.name} is a {type(value).__name__}; expected a jax.Array of float32 or float64"
            )
        if value.dtype not in FLOATS:
            raise TypeError(f"{op.name}: {a.name} has dtype {value.dtype}; expected float32 or float64")
        if first is not None and value.dtype != values[first].dtype:
            expected = f"{values[first].dtype}, the dtype of {first}"
            raise TypeError(f"{op.name}: {a.name} has dtype {value.dtype}; expected {expected}")
        first = first or a.name
        values[a.name] = on_cpu(value, f"{op.name}: {a.name}")


def _check_graphs(op: Operator, values: dict[str, Any]) -> None:
    """Check the graph objects; index arrays become Segments, and arrays of graphs JAX arrays."""
    for argument in op.graph.arguments if op.graph else ():
        name, graph = argument.name, values[argument.name]
        if graph is None and argument.optional:
            continue
        try:
            if argument.rows and isinstance(graph, (jax.Array, np.ndarray)):
                rows = values[argument.rows].shape
                graph = Segments(graph, rows[0] if rows else 0)
            if not isinstance(graph, GRAPH_TYPES[op.graph.type_name]):  # type: ignore[union-attr]
                raise TypeError(f"is a {type(graph).__name__}; expected {graph_expected(op, argument)}")
            values[name] = leaves_of(graph)
        except (TypeError, ValueError) as error:
            place = f"{name} " if str(error).startswith("is a ") else f"{name}: "
            raise type(error)(f"{op.name}: {place}{error}") from None
        for attribute in op.attributes:
            for choice, method in attribute.requires:
                if values[attribute.name] == choice:
                    getattr(graph, method)(op.name)
    if op.graph and len(op.graph.arguments) > 1:
        check_members(op, values)


def _function(spec: Definition) -> Callable[..., Any]:
    op = OPERATORS[f"{spec.name}_fwd"]
    result = None if op.single else result_type(op.name)
    kind = op.graph
    arrays_of_graphs = [n for n, _ in kind.forward + kind.fast + kind.reverse] if kind else []

    def function(*args: Any, **kwargs: Any) -> Any:
        values = bind_arguments(op, args, kwargs, op.signature)
        _check_arrays(op, values)
        for a in op.attributes:
            values[a.name] = checked_attribute(op, a, values[a.name], values[spec.inputs[0].name].dtype)
        _check_graphs(op, values)
        squeeze_columns(op, values)
        sizes = bind_sizes(op, values, {a.name: values[a.name].shape for a in op.given(values)})
        for name in spec.symbols:
            if sizes[name] > LARGEST:
                raise ValueError(f"{op.name}: {name} is {sizes[name]}; the Fortran backend takes at most {LARGEST}")
        operands = {n: kind.find(n, values) for n in arrays_of_graphs}  # type: ignore[union-attr]
        operands = {n: a for n, a in operands.items() if a is not None} | {
            a.name: values[a.name] for a in op.given(values)
        }
        attributes = tuple((a.name, values[a.name]) for a in op.attributes)
        wanted = tuple(f.name for f in op.returned(values, sizes))
        fields = call(Form(spec.name, 0, tuple(sizes.items()), attributes), operands, wanted)
        return fields[wanted[0]] if result is None else result(*(fields.get(f.name) for f in op.fields))

    publish(function, "trigraph.jax", spec.name, op.signature, jax_docstring(op))
    return function


FUNCTIONS = {spec.name: _function(spec) for spec in DEFINITIONS}
