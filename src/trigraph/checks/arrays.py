"""Checks of arrays, graphs and sizes, derived from the table. Public functions run these checks once per call.

Attributes are checked first, then array libraries, dtypes, graph, shapes, `wrt` and `out`. Every message names the
operator, the argument, the expected value and the actual value. Errors are raised before any computation.
"""

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from trigraph.arrays import ArrayLibrary, describe_dtype, find_device, get_array_module, suggest_array_conversion
from trigraph.checks.attributes import is_half, list_requested_fields
from trigraph.graphs import GRAPH_TYPES, Segments
from trigraph.graphs.neighbors import FLOATS
from trigraph.table.grammar import Array, Operator, evaluate_expression, evaluate_shape, find_symbol_names

HALF_BACKENDS = ("gpu", "gpu-host")


class CheckedArguments(NamedTuple):
    """Arguments that passed every check: contiguous arrays, sizes by symbol, requested fields, output arrays.

    `columns` names the fields that are returned with a trailing axis of length one, because the input has it.
    """

    values: dict[str, Any]
    sizes: dict[str, int]
    wanted: tuple[str, ...]
    out: dict[str, Any]
    columns: frozenset[str]


def find_field_shape_and_dtype(
    op: Operator, field: Array, values: Mapping[str, Any], sizes: Mapping[str, int]
) -> tuple[tuple[int, ...], np.dtype]:
    """Return a field's shape and dtype, taken from the argument for its gradient and otherwise from the table."""
    array = values.get(field.name)
    if array is not None:
        return array.shape, array.dtype
    dtype = get_index_dtype(op, values) if field.index else values[op.definition.inputs[0].name].dtype
    if dtype.itemsize == 2 and not field.half:
        dtype = np.dtype(np.float32)
    return evaluate_shape(field, sizes), dtype


def describe_shape(array: Array, sizes: Mapping[str, int]) -> str:
    """Return text such as ``(num_edges, f_in*f_out) = (8, 12)``; a symbol of unknown size appears by name."""
    symbolic = ", ".join(array.dims) + ("," if len(array.dims) == 1 else "")
    numbers = [str(evaluate_expression(d, sizes)) if find_symbol_names(d) <= sizes.keys() else d for d in array.dims]
    filled = ", ".join(numbers) + ("," if len(numbers) == 1 else "")
    return f"({symbolic})" if filled == symbolic else f"({symbolic}) = ({filled})"


def _solve_for_symbol(dim: str, symbol: str, sizes: Mapping[str, int], size: int) -> int | None:
    """Return the integer value of `symbol` at which the linear expression `dim` equals `size`, or None."""
    at_zero = evaluate_expression(dim, {**sizes, symbol: 0})
    slope = evaluate_expression(dim, {**sizes, symbol: 1}) - at_zero
    return None if (size - at_zero) % slope else (size - at_zero) // slope


def find_symbol_sizes(op: Operator, values: Mapping[str, Any], lead: int = 0) -> dict[str, int]:
    """Return the size of every symbol, from graph, attributes and array shapes; raise ValueError on a conflict.

    Arrays, except results of fwd, have `lead` more leading axes than in the table. Inputs bind before gradients and
    cotangents, so that an error names a gradient of the wrong shape, not an input.
    """
    sizes = op.graph_kind.find_sizes(values) if op.graph_kind else {}
    for name in op.definition.optional_names:
        sizes[f"has_{name}"] = int(values[name] is not None)
    for a in op.attributes:
        if a.choices:
            sizes[a.name] = a.choices.index(values[a.name])
        elif a.is_size:
            sizes[a.name] = int(values[a.name])
    lengths: dict[str, int] = {}  # sizes by shape expression that has been evaluated
    for array, dims in op.argument_axes:
        value = values.get(array.name)
        if value is None:
            continue
        shape = tuple(value.shape)[0 if array.given_back else lead :]
        if len(shape) != len(dims):
            raise ValueError(
                f"{op.name}: {array.name} has shape {shape} of rank {len(shape)}; "
                f"expected {describe_shape(array, sizes)} of rank {len(dims)}"
            )
        for (dim, names), size in zip(dims, shape, strict=True):
            expected = sizes.get(dim)  # most expressions consist of one symbol
            if expected is None:
                expected = lengths.get(dim)
            if expected is None and names <= sizes.keys():
                expected = lengths[dim] = evaluate_expression(dim, sizes)
            if expected is None:
                unknown = min(names - sizes.keys())
                limits = op.definition.get_limited_symbol(unknown)
                solved = size if dim == unknown else _solve_for_symbol(dim, unknown, sizes, size)
                most = limits.maximum
                if solved is None or solved < limits.minimum or (most is not None and solved > most):
                    others = ", ".join(f"{n} = {sizes[n]}" for n in sorted(find_symbol_names(dim) & sizes.keys()))
                    integer_condition = f"{unknown} >= {limits.minimum}" + f" and <= {most}" * (most is not None)
                    raise ValueError(
                        f"{op.name}: {array.name} has shape {shape}; expected {describe_shape(array, sizes)} with a "
                        f"whole {integer_condition}" + (f" for {others}" if others else "")
                    )
                sizes[unknown] = solved
                lengths[dim] = size
            elif expected != size:
                raise ValueError(f"{op.name}: {array.name} has shape {shape}; expected {describe_shape(array, sizes)}")
    return sizes


def get_index_dtype(op: Operator, values: Mapping[str, Any]) -> np.dtype:
    """Return the dtype of the graph's arrays, which is also the dtype of indices that an operator returns."""
    assert op.graph_kind is not None
    return op.graph_kind.find_attribute(op.graph_kind.forward[0][0], values).dtype


def _get_expected_dtype(array: Array, first: Any) -> Any:
    """Return an array's expected dtype: the first input's, or float32 if that is 16-bit and the array lacks `half`."""
    return first if array.half or not is_half(first) else np.dtype(np.float32)


def check_dtypes_and_devices(
    op: Operator, values: Mapping[str, Any], library: ArrayLibrary, half: bool = False
) -> tuple[Any, Any]:
    """Check that arrays share a library, dtype and device and that numbers fit the dtype; return dtype and device.

    With `half`, arrays that kernels accept in half precision may be float16 or bfloat16.
    """
    first, first_device = "", ""
    first_dtype: Any = None
    for array in op.size_binding_order:
        name, value = array.name, values[array.name]
        if value is None and array.nullable:
            continue
        if type(value) is np.ndarray and library.kind == "numpy":  # test the common case first
            dtype, device = value.dtype, "host"
        else:
            dtype, device = library.get_dtype_and_device(op.name, name, value, first)
        if dtype is not None and not array.index:
            takes_half = half and array.half
            if dtype not in FLOATS and not (takes_half and is_half(dtype)):  # FLOATS has native byte order only
                floats = library.floats + ", float16 or bfloat16" * takes_half
                raise TypeError(f"{op.name}: {name} has dtype {describe_dtype(dtype)}; expected {floats}")
            if first and dtype is not first_dtype and dtype != (expected := _get_expected_dtype(array, first_dtype)):
                same = expected == first_dtype
                reason = f"the dtype of {first}" if same else f"since {first} has {first_dtype}"
                raise TypeError(f"{op.name}: {name} has dtype {dtype}; expected {expected}, {reason}")
        if not first:
            first, first_dtype, first_device = name, dtype, device
        elif device != first_device:
            raise ValueError(f"{op.name}: {name} is on {device}; expected {first_device}, where {first} is")
    for name in op.real_attribute_names if first_dtype is not None else ():  # these numbers must fit into the dtype
        number, dtype = values[name], first_dtype
        if number > 1e38 and number > (most := float(np.finfo(np.float32 if is_half(dtype) else dtype).max)):
            raise ValueError(f"{op.name}: {name} is {number}; expected at most {most}, the largest of {dtype}")
    return first_dtype, first_device


def check_and_convert_graphs(
    op: Operator, values: dict[str, Any], library: ArrayLibrary, device: Any, stacklevel: int = 4
) -> None:
    """Check the classes and devices of graph objects, and replace index arrays by graph objects where allowed.

    An index array is sorted again in every call. For a device array the host must also wait; a warning with the
    caller's `stacklevel` reports this.
    """
    if op.graph_kind is None:
        return
    for argument in op.graph_kind.arguments:
        name, graph = argument.name, values[argument.name]
        if graph is None and argument.optional:
            continue
        is_index_array = argument.rows and library.is_array(graph)
        try:
            if is_index_array:
                rows = values[argument.rows].shape
                graph = Segments(graph, rows[0] if rows else 0)
            graph = values[name] = graph if library.backend else library.convert_graph(graph)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{op.name}: {name}: {error}") from None
        if not isinstance(graph, GRAPH_TYPES[op.graph_kind.type_name]):
            alternatives = ", an array of indices" * bool(argument.rows) + " or None" * argument.optional
            advice = suggest_array_conversion(name, graph) if argument.rows and library.backend else ""
            expected = f"a trigraph.{op.graph_kind.type_name}{alternatives}{advice}"
            raise TypeError(f"{op.name}: {name} is a {type(graph).__name__}; expected {expected}")
        if is_index_array and graph.kind == "cupy":
            warnings.warn(
                f"{op.name}: {name} is an index array on a device, which every call sorts and checks, while "
                f"the host waits; pass trigraph.Segments({name}, len({argument.rows}))",
                RuntimeWarning,
                stacklevel,
            )
        if library.backend and graph.kind != library.kind:
            held_type = "torch.Tensor" if graph.kind == "torch" else f"{graph.kind}.ndarray"
            raise TypeError(f"{op.name}: {name} holds {held_type}; {library.takes}")
        if graph.device != device:
            raise ValueError(f"{op.name}: {name} is on {graph.device}; expected {device}, where the arrays are")


def squeeze_columns(op: Operator, values: dict[str, Any]) -> frozenset[str]:
    """Drop the trailing axis of length one that column arrays may have; return the names of the changed arrays."""
    squeezed = set()
    for a in op.column_arguments:
        value = values[a.name]
        if value is not None and value.ndim == len(a.dims) + 1 and value.shape[-1] == 1:
            values[a.name] = value[..., 0]
            squeezed.add(a.name)
    # The gradient of a cotangent that is None has the shape of the corresponding input.
    return frozenset(
        squeezed.union(gg for n in squeezed if (gg := f"gg_{n}") in op.signature_names and values[gg] is None)
    )


def check_graph_consistency(op: Operator, values: Mapping[str, Any]) -> None:
    """Check that graph objects, attributes and indices returned by fwd are consistent."""
    if op.graph_kind is None:
        return
    for attribute in op.attributes:
        for choice, method in attribute.requires:
            if values[attribute.name] == choice:
                getattr(values["graph"], method)(op.name)
    for a in op.index_arguments:
        array, dtype = values[a.name], get_index_dtype(op, values)
        if array is not None and array.dtype != dtype:
            raise TypeError(f"{op.name}: {a.name} has dtype {array.dtype}; expected {dtype}, the dtype of the graph")
    if len(op.graph_kind.arguments) == 1:
        return
    sizes = op.graph_kind.find_sizes(values)
    arrays = {n: (op.graph_kind.find_attribute(n, values), length) for n, length in op.graph_kind.forward}
    first, dtype = op.graph_kind.arguments[0].name, get_index_dtype(op, values)
    for name, (array, length) in arrays.items():
        if array is None:
            continue
        argument = op.graph_kind.paths.get(name, ("graph.",))[0].split(".")[0]
        if array.dtype != dtype:
            raise TypeError(f"{op.name}: {argument} has dtype {array.dtype}; expected {dtype}, the dtype of {first}")
        if array.size != evaluate_expression(length, sizes):
            expected = f"{length} = {evaluate_expression(length, sizes)}"
            raise ValueError(f"{op.name}: {argument} has {array.size} members; expected {expected}")


def _check_positions_are_in_edges(op: Operator, values: Mapping[str, Any]) -> None:
    """Check that positions passed from fwd to bwd are in-edges of their destinations.

    Device arrays are not checked, to avoid synchronisation; wrong positions contribute zero in every backend.
    """
    for a in (a for a in op.index_arguments if isinstance(values[a.name], np.ndarray)):
        assert op.graph_kind is not None
        array, offsets = values[a.name], op.graph_kind.find_attribute("offsets", values)
        # Offsets are repeated to the array's shape, because NumPy's broadcasting crashes if it cannot allocate memory.
        start, stop = (np.repeat(o, array.shape[1]).reshape(array.shape) for o in (offsets[:-1], offsets[1:]))
        wrong = ~((start <= array) & (array < stop) | (start == stop) & (array == -1))
        if wrong.any():
            i, j = np.argwhere(wrong)[0]
            first, last = int(offsets[i]), int(offsets[i + 1]) - 1
            expected = f"an in-edge of destination {i}, {first} .. {last}" if first <= last else "-1, without in-edges"
            raise ValueError(f"{op.name}: {a.name}[{i}, {j}] is {array[i, j]}; expected {expected}")


def _check_positive_arrays(op: Operator, values: Mapping[str, Any]) -> None:
    """Raise ValueError if a NumPy array that must be positive is not; NaN passes and propagates to the results."""
    for a in (a for a in op.positive_arguments if isinstance(values[a.name], np.ndarray)):
        if np.fmin.reduce(values[a.name], axis=None, initial=1) <= 0:
            row = int((values[a.name] <= 0).argmax())
            raise ValueError(f"{op.name}: {a.name}[{row}] is {values[a.name].flat[row]}; expected a number > 0")


def check_and_bind_outputs(
    op: Operator,
    out: Any,
    values: Mapping[str, Any],
    sizes: Mapping[str, int],
    wanted: tuple[str, ...],
    columns: frozenset[str],
    library: ArrayLibrary,
) -> dict[str, Any]:
    """Return the caller's output arrays by field; raise if one is unsuitable.

    Output arrays must have the correct library, dtype and shape, be writable, and not overlap inputs or each other.
    """
    if not isinstance(out, Mapping):
        if len(wanted) != 1:
            expected = f"a mapping from field to array for {', '.join(wanted)}"
            raise TypeError(f"{op.name}: out is a {type(out).__name__}; expected {expected}")
        out = {wanted[0]: out}
    fields = {f.name: f for f in op.fields}
    first = values[op.definition.inputs[0].name]
    used_arrays = {a.name: values[a.name] for a in op.arguments if values[a.name] is not None}
    if op.graph_kind is not None:
        arrays = {n: op.graph_kind.find_attribute(n, values) for n, _ in op.graph_kind.forward}
        used_arrays |= {f"graph.{n}": a for n, a in arrays.items() if a is not None}
    for name, array in out.items():
        label = f"out[{name!r}]"
        if name not in wanted:
            raise ValueError(f"{op.name}: {label} is not computed; expected one of {', '.join(wanted) or 'none'}")
        library.get_dtype_and_device(op.name, label, array)
        dtype = get_index_dtype(op, values) if fields[name].index else _get_expected_dtype(fields[name], first.dtype)
        shape, flags = evaluate_shape(fields[name], sizes) + ((1,) if name in columns else ()), array.flags
        if array.dtype != dtype:
            raise TypeError(f"{op.name}: {label} has dtype {array.dtype}; expected {dtype}")
        if array.shape != shape:
            problem = f"has shape {array.shape}; expected {describe_shape(fields[name], sizes)}"
        elif not flags.c_contiguous:
            problem = f"has strides {array.strides}; expected a C-contiguous array"
        elif library.kind == "numpy" and not flags.writeable:
            problem = "is read-only; expected a writable array"
        elif library.kind == "numpy" and not flags.aligned:
            problem = f"is not aligned; expected memory aligned for {array.dtype}"
        elif find_device(array) != find_device(first):
            problem = f"is on {find_device(array)}; expected {find_device(first)}"
        else:
            overlapped = [other for other, value in used_arrays.items() if _share_memory(array, value)]
            problem = f"overlaps {overlapped[0]}; expected separate memory" if overlapped else ""
        if problem:
            raise ValueError(f"{op.name}: {label} {problem}")
        used_arrays[label] = array
    return dict(out)


def _share_memory(a: Any, b: Any) -> bool:
    return bool(np.shares_memory(a, b) if isinstance(a, np.ndarray) else get_array_module(a).may_share_memory(a, b))


def _make_contiguous(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, np.ndarray):
        return np.require(value, requirements=("C", "A", "E"))  # E excludes subclasses, which may redefine arithmetic
    return value if value.flags.c_contiguous else get_array_module(value).ascontiguousarray(value)


def check_arguments(
    op: Operator, values: dict[str, Any], wrt: Any, out: Any, library: ArrayLibrary
) -> CheckedArguments:
    """Check the arguments of a call; `values` holds arrays, graphs and checked attributes by name."""
    _, device = check_dtypes_and_devices(op, values, library, library.backend in HALF_BACKENDS)
    check_and_convert_graphs(op, values, library, device)
    check_graph_consistency(op, values)
    for a in op.definition.inputs:
        if a.optional and values[a.name] is None:
            for cotangent in (f"gg_{a.name}", f"ggg_{a.name}"):
                if values.get(cotangent) is not None:
                    raise ValueError(f"{op.name}: {cotangent} is given, but {a.name} is None; expected None")
    columns = squeeze_columns(op, values)
    sizes = find_symbol_sizes(op, values)
    if op.index_arguments:
        _check_positions_are_in_edges(op, values)
    if op.positive_arguments:
        _check_positive_arrays(op, values)
    requested_fields = None if wrt is None else list_requested_fields(op, wrt)
    wanted: tuple[str, ...] = ()
    for f in op.list_returned_fields(values, sizes):
        if requested_fields is None or f.name in requested_fields:
            wanted += (f.name,)
    outputs = {} if out is None else check_and_bind_outputs(op, out, values, sizes, wanted, columns, library)
    for a in op.arguments:
        value = values[a.name]
        if type(value) is not np.ndarray or not (value.flags.c_contiguous and value.flags.aligned):
            values[a.name] = _make_contiguous(value)
    return CheckedArguments(
        values, sizes, wanted, outputs, columns & {f.name for f in op.fields} if columns else columns
    )
