"""What the tests of argument checks share: parameters from the operator table, numbers and words of error texts."""

import numpy as np
import pytest
from table_calls import OPS, call, draw

from trigraph.checks import choice_number, shape_of
from trigraph.table import SYMBOLS, names_in

# What the choices of `draw` do not give is not there.
GIVEN = [(op, a) for op in OPS for a in op.given(draw(op))]
ARRAYS = [pytest.param(op, a, id=f"{op.name}-{a.name}") for op, a in GIVEN if not a.index]
INDICES = [pytest.param(op, a, id=f"{op.name}-{a.name}") for op, a in GIVEN if a.index]
ATTRIBUTES = [pytest.param(op, a, id=f"{op.name}-{a.name}") for op in OPS for a in op.attributes if a.size]
NUMBERS = [pytest.param(op, a, id=f"{op.name}-{a.name}") for op in OPS for a in op.attributes if a.real]
CHOICES = [pytest.param(op, a, id=f"{op.name}-{a.name}") for op in OPS for a in op.attributes if a.choices]
WITH_GRAPH = [pytest.param(op, id=op.name) for op in OPS if op.graph]
SELECTIVE = [pytest.param(op, id=op.name) for op in OPS if op.selective]
ALL = [pytest.param(op, id=op.name) for op in OPS]
FIELDS = [
    pytest.param(op, f, id=f"{op.name}-{f.name}") for op in OPS for f in op.fields if f.name in call(op, draw(op))
]


def sizes_of(op, values):
    """Size of every symbol of a good call, read off plain axes and solved for the one symbol that has none."""
    sizes = {a.name: values[a.name] for a in op.attributes if a.size}
    sizes |= {a.name: choice_number(a.choices, values[a.name]) for a in op.attributes if a.choices}
    sizes |= {f"has_{n}": int(values[n] is not None) for n in op.definition.optional}
    sizes |= {s: op.graph.find(s, values) for s in (op.graph.sizes if op.graph else ())}
    for a in op.definition.inputs:
        sizes |= {dim: n for dim, n in zip(a.dims, values[a.name].shape, strict=True) if dim.isidentifier()}
    for symbol in set(op.definition.symbols) - sizes.keys():
        sizes[symbol] = SYMBOLS[symbol].typical[0]
    return sizes


def limits(symbol):
    maximum = SYMBOLS[symbol].maximum
    return f">= {SYMBOLS[symbol].minimum}" + (f" and <= {maximum}" if maximum is not None else "")


def listed(items):
    return f"({', '.join(map(str, items))}{',' if len(items) == 1 else ''})"


def with_numbers(array, sizes, free=()):
    """Return the symbolic shape and its numbers; symbols in `free` have none yet."""
    numbers = [d if names_in(d) & set(free) else n for d, n in zip(array.dims, shape_of(array, sizes), strict=True)]
    return f"{listed(array.dims)} = {listed(numbers)}"


def bound_by(op, array, axis):
    """Symbol that this axis of a good call defines, rather than has to agree with; None if there is none."""
    known = {a.name for a in op.attributes} | set(op.graph.sizes if op.graph else ())
    known |= {f"has_{n}" for n in op.definition.optional}
    for a in op.definition.inputs:
        for k, dim in enumerate(a.dims):
            free = names_in(dim) - known
            if (a.name, k) == (array.name, axis):
                return next(iter(free), None)
            known |= free
    return None


def empty_like(shape, order="C", offset=0, dtype="float64"):
    """Array in the given order; `offset` bytes off an address aligned for its dtype."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(size + 16, np.uint8)
    start = -memory.ctypes.data % 8 + offset
    return memory[start : start + size].view(dtype).reshape(shape, order=order)
