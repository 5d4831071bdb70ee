"""Tests that dtypes reach Fortran unchanged: f2py would map an unknown kind to C float, and cast silently."""

import importlib
import pkgutil
import re
from fractions import Fraction

import numpy as np
import pytest
from programs import run_command
from table_calls import OPS_WITH_BWD3, draw_operator_arguments, map_fields_to_arrays

import trigraph.fortran
from trigraph.fortran import judge, reference
from trigraph.fortran.levels import LIBRARY
from trigraph.table import OPERATORS

MODULES = sorted(m.name for m in pkgutil.iter_modules(trigraph.fortran.__path__) if re.match("_(ref|jud|fast)", m.name))
# f2py's type characters, by the suffix of a function's name.
DTYPE_LETTERS = {"f32": "f", "f64": "d", "i32": "i", "i64": "ql"}
STEP = 2.0**-40  # 1 + STEP is a float64 that float32 rounds to 1


def list_wrapped_functions(module):
    """Return an extension module's wrapped functions by name."""
    members = {n: getattr(module, n) for n in dir(module) if not n.startswith("_")}
    return {n: f for n, f in members.items() if type(f).__name__ == "fortran"}


def read_type_characters(function):
    """Return the type characters of all arrays in a function's f2py docstring."""
    return set(re.findall(r"^\w+ : (?:input|in/output|output) rank-\d array\('(.)'\)", function.__doc__, re.MULTILINE))


@pytest.mark.parametrize("module", MODULES)
def test_wrapped_arrays_have_dtypes_of_name(module):
    """Every wrapped function's arrays have the dtypes in its name (`trigraph verify` calls all of the functions)."""
    wrapped = list_wrapped_functions(importlib.import_module(f"trigraph.fortran.{module}"))
    assert len(wrapped) > len(OPERATORS)
    for name, function in wrapped.items():
        kinds = ["f64"] if name == "dot" else re.findall(r"_([fi](?:32|64))(?=_|$)", name)
        if kinds:  # other functions are not operators
            assert read_type_characters(function) <= set("".join(map(DTYPE_LETTERS.get, kinds))), name
            assert read_type_characters(function) >= set(DTYPE_LETTERS[kinds[0]]), name


def make_arguments_of_ones(op):
    """Return arguments of ones, so that every argument affects the results, except where 1 is a special value.

    These arguments stay random: a distance of 1 is the cutoff, and vectors of ones would all be parallel.
    """
    defaults = {a.name: a.default for a in op.attributes if a.choices}
    values = draw_operator_arguments(op, setting=defaults, d=1, hidden=2)
    special = {a.name for a in op.arguments if a.degree is None}
    plain = [n for n, v in values.items() if isinstance(v, np.ndarray) and n not in special]
    return values | {name: np.ones_like(values[name]) for name in plain}


def make_distinct_factors(array):
    """Return distinct factors near one, which change even results that depend only on directions."""
    return np.linspace(0.25, 1.75, array.size).reshape(array.shape)


def compute_largest_change(after, before):
    """Return the largest change of hi + lo, divided by the largest value if that exceeds one."""
    changes = np.abs((after[0] - before[0]) + (after[1] - before[1]))  # the difference of nearby high parts is exact
    return np.max(changes, initial=0) / max(1, np.max(np.abs(before[0]), initial=0))


def test_the_judge_keeps_both_halves_of_a_pair():
    for op in OPS_WITH_BWD3:
        back = {a.name: None for a in op.arguments if a.given_back}  # None: the judge recomputes the results of fwd
        good = {
            name: judge.make_exact_pair(v) if isinstance(v, np.ndarray) else v
            for name, v in (make_arguments_of_ones(op) | back).items()
        }
        function = getattr(judge, op.name)
        plain = {n: v for n, v in map_fields_to_arrays(op, function(**good)).items() if v.dtype.kind == "f"}
        for a in op.select_present_arguments(good):
            for half, step in ((0, STEP), (1, STEP), (1, 2.0**-80)):
                moved = good[a.name].copy()
                moved[half] += step * make_distinct_factors(moved[half])
                got = map_fields_to_arrays(op, function(**(good | {a.name: moved})))
                change = max(compute_largest_change(got[name], plain[name]) for name in plain)
                assert step / 64 < change < 1e4 * step, (op.name, a.name, half, step)


def test_judge_pairs_are_exact():
    x, v = np.random.default_rng(0).standard_normal((2, 50))
    for step in (0.0, 2.0**-30, 2.0**-70, 2.0**-200):
        pairs = judge.make_exact_pair(x, step, v)
        assert np.array_equal(pairs[0], x + step * v)
        for numbers in zip(*pairs, x, v, strict=True):
            hi, lo, a, b = map(Fraction, numbers)
            assert hi + lo == a + Fraction(step) * b


def test_dot_is_exact_beyond_float64():
    a = np.array([1.0, 1.0, -1.0])
    b = np.array([1.0, 2.0**-70, 1.0])
    hi, lo, scale = judge.compute_dot_and_scale(judge.make_exact_pair(a), judge.make_exact_pair(b))
    assert hi + lo == 2.0**-70
    assert scale == 2.0
    assert judge.compute_dot_and_scale(np.zeros((2, 0)), np.zeros((2, 0))) == (0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="dot: shapes"):
        judge.compute_dot_and_scale(np.zeros((2, 3)), np.zeros((2, 4)))


@pytest.mark.parametrize("backend", [reference, trigraph.fortran], ids=["reference", "fast"])
def test_sizes_beyond_int32_are_refused(backend):
    op = OPERATORS["gno_kernel_fwd"]
    values = draw_operator_arguments(op, num_edges=1)
    huge = np.broadcast_to(values["coords"], (2**31, values["coords"].shape[1]))
    with pytest.raises(ValueError, match=rf"^{op.name}: num_edges is 2147483648; .* at most 2147483647$"):
        getattr(backend, op.name)(**(values | {"coords": huge}))


def test_libraries_need_no_libgfortran():
    """Wheels do not contain libgfortran, which may need a newer C library than the one that wheels require."""
    files = [importlib.import_module(f"trigraph.fortran.{module}").__file__ for module in MODULES]
    for file in [*files, *LIBRARY.parent.glob("libtrigraph*.so")]:
        symbols = run_command("nm", "--dynamic", "--undefined-only", file).stdout
        assert "_fast" in str(file) or "torch" in str(file) or "malloc" in symbols
        assert re.findall(r"_gfortran\w+", symbols) == [], file
