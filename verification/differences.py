"""Central differences of one derivative order, compared with the next order.

Let phi(x) = sum over fields of <w, L.field(x)>, where L is the operator of the lower order and w are its cotangents:
``grad_`` for fwd, ``gg_`` for bwd, ``ggg_`` for bwd2. The gradient of phi is the result of the next order. Along one
random direction v for each argument,

    error(h) = |phi(x+) - phi(x-) - <grad, x+ - x->| / sum |grad_i (x+ - x-)_i|

is evaluated for steps h that are powers of two, with the difference x+ - x- of the rounded points instead of 2 h v, and
with sums in real128, so that rounding of points and sums does not contribute. The error consists of the truncation
error and the rounding errors of L and of the gradient.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from slopecheck.record import Check
from slopecheck.slope import SlopeVerdict, assess_error_slope
from trigraph.fortran import judge
from trigraph.table import Operator
from trigraph.verification import tolerances
from trigraph.verification.judged import JudgedCase, compute_with_judge, list_fwd_bwd_bwd2
from trigraph.verification.subjects import Subject, compute_subject_fields

# Each case uses the steps up to its largest step. Steps are dense where truncation dominates and where the error is
# smallest; 2^-13 completes two decades if the largest step is 2^-6.
STEPS = tuple(2.0**-k for k in (*range(4, 12, 2), 12, 13, 14, 16, 18, *range(22, 36, 4)))
JUDGE_STEPS = tuple(2.0**-k for k in (*range(6, 30, 6), *range(30, 40, 4), *range(46, 64, 8)))
# Smallest ratio of successive steps for functions without truncation error, for which no slope is measured.
MIN_STEP_RATIO = 2.0**8

# Pairs of factors, whose products are summed; each factor is an array (2, ...) of high and low parts.
Products = Sequence[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class _CurveArithmetic:
    """Functions to compute error curves in a subject's or the judge's arithmetic.

    `evaluate(op, values, names)` returns fields of L or of its gradient as pairs (hi, lo), `shift(x, h, v)` returns
    x + h v, and `gap(x, h, v)` returns the difference x(+h) - x(-h) as a pair.
    """

    name: str
    dtype: str
    tolerance: float
    evaluate: Callable[[Operator, Mapping[str, Any], Sequence[str]], dict[str, np.ndarray]]
    shift: Callable[[np.ndarray, float, np.ndarray], np.ndarray]
    gap: Callable[[np.ndarray, float, np.ndarray], np.ndarray]


def compute_rounded_gap(x: np.ndarray, step: float, direction: np.ndarray) -> np.ndarray:
    """Return the difference of the rounded points ``x +- step * direction`` as a pair (hi, lo)."""
    return judge.make_exact_pair(x + step * direction, -1.0, x - step * direction)


def _make_subject_arithmetic(subject: Subject, judged: JudgedCase) -> _CurveArithmetic:
    """Return the arithmetic of a subject, in which points are rounded to the dtype of the case."""

    def evaluate_field_pairs(op: Operator, values: Mapping[str, Any], names: Sequence[str]) -> dict[str, np.ndarray]:
        return {
            n: judge.make_exact_pair(array) for n, array in compute_subject_fields(subject, op, values, names).items()
        }

    def shift_point(x: np.ndarray, step: float, direction: np.ndarray) -> np.ndarray:
        return x + step * direction

    return _CurveArithmetic(
        subject.name,
        judged.case.dtype,
        judged.tolerance(subject),
        evaluate_field_pairs,
        shift_point,
        compute_rounded_gap,
    )


def _make_judge_arithmetic(judged: JudgedCase) -> _CurveArithmetic:
    """Return the arithmetic of the judge, in which points are pairs (hi, lo)."""

    def evaluate_field_pairs(op: Operator, values: Mapping[str, Any], names: Sequence[str]) -> dict[str, np.ndarray]:
        return {n: triple[:2] for n, triple in compute_with_judge(op, values).items() if n in names}

    def compute_exact_gap(x: np.ndarray, step: float, direction: np.ndarray) -> np.ndarray:
        return judge.make_exact_pair(2 * step * direction)

    return _CurveArithmetic(
        "judge",
        "real128",
        tolerances.accuracy_tolerance(False, judged.max_sum_terms),
        evaluate_field_pairs,
        judge.make_exact_pair,
        compute_exact_gap,
    )


def sum_inner_products(pairs: Products) -> tuple[float, float]:
    """Return the sum of inner products of pairs, computed in real128, and the sum of the absolute terms."""
    left = np.concatenate([a.reshape(2, -1) for a, _ in pairs], axis=1)
    right = np.concatenate([b.reshape(2, -1) for _, b in pairs], axis=1)
    hi, _, scale = judge.compute_dot_and_scale(left, right)
    return hi, scale


def check_finite_differences(
    subject: Subject | None, judged: JudgedCase, upper: Operator, steps: Sequence[float], operator: str | None = None
) -> list[Check]:
    """Compare each field of `upper` with finite differences of the operator one order below.

    `upper` is a bwd, a bwd2, a part of a bwd2 or a bwd3, recorded as `operator`. Without a subject, the judge is
    checked in real128. Steps are descending powers of two; the case's largest step crosses no kink. The error of a
    check is the smallest relative error over the steps, or infinite if the curve is rejected.
    """
    arithmetic = _make_judge_arithmetic(judged) if subject is None else _make_subject_arithmetic(subject, judged)
    case, dtype, checks = judged.case, arithmetic.dtype, []
    for field in case.list_returned_fields(upper):
        degree = next(a.degree for a in _get_lower_operator(judged, upper).arguments if a.name == field.name)
        taken = _select_steps(steps, case.largest_step, degree)
        curve = partial(_compute_error_curve, arithmetic, judged, upper, field.name, taken)
        name, tolerance = operator or upper.name, tolerances.difference_tolerance(dtype)
        check = Check(
            name, arithmetic.name, dtype, "differences", case.name, field.name, math.inf, tolerance, note=case.note
        )
        checks.append(add_curve_verdict(check, taken, degree, curve))
    return checks


def add_curve_verdict(
    check: Check,
    steps: Sequence[float],
    degree: int | None,
    curve: Callable[[], tuple[Sequence[float], Sequence[float]]],
) -> Check:
    """Add to a check the verdict of `assess_error_slope` on the errors and rounding floors that ``curve()`` returns."""
    start = time.perf_counter()
    errors: Sequence[float] = []
    try:
        errors, floors = curve()
        verdict = assess_error_slope(steps, errors, floors, degree)
    except ValueError as problem:  # a call failed, or a shape is wrong
        verdict = SlopeVerdict(math.inf, None, str(problem))
    note = f"{verdict.problem} (best error {verdict.best:.1e})" if errors and verdict.problem else verdict.problem
    return replace(
        check,
        error=math.inf if verdict.problem else verdict.best,
        order=verdict.order,
        seconds=time.perf_counter() - start,
        curve=tuple(zip(steps, errors, strict=True)) if errors else (),
        note=note or check.note,
    )


def _select_steps(steps: Sequence[float], largest: float, degree: int | None) -> list[float]:
    """Return the steps up to `largest`; if truncation is absent, a subset with ratios from `MIN_STEP_RATIO`."""
    taken: list[float] = []
    for step in steps:
        if step <= largest and (degree is None or degree > 2 or not taken or step * MIN_STEP_RATIO <= taken[-1]):
            taken.append(step)
    return taken


def _get_lower_operator(judged: JudgedCase, upper: Operator) -> Operator:
    return list_fwd_bwd_bwd2(judged.case.definition)[upper.order - 1]


def _compute_error_curve(
    arithmetic: _CurveArithmetic, judged: JudgedCase, upper: Operator, name: str, steps: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Return relative errors and rounding floors by step, along the direction of argument `name`."""
    case, lower = judged.case, _get_lower_operator(judged, upper)
    cotangents, prefix = ((case.grads, "grad_"), (case.ggs, "gg_"), (case.gggs, "ggg_"))[upper.order - 1]
    # A variant of bwd2 that accepts only some cotangents is the gradient of the corresponding terms of phi.
    taken = {a.name for a in upper.arguments}
    weights = {
        f.name: judge.make_exact_pair(cotangents[prefix + f.name])
        for f in case.list_differentiable_outputs(lower)
        if prefix + f.name in taken
    }
    names = tuple(weights)
    values = case.arguments(lower)
    gradient = arithmetic.evaluate(upper, case.arguments(upper), (name,))[name]
    results = judged.get_judge_triples(lower)
    phi_scale = sum(float(np.sum(abs(weights[n][0]) * results[n][2])) for n in names)
    gradient_scale = judged.get_judge_triples(upper)[name][2]
    unit = arithmetic.tolerance * tolerances.eps(arithmetic.dtype)
    errors, floors = [], []
    for step in steps:
        x, v = values[name], case.directions[name]
        plus = arithmetic.evaluate(lower, {**values, name: arithmetic.shift(x, step, v)}, names)
        minus = arithmetic.evaluate(lower, {**values, name: arithmetic.shift(x, -step, v)}, names)
        gap = arithmetic.gap(x, step, v)
        change = [product for n in names for product in ((weights[n], plus[n]), (-weights[n], minus[n]))]
        residual, _ = sum_inner_products([*change, (-gradient, gap)])
        size = float(np.sum(abs(gradient[0] * gap[0])))
        largest = float(np.sum(gradient_scale * abs(gap[0])))
        if size <= unit * largest:
            # The gradient is zero up to rounding, for example for a common shift of all scores of a softmax. Compare
            # the residual with the change that a gradient as large as phi would cause.
            size = 2 * step * phi_scale
        size += tolerances.tiny("float64")  # avoids 0/0; if phi is zero, only a residual of zero passes
        errors.append(abs(residual) / size)
        floors.append(unit * 2 * (phi_scale + largest) / size)
    return errors, floors
