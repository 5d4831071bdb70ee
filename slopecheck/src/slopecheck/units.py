"""Units of a run and their tasks; every task states the number of its checks before it makes them.

This number reveals lost checks, for example if a function under test ended the process: a run with fewer checks than
planned has failed.
"""

import ctypes
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from slopecheck.outcome import LEFT_OUT, NotOffered, describe_exception, find_traceback
from slopecheck.record import Check


@dataclass(frozen=True)
class CheckTask:
    """Checks to be made: their subject, their number (without kind ``empty``), and the function that makes them."""

    operator: str
    backend: str
    dtype: str
    count: int
    make: Callable[[], list[Check]]


@dataclass(frozen=True)
class WorkUnit:
    """A part of a run that one process executes."""

    label: str
    weight: float  # fraction of the run's time
    # Returns the number of checks, except those of kind ``empty``, which cannot be counted before they are made.
    planned: Callable[[], int]
    execute: Callable[[], list[Check]]  # makes the checks; an exception becomes a failed check of kind ``complete``
    group: str = ""  # consecutive units of one group share a case and the judge's results for it


def count_checks_for_plan(checks: Iterable[Check]) -> int:
    """Return the number of checks that plans count, including those not offered."""
    return sum(c.kind not in ("empty", "complete") if c.offered else int(c.error) for c in checks)


def make_missing_check(operator: str, backend: str, dtype: str, case: str, number: float, note: str) -> Check:
    """Return a failed check that represents `number` checks that were planned but not made."""
    return Check(operator, backend, dtype, "complete", case, "", error=number, tolerance=0.0, note=note)


def _make_not_offered_check(label: str, task: CheckTask, number: int, fields: Collection[str], note: str) -> Check:
    """Return a check that represents `number` checks that a user's function does not offer."""
    absent = make_missing_check(task.operator, task.backend, task.dtype, label, number, note)
    return replace(absent, kind="not offered", field=", ".join(fields))


def _replace_absent_checks(label: str, task: CheckTask, checks: list[Check], absent: Collection[str]) -> list[Check]:
    """Replace the checks of auxiliary outputs that the function did not return by one check with their number."""
    fields = [name for name in dict.fromkeys(c.field for c in checks) if name in absent]
    if not fields:
        return checks
    offered = [c for c in checks if c.field not in absent]
    number = count_checks_for_plan(checks) - count_checks_for_plan(offered)
    return [
        *offered,
        _make_not_offered_check(label, task, number, fields, "auxiliary outputs that the function leaves out"),
    ]


def _execute_task(label: str, task: CheckTask) -> list[Check]:
    try:
        LEFT_OUT.clear()
        checks = _replace_absent_checks(label, task, task.make(), LEFT_OUT)
        checks = [replace(c, trace=find_traceback(c.note)) if c.failed else c for c in checks]
    except KeyboardInterrupt:
        raise
    except NotOffered as error:
        return [_make_not_offered_check(label, task, task.count, (), str(error))]
    except BaseException as error:  # any exception leaves the checks of the unit missing
        return [make_missing_check(task.operator, task.backend, task.dtype, label, math.inf, describe_exception(error))]
    made = count_checks_for_plan(checks)
    if made == task.count:
        return checks
    note = f"{made} checks were made; {task.count} were planned"
    return [*checks, make_missing_check(task.operator, task.backend, task.dtype, label, abs(made - task.count), note)]


def make_work_unit(label: str, weight: float, tasks: Callable[[], Sequence[CheckTask]]) -> WorkUnit:
    """Make a unit of tasks; `tasks` is called when the unit is counted and when it is executed."""

    def count_planned_checks() -> int:
        return sum(task.count for task in tasks())

    def execute_tasks() -> list[Check]:
        return [check for task in tasks() for check in _execute_task(label, task)]

    return WorkUnit(label, weight, count_planned_checks, execute_tasks, label.partition(":")[0])


def poison_new_memory() -> None:
    """Make glibc fill new memory of this process, so that reads of uninitialised memory have visible effects.

    New memory is often zero, which hides these errors. Every byte is set to 0x7f, and each float is nearly the largest.
    """
    with suppress(OSError, AttributeError, TypeError):  # other C libraries and systems lack mallopt
        ctypes.CDLL(None).mallopt(-6, 0x80)  # M_PERTURB of <malloc.h>; memory is filled with the complement


def execute_units(units: Iterable[WorkUnit]) -> Iterator[tuple[WorkUnit, list[Check]]]:
    """Execute units one after the other, and yield each with its checks."""
    poison_new_memory()
    for unit in units:
        yield unit, unit.execute()
