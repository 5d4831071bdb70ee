"""An array of each kind gets a wrong shape, dtype, type or device, and the exact exception is expected."""

import contextlib
import dataclasses
import pickle
import re
import types

import numpy as np
import pytest
from scipy import sparse
from table_calls import CPU_PANELS, OPS, call, draw, graphs_of, raises
from table_errors import (
    ARRAYS,
    EACH_GRAPH,
    LOOKED_AT,
    OVERLOOKED,
    bound_by,
    listed,
    refused,
    sizes_of,
    with_numbers,
    without_whole,
)

from trigraph.checks import shape_of
from trigraph.panels import FUNCTIONS, PANELS
from trigraph.table import SYMBOLS, names_in


def test_kinds_tell_all_that_is_known_of_an_array():
    """The checks know no operator by name: they read the table, and here is what they read there of an array."""
    attributes = {f.name for f in dataclasses.fields(OPS[0].arguments[0])} - {"shape"}
    assert attributes == {*LOOKED_AT, *OVERLOOKED}


def blamed(op, array, symbol):
    """Array that does not fit any more when `array` has redefined a symbol: the next one that uses it."""
    later = op.binding_order[[a.name for a in op.binding_order].index(array.name) + 1 :]
    return next((a for a in later if any(symbol in names_in(d) for d in a.dims)), None)


# Shapes


@pytest.mark.parametrize(("op", "array"), ARRAYS)
@pytest.mark.parametrize("change", [1, -1])
def test_wrong_size_on_each_axis(op, array, change):
    good = draw(op)
    for axis in range(len(array.dims)):
        shape = list(good[array.name].shape)
        shape[axis] += change
        values = good | {array.name: np.ones(shape)}
        symbol = bound_by(op, array, axis)
        if symbol is None:
            free = {bound_by(op, array, later) for later in range(axis + 1, len(array.dims))}
            expected = with_numbers(array, sizes_of(op, good), free)
            text = f"{op.name}: {array.name} has shape {tuple(shape)}; expected {expected}"
        elif array.dims[axis] != symbol:
            text = without_whole(op, array, tuple(shape), axis, sizes_of(op, good))
        elif (other := blamed(op, array, symbol)) is not None:
            text = re.compile(rf"{op.name}: {other.name} has shape .*; expected {re.escape(listed(other.dims))}.*")
        else:
            call(op, values)  # a size that nothing else shares
            continue
        raises(ValueError, text, FUNCTIONS[op.name], **values)


@pytest.mark.parametrize(("op", "array"), ARRAYS)
def test_sizes_beyond_their_limits(op, array):
    good = draw(op)
    for axis in range(len(array.dims)):
        symbol = bound_by(op, array, axis)
        limits = SYMBOLS.get(symbol)
        beyond = [limits.minimum - 1] if limits and limits.minimum else []
        beyond += [limits.maximum + 1] if limits and limits.maximum else []
        for size in beyond:
            sizes = sizes_of(op, good) | {symbol: size}
            bad = np.ones(shape_of(array, sizes))
            text = without_whole(op, array, bad.shape, axis, sizes)
            raises(ValueError, text, FUNCTIONS[op.name], **(good | {array.name: bad}))


@pytest.mark.parametrize(("op", "array"), ARRAYS)
def test_wrong_rank(op, array):
    good = draw(op)
    value = good[array.name]
    column = () if array.column else (value[..., None],)
    for bad in (value[None], *column, value[0], np.float64(1).reshape(())):
        start = f"{op.name}: {array.name} has shape {bad.shape} of rank {bad.ndim}; expected "
        end = f" of rank {len(array.dims)}"
        if array.name in [a.name for a in op.definition.inputs]:  # it would have fixed some of the numbers
            text = re.compile(re.escape(start + listed(array.dims)) + r"( = \(.*\))?" + re.escape(end))
        else:
            text = start + with_numbers(array, sizes_of(op, good)) + end
        raises(ValueError, text, FUNCTIONS[op.name], **(good | {array.name: np.asarray(bad)}))


@pytest.mark.parametrize("op", EACH_GRAPH)
def test_graph_of_other_sizes(op):
    good = draw(op)
    plain = {dim for a in op.arguments for dim in a.dims}
    for symbol in op.graph.sizes:
        graphs = graphs_of(op, draw(op, **{symbol: 2 * op.graph.find(symbol, good) + 2}))
        assert op.graph.find(symbol, graphs) > op.graph.find(symbol, good)
        if symbol in plain:
            first = next(a for a in op.binding_order if symbol in a.dims)
            start = f"{op.name}: {first.name} has shape {good[first.name].shape}; expected ("
            text = re.compile(re.escape(start) + rf".*\) = \(.*\b{op.graph.find(symbol, graphs)}\b.*\)")
            raises(ValueError, text, FUNCTIONS[op.name], **(good | graphs))
        else:
            call(op, good | graphs | {a.name: None for a in op.arguments if a.given_back})


# Kinds and dtypes

DTYPES = [np.int32, np.int64, np.bool_, np.float16, np.longdouble, np.complex128, object, ">f8", ">f4", "S8"]


@pytest.mark.parametrize(("op", "array"), ARRAYS)
def test_wrong_dtype(op, array):
    good = draw(op)
    for dtype in DTYPES:
        bad = np.ones(good[array.name].shape, dtype)
        text = f"{op.name}: {array.name} has dtype {bad.dtype.str}; expected native float32 or float64"
        raises(TypeError, text, FUNCTIONS[op.name], **(good | {array.name: bad}))


@pytest.mark.parametrize(("op", "array"), ARRAYS)
@pytest.mark.parametrize(("own", "rest"), [("float32", "float64"), ("float64", "float32")])
def test_dtypes_that_differ(op, array, own, rest):
    values = draw(op, rest)
    values[array.name] = values[array.name].astype(own)
    first, *later = op.binding_order
    if array.name != first.name:
        text = f"{op.name}: {array.name} has dtype {own}; expected {rest}, the dtype of {first.name}"
    elif later:
        text = f"{op.name}: {later[0].name} has dtype {rest}; expected {own}, the dtype of {first.name}"
    else:
        call(op, values)
        return
    raises(TypeError, text, FUNCTIONS[op.name], **values)


@pytest.mark.parametrize(("op", "array"), ARRAYS)
def test_no_array_at_all(op, array):
    good = draw(op)
    value, first = good[array.name], op.binding_order[0].name
    bad = [value.tolist(), memoryview(value), np.ma.masked_array(value), "text", 1, 1.0, np.float64(1), object(), type]
    if value.ndim == 2:
        bad += [value.view(np.matrix), sparse.csr_array(value)]
    if not array.nullable:
        bad.append(None)
    for panel, (_, kind) in PANELS.items():
        for thing in bad:
            text = f"{op.name}: {array.name} is a {type(thing).__name__}; "
            text += f"expected a {kind}.ndarray of float32 or float64"
            if kind != "numpy" and array.name != first:  # NumPy arrays come first, and are wrong there
                text = f"{op.name}: {first} is a numpy.ndarray; panel {panel!r} takes {kind}.ndarray"
            raises(TypeError, text, FUNCTIONS[op.name], **(good | {array.name: thing}), panel=panel)


class Elsewhere:
    """What the checks know of a CuPy array: a shape, a dtype, a layout and a device."""

    def __init__(self, array, device=0):
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim
        self.device = contextlib.nullcontext()
        self.device.id = device
        self.flags, self.data = array.flags, types.SimpleNamespace(device_id=device)


Elsewhere.__name__, Elsewhere.__module__ = "ndarray", "cupy"


@pytest.mark.parametrize(("op", "array"), ARRAYS)
def test_arrays_of_the_wrong_device(op, array):
    good = draw(op)
    for panel in CPU_PANELS:
        text = f"{op.name}: {array.name} is a cupy.ndarray; panel {panel!r} takes numpy.ndarray"
        raises(TypeError, text, FUNCTIONS[op.name], **(good | {array.name: Elsewhere(good[array.name])}), panel=panel)
    device = {name: Elsewhere(v) if isinstance(v, np.ndarray) else v for name, v in good.items()}
    text = f"{op.name}: {array.name} is a numpy.ndarray; panel 'gpu' takes cupy.ndarray"
    first, *later = op.binding_order
    if len(op.arguments) > 1:  # one device array is enough for gpu to be the default
        raises(TypeError, text, FUNCTIONS[op.name], **(device | {array.name: good[array.name]}))
        name, here, there = (array.name, 1, 0) if array.name != first.name else (later[0].name, 0, 1)
        text = f"{op.name}: {name} is on cuda:{here}; expected cuda:{there}, where {first.name} is"
        moved = device | {array.name: Elsewhere(good[array.name], 1)}
        raises(ValueError, text, FUNCTIONS[op.name], **moved)
    refused(op, good, TypeError, f"{first.name} is a numpy.ndarray; panel 'gpu' takes cupy.ndarray", panel="gpu")


@pytest.mark.parametrize("op", EACH_GRAPH)
def test_graph_of_the_wrong_device(op):
    good = draw(op)
    device = {name: Elsewhere(v) if isinstance(v, np.ndarray) else v for name, v in good.items()}
    name = op.graph.arguments[0].name
    refused(op, device, TypeError, f"{name} holds numpy.ndarray; panel 'gpu' takes cupy.ndarray")
    moved = pickle.loads(pickle.dumps(good[name]))
    for attribute, value in (("kind", "cupy"), ("device", "cuda:1")):
        object.__setattr__(moved, attribute, value)
    refused(op, device | {name: moved}, ValueError, f"{name} is on cuda:1; expected cuda:0, where the arrays are")
    FUNCTIONS[op.name](**good)  # a call that passed, with a graph that differs in nothing else
    refused(op, good | {name: moved}, TypeError, f"{name} holds cupy.ndarray; panel 'fortran' takes numpy.ndarray")
