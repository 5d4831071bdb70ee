"""The types that reach Fortran: f2py maps a kind it does not know to C float with a log line, and casts in silence."""

import importlib
import pkgutil
import re
from fractions import Fraction

import numpy as np
import pytest
from table_calls import ALL, draw, fields

import trigraph.fortran
from trigraph.fortran import judge, levels, reference
from trigraph.table import OPERATORS

MODULES = sorted(m.name for m in pkgutil.iter_modules(trigraph.fortran.__path__) if re.match("_(ref|jud|fast)", m.name))
SHIM_SETS = {"_reference": "reference", "_judge": "judge"}
REALS = {"f32": "f", "f64": "d"}
INDICES = {"i32": ("i",), "i64": ("q", "l")}
STEP = 2.0**-40  # 1 + STEP is a float64 that float32 rounds to 1


def functions(module):
    """Wrapped functions of an extension module by name."""
    found = {n: getattr(module, n) for n in dir(module) if not n.startswith("_")}
    return {n: f for n, f in found.items() if type(f).__name__ == "fortran"}


def arrays(function):
    """Parse f2py's docstring: argument -> (intent, rank, type character)."""
    pattern = r"^(\w+) : (input|in/output|output) rank-(\d) array\('(.)'\)"
    return {n: (i, int(r), c) for n, i, r, c in re.findall(pattern, function.__doc__, re.MULTILINE)}


def scalars(function):
    return re.findall(r"^(\w+) : input (\w+)$", function.__doc__, re.MULTILINE)


def expected_arrays(op, shims, real, index):
    rank = 2 if shims == "judge" else 1
    kind = REALS.get(real, "d")
    reverse = op.graph.reverse if op.graph and shims == "fast" and op.order else ()
    fast = op.graph.fast if op.graph and shims == "fast" else ()
    graph = (*op.graph.forward, *fast, *reverse) if op.graph else ()
    expected = {name: ("input", 1, INDICES[index or "i64"]) for name, _ in graph}
    integer = (1, INDICES[index or "i64"])
    given = [a for a in op.arguments if shims == "fast" or not a.given_back]
    expected |= {a.name: ("input", *(integer if a.index else (rank, (kind,)))) for a in given}
    expected |= {f"out_{f.name}": ("in/output", *(integer if f.index else (rank, (kind,)))) for f in op.fields}
    return {name.lower(): value for name, value in expected.items()}  # as f2py writes them


def test_every_module_is_there():
    assert {"_reference", "_judge"} < set(MODULES)
    assert any(name.startswith("_fast_") for name in MODULES)
    assert levels.fast_module().__name__.rpartition(".")[2] in MODULES


@pytest.mark.parametrize("module", MODULES)
def test_wrapped_types(module):
    shims = SHIM_SETS.get(module, "fast")
    found = functions(importlib.import_module(f"trigraph.fortran.{module}"))
    extra = {"refused_bytes"} | {"judge": {"dot"}, "reference": {"cpu_level"}, "fast": {"limit_blocks", "gather"}}[
        shims
    ]
    expected = set()
    for op in OPERATORS.values():
        for real in ("f64",) if shims == "judge" else REALS:
            for index in ("",) if op.graph is None else ("i64",) if shims == "judge" else INDICES:
                name = "_".join(filter(None, (op.name, real, index)))
                expected.add(name)
                got = arrays(found[name])
                want = expected_arrays(op, shims, real, index)
                assert got.keys() == want.keys(), name
                for array, (intent, rank, kinds) in want.items():
                    assert got[array][:2] == (intent, rank), (name, array)
                    assert got[array][2] in kinds, (name, array)
                sizes = {f"n_{a}" for a in want}
                wants = {f"want_{f.name}".lower() for f in op.fields} if op.selective else set()
                flags = {f"has_{n}".lower() for n in op.presence(shims == "fast")} | {*op.numbers}
                threads_argument = {"num_threads"} if shims == "fast" else set()
                given = dict(scalars(found[name]))
                assert given.keys() - sizes == threads_argument | {*op.definition.symbols, *op.choices} | wants | flags
                assert {given[n] for n in op.numbers} <= {"float"}
                assert {kind for n, kind in given.items() if n not in op.numbers} <= {"int", "long"}
    assert found.keys() == expected | extra


def test_the_judges_dot_takes_float64():
    from trigraph.fortran import _judge

    got = {name: (rank, kind) for name, (_, rank, kind) in arrays(_judge.dot).items()}
    assert got == {"a": (2, "d"), "b": (2, "d"), "total": (1, "d")}


def ones(op):
    """Arguments of ones: every mask holds, and every argument matters; numbers drawn where ones are special.

    Those are a cutoff, and vectors that are all parallel.
    """
    defaults = {a.name: a.default for a in op.attributes if a.choices}
    values = draw(op, setting=defaults, d=1, hidden=2)
    special = {a.name for a in op.arguments if a.degree is None}
    plain = [n for n, v in values.items() if isinstance(v, np.ndarray) and n not in special]
    return values | {name: np.ones_like(values[name]) for name in plain}


def factors(array):
    """Numbers near one, no two alike: what depends on directions alone depends on them."""
    return np.linspace(0.25, 1.75, array.size).reshape(array.shape)


def exact_change(after, before):
    """Largest change of hi + lo, relative to the largest value where that is above one."""
    changes = np.abs((after[0] - before[0]) + (after[1] - before[1]))  # hi - hi is exact where they are close
    return np.max(changes, initial=0) / max(1, np.max(np.abs(before[0]), initial=0))


@pytest.mark.parametrize("op", ALL)
def test_the_judge_keeps_both_halves_of_a_pair(op):
    back = {a.name: None for a in op.arguments if a.given_back}  # the judge computes it itself
    good = {name: judge.pair(v) if isinstance(v, np.ndarray) else v for name, v in (ones(op) | back).items()}
    function = getattr(judge, op.name)
    plain = {n: v for n, v in fields(op, function(**good)).items() if v.dtype.kind == "f"}
    for a in op.given(good):
        for half, step in ((0, STEP), (1, STEP), (1, 2.0**-80)):
            moved = good[a.name].copy()
            moved[half] += step * factors(moved[half])
            got = fields(op, function(**(good | {a.name: moved})))
            change = max(exact_change(got[name], plain[name]) for name in plain)
            assert step / 64 < change < 1e4 * step, (a.name, half, step)


def test_judge_pairs_are_exact():
    x, v = np.random.default_rng(0).standard_normal((2, 50))
    for step in (0.0, 2.0**-30, 2.0**-70, 2.0**-200):
        pairs = judge.pair(x, step, v)
        assert np.array_equal(pairs[0], x + step * v)
        for numbers in zip(*pairs, x, v, strict=True):
            hi, lo, a, b = map(Fraction, numbers)
            assert hi + lo == a + Fraction(step) * b


def test_dot_is_exact_beyond_float64():
    a = np.array([1.0, 1.0, -1.0])
    b = np.array([1.0, 2.0**-70, 1.0])
    hi, lo, scale = judge.dot(judge.pair(a), judge.pair(b))
    assert hi + lo == 2.0**-70
    assert scale == 2.0
    assert judge.dot(np.zeros((2, 0)), np.zeros((2, 0))) == (0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="dot: shapes"):
        judge.dot(np.zeros((2, 3)), np.zeros((2, 4)))


@pytest.mark.parametrize("panel", [reference, trigraph.fortran], ids=["reference", "fast"])
def test_sizes_that_fortran_cannot_count(panel):
    op = OPERATORS["gno_kernel_fwd"]
    values = draw(op, num_edges=1)
    huge = np.broadcast_to(values["coords"], (2**31, values["coords"].shape[1]))
    with pytest.raises(ValueError, match=rf"^{op.name}: num_edges is 2147483648; .* at most 2147483647$"):
        getattr(panel, op.name)(**(values | {"coords": huge}))
