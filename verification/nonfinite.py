"""Check that NaN and infinity in an argument reach exactly the results that depend on the changed elements."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from slopecheck.outcome import CallOutcome
from slopecheck.record import Check
from trigraph.table import ArrayArgument, Operator
from trigraph.verification.accuracy import describe_wrong_dtype_or_shape, find_expected_dtype
from trigraph.verification.judged import JudgedCase, compute_with_judge
from trigraph.verification.subjects import Subject, call_subject


class NonfiniteReplacement(NamedTuple):
    """Value to write to an argument: at the fraction `part`, or from there to every `step`-th element."""

    value: float
    part: float
    step: int | None = None

    @property
    def label(self) -> str:
        """Description used in notes."""
        return f"{self.value} in" if self.step is None else f"{self.value} in every {self.step}th of"


# With every fifth element NaN, a sum or extremum may have several NaN terms; an extremum must select the first NaN.
REPLACEMENTS = (
    NonfiniteReplacement(math.nan, 1 / 2),
    NonfiniteReplacement(math.nan, 0, 5),
    NonfiniteReplacement(math.inf, 1 / 3),
    NonfiniteReplacement(-math.inf, 2 / 3),
)


def list_replacements(argument: ArrayArgument) -> tuple[NonfiniteReplacement, ...]:
    """Return the spoilers for an argument, without -inf for positive arguments, which would be rejected."""
    return tuple(s for s in REPLACEMENTS if not (argument.positive and s.value < 0))


def _replace_elements(array: np.ndarray, spoiler: NonfiniteReplacement) -> np.ndarray:
    changed: np.ndarray = array.copy()
    first = int(spoiler.part * (changed.size - 1))
    changed.flat[slice(first, None if spoiler.step else first + 1, spoiler.step)] = spoiler.value
    return changed


def _mark_nonfinite(array: np.ndarray, value: float) -> np.ndarray:
    """Return a mask of NaN or, if `value` is infinite (and may lead to NaN), of all non-finite results."""
    return np.isnan(array) if math.isnan(value) else ~np.isfinite(array)


def _compute_expected_marks(
    judged: JudgedCase, op: Operator, name: str, spoiler: NonfiniteReplacement
) -> dict[str, np.ndarray]:
    """Return the judge's mask for each field, or the field itself if it contains integers."""
    arguments = judged.case.arguments(op)
    arguments[name] = _replace_elements(arguments[name], spoiler)
    with np.errstate(invalid="ignore"):
        fields = compute_with_judge(op, arguments)
    integers = {f.name for f in op.fields if f.index}
    return {n: a if n in integers else _mark_nonfinite(a[0], spoiler.value) for n, a in fields.items()}


def _call_and_count_wrong_elements(
    subject: Subject, judged: JudgedCase, op: Operator, name: str, spoiler: NonfiniteReplacement
) -> tuple[CallOutcome, dict[str, tuple[float, str]]]:
    """Return the outcome of the call and, for each field, the number of wrong elements and a note."""
    case, wrong = judged.case, {}
    expected = judged.compute_once((op.name, name, spoiler), lambda: _compute_expected_marks(judged, op, name, spoiler))
    arguments = case.arguments(op)
    arguments[name] = _replace_elements(arguments[name], spoiler)
    with np.errstate(invalid="ignore", over="ignore"):
        outcome = call_subject(subject, op, arguments)
    for field in case.list_returned_fields(op):
        got: Any = outcome.fields.get(field.name)
        note = describe_wrong_dtype_or_shape(got, field, case.sizes, find_expected_dtype(field, case))
        error = math.inf
        if not note:
            marks = got if field.index else _mark_nonfinite(got, spoiler.value)
            # The judge's bwd3 differentiates every product in bwd and bwd2, including constant factors, whose
            # derivative is 0, and 0 times NaN is NaN. A backend that omits such products returns fewer NaN.
            unequal = marks & ~expected[field.name] if op.order == 3 else marks != expected[field.name]
            error = float(np.count_nonzero(unequal))
        wrong[field.name] = error, note or (f"{spoiler.label} {name}" if error else "")
    return outcome, wrong


def check_nonfinite_propagation(subject: Subject, judged: JudgedCase, op: Operator, name: str) -> list[Check]:
    """Make some elements of an argument non-finite, and check that the same results become non-finite as for the judge.

    The error of a field counts, over all spoilers, the elements that become non-finite only for the subject or, below
    third order, only for the judge, and integers that differ. The note names the first spoiler with an error.
    """
    (argument,) = (a for a in op.arguments if a.name == name)
    calls, trials = zip(
        *(_call_and_count_wrong_elements(subject, judged, op, name, s) for s in list_replacements(argument)),
        strict=True,
    )
    checks = []
    for field in judged.case.list_returned_fields(op):
        errors, notes = zip(*(trial[field.name] for trial in trials), strict=True)
        note = next(filter(None, notes), "")
        check = judged.make_check(subject, op.name, "nan", field.name, sum(errors), 0.0, calls, note)
        checks.append(replace(check, case=f"{judged.case.name}, non-finite {name}"))
    return checks
