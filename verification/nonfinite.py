"""NaN and infinity in an argument reach exactly what depends on it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from trigraph.table import Argument, Operator
from trigraph.verification.accuracy import dtype_of, form_problem
from trigraph.verification.judged import Judged, ask
from trigraph.verification.record import Check
from trigraph.verification.subjects import Outcome, Subject, attempt


class Spoiler(NamedTuple):
    """A number that spoils an argument, from which part of its elements on, and every how many (None: just one)."""

    value: float
    part: float
    step: int | None = None

    @property
    def label(self) -> str:
        """As it stands in a note."""
        return f"{self.value} in" if self.step is None else f"{self.value} in every {self.step}th of"


# With several NaN, some meet in one sum or one extremum, whose first NaN wins.
SPOILERS = (Spoiler(math.nan, 1 / 2), Spoiler(math.nan, 0, 5), Spoiler(math.inf, 1 / 3), Spoiler(-math.inf, 2 / 3))


def spoilers(argument: Argument) -> tuple[Spoiler, ...]:
    """Return what spoils an argument; one that must be positive is refused otherwise."""
    return tuple(s for s in SPOILERS if not (argument.positive and s.value < 0))


def _spoiled(array: np.ndarray, spoiler: Spoiler) -> np.ndarray:
    changed: np.ndarray = array.copy()
    first = int(spoiler.part * (changed.size - 1))
    changed.flat[slice(first, None if spoiler.step else first + 1, spoiler.step)] = spoiler.value
    return changed


def _marks(array: np.ndarray, value: float) -> np.ndarray:
    """Return where a result is spoilt: where it is NaN, or after an infinity, which may become NaN, not finite."""
    marks: np.ndarray = np.isnan(array) if math.isnan(value) else ~np.isfinite(array)
    return marks


def _expected(judged: Judged, op: Operator, name: str, spoiler: Spoiler) -> dict[str, np.ndarray]:
    """Return what the judge says: the marks of each field, or the field where it is one of integers."""
    arguments = judged.case.arguments(op)
    arguments[name] = _spoiled(arguments[name], spoiler)
    with np.errstate(invalid="ignore"):
        fields = ask(op, arguments)
    integers = {f.name for f in op.fields if f.index}
    return {n: a if n in integers else _marks(a[0], spoiler.value) for n, a in fields.items()}


def _wrong(
    subject: Subject, judged: Judged, op: Operator, name: str, spoiler: Spoiler
) -> tuple[Outcome, dict[str, tuple[float, str]]]:
    """Return the call, and of each field how many elements are wrong, and what went wrong with it."""
    case, wrong = judged.case, {}
    expected = judged.cached((op.name, name, spoiler), lambda: _expected(judged, op, name, spoiler))
    arguments = case.arguments(op)
    arguments[name] = _spoiled(arguments[name], spoiler)
    with np.errstate(invalid="ignore", over="ignore"):
        outcome = attempt(subject, op, arguments)
    for field in case.returned(op):
        got: Any = outcome.fields.get(field.name)
        note = form_problem(got, field, case.sizes, dtype_of(field, case))
        error = math.inf
        if not note:
            marks = got if field.index else _marks(got, spoiler.value)
            error = float(np.count_nonzero(marks != expected[field.name]))
        wrong[field.name] = error, note or (f"{spoiler.label} {name}" if error else "")
    return outcome, wrong


def check_nonfinite(subject: Subject, judged: Judged, op: Operator, name: str) -> list[Check]:
    """Spoil some elements of an argument: that reaches what depends on them, as the judge has it, nothing else.

    The error of a field is the number of elements that are spoilt where the judge has them whole, or the other way
    round, and of integers that differ, over all spoilers; the note says which was the first.
    """
    (argument,) = (a for a in op.arguments if a.name == name)
    calls, trials = zip(*(_wrong(subject, judged, op, name, s) for s in spoilers(argument)), strict=True)
    checks = []
    for field in judged.case.returned(op):
        errors, notes = zip(*(trial[field.name] for trial in trials), strict=True)
        note = next(filter(None, notes), "")
        check = judged.check(subject, op.name, "nan", field.name, sum(errors), 0.0, calls, note)
        checks.append(replace(check, case=f"{judged.case.name}, spoilt {name}"))
    return checks
