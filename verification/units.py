"""Units of a run and the tasks they consist of: every task says how many checks it will make before it makes them.

A check that does not come back, because a function under test ended it or took the process with it, is noticed by that
number: a run with fewer checks than planned has failed.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from trigraph.verification.record import Check
from trigraph.verification.subjects import LEFT_OUT, NotOffered, message_of, trace_of


@dataclass(frozen=True)
class Task:
    """Checks to be made: of what, how many (those of kind ``empty`` aside), and the function that makes them."""

    operator: str
    panel: str
    dtype: str
    count: int
    make: Callable[[], list[Check]]


@dataclass(frozen=True)
class Unit:
    """A part of the run."""

    label: str
    weight: float  # its share of the time
    # The number of checks it will make, those of kind ``empty`` aside: only the judge knows where nothing contributes.
    planned: Callable[[], int]
    execute: Callable[[], list[Check]]  # makes them; what goes wrong is a failed check of kind ``complete``
    group: str = ""  # units that follow one another with one group share a case, and what the judge says of it


def counted(checks: Iterable[Check]) -> int:
    """Return the number of checks that plans count; those that were not offered are among them."""
    return sum(c.kind not in ("empty", "complete") if c.offered else int(c.error) for c in checks)


def missing(operator: str, panel: str, dtype: str, case: str, number: float, note: str) -> Check:
    """Return the failed check for `number` checks that were planned and not made."""
    return Check(operator, panel, dtype, "complete", case, "", error=number, tolerance=0.0, note=note)


def _not_offered(label: str, task: Task, number: int, fields: Collection[str], note: str) -> Check:
    """Return what stands for `number` checks that a user's function does not offer."""
    return Check(
        task.operator, task.panel, task.dtype, "not offered", label, ", ".join(fields), number, tolerance=0.0, note=note
    )


def _without(label: str, task: Task, checks: list[Check], absent: Collection[str]) -> list[Check]:
    """Leave out the checks of auxiliary outputs that the function did not return, and say how many."""
    offered = [c for c in checks if c.field not in absent]
    fields = [name for name in dict.fromkeys(c.field for c in checks) if name in absent]
    note = "auxiliary outputs that the function leaves out"
    return [*offered, _not_offered(label, task, counted(checks) - counted(offered), fields, note)] if fields else checks


def _run(label: str, task: Task) -> list[Check]:
    try:
        LEFT_OUT.clear()
        checks = _without(label, task, task.make(), LEFT_OUT)
        checks = [replace(c, trace=trace_of(c.note)) if c.failed else c for c in checks]
    except KeyboardInterrupt:
        raise
    except NotOffered as error:
        return [_not_offered(label, task, task.count, (), str(error))]
    except BaseException as error:  # whatever it is, the checks are not there
        return [missing(task.operator, task.panel, task.dtype, label, math.inf, message_of(error))]
    made = counted(checks)
    if made == task.count:
        return checks
    note = f"{made} checks were made; {task.count} were planned"
    return [*checks, missing(task.operator, task.panel, task.dtype, label, abs(made - task.count), note)]


def unit_of(label: str, weight: float, tasks: Callable[[], Sequence[Task]]) -> Unit:
    """Make a unit of tasks, which are asked for when it is counted and when it is executed."""

    def execute() -> list[Check]:
        return [check for task in tasks() for check in _run(label, task)]

    return Unit(label, weight, partial(_planned, tasks), execute, label.partition(":")[0])


def _planned(tasks: Callable[[], Sequence[Task]]) -> int:
    return sum(task.count for task in tasks())


def spoil_new_memory() -> None:
    """Let glibc fill the memory that it hands out to this process: what is read before it was written shows then.

    It would often be zero, as if somebody had set it. Every byte becomes 0x7f, every number close to the largest one.
    """
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(-6, 0x80)  # M_PERTURB, of <malloc.h>; new memory gets the complement


def execute(units: Iterable[Unit]) -> Iterator[tuple[Unit, list[Check]]]:
    """Execute units one after the other, and yield each with its checks."""
    spoil_new_memory()
    for unit in units:
        yield unit, unit.execute()
