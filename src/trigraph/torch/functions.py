"""The public functions: they bind and look at their arguments as the front door does.

They compute at once where torch would add nothing, and call torch's operators otherwise.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from trigraph.checks import bind_arguments, checked_attribute, choice_number, graph_expected
from trigraph.graphs import GRAPH_TYPES, Segments
from trigraph.panels import choose_panel
from trigraph.table import DEFINITIONS, ORDERS, Definition, Operator, evaluate, result_type
from trigraph.table.lazy import lazy
from trigraph.table.public import public_signature, publish, torch_docstring
from trigraph.torch.graphs import COMPILED, GraphTensors, uncompiled, with_own_code
from trigraph.torch.library import OPERATORS_OF_TORCH


def _place(tensor: torch.Tensor) -> str:
    return "host" if tensor.device.type == "cpu" else str(tensor.device)


def _check_tensors(op: Operator, values: Mapping[str, Any]) -> torch.Tensor:
    """Raise unless array arguments are dense tensors on one device that has panels; return the first input."""
    first: torch.Tensor | None = None
    for a in op.binding_order:
        value = values[a.name]
        if value is None and a.nullable:
            continue
        if not isinstance(value, torch.Tensor):
            raise TypeError(
                f"{op.name}: {a.name} is a {type(value).__name__}; expected a torch.Tensor of float32 or float64"
            )
        if value.layout is not torch.strided:
            raise TypeError(f"{op.name}: {a.name} is a tensor of layout {value.layout}; expected torch.strided")
        if first is None:
            first = value
            if value.device.type not in ("cpu", "cuda"):
                raise ValueError(f"{op.name}: {a.name} is on {value.device}; expected a CPU or CUDA device")
        elif value.device != first.device:
            raise ValueError(
                f"{op.name}: {a.name} is on {_place(value)}; expected {_place(first)}, where "
                f"{op.binding_order[0].name} is"
            )
    assert first is not None
    return first


def _check_graphs(op: Operator, values: dict[str, Any], first: torch.Tensor) -> None:
    """Raise unless graph arguments are graph objects where the tensors are; make those of tensors of indices."""
    for argument in op.graph.arguments if op.graph else ():
        name, graph = argument.name, values[argument.name]
        if graph is None and argument.optional:
            continue
        if argument.rows and isinstance(graph, torch.Tensor):
            rows = values[argument.rows].shape
            try:
                values[name] = graph = Segments(graph, rows[0] if rows else 0)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{op.name}: {name}: {error}") from None
        if isinstance(graph, GraphTensors):
            values[name] = graph = graph.graph()
        if not isinstance(graph, GRAPH_TYPES[op.graph.type_name]):  # type: ignore[union-attr]
            raise TypeError(f"{op.name}: {name} is a {type(graph).__name__}; expected {graph_expected(op, argument)}")
        if graph.device != _place(first):
            raise ValueError(f"{op.name}: {name} is on {graph.device}; expected {_place(first)}, where the arrays are")


def _check_attributes(op: Operator, values: dict[str, Any]) -> None:
    """Make attributes of the plain types that torch's operators take; these check their values."""
    for a in op.attributes:
        if type(values[a.name]) not in a.kinds:
            values[a.name] = checked_attribute(op, a, values[a.name], np.dtype(np.float64))


def _existing(op: Operator) -> dict[tuple[Any, ...], tuple[bool, ...]] | None:
    """Return for all choices of the attributes which fields exist; None where all do."""
    if not any(f.when for f in op.fields):
        return None
    attributes = [a for a in op.attributes if a.choices]
    found = {}
    for values in itertools.product(*(a.choices for a in attributes)):
        chosen = {a.name: choice_number(a.choices, v) for a, v in zip(attributes, values, strict=True)}
        found[values] = tuple(bool(not f.when or evaluate(f.when, chosen)) for f in op.fields)
    return found


def _function(spec: Definition) -> Callable[..., Any]:
    op = OPERATORS_OF_TORCH[f"{spec.name}_fwd"]
    table = op.op
    signature = public_signature(table, ("panel",))
    result = None if table.single else result_type(table.name)
    exists = _existing(table)
    # A compiled program guards what it has found computed, and what it has not.
    orders = [OPERATORS_OF_TORCH[f"{spec.name}_{order}"] for order in ORDERS]
    for thing in (*orders, *(o.op for o in orders), spec, table.graph, *table.attributes):
        for name, value in vars(type(thing)).items():
            if isinstance(value, lazy):
                getattr(thing, name)

    def call(*args: Any, panel: str | None = None, **kwargs: Any) -> Any:
        values = bind_arguments(table, args, kwargs, signature)
        if torch.compiler.is_dynamo_compiling() and any(isinstance(values[n], torch.Tensor) for n, _ in op.graphs):
            # NumPy or CuPy make a graph of an index tensor: torch's compiler cannot follow them.
            return outside(*args, panel=panel, **kwargs)
        first = _check_tensors(table, values)
        _check_graphs(table, values, first)
        _check_attributes(table, values)
        if panel is not None:
            choose_panel(table, values, panel)
        arrays = [values.pop(n) for n in op.array_names]
        values["panel"] = panel or ""
        found = op(arrays, values)
        if result is None:
            return found
        if exists is not None:
            there = exists[tuple(values[n] for n in table.choices)]
            found = [t if t_exists else None for t, t_exists in zip(found, there, strict=True)]
        return result(*found)

    publish(call, "trigraph.torch", spec.name, signature, torch_docstring(table))
    outside = uncompiled(call)
    return with_own_code(call) if COMPILED else outside


FUNCTIONS = {spec.name: _function(spec) for spec in DEFINITIONS}
