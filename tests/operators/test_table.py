"""The operator table agrees with itself and with the files of the panels."""

import inspect
import re
from pathlib import Path

import pytest

import trigraph
from trigraph import pyref
from trigraph.checks import choice_number, shape_of
from trigraph.table import DEFINITIONS, GRAPHS, OPERATORS, SYMBOLS, evaluate

DEFS = [pytest.param(d, id=d.name) for d in DEFINITIONS]
ROOT = Path(__file__).parents[2]


def typical(definition, k=0):
    """Sizes, presence of everything optional, and places of the default choices."""
    sizes = {s: SYMBOLS[s].typical[k % len(SYMBOLS[s].typical)] for s in definition.symbols}
    sizes |= {f"has_{n}": 1 for n in definition.optional}
    return sizes | {a.name: choice_number(a.choices, a.default) for a in definition.attributes if a.choices}


def test_symbols():
    for symbol in SYMBOLS.values():
        assert symbol.maximum is None or max(symbol.typical) <= symbol.maximum
        assert all(n > symbol.minimum or n == 1 for n in symbol.typical)
    used = {s for d in DEFINITIONS for s in d.symbols}
    assert used == SYMBOLS.keys()  # nothing unknown, nothing dead


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
    assert len(definition.formulas) == len(definition.operations) == 3
    for a in definition.attributes:
        assert [bool(a.choices), a.real, a.name in SYMBOLS].count(True) == 1
        assert a.required or a.real or a.default in (a.choices or range(SYMBOLS[a.name].minimum, 100))
        assert {choice for choice, _ in a.requires} <= set(a.choices)
        graph_type = getattr(trigraph, GRAPHS[definition.graph].type_name) if definition.graph else None
        assert all(callable(getattr(graph_type, method)) for _, method in a.requires)
    for kink in definition.kinks:
        assert kink.resample in [a.name for a in definition.inputs]
        parameters = list(inspect.signature(getattr(pyref, kink.function)).parameters)
        assert parameters == list(OPERATORS[f"{definition.name}_fwd"].parameters)


@pytest.mark.parametrize("definition", DEFS)
def test_expressions(definition):
    """Sizes follow from them, and numbers of operations that grow with the order of the derivative."""
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
