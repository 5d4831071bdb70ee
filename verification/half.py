"""Checks of half-precision arrays, which the kernels of the gpu backends read and write but process in float32."""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from slopecheck.record import Check
from trigraph.graphs import CSC
from trigraph.table import OPERATORS, Operator
from trigraph.verification import tolerances
from trigraph.verification.accuracy import (
    compute_field_error,
    compute_largest_scaled_error,
    describe_wrong_dtype_or_shape,
    find_expected_dtype,
)
from trigraph.verification.cases import find_half_dtype
from trigraph.verification.judged import JudgedCase
from trigraph.verification.subjects import Subject, call_subject

# If attention weights and embeddings are 0 and each destination has one in-edge, this operator's gradient of a source
# embedding is the sum of the output cotangents at the source's destinations.
EVERY_NUMBER = "mha_gat_n2n_bwd"
WIDTH = 64  # number of heads, all of width 1, so that a non-finite cotangent affects no other number


def check_half_precision(subject: Subject, judged: JudgedCase, op: Operator) -> list[Check]:
    """Compare calls with half-precision arguments, where allowed, with the judge.

    The half-precision dtype represents the arguments exactly. Sums use float32; results are rounded once.
    """
    case, tolerance = judged.case, judged.tolerance(subject)
    assert case.half
    stored, unit = find_half_dtype(case.half), tolerances.eps(case.half) / 2
    halves = {a.name: case.arguments(op)[a.name].astype(stored) for a in case.select_present_arguments(op) if a.half}
    outcome, checks = call_subject(subject, op, case.arguments(op) | halves), []
    for field in case.list_returned_fields(op):
        expected = judged.get_judge_triples(op)[field.name]
        got: Any = outcome.fields.get(field.name)
        note = describe_wrong_dtype_or_shape(
            got, field, case.sizes, case.half if field.half else find_expected_dtype(field, case)
        )
        error = math.inf
        if not note and field.half:
            once = unit * np.maximum(abs(expected[0]), tolerances.tiny(case.half))
            more = once / tolerance + unit * tolerances.eps(case.dtype) * expected[2]
            error = compute_largest_scaled_error(got, expected, case.dtype, more)
        elif not note:
            error = compute_field_error(got, field, expected, case.dtype)
        allowed = 0.0 if field.index else tolerance
        checks.append(
            judged.make_check(subject, op.name, "half", field.name, error, allowed, [outcome], note or case.note)
        )
    return checks


def check_every_half_number(subject: Subject, half: str) -> list[Check]:
    """Add every number of a half-precision dtype to itself and to the next number, and check the rounding of all sums.

    The error is the number of wrong sums. If an output cotangent is not finite, the cotangent of its score, which is
    the output cotangent times 0, is NaN.
    """
    every = np.arange(2**16, dtype=np.uint16)
    numbers = np.stack([every, every, every, every + 1]).view(find_half_dtype(half)).reshape(4, -1, WIDTH)
    nodes = numbers.shape[1]
    # Sources 0 to nodes - 1 get each number from two destinations; the other sources get a number and the next number.
    first = np.arange(nodes)
    graph = CSC(np.arange(4 * nodes + 1), np.concatenate([first, first, nodes + first, nodes + first]), 2 * nodes)
    wide = numbers.astype(np.float32).reshape(2, 2, nodes, WIDTH)
    finite = np.asarray(np.isfinite(wide).all(axis=1))
    terms = np.where(finite[:, None], wide, 0)
    with np.errstate(over="ignore"):
        expected = (np.float32(0) + terms[:, 0] + terms[:, 1]).astype(numbers.dtype)  # the kernel's sums start from +0
    values = {
        "grad_output_embedding": numbers.reshape(-1, WIDTH),
        "src_embedding": np.zeros((2 * nodes, WIDTH), numbers.dtype),
        "dst_embedding": np.zeros((4 * nodes, WIDTH), numbers.dtype),
        "attention_weights": np.zeros(2 * WIDTH, np.float32),
        "graph": graph,
        "num_heads": WIDTH,
    }
    outcome = call_subject(subject, OPERATORS[EVERY_NUMBER], values, ("src_embedding",))
    got: Any = outcome.fields.get("src_embedding")
    error = math.inf
    if isinstance(got, np.ndarray) and got.dtype == numbers.dtype and got.shape == (2 * nodes, WIDTH):
        got = got.reshape(expected.shape)
        agrees = np.where(finite, got.view(np.uint16) == expected.view(np.uint16), np.isnan(got.astype(np.float32)))
        error = float(np.count_nonzero(~agrees))
    case = f"every number of {half}"
    check = Check(EVERY_NUMBER, subject.name, "float32", "half", case, "src_embedding", error, 0.0)
    return [replace(check, seconds=outcome.seconds, note=outcome.problem)]
