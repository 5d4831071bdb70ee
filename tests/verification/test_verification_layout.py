"""Tests that the checks detect errors in memory layout, threads, CPU levels, batches, float16, `out` and NaN."""

from functools import partial

import numpy as np
import pytest
from test_verification_cases import find_case

from trigraph import get_cpu_level, pyref
from trigraph.fortran import levels
from trigraph.fortran.threads import get_num_threads
from trigraph.table import OPERATORS
from trigraph.verification import nonfinite, subjects
from trigraph.verification.cases import build_case, list_variants
from trigraph.verification.half import check_every_number, check_half
from trigraph.verification.implementation import make_user_subject
from trigraph.verification.judged import JudgedCase
from trigraph.verification.nonfinite import check_nonfinite, list_replacements
from trigraph.verification.properties import check_batch, check_layout, check_levels, check_out, check_threads
from trigraph.verification.subjects import make_backend_subject

NAME = "gno_kernel_bwd"


def judge_case(name, variant="regular", **setting):
    return JudgedCase(find_case(OPERATORS[name].definition.name, variant, **setting))


def collect_notes(function, name=NAME):
    checks = check_layout(make_user_subject("user:function", name, function), judge_case(name), OPERATORS[name])
    assert all(c.passed == (c.note == "") for c in checks)
    return {c.field: c.note for c in checks}


class ReturnsFirstResult:
    def __call__(self, **arguments):
        if not hasattr(self, "result"):
            self.result = pyref.gno_kernel_bwd(**arguments)
        return self.result


def change_arrays(field, change):
    def function(**arguments):
        result = pyref.gno_kernel_bwd(**arguments)
        return result._replace(**{field: change(getattr(result, field), arguments)})

    return function


def read_only(array, arguments):
    array.setflags(write=False)
    return array


@pytest.mark.parametrize(
    ("function", "field", "note"),
    [
        (change_arrays("coords", lambda a, _: np.asfortranarray(a)), "coords", "expected a C-contiguous array"),
        (change_arrays("params", lambda a, _: np.repeat(a, 2)[::2]), "params", "expected a C-contiguous array"),
        (change_arrays("coords", lambda a, _: a.astype(np.float32)), "coords", "dtype is float32; expected float64"),
        (change_arrays("coords", read_only), "coords", "it is read-only"),
        (change_arrays("coords", lambda a, v: v["coords"]), "coords", "it shares memory with argument coords"),
        (ReturnsFirstResult(), "coords", "it shares memory with an earlier result's field coords"),
        (change_arrays("coords", lambda a, _: a.tolist()), "coords", "it is a list; expected an array"),
    ],
)
def test_wrong_layouts_are_found(function, field, note):
    assert note in collect_notes(function)[field]


def test_fields_that_share_memory_are_found():
    def function(**arguments):
        result = pyref.mha_gat_n2n_bwd(**arguments)
        both = np.concatenate([result.src_embedding, result.dst_embedding])
        first, second = both[: len(result.src_embedding)], both[1:][: len(result.dst_embedding)]
        return {"src_embedding": first, "dst_embedding": second, **{n: getattr(result, n) for n in result._fields[2:]}}

    remarks = collect_notes(function, "mha_gat_n2n_bwd")
    assert "shares memory with field src_embedding" in remarks["dst_embedding"]


def test_what_is_raised_is_told():
    def function(**arguments):
        raise SystemExit(0)

    assert set(collect_notes(function).values()) == {"SystemExit: 0"}
    assert set(collect_notes(lambda **arguments: pyref.gno_kernel_bwd(**arguments)).values()) == {""}


def test_one_channel_has_an_axis_of_one_beside_others():
    case = judge_case("agg_edge_to_edge_fwd", "one channel").case
    assert case.sizes["num_spherical"] == 1
    assert min(case.sizes[n] for n in ("num_radial", "n_mid")) > 1
    assert case.values["weights"].shape[0] > 1


def flip_last_bit(monkeypatch, name, where):
    """Patch an operator to change the last bit of the first number of its result if ``where(result)``."""
    good = subjects.FUNCTIONS[name]

    def differs(**arguments):
        result = good(**arguments)
        array = result[0] if isinstance(result, tuple) else result
        if where(array):
            array.flat[0] = np.nextafter(array.flat[0], array.dtype.type(np.inf))
        return result

    monkeypatch.setitem(subjects.FUNCTIONS, name, differs)


def test_other_bits_with_two_threads_are_found(monkeypatch):
    flip_last_bit(monkeypatch, "gno_kernel_fwd", lambda array: get_num_threads() == 2)
    (check,) = check_threads(make_backend_subject("fortran"), judge_case("gno_kernel_fwd"), OPERATORS["gno_kernel_fwd"])
    assert (check.kind, check.passed, check.error) == ("threads", False, 1.0)


def test_other_bits_in_a_batch_are_found(monkeypatch):
    case, op = judge_case("gno_aggregate_fwd"), OPERATORS["gno_aggregate_fwd"]
    flip_last_bit(monkeypatch, op.name, lambda array: len(array) == case.case.sizes["num_dst_nodes"])
    (check,) = check_batch(make_backend_subject("fortran"), case, op, 0)
    assert (check.kind, check.passed, check.error) == ("batch", False, 1.0)


def test_a_wrong_last_bit_of_half_precision_is_found(monkeypatch):
    op, half = OPERATORS["mha_gat_n2n_fwd"], np.float16
    variant = next(v for v in list_variants(op.definition) if v.name == "regular")
    case = JudgedCase(build_case(op.definition, variant, "float32", 0, "float16"))
    assert all(c.passed for c in check_half(make_backend_subject("gpu-host"), case, op))
    flip_last_bit(monkeypatch, op.name, lambda array: array.dtype == half)
    failed = [c.field for c in check_half(make_backend_subject("gpu-host"), case, op) if not c.passed]
    assert failed == ["output_embedding"]
    flip_last_bit(monkeypatch, "mha_gat_n2n_bwd", lambda array: array.dtype == half)
    (check,) = check_every_number(make_backend_subject("gpu-host"), "float16")
    assert (check.passed, check.error) == (False, 1.0)


@pytest.mark.skipif(
    not set(levels.EQUAL_BITS) <= set(levels.list_runnable_levels()), reason="the processor lacks one of the levels"
)
def test_other_bits_and_values_at_one_level_are_found(monkeypatch):
    op = OPERATORS["gno_kernel_fwd"]
    good = subjects.FUNCTIONS[op.name]
    flip_last_bit(monkeypatch, op.name, lambda array: get_cpu_level() == "v3")
    failed = [c for c in check_levels(make_backend_subject("fortran"), judge_case(op.name), op) if not c.passed]
    assert [(c.kind, c.error) for c in failed] == [("levels", 1.0)]

    def wrong(**arguments):
        return good(**arguments) * (2 if get_cpu_level() == "v3" else 1)

    monkeypatch.setitem(subjects.FUNCTIONS, op.name, wrong)
    failed = [c for c in check_levels(make_backend_subject("fortran"), judge_case(op.name), op) if not c.passed]
    assert [(c.kind, c.case) for c in failed] == [("accuracy", "regular, v3"), ("levels", "regular")]


def test_out_that_is_not_written_is_found(monkeypatch):
    op = OPERATORS["gno_aggregate_fwd"]
    case = judge_case(op.name)
    good = subjects.FUNCTIONS[op.name]

    def write_partly(out=None, **arguments):
        made = good(**arguments)
        if out is None:
            return made
        out["message"][1:] = made[1:]
        return out["message"]

    def elsewhere(out=None, **arguments):
        return good(**arguments)

    def write_beyond(out=None, **arguments):
        made = good(out=out, **arguments)
        if out is not None:
            after = np.lib.stride_tricks.as_strided(made, (made.size + 1,), (made.itemsize,))
            after[-1] = 0
        return made

    for function, error in ((write_partly, 2 * case.case.sizes["f_out"]), (elsewhere, 2), (write_beyond, 2)):
        monkeypatch.setitem(subjects.FUNCTIONS, op.name, function)
        (check,) = check_out(make_backend_subject("pyref"), case, op)
        assert not check.passed
        assert check.error == error


def find_failing_values(subject, case, op, name):
    """Return the non-finite values for which the check fails when they are put into an argument."""
    (argument,) = (a for a in op.arguments if a.name == name)
    wrong = {}
    for spoiler in list_replacements(argument):
        _, fields = nonfinite._count_wrong_elements(subject, case, op, name, spoiler)
        wrong[spoiler] = [error for error, _ in fields.values() if not error <= 0]
    assert all(c.passed for c in check_nonfinite(subject, case, op, name)) == (not any(wrong.values()))
    return {str(spoiler.value) for spoiler, errors in wrong.items() if errors}


def test_nan_that_is_swallowed_or_travels_is_found(monkeypatch):
    op = OPERATORS["agg_weighted_n2n_fwd"]
    good, case = subjects.FUNCTIONS[op.name], judge_case(op.name, op="max")

    def change_arrays(change, **arguments):
        made = good(**arguments)
        return made._replace(**{n: a for n, a in change(made).items() if a is not None})

    def swallows(made):
        return {"output_embedding": np.nan_to_num(made.output_embedding, nan=0.0, posinf=np.inf, neginf=-np.inf)}

    def last_wins(made):
        location = made.output_extrema_location
        return {"output_extrema_location": location + np.isnan(made.output_embedding)}

    def travels(made):
        return {"output_embedding": made.output_embedding + 0 * made.output_embedding.sum()}

    for change, expected in ((swallows, {"nan"}), (last_wins, {"nan"}), (travels, {"nan", "inf"})):
        monkeypatch.setitem(subjects.FUNCTIONS, op.name, partial(change_arrays, change))
        assert find_failing_values(make_backend_subject("pyref"), case, op, "embedding") == expected
