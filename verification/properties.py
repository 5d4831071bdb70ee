"""Properties that hold for any values: adjointness, symmetry, independence of edge order, bitwise reproducibility."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np

from slopecheck.outcome import CallOutcome
from slopecheck.record import Check
from trigraph.checks import evaluate_shape
from trigraph.fortran import judge
from trigraph.fortran.levels import EQUAL_BITS, get_cpu_level, list_runnable_levels, set_cpu_level
from trigraph.fortran.threads import restore_num_threads, set_num_threads
from trigraph.table import Array, Operator
from trigraph.verification import tolerances
from trigraph.verification.accuracy import (
    check_accuracy,
    compute_field_error,
    compute_largest_scaled_error,
    describe_wrong_dtype_or_shape,
    find_expected_dtype,
)
from trigraph.verification.case import Case
from trigraph.verification.judged import JudgedCase, compute_with_judge, find_bwd3, list_fwd_bwd_bwd2
from trigraph.verification.subjects import Subject, call_and_record_outcome, call_subject, find_memory_extent
from trigraph.verification.transforms import embed_in_batch, list_fields_with_graph_axis, renumber_case

THREADS = (1, 2, 3)
# Backends in which the result for a node or edge is bitwise independent of the other nodes and edges of the call.
BATCH_INVARIANT = ("fortran", "fortran-reference", "gpu", "gpu-host")


def _sum_inner_products(weights: Mapping[str, np.ndarray], fields: Mapping[str, Any]) -> np.ndarray:
    """Return (hi, lo, scale) of the sum of <weight, field> over all names; NaN if a field is absent or malformed."""
    total = np.zeros(3)
    for name, weight in weights.items():
        field = fields.get(name)
        if not isinstance(field, np.ndarray) or field.shape != weight.shape:
            return np.full(3, math.nan)
        total += judge.compute_dot_and_scale(judge.make_exact_pair(weight), judge.make_exact_pair(field))
    return total


def _sum_weighted_scales(weights: Mapping[str, np.ndarray], triples: Mapping[str, np.ndarray]) -> float:
    return sum(float(np.sum(abs(weight) * triples[name][2])) for name, weight in weights.items())


def _check_equal_sums(
    subject: Subject,
    judged: JudgedCase,
    op: Operator,
    kind: str,
    sides: tuple[np.ndarray, np.ndarray],
    scale: float,
    calls: Sequence[CallOutcome],
) -> Check:
    """Return a check that two sums (hi, lo, scale) are equal up to the rounding of their factors."""
    (left, left_low, _), (right, right_low, _) = sides
    unit = tolerances.eps(judged.case.dtype) * scale + tolerances.tiny(judged.case.dtype)
    error = float(abs((left - right) + (left_low - right_low)) / unit)
    names = ", ".join(f.name for f in op.fields)
    return judged.make_check(subject, op.name, kind, names, error, judged.tolerance(subject), calls, judged.case.note)


def check_adjoint_identity(subject: Subject, judged: JudgedCase, operator: str | None = None) -> Check:
    """Check <g, jvp(v)> = <bwd(g), v>, where jvp(v) = bwd2(gg=v).grad_<output> is the Jacobian-vector product.

    The check is recorded as `operator` (default: the name of bwd2).
    """
    case = judged.case
    _, bwd, bwd2 = list_fwd_bwd_bwd2(case.definition)
    first = call_subject(subject, bwd, case.arguments(bwd))
    second = call_subject(subject, bwd2, case.arguments(bwd2))
    ggs = {a.name: case.ggs[f"gg_{a.name}"] for a in case.inputs}
    scale = _sum_weighted_scales(case.grads, judged.get_judge_triples(bwd2)) + _sum_weighted_scales(
        ggs, judged.get_judge_triples(bwd)
    )
    sides = _sum_inner_products(case.grads, second.fields), _sum_inner_products(ggs, first.fields)
    check = _check_equal_sums(subject, judged, bwd2, "adjoint", sides, scale, (first, second))
    return replace(check, operator=operator or bwd2.name)


def check_second_derivative_symmetry(subject: Subject, judged: JudgedCase) -> Check:
    """Check <bwd2(gg=v).inputs, w> = <bwd2(gg=w).inputs, v>: second derivatives of <g, fwd> are symmetric."""
    case = judged.case
    bwd2 = list_fwd_bwd_bwd2(case.definition)[2]
    names = [a.name for a in case.inputs]
    v = {n: case.ggs[f"gg_{n}"] for n in names}
    w = {n: case.directions[n] for n in names}
    exchanged = {**case.arguments(bwd2), **{f"gg_{n}": w[n] for n in names}}
    one = call_subject(subject, bwd2, case.arguments(bwd2))
    other = call_subject(subject, bwd2, exchanged)
    turned = judged.compute_once((bwd2.name, "exchanged"), lambda: compute_with_judge(bwd2, exchanged, names))
    scale = _sum_weighted_scales(w, judged.get_judge_triples(bwd2)) + _sum_weighted_scales(v, turned)
    sides = _sum_inner_products(w, one.fields), _sum_inner_products(v, other.fields)
    return _check_equal_sums(subject, judged, bwd2, "symmetry", sides, scale, (one, other))


def check_third_derivative_adjoint(subject: Subject, judged: JudgedCase) -> Check:
    """Check <bwd3(c).gg_, a'> + <bwd3(c).grad_, g'> = <c, bwd2(a', g)> + <c of inputs, bwd2(a, g')>.

    c, a and g are the cotangents ggg_, gg_ and grad_; a' and g' are directions of a and g. Because bwd2 is linear in a
    and in g, its derivative along a' or g' is bwd2 with a' in place of a, or g' in place of g.
    """
    case = judged.case
    bwd2, bwd3 = list_fwd_bwd_bwd2(case.definition)[2], find_bwd3(case.definition)
    along = {n: case.directions[n] for n in (*case.ggs, *case.grads)}
    sums = [
        ({**case.arguments(bwd2), **{n: along[n] for n in case.ggs}}, case.gggs),
        (
            {**case.arguments(bwd2), **{n: along[n] for n in case.grads}},
            {f"ggg_{a.name}": case.gggs[f"ggg_{a.name}"] for a in case.inputs},
        ),
    ]
    third = call_subject(subject, bwd3, case.arguments(bwd3))
    calls, left, right, scale = (
        [third],
        _sum_inner_products(along, third.fields),
        np.zeros(3),
        _sum_weighted_scales(along, judged.get_judge_triples(bwd3)),
    )
    for number, (arguments, cotangents) in enumerate(sums):
        weights = {n.removeprefix("ggg_"): w for n, w in cotangents.items()}
        calls.append(call_subject(subject, bwd2, arguments))
        right += _sum_inner_products(weights, calls[-1].fields)
        expected = judged.compute_once(
            (bwd3.name, "adjoint", number), partial(compute_with_judge, bwd2, arguments, tuple(weights))
        )
        scale += _sum_weighted_scales(weights, expected)
    return _check_equal_sums(subject, judged, bwd3, "adjoint", (left, right), scale, calls)


def check_third_derivative_symmetry(subject: Subject, judged: JudgedCase) -> list[Check]:
    """Check that <bwd3(c, a).inputs, u> is equal for all permutations of c, a, u: third derivatives are symmetric."""
    case = judged.case
    bwd3 = find_bwd3(case.definition)
    names = [a.name for a in case.inputs]
    prefixed = {
        "ggg_": {n: case.gggs[f"ggg_{n}"] for n in names},
        "gg_": {n: case.ggs[f"gg_{n}"] for n in names},
        "": {n: case.directions[n] for n in names},
    }
    outer = {f"ggg_grad_{a.name}": None for a in case.definition.outputs}
    sums, calls = [], []
    for order in permutations(prefixed):
        c, a, u = (prefixed[k] for k in order)
        arguments = {
            **case.arguments(bwd3),
            **outer,
            **{f"ggg_{n}": c[n] for n in names},
            **{f"gg_{n}": a[n] for n in names},
        }
        calls.append(call_subject(subject, bwd3, arguments, names if subject.selective else None))
        expected = judged.compute_once(
            (bwd3.name, "symmetry", order), partial(compute_with_judge, bwd3, arguments, names)
        )
        sums.append((_sum_inner_products(u, calls[-1].fields), _sum_weighted_scales(u, expected)))
    (first, scale), *others = sums
    return [
        _check_equal_sums(subject, judged, bwd3, "symmetry", (first, other), scale + more, (calls[0], call))
        for (other, more), call in zip(others, calls[1:], strict=True)
    ]


def list_permuted_fields(case: Case, op: Operator) -> list[Array]:
    """Return the fields that renumbering only permutes: fields without an axis of positions and without indices."""
    return [f for f in case.list_returned_fields(op) if not ("num_positions" in f.dims or f.index)]


def check_renumbering_invariance(subject: Subject, judged: JudgedCase, op: Operator, seed: int) -> list[Check]:
    """Check that renumbering edges and nodes permutes the results, up to rounding."""
    case = judged.case
    other, orders = renumber_case(case, seed)
    before = call_subject(subject, op, case.arguments(op))
    after = call_subject(subject, op, other.arguments(op))
    tolerance, checks = 2 * judged.tolerance(subject), []
    for field in list_permuted_fields(case, op):
        got: Any = after.fields.get(field.name)
        expected: Any = before.fields.get(field.name)
        note = describe_wrong_dtype_or_shape(got, field, case.sizes, case.dtype) or describe_wrong_dtype_or_shape(
            expected, field, case.sizes, case.dtype
        )
        error = math.inf
        if not note:
            triple = np.stack([expected, np.zeros_like(expected), judged.get_judge_triples(op)[field.name][2]])
            if field.dims[0] in orders:
                triple = triple[:, orders[field.dims[0]]]
            error = compute_largest_scaled_error(got, triple, case.dtype)
        checks.append(
            judged.make_check(subject, op.name, "permutation", field.name, error, tolerance, (before, after), note)
        )
    return checks


def _copy_fields_as_bytes(outcome: CallOutcome) -> dict[str, Any]:
    """Return copies of the numeric arrays as bytes, with a row for each element."""
    return {
        name: np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(-1, array.dtype.itemsize).copy()
        for name, array in outcome.fields.items()
        if isinstance(array, np.ndarray) and array.dtype.kind in "fi"
    }


def _count_different_elements(bits: Mapping[str, Any], name: str, reference: Mapping[str, Any]) -> float:
    """Return the number of elements of a field that differ bitwise from the reference."""
    if name not in bits or name not in reference or bits[name].shape != reference[name].shape:
        return math.inf
    return float(np.count_nonzero((bits[name] != reference[name]).any(axis=1)))


def _check_equal_bits(
    subject: Subject,
    judged: JudgedCase,
    op: Operator,
    kind: str,
    trials: Sequence[Mapping[str, Any]],
    calls: Sequence[CallOutcome],
    fields: Iterable[Array] | None = None,
) -> list[Check]:
    """Return a check for each field that all trials are bitwise identical to the first."""
    checks = []
    for field in judged.case.list_returned_fields(op) if fields is None else fields:
        error = max(_count_different_elements(bits, field.name, trials[0]) for bits in trials[1:])
        checks.append(judged.make_check(subject, op.name, kind, field.name, error, 0.0, calls))
    return checks


def check_repeated_calls(subject: Subject, judged: JudgedCase, op: Operator) -> list[Check]:
    """Check that a repeated call is bitwise identical, and that later calls do not change earlier results."""
    arguments = judged.case.arguments(op)
    negated = {name: -value if isinstance(value, np.ndarray) else value for name, value in arguments.items()}
    first = call_subject(subject, op, arguments)
    bits = _copy_fields_as_bytes(first)
    again = call_subject(subject, op, arguments)
    other = call_subject(subject, op, negated)
    return _check_equal_bits(
        subject,
        judged,
        op,
        "repeat",
        [bits, _copy_fields_as_bytes(again), _copy_fields_as_bytes(first)],
        [first, again, other],
    )


def check_case_in_batch(subject: Subject, judged: JudgedCase, op: Operator, seed: int) -> list[Check]:
    """Check the results for the case's nodes and edges when the case is part of a batch.

    For backends in `BATCH_INVARIANT`, the results must be bitwise identical to the results for the case alone. Other
    backends and users' functions may call matrix products whose rounding depends on sizes; their results are compared
    with the judge's results for the case alone.
    """
    case = judged.case
    batch = embed_in_batch(case, seed)
    fields, together = list_fields_with_graph_axis(case, op), call_subject(subject, op, batch.case.arguments(op))
    arrays: dict[str, Any] = {f.name: together.fields.get(f.name) for f in fields}
    notes = {
        f.name: describe_wrong_dtype_or_shape(arrays[f.name], f, batch.case.sizes, find_expected_dtype(f, case))
        for f in fields
    }
    own = {f.name: batch.extract_case_part(f, arrays[f.name], case.sizes) for f in fields if not notes[f.name]}
    if subject.name in BATCH_INVARIANT:
        outcomes = [call_subject(subject, op, case.arguments(op)), replace(together, fields=own)]
        return _check_equal_bits(
            subject, judged, op, "batch", [_copy_fields_as_bytes(o) for o in outcomes], outcomes, fields
        )
    checks, expected = [], judged.get_judge_triples(op)
    for f in fields:
        error = compute_field_error(own[f.name], f, expected[f.name], case.dtype) if f.name in own else math.inf
        tolerance = 0.0 if f.index else judged.tolerance(subject)
        note = notes[f.name] or case.note
        checks.append(judged.make_check(subject, op.name, "batch", f.name, error, tolerance, [together], note))
    return checks


def check_out_arrays(subject: Subject, judged: JudgedCase, op: Operator) -> list[Check]:
    """Check calls with `out` arrays that start at a cache line or 8 bytes after it.

    The arrays are filled with NaN first. The error of a field is the number of elements that differ bitwise from an
    ordinary call, plus 1 for each array that was not returned or was written out of bounds.
    """
    assert subject.into is not None
    case, fields = judged.case, judged.case.list_returned_fields(op)
    forms = {f.name: (evaluate_shape(f, case.sizes), find_expected_dtype(f, case)) for f in fields}
    reference = call_subject(subject, op, case.arguments(op))
    bits, calls, wrong = _copy_fields_as_bytes(reference), [reference], dict.fromkeys(forms, 0.0)
    for offset in (0, 8):
        strays: list[str] = []
        calls.append(call_and_record_outcome(partial(subject.into, op, case.arguments(op), forms, offset, strays)))
        for name in forms:
            wrong[name] += _count_different_elements(_copy_fields_as_bytes(calls[-1]), name, bits) + strays.count(name)
    return [judged.make_check(subject, op.name, "out", name, wrong[name], 0.0, calls) for name in forms]


def check_thread_counts(subject: Subject, judged: JudgedCase, op: Operator) -> list[Check]:
    """Check that calls with 1, 2 and 3 threads are bitwise identical."""
    outcomes = []
    with restore_num_threads():
        for number in THREADS:
            set_num_threads(number)
            outcomes.append(call_subject(subject, op, judged.case.arguments(op)))
    return _check_equal_bits(subject, judged, op, "threads", [_copy_fields_as_bytes(o) for o in outcomes], outcomes)


def check_small_blocks(subject: Subject, judged: JudgedCase, op: Operator) -> list[Check]:
    """Compare with the judge when blocks are as small as possible, so that sums over blocks have several stages."""
    assert subject.small_blocks is not None
    with subject.small_blocks():
        return [replace(c, case=f"{c.case}, small blocks") for c in check_accuracy(subject, judged, op)]


def list_cpu_levels_to_compare() -> tuple[list[str], list[str]]:
    """Return the instruction-set levels not in use, and the levels with bitwise identical results (none or 2)."""
    equal = [level for level in EQUAL_BITS if level in list_runnable_levels()]
    return [level for level in list_runnable_levels() if level != get_cpu_level()], equal if len(equal) > 1 else []


def check_cpu_levels(subject: Subject, judged: JudgedCase, op: Operator) -> list[Check]:
    """Compare builds for other instruction-set levels with the judge, and those in `EQUAL_BITS` bitwise."""
    different, equal = list_cpu_levels_to_compare()
    before = get_cpu_level()
    checks, outcomes = [], []
    try:
        for level in different:
            set_cpu_level(level)
            checks += [replace(c, case=f"{c.case}, {level}") for c in check_accuracy(subject, judged, op)]
        for level in equal:
            set_cpu_level(level)
            outcomes.append(call_subject(subject, op, judged.case.arguments(op)))
    finally:
        set_cpu_level(before)
    if equal:
        checks += _check_equal_bits(
            subject, judged, op, "levels", [_copy_fields_as_bytes(o) for o in outcomes], outcomes
        )
    return checks


def _describe_layout_problem(array: Any, dtype: str, arrays: Mapping[str, Any]) -> str:
    if str(array.dtype) != dtype:
        return f"dtype is {array.dtype}; expected {dtype}"
    if not array.flags.c_contiguous:
        return f"strides are {array.strides} for shape {array.shape}; expected a C-contiguous array"
    if not getattr(array.flags, "writeable", True):
        return "it is read-only; expected a writable array"
    start, stop = find_memory_extent(array)
    for name, other in arrays.items():
        low, high = find_memory_extent(other)
        if array.size and other.size and start < high and low < stop:
            return f"it shares memory with {name}"
    return ""


def check_result_layout(subject: Subject, judged: JudgedCase, op: Operator) -> list[Check]:
    """Check that every field is C-contiguous and writeable, and has the right dtype and its own memory.

    The error is 1 if a field is wrong in the first or the second call.
    """
    case = judged.case
    values, calls = case.arguments(op), []
    arguments: dict[str, Any] = {}

    def compute_native_fields() -> Mapping[str, Any]:
        handed, fields = subject.native(op, values) if subject.native else (values, subject.call(op, values, None))
        arguments.update({f"argument {n}": a for n, a in handed.items() if hasattr(a, "strides")})
        return fields

    problems: dict[str, str] = {}
    earlier: dict[str, Any] = {}
    for _ in range(2):
        outcome = call_and_record_outcome(compute_native_fields)
        calls.append(outcome)
        own: dict[str, Any] = {}
        for field in case.list_returned_fields(op):
            got = outcome.fields.get(field.name)
            if outcome.problem or not hasattr(got, "strides"):
                problem = outcome.problem or f"it is a {type(got).__name__}; expected an array"
            else:
                problem = _describe_layout_problem(got, find_expected_dtype(field, case), arguments | earlier | own)
                own[f"field {field.name}"] = got
            problems[field.name] = problems.get(field.name) or problem
        earlier = {f"an earlier result's {name}": array for name, array in own.items()}
    return [
        judged.make_check(subject, op.name, "layout", name, float(bool(problem)), 0.0, calls, problem)
        for name, problem in problems.items()
    ]
