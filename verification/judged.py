"""The judge's results for a case, computed once per operator and shared by all subjects."""

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from slopecheck.outcome import CallOutcome
from slopecheck.record import Check
from trigraph.fortran import judge
from trigraph.table import OPERATORS, THIRD, Definition, Operator, evaluate_expression
from trigraph.verification import tolerances
from trigraph.verification.case import Case
from trigraph.verification.subjects import Subject

T = TypeVar("T")


def list_fwd_bwd_bwd2(definition: Definition) -> tuple[Operator, ...]:
    """Return fwd, bwd and bwd2 of a definition."""
    return tuple(op for op in OPERATORS.values() if op.definition is definition and op.restriction is None)


def find_bwd3(definition: Definition) -> Operator:
    """Return bwd3 of a definition."""
    return THIRD[f"{definition.name}_bwd3"]


def list_all_operators(definition: Definition) -> tuple[Operator, ...]:
    """Return all operators of a definition, including the named parts of bwd2."""
    return tuple(op for op in OPERATORS.values() if op.definition is definition)


def compute_with_judge(
    op: Operator, values: Mapping[str, Any], wrt: Sequence[str] | None = None
) -> dict[str, np.ndarray]:
    """Compute an operator's fields with the judge, as arrays (3, ...) of hi, lo and scale; integers are plain arrays.

    Arrays of float32 or float64 are converted exactly, arrays (2, ...) of hi and lo are used as given; None means 0.
    """
    arrays = {a.name: len(a.dims) for a in op.arguments if not a.given_back}
    keywords = dict(values)
    for name, rank in arrays.items():
        value = values[name]
        keywords[name] = value if value is None or value.ndim == rank + 1 else judge.make_exact_pair(value)
    if op.accepts_wrt and wrt is not None:
        keywords["wrt"] = tuple(wrt)
    result = getattr(judge, op.name)(**keywords)
    fields = {op.fields[0].name: result} if op.returns_array else result._asdict()
    return {name: triple for name, triple in fields.items() if triple is not None}


class JudgedCase:
    """Case and the judge's results for it, which are computed when first used."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.seconds = 0.0
        # Results depend only on the case, whose arrays never change, and on the key (operator and arguments).
        self._cache: dict[Hashable, Any] = {}

    def get_judge_triples(self, op: Operator, absent: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
        """Return arrays of hi, lo and scale for all fields of an operator; arguments in `absent` are None."""
        return self.compute_once((op.name, absent), lambda: compute_with_judge(op, self.arguments(op, absent)))

    def compute_once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the result of ``compute()``, which is called only once per key."""
        if key not in self._cache:
            start = time.perf_counter()
            self._cache[key] = compute()
            self.seconds += time.perf_counter() - start
        return self._cache[key]

    def arguments(self, op: Operator, absent: tuple[str, ...] = ()) -> dict[str, Any]:
        """Return the keyword arguments of one of the case's operators; arguments in `absent` are None."""
        return self.case.arguments(op) | dict.fromkeys(absent)

    @cached_property  # safe to cache: the number depends only on the case
    def max_sum_terms(self) -> int:
        """Number of terms in the longest direct sum."""
        return evaluate_expression(self.case.definition.terms, self.case.sizes)

    def tolerance(self, subject: Subject) -> float:
        """Return a subject's accuracy tolerance for this case."""
        return tolerances.accuracy_tolerance(subject.chunked, self.max_sum_terms, self.case.equal_terms)

    def make_check(
        self,
        subject: Subject,
        operator: str,
        kind: str,
        field: str,
        error: float,
        tolerance: float,
        calls: Sequence[CallOutcome],
        note: str = "",
    ) -> Check:
        """Return the record of a check on this case; if a call failed, the note describes the problem."""
        return Check(
            operator=operator,
            backend=subject.name,
            dtype=self.case.dtype,
            kind=kind,
            case=self.case.name,
            field=field,
            error=error,
            tolerance=tolerance,
            seconds=sum(call.seconds for call in calls),
            note=next((call.problem for call in calls if call.problem), note),
        )
