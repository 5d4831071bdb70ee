"""Tasks of a unit: functions that check a subject on a case, and the number of checks of each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from slopecheck.record import Check
from slopecheck.units import CheckTask
from trigraph.backends import BACKENDS
from trigraph.fortran.threads import restore_num_threads, set_num_threads
from trigraph.table import OPERATORS, Operator
from trigraph.verification import accuracy, bessel, differences, golden, half, nonfinite, physics, properties
from trigraph.verification.case import Case
from trigraph.verification.judged import JudgedCase, find_bwd3, list_all_operators, list_fwd_bwd_bwd2
from trigraph.verification.settings import Where, admits
from trigraph.verification.structures import BASIS, SUM
from trigraph.verification.subjects import Subject
from trigraph.verification.transforms import list_fields_with_graph_axis

Lazy = Callable[[], JudgedCase]


@dataclass(frozen=True)
class CheckScope:
    """A subject, the operators to check, and the settings to which checks are restricted."""

    subject: Subject
    selected: frozenset[str]
    where: Where = field(default_factory=dict)
    skip: frozenset[str] = frozenset()  # kinds of check to skip

    def checks_operator(self, op: Operator) -> bool:
        """Return whether to check an operator of the subject."""
        return op.name in self.selected and self.subject.implements in (None, op.name)

    def select_operators(self, case: Case) -> list[Operator]:
        """Return the operators of a case to check."""
        return [
            op
            for op in list_all_operators(case.definition)
            if self.checks_operator(op) and admits(self.where, case.values)
        ]

    def find_recorded_operator(self, values: Mapping[str, Any], *ops: Operator) -> str | None:
        """Return the operator under which to record a check that calls `ops`, or None to skip the check.

        The first of `ops` is the checked operator. `values` contains arguments of the definition. A check of a user's
        function is recorded under the operator that the function implements if `ops` contains that operator.
        """
        if not admits(self.where, values):
            return None
        if self.subject.implements is not None:
            return self.subject.implements if self.subject.implements in {op.name for op in ops} else None
        return ops[0].name if ops[0].name in self.selected else None


def _run_checks_on_one_thread(make: Callable[[], list[Check]]) -> list[Check]:
    """Run checks on one thread, because calls are small; `check_threads` tests several threads."""
    with restore_num_threads():
        set_num_threads(1)
        return make()


def _make_check_task(
    scope: CheckScope, kind: str, operator: str, dtype: str, count: int, make: Callable[[], list[Check]]
) -> CheckTask:
    """Return a task for one kind of check, without checks if the scope skips the kind."""
    if kind in scope.skip:
        return CheckTask(operator, scope.subject.name, dtype, 0, list)
    return CheckTask(operator, scope.subject.name, dtype, count, partial(_run_checks_on_one_thread, make))


def _count_returned_fields(case: Case, op: Operator) -> int:
    return len(case.list_returned_fields(op))


def _count_level_checks(case: Case, op: Operator) -> int:
    different, equal = properties.list_cpu_levels_to_compare()
    return (len(different) + bool(equal)) * _count_returned_fields(case, op)


# By kind: the function that checks an operator on a case, and the function that returns the number of its checks.
CHECKS: dict[str, tuple[Callable[..., list[Check]], Callable[[Case, Operator], int]]] = {
    "accuracy": (accuracy.check_accuracy, _count_returned_fields),
    "half": (half.check_half_precision, _count_returned_fields),
    "repeat": (properties.check_repeated_calls, _count_returned_fields),
    "layout": (properties.check_result_layout, _count_returned_fields),
    "out": (properties.check_out_arrays, _count_returned_fields),
    "subsets": (accuracy.check_partial_calls, accuracy.count_partial_call_checks),
    "blocks": (properties.check_small_blocks, _count_returned_fields),
    "batch": (properties.check_case_in_batch, lambda case, op: len(list_fields_with_graph_axis(case, op))),
    "threads": (properties.check_thread_counts, _count_returned_fields),
    "levels": (properties.check_cpu_levels, _count_level_checks),
    "permutation": (
        properties.check_renumbering_invariance,
        lambda case, op: len(properties.list_permuted_fields(case, op)),
    ),
}

# Kinds of task whose checks are recorded as a different kind.
OF_VALUES = {"subsets": "accuracy", "blocks": "accuracy"}


def _make_operator_task(scope: CheckScope, judged: JudgedCase, op: Operator, kind: str, *more: Any) -> CheckTask:
    """Return a task that calls ``check(subject, judged, op, *more)`` from `CHECKS`."""
    (check, count), case = CHECKS[kind], judged.case
    make = partial(check, scope.subject, judged, op, *more)
    return _make_check_task(scope, OF_VALUES.get(kind, kind), op.name, case.dtype, count(case, op), make)


def make_operator_tasks(scope: CheckScope, lazy: Lazy, kinds: Sequence[str], *more: Any) -> list[CheckTask]:
    """Return tasks of the given `CHECKS` for each operator of a case."""
    judged = lazy()
    operators = scope.select_operators(judged.case)
    return [_make_operator_task(scope, judged, op, kind, *more) for op in operators for kind in kinds]


def make_calling_convention_tasks(scope: CheckScope, lazy: Lazy) -> list[CheckTask]:
    """Return tasks that check repeated calls, layout, `out`, `wrt` and absent cotangents."""
    subject = scope.subject  # a user's function has no `wrt`
    offered = {"out": subject.into is not None, "subsets": subject.implements is None and subject.selective}
    return make_operator_tasks(scope, lazy, ["repeat", "layout", *(kind for kind in offered if offered[kind])])


def make_every_half_number_tasks(scope: CheckScope, name: str) -> list[CheckTask]:
    """Return the task that checks every number of a half-precision dtype."""
    if not scope.checks_operator(OPERATORS[half.EVERY_NUMBER]):
        return []
    check = partial(half.check_every_half_number, scope.subject, name)
    return [_make_check_task(scope, "half", half.EVERY_NUMBER, "float32", 1, check)]


def make_nonfinite_tasks(scope: CheckScope, lazy: Lazy) -> list[CheckTask]:
    """Return tasks that put NaN and infinity into each argument."""
    judged = lazy()
    return [
        task for op in scope.select_operators(judged.case) for task in _make_nonfinite_operator_tasks(scope, judged, op)
    ]


def _make_nonfinite_operator_tasks(scope: CheckScope, judged: JudgedCase, op: Operator) -> list[CheckTask]:
    case, check = judged.case, partial(nonfinite.check_nonfinite_propagation, scope.subject, judged, op)
    return [
        _make_check_task(scope, "nan", op.name, case.dtype, _count_returned_fields(case, op), partial(check, a.name))
        for a in case.select_present_arguments(op)
    ]


def make_algebraic_property_tasks(scope: CheckScope, lazy: Lazy, seed: int) -> list[CheckTask]:
    """Return tasks that check adjoint identities, symmetry and renumbering."""
    judged = lazy()
    case, tasks, bwd2 = judged.case, make_adjoint_tasks(scope, lazy), list_fwd_bwd_bwd2(judged.case.definition)[2]
    name = scope.find_recorded_operator(case.values, bwd2)
    if name:
        symmetry = partial(properties.check_second_derivative_symmetry, scope.subject, judged)
        tasks.append(_make_check_task(scope, "symmetry", name, case.dtype, 1, lambda: [symmetry()]))
    permutations = make_operator_tasks(scope, lazy, ["permutation"], seed)
    return tasks + [task for task in permutations if OPERATORS[task.operator].restriction is None]


def make_third_order_tasks(
    scope: CheckScope, lazy: Lazy, kinds: Sequence[str], steps: tuple[float, ...] | None, seed: int
) -> list[CheckTask]:
    """Return tasks for bwd3: the given `CHECKS` and, with `steps`, adjoint, symmetry, NaN and difference checks."""
    judged, subject = lazy(), scope.subject
    case, op = judged.case, find_bwd3(judged.case.definition)
    if not (scope.checks_operator(op) and admits(scope.where, case.values) and subject.supports_third(op, case.values)):
        return []
    if subject.name == "fortran-reference":  # this backend's bwd3 is the judge's
        return []
    more = {"batch": (seed,), "permutation": (seed,)}
    tasks = [_make_operator_task(scope, judged, op, kind, *more.get(kind, ())) for kind in kinds]
    if steps is None:
        return tasks
    make = partial(_make_check_task, scope)
    adjoint = partial(properties.check_third_derivative_adjoint, subject, judged)
    tasks.append(make("adjoint", op.name, case.dtype, 1, lambda: [adjoint()]))
    tasks.append(
        make("symmetry", op.name, case.dtype, 5, partial(properties.check_third_derivative_symmetry, subject, judged))
    )
    if subject.name in BACKENDS:  # trigraph.torch's plain forms subtract excluded terms, which spreads NaN
        tasks += _make_nonfinite_operator_tasks(scope, judged, op)
    if case.dtype == "float64":
        differ = partial(differences.check_finite_differences, subject, judged, op, steps)
        tasks.append(make("differences", op.name, case.dtype, _count_returned_fields(case, op), differ))
    return tasks


def make_adjoint_tasks(scope: CheckScope, lazy: Lazy) -> list[CheckTask]:
    """Return the task that compares bwd with the Jacobian-vector product in bwd2."""
    judged = lazy()
    _, bwd, bwd2 = list_fwd_bwd_bwd2(judged.case.definition)
    name = scope.find_recorded_operator(judged.case.values, bwd2, bwd)
    if not name:
        return []
    check = partial(properties.check_adjoint_identity, scope.subject, judged, name)
    return [_make_check_task(scope, "adjoint", name, judged.case.dtype, 1, lambda: [check()])]


def make_difference_tasks(scope: CheckScope, lazy: Lazy, steps: tuple[float, ...]) -> list[CheckTask]:
    """Return tasks that compare finite differences of each order with the next order."""
    judged = lazy()
    case, tasks = judged.case, []
    fwd, bwd, _ = list_fwd_bwd_bwd2(case.definition)
    for upper in list_all_operators(case.definition)[1:]:
        name = scope.find_recorded_operator(case.values, upper, fwd if upper is bwd else bwd)
        if name:
            check = partial(differences.check_finite_differences, scope.subject, judged, upper, steps, name)
            tasks.append(
                _make_check_task(scope, "differences", name, case.dtype, len(case.list_returned_fields(upper)), check)
            )
    return tasks


def make_judge_difference_tasks(lazy: Lazy, selected: frozenset[str], steps: Sequence[float]) -> list[CheckTask]:
    """Return tasks that compare finite differences of the judge with its derivatives, in real128."""
    judged = lazy()
    check = partial(differences.check_finite_differences, None, judged)
    return [
        CheckTask(op.name, "judge", "real128", len(judged.case.list_returned_fields(op)), partial(check, op, steps))
        for op in (*list_all_operators(judged.case.definition)[1:], find_bwd3(judged.case.definition))
        if op.name in selected
    ]


def make_hub_tasks(scopes: Sequence[CheckScope], lazy: Lazy, threads: bool) -> list[CheckTask]:
    """Return accuracy checks on hubs and, for the fast path, checks of levels and (with `threads`) of threads."""
    judged, tasks = lazy(), []
    for scope in scopes:
        kinds = ["accuracy"]
        if scope.subject.name == "fortran":
            kinds += ["levels", *["threads"] * threads]
        tasks += make_operator_tasks(scope, lambda: judged, kinds)
    return tasks


def make_bessel_tasks(scope: CheckScope, lazy: Lazy) -> list[CheckTask]:
    """Return tasks that compare radial functions over three decades of x with the judge and with scipy."""
    tasks, fwd, judged = make_operator_tasks(scope, lazy, ["accuracy"]), OPERATORS["radial_basis_fwd"], lazy()
    if fwd in scope.select_operators(judged.case):
        check = partial(bessel.check_sbf_rad_against_scipy, scope.subject, judged)
        tasks.append(_make_check_task(scope, "bessel", fwd.name, judged.case.dtype, bessel.DEGREES, check))
    return tasks


def make_physics_tasks(scope: CheckScope, kind: str, system: Callable[[], physics.PhysicalSystem]) -> list[CheckTask]:
    """Return the task for one kind of force check on a structure (`physics.CHECKS`)."""
    name = scope.find_recorded_operator({**BASIS, **SUM}, *(OPERATORS[n] for n in physics.INVOLVED[kind]))
    if not name:
        return []

    def check_system() -> list[Check]:
        return physics.CHECKS[kind](scope.subject, system(), name)

    return [_make_check_task(scope, kind, name, "float64", physics.COUNTS[kind], check_system)]


def make_golden_tasks(
    scope: CheckScope | None, vectors: Callable[[], list[golden.GoldenVector]], dtype: str
) -> list[CheckTask]:
    """Return tasks that compare a subject (None means the judge) with golden vectors."""
    tasks = []
    for vector in vectors():
        if dtype in vector.dtypes and (scope is None or scope.checks_operator(OPERATORS[vector.operator])):
            check = partial(golden.check_golden_vector, scope.subject if scope else None, vector, dtype)
            if scope is None:
                tasks.append(CheckTask(vector.operator, "judge", "real128", len(vector.expected), check))
            else:
                tasks.append(_make_check_task(scope, "golden", vector.operator, dtype, len(vector.expected), check))
    return tasks
