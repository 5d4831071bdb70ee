"""Sequential execution of checks, in this process or in another one that may hang or crash, with a progress bar."""

import contextlib
import os
import pickle
import re
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from itertools import chain, islice
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from slopecheck.isolated import ChildEnded, ChildProcess
from slopecheck.outcome import describe_exception, record_call_outcome
from slopecheck.record import Check
from slopecheck.units import poison_new_memory

PATIENCE = 2.0  # seconds until the progress bar appears
STARTING = 60.0  # time limit in seconds for the imports of a process
# Whether a new process can import all it needs, as for the command line, which names functions by their modules.
FRESH = ContextVar("FRESH", default=False)
CALL = "call"  # kind of a step whose failure skips all steps up to the next step of this kind
# A message: the number of a starting step and the number of calls so far; checks; or the number and cost of all calls.
Message = tuple[int, int] | list[Check] | tuple[int, str]


class CheckPlan(ABC):
    """A sequence of steps, each with a label and a kind of check."""

    name: str
    steps: list[tuple[str, str]]

    @property
    def num_calls(self) -> int:
        """Number of calls so far, 0 if they are not counted."""
        return 0

    @abstractmethod
    def run_step(self, number: int) -> Iterable[Check]:
        """Run the checks of a step."""

    @abstractmethod
    def make_failed_check(self, number: int, text: str) -> Check:
        """Return a failed check for a step that raised an exception."""

    def estimate_calls_and_cost(self) -> tuple[int, str]:
        """Return the estimated number of calls of all checks, and a description of their cost (0 and "" if unknown)."""
        return 0, ""


P = TypeVar("P", bound=CheckPlan)


def parse_skip_and_timeout(
    who: str, timeout: float | None, skip: Any = None, kinds: Iterable[str] = ()
) -> dict[str, str]:
    """Validate the options, and return the skipped kinds of check with the reasons.

    Raises TypeError if `skip` is not a mapping; ValueError if a kind is not in `kinds` or has no reason, or if a
    timeout is not positive.
    """
    if timeout is not None and not timeout > 0:
        raise ValueError(f"{who}: timeout is {timeout!r}; expected seconds above 0, or None")
    if not isinstance(skip or {}, Mapping):
        raise TypeError(f"{who}: skip is a {type(skip).__name__}; expected a mapping of kinds to reasons")
    skip = dict(skip or {})
    if unknown := set(skip) - set(kinds):
        raise ValueError(f"{who}: skip names {', '.join(sorted(unknown))}; expected {', '.join(kinds)}")
    for kind, why in skip.items():
        if not (isinstance(why, str) and why.strip()):
            raise ValueError(f"{who}: skip of {kind!r} is {why!r}; expected a reason")
    return skip


def parse_inconclusive_option(who: str, inconclusive: str, reason: str) -> str:
    """Return the reason for allowing inconclusive checks, or ""; raise ValueError if the two options disagree."""
    if inconclusive not in ("fail", "allow"):
        raise ValueError(f"{who}: inconclusive is {inconclusive!r}; expected 'fail' or 'allow'")
    if (inconclusive == "allow") != bool(reason.strip()):
        raise ValueError(
            f"{who}: inconclusive is {inconclusive!r} and reason {reason!r}; expected a reason to allow it"
        )
    return reason


def parse_skip_options(skips: Sequence[str]) -> dict[str, str]:
    """Return reasons by kind of check from options ``KIND=WHY``; raise ValueError if an option has another form."""
    left_out = {}
    for skip in skips:
        kind, _, why = skip.partition("=")
        if not (kind and why.strip()):
            raise ValueError(f"--skip {skip!r}; expected KIND=WHY")
        left_out[kind] = why
    return left_out


def _find_next_step(plan: CheckPlan, number: int, lost: bool) -> int:
    """Return the number of the next step; after a failed call step, of the next call step."""
    number += 1
    while lost and number < len(plan.steps) and plan.steps[number][1] != CALL:
        number += 1
    return number


def _run_steps_from(plan: CheckPlan, number: int) -> Iterator[Message]:
    """Run the checks from a step on; an exception becomes a failed check and does not affect earlier checks."""
    while number < len(plan.steps):
        yield number, plan.num_calls
        rows = chain.from_iterable(
            map(plan.run_step, [number])
        )  # `make` is called at the first row, where it may raise
        problem = ""
        while not problem:
            outcome = record_call_outcome(lambda rows=rows: {"checks": list(islice(rows, 1))})  # type: ignore[misc]
            problem, checks = outcome.problem, outcome.fields.get("checks", [])
            if not checks:
                break
            yield checks
        if problem:
            yield [plan.make_failed_check(number, re.sub("^(InvalidResultError|DerivativeCountError): ", "", problem))]
        if not problem and plan.steps[number][1] == CALL:
            yield plan.estimate_calls_and_cost()
        number = _find_next_step(plan, number, bool(problem) and plan.steps[number][1] == CALL)


def _run_and_send_checks(connection: Connection, make: Callable[[bool], CheckPlan], number: int, forked: bool) -> None:
    """Run the checks in a child process, and send each as it completes."""
    if forked and "torch" in sys.modules:  # torch's thread pool did not survive the fork
        sys.modules["torch"].set_num_threads(1)
    poison_new_memory()
    plan = make(forked)
    connection.send((number, 0))
    for message in _run_steps_from(plan, number):
        connection.send(message)
    connection.send(None)


def _run_steps_in_child(
    make: Callable[[bool], CheckPlan], plan: CheckPlan, seconds: float, method: str
) -> Iterator[Message]:
    """Run the checks in a child process; if it hangs or crashes, a new one continues after the failed step."""
    number = 0
    while number < len(plan.steps):
        child, begun = ChildProcess(_run_and_send_checks, (make, number, method == "fork"), method), False
        child.set_time_limit(STARTING + seconds)
        try:
            for message in iter(child.receive_message, None):
                begun = True
                if isinstance(message, tuple) and isinstance(message[1], int):
                    number = message[0]
                    child.set_time_limit(seconds)
                yield message
            return
        except ChildEnded as error:
            more = "; a larger timeout, or inputs of fewer elements, would decide" * child.exceeds_time_limit
            yield [plan.make_failed_check(number, f"{error}{more}")]
            if not begun:  # no step has begun, so another process would fail in the same way
                return
            number = _find_next_step(plan, number, plan.steps[number][1] == CALL)
        finally:
            child.kill()


def _choose_start_method(make: Callable[[bool], CheckPlan]) -> str:
    """Return "spawn" if a library does not survive a fork, or if `FRESH` and `make` can be pickled; else "fork".

    Raises ValueError if no process can be started.
    """
    torch = sys.modules.get("torch")
    broken = ["JAX does not survive a fork"] * ("jax" in sys.modules)
    broken += ["CUDA does not survive a fork"] * bool(torch and torch.cuda.is_available())
    broken += ["libraries of macOS do not survive a fork"] * (sys.platform == "darwin")
    broken += ["this system has no fork"] * (not hasattr(os, "fork"))
    if not (broken or FRESH.get()):
        return "fork"
    try:
        pickle.dumps(make)
    except Exception as error:  # pickling a user's object may raise any exception
        if not broken:
            return "fork"
        raise ValueError(
            f"timeout: {broken[0]}, and the function or inputs cannot be pickled: {describe_exception(error)}"
        ) from error
    return "spawn"


@contextlib.contextmanager
def _show_progress(plan: CheckPlan) -> Iterator[Callable[[Message], None]]:
    """Yield a function that shows messages: the cost of the checks, and for long runs a bar that counts calls."""
    console = Console(stderr=True)
    done, total = 0, 0

    class CallProgressBar(Progress):
        def get_renderables(self) -> Iterable[Any]:
            for task in self.tasks:
                task.completed, task.total = max(plan.num_calls, done), total or len(plan.steps)
            yield from super().get_renderables()

    bar = CallProgressBar(console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task("", total=len(plan.steps))
    timer = threading.Timer(PATIENCE, bar.start)
    timer.daemon = True
    timer.start()

    def show_message(message: Message) -> None:
        nonlocal done, total
        if isinstance(message, list):
            return
        number, more = message
        if isinstance(more, int):
            done, kind = more if total else number, " ".join(filter(None, plan.steps[number]))
            bar.update(task, description=escape(f"{plan.name}: {kind}"))
        else:
            total = number
            if more and console.is_terminal:
                console.print(f"{plan.name}: {more}", markup=False)

    try:
        yield show_message
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


def run_plan(make: Callable[[bool], P], timeout: float | None, checks: list[Check]) -> P:
    """Run the checks of a plan and return it; checks are added to the list as they come.

    `make` returns the plan; its argument says whether the process is a fork. `timeout` is the limit in seconds for each
    step in a child process; None runs all steps in this process.
    """
    method = "" if timeout is None else _choose_start_method(make)
    plan = make(method == "fork")
    messages = _run_steps_from(plan, 0) if timeout is None else _run_steps_in_child(make, plan, timeout, method)
    with _show_progress(plan) as show:
        for message in messages:
            show(message)
            if isinstance(message, list):
                checks += message
    return plan
