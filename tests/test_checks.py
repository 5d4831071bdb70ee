"""Every argument of every operator is perturbed, and the exact exception is expected: nothing is known by name here."""

import fractions
import importlib.util
import inspect
import re

import numpy as np
import pytest
from scipy import sparse
from table_calls import CPU_PANELS, OPS, assert_same_bits, call, draw, fields, graphs_of

from trigraph import panels
from trigraph.checks import position, shape_of
from trigraph.operators import OPERATORS, SYMBOLS, names_in
from trigraph.panels import FUNCTIONS, PANELS

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


def raises(kind, text, function, *args, **kwargs):
    """Assert that a call raises exactly `kind` with exactly `text` (a compiled pattern: all of it matches)."""
    with pytest.raises(kind) as caught:
        function(*args, **kwargs)
    assert caught.type is kind
    if isinstance(text, re.Pattern):
        assert text.fullmatch(str(caught.value)), str(caught.value)
    else:
        assert str(caught.value) == text


def sizes_of(op, values):
    """Size of every symbol of a good call, read off plain axes and solved for the one symbol that has none."""
    sizes = {a.name: values[a.name] for a in op.attributes if a.size}
    sizes |= {a.name: position(a.choices, values[a.name]) for a in op.attributes if a.choices}
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
            raises(ValueError, text, FUNCTIONS[op.name], **values)
        elif array.dims[axis] != symbol:  # solved for: no whole number fits
            named, free = names_in(array.dims[axis]) - {symbol}, {symbol}
            free |= {bound_by(op, array, later) for later in range(axis + 1, len(array.dims))}
            shape_text = with_numbers(array, sizes_of(op, good), free)
            if shape_text == f"{listed(array.dims)} = {listed(array.dims)}":
                shape_text = listed(array.dims)
            known = {s: n for s, n in sizes_of(op, good).items() if s in named}
            text = (
                f"{op.name}: {array.name} has shape {tuple(shape)}; expected {shape_text} "
                f"with a whole {symbol} {limits(symbol)} "
                f"for {', '.join(f'{s} = {known[s]}' for s in sorted(known))}"
            )
            raises(ValueError, text, FUNCTIONS[op.name], **values)
        elif (other := blamed(op, array, symbol)) is not None:
            text = re.compile(rf"{op.name}: {other.name} has shape .*; expected {re.escape(listed(other.dims))}.*")
            raises(ValueError, text, FUNCTIONS[op.name], **values)
        else:
            call(op, values)  # a size that nothing else shares


@pytest.mark.parametrize(("op", "array"), ARRAYS)
def test_sizes_below_their_minimum(op, array):
    good = draw(op)
    for axis, dim in enumerate(array.dims):
        symbol = bound_by(op, array, axis)
        if symbol is None or not SYMBOLS[symbol].minimum:
            continue
        sizes = sizes_of(op, good) | {symbol: SYMBOLS[symbol].minimum - 1}
        bad = np.ones(shape_of(array, sizes))
        known = [f"{s} = {sizes[s]}" for s in sorted(names_in(dim) - {symbol})]
        text = re.compile(
            re.escape(f"{op.name}: {array.name} has shape {bad.shape}; expected {listed(array.dims)}")
            + r"( = \(.*\))?"
            + re.escape(f" with a whole {symbol} {limits(symbol)}" + " for " * bool(known) + ", ".join(known))
        )
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


@pytest.mark.parametrize("op", WITH_GRAPH)
def test_graph_of_other_sizes(op):
    good = draw(op)
    plain = {dim for a in op.arguments for dim in a.dims}
    for symbol in op.graph.sizes:
        graphs = graphs_of(op, draw(op, **{symbol: op.graph.find(symbol, good) + 1}))
        if symbol in plain:
            first = next(a for a in op.binding_order if symbol in a.dims)
            text = re.compile(
                re.escape(f"{op.name}: {first.name} has shape {good[first.name].shape}; expected (")
                + rf".*\) = \(.*\b{op.graph.find(symbol, graphs)}\b.*\)"
            )
            raises(ValueError, text, FUNCTIONS[op.name], **(good | graphs))
        else:
            call(op, good | graphs | {a.name: None for a in op.arguments if a.given_back})


def test_text_of_the_contract():
    values = draw(OPERATORS["gno_kernel_bwd"])
    values["grad_kernel"] = np.ones((7, 12))
    text = "gno_kernel_bwd: grad_kernel has shape (7, 12); expected (num_edges, f_out*f_in) = (8, 12)"
    raises(ValueError, text, FUNCTIONS["gno_kernel_bwd"], **values)


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
@pytest.mark.parametrize("panel", PANELS)
def test_no_array_at_all(op, array, panel):
    good = draw(op)
    value = good[array.name]
    kind = PANELS[panel][1]
    first = op.binding_order[0].name
    bad = [value.tolist(), memoryview(value), np.ma.masked_array(value), "text", 1, 1.0, np.float64(1), object(), type]
    if value.ndim == 2:
        bad += [value.view(np.matrix), sparse.csr_array(value)]
    if not array.nullable:
        bad.append(None)
    for thing in bad:
        text = f"{op.name}: {array.name} is a {type(thing).__name__}; expected a {kind}.ndarray of float32 or float64"
        if kind != "numpy" and array.name != first:  # NumPy arrays come first, and are wrong there
            text = f"{op.name}: {first} is a numpy.ndarray; panel {panel!r} takes {kind}.ndarray"
        raises(TypeError, text, FUNCTIONS[op.name], **(good | {array.name: thing}), panel=panel)


class Elsewhere:
    """What the checks know of a CuPy array: a shape, a dtype and a device."""

    def __init__(self, array, device=0):
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim
        self.device = type("Device", (), {"id": device})()


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
    text = f"{op.name}: {first.name} is a numpy.ndarray; panel 'gpu' takes cupy.ndarray"
    raises(TypeError, text, FUNCTIONS[op.name], **good, panel="gpu")


@pytest.mark.parametrize("op", WITH_GRAPH)
def test_graph_of_the_wrong_device(op):
    good = draw(op)
    device = {name: Elsewhere(v) if isinstance(v, np.ndarray) else v for name, v in good.items()}
    name = op.graph.arguments[0].name
    text = f"{op.name}: {name} holds numpy.ndarray; panel 'gpu' takes cupy.ndarray"
    raises(TypeError, text, FUNCTIONS[op.name], **device)
    graph_type = type(good[name])
    there = type("There", (graph_type,), {"kind": "cupy", "device": "cuda:1", "__slots__": ()})
    make, arguments, *state = good[name].__reduce_ex__(2)
    moved = there(*arguments) if make is graph_type else there.__new__(there)
    if state:
        moved.__setstate__(state[0])
    text = f"{op.name}: {name} is on cuda:1; expected cuda:0, where the arrays are"
    raises(ValueError, text, FUNCTIONS[op.name], **(device | {name: moved}))
    text = f"{op.name}: {name} holds cupy.ndarray; panel 'fortran' takes numpy.ndarray"
    raises(TypeError, text, FUNCTIONS[op.name], **(good | {name: moved}))


# Attributes, graph and the call itself


@pytest.mark.parametrize(("op", "attribute"), ATTRIBUTES)
def test_attributes(op, attribute):
    good, name = draw(op), attribute.name
    for bad in (3.0, 3 + 0j, True, "3", None, [3], *map(np.array, (3.0, [3], True)), np.float64(3), np.True_):
        text = f"{op.name}: {name} is a {type(bad).__name__}; expected an int"
        raises(TypeError, text, FUNCTIONS[op.name], **(good | {name: bad}))
    minimum = SYMBOLS[name].minimum
    for bad in (minimum - 1, -1, -(10**30), np.int8(-3)):
        text = f"{op.name}: {name} is {bad}; expected at least {minimum}"
        raises(ValueError, text, FUNCTIONS[op.name], **(good | {name: bad}))
    maximum = SYMBOLS[name].maximum
    if maximum is None:
        maximum = 2**63 - 1
        text = re.compile(f"{op.name}: .* has shape .*; expected .*")
        for bad in (2**31, 2**62, maximum):
            raises(ValueError, text, FUNCTIONS[op.name], **(good | {name: bad}))
    for bad in (maximum + 1, 10**30):
        text = f"{op.name}: {name} is {bad}; expected at most {maximum}"
        raises(ValueError, text, FUNCTIONS[op.name], **(good | {name: bad}))
    text = f"{op.name}: {name} is an integer of 16610 bits; expected at most {maximum}"
    raises(ValueError, text, FUNCTIONS[op.name], **(good | {name: 10**5000}))
    expected = call(op, good)
    for same in (np.int64(good[name]), np.uint8(good[name]), np.array(good[name])):
        assert_same_bits(call(op, good | {name: same}), expected)


@pytest.mark.parametrize(("op", "attribute"), NUMBERS)
def test_numbers(op, attribute):
    good, name = draw(op), attribute.name
    for bad in (True, "0.2", None, [0.2], 0.2 + 0j, np.True_, np.array([0.2])):
        text = f"{op.name}: {name} is a {type(bad).__name__}; expected a float"
        raises(TypeError, text, FUNCTIONS[op.name], **(good | {name: bad}))
    for bad in (-0.1, np.nan, np.inf, np.float32(-1), np.array(-2)):
        text = f"{op.name}: {name} is {float(bad)}; expected a finite number >= 0"
        raises(ValueError, text, FUNCTIONS[op.name], **(good | {name: bad}))
    for bad, shown in ((10**400, "inf"), (-(10**5000), "-inf")):
        text = f"{op.name}: {name} is {shown}; expected a finite number >= 0"
        raises(ValueError, text, FUNCTIONS[op.name], **(good | {name: bad}))
    single = draw(op, np.float32)
    text = f"{op.name}: {name} is 1e+39; expected at most 3.4028234663852886e+38, the largest of float32"
    raises(ValueError, text, FUNCTIONS[op.name], **(single | {name: 1e39}))
    for panel in CPU_PANELS:
        call(op, good | {name: 1e39}, panel=panel)
    expected = call(op, good | {name: 0.25})
    for same in (np.float32(0.25), np.float64(0.25), np.array(0.25), np.array(0.25, np.float16)):
        assert_same_bits(call(op, good | {name: same}), expected)


@pytest.mark.parametrize(("op", "array"), INDICES)
def test_indices_given_back(op, array):
    good, name = draw(op), array.name
    for dtype in (np.int32, np.uint64, np.float64):
        text = f"{op.name}: {name} has dtype {np.dtype(dtype)}; expected int64, the dtype of the graph"
        raises(TypeError, text, FUNCTIONS[op.name], **(good | {name: good[name].astype(dtype)}))
    shape = (*good[name].shape[:-1], good[name].shape[-1] + 1)
    text = f"{op.name}: {name} has shape {shape}; expected {with_numbers(array, sizes_of(op, good))}"
    raises(ValueError, text, FUNCTIONS[op.name], **(good | {name: np.zeros(shape, np.int64)}))
    graph = good["graph"]
    for i, (start, stop) in enumerate(zip(graph.offsets[:-1], graph.offsets[1:], strict=True)):
        expected = f"an in-edge of destination {i}, {start} .. {stop - 1}" if start < stop else "-1, without in-edges"
        for place in {-2, graph.num_positions, stop, start - 1} - ({-1} if start == stop else set()):
            bad = good[name].copy()
            bad[i, 0] = place
            text = f"{op.name}: {name}[{i}, 0] is {place}; expected {expected}"
            raises(ValueError, text, FUNCTIONS[op.name], **(good | {name: bad}))


@pytest.mark.parametrize("op", [pytest.param(op, id=op.name) for op in OPS if op.order == 2 and op.definition.optional])
def test_cotangent_of_what_is_absent(op):
    for a in op.definition.inputs:
        if a.optional:
            good = draw(op, setting={a.name: None})
            call(op, good)
            text = f"{op.name}: gg_{a.name} is given, but {a.name} is None; expected None"
            raises(ValueError, text, FUNCTIONS[op.name], **(good | {f"gg_{a.name}": draw(op)[f"gg_{a.name}"]}))


@pytest.mark.parametrize(("op", "attribute"), CHOICES)
def test_choices(op, attribute):
    good, name = draw(op), attribute.name
    expected = ", ".join(map(repr, attribute.choices))
    for bad in (0, 1.0, None if True in attribute.choices else True, b"node", object, ("node",)):
        raises(
            TypeError,
            f"{op.name}: {name} is {bad!r}; expected one of {expected}",
            FUNCTIONS[op.name],
            **(good | {name: bad}),
        )
    for bad in ("", "None", "Node", "nodes"):
        raises(
            ValueError,
            f"{op.name}: {name} is {bad!r}; expected one of {expected}",
            FUNCTIONS[op.name],
            **(good | {name: bad}),
        )
    setting = next((s for s in op.definition.settings if name in s), {})
    for choice in attribute.choices:
        good = draw(op, setting={**setting, name: choice})
        expected = call(op, good)
        for same in (np.array(choice), np.array(choice)[()]) if choice is not None else ():
            assert_same_bits(call(op, good | {name: same}), expected)
    results = {str(call(op, draw(op, setting={**setting, name: choice}))) for choice in attribute.choices}
    assert len(results) == len(attribute.choices)


@pytest.mark.parametrize("op", [pytest.param(op, id=op.name) for op in OPS if op.attributes])
def test_defaults(op):
    good = draw(op)
    defaults = {a.name: a.default for a in op.attributes if not a.required}
    explicit = good | defaults
    arrays = draw(op, setting=defaults, **{n: v for n, v in defaults.items() if type(v) is int})
    explicit = arrays | defaults
    assert_same_bits(call(op, {n: v for n, v in explicit.items() if n not in defaults}), call(op, explicit))


@pytest.mark.parametrize(("op", "array"), [p for p in ARRAYS if p.values[1].column])
@pytest.mark.parametrize("panel", CPU_PANELS)
def test_columns(op, array, panel):
    """A trailing axis of one is taken, and given back by the derivative in this input."""
    good = draw(op)
    flat = call(op, good, panel=panel)
    got = call(op, good | {array.name: good[array.name][..., None]}, panel=panel)
    for name, value in flat.items():
        column = name == array.name
        assert got[name].shape == (*value.shape, 1) if column else value.shape
        assert got[name].tobytes() == value.tobytes()


@pytest.mark.parametrize("op", WITH_GRAPH)
def test_graph_of_the_wrong_type(op):
    good = draw(op)
    arrays = tuple(op.graph.find(name, good) for name, _ in op.graph.forward)
    for argument in op.graph.arguments:
        kind = type(good[argument.name])
        wrong = (3, "graph", kind, arrays, sparse.csr_array((3, 3)))
        more = () if argument.optional else (None,)
        more += () if argument.rows else (arrays[0],)
        for bad in (*wrong, *more):
            expected = f"a trigraph.{op.graph.type_name}{', an array of indices' if argument.rows else ''}"
            expected += " or None" if argument.optional else ""
            text = f"{op.name}: {argument.name} is a {type(bad).__name__}; expected {expected}"
            raises(TypeError, text, FUNCTIONS[op.name], **(good | {argument.name: bad}))


@pytest.mark.parametrize("op", ALL)
def test_wrong_calls(op):
    good, function = draw(op), FUNCTIONS[op.name]
    signature = re.escape("; expected " + op.name + str(function.__signature__))
    nullable = {a.name for a in op.arguments if a.nullable}
    required = [n for n, p in op.signature.parameters.items() if p.default is p.empty and n not in nullable]
    for name in required:
        rest = {n: v for n, v in good.items() if n != name}
        raises(TypeError, re.compile(rf"{op.name}: missing a required.* '{name}'{signature}"), function, **rest)
    for name in op.parameters:
        twice = re.compile(rf"{op.name}: multiple values for argument '{name}'{signature}")
        raises(TypeError, twice, function, *good.values(), **{name: good[name]})
    raises(TypeError, re.compile(rf"{op.name}: .* keyword argument 'unknown'{signature}"), function, **good, unknown=1)
    many = [*good.values(), *([None] if op.selective else []), None]
    raises(TypeError, re.compile(rf"{op.name}: too many positional arguments{signature}"), function, *many)
    if not op.selective:
        raises(TypeError, re.compile(rf"{op.name}: .* keyword argument 'wrt'{signature}"), function, **good, wrt=None)


@pytest.mark.parametrize("op", [p for p in ALL if any(a.nullable for a in p.values[0].arguments)])
def test_what_may_be_none_may_be_left_out(op):
    """By keyword; positions stay what they are."""
    function, optional = FUNCTIONS[op.name], [a.name for a in op.definition.inputs if a.optional]
    for setting in [{}, *({name: None} for name in optional)]:
        good = draw(op, setting=setting)
        free = [a for a in op.arguments if a.nullable and (a.name not in optional or a.name in setting)]
        for left_out in [*([a] for a in free), *([free] if free else [])]:
            explicit = good | {a.name: None for a in left_out}
            expected = call(op, explicit)
            given = {n: v for n, v in explicit.items() if n not in [a.name for a in left_out]}
            assert_same_bits(call(op, given), expected)
            first = min(op.parameters.index(a.name) for a in left_out)  # those before it may come by position
            head = [given.pop(n) for n in op.parameters[:first]]
            assert_same_bits(fields(op, function(*head, **given)), expected)


@pytest.mark.parametrize("op", ALL)
def test_misspelt_keywords(op):
    good, function = draw(op), FUNCTIONS[op.name]
    names = [*op.parameters, *(["wrt"] if op.selective else []), "out", "panel"]
    for name in names:
        wrong = name[:-1] + ("x" if name[-1] != "x" else "y") if len(name) > 4 else name + "s"
        values = {n: v for n, v in good.items() if n != name}
        with pytest.raises(TypeError) as caught:
            function(**values, **{wrong: good.get(name)})
        text = r"(\w+): got an unexpected keyword argument '(\w+)' \(did you mean '(\w+)'\?\); expected .*"
        said = re.fullmatch(text, str(caught.value))
        assert said, str(caught.value)
        assert said[1] == op.name
        assert said[2] == wrong
        assert said[3] in names
        assert said[3] == name or len(name) < 6


class Tensor:
    """What is known of a torch tensor: where its class comes from."""


Tensor.__module__ = "torch"


@pytest.mark.parametrize(("op", "array"), ARRAYS)
def test_a_tensor_is_told_what_to_pass(op, array):
    good = draw(op)
    text = f"{op.name}: {array.name} is a Tensor; expected a numpy.ndarray of float32 or float64"
    instead = ", or use trigraph.torch" if importlib.util.find_spec("trigraph.torch") else ""
    text += f": pass {array.name}.detach().cpu().numpy(){instead}"
    raises(TypeError, text, FUNCTIONS[op.name], **(good | {array.name: Tensor()}))


@pytest.mark.parametrize("op", [p for p in WITH_GRAPH if any(a.rows for a in p.values[0].graph.arguments)])
@pytest.mark.parametrize("panel", CPU_PANELS)
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_index_arrays_for_graph_objects(op, panel, index):
    good = draw(op, index=index)
    expected = call(op, good, panel=panel)
    arrays = {a.name: good[a.name].index for a in op.graph.arguments if a.rows}
    assert "triplets" in arrays
    for names in ([n] for n in arrays):
        assert_same_bits(call(op, good | {n: arrays[n] for n in names}, panel=panel), expected)
    assert_same_bits(call(op, good | arrays, panel=panel), expected)
    bad = arrays["triplets"].copy()
    bad[2] = good["triplets"].num_segments
    text = f"{op.name}: triplets: Segments: index[2] is {bad[2]}; expected 0 <= index < num_segments = {bad[2]}"
    raises(ValueError, text, FUNCTIONS[op.name], **(good | {"triplets": bad}))
    text = f"{op.name}: triplets: Segments: index has dtype <f8; expected native int32 or int64"
    raises(TypeError, text, FUNCTIONS[op.name], **(good | {"triplets": bad.astype(float)}))
    text = f"{op.name}: triplets is a Tensor; expected a trigraph.Segments, an array of indices"
    instead = ", or use trigraph.torch" if importlib.util.find_spec("trigraph.torch") else ""
    text += f": pass triplets.detach().cpu().numpy(){instead}"
    raises(TypeError, text, FUNCTIONS[op.name], **(good | {"triplets": Tensor()}))


@pytest.mark.parametrize("op", ALL)
def test_refused_memory_names_the_operator(op, monkeypatch):
    """What NumPy raises; what CuPy raises passes through."""
    good = draw(op)
    own = type("OutOfMemoryError", (MemoryError,), {"__module__": "cupy.cuda.memory"})("3 bytes")
    for error, text in (
        (None, f"{op.name}: Unable to allocate"),
        (MemoryError(), f"{op.name}: out of memory"),
        (MemoryError(f"{op.name}: 96 bytes"), f"{op.name}: 96 bytes"),
        (own, "3 bytes"),
    ):

        def refuse(*_, error=error, **__):
            if error is None:
                np.empty((2**28, 2**27))
            raise error

        monkeypatch.setattr(panels, "panel_function", lambda *_, refuse=refuse: refuse)
        with pytest.raises(MemoryError) as caught:
            FUNCTIONS[op.name](**good, panel="pyref")
        assert caught.type is (type(own) if error is own else MemoryError)
        assert str(caught.value).startswith(text)


@pytest.mark.parametrize("op", ALL)
def test_panel(op):
    good = draw(op)
    for bad in (1, b"fortran", ("fortran",), True, PANELS):
        text = f"{op.name}: panel is a {type(bad).__name__}; expected a string"
        raises(TypeError, text, FUNCTIONS[op.name], **good, panel=bad)
    for bad in ("", "cuda", "Fortran", "fortran "):
        text = f"{op.name}: panel is {bad!r}; expected one of {', '.join(PANELS)}"
        raises(ValueError, text, FUNCTIONS[op.name], **good, panel=bad)


@pytest.mark.parametrize("op", SELECTIVE)
def test_wrt(op):
    good, names = draw(op), [f.name for f in op.fields]
    expected = ", ".join(names)
    for bad in (3, 1.5, True, np.float64(1), object()):
        text = f"{op.name}: wrt is a {type(bad).__name__}; expected a string or an iterable of strings"
        raises(TypeError, text, FUNCTIONS[op.name], **good, wrt=bad)
    for name in (3, None, b"x", np.ones(2), (names[0],)):
        text = f"{op.name}: wrt names a {type(name).__name__}; expected strings among {expected}"
        raises(TypeError, text, FUNCTIONS[op.name], **good, wrt=[names[0], name])
    for name in ("", "unknown", names[0].upper(), f"gg_{names[0]}", expected):
        text = f"{op.name}: wrt names {name!r}; expected one of {expected}"
        raises(ValueError, text, FUNCTIONS[op.name], **good, wrt=name)
        raises(ValueError, text, FUNCTIONS[op.name], **good, wrt=(names[0], name))


# out


def empty_like(shape, order="C", offset=0, dtype="float64"):
    """Array in the given order; `offset` bytes off an address aligned for its dtype."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(size + 16, np.uint8)
    start = -memory.ctypes.data % 8 + offset
    return memory[start : start + size].view(dtype).reshape(shape, order=order)


@pytest.mark.parametrize(("op", "field"), FIELDS)
def test_out_of_the_wrong_kind(op, field):
    good, name, label = draw(op), field.name, f"out[{field.name!r}]"
    keywords = {"wrt": name} if op.selective else {}
    shape = call(op, good, **keywords)[name].shape

    def expect(kind, text, out):
        raises(kind, f"{op.name}: {text}", FUNCTIONS[op.name], **good, **keywords, out={name: out})
        if op.selective or op.single:  # the same without the mapping: there is one field
            raises(kind, f"{op.name}: {text}", FUNCTIONS[op.name], **good, **keywords, out=out)

    for bad in (np.ones(shape).tolist(), "x", 1, np.ma.masked_array(np.ones(shape)), type):
        expect(TypeError, f"{label} is a {type(bad).__name__}; expected a numpy.ndarray of float32 or float64", bad)
    right = np.dtype(np.int64 if field.index else np.float64)
    for dtype in (np.float32, np.int32, right.newbyteorder()):
        bad = np.empty(shape, dtype)
        expect(TypeError, f"{label} has dtype {bad.dtype}; expected {right}", bad)
    numbers = with_numbers(field, sizes_of(op, good))
    for bad in ((shape[0] + 1, *shape[1:]), (*shape[:-1], shape[-1] - 1), (*shape, 1), shape[1:], ()):
        expect(ValueError, f"{label} has shape {bad}; expected {numbers}", np.empty(bad, right))
    strided = [np.empty((2 * shape[0], *shape[1:]), right)[::2], np.empty(shape, right)[::-1]]
    if len(shape) > 1:
        strided.append(empty_like(shape, "F", dtype=right))
    for bad in strided:
        expect(ValueError, f"{label} has strides {bad.strides}; expected a C-contiguous array", bad)
    frozen = np.empty(shape, right)
    frozen.setflags(write=False)
    expect(ValueError, f"{label} is read-only; expected a writable array", frozen)
    unaligned = empty_like(shape, offset=1, dtype=right)
    expect(ValueError, f"{label} is not aligned; expected memory aligned for {right}", unaligned)


@pytest.mark.parametrize(("op", "field"), FIELDS)
def test_out_that_overlaps(op, field):
    good, name = draw(op), field.name
    shape = call(op, good)[name].shape
    for a in op.given(good):
        if a.index or field.index:
            continue
        value = good[a.name]
        memory = np.zeros(max(value.size, int(np.prod(shape))) + 3)
        out = memory[: int(np.prod(shape))].reshape(shape)
        view = memory[out.size - 1 :][: value.size] if out.size + value.size <= memory.size else memory[: value.size]
        view = view.reshape(value.shape)
        view[...] = value
        before = memory.copy()
        text = f"{op.name}: out[{name!r}] overlaps {a.name}; expected memory of its own"
        raises(ValueError, text, FUNCTIONS[op.name], **(good | {a.name: view}), out={name: out})
        assert np.array_equal(memory, before)  # nothing was computed


@pytest.mark.parametrize("op", SELECTIVE)
def test_outs_that_overlap(op):
    good = draw(op)
    shapes = {name: value.shape for name, value in call(op, good).items()}
    for first, second in zip(list(shapes), list(shapes)[1:], strict=False):
        n, m = (int(np.prod(shapes[name])) for name in (first, second))
        memory = np.zeros(n + m)
        out = {first: memory[:n].reshape(shapes[first]), second: memory[n - 1 : n - 1 + m].reshape(shapes[second])}
        text = f"{op.name}: out[{second!r}] overlaps out[{first!r}]; expected memory of its own"
        raises(ValueError, text, FUNCTIONS[op.name], **good, out=out)
        assert not memory.any()


@pytest.mark.parametrize("op", ALL)
def test_out_of_the_wrong_field(op):
    good = draw(op)
    names = list(call(op, good))
    text = f"{op.name}: out['unknown'] is not computed; expected one of {', '.join(names)}"
    raises(ValueError, text, FUNCTIONS[op.name], **good, out={"unknown": np.empty(3)})
    if len(names) > 1:
        for out in (np.empty(3), [np.empty(3)], "x", 3):
            what = f"out is a {type(out).__name__}; expected a mapping from field to array for {', '.join(names)}"
            raises(TypeError, f"{op.name}: {what}", FUNCTIONS[op.name], **good, out=out)
    if op.selective:
        for name in names:
            asked = [n for n in names if n != name]
            text = f"{op.name}: out[{name!r}] is not computed; expected one of {', '.join(asked) or 'none'}"
            raises(ValueError, text, FUNCTIONS[op.name], **good, wrt=asked, out={name: np.empty(3)})


def garbage(value):
    return np.full_like(value, np.nan if value.dtype.kind == "f" else 77)


@pytest.mark.parametrize("panel", CPU_PANELS)
@pytest.mark.parametrize("op", ALL)
def test_out_is_written_and_returned(op, panel):
    good = draw(op)
    expected = call(op, good, panel=panel)
    outs = {name: garbage(value) for name, value in expected.items()}
    got = call(op, good, panel=panel, out=outs)
    assert_same_bits(got, expected)
    assert all(got[name] is outs[name] for name in outs)
    for name, value in expected.items():
        keywords = {"wrt": name} if op.selective else {}
        for wrapped in (lambda a: a, lambda a, name=name: {name: a})[not (op.single or op.selective) :]:
            array = garbage(value)
            got = FUNCTIONS[op.name](**good, **keywords, panel=panel, out=wrapped(array))
            assert fields(op, got)[name] is array
            assert array.tobytes() == value.tobytes()
        if op.selective:  # a field asked for twice is one field; the others get arrays of their own
            again = FUNCTIONS[op.name](**good, wrt=[name, name], panel=panel, out=array)
            assert getattr(again, name) is array
            array = garbage(value)
            got = call(op, good, panel=panel, out={name: array})
            assert_same_bits(got, expected)
            assert got[name] is array


ODD = [0, -1, 2**31, 2**48, 2**62, 2**63, 2**70, 10**400, 10**5000, -(2**70), True, None, 1.5, np.nan, np.inf, 3j]
ODD += ["3", b"3", [3], (3,), {}, object(), type, slice(3), range(3), ..., np.int8(3), np.uint64(2**64 - 1)]
ODD += [np.float16(2), np.longdouble(2), np.datetime64("2020"), fractions.Fraction(1, 2), np.ma.masked]
ODD += [np.array(a) for a in (3, [3], 2**62, True, 2.0, "sum", None, [], [2**63 - 1, 0], [0, -(2**63)], [True, False])]
ODD += [np.zeros((0, 3)), np.array([0, 2**31 - 1], np.int32)]


@pytest.mark.parametrize("op", ALL)
def test_odd_values_are_taken_or_refused_by_name(op):
    """A TypeError or ValueError that names the operator; nothing else, whatever comes."""
    good, function = draw(op), FUNCTIONS[op.name]

    def refused(name, value):
        try:
            function(**(good | {name: value}))
        except Exception as error:
            return error
        return None

    for name in inspect.signature(function).parameters:
        for value in ODD:
            error = refused(name, value)
            assert type(error) in (type(None), TypeError, ValueError), (name, value, error)
            assert error is None or str(error).startswith(f"{op.name}: "), (name, value, error)


# Memory layouts


def strided(a):
    return np.repeat(a, 2, axis=-1)[..., ::2]


def reversed_view(a):
    return a[::-1].copy()[::-1]


def unaligned(a):
    moved = empty_like(a.shape, offset=1, dtype=a.dtype)
    moved[...] = a
    assert not moved.flags.aligned
    return moved


def read_only(a):
    a = a.copy()
    a.setflags(write=False)
    return a


class Subclass(np.ndarray):
    def __add__(self, other):
        raise AssertionError("arithmetic of a subclass")

    __radd__ = __mul__ = __matmul__ = __rmatmul__ = __add__


LAYOUTS = {
    "strided": strided,
    "Fortran order": np.asfortranarray,
    "reversed": reversed_view,
    "unaligned": unaligned,
    "read-only": read_only,
    "broadcast": lambda a: np.broadcast_to(a, (2, *a.shape))[1],
    "subclass": lambda a: a.view(Subclass),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("panel", CPU_PANELS)
@pytest.mark.parametrize("op", ALL)
def test_layouts_give_the_same_bits(op, panel, layout):
    for dtype in (np.float32, np.float64):
        good = draw(op, dtype)
        expected = call(op, good, panel=panel)
        other = {name: LAYOUTS[layout](v) if isinstance(v, np.ndarray) else v for name, v in good.items()}
        assert_same_bits(call(op, other, panel=panel), expected)
        for name, value in good.items():  # inputs are left alone
            assert not isinstance(value, np.ndarray) or np.array_equal(value, other[name])
