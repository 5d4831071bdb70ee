"""The operator table agrees with itself and with the files of the panels."""

import ast
import inspect
import re
from pathlib import Path

import pytest
from table_calls import ALL

import trigraph
from trigraph import pyref
from trigraph.checks import choice_number, shape_of
from trigraph.table import DEFINITIONS, GRAPHS, OPERATORS, SYMBOLS, evaluate, names_in, result_type

DEFS = [pytest.param(d, id=d.name) for d in DEFINITIONS]
ROOT = Path(__file__).parents[2]


def typical(definition, k=0):
    """Sizes, presence of everything optional, and places of the default choices."""
    sizes = {s: SYMBOLS[s].typical[k % len(SYMBOLS[s].typical)] for s in definition.symbols}
    sizes |= {f"has_{n}": 1 for n in definition.optional}
    return sizes | {a.name: choice_number(a.choices, a.default) for a in definition.attributes if a.choices}


def test_symbols():
    for name, symbol in SYMBOLS.items():
        assert name.isidentifier()
        assert symbol.doc
        assert symbol.minimum in (0, 1, 2)
        assert symbol.maximum is None or max(symbol.typical) <= symbol.maximum
        assert symbol.typical
        assert all(n > symbol.minimum or n == 1 for n in symbol.typical)
    used = {s for d in DEFINITIONS for s in d.symbols}
    assert used == SYMBOLS.keys()  # nothing unknown, nothing dead


def test_names_are_unique():
    assert len({d.name for d in DEFINITIONS}) == len(DEFINITIONS)
    assert len(OPERATORS) == 3 * len(DEFINITIONS) + sum(len(d.restrictions) for d in DEFINITIONS)
    assert len({result_type(name).__name__ for name in OPERATORS}) == len(OPERATORS)


@pytest.mark.parametrize("definition", DEFS)
def test_definition(definition):
    arrays = definition.inputs + definition.outputs + definition.auxiliary
    names = [a.name for a in arrays] + [a.name for a in definition.attributes]
    assert len(set(names)) == len(names)
    reserved = {"graph", "wrt", "out", "panel"}  # an output is no parameter, but grad_<output> is
    assert not reserved & (set(names) - {a.name for a in definition.outputs + definition.auxiliary})
    assert set(definition.given_back) <= {a.name for a in definition.outputs + definition.auxiliary}
    known = {a.name for a in definition.attributes} | set(definition.optional)
    assert all(set(setting) <= known for setting in definition.settings)
    assert definition.inputs
    assert definition.outputs
    assert definition.summary.endswith(".")
    assert definition.source
    assert all(definition.formulas)
    assert len(definition.formulas) == len(definition.operations) == 3
    assert definition.graph is None or definition.graph in GRAPHS
    for a in definition.inputs:
        assert a.degree is None or a.degree >= 1, "degree of each input"
    for a in (*arrays, *definition.attributes):
        assert a.name.isidentifier()
        assert a.doc.endswith(".")
    for a in definition.attributes:
        assert [bool(a.choices), a.real, a.name in SYMBOLS].count(True) == 1
        assert a.required or a.real or a.default in (a.choices or range(SYMBOLS[a.name].minimum, 100))
        assert {choice for choice, _ in a.requires} <= set(a.choices)
        graph_type = getattr(trigraph, GRAPHS[definition.graph].type_name) if definition.graph else None
        assert all(callable(getattr(graph_type, method)) for _, method in a.requires)
    for a in definition.inputs:
        assert not a.column or len(a.dims) == 1
    for kink in definition.kinks:
        assert kink.resample in [a.name for a in definition.inputs]
        parameters = list(inspect.signature(getattr(pyref, kink.function)).parameters)
        assert parameters == list(OPERATORS[f"{definition.name}_fwd"].parameters)


@pytest.mark.parametrize("definition", DEFS)
def test_expressions(definition):
    """Only sums and products of known symbols and whole numbers: they are evaluated, and read by people."""
    arrays = definition.inputs + definition.outputs + definition.auxiliary
    shapes = [dim for a in arrays for dim in a.dims]
    known = {*definition.symbols, *(f"has_{n}" for n in definition.optional)}
    known |= {a.name for a in definition.attributes if a.choices}
    for expression in (*shapes, *definition.operations, definition.terms):
        assert names_in(expression) <= known
        tree = ast.parse(expression, mode="eval")
        allowed = (ast.Expression, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Name, ast.Load, ast.Constant)
        assert all(isinstance(node, allowed) for node in ast.walk(tree)), expression
        assert {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} == names_in(expression)
    for k in range(3):
        sizes = typical(definition, k)
        for a in definition.inputs + definition.outputs:
            assert all(n >= 1 for n in shape_of(a, sizes))
        operations = [evaluate(e, sizes) for e in definition.operations]
        assert 0 < operations[0] < operations[1] < operations[2]
        assert evaluate(definition.terms, sizes) > 0
    zero = typical(definition) | {s: SYMBOLS[s].minimum for s in definition.symbols}
    zero |= {f"has_{n}": 0 for n in definition.optional}
    assert all(n >= 0 for a in definition.inputs + definition.outputs for n in shape_of(a, zero))


@pytest.mark.parametrize("op", ALL)
def test_arguments_and_fields(op):
    spec = op.definition
    inputs, outputs = ([a.name for a in arrays] for arrays in (spec.inputs, spec.outputs))
    expected = {
        0: inputs,
        1: [f"grad_{n}" for n in outputs] + inputs,
        2: [f"gg_{n}" for n in inputs] + [f"grad_{n}" for n in outputs] + inputs,
    }[op.order]
    expected = [*expected, *(spec.given_back if op.order == 1 else ())]
    if op.restriction:
        assert set(op.restriction.arguments) < set(expected)
        assert set(inputs) <= set(op.restriction.arguments)
        expected = [name for name in expected if name in op.restriction.arguments]
    assert [a.name for a in op.arguments] == expected
    optional = {a.name for a in spec.inputs if a.optional} | {a.name for a in op.arguments if a.given_back}
    assert [a.name for a in op.arguments if a.nullable] == [n for n in expected if n[:3] == "gg_" or n in optional]
    shapes = {a.name: a.shape for a in spec.inputs + spec.outputs + spec.auxiliary}
    for a in (*op.arguments, *op.fields):
        assert a.shape == shapes[a.name.removeprefix("grad_").removeprefix("gg_")]
    one = len(op.restriction.fields if op.restriction else (*outputs, *spec.auxiliary)) == 1
    assert op.single == (one and (op.order == 0 or op.restriction is not None))
    assert op.selective == (op.order > 0 and not op.single)
    known = outputs + [a.name for a in spec.auxiliary]
    fields = {0: known, 1: inputs, 2: [f"grad_{n}" for n in outputs] + inputs}[op.order]
    wanted = op.restriction.fields if op.restriction else fields
    assert [f.name for f in op.fields] == [name for name in fields if name in wanted]
    assert [a.name for a in op.binding_order][: len(inputs)] == inputs
    assert sorted(a.name for a in op.binding_order) == sorted(expected)
    assert list(op.signature.parameters) == [*op.parameters, *(["wrt"] if op.selective else [])]


def test_expressions_cannot_reach_anything_else():
    with pytest.raises(NameError):
        evaluate("open", {})
    with pytest.raises(NameError):
        evaluate("num_edges", {"d": 3})


def test_the_reference_borrows_nothing_of_the_fast_path():
    """Rooms of the Fortran sources include files, and use modules, of their own and of common/ alone."""
    used = re.compile(r"^ *(?:use (?:, intrinsic ::)?\s*(\w+)|#?:?include '([\w.]+)')", re.MULTILINE)
    for room in ("common", "reference", "fast"):
        here = [p for folder in (room, "common") for p in (ROOT / "fortran" / folder).iterdir() if p.suffix != ".c"]
        files = {p.name for p in here} | {"bessel_zeros.inc"}  # the build writes it
        modules = {m for p in here for m in re.findall(r"^module (\w+)$", p.read_text(), re.MULTILINE)}
        for path in (p for p in here if p.parent.name == room):
            for module, file in used.findall(path.read_text()):
                assert module in modules | {"omp_lib"} if module else file in files, (
                    path,
                    module,
                    file,
                )
