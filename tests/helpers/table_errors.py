"""Helpers for tests of argument checks: one array argument of each kind from the table, and pieces of messages."""

import re

import numpy as np
import pytest
from table_calls import OPS_WITH_BWD3, assert_raises, compute_fields, draw_operator_arguments, select_graph_arguments

from trigraph.backends import FUNCTIONS
from trigraph.checks import evaluate_shape, find_choice_index
from trigraph.table import SYMBOLS, find_symbol_names

PRESENT_ARGUMENTS = [
    (op, a) for op in OPS_WITH_BWD3 for a in op.select_present_arguments(draw_operator_arguments(op))
]  # only arguments that occur in the random calls


def find_symbol_sizes(op, values):
    """Return the size of every symbol in a valid call, or its typical size if no argument determines it."""
    sizes = {a.name: values[a.name] for a in op.attributes if a.is_size}
    sizes |= {a.name: find_choice_index(a.choices, values[a.name]) for a in op.attributes if a.choices}
    sizes |= {f"has_{n}": int(values[n] is not None) for n in op.definition.optional_names}
    sizes |= {s: op.graph_kind.find_attribute(s, values) for s in (op.graph_kind.sizes if op.graph_kind else ())}
    for a in op.definition.inputs:
        sizes |= {dim: n for dim, n in zip(a.dims, values[a.name].shape, strict=True) if dim.isidentifier()}
    for symbol in set(op.definition.symbols) - sizes.keys():
        sizes[symbol] = SYMBOLS[symbol].typical[0]
    return sizes


def describe_limits(op, symbol):
    maximum = op.definition.get_limited_symbol(symbol).maximum
    return f">= {SYMBOLS[symbol].minimum}" + (f" and <= {maximum}" if maximum is not None else "")


def format_tuple(items):
    return f"({', '.join(map(str, items))}{',' if len(items) == 1 else ''})"


def describe_shape(array, sizes, free=()):
    """Return a shape as in error messages, in symbols and in numbers; axes with symbols in `free` stay symbolic."""
    numbers = [
        d if find_symbol_names(d) & set(free) else n
        for d, n in zip(array.dims, evaluate_shape(array, sizes), strict=True)
    ]
    return f"{format_tuple(array.dims)} = {format_tuple(numbers)}"


def make_indivisible_axis_pattern(op, array, shape, axis, sizes):
    """Return a pattern for the error message about an axis whose length no integer value of its symbol yields."""
    symbol = find_defined_symbol(op, array, axis)
    other_sizes = [f"{s} = {sizes[s]}" for s in sorted(find_symbol_names(array.dims[axis]) - {symbol})]
    start = f"{array.name} has shape {shape}; expected {format_tuple(array.dims)}"
    end = f" with a whole {symbol} {describe_limits(op, symbol)}" + " for " * bool(other_sizes) + ", ".join(other_sizes)
    return re.compile(re.escape(start) + r"( = \(.*\))?" + re.escape(end))


def find_defined_symbol(op, array, axis):
    """Return the symbol whose size this axis defines, or None if earlier axes determine its size."""
    bound = {a.name for a in op.attributes} | set(op.graph_kind.sizes if op.graph_kind else ())
    bound |= {f"has_{n}" for n in op.definition.optional_names}
    for a in op.definition.inputs:
        for k, dim in enumerate(a.dims):
            free = find_symbol_names(dim) - bound
            if (a.name, k) == (array.name, axis):
                return next(iter(free), None)
            bound |= free
    return None


def find_blamed_array(op, array, symbol):
    """Return the array that is named in the error if `array` changes a symbol: the next array that uses the symbol."""
    later = op.size_binding_order[[a.name for a in op.size_binding_order].index(array.name) + 1 :]
    return next((a for a in later if any(symbol in find_symbol_names(d) for d in a.dims)), None)


# Attributes of `Array` that argument checks use, and attributes that they ignore.
CHECKED_ATTRIBUTES = ("nullable", "optional", "given_back", "keyword", "column", "index", "positive")
IGNORED_ATTRIBUTES = ("name", "doc", "degree", "sample", "when", "half")


def describe_array_kind(op, array):
    """Return the properties of an array argument on which its checks depend."""
    axes = set()
    for k, dim in enumerate(array.dims):
        symbol = find_defined_symbol(op, array, k)
        if symbol is None:
            axes.add("known")
        else:
            bounds = (SYMBOLS[symbol].minimum > 0, op.definition.get_limited_symbol(symbol).maximum is not None)
            axes.add(f"{'free' if dim == symbol else 'solved'} {bounds}")
    role = re.match("(gg_|grad_)?", array.name)[0]
    return (*(getattr(array, n) for n in CHECKED_ATTRIBUTES), role, array is op.size_binding_order[0], *sorted(axes))


def pick_one_per_kind(items, kind, name):
    """Return pytest parameters: the first item of each kind."""
    params = {}
    for item in items:
        params.setdefault(kind(*item), pytest.param(*item, id=name(*item)))
    return list(params.values())


def label_parameter(op, array):
    return f"{op.name}-{array.name}"


EACH_KIND = pick_one_per_kind(PRESENT_ARGUMENTS, describe_array_kind, label_parameter)
ARRAYS = [p for p in EACH_KIND if not p.values[1].index]
INDICES = [p for p in EACH_KIND if p.values[1].index]
ATTRIBUTES = [(op, a) for op in OPS_WITH_BWD3 for a in op.attributes]
WIDTHS = pick_one_per_kind(
    [p for p in ATTRIBUTES if p[1].is_size],
    lambda op, a: op.definition.get_limited_symbol(a.name).maximum,
    label_parameter,
)
NUMBERS = pick_one_per_kind([p for p in ATTRIBUTES if p[1].real], lambda op, a: a.name, label_parameter)
CHOICES = pick_one_per_kind([p for p in ATTRIBUTES if p[1].choices], lambda op, a: a.name, label_parameter)
FIELDS = pick_one_per_kind(
    [(op, f) for op in OPS_WITH_BWD3 for f in op.fields if f.name in compute_fields(op, draw_operator_arguments(op))],
    lambda op, f: (op.returns_array, op.accepts_wrt, f.index, f.column, len(f.dims)),
    label_parameter,
)
EACH_OPERATOR = pick_one_per_kind(
    [(op,) for op in OPS_WITH_BWD3],
    lambda op: (op.order, op.returns_array, op.definition.graph, bool(op.definition.given_back)),
    lambda op: op.name,
)
EACH_GRAPH = pick_one_per_kind(
    [(op,) for op in OPS_WITH_BWD3 if op.graph_kind], lambda op: op.definition.graph, lambda op: op.name
)
SELECTIVE = pick_one_per_kind(
    [(op,) for op in OPS_WITH_BWD3 if op.accepts_wrt], lambda op: op.definition.graph, lambda op: op.name
)


def assert_refused(op, values, error, text, **keywords):
    """Assert that a call raises an error whose message is "<operator>: <text>"; `text` may be a pattern."""
    text = re.compile(f"{op.name}: {text.pattern}") if isinstance(text, re.Pattern) else f"{op.name}: {text}"
    assert_raises(error, text, FUNCTIONS[op.name], **values, **keywords)


def allocate_with_offset(shape, order="C", offset=0, dtype="float64"):
    """Return an uninitialised array that begins `offset` bytes after an aligned address."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(size + 16, np.uint8)
    start = -memory.ctypes.data % 8 + offset
    return memory[start : start + size].view(dtype).reshape(shape, order=order)


def list_wrong_values(name, value, op):
    """Return invalid variants of a valid value; most differ from it in one property that is checked."""
    if isinstance(value, np.ndarray):
        variants = [value.astype(d) for d in ("f4", "f8", "f2", ">f8", "i4", "i8")]
        variants += [value[:-1], value[..., :-1], value[None], value[..., None], value[::-1], value.T]
        return [*variants, np.asfortranarray(value), np.ma.array(value), value.tolist(), -value, value + 10**6]
    if name in select_graph_arguments(op, draw_operator_arguments(op)):
        return [
            draw_operator_arguments(op, seed=2)[name],
            draw_operator_arguments(op, index=np.int32)[name],
            draw_operator_arguments(op, num_edges=9, num_triplets=7)[name],
        ]
    if name == "wrt":
        first = op.fields[0].name
        return [first, [first], (first,), [first, None], [], (first, first), "no", (["no"],), tuple(first), {first: 1}]
    return [False, 1, 2, 2.0, 1.0, -0.0, "ELU", "".join(["E", "LU"]), "max", "count", np.asarray(value)]
