"""Panels: one set of names and signatures, one way to call, one kind of result."""

import importlib
import inspect
import pickle
import re

import numpy as np
import pytest
from table_calls import CPU_PANELS, OPS, assert_close, assert_same_bits, call, draw, fields

import trigraph
from trigraph import results
from trigraph.graphs import to_device
from trigraph.panels import FUNCTIONS, PANELS, panel_function
from trigraph.panels import front_door as panels
from trigraph.table import DEFINITIONS, OPERATORS, result_type

ALL = [pytest.param(op, id=op.name) for op in OPS]
SELECTIVE = [pytest.param(op, id=op.name) for op in OPS if op.selective]
# The GPU panel shares its functions with gpu-host, which every machine can import.
IMPORTABLE = (*CPU_PANELS, "gpu")


def device():
    """Return CuPy, or skip: the only skip there is, for lack of a GPU."""
    cupy = pytest.importorskip("cupy", reason="no CuPy")
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:
        pytest.skip("no CUDA device")
    return cupy


# Names and signatures


def test_public_names():
    public = set(trigraph.__all__) - set(OPERATORS)
    assert len(trigraph.__all__) == len(set(trigraph.__all__))
    assert set(OPERATORS) < set(trigraph.__all__)
    assert {"CSC", "OPERATORS", "PANELS", "get_num_threads", "set_num_threads"} < public
    assert {"pack_gno_params", "unpack_gno_params"} < public
    for name in trigraph.__all__:
        assert hasattr(trigraph, name)
    namespace = {}
    exec("from trigraph import *", namespace)
    assert set(trigraph.__all__) == namespace.keys() - {"__builtins__"}
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", trigraph.__version__)


def test_public_objects_have_docstrings():
    for name in trigraph.__all__:
        value = getattr(trigraph, name)
        if callable(value):
            assert inspect.getdoc(value).strip()
            assert value.__module__.startswith("trigraph")


@pytest.mark.parametrize("op", ALL)
def test_signature_of_the_front_door(op):
    function = getattr(trigraph, op.name)
    signature = inspect.signature(function)
    positional = [*op.parameters, *(["wrt"] if op.selective else [])]
    assert list(signature.parameters) == [*positional, "out", "panel"]
    defaults = {a.name: a.default for a in op.attributes} | dict.fromkeys(("wrt", "out", "panel"))
    defaults |= dict.fromkeys(a.name for a in op.arguments if a.keyword)
    defaults |= dict.fromkeys(op.graph.optional if op.graph else ())
    for name, parameter in signature.parameters.items():
        keyword = name in ("out", "panel")
        assert parameter.kind is (parameter.KEYWORD_ONLY if keyword else parameter.POSITIONAL_OR_KEYWORD)
        assert parameter.default == defaults.get(name, parameter.empty)
    assert function.__name__ == function.__qualname__ == op.name
    assert pickle.loads(pickle.dumps(function)) is function


@pytest.mark.parametrize("panel", IMPORTABLE)
@pytest.mark.parametrize("op", ALL)
def test_signatures_of_the_panels(op, panel):
    function = panel_function(panel, op.name)
    signature = inspect.signature(function)
    expected = inspect.signature(getattr(trigraph, op.name)).parameters
    writes_out = panel != "pyref"  # its functions are formulas, which return new arrays
    names = [n for n in expected if n != "panel" and (writes_out or n != "out")]
    assert list(signature.parameters) == names
    for name in names:
        got, want = signature.parameters[name], expected[name]
        assert (got.name, got.kind, got.default) == (want.name, want.kind, want.default)
    assert function.__name__ == op.name
    assert function.__doc__.strip()


@pytest.mark.parametrize("panel", IMPORTABLE)
def test_panels_have_every_operator(panel):
    module = importlib.import_module(PANELS[panel][0])
    for name in OPERATORS:
        assert callable(getattr(module, name))


def test_definitions_and_operators():
    orders = {f"{d.name}_{order}" for d in DEFINITIONS for order in ("fwd", "bwd", "bwd2")}
    assert set(OPERATORS) == orders | {f"{d.name}_{r.suffix}" for d in DEFINITIONS for r in d.restrictions}
    assert FUNCTIONS.keys() == OPERATORS.keys()
    assert list(PANELS) == ["fortran", "fortran-reference", "pyref", "gpu", "gpu-host"]
    assert CPU_PANELS == ("fortran", "fortran-reference", "pyref", "gpu-host")


@pytest.mark.parametrize("op", ALL)
def test_docstring_names_everything(op):
    text = getattr(trigraph, op.name).__doc__
    parameters, returns = text.split("Parameters\n----------\n")[1].split("Returns\n-------\n")
    named = re.findall(r"^(\w+) : ", parameters, re.MULTILINE)
    assert named == list(inspect.signature(getattr(trigraph, op.name)).parameters)
    for a in op.arguments:
        numbers = "the graph's integers" if a.index else "float32 or float64"
        assert f"{a.name} : array of {numbers}, shape ({', '.join(a.dims)})" in parameters
        assert a.doc in " ".join(parameters.split())
        assert (f"{', '.join(a.dims)}), or None" in parameters) or not a.nullable
    for f in op.fields:
        assert re.search(rf"^ *{f.name} .*{re.escape(', '.join(f.dims))}", returns, re.MULTILINE)
    assert all(panel in parameters for panel in PANELS)
    assert op.formula in " ".join(text.split())
    for a in op.attributes:
        assert a.doc in " ".join(parameters.split())
        assert all(repr(choice) in parameters for choice in a.choices)
    assert op.definition.source in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 116
    assert "Raises\n------\n" in returns


# Calls and results


@pytest.mark.parametrize("panel", CPU_PANELS)
@pytest.mark.parametrize("op", ALL)
def test_panels_agree(op, panel):
    for dtype, index in ((np.float32, np.int32), (np.float64, np.int64)):
        values = draw(op, dtype, index)
        got = call(op, values, panel=panel)
        assert_close(got, call(op, values, panel="fortran-reference"))
        assert all(type(v) is np.ndarray and v.flags.c_contiguous for v in got.values())
        assert all(v.dtype == (index if v.dtype.kind == "i" else dtype) for v in got.values())
        assert all(v.flags.owndata or v.base is not None for v in got.values())


@pytest.mark.parametrize("op", ALL)
def test_the_device_agrees(op):
    cupy = device()
    for dtype, index in ((np.float32, np.int32), (np.float64, np.int64)):
        values = draw(op, dtype, index)
        got = call(op, {name: to_device(v) for name, v in values.items()})  # gpu is the default
        assert_close({n: cupy.asnumpy(v) for n, v in got.items()}, call(op, values, panel="fortran-reference"))


@pytest.mark.parametrize("panel", CPU_PANELS)
@pytest.mark.parametrize("op", ALL)
def test_positional_and_keyword_calls(op, panel):
    values, function = draw(op), FUNCTIONS[op.name]
    expected = call(op, values, panel=panel)
    for split in range(len(values) + 1):
        names = list(values)
        positional = [values[n] for n in names[:split]]
        keywords = {n: values[n] for n in reversed(names[split:])}
        assert_same_bits(fields(op, function(*positional, **keywords, panel=panel)), expected)


@pytest.mark.parametrize("op", ALL)
def test_the_default_is_the_fast_path(op, monkeypatch):
    values = draw(op)
    called = []

    def watched(panel, name):
        called.append((panel, name))
        return panel_function(panel, name)

    monkeypatch.setattr(panels, "panel_function", watched)
    expected = call(op, values, panel="fortran")
    assert_same_bits(call(op, values), expected)
    assert_same_bits(call(op, values, panel=None), expected)
    assert called == [("fortran", "execute")] * 3


@pytest.mark.parametrize("panel", CPU_PANELS)
@pytest.mark.parametrize("op", SELECTIVE)
def test_wrt(op, panel):
    values = draw(op)
    full = call(op, values, panel=panel)
    names = list(full)
    for i, name in enumerate(names):
        chosen = {n: v if n == name else None for n, v in full.items()}
        for wrt in (
            name,
            (name,),
            [name],
            {name},
            iter([name]),
            (n for n in [name, name]),
            {name: 1},
            np.array([name]),
        ):
            assert_same_bits(call(op, values, wrt=wrt, panel=panel), chosen)
        rest = {n: v if n != name else None for n, v in full.items()}
        assert_same_bits(call(op, values, wrt=names[:i] + names[i + 1 :], panel=panel), rest)
    assert_same_bits(call(op, values, wrt=reversed(names), panel=panel), full)
    assert_same_bits(call(op, values, wrt=None, panel=panel), full)
    assert_same_bits(call(op, values, wrt=(), panel=panel), dict.fromkeys(names))
    positional = FUNCTIONS[op.name](*values.values(), names[0], panel=panel)
    assert fields(op, positional)[names[0]].tobytes() == full[names[0]].tobytes()


@pytest.mark.parametrize("panel", CPU_PANELS)
@pytest.mark.parametrize("op", [pytest.param(op, id=op.name) for op in OPS if op.order == 2])
def test_a_cotangent_that_is_none_is_zero(op, panel):
    values = draw(op)
    nullable = [a.name for a in op.arguments if a.name.startswith("gg_")]
    for absent in [[n] for n in nullable] + [nullable]:
        none = values | dict.fromkeys(absent)
        zero = values | {n: np.zeros_like(values[n]) for n in absent}
        got = call(op, none, panel=panel)
        assert_close(got, call(op, zero, panel=panel))  # not to the bit: BLAS sums other numbers of terms otherwise
    assert not any(v.any() for v in got.values())  # linear in them


@pytest.mark.parametrize("panel", CPU_PANELS)
@pytest.mark.parametrize("op", ALL)
def test_inputs_are_left_alone(op, panel):
    values = draw(op)
    before = {n: v.copy() for n, v in values.items() if isinstance(v, np.ndarray)}
    got = call(op, values, panel=panel)
    for name, value in before.items():
        assert np.array_equal(values[name], value)
        assert not any(np.shares_memory(values[name], result) for result in got.values())


@pytest.mark.parametrize("op", ALL)
def test_results(op):
    result = FUNCTIONS[op.name](**draw(op))
    if op.single:
        assert type(result) is np.ndarray
        assert not hasattr(results, result_type(op.name).__name__)
        return
    kind = result_type(op.name)
    assert type(result) is kind
    assert getattr(results, kind.__name__) is kind
    assert kind.__module__ == "trigraph.results"
    assert result._fields == tuple(f.name for f in op.fields)
    assert isinstance(result, tuple)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        other = pickle.loads(pickle.dumps(result, protocol))
        assert type(other) is kind
        assert_same_bits(other._asdict(), result._asdict())
    partial = pickle.loads(pickle.dumps(result._replace(**{result._fields[0]: None})))
    assert partial[0] is None


def test_order_of_results():
    for op in OPS:
        inputs = [a.name for a in op.definition.inputs]
        grads = [f"grad_{a.name}" for a in op.definition.outputs]
        outputs = [a.name for a in op.definition.outputs + op.definition.auxiliary]
        expected = {0: outputs, 1: inputs, 2: grads + inputs}[op.order]
        wanted = op.restriction.fields if op.restriction else expected
        assert [f.name for f in op.fields] == [name for name in expected if name in wanted]
        assert op.order == 2 or not op.restriction
