"""Tests that all backends have the same functions, signatures, calling conventions and result types."""

import ast
import graphlib
import importlib
import inspect
import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from table_calls import (
    CPU_BACKENDS,
    OPS,
    assert_same_bits,
    compute_fields,
    draw_operator_arguments,
    map_fields_to_arrays,
)
from table_errors import EACH_OPERATOR, SELECTIVE

import trigraph
from trigraph import pyref, results
from trigraph.backends import BACKENDS, FUNCTIONS, front_door, get_backend_function, third
from trigraph.checks import evaluate_shape, find_choice_index
from trigraph.table import DEFINITIONS, GRAPHS, OPERATORS, SYMBOLS, evaluate_expression, result_type

# The GPU backend shares its functions with gpu-host, which every machine can import.
IMPORTABLE = (*CPU_BACKENDS, "gpu")


# Names and signatures


def test_package_exports_operators_and_public_names():
    public = set(trigraph.__all__) - set(OPERATORS)
    assert len(trigraph.__all__) == len(set(trigraph.__all__))
    assert set(OPERATORS) < set(trigraph.__all__)
    assert {"CSC", "OPERATORS", "BACKENDS", "get_num_threads", "set_num_threads"} < public
    assert {"pack_gno_params", "unpack_gno_params"} < public
    for name in trigraph.__all__:
        assert hasattr(trigraph, name)
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", trigraph.__version__)


@pytest.mark.parametrize("backend", IMPORTABLE)
def test_backends_have_the_public_signatures(backend):
    module = importlib.import_module(BACKENDS[backend][0])
    for op in OPS:
        function, front = get_backend_function(backend, op.name), getattr(trigraph, op.name)
        expected = inspect.signature(front).parameters
        assert list(expected)[-2:] == ["out", "backend"]
        assert pickle.loads(pickle.dumps(front)) is front
        writes_out = backend != "pyref"  # pyref evaluates formulas, which return new arrays
        names = [n for n in expected if n != "backend" and (writes_out or n != "out")]
        assert list(inspect.signature(function).parameters) == names
        for name in names:
            for attribute in ("name", "kind", "default"):
                got, right = (getattr(p[name], attribute) for p in (inspect.signature(function).parameters, expected))
                assert got == right
        assert function.__name__ == op.name
        assert function.__doc__.strip()
        assert callable(getattr(module, op.name))


def test_operator_docstrings_name_arguments_and_fields():
    for op in OPS:
        text = getattr(trigraph, op.name).__doc__
        parameters, returns = text.split("Parameters\n----------\n")[1].split("Returns\n-------\n")
        named = re.findall(r"^(\w+) : ", parameters, re.MULTILINE)
        assert named == list(inspect.signature(getattr(trigraph, op.name)).parameters)
        for a in op.arguments:
            assert f"{a.name} : array of " in parameters
            assert (f"{', '.join(a.dims)}), or None" in parameters) or not a.nullable
        for f in op.fields:
            assert re.search(rf"^ *{f.name} .*{re.escape(', '.join(f.dims))}", returns, re.MULTILINE)
        raised = re.findall(r"^(\w+Error)$", returns.split("Raises\n------\n")[1], re.MULTILINE)
        assert raised == ["TypeError", "ValueError", "MemoryError", "ImportError"]


# Calls and result types (`trigraph verify` checks the values)


def test_positional_and_keyword_calls_agree():
    for (op,) in (each.values for each in EACH_OPERATOR):
        values, function = draw_operator_arguments(op), FUNCTIONS[op.name]
        expected = compute_fields(op, values)
        for split in range(len(values) + 1):
            names = list(values)
            positional = [values[n] for n in names[:split]]
            keywords = {n: values[n] for n in reversed(names[split:])}
            assert_same_bits(map_fields_to_arrays(op, function(*positional, **keywords)), expected)


# Operators implemented in the fast path; the other bwd3 functions call lower orders or pyref.
FAST_PATH_OPERATORS = [
    op for (op,) in (p.values for p in EACH_OPERATOR) if op.order < 3 or op.definition.has_native_bwd3
]


def test_default_backend_is_fortran(monkeypatch):
    called = []

    def record_and_get_function(backend, name):
        called.append((backend, name))
        return get_backend_function(backend, name)

    for module in (front_door, third):
        monkeypatch.setattr(module, "get_backend_function", record_and_get_function)
    for op in FAST_PATH_OPERATORS:
        values = draw_operator_arguments(op)
        called.clear()
        expected = compute_fields(op, values, backend="fortran")
        assert_same_bits(compute_fields(op, values), expected)
        assert_same_bits(compute_fields(op, values, backend=None), expected)
        assert called == [("fortran", "execute")] * 3, op.name


@pytest.mark.parametrize("op", SELECTIVE)
def test_wrt_accepts_any_iterable_of_names(op):
    """`wrt` may be any iterable of names (`trigraph verify` requests each field separately)."""
    values = draw_operator_arguments(op)
    full = compute_fields(op, values)
    names = list(full)
    name = names[-1]
    chosen = {n: v if n == name else None for n, v in full.items()}
    twice = (n for n in [name, name])
    for wrt in (name, (name,), [name], {name}, iter([name]), twice, {name: 1}, np.array([name])):
        assert_same_bits(compute_fields(op, values, wrt=wrt), chosen)
    rest = {n: v if n != name else None for n, v in full.items()}
    assert_same_bits(compute_fields(op, values, wrt=names[:-1]), rest)
    assert_same_bits(compute_fields(op, values, wrt=reversed(names)), full)
    assert_same_bits(compute_fields(op, values, wrt=None), full)
    assert_same_bits(compute_fields(op, values, wrt=()), dict.fromkeys(names))
    positional = FUNCTIONS[op.name](*values.values(), name)
    assert map_fields_to_arrays(op, positional)[name].tobytes() == full[name].tobytes()


def test_results_are_arrays_or_picklable_namedtuples():
    for op in OPS:
        result = FUNCTIONS[op.name](**draw_operator_arguments(op))
        if op.returns_array:
            assert type(result) is np.ndarray
            assert not hasattr(results, result_type(op.name).__name__)
            continue
        kind = result_type(op.name)
        assert type(result) is kind
        assert getattr(results, kind.__name__) is kind
        assert kind.__module__ == "trigraph.results"
        assert result._fields == tuple(f.name for f in op.fields)
        other = pickle.loads(pickle.dumps(result))
        assert type(other) is kind
        assert_same_bits(other._asdict(), result._asdict())


# The table is consistent with itself and with the backends' files.

DEFS = [pytest.param(d, id=d.name) for d in DEFINITIONS]
ROOT = Path(__file__).parents[2]


def typical_symbol_values(definition, k=0):
    """Return typical values of all symbols: sizes, 1 for has_<optional>, and the indices of the default choices."""
    sizes = {s: SYMBOLS[s].typical[k % len(SYMBOLS[s].typical)] for s in definition.symbols}
    sizes |= {f"has_{n}": 1 for n in definition.optional_names}
    return sizes | {a.name: find_choice_index(a.choices, a.default) for a in definition.attributes if a.choices}


def test_all_declared_symbols_are_used():
    for symbol in SYMBOLS.values():
        assert all(n > symbol.minimum or n == 1 for n in symbol.typical)
    for definition in DEFINITIONS:
        assert {name for name, _ in definition.maxima} <= set(definition.symbols)
        assert all(max(SYMBOLS[name].typical) <= maximum for name, maximum in definition.maxima)
    used = {s for d in DEFINITIONS for s in d.symbols}
    assert used == SYMBOLS.keys()  # every used symbol is declared, and every declared symbol is used


@pytest.mark.parametrize("definition", DEFS)
def test_operator_definitions_are_consistent(definition):
    arrays = definition.inputs + definition.outputs + definition.auxiliary
    names = [a.name for a in arrays] + [a.name for a in definition.attributes]
    assert len(set(names)) == len(names)
    reserved = {"graph", "wrt", "out", "backend"}  # an output is not a parameter, but grad_<output> is
    assert not reserved & (set(names) - {a.name for a in definition.outputs + definition.auxiliary})
    assert set(definition.given_back) <= {a.name for a in definition.outputs + definition.auxiliary}
    allowed = {a.name for a in definition.attributes} | set(definition.optional_names)
    assert all(set(setting) <= allowed for setting in definition.settings)
    assert len(definition.formulas) == len(definition.operations) == 3
    for a in definition.attributes:
        assert [bool(a.choices), a.real, a.name in SYMBOLS].count(True) == 1
        assert a.is_required or a.real or a.default in (a.choices or range(SYMBOLS[a.name].minimum, 100))
        assert {choice for choice, _ in a.requires} <= set(a.choices)
        graph_type = getattr(trigraph, GRAPHS[definition.graph].type_name) if definition.graph else None
        assert all(callable(getattr(graph_type, method)) for _, method in a.requires)
    for kink in definition.kinks:
        assert kink.resample in [a.name for a in definition.inputs]
        parameters = list(inspect.signature(getattr(pyref, kink.function)).parameters)
        fwd = OPERATORS[f"{definition.name}_fwd"].parameter_names
        assert parameters == [name for name in fwd if name not in definition.request_names]


@pytest.mark.parametrize("definition", DEFS)
def test_expressions_of_definitions_can_be_evaluated(definition):
    """All shapes and operation counts can be evaluated; the counts increase with the order of the derivative."""
    for k in range(3):
        sizes = typical_symbol_values(definition, k)
        for a in definition.inputs + definition.outputs:
            assert all(n >= 1 for n in evaluate_shape(a, sizes))
        operations = [evaluate_expression(e, sizes) for e in definition.operations]
        assert 0 < operations[0] < operations[1] < operations[2]
        assert evaluate_expression(definition.terms, sizes) > 0
    zero = typical_symbol_values(definition) | {s: SYMBOLS[s].minimum for s in definition.symbols}
    zero |= {f"has_{n}": 0 for n in definition.optional_names}
    assert all(n >= 0 for a in definition.inputs + definition.outputs for n in evaluate_shape(a, zero))


# Package -> parts of trigraph that the package may import, at the top of a module or within functions.
ALLOWED_IMPORTS = {
    "table": set(),
    "arrays": set(),
    "locks": set(),
    "graphs": {"arrays", "table"},
    "gno_params": {"arrays", "graphs"},
    "checks": {"arrays", "graphs", "table"},
    "backends": {"arrays", "checks", "gpu", "graphs", "table"},
    "pyref": {"arrays", "gno_params", "graphs", "table"},
    "fortran": {"arrays", "checks", "graphs", "table"},
    "gpu": {"arrays", "checks", "graphs", "locks", "table"},
    "torch": {"arrays", "backends", "checks", "fortran", "gpu", "graphs", "locks", "plain", "table"},
    "calculators": {"arrays", "graphs", "torch"},
    "jax": {"arrays", "checks", "fortran", "graphs", "plain", "table"},
    "compat": {"arrays", "graphs", "torch"},
    "distributed": {"arrays", "backends", "checks", "fortran", "graphs", "table", "torch"},
}


def list_trigraph_imports(text):
    """Return the parts of trigraph that a source file imports, that is, the words after `trigraph.` in module names."""
    names = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names += [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{a.name}" for a in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names.append(str(getattr(node.args[0], "value", "")))
    return {name.split(".")[1] for name in names if name.startswith("trigraph.")}


@pytest.mark.parametrize("package", ALLOWED_IMPORTS)
def test_packages_import_only_lower_packages(package):
    top = ROOT / "src" / "trigraph"
    sources = [*(top / package).rglob("*.py"), *top.glob(f"{package}.py")]
    assert sources
    for path in sources:
        assert list_trigraph_imports(path.read_text()) <= ALLOWED_IMPORTS[package] | {package}, path


def test_no_import_cycles():
    """Imports do not form a cycle, even if imports within functions are included."""
    top = ROOT / "src" / "trigraph"
    files = [Path(folder, name) for folder, _, names in os.walk(top, followlinks=True) for name in names]
    names = {
        "/".join(("trigraph", *p.relative_to(top).parts)).removesuffix(".py"): p for p in files if p.suffix == ".py"
    }
    modules = {name.removesuffix("/__init__").replace("/", "."): path for name, path in names.items()}
    graph = {}
    for module, path in modules.items():
        imports = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom) and n.module]
        named = [(n.module, f"{n.module}.{a.name}") for n in imports for a in n.names]
        graph[module] = {one if one in modules else package for package, one in named} - {"trigraph"}
    assert "trigraph.torch.plain" in graph["trigraph.torch.derivatives"]
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError if there is a cycle


def test_reference_and_fast_path_share_only_common():
    """Files in reference/ and fast/ include and use only files and modules from their own folder and from common/."""
    used = re.compile(r"^ *(?:use (?:, intrinsic ::)?\s*(\w+)|#?:?include '([\w.]+)')", re.MULTILINE)
    for folder_name in ("common", "reference", "fast"):
        here = [
            p for folder in (folder_name, "common") for p in (ROOT / "fortran" / folder).iterdir() if p.suffix != ".c"
        ]
        files = {p.name for p in here} | {"bessel_zeros.inc"}  # bessel_zeros.inc is generated
        modules = {m for p in here for m in re.findall(r"^module (\w+)$", p.read_text(), re.MULTILINE)}
        for path in (p for p in here if p.parent.name == folder_name):
            for module, file in used.findall(path.read_text()):
                assert module in modules | {"omp_lib"} if module else file in files, (path, module, file)
