"""Elementwise comparison of a subject with the judge, and checks of shapes, dtypes, `wrt` and absent cotangents."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from slopecheck.record import Check, digest_array
from trigraph.checks import evaluate_shape
from trigraph.table import Array, Operator
from trigraph.verification import tolerances
from trigraph.verification.case import Case
from trigraph.verification.judged import JudgedCase, list_fwd_bwd_bwd2
from trigraph.verification.subjects import Subject, call_subject


def find_largest_error(errors: np.ndarray) -> float:
    """Return the largest error: 0 for an empty array, NaN if any error is NaN."""
    return float(np.max(errors)) if errors.size else 0.0


def compute_largest_scaled_error(
    got: np.ndarray, triple: np.ndarray, dtype: str, more: np.ndarray | float = 0.0
) -> float:
    """Return the largest |got - ref| / (eps * scale + tiny + more), or NaN if `got` or the judge's result contains NaN.

    The judge's result is an array (3, *got.shape) of hi, lo and scale. `got` was computed in `dtype`. `more` is an
    additional absolute error that a tolerance of 1 allows.
    """
    hi, lo, scale = triple
    with np.errstate(invalid="ignore", over="ignore"):
        difference = abs((np.asarray(got, np.float64) - hi) - lo)
        return find_largest_error(difference / (tolerances.eps(dtype) * scale + tolerances.tiny(dtype) + more))


def describe_wrong_dtype_or_shape(got: Any, field: Array, sizes: Mapping[str, int], dtype: str) -> str:
    """Describe what is wrong with a field's type, dtype or shape; return "" if nothing is wrong."""
    if not isinstance(got, np.ndarray):
        return f"{field.name} is a {type(got).__name__}; expected a numpy.ndarray"
    if str(got.dtype) != dtype:
        return f"{field.name} has dtype {got.dtype}; expected {dtype}"
    expected = evaluate_shape(field, sizes)
    if got.shape != expected:
        return f"{field.name} has shape {got.shape}; expected ({', '.join(field.dims)}) = {expected}"
    return ""


def find_expected_dtype(field: Array, case: Case) -> str:
    """Return the expected dtype of a field: the case's dtype or, for integers, the dtype of its graph."""
    return str(case.values["graph"].offsets.dtype) if field.index else case.dtype


def compute_field_error(got: np.ndarray, field: Array, expected: np.ndarray, dtype: str) -> float:
    """Return the error in units of eps * scale or, for integers, the number of wrong elements."""
    return (
        float(np.count_nonzero(got != expected)) if field.index else compute_largest_scaled_error(got, expected, dtype)
    )


def check_accuracy(
    subject: Subject,
    judged: JudgedCase,
    op: Operator,
    absent: tuple[str, ...] = (),
    back: Mapping[str, np.ndarray] | None = None,
) -> list[Check]:
    """Compare every field of an operator with the judge; the arguments in `absent` are None.

    `back` contains results of the subject's fwd to be passed to its bwd. For each field, one check records the error in
    units of eps * scale, which is infinite for a wrong dtype or shape. Another check (kind ``empty``) requires that
    elements without terms, for which the judge's scale is 0, are exactly 0.
    """
    case = judged.case
    outcome = call_subject(subject, op, judged.arguments(op, absent) | dict(back or {}))
    expected = judged.get_judge_triples(op, absent)
    name = ", ".join([case.name, *(f"{n}=None" for n in absent), *(f"given {n}" for n in back or ())])
    checks = []
    for field in case.list_returned_fields(op):
        got: Any = outcome.fields.get(field.name)
        note = describe_wrong_dtype_or_shape(got, field, case.sizes, find_expected_dtype(field, case))
        error = math.inf if note else compute_field_error(got, field, expected[field.name], case.dtype)
        tolerance = 0.0 if field.index else judged.tolerance(subject)
        check = judged.make_check(
            subject, op.name, "accuracy", field.name, error, tolerance, [outcome], note or case.note
        )
        check = replace(check, case=name, digest=None if note else digest_array(got))
        checks.append(check)
        if field.index:
            continue
        nothing = expected[field.name][2] == 0
        if nothing.any():
            error = math.inf if note else find_largest_error(abs(got[nothing]))
            checks.append(replace(check, kind="empty", error=error, tolerance=0.0, digest=None))
    return checks


def check_partial_calls(subject: Subject, judged: JudgedCase, op: Operator) -> list[Check]:
    """Check calls that request only some fields, or that omit one cotangent or all but one.

    Derivatives are called for one field at a time, and fwd without one of the auxiliary outputs that it returns only on
    request. Requested fields must be bitwise identical to the fields of a full call, and all others must be None; the
    error is the number of wrong fields. If ``gg_`` arguments are None, every field is compared with the judge, which
    treats None as zero.
    """
    case = judged.case
    checks = []
    for absent in _list_cotangents_to_omit(case, op):
        checks += check_accuracy(subject, judged, op, absent)
    checks += _check_bwd_given_fwd_results(subject, judged, op)
    requests = _list_subset_requests(case, op)
    if not requests:
        return checks
    every = call_subject(subject, op, case.arguments(op))
    for name, choice, wrt, fields in requests:
        some = call_subject(subject, op, case.arguments(op) | choice, wrt)
        wrong = [f.name for f in op.fields if not _matches_full_call(some.fields, every.fields, f.name, fields)]
        note = f"differ: {', '.join(wrong)}" if wrong else ""
        check = judged.make_check(subject, op.name, "repeat", fields[0], float(len(wrong)), 0.0, [some], note)
        checks.append(replace(check, case=f"{case.name}, {name}"))
    return checks


def _list_subset_requests(
    case: Case, op: Operator
) -> list[tuple[str, dict[str, bool], tuple[str, ...] | None, tuple[str, ...]]]:
    """Return (description, attribute, `wrt`, names of the selected fields) for each request of only some fields."""
    returned = [f.name for f in case.list_returned_fields(op)]
    if op.accepts_wrt:
        return [(f"{name} alone", {}, (name,), (name,)) for name in returned]
    requests = op.definition.request_names if op.order == 0 else ()
    sizes = [(name, {**case.sizes, name: 0}) for name in requests]
    return [
        (f"{n}=False", {n: False}, None, tuple(f.name for f in op.list_returned_fields(case.values, s)))
        for n, s in sizes
    ]


def count_partial_call_checks(case: Case, op: Operator) -> int:
    """Return the number of checks that `check_partial_calls` returns."""
    fields = len(case.list_returned_fields(op))
    back = len(_list_fwd_results_for_bwd(case, op))
    return fields * (len(_list_cotangents_to_omit(case, op)) + back + (back > 1)) + len(_list_subset_requests(case, op))


def _list_cotangents_to_omit(case: Case, op: Operator) -> list[tuple[str, ...]]:
    """Return the sets of cotangents to omit: each cotangent alone, and all except each cotangent."""
    ggs = [a.name for a in case.select_present_arguments(op) if a.nullable and not a.optional]
    some = [(name,) for name in ggs] + [tuple(other for other in ggs if other != name) for name in ggs]
    return list(dict.fromkeys(absent for absent in some if absent))


def _list_fwd_results_for_bwd(case: Case, op: Operator) -> set[str]:
    """Return the names of the results of fwd that bwd accepts."""
    fwd = list_fwd_bwd_bwd2(case.definition)[0]
    return {f.name for f in case.list_returned_fields(fwd)} & {a.name for a in op.arguments if a.given_back}


def _check_bwd_given_fwd_results(subject: Subject, judged: JudgedCase, op: Operator) -> list[Check]:
    """Check bwd with results of fwd as arguments, passed one at a time and all together."""
    fwd, names = list_fwd_bwd_bwd2(judged.case.definition)[0], _list_fwd_results_for_bwd(judged.case, op)
    if not names:
        return []
    outcome = call_subject(subject, fwd, judged.case.arguments(fwd))
    returned = {n: a for n, a in outcome.fields.items() if n in names and isinstance(a, np.ndarray)}
    trials = [{n: a} for n, a in returned.items()] + ([returned] if len(returned) > 1 else [])
    return [check for back in trials for check in check_accuracy(subject, judged, op, back=back)]


def _matches_full_call(some: Mapping[str, Any], every: Mapping[str, Any], name: str, asked: tuple[str, ...]) -> bool:
    got, reference = some.get(name, ""), every.get(name)
    if name not in asked:
        return got is None
    return (
        isinstance(got, np.ndarray)
        and isinstance(reference, np.ndarray)
        and digest_array(got) == digest_array(reference)
    )
