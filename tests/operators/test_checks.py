"""Tests of argument checks: each argument is made invalid in one way, and the exact error is expected."""

import contextlib
import dataclasses
import fractions
import inspect
import pickle
import re
import types

import numpy as np
import pytest
from scipy import sparse
from table_calls import (
    CPU_BACKENDS,
    OPS,
    OPS_WITH_BWD3,
    assert_raises,
    assert_same_bits,
    compute_fields,
    draw_operator_arguments,
    map_fields_to_arrays,
    select_graph_arguments,
)
from table_errors import (
    ARRAYS,
    CHECKED_ATTRIBUTES,
    CHOICES,
    EACH_GRAPH,
    EACH_OPERATOR,
    FIELDS,
    IGNORED_ATTRIBUTES,
    INDICES,
    NUMBERS,
    SELECTIVE,
    WIDTHS,
    allocate_with_offset,
    assert_refused,
    describe_shape,
    find_blamed_array,
    find_defined_symbol,
    find_symbol_sizes,
    format_tuple,
    list_wrong_values,
    make_indivisible_axis_pattern,
)

from trigraph.backends import BACKENDS, FUNCTIONS
from trigraph.checks import evaluate_shape
from trigraph.graphs import EdgeGraph
from trigraph.table import SYMBOLS


def test_every_array_attribute_is_classified():
    """Every attribute of `Array` is used by `describe_array_kind` or listed as ignored."""
    attributes = {f.name for f in dataclasses.fields(OPS[0].arguments[0])} - {"shape"}
    assert attributes == {*CHECKED_ATTRIBUTES, *IGNORED_ATTRIBUTES}


# Shapes


@pytest.mark.parametrize(("op", "array"), ARRAYS)
def test_wrong_axis_lengths_are_refused(op, array):
    for change in (1, -1):
        good = draw_operator_arguments(op)
        for axis in range(len(array.dims)):
            shape = list(good[array.name].shape)
            shape[axis] += change
            values = good | {array.name: np.ones(shape)}
            symbol = find_defined_symbol(op, array, axis)
            if symbol is None:
                free = {find_defined_symbol(op, array, later) for later in range(axis + 1, len(array.dims))}
                expected = describe_shape(array, find_symbol_sizes(op, good), free)
                text = f"{array.name} has shape {tuple(shape)}; expected {expected}"
            elif array.dims[axis] != symbol:
                text = make_indivisible_axis_pattern(op, array, tuple(shape), axis, find_symbol_sizes(op, good))
            elif (other := find_blamed_array(op, array, symbol)) is not None:
                text = re.compile(rf"{other.name} has shape .*; expected {re.escape(format_tuple(other.dims))}.*")
            else:
                compute_fields(op, values)  # no other array uses this size, so any size is valid
                continue
            assert_refused(op, values, ValueError, text)


@pytest.mark.parametrize(("op", "array"), ARRAYS)
def test_sizes_beyond_symbol_limits_are_refused(op, array):
    good = draw_operator_arguments(op)
    for axis in range(len(array.dims)):
        symbol = find_defined_symbol(op, array, axis)
        limits = op.definition.get_limited_symbol(symbol) if symbol in SYMBOLS else None
        invalid_sizes = [limits.minimum - 1] if limits and limits.minimum else []
        invalid_sizes += [limits.maximum + 1] if limits and limits.maximum else []
        for size in invalid_sizes:
            sizes = find_symbol_sizes(op, good) | {symbol: size}
            bad = np.ones(evaluate_shape(array, sizes))
            text = make_indivisible_axis_pattern(op, array, bad.shape, axis, sizes)
            assert_refused(op, good | {array.name: bad}, ValueError, text)


@pytest.mark.parametrize(("op", "array"), ARRAYS)
def test_arrays_of_wrong_rank_are_refused(op, array):
    good = draw_operator_arguments(op)
    value = good[array.name]
    column = () if array.column else (value[..., None],)
    for bad in (value[None], *column, value[0], np.float64(1).reshape(())):
        start = f"{array.name} has shape {bad.shape} of rank {bad.ndim}; expected "
        end = f" of rank {len(array.dims)}"
        if array.name in [a.name for a in op.definition.inputs]:  # the message omits sizes defined by this array
            text = re.compile(re.escape(start + format_tuple(array.dims)) + r"( = \(.*\))?" + re.escape(end))
        else:
            text = start + describe_shape(array, find_symbol_sizes(op, good)) + end
        assert_refused(op, good | {array.name: np.asarray(bad)}, ValueError, text)


@pytest.mark.parametrize("op", EACH_GRAPH)
def test_graphs_of_other_sizes_are_refused(op):
    good = draw_operator_arguments(op)
    plain = {dim for a in op.arguments for dim in a.dims}
    for symbol in op.graph_kind.sizes:
        graphs = select_graph_arguments(
            op, draw_operator_arguments(op, **{symbol: 2 * op.graph_kind.find_attribute(symbol, good) + 2})
        )
        assert op.graph_kind.find_attribute(symbol, graphs) > op.graph_kind.find_attribute(symbol, good)
        if symbol in plain:
            first = next(a for a in op.size_binding_order if symbol in a.dims)
            start = f"{first.name} has shape {good[first.name].shape}; expected ("
            text = re.compile(re.escape(start) + rf".*\) = \(.*\b{op.graph_kind.find_attribute(symbol, graphs)}\b.*\)")
            assert_refused(op, good | graphs, ValueError, text)
        else:
            compute_fields(op, good | graphs | {a.name: None for a in op.arguments if a.given_back})


# Kinds and dtypes

DTYPES = [np.int32, np.int64, np.bool_, np.float16, np.longdouble, np.complex128, object, ">f8", ">f4", "S8"]


@pytest.mark.parametrize(("op", "array"), ARRAYS)
def test_arrays_of_wrong_dtype_are_refused(op, array):
    good = draw_operator_arguments(op)
    for dtype in DTYPES:
        bad = np.ones(good[array.name].shape, dtype)
        dtype_text = bad.dtype.name + " with non-native byte order" * (not bad.dtype.isnative)
        text = f"{array.name} has dtype {dtype_text}; expected native float32 or float64"
        assert_refused(op, good | {array.name: bad}, TypeError, text)


@pytest.mark.parametrize(("op", "array"), ARRAYS)
def test_mixed_array_dtypes_are_refused(op, array):
    for own, rest in (("float32", "float64"), ("float64", "float32")):
        values = draw_operator_arguments(op, rest)
        values[array.name] = values[array.name].astype(own)
        first, *later = op.size_binding_order
        if array.name != first.name:
            text = f"{array.name} has dtype {own}; expected {rest}, the dtype of {first.name}"
        elif later:
            text = f"{later[0].name} has dtype {rest}; expected {own}, the dtype of {first.name}"
        else:
            compute_fields(op, values)
            continue
        assert_refused(op, values, TypeError, text)


@pytest.mark.parametrize(("op", "array"), ARRAYS)
def test_arguments_other_than_arrays_are_refused(op, array):
    good = draw_operator_arguments(op)
    value, first = good[array.name], op.size_binding_order[0].name
    bad = [value.tolist(), memoryview(value), np.ma.masked_array(value), "text", 1, 1.0, np.float64(1), object(), type]
    if value.ndim == 2:
        bad += [value.view(np.matrix), sparse.csr_array(value)]
    if not array.nullable:
        bad.append(None)
    for backend, (_, kind) in BACKENDS.items():
        for thing in bad:
            text = f"{array.name} is a {type(thing).__name__}; expected a {kind}.ndarray of float32 or float64"
            if kind != "numpy" and array.name != first:  # the first argument is a NumPy array, so the error names it
                text = f"{first} is a numpy.ndarray; backend {backend!r} takes {kind}.ndarray"
            assert_refused(op, good | {array.name: thing}, TypeError, text, backend=backend)


class FakeCudaArray:
    """A fake array on a CUDA device, with only the attributes that the checks read."""

    def __init__(self, array, device=0):
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim
        self.device = contextlib.nullcontext()
        self.device.id = device
        self.flags, self.data = array.flags, types.SimpleNamespace(device_id=device)


FakeCudaArray.__name__, FakeCudaArray.__module__ = "ndarray", "cupy"


@pytest.mark.parametrize(("op", "array"), ARRAYS)
def test_arrays_on_wrong_device_are_refused(op, array):
    good, of_numpy = draw_operator_arguments(op), "is a numpy.ndarray; backend 'gpu' takes cupy.ndarray"
    for backend in CPU_BACKENDS:
        text = f"{array.name} is a cupy.ndarray; backend {backend!r} takes numpy.ndarray"
        assert_refused(op, good | {array.name: FakeCudaArray(good[array.name])}, TypeError, text, backend=backend)
    device = {name: FakeCudaArray(v) if isinstance(v, np.ndarray) else v for name, v in good.items()}
    first, *later = op.size_binding_order
    if len(op.arguments) > 1:  # one device array makes gpu the default backend
        assert_refused(op, device | {array.name: good[array.name]}, TypeError, f"{array.name} {of_numpy}")
        name, actual, expected = (array.name, 1, 0) if array.name != first.name else (later[0].name, 0, 1)
        text = f"{name} is on cuda:{actual}; expected cuda:{expected}, where {first.name} is"
        assert_refused(op, device | {array.name: FakeCudaArray(good[array.name], 1)}, ValueError, text)
    assert_refused(op, good, TypeError, f"{first.name} {of_numpy}", backend="gpu")


@pytest.mark.parametrize("op", EACH_GRAPH)
def test_graphs_on_wrong_device_are_refused(op):
    good = draw_operator_arguments(op)
    device = {name: FakeCudaArray(v) if isinstance(v, np.ndarray) else v for name, v in good.items()}
    name = op.graph_kind.arguments[0].name
    assert_refused(op, device, TypeError, f"{name} holds numpy.ndarray; backend 'gpu' takes cupy.ndarray")
    moved = pickle.loads(pickle.dumps(good[name]))
    for attribute, value in (("kind", "cupy"), ("device", "cuda:1")):
        object.__setattr__(moved, attribute, value)
    text = f"{name} is on cuda:1; expected cuda:0, where the arrays are"
    assert_refused(op, device | {name: moved}, ValueError, text)
    text = f"{name} holds cupy.ndarray; backend 'fortran' takes numpy.ndarray"
    assert_refused(op, good | {name: moved}, TypeError, text)


# Attributes, choices and calls


@pytest.mark.parametrize(("op", "attribute"), WIDTHS)
def test_widths_must_be_integers_within_limits(op, attribute):
    good, name = draw_operator_arguments(op), attribute.name
    for bad in (3.0, 3 + 0j, True, "3", None, [3], *map(np.array, (3.0, [3], True)), np.float64(3), np.True_):
        assert_refused(op, good | {name: bad}, TypeError, f"{name} is a {type(bad).__name__}; expected an int")
    minimum = SYMBOLS[name].minimum
    for bad in (minimum - 1, -1, -(10**30), np.int8(-3)):
        assert_refused(op, good | {name: bad}, ValueError, f"{name} is {bad}; expected at least {minimum}")
    maximum = op.definition.get_limited_symbol(name).maximum
    if maximum is None:
        maximum = 2**63 - 1
        for bad in (2**31, 2**62, maximum):
            assert_refused(op, good | {name: bad}, ValueError, re.compile(".* has shape .*; expected .*"))
    for bad in (maximum + 1, 10**30):
        assert_refused(op, good | {name: bad}, ValueError, f"{name} is {bad}; expected at most {maximum}")
    text = f"{name} is an integer of 16610 bits; expected at most {maximum}"
    assert_refused(op, good | {name: 10**5000}, ValueError, text)
    expected = compute_fields(op, good)
    for same in (np.int64(good[name]), np.uint8(good[name]), np.array(good[name])):
        assert_same_bits(compute_fields(op, good | {name: same}), expected)


@pytest.mark.parametrize(("op", "attribute"), NUMBERS)
def test_numbers_must_be_finite_and_nonnegative(op, attribute):
    good, name = draw_operator_arguments(op), attribute.name
    for bad in (True, "0.2", None, [0.2], 0.2 + 0j, np.True_, np.array([0.2])):
        assert_refused(op, good | {name: bad}, TypeError, f"{name} is a {type(bad).__name__}; expected a number")
    for bad in (-0.1, np.nan, np.inf, np.float32(-1), np.array(-2)):
        assert_refused(op, good | {name: bad}, ValueError, f"{name} is {float(bad)}; expected a finite number >= 0")
    for bad, shown in ((10**400, "inf"), (-(10**5000), "-inf")):
        assert_refused(op, good | {name: bad}, ValueError, f"{name} is {shown}; expected a finite number >= 0")
    single = draw_operator_arguments(op, np.float32)
    text = f"{name} is 1e+39; expected at most 3.4028234663852886e+38, the largest of float32"
    assert_refused(op, single | {name: 1e39}, ValueError, text)
    for backend in CPU_BACKENDS:
        compute_fields(op, good | {name: 1e39}, backend=backend)
    expected = compute_fields(op, good | {name: 0.25})
    for same in (np.float32(0.25), np.float64(0.25), np.array(0.25), np.array(0.25, np.float16)):
        assert_same_bits(compute_fields(op, good | {name: same}), expected)


@pytest.mark.parametrize(("op", "array"), INDICES)
def test_wrong_extrema_locations_are_refused(op, array):
    good, name = draw_operator_arguments(op), array.name
    for dtype in (np.int32, np.uint64, np.float64):
        text = f"{name} has dtype {np.dtype(dtype)}; expected int64, the dtype of the graph"
        assert_refused(op, good | {name: good[name].astype(dtype)}, TypeError, text)
    shape = (*good[name].shape[:-1], good[name].shape[-1] + 1)
    text = f"{name} has shape {shape}; expected {describe_shape(array, find_symbol_sizes(op, good))}"
    assert_refused(op, good | {name: np.zeros(shape, np.int64)}, ValueError, text)
    graph = good["graph"]
    for i, (start, stop) in enumerate(zip(graph.offsets[:-1], graph.offsets[1:], strict=True)):
        expected = f"an in-edge of destination {i}, {start} .. {stop - 1}" if start < stop else "-1, without in-edges"
        for place in {-2, graph.num_positions, stop, start - 1} - ({-1} if start == stop else set()):
            bad = good[name].copy()
            bad[i, 0] = place
            assert_refused(op, good | {name: bad}, ValueError, f"{name}[{i}, 0] is {place}; expected {expected}")


@pytest.mark.parametrize(
    "op", [p for p in EACH_OPERATOR if p.values[0].order >= 2 and p.values[0].definition.optional_names]
)
def test_cotangents_of_absent_inputs_are_refused(op):
    for a in op.definition.inputs:
        if a.optional:
            good = draw_operator_arguments(op, setting={a.name: None})
            compute_fields(op, good)
            for cotangent in (f"{g}_{a.name}" for g in ("gg", "ggg")[: op.order - 1]):
                text = f"{cotangent} is given, but {a.name} is None; expected None"
                assert_refused(op, good | {cotangent: draw_operator_arguments(op)[cotangent]}, ValueError, text)


@pytest.mark.parametrize(("op", "attribute"), CHOICES)
def test_only_listed_choices_are_accepted(op, attribute):
    good, name = draw_operator_arguments(op), attribute.name
    expected = ", ".join(map(repr, attribute.choices))
    wrong = [(TypeError, bad) for bad in (0, 1.0, None if True in attribute.choices else True, b"node", ("node",))]
    for error, bad in [*wrong, *((ValueError, bad) for bad in ("", "None", "Node", "nodes"))]:
        assert_refused(op, good | {name: bad}, error, f"{name} is {bad!r}; expected one of {expected}")
    setting = next((s for s in op.definition.settings if name in s), {})
    results = set()
    for choice in attribute.choices:
        # With 60 edges, each value of `exclude` excludes different triplets.
        good = draw_operator_arguments(op, setting={**setting, name: choice}, num_edges=60) | {name: choice}
        expected = compute_fields(op, good)
        results.add(str(expected))
        for same in (np.array(choice), np.array(choice)[()]) if choice is not None else ():
            assert_same_bits(compute_fields(op, good | {name: same}), expected)
    assert len(results) == len(attribute.choices)


@pytest.mark.parametrize("op", [pytest.param(op, id=op.name) for op in OPS if op.order == 0 and op.attributes])
def test_explicit_defaults_give_the_same_results(op):
    defaults = {a.name: a.default for a in op.attributes if not a.is_required}
    sizes = {n: v for n, v in defaults.items() if type(v) is int}
    explicit = draw_operator_arguments(op, setting=defaults, **sizes) | defaults
    assert_same_bits(
        compute_fields(op, {n: v for n, v in explicit.items() if n not in defaults}), compute_fields(op, explicit)
    )


COLUMNS = [pytest.param(op, a, id=f"{op.name}-{a.name}") for op in OPS_WITH_BWD3 for a in op.arguments if a.column]


@pytest.mark.parametrize(("op", "array"), COLUMNS)
def test_column_inputs_give_the_flat_results(op, array):
    """An input of shape (n, 1) is accepted in place of (n,), and its derivative has shape (n, 1), too."""
    good = draw_operator_arguments(op)
    flat = compute_fields(op, good)
    out = {name: np.empty((*value.shape, 1) if name == array.name else value.shape) for name, value in flat.items()}
    values = good | {array.name: good[array.name][..., None]}
    for got in (compute_fields(op, values), compute_fields(op, values, out=out)):
        for name, value in flat.items():
            assert got[name].shape == out[name].shape
            assert got[name].tobytes() == value.tobytes()


@pytest.mark.parametrize("op", EACH_GRAPH)
def test_objects_other_than_graphs_are_refused(op):
    good = draw_operator_arguments(op)
    arrays = tuple(op.graph_kind.find_attribute(name, good) for name, _ in op.graph_kind.forward)
    for argument in op.graph_kind.arguments:
        kind = type(good[argument.name])
        wrong = (3, "graph", kind, arrays, sparse.csr_array((3, 3)))
        more = () if argument.optional else (None,)
        more += () if argument.rows else (arrays[0],)
        for bad in (*wrong, *more):
            expected = f"a trigraph.{op.graph_kind.type_name}{', an array of indices' if argument.rows else ''}"
            expected += " or None" if argument.optional else ""
            text = f"{argument.name} is a {type(bad).__name__}; expected {expected}"
            assert_refused(op, good | {argument.name: bad}, TypeError, text)


def test_malformed_calls_raise_type_error():
    for (op,) in (each.values for each in EACH_OPERATOR):
        good, signature = draw_operator_arguments(op), str(FUNCTIONS[op.name].__signature__)

        def assert_call_refused(text, *arguments, op=op, signature=signature, **keywords):
            text = re.compile(f"{op.name}: {text}; expected {re.escape(op.name + signature)}")
            assert_raises(TypeError, text, FUNCTIONS[op.name], *arguments, **keywords)

        nullable = {a.name for a in op.arguments if a.nullable}
        required = [n for n, p in op.signature.parameters.items() if p.default is p.empty and n not in nullable]
        for name in required:
            rest = {n: v for n, v in good.items() if n != name}
            assert_call_refused(f"missing a required.* '{name}'", **rest)
        for name in op.parameter_names:
            assert_call_refused(f"multiple values for argument '{name}'", *good.values(), **{name: good[name]})
        assert_call_refused(".* keyword argument 'unknown'", **good, unknown=1)
        many = [*good.values(), *([None] if op.accepts_wrt else []), None]
        assert_call_refused("too many positional arguments", *many)
        if not op.accepts_wrt:
            assert_call_refused(".* keyword argument 'wrt'", **good, wrt=None)


def test_agg_edge_to_edge_refuses_rbf_keyword():
    """If num_spherical is 1, both results of `radial_basis` have the required shape, but only sbf_rad is accepted."""
    basis = FUNCTIONS["radial_basis_fwd"](np.array([0.5, 0.25]), np.array([1.0, 2.0]), num_spherical=1)
    assert basis.rbf.shape == basis.sbf_rad.shape
    graph = EdgeGraph(np.array([0, 1]), np.array([1, 0]), 2)
    rest = {"vec": np.eye(2, 3), "embedding": np.ones((2, 1)), "weights": np.ones((3, 1)), "graph": graph}
    rest |= {"num_spherical": 1, "num_radial": 2, "exclude": None}
    out = FUNCTIONS["agg_edge_to_edge_fwd"](**rest, sbf_rad=basis.sbf_rad)
    np.testing.assert_allclose(out[::-1, 0], basis.sbf_rad.sum(axis=1) / np.sqrt(4 * np.pi), rtol=1e-14)
    with pytest.raises(TypeError, match=r"^agg_edge_to_edge_fwd: got an unexpected keyword argument 'rbf'; expected"):
        FUNCTIONS["agg_edge_to_edge_fwd"](**rest, rbf=basis.rbf)


@pytest.mark.parametrize("op", [p for p in EACH_OPERATOR if any(a.nullable for a in p.values[0].arguments)])
def test_nullable_arguments_can_be_omitted(op):
    """Arguments that may be None can be omitted, without changing the positions of the others."""
    function, optional = FUNCTIONS[op.name], [a.name for a in op.definition.inputs if a.optional]
    for setting in [{}, *({name: None} for name in optional)]:
        good = draw_operator_arguments(op, setting=setting)
        free = [a for a in op.arguments if a.nullable and (a.name not in optional or a.name in setting)]
        for left_out in [*([a] for a in free), *([free] if free else [])]:
            explicit = good | {a.name: None for a in left_out}
            expected = compute_fields(op, explicit)
            rest = {n: v for n, v in explicit.items() if n not in [a.name for a in left_out]}
            assert_same_bits(compute_fields(op, rest), expected)
            first = min(op.parameter_names.index(a.name) for a in left_out)  # earlier arguments are passed by position
            head = [rest.pop(n) for n in op.parameter_names[:first]]
            assert_same_bits(map_fields_to_arrays(op, function(*head, **rest)), expected)


@pytest.mark.parametrize("op", [p for p in EACH_GRAPH if any(a.rows for a in p.values[0].graph_kind.arguments)])
@pytest.mark.parametrize(("backend", "index"), [("fortran", np.int32), ("gpu-host", np.int64)])
def test_index_arrays_can_replace_graph_objects(op, backend, index):
    good = draw_operator_arguments(op, index=index)
    expected = compute_fields(op, good, backend=backend)
    arrays = {a.name: good[a.name].index for a in op.graph_kind.arguments if a.rows}
    assert "triplets" in arrays
    for indices in (*({n: array} for n, array in arrays.items()), arrays):
        assert_same_bits(compute_fields(op, good | indices, backend=backend), expected)
    bad = arrays["triplets"].copy()
    bad[2] = good["triplets"].num_segments
    text = f"triplets: Segments: index[2] is {bad[2]}; expected 0 <= index < num_segments = {bad[2]}"
    assert_refused(op, good | {"triplets": bad}, ValueError, text)
    text = "triplets: Segments: index has dtype float64; expected native int32 or int64"
    assert_refused(op, good | {"triplets": bad.astype(float)}, TypeError, text)


def test_unknown_backend_is_refused():
    op, good = OPS[0], draw_operator_arguments(OPS[0])
    for bad in (1, b"fortran", ("fortran",), True, BACKENDS):
        assert_refused(op, good, TypeError, f"backend is a {type(bad).__name__}; expected a string", backend=bad)
    for bad in ("", "cuda", "Fortran", "fortran "):
        assert_refused(op, good, ValueError, f"backend is {bad!r}; expected one of {', '.join(BACKENDS)}", backend=bad)


@pytest.mark.parametrize("op", SELECTIVE)
def test_unknown_wrt_names_are_refused(op):
    good, names = draw_operator_arguments(op), [f.name for f in op.fields]
    expected = ", ".join(names)
    for bad in (3, 1.5, True, np.float64(1), object()):
        text = f"wrt is a {type(bad).__name__}; expected a string or an iterable of strings"
        assert_refused(op, good, TypeError, text, wrt=bad)
    for name in (3, None, b"x", np.ones(2), (names[0],)):
        text = f"wrt names a {type(name).__name__}; expected strings among {expected}"
        assert_refused(op, good, TypeError, text, wrt=[names[0], name])
    for name in ("", "unknown", names[0].upper(), f"gg_{names[0]}", expected):
        for wrt in (name, (names[0], name)):
            assert_refused(op, good, ValueError, f"wrt names {name!r}; expected one of {expected}", wrt=wrt)


ODD_VALUES = [0, -1, *(2**n for n in (31, 48, 62, 63, 70)), 10**400, 10**5000, -(2**70), True, None]
ODD_VALUES += [1.5, np.nan, np.inf, 3j, "3", b"3", [3], (3,), {}, object(), type, slice(3), range(3), ...]
ODD_VALUES += [np.int8(3), np.uint64(2**64 - 1), np.float16(2), np.longdouble(2), np.datetime64("2020")]
ODD_VALUES += [fractions.Fraction(1, 2), np.ma.masked, np.zeros((0, 3)), np.array([0, 2**31 - 1], np.int32)]
ODD_VALUES += map(np.array, (3, [3], 2**62, True, 2.0, "sum", None, [], [2**63 - 1, 0], [0, -(2**63)], [True, False]))


@pytest.mark.parametrize("op", [*EACH_OPERATOR, *(pytest.param(p.values[0], id=p.values[0].name) for p in INDICES)])
def test_odd_values_give_results_or_named_errors(op):
    good, function = draw_operator_arguments(op), FUNCTIONS[op.name]

    def get_error_text(arguments):
        try:
            function(**arguments)
        except (TypeError, ValueError) as error:
            return str(error)

    for name in inspect.signature(function).parameters:
        for value in [*ODD_VALUES, None, *list_wrong_values(name, good.get(name), op)]:
            text = get_error_text(good | {name: value})
            assert text is None or text.startswith(f"{op.name}: "), (name, value)


def test_results_drop_dtype_metadata_of_arguments():
    function, plain = FUNCTIONS["basis_embedding_radial_fwd"], np.ones((5, 3))
    assert function(plain.astype(np.dtype("f8", metadata={"unit": "eV"})), plain).dtype.metadata is None


# `out`: invalid arrays are refused; valid ones are filled and returned.


@pytest.mark.parametrize(("op", "field"), FIELDS)
def test_wrong_output_arrays_are_refused(op, field):
    good, name, label = draw_operator_arguments(op), field.name, f"out[{field.name!r}]"
    keywords = {"wrt": name} if op.accepts_wrt else {}
    shape = compute_fields(op, good, **keywords)[name].shape

    def assert_out_refused(kind, text, out):
        assert_refused(op, good, kind, f"{label} {text}", **keywords, out={name: out})
        if op.accepts_wrt or op.returns_array:  # if there is only one field, its array may be passed directly
            assert_refused(op, good, kind, f"{label} {text}", **keywords, out=out)

    for bad in (np.ones(shape).tolist(), "x", 1, np.ma.masked_array(np.ones(shape)), type):
        text = f"is a {type(bad).__name__}; expected a numpy.ndarray of float32 or float64"
        assert_out_refused(TypeError, text, bad)
    right = np.dtype(np.int64 if field.index else np.float64)
    for dtype in (np.float32, np.int32, right.newbyteorder()):
        bad = np.empty(shape, dtype)
        assert_out_refused(TypeError, f"has dtype {bad.dtype}; expected {right}", bad)
    numbers = describe_shape(field, find_symbol_sizes(op, good))
    for bad in ((shape[0] + 1, *shape[1:]), (*shape[:-1], shape[-1] - 1), (*shape, 1), shape[1:], ()):
        assert_out_refused(ValueError, f"has shape {bad}; expected {numbers}", np.empty(bad, right))
    strided = [np.empty((2 * shape[0], *shape[1:]), right)[::2], np.empty(shape, right)[::-1]]
    if len(shape) > 1:
        strided.append(allocate_with_offset(shape, "F", dtype=right))
    for bad in strided:
        assert_out_refused(ValueError, f"has strides {bad.strides}; expected a C-contiguous array", bad)
    frozen = np.empty(shape, right)
    frozen.setflags(write=False)
    assert_out_refused(ValueError, "is read-only; expected a writable array", frozen)
    unaligned = allocate_with_offset(shape, offset=1, dtype=right)
    assert_out_refused(ValueError, f"is not aligned; expected memory aligned for {right}", unaligned)


@pytest.mark.parametrize(("op", "field"), FIELDS)
def test_outputs_overlapping_inputs_are_refused(op, field):
    good, name = draw_operator_arguments(op), field.name
    shape = compute_fields(op, good)[name].shape
    for a in op.select_present_arguments(good):
        if a.index or field.index:
            continue
        value = good[a.name]
        memory = np.zeros(max(value.size, int(np.prod(shape))) + 3)
        out = memory[: int(np.prod(shape))].reshape(shape)
        view = memory[out.size - 1 :][: value.size] if out.size + value.size <= memory.size else memory[: value.size]
        view = view.reshape(value.shape)
        view[...] = value
        before = memory.copy()
        text = f"out[{name!r}] overlaps {a.name}; expected separate memory"
        assert_refused(op, good | {a.name: view}, ValueError, text, out={name: out})
        assert np.array_equal(memory, before)  # the refused call has written nothing


@pytest.mark.parametrize("op", SELECTIVE)
def test_overlapping_outputs_are_refused(op):
    good = draw_operator_arguments(op)
    shapes = {name: value.shape for name, value in compute_fields(op, good).items()}
    for first, second in zip(list(shapes), list(shapes)[1:], strict=False):
        n, m = (int(np.prod(shapes[name])) for name in (first, second))
        memory = np.zeros(n + m)
        out = {first: memory[:n].reshape(shapes[first]), second: memory[n - 1 : n - 1 + m].reshape(shapes[second])}
        text = f"out[{second!r}] overlaps out[{first!r}]; expected separate memory"
        assert_refused(op, good, ValueError, text, out=out)
        assert not memory.any()


def test_unknown_output_fields_are_refused():
    for (op,) in (each.values for each in EACH_OPERATOR):
        good = draw_operator_arguments(op)
        names = list(compute_fields(op, good))
        text = f"out['unknown'] is not computed; expected one of {', '.join(names)}"
        assert_refused(op, good, ValueError, text, out={"unknown": np.empty(3)})
        if len(names) > 1:
            for out in (np.empty(3), [np.empty(3)], "x", 3):
                text = f"out is a {type(out).__name__}; expected a mapping from field to array for {', '.join(names)}"
                assert_refused(op, good, TypeError, text, out=out)
        if op.accepts_wrt:
            for name in names:
                requested = [n for n in names if n != name]
                text = f"out[{name!r}] is not computed; expected one of {', '.join(requested) or 'none'}"
                assert_refused(op, good, ValueError, text, wrt=requested, out={name: np.empty(3)})


def make_garbage_like(value):
    return np.full_like(value, np.nan if value.dtype.kind == "f" else 77)


def test_out_is_written_and_returned():
    """The results are the arrays passed as `out` (fast path; `trigraph verify` checks that each backend fills them)."""
    for (op,) in (each.values for each in EACH_OPERATOR):
        good = draw_operator_arguments(op)
        expected = compute_fields(op, good)
        outs = {name: make_garbage_like(value) for name, value in expected.items()}
        got = compute_fields(op, good, out=outs)
        assert_same_bits(got, expected)
        assert all(got[name] is outs[name] for name in outs)
        for name, value in expected.items():
            keywords = {"wrt": name} if op.accepts_wrt else {}
            for wrapped in (lambda a: a, lambda a, name=name: {name: a})[not (op.returns_array or op.accepts_wrt) :]:
                array = make_garbage_like(value)
                got = FUNCTIONS[op.name](**good, **keywords, out=wrapped(array))
                assert map_fields_to_arrays(op, got)[name] is array
                assert array.tobytes() == value.tobytes()
            if op.accepts_wrt:  # duplicates in `wrt` are ignored; fields missing from `out` are allocated
                again = FUNCTIONS[op.name](**good, wrt=[name, name], out=array)
                assert getattr(again, name) is array
                array = make_garbage_like(value)
                got = compute_fields(op, good, out={name: array})
                assert_same_bits(got, expected)
                assert got[name] is array
