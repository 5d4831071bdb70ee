"""Run checks in separate processes that share the work; a user's function may end its process but not the run.

Each process plans the whole run, which is fast, and executes the units of one case after another, because units of a
case share results. The parent counts the returned checks. The run therefore fails if a function calls ``os._exit`` or
crashes without an exception, whatever the exit status. It also fails if a function exceeds its time limit.
`slopecheck.running` also uses a `ChildProcess`.
"""

import atexit
import math
import os
import signal
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import groupby
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from slopecheck.loading import LoadError
from slopecheck.record import Check
from slopecheck.units import WorkUnit, make_missing_check, poison_new_memory

# Environment of processes that share the processors. Without it, NumPy's linear algebra libraries would start a thread
# for every processor in each process, and waiting OpenMP threads would keep processors busy.
SHARING = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
PATIENCE = 1.0  # seconds between checks that a child is alive; the child's own children may keep its pipes open


Plan = Callable[..., Sequence[WorkUnit]]  # maps a request, given as keyword arguments, to its units


class PlanningError(ValueError):
    """Planning failed; `trace` is the traceback if the import of a module failed, else ""."""

    def __init__(self, text: str, trace: str = "") -> None:
        super().__init__(text)
        self.trace = trace


class ChildEnded(Exception):
    """A child process has ended or exceeded its time limit, as the message says."""


def merge_units(plan: Plan, requests: Sequence[Mapping[str, Any]]) -> list[WorkUnit]:
    """Return the units of several requests; a unit that several requests share is included once."""
    return list({unit.label: unit for request in requests for unit in plan(**request)}.values())


def _end_with_parent() -> None:
    """Wait for the parent to end, then kill this process and its children, even while a user's function runs."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _set_up_and_serve(serve: Callable[..., None], *arguments: Any) -> None:
    """Set up the child process, then call `serve`."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # processes started by a user's function end with this one, and none receives Ctrl-C
    threading.Thread(target=_end_with_parent, daemon=True).start()
    serve(*arguments)


def _serve_units(connection: Connection, plan: Plan, requests: Sequence[Mapping[str, Any]]) -> None:
    """In the child process, plan, then count or execute the units that the parent requests."""
    poison_new_memory()
    try:
        units = merge_units(plan, requests)
    except ValueError as error:
        failed = isinstance(error, LoadError) and error.__cause__
        connection.send(("refused", str(error), "".join(traceback.format_exception(failed)) if failed else ""))
        return
    connection.send(("planned", [(unit.label, unit.weight, unit.group) for unit in units]))
    with suppress(EOFError, BrokenPipeError):  # the parent was interrupted or has ended
        while True:
            wanted, numbers = connection.recv()
            for number in numbers:
                unit = units[number]
                connection.send(unit.planned() if wanted == "count" else unit.execute())


@contextmanager
def _limit_library_threads(processes: int) -> Iterator[None]:
    """Add `SHARING` to the environment of several new processes, without overriding the user's variables."""
    unset = [name for name in SHARING if name not in os.environ] if processes > 1 else []
    os.environ.update({name: SHARING[name] for name in unset})
    try:
        yield
    finally:
        for name in unset:
            del os.environ[name]


class ChildProcess:
    """A process that runs ``serve(connection, *arguments)``, and the parent's end of the connection.

    The method "fork" keeps the memory of this process; "spawn" starts a new
    interpreter and pickles `serve` and the arguments.
    """

    def __init__(self, serve: Callable[..., None], arguments: Sequence[Any], method: str = "spawn") -> None:
        context: Any = get_context(method)
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_set_up_and_serve, args=(serve, theirs, *arguments))
        with warnings.catch_warnings():  # Python 3.12 and later warn of any fork while threads exist
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        theirs.close()
        atexit.register(self.kill)
        self._seconds = self._end = math.inf

    def kill(self) -> None:
        """End the process and its children; a second call does nothing."""
        if self.connection.closed:
            return
        self.connection.close()
        atexit.unregister(self.kill)
        self.process.kill()
        if self.process.pid is not None and hasattr(os, "killpg"):
            with suppress(ProcessLookupError, PermissionError):  # the processes have ended, or not yet started
                os.killpg(self.process.pid, signal.SIGKILL)

    def set_time_limit(self, seconds: float) -> None:
        """Set the time limit, in seconds from now, for the next message."""
        self._seconds, self._end = seconds, time.monotonic() + seconds

    @property
    def exceeds_time_limit(self) -> bool:
        """Whether the time limit is exceeded."""
        return time.monotonic() >= self._end

    def receive_message(self) -> Any:
        """Return the next message; raise `ChildEnded` if the child has ended or exceeds the time limit."""
        with suppress(EOFError, OSError):
            while self.process.exitcode is None or self.connection.poll():
                left = max(0.0, self._end - time.monotonic())
                if self.connection in wait([self.connection, self.process.sentinel], min(left, PATIENCE)):
                    return self.connection.recv()
                if self.exceeds_time_limit:
                    self.kill()
                    raise ChildEnded(f"it takes longer than {self._seconds:g} s")
        self.process.join(PATIENCE)
        self.process.kill()  # in case it has closed the connection but still runs
        self.process.join()
        code = self.process.exitcode or 0
        names = {-number: f"was ended by signal {number.name}" for number in signal.Signals}
        # Where other systems send a signal, Windows sets a large status: 0xC0000005 is a segmentation fault.
        how = names.get(code, f"ended with status {code}" if code < 2**30 else f"ended with status 0x{code:08X}")
        raise ChildEnded(f"the process that runs it {how}")


class _Worker(ChildProcess):
    """A process that plans and executes units; `asked` holds the numbers of its unanswered units."""

    def __init__(self, plan: Plan, requests: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(_serve_units, [plan, list(requests)])
        self.asked: deque[int] = deque()

    def request_units(self, what: str, numbers: Sequence[int]) -> None:
        """Request the number of checks of each unit ("count"), or the checks themselves ("execute")."""
        self.asked.extend(numbers)
        with suppress(OSError):  # the child has ended; `receive_message` reports how it ended
            self.connection.send((what, numbers))

    def receive_unit_answer(self) -> tuple[int, Any]:
        """Return the number of the first unanswered unit, and the child's answer."""
        answer = self.receive_message()
        return self.asked.popleft(), answer


class WorkerPool:
    """Processes that plan a run and share its `units`.

    `plan` is a module-level function; each request is a mapping of its arguments, which name implementations. Raises
    `PlanningError` if arguments are wrong or an implementation cannot be imported, and `ChildEnded` if a process ends
    during planning. `seconds` is the time limit of a unit.
    """

    def __init__(
        self, plan: Plan, requests: Sequence[Mapping[str, Any]], processes: int, seconds: float = math.inf
    ) -> None:
        self._seconds = seconds
        with _limit_library_threads(processes):
            self._children = [_Worker(plan, requests) for _ in range(processes)]
        try:
            replies = [child.receive_message() for child in self._children]
        except ChildEnded:
            self._kill_children()
            raise
        for kind, *content in replies:
            if kind == "refused":
                self._kill_children()
                raise PlanningError(*content)
        listed = replies[0][1]
        cases = [[n for n, _ in members] for _, members in groupby(enumerate(listed), key=lambda item: item[1][2])]
        # Each child counts the checks of its share, which builds the cases, and then executes this share first.
        self._shares = [deque(cases[i::processes]) for i in range(processes)]
        for child, share in zip(self._children, self._shares, strict=True):
            child.request_units("count", [n for case in share for n in case])
        counts = dict(child.receive_unit_answer() for child in self._children for _ in range(len(child.asked)))
        self.units = [
            WorkUnit(label, weight, partial(int, counts[n]), list, group)
            for n, (label, weight, group) in enumerate(listed)
        ]

    def execute_units(self) -> Iterator[tuple[WorkUnit, list[Check]]]:
        """Execute the units and yield each with its checks; the units of a case run in order in one process.

        If a process ends or exceeds the time limit, its unit gets a failed check and all remaining units are skipped.
        """
        try:
            for child in self._children:
                self._assign_next_case(child)
            while busy := [child for child in self._children if child.asked]:
                ready = wait([one for child in busy for one in (child.connection, child.process.sentinel)], PATIENCE)
                for child in busy:
                    if child.connection in ready or child.process.exitcode is not None or child.exceeds_time_limit:
                        unit = self.units[child.asked[0]]
                        try:
                            _, checks = child.receive_unit_answer()
                        except ChildEnded as error:
                            note = f"{error} ({unit.label})"
                            yield unit, [make_missing_check("", "", "float64", unit.label, math.inf, note)]
                            return
                        child.set_time_limit(self._seconds)
                        if not child.asked:
                            self._assign_next_case(child)
                        yield unit, checks
        finally:
            self._kill_children()

    def _assign_next_case(self, child: _Worker) -> None:
        """Assign a child the next case of its share, or the last case of the longest remaining share."""
        child.set_time_limit(self._seconds)
        own = self._shares[self._children.index(child)]
        longest = max(self._shares, key=len)
        if own or longest:
            child.request_units("execute", own.popleft() if own else longest.pop())

    def _kill_children(self) -> None:
        for child in self._children:
            child.kill()
