"""Derive the size of every symbol of a call from its graph, its attributes and the shapes of its arrays."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from trigraph.checks.arguments import choice_number
from trigraph.table.grammar import Array, Operator, evaluate, names_in


def shape_of(array: Array, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Shape of an array of the table for given sizes."""
    return tuple([evaluate(dim, sizes) for dim in array.dims])


def layout(
    op: Operator, field: Array, values: Mapping[str, Any], sizes: Mapping[str, int]
) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of a field: of the argument that it is a derivative in, or as the table says."""
    array = values.get(field.name)
    if array is not None:
        return array.shape, array.dtype
    dtype = index_dtype(op, values) if field.index else values[op.definition.inputs[0].name].dtype
    if dtype.itemsize == 2 and not field.half:
        dtype = np.dtype(np.float32)
    return shape_of(field, sizes), dtype


def expected_shape(array: Array, sizes: Mapping[str, int]) -> str:
    """Return ``(num_edges, f_in*f_out) = (8, 12)``; a symbol without a size yet appears by name."""
    symbolic = ", ".join(array.dims) + ("," if len(array.dims) == 1 else "")
    numbers = [str(evaluate(d, sizes)) if names_in(d) <= sizes.keys() else d for d in array.dims]
    filled = ", ".join(numbers) + ("," if len(numbers) == 1 else "")
    return f"({symbolic})" if filled == symbolic else f"({symbolic}) = ({filled})"


def _solve(op: Operator, dim: str, symbol: str, sizes: Mapping[str, int], size: int) -> int | None:
    """Return the integer `symbol` >= its minimum for which `dim`, linear in it, equals `size`; None if none exists."""
    if dim == symbol:
        at_zero, slope = 0, 1
    else:
        at_zero = evaluate(dim, {**sizes, symbol: 0})
        slope = evaluate(dim, {**sizes, symbol: 1}) - at_zero
    value, rest = (size - at_zero) // slope, (size - at_zero) % slope
    limits = op.definition.symbol(symbol)
    fits = rest == 0 and value >= limits.minimum and (limits.maximum is None or value <= limits.maximum)
    return value if fits else None


def _limits(op: Operator, symbol: str) -> str:
    limits = op.definition.symbol(symbol)
    return f">= {limits.minimum}" + ("" if limits.maximum is None else f" and <= {limits.maximum}")


def bind_sizes(op: Operator, values: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Return the size of every symbol, from the graph, the attributes and the arrays' shapes; ValueError on a conflict.

    Inputs bind before gradients and cotangents, so that the message names a gradient of the wrong shape, not an input.
    """
    sizes = op.graph.find_sizes(values) if op.graph else {}
    for name in op.definition.optional:
        sizes[f"has_{name}"] = int(values[name] is not None)
    for a in op.attributes:
        if a.choices:
            sizes[a.name] = choice_number(a.choices, values[a.name])
        elif a.size:
            sizes[a.name] = int(values[a.name])
    lengths: dict[str, int] = {}  # values of expressions
    for array, dims in op.axes:
        shape = shapes.get(array.name)
        if shape is None:
            continue
        if len(shape) != len(dims):
            raise ValueError(
                f"{op.name}: {array.name} has shape {shape} of rank {len(shape)}; "
                f"expected {expected_shape(array, sizes)} of rank {len(dims)}"
            )
        for (dim, names), size in zip(dims, shape, strict=True):
            expected = sizes.get(dim)  # most expressions are one symbol
            if expected is None:
                expected = lengths.get(dim)
            if expected is None and names <= sizes.keys():
                expected = lengths[dim] = evaluate(dim, sizes)
            if expected is None:
                unknown = sorted(names - sizes.keys())
                solved = _solve(op, dim, unknown[0], sizes, size)
                if solved is None:
                    other_sizes = ", ".join(f"{n} = {sizes[n]}" for n in sorted(names_in(dim) & sizes.keys()))
                    raise ValueError(
                        f"{op.name}: {array.name} has shape {shape}; expected {expected_shape(array, sizes)} with a "
                        f"whole {unknown[0]} {_limits(op, unknown[0])}" + (f" for {other_sizes}" if other_sizes else "")
                    )
                sizes[unknown[0]] = solved
                lengths[dim] = size
            elif expected != size:
                raise ValueError(f"{op.name}: {array.name} has shape {shape}; expected {expected_shape(array, sizes)}")
    return sizes


def index_dtype(op: Operator, values: Mapping[str, Any]) -> np.dtype:
    """Dtype of the graph's arrays and of indices that an operator returns."""
    assert op.graph is not None
    return op.graph.find(op.graph.forward[0][0], values).dtype
