"""The tasks of a unit: which checks a subject undergoes on a case, and how many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from trigraph.fortran.threads import kept_num_threads, set_num_threads
from trigraph.table import OPERATORS, Operator
from trigraph.verification import accuracy, bessel, differences, golden, half, nonfinite, physics, properties
from trigraph.verification.cases import Case
from trigraph.verification.judged import Judged, every_operator_of, operators_of
from trigraph.verification.record import Check
from trigraph.verification.settings import Where, admits
from trigraph.verification.structures import BASIS, SUM
from trigraph.verification.subjects import Subject
from trigraph.verification.transforms import own_fields
from trigraph.verification.units import Task

__all__ = ["Lazy", "Scope"]

Lazy = Callable[[], Judged]


@dataclass(frozen=True)
class Scope:
    """A subject, the operators that are asked for, and the settings they are restricted to."""

    subject: Subject
    selected: frozenset[str]
    where: Where = field(default_factory=dict)

    def has(self, op: Operator) -> bool:
        """Whether the subject's operator is to be checked."""
        return op.name in self.selected and self.subject.only in (None, op.name)

    def operators(self, case: Case) -> list[Operator]:
        """Operators of a case that are to be checked."""
        return [op for op in every_operator_of(case.definition) if self.has(op) and admits(self.where, case.values)]

    def record_as(self, values: Mapping[str, Any], *ops: Operator) -> str | None:
        """Return the name a check that involves `ops`, the checked one first, is recorded under; None: not to be done.

        `values` are arguments of the definition.

        For a user's function that is the operator it implements, whichever of the two it is.
        """
        if not admits(self.where, values):
            return None
        if self.subject.only is not None:
            return self.subject.only if self.subject.only in {op.name for op in ops} else None
        return ops[0].name if ops[0].name in self.selected else None


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run on one thread: small calls would only wait for others, and all have the same bits (`check_threads`)."""
    with kept_num_threads():
        set_num_threads(1)
        yield


def _alone(make: Callable[[], list[Check]]) -> list[Check]:
    with _one_thread():
        return make()


def _task(scope: Scope, operator: str, dtype: str, count: int, make: Callable[[], list[Check]]) -> Task:
    return Task(operator, scope.subject.name, dtype, count, partial(_alone, make))


def _for_each(
    scope: Scope, judged: Judged, check: Callable[..., list[Check]], count: Callable[[Operator], int], *more: Any
) -> list[Task]:
    """Return a task for each operator of a case: ``check(subject, judged, op, *more)`` makes ``count(op)`` checks."""
    case, subject = judged.case, scope.subject
    return [
        _task(scope, op.name, case.dtype, count(op), partial(check, subject, judged, op, *more))
        for op in scope.operators(case)
    ]


def _fields(judged: Judged) -> Callable[[Operator], int]:
    """Return a function that counts the fields of an operator of the case."""
    return lambda op: len(judged.case.returned(op))


def of_accuracy(scope: Scope, lazy: Lazy) -> list[Task]:
    """Compare with the judge."""
    judged = lazy()
    return _for_each(scope, judged, accuracy.check_accuracy, _fields(judged))


def of_half(scope: Scope, lazy: Lazy) -> list[Task]:
    """Store in half precision what may be, and compare with the judge."""
    judged = lazy()
    return _for_each(scope, judged, half.check_half, _fields(judged))


def of_every_number(scope: Scope, name: str) -> list[Task]:
    """Read and write every number of a dtype of half precision."""
    if not scope.has(OPERATORS[half.EVERY_NUMBER]):
        return []
    check = partial(half.check_every_number, scope.subject, name)
    return [_task(scope, half.EVERY_NUMBER, "float32", 1, check)]


def of_calls(scope: Scope, lazy: Lazy) -> list[Task]:
    """Look at repetition, layout and `out`; ask for some fields, leave out some cotangents."""
    judged = lazy()
    case, subject, tasks = judged.case, scope.subject, []
    for op in scope.operators(case):
        fields = len(case.returned(op))
        parts: list[tuple[int, Callable[[], list[Check]]]] = [
            (fields, partial(properties.check_repeat, subject, judged, op)),
            (fields, partial(properties.check_layout, subject, judged, op)),
        ]
        if subject.into is not None:
            parts.append((fields, partial(properties.check_out, subject, judged, op)))
        if subject.only is None:  # a user's function has no wrt
            number = accuracy.count_subsets(case, op)
            parts.append((number, partial(accuracy.check_subsets, subject, judged, op)))
        tasks += [_task(scope, op.name, case.dtype, *part) for part in parts]
    return tasks


def of_nonfinite(scope: Scope, lazy: Lazy) -> list[Task]:
    """Give NaN and infinity in each argument."""
    judged = lazy()
    case, subject = judged.case, scope.subject
    return [
        _task(
            scope,
            op.name,
            case.dtype,
            len(case.returned(op)),
            partial(nonfinite.check_nonfinite, subject, judged, op, argument.name),
        )
        for op in scope.operators(case)
        for argument in case.given(op)
    ]


def of_blocks(scope: Scope, lazy: Lazy) -> list[Task]:
    """Compare with the judge where sums over blocks take few blocks at a time."""
    if scope.subject.small_blocks is None:
        return []
    judged = lazy()
    return _for_each(scope, judged, properties.check_blocks, _fields(judged))


def of_batch(scope: Scope, lazy: Lazy, seed: int) -> list[Task]:
    """Call for the case in a batch."""
    judged = lazy()
    return _for_each(scope, judged, properties.check_batch, lambda op: len(own_fields(judged.case, op)), seed)


def of_threads(scope: Scope, lazy: Lazy) -> list[Task]:
    """Call with several numbers of threads."""
    judged = lazy()
    return _for_each(scope, judged, properties.check_threads, _fields(judged))


def of_levels(scope: Scope, lazy: Lazy) -> list[Task]:
    """Run the builds of the fast path for every level of the processor."""
    judged = lazy()
    others, equal = properties.levels()
    times = len(others) + bool(equal)
    return _for_each(scope, judged, properties.check_levels, lambda op: times * len(judged.case.returned(op)))


def of_algebra(scope: Scope, lazy: Lazy, seed: int) -> list[Task]:
    """Adjoint, symmetry, permutation."""
    judged = lazy()
    case, subject = judged.case, scope.subject
    tasks = of_adjoint(scope, lazy)
    fwd, bwd, bwd2 = operators_of(case.definition)
    name = scope.record_as(case.values, bwd2)
    if name:
        symmetry = partial(properties.check_symmetry, subject, judged)
        tasks.append(_task(scope, name, case.dtype, 1, lambda: [symmetry()]))
    for op in (o for o in (fwd, bwd, bwd2) if o in scope.operators(case)):
        count = len(properties.renumbered_fields(case, op))
        check = partial(properties.check_permutation, subject, judged, op, seed)
        tasks.append(_task(scope, op.name, case.dtype, count, check))
    return tasks


def of_adjoint(scope: Scope, lazy: Lazy) -> list[Task]:
    """Compare bwd with the Jacobian-vector product in bwd2."""
    judged = lazy()
    _, bwd, bwd2 = operators_of(judged.case.definition)
    name = scope.record_as(judged.case.values, bwd2, bwd)
    if not name:
        return []
    check = partial(properties.check_adjoint, scope.subject, judged, name)
    return [_task(scope, name, judged.case.dtype, 1, lambda: [check()])]


def of_differences(scope: Scope, lazy: Lazy, steps: tuple[float, ...]) -> list[Task]:
    """Difference one order against the next."""
    judged = lazy()
    case, tasks = judged.case, []
    fwd, bwd, _ = operators_of(case.definition)
    for upper in every_operator_of(case.definition)[1:]:
        name = scope.record_as(case.values, upper, fwd if upper is bwd else bwd)
        if name:
            check = partial(differences.check_differences, scope.subject, judged, upper, steps, name)
            tasks.append(_task(scope, name, case.dtype, len(case.returned(upper)), check))
    return tasks


def of_judge_differences(lazy: Lazy, selected: frozenset[str], steps: Sequence[float]) -> list[Task]:
    """Difference the judge, in real128."""
    judged = lazy()
    uppers = [op for op in every_operator_of(judged.case.definition)[1:] if op.name in selected]
    return [
        Task(
            op.name,
            "judge",
            "real128",
            len(judged.case.returned(op)),
            partial(differences.check_differences, None, judged, op, steps),
        )
        for op in uppers
    ]


def of_hub(scopes: Sequence[Scope], judged: Judged, threads: bool) -> list[Task]:
    """Accuracy of all subjects on one case of hubs, and the fast path's bits; with `threads` also by their number."""
    tasks = []
    for scope in scopes:
        tasks += of_accuracy(scope, lambda: judged)
        if scope.subject.name == "fortran":
            tasks += of_levels(scope, lambda: judged) + (of_threads(scope, lambda: judged) if threads else [])
    return tasks


def of_bessel(scope: Scope, lazy: Lazy) -> list[Task]:
    """Compare radial functions over three decades of x with the judge, and with scipy."""
    tasks, fwd, judged = of_accuracy(scope, lazy), OPERATORS["radial_basis_fwd"], lazy()
    if fwd in scope.operators(judged.case):
        check = partial(bessel.check_bessel, scope.subject, judged)
        tasks.append(_task(scope, fwd.name, judged.case.dtype, bessel.DEGREES, check))
    return tasks


def of_physics(scope: Scope, kind: str, system: Callable[[], physics.System]) -> list[Task]:
    """Compare forces on a structure with differences, and after motions."""
    name = scope.record_as({**BASIS, **SUM}, *(OPERATORS[n] for n in physics.INVOLVED[kind]))
    if not name:
        return []

    def check() -> list[Check]:
        return physics.CHECKS[kind](scope.subject, system(), name)

    return [_task(scope, name, "float64", physics.COUNTS[kind], check)]


def of_golden(scope: Scope | None, vectors: Callable[[], list[golden.Vector]], dtype: str) -> list[Task]:
    """Compare a subject (None: the judge) with vectors of other programs."""
    tasks = []
    for vector in vectors():
        if dtype in vector.dtypes and (scope is None or scope.has(OPERATORS[vector.operator])):
            check = partial(golden.check_golden, scope.subject if scope else None, vector, dtype)
            if scope is None:
                tasks.append(Task(vector.operator, "judge", "real128", len(vector.expected), check))
            else:
                tasks.append(_task(scope, vector.operator, dtype, len(vector.expected), check))
    return tasks
