"""Argument checks, all derived from the operator table; done once, at the front door.

Order: kinds of arrays, dtypes, attributes, graph, shapes, `wrt`, `out`. Every message names operator and argument,
what was expected and what came. Nothing has been computed when one is raised.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from trigraph.edge_graph import EdgeGraph
from trigraph.graphs import CSC, LARGEST_INT, advice, array_kind, count, device_of, namespace_of, shown
from trigraph.neighbors import FLOATS
from trigraph.operators import SYMBOLS, Array, Attribute, GraphArgument, Operator, evaluate, names_in
from trigraph.segments import Segments

__all__ = [
    "Checked",
    "bind_arguments",
    "bind_sizes",
    "check_call",
    "check_out",
    "checked_attribute",
    "checked_wrt",
    "choice_number",
    "graph_expected",
    "index_dtype",
    "shape_of",
    "squeeze_columns",
]

HALF = ("float16", "bfloat16")
HALF_PANELS = ("gpu", "gpu-host")
GRAPH_TYPES: dict[str, type[CSC | EdgeGraph | Segments]] = {"CSC": CSC, "EdgeGraph": EdgeGraph, "Segments": Segments}
GRAPH_CLASSES = frozenset(GRAPH_TYPES.values())
PLAIN_TYPES = frozenset((int, float, bool, str, type(None)))

# Sizes, wanted fields and what a panel keeps (`Checked.kept`) for calls that have passed every check, by `_key`: checks
# take longer than all else in a small call, and layers of a model mostly give an operator arrays of the same shapes.
_passed: dict[tuple[Any, ...] | None, tuple[dict[str, int], tuple[str, ...], dict[Any, Any]]] = {}
MOST_PASSED = 256


class Checked(NamedTuple):
    """A call that has passed every check: contiguous arrays, sizes of every symbol, fields asked for, outputs given.

    `columns` are the fields that come back with a trailing axis of one, since their input came so. In `kept` a panel
    may keep what follows from shapes, dtypes and attributes alone: a later call that has the same gets it again.
    """

    values: dict[str, Any]
    sizes: dict[str, int]
    wanted: tuple[str, ...]
    out: dict[str, Any]
    columns: frozenset[str]
    kept: dict[Any, Any]


def shape_of(array: Array, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Shape of an array of the table for given sizes."""
    return tuple([evaluate(dim, sizes) for dim in array.dims])


def choice_number(choices: tuple[Any, ...], value: Any) -> int:
    """Place of a value among the choices of an attribute; -1 if it is none. True is not 1."""
    if isinstance(value, str):
        return choices.index(value) if value in choices else -1
    for place, choice in enumerate(choices):
        if value is choice:
            return place
    scalar = _scalar(value)
    plain = bool(scalar) if isinstance(scalar, np.bool_) else scalar
    return -1 if plain is value else choice_number(choices, plain)


def _scalar(value: Any) -> Any:
    """Return what an array of no dimension holds, anything else as it is."""
    return value[()] if array_kind(value) == "numpy" and value.ndim == 0 else value


def bind_arguments(
    op: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any], signature: inspect.Signature
) -> dict[str, Any]:
    """Return all arguments by name; what was left out is None, or the default of an attribute.

    Raises
    ------
    TypeError
        If an argument is missing, given twice or unknown; the message shows `signature`, that of the function called.
    """
    names = op.names
    values = {**op.defaults, **dict(zip(names, args, strict=False)), **kwargs}
    twice = any(n in kwargs for n in names[: len(args)]) if kwargs else False
    if len(args) <= len(names) and not twice and values.keys() == set(names):
        return values
    try:
        for name in (n for n in kwargs if n not in names):
            import difflib

            near = difflib.get_close_matches(name, [*names, "out", "panel"], 1)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            raise TypeError(f"got an unexpected keyword argument {name!r}{meant}")
        absent = [n for n in op.defaults if n not in kwargs and n not in names[: len(args)]]
        op.signature.bind(*args, **kwargs, **{n: op.defaults[n] for n in absent})
    except TypeError as error:
        raise TypeError(f"{op.name}: {error}; expected {op.name}{signature}") from None
    raise AssertionError(f"{op.name}: arguments were refused that fit {signature}")


def _expected(array: Array, sizes: Mapping[str, int]) -> str:
    """Return ``(num_edges, f_out*f_in) = (8, 12)``, a symbol that has no size yet standing for itself."""
    symbolic = ", ".join(array.dims) + ("," if len(array.dims) == 1 else "")
    numbers = [str(evaluate(d, sizes)) if names_in(d) <= sizes.keys() else d for d in array.dims]
    filled = ", ".join(numbers) + ("," if len(numbers) == 1 else "")
    return f"({symbolic})" if filled == symbolic else f"({symbolic}) = ({filled})"


def _solve(dim: str, symbol: str, sizes: Mapping[str, int], size: int) -> int | None:
    """Return the whole `symbol` >= its minimum for which `dim`, linear in it, equals `size`; None if there is none."""
    if dim == symbol:
        at_zero, slope = 0, 1
    else:
        at_zero = evaluate(dim, {**sizes, symbol: 0})
        slope = evaluate(dim, {**sizes, symbol: 1}) - at_zero
    value, rest = (size - at_zero) // slope, (size - at_zero) % slope
    limits = SYMBOLS[symbol]
    fits = rest == 0 and value >= limits.minimum and (limits.maximum is None or value <= limits.maximum)
    return value if fits else None


def _limits(symbol: str) -> str:
    limits = SYMBOLS[symbol]
    return f">= {limits.minimum}" + ("" if limits.maximum is None else f" and <= {limits.maximum}")


def bind_sizes(
    op: Operator,
    values: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    of_graph: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Size of every symbol, from the graph (whose sizes may be given instead), the attributes and the arrays' shapes.

    Inputs bind before gradients and cotangents, so that a gradient of the wrong shape is the one reported.

    Raises
    ------
    ValueError
        If a shape does not fit.
    """
    sizes = op.graph.find_sizes(values) if op.graph and of_graph is None else dict(of_graph or {})
    for name in op.definition.optional:
        sizes[f"has_{name}"] = int(values[name] is not None)
    for a in op.attributes:
        if a.choices:
            sizes[a.name] = choice_number(a.choices, values[a.name])
        elif a.size:
            sizes[a.name] = int(values[a.name])
    lengths: dict[str, int] = {}  # of expressions that occurred
    for array, dims in op.axes:
        shape = shapes.get(array.name)
        if shape is None:
            continue
        if len(shape) != len(dims):
            raise ValueError(
                f"{op.name}: {array.name} has shape {shape} of rank {len(shape)}; "
                f"expected {_expected(array, sizes)} of rank {len(dims)}"
            )
        for (dim, names), size in zip(dims, shape, strict=True):
            expected = sizes.get(dim)  # most are one symbol
            if expected is None:
                expected = lengths.get(dim)
            if expected is None and names <= sizes.keys():
                expected = lengths[dim] = evaluate(dim, sizes)
            if expected is None:
                unknown = sorted(names - sizes.keys())
                solved = _solve(dim, unknown[0], sizes, size)
                if solved is None:
                    known = ", ".join(f"{n} = {sizes[n]}" for n in sorted(names_in(dim) & sizes.keys()))
                    raise ValueError(
                        f"{op.name}: {array.name} has shape {shape}; expected {_expected(array, sizes)} with a whole "
                        f"{unknown[0]} {_limits(unknown[0])}" + (f" for {known}" if known else "")
                    )
                sizes[unknown[0]] = solved
                lengths[dim] = size
            elif expected != size:
                raise ValueError(f"{op.name}: {array.name} has shape {shape}; expected {_expected(array, sizes)}")
    return sizes


def _refuse_kind(op: Operator, name: str, value: Any, kind: str, panel: str) -> None:
    found = array_kind(value)
    if found is None:
        raise TypeError(
            f"{op.name}: {name} is a {type(value).__name__}; expected a {kind}.ndarray of float32 or float64"
            f"{advice(name, value)}"
        )
    raise TypeError(f"{op.name}: {name} is a {found}.ndarray; panel {panel!r} takes {kind}.ndarray")


def is_half(dtype: np.dtype) -> bool:
    """Whether a dtype is float16, or ml_dtypes' bfloat16."""
    return dtype.name in HALF and dtype.isnative


def _dtype_of(array: Array, first: Any) -> np.dtype:
    """Dtype that goes with the first input: the same, but float32 where that is half and the array cannot be."""
    return first.dtype if array.half or not is_half(first.dtype) else np.dtype(np.float32)


def _check_arrays(op: Operator, values: Mapping[str, Any], kind: str, panel: str) -> None:
    """Kinds, dtypes and devices of the floating arrays."""
    first: str | None = None
    takes_half = panel in HALF_PANELS
    for array in op.binding_order:
        value = values[array.name]
        if value is None and array.nullable:
            continue
        if array_kind(value) != kind:
            _refuse_kind(op, array.name, value, kind, panel)
        if array.index:
            continue
        half = takes_half and array.half
        if value.dtype not in FLOATS and not (half and is_half(value.dtype)):  # the other byte order is in neither
            more = ", float16 or bfloat16" if half else ""
            came = value.dtype.name if value.dtype.kind == "V" else value.dtype.str  # bfloat16, or with a byte order
            raise TypeError(f"{op.name}: {array.name} has dtype {came}; expected native float32 or float64{more}")
        if first is None:
            first = array.name
        elif value.dtype is not values[first].dtype and value.dtype != (expected := _dtype_of(array, values[first])):
            same = expected == values[first].dtype
            reason = f"the dtype of {first}" if same else f"since {first} has {values[first].dtype}"
            raise TypeError(f"{op.name}: {array.name} has dtype {value.dtype}; expected {expected}, {reason}")
        elif kind != "numpy" and device_of(value) != device_of(values[first]):
            here, there = device_of(value), device_of(values[first])
            raise ValueError(f"{op.name}: {array.name} is on {here}; expected {there}, where {first} is")


def checked_attribute(op: Operator, attribute: Attribute, value: Any, dtype: np.dtype) -> Any:
    """Return the value of an attribute as one of its choices, a float or an int; `dtype` is that of the inputs.

    Raises
    ------
    TypeError, ValueError
        If it is none of these, or out of range.
    """
    name = attribute.name
    if attribute.choices:
        place = choice_number(attribute.choices, value)
        if place < 0:
            expected = ", ".join(map(repr, attribute.choices))
            error = ValueError if isinstance(value, str) else TypeError
            raise error(f"{op.name}: {name} is {shown(value)}; expected one of {expected}")
        return attribute.choices[place]
    if attribute.real:
        return _number(op, name, value, dtype)
    symbol = SYMBOLS[name]
    maximum = LARGEST_INT if symbol.maximum is None else symbol.maximum
    return count(op.name, name, value, symbol.minimum, maximum)


def _number(op: Operator, name: str, value: Any, dtype: np.dtype) -> float:
    """Return an attribute that is a number as a float, which panels turn into the dtype they compute in."""
    scalar = _scalar(value)
    if isinstance(scalar, (bool, np.bool_)) or not isinstance(scalar, (int, float, np.integer, np.floating)):
        raise TypeError(f"{op.name}: {name} is a {type(value).__name__}; expected a float")
    try:
        number = float(scalar)
    except OverflowError:  # an integer beyond any float
        number = math.inf if scalar > 0 else -math.inf
    if not 0 <= number < math.inf:
        raise ValueError(f"{op.name}: {name} is {number}; expected a finite number >= 0")
    if number > 1e38 and number > (largest := float(np.finfo(np.float32 if is_half(dtype) else dtype).max)):
        raise ValueError(f"{op.name}: {name} is {number}; expected at most {largest}, the largest of {dtype}")
    return number


def graph_expected(op: Operator, argument: GraphArgument) -> str:
    """Return what a graph argument may be, for messages."""
    assert op.graph is not None
    others = ", an array of indices" * bool(argument.rows) + " or None" * argument.optional
    return f"a trigraph.{op.graph.type_name}{others}"


def _check_graph(op: Operator, values: Mapping[str, Any], kind: str, panel: str) -> None:
    if op.graph is None:
        return
    first = values[op.definition.inputs[0].name]
    for argument in op.graph.arguments:
        name, graph = argument.name, values[argument.name]
        if graph is None and argument.optional:
            continue
        if not isinstance(graph, GRAPH_TYPES[op.graph.type_name]):
            more = advice(name, graph) if argument.rows else ""
            raise TypeError(
                f"{op.name}: {name} is a {type(graph).__name__}; expected {graph_expected(op, argument)}{more}"
            )
        if graph.kind != kind:
            held = "torch.Tensor" if graph.kind == "torch" else f"{graph.kind}.ndarray"
            raise TypeError(f"{op.name}: {name} holds {held}; panel {panel!r} takes {kind}.ndarray")
        if kind != "numpy" and graph.device != device_of(first):
            there = device_of(first)
            raise ValueError(f"{op.name}: {name} is on {graph.device}; expected {there}, where the arrays are")
    if len(op.graph.arguments) > 1:  # a graph fits itself
        _check_members(op, values)
    for attribute in op.attributes:
        for choice, method in attribute.requires:
            if values[attribute.name] == choice:
                getattr(values["graph"], method)(op.name)


def _wrap_indices(op: Operator, values: dict[str, Any]) -> None:
    """Make the graph object of an index array, where one is accepted: sorted at each call, if the caller does not.

    On a device the host has to wait for that, at every call; a warning says so.
    """
    for argument in op.graph.arguments if op.graph else ():
        value = values[argument.name]
        if argument.rows and array_kind(value) is not None:
            rows = values[argument.rows].shape
            try:
                values[argument.name] = Segments(value, rows[0] if rows else 0)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{op.name}: {argument.name}: {error}") from None
            if values[argument.name].kind == "cupy":
                warnings.warn(
                    f"{op.name}: {argument.name} is an index array on a device: it is sorted and checked at every "
                    f"call, and the host waits for it; give trigraph.Segments({argument.name}, len({argument.rows}))",
                    RuntimeWarning,
                    stacklevel=5,  # the line that called the public function
                )


def _check_members(op: Operator, values: Mapping[str, Any]) -> None:
    """Check that several graph objects fit each other."""
    assert op.graph is not None
    sizes = op.graph.find_sizes(values)
    arrays = {n: (op.graph.find(n, values), length) for n, length in op.graph.forward}
    first, dtype = op.graph.arguments[0].name, index_dtype(op, values)
    for name, (array, length) in arrays.items():
        if array is None:
            continue
        argument = op.graph.paths.get(name, ("graph.",))[0].split(".")[0]
        if array.dtype != dtype:
            raise TypeError(f"{op.name}: {argument} has dtype {array.dtype}; expected {dtype}, the dtype of {first}")
        if array.size != evaluate(length, sizes):
            expected = f"{length} = {evaluate(length, sizes)}"
            raise ValueError(f"{op.name}: {argument} has {array.size} members; expected {expected}")


def index_dtype(op: Operator, values: Mapping[str, Any]) -> np.dtype:
    """Dtype of the graph's arrays, and of what an operator returns as indices."""
    assert op.graph is not None
    dtype: np.dtype = op.graph.find(op.graph.forward[0][0], values).dtype
    return dtype


def _check_indices(op: Operator, values: Mapping[str, Any]) -> None:
    """Integers given back have the graph's dtype."""
    for a in op.index_arguments:
        array, dtype = values[a.name], index_dtype(op, values)
        if array is not None and array.dtype != dtype:
            raise TypeError(f"{op.name}: {a.name} has dtype {array.dtype}; expected {dtype}, the dtype of the graph")


def _check_positions(op: Operator, values: Mapping[str, Any]) -> None:
    """Check on the host that positions given back are those of in-edges of their destinations.

    On a device that would be a synchronisation; there, as in every panel, what is no in-edge counts for nothing.
    """
    for a in (a for a in op.index_arguments if isinstance(values[a.name], np.ndarray)):
        assert op.graph is not None
        array, offsets = values[a.name], op.graph.find("offsets", values)
        start, stop = offsets[:-1, None], offsets[1:, None]
        wrong = np.where(start < stop, (array < start) | (array >= stop), array != -1)
        if wrong.any():
            i, j = np.argwhere(wrong)[0]
            first, last = int(offsets[i]), int(offsets[i + 1]) - 1
            expected = f"an in-edge of destination {i}, {first} .. {last}" if first <= last else "-1, without in-edges"
            raise ValueError(f"{op.name}: {a.name}[{i}, {j}] is {array[i, j]}; expected {expected}")


def _check_positive(op: Operator, values: Mapping[str, Any]) -> None:
    """Numbers that must be positive, on the host; NaN passes, and travels to what depends on it."""
    for a in (a for a in op.positive_arguments if isinstance(values[a.name], np.ndarray)):
        wrong = values[a.name] <= 0
        if wrong.any():
            row = int(wrong.argmax())
            raise ValueError(f"{op.name}: {a.name}[{row}] is {values[a.name].flat[row]}; expected a number > 0")


def _check_absent(op: Operator, values: Mapping[str, Any]) -> None:
    """Raise where an input is None, but not its cotangent."""
    for a in op.definition.inputs:
        if a.optional and values[a.name] is None and values.get(gg := f"gg_{a.name}") is not None:
            raise ValueError(f"{op.name}: {gg} is given, but {a.name} is None; expected None")


def checked_wrt(op: Operator, wrt: Any) -> tuple[str, ...]:
    """Return the fields that `wrt` names, in the operator's order; raise TypeError or ValueError if it names others."""
    names = tuple(f.name for f in op.fields)
    wrt = _scalar(wrt)
    try:
        asked = (wrt,) if isinstance(wrt, str) else tuple(wrt)
    except TypeError:
        expected = "expected a string or an iterable of strings"
        raise TypeError(f"{op.name}: wrt is a {type(wrt).__name__}; {expected}") from None
    for name in asked:
        if not isinstance(name, str):
            raise TypeError(f"{op.name}: wrt names a {type(name).__name__}; expected strings among {', '.join(names)}")
        if name not in names:
            raise ValueError(f"{op.name}: wrt names {name!r}; expected one of {', '.join(names)}")
    return tuple(n for n in names if n in asked)


def squeeze_columns(op: Operator, values: dict[str, Any]) -> frozenset[str]:
    """Drop the trailing axis of one that column arrays may have; return the names of those that had it."""
    found = []
    for a in op.arguments:
        value = values[a.name]
        if a.column and value is not None and value.ndim == len(a.dims) + 1 and value.shape[-1] == 1:
            values[a.name] = value[..., 0]
            found.append(a.name)
    return frozenset(found)


def check_out(
    op: Operator,
    out: Any,
    values: Mapping[str, Any],
    sizes: Mapping[str, int],
    wanted: tuple[str, ...],
    columns: frozenset[str],
    kind: str,
    panel: str,
) -> dict[str, Any]:
    """Check the outputs given by the caller: kind, dtype, shape, writable, clear of every input and of each other.

    Returns
    -------
    dict
        From field to array.
    """
    if out is None:
        return {}
    if not isinstance(out, Mapping):
        if len(wanted) != 1:
            expected = f"a mapping from field to array for {', '.join(wanted)}"
            raise TypeError(f"{op.name}: out is a {type(out).__name__}; expected {expected}")
        out = {wanted[0]: out}
    fields = {f.name: f for f in op.fields}
    first = values[op.definition.inputs[0].name]
    held = {a.name: values[a.name] for a in op.arguments if values[a.name] is not None}
    if op.graph is not None:
        arrays = {n: op.graph.find(n, values) for n, _ in op.graph.forward}
        held |= {f"graph.{n}": a for n, a in arrays.items() if a is not None}
    for name, array in out.items():
        label = f"out[{name!r}]"
        if name not in wanted:
            raise ValueError(f"{op.name}: {label} is not computed; expected one of {', '.join(wanted) or 'none'}")
        if array_kind(array) != kind:
            _refuse_kind(op, label, array, kind, panel)
        dtype = index_dtype(op, values) if fields[name].index else _dtype_of(fields[name], first)
        if array.dtype != dtype:
            raise TypeError(f"{op.name}: {label} has dtype {array.dtype}; expected {dtype}")
        if array.shape != shape_of(fields[name], sizes) + ((1,) if name in columns else ()):
            raise ValueError(f"{op.name}: {label} has shape {array.shape}; expected {_expected(fields[name], sizes)}")
        if not array.flags.c_contiguous:
            raise ValueError(f"{op.name}: {label} has strides {array.strides}; expected a C-contiguous array")
        if kind == "numpy" and not array.flags.writeable:
            raise ValueError(f"{op.name}: {label} is read-only; expected a writable array")
        if kind == "numpy" and not array.flags.aligned:
            raise ValueError(f"{op.name}: {label} is not aligned; expected memory aligned for {array.dtype}")
        if device_of(array) != device_of(first):
            raise ValueError(f"{op.name}: {label} is on {device_of(array)}; expected {device_of(first)}")
        for other, value in held.items():
            if _overlap(array, value):
                raise ValueError(f"{op.name}: {label} overlaps {other}; expected memory of its own")
        held[label] = array
    return dict(out)


def _overlap(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return bool(np.shares_memory(a, b))
    import cupy

    return bool(cupy.may_share_memory(a, b))


def _contiguous(value: Any) -> Any:
    if type(value) is np.ndarray and value.flags.c_contiguous and value.flags.aligned:
        return value
    if isinstance(value, np.ndarray):
        return np.require(value, requirements=("C", "A", "E"))  # E: a subclass would bring its own arithmetic
    return value if value.flags.c_contiguous else namespace_of(value).ascontiguousarray(value)


def _key(op: Operator, values: Mapping[str, Any], wrt: Any, panel: str) -> tuple[Any, ...] | None:
    """Return all that checks of a call without `out` look at, but for what arrays hold; None where that is not plain.

    It is plain where arrays are NumPy's, contiguous and of numbers, and all else is a number, a string or a graph.
    """
    asked = tuple(wrt) if type(wrt) is list else wrt
    if asked is not None and not all(type(name) is str for name in (asked if type(asked) is tuple else (asked,))):
        return None
    found: list[Any] = [op.name, panel, asked]
    for name in op.parameters:
        value = values[name]
        kind = type(value)
        if kind is np.ndarray:
            flags = value.flags
            if not (flags.c_contiguous and flags.aligned and value.dtype.kind in "fiu"):
                return None
            found.append((value.shape, value.dtype))
        elif kind in PLAIN_TYPES:
            found.append((kind, value))
        elif kind in GRAPH_CLASSES:
            found.append(value._key)
        else:
            return None
    return tuple(found)


def check_call(op: Operator, values: dict[str, Any], wrt: Any, out: Any, kind: str, panel: str) -> Checked:
    """Check one call.

    Parameters
    ----------
    op : Operator
    values : dict
        Arrays, graph and attributes by parameter name.
    wrt, out
        As the caller gave them.
    kind : {"numpy", "cupy"}
        Kind of arrays the panel takes.
    panel : str
        For the messages.

    Returns
    -------
    Checked

    Raises
    ------
    TypeError, ValueError
    """
    key = _key(op, values, wrt, panel) if out is None else None
    passed = _passed.get(key)
    if passed is not None:
        _check_positions(op, values)
        _check_positive(op, values)
        return Checked(values, *passed[:2], {}, frozenset(), passed[2])
    given = dict(values)
    _check_arrays(op, values, kind, panel)
    _wrap_indices(op, values)
    for attribute in op.attributes:
        dtype = values[op.definition.inputs[0].name].dtype
        values[attribute.name] = checked_attribute(op, attribute, values[attribute.name], dtype)
    _check_graph(op, values, kind, panel)
    _check_absent(op, values)
    _check_indices(op, values)
    columns = squeeze_columns(op, values)
    sizes = bind_sizes(op, values, {a.name: values[a.name].shape for a in op.arguments if values[a.name] is not None})
    _check_positions(op, values)
    _check_positive(op, values)
    returned = [f.name for f in op.returned(values, sizes)]
    wanted = tuple(returned) if wrt is None else tuple(n for n in checked_wrt(op, wrt) if n in returned)
    outputs = check_out(op, out, values, sizes, wanted, columns, kind, panel)
    for a in op.arguments:
        if values[a.name] is not None:
            values[a.name] = _contiguous(values[a.name])
    kept: dict[Any, Any] = {}
    if key is not None and all(values[name] is value for name, value in given.items()):  # nothing was converted
        if len(_passed) >= MOST_PASSED:
            _passed.clear()
        _passed[key] = sizes, wanted, kept
    return Checked(values, sizes, wanted, outputs, columns and columns & {f.name for f in op.fields}, kept)
