"""Tests that the checks detect errors in memory layout, threads, CPU levels, batches, float16, `out` and NaN."""

from functools import partial

import numpy as np
import pytest
from test_verification_cases import build_named_case

from trigraph import get_cpu_level, pyref
from trigraph.fortran import levels
from trigraph.fortran.threads import get_num_threads
from trigraph.table import OPERATORS
from trigraph.verification import nonfinite, subjects
from trigraph.verification.cases import build_case, list_variants
from trigraph.verification.half import check_every_half_number, check_half_precision
from trigraph.verification.implementation import make_user_subject
from trigraph.verification.judged import JudgedCase
from trigraph.verification.nonfinite import check_nonfinite_propagation, list_replacements
from trigraph.verification.properties import (
    check_case_in_batch,
    check_cpu_levels,
    check_out_arrays,
    check_result_layout,
    check_thread_counts,
)
from trigraph.verification.subjects import make_backend_subject

NAME = "gno_kernel_bwd"


def make_judged_case(name, variant="regular", **setting):
    return JudgedCase(build_named_case(OPERATORS[name].definition.name, variant, **setting))


def collect_layout_notes(function, name=NAME):
    checks = check_result_layout(
        make_user_subject("user:function", name, function), make_judged_case(name), OPERATORS[name]
    )
    assert all(c.passed == (c.note == "") for c in checks)
    return {c.field: c.note for c in checks}


class FirstResultRepeater:
    def __call__(self, **arguments):
        if not hasattr(self, "result"):
            self.result = pyref.gno_kernel_bwd(**arguments)
        return self.result


def make_field_changer(field, change):
    def compute_with_changed_field(**arguments):
        result = pyref.gno_kernel_bwd(**arguments)
        return result._replace(**{field: change(getattr(result, field), arguments)})

    return compute_with_changed_field


def make_read_only(array, arguments):
    array.setflags(write=False)
    return array


@pytest.mark.parametrize(
    ("function", "field", "note"),
    [
        (make_field_changer("coords", lambda a, _: np.asfortranarray(a)), "coords", "expected a C-contiguous array"),
        (make_field_changer("params", lambda a, _: np.repeat(a, 2)[::2]), "params", "expected a C-contiguous array"),
        (
            make_field_changer("coords", lambda a, _: a.astype(np.float32)),
            "coords",
            "dtype is float32; expected float64",
        ),
        (make_field_changer("coords", make_read_only), "coords", "it is read-only"),
        (make_field_changer("coords", lambda a, v: v["coords"]), "coords", "it shares memory with argument coords"),
        (FirstResultRepeater(), "coords", "it shares memory with an earlier result's field coords"),
        (make_field_changer("coords", lambda a, _: a.tolist()), "coords", "it is a list; expected an array"),
    ],
)
def test_wrong_layouts_are_found(function, field, note):
    assert note in collect_layout_notes(function)[field]


def test_fields_that_share_memory_are_found():
    def return_overlapping_fields(**arguments):
        result = pyref.mha_gat_n2n_bwd(**arguments)
        both = np.concatenate([result.src_embedding, result.dst_embedding])
        first, second = both[: len(result.src_embedding)], both[1:][: len(result.dst_embedding)]
        return {"src_embedding": first, "dst_embedding": second, **{n: getattr(result, n) for n in result._fields[2:]}}

    remarks = collect_layout_notes(return_overlapping_fields, "mha_gat_n2n_bwd")
    assert "shares memory with field src_embedding" in remarks["dst_embedding"]


def test_layout_notes_name_raised_exceptions():
    def raise_system_exit(**arguments):
        raise SystemExit(0)

    assert set(collect_layout_notes(raise_system_exit).values()) == {"SystemExit: 0"}
    assert set(collect_layout_notes(lambda **arguments: pyref.gno_kernel_bwd(**arguments)).values()) == {""}


def test_one_channel_case_has_one_spherical_degree():
    case = make_judged_case("agg_edge_to_edge_fwd", "one channel").case
    assert case.sizes["num_spherical"] == 1
    assert min(case.sizes[n] for n in ("num_radial", "n_mid")) > 1
    assert case.values["weights"].shape[0] > 1


def patch_operator_last_bit(monkeypatch, name, where):
    """Patch an operator to change the last bit of the first number of its result if ``where(result)``."""
    good = subjects.FUNCTIONS[name]

    def compute_with_flipped_bit(**arguments):
        result = good(**arguments)
        array = result[0] if isinstance(result, tuple) else result
        if where(array):
            array.flat[0] = np.nextafter(array.flat[0], array.dtype.type(np.inf))
        return result

    monkeypatch.setitem(subjects.FUNCTIONS, name, compute_with_flipped_bit)


def test_other_bits_with_two_threads_are_found(monkeypatch):
    patch_operator_last_bit(monkeypatch, "gno_kernel_fwd", lambda array: get_num_threads() == 2)
    (check,) = check_thread_counts(
        make_backend_subject("fortran"), make_judged_case("gno_kernel_fwd"), OPERATORS["gno_kernel_fwd"]
    )
    assert (check.kind, check.passed, check.error) == ("threads", False, 1.0)


def test_other_bits_in_a_batch_are_found(monkeypatch):
    case, op = make_judged_case("gno_aggregate_fwd"), OPERATORS["gno_aggregate_fwd"]
    patch_operator_last_bit(monkeypatch, op.name, lambda array: len(array) == case.case.sizes["num_dst_nodes"])
    (check,) = check_case_in_batch(make_backend_subject("fortran"), case, op, 0)
    assert (check.kind, check.passed, check.error) == ("batch", False, 1.0)


def test_a_wrong_last_bit_of_half_precision_is_found(monkeypatch):
    op, half = OPERATORS["mha_gat_n2n_fwd"], np.float16
    variant = next(v for v in list_variants(op.definition) if v.name == "regular")
    case = JudgedCase(build_case(op.definition, variant, "float32", 0, "float16"))
    assert all(c.passed for c in check_half_precision(make_backend_subject("gpu-host"), case, op))
    patch_operator_last_bit(monkeypatch, op.name, lambda array: array.dtype == half)
    failed = [c.field for c in check_half_precision(make_backend_subject("gpu-host"), case, op) if not c.passed]
    assert failed == ["output_embedding"]
    patch_operator_last_bit(monkeypatch, "mha_gat_n2n_bwd", lambda array: array.dtype == half)
    (check,) = check_every_half_number(make_backend_subject("gpu-host"), "float16")
    assert (check.passed, check.error) == (False, 1.0)


@pytest.mark.skipif(
    not set(levels.EQUAL_BITS) <= set(levels.list_runnable_levels()), reason="the processor lacks one of the levels"
)
def test_other_bits_and_values_at_one_level_are_found(monkeypatch):
    op = OPERATORS["gno_kernel_fwd"]
    good = subjects.FUNCTIONS[op.name]
    patch_operator_last_bit(monkeypatch, op.name, lambda array: get_cpu_level() == "v3")
    failed = [
        c for c in check_cpu_levels(make_backend_subject("fortran"), make_judged_case(op.name), op) if not c.passed
    ]
    assert [(c.kind, c.error) for c in failed] == [("levels", 1.0)]

    def double_at_v3(**arguments):
        return good(**arguments) * (2 if get_cpu_level() == "v3" else 1)

    monkeypatch.setitem(subjects.FUNCTIONS, op.name, double_at_v3)
    failed = [
        c for c in check_cpu_levels(make_backend_subject("fortran"), make_judged_case(op.name), op) if not c.passed
    ]
    assert [(c.kind, c.case) for c in failed] == [("accuracy", "regular, v3"), ("levels", "regular")]


def test_wrong_writes_to_out_are_found(monkeypatch):
    op = OPERATORS["gno_aggregate_fwd"]
    case = make_judged_case(op.name)
    good = subjects.FUNCTIONS[op.name]

    def skip_first_row(out=None, **arguments):
        made = good(**arguments)
        if out is None:
            return made
        out["message"][1:] = made[1:]
        return out["message"]

    def ignore_out(out=None, **arguments):
        return good(**arguments)

    def write_beyond_out(out=None, **arguments):
        made = good(out=out, **arguments)
        if out is not None:
            after = np.lib.stride_tricks.as_strided(made, (made.size + 1,), (made.itemsize,))
            after[-1] = 0
        return made

    for function, error in ((skip_first_row, 2 * case.case.sizes["f_out"]), (ignore_out, 2), (write_beyond_out, 2)):
        monkeypatch.setitem(subjects.FUNCTIONS, op.name, function)
        (check,) = check_out_arrays(make_backend_subject("pyref"), case, op)
        assert not check.passed
        assert check.error == error


def find_failing_nonfinite_values(subject, case, op, name):
    """Return the non-finite values for which the check fails when they are put into an argument."""
    (argument,) = (a for a in op.arguments if a.name == name)
    wrong = {}
    for spoiler in list_replacements(argument):
        _, fields = nonfinite._call_and_count_wrong_elements(subject, case, op, name, spoiler)
        wrong[spoiler] = [error for error, _ in fields.values() if not error <= 0]
    assert all(c.passed for c in check_nonfinite_propagation(subject, case, op, name)) == (not any(wrong.values()))
    return {str(spoiler.value) for spoiler, errors in wrong.items() if errors}


def test_swallowed_or_spread_nan_is_found(monkeypatch):
    op = OPERATORS["agg_weighted_n2n_fwd"]
    good, case = subjects.FUNCTIONS[op.name], make_judged_case(op.name, op="max")

    def compute_changed_fields(change, **arguments):
        made = good(**arguments)
        return made._replace(**{n: a for n, a in change(made).items() if a is not None})

    def replace_nan(made):
        return {"output_embedding": np.nan_to_num(made.output_embedding, nan=0.0, posinf=np.inf, neginf=-np.inf)}

    def shift_nan_locations(made):
        location = made.output_extrema_location
        return {"output_extrema_location": location + np.isnan(made.output_embedding)}

    def spread_nan(made):
        return {"output_embedding": made.output_embedding + 0 * made.output_embedding.sum()}

    for change, expected in ((replace_nan, {"nan"}), (shift_nan_locations, {"nan"}), (spread_nan, {"nan", "inf"})):
        monkeypatch.setitem(subjects.FUNCTIONS, op.name, partial(compute_changed_fields, change))
        assert find_failing_nonfinite_values(make_backend_subject("pyref"), case, op, "embedding") == expected
