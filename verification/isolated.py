"""A run in processes of its own: they share the work, and a user's function can end its process but not the run.

Each process plans the whole run, which takes a moment, and is asked for the units of one case after the other, since
these share what the judge says. The parent counts the checks that come back. An ``os._exit`` or a crash in a function,
which leaves no exception behind, is thereby a failed run, whatever status it left.
"""

from __future__ import annotations

import atexit
import math
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import groupby
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from trigraph.verification.implementation import LoadError
from trigraph.verification.record import Check
from trigraph.verification.units import Unit, missing, spoil_new_memory

# Where several processes share the processors. Libraries that NumPy's products come from would start as many threads in
# every process as there are processors; threads of the fast path that wait for others would keep a processor busy.
SHARING = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
PATIENCE = 1.0  # seconds after which it is asked whether a child has ended: a fork of its own may hold its pipes open


class Refused(ValueError):
    """No child could plan: what is wrong, and the traceback of a module's own failure ("" if that is not it)."""

    def __init__(self, text: str, trace: str = "") -> None:
        super().__init__(text)
        self.trace = trace


class Ended(Exception):
    """A child is gone; the message says how it ended."""


def _planned(requests: Sequence[Mapping[str, Any]]) -> list[Unit]:
    """Return the units of several plans; what two of them have in common is done once."""
    from trigraph.verification.run import plan

    return list({unit.label: unit for request in requests for unit in plan(**request)}.values())


def _end_with_parent() -> None:
    """End this process and those it has started when the parent is gone, whatever a user's function is at."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.killpg(0, signal.SIGKILL)


def _serve(connection: Connection, requests: Sequence[Mapping[str, Any]]) -> None:
    """Plan, then count or execute the units that the parent asks for, in the child."""
    os.setpgrp()  # with the processes that a user's function starts: all end together, and none hears Ctrl-C
    threading.Thread(target=_end_with_parent, daemon=True).start()
    spoil_new_memory()
    try:
        units = _planned(requests)
    except ValueError as error:
        failed = isinstance(error, LoadError) and error.__cause__
        connection.send(("refused", str(error), "".join(traceback.format_exception(failed)) if failed else ""))
        return
    connection.send(("planned", [(unit.label, unit.weight, unit.group) for unit in units]))
    with suppress(EOFError, BrokenPipeError):  # the parent was interrupted, or is gone
        while True:
            wanted, numbers = connection.recv()
            for number in numbers:
                unit = units[number]
                connection.send(unit.planned() if wanted == "count" else unit.execute())


@contextmanager
def _sharing_processors(processes: int) -> Iterator[None]:
    """Start processes as `SHARING` says, unless there is one process, or the user has said otherwise."""
    unset = [name for name in SHARING if name not in os.environ] if processes > 1 else []
    os.environ.update({name: SHARING[name] for name in unset})
    try:
        yield
    finally:
        for name in unset:
            del os.environ[name]


class _Child:
    """A process, and the numbers of the units that it was asked for and has not answered yet."""

    def __init__(self, requests: Sequence[Mapping[str, Any]]) -> None:
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, list(requests)))
        self.process.start()
        theirs.close()
        atexit.register(self.kill)
        self.asked: deque[int] = deque()

    def kill(self) -> None:
        """End the process and those it has started; the second time does nothing."""
        if self.connection.closed:
            return
        self.connection.close()
        self.process.kill()
        if self.process.pid is not None:
            with suppress(ProcessLookupError, PermissionError):  # they have ended, or it had not begun
                os.killpg(self.process.pid, signal.SIGKILL)

    def ask(self, what: str, numbers: Sequence[int]) -> None:
        """Ask for the units' numbers of checks ("count"), or for the checks ("execute")."""
        self.asked.extend(numbers)
        with suppress(OSError):  # of a child that is gone; `receive` tells how
            self.connection.send((what, numbers))

    def receive(self) -> Any:
        """Return the next message; `Ended` if there is none to come."""
        with suppress(EOFError, OSError):
            while self.process.exitcode is None or self.connection.poll():
                if self.connection in wait([self.connection, self.process.sentinel], PATIENCE):
                    return self.connection.recv()
        self.process.join()
        code = self.process.exitcode or 0
        how = f"was ended by signal {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        raise Ended(f"the process that runs it {how}")

    def answer(self) -> tuple[int, Any]:
        """Return the number of the unit that was asked for first, and what was asked."""
        answer = self.receive()
        return self.asked.popleft(), answer


class Workers:
    """Processes that lay out a run and share its `units`; implementations are names.

    Each request has the arguments of `run.plan` for a plan. `Refused` if they are wrong, or the implementation cannot
    be imported.
    """

    def __init__(self, requests: Sequence[Mapping[str, Any]], processes: int) -> None:
        with _sharing_processors(processes):
            self._children = [_Child(requests) for _ in range(processes)]
        try:
            replies = [child.receive() for child in self._children]
        except Ended as error:
            raise Refused(f"verify: importing implementation {requests[0].get('implementation')!r}: {error}") from None
        for kind, *content in replies:
            if kind == "refused":
                self._stop()
                raise Refused(*content)
        listed = replies[0][1]
        cases = [[n for n, _ in members] for _, members in groupby(enumerate(listed), key=lambda item: item[1][2])]
        # Each child counts the checks of its own share, which builds the cases, and begins with executing it.
        self._shares = [deque(cases[i::processes]) for i in range(processes)]
        for child, share in zip(self._children, self._shares, strict=True):
            child.ask("count", [n for case in share for n in case])
        counts = dict(child.answer() for child in self._children for _ in range(len(child.asked)))
        self.units = [
            Unit(label, weight, partial(int, counts[n]), list, group) for n, (label, weight, group) in enumerate(listed)
        ]

    def execute(self) -> Iterator[tuple[Unit, list[Check]]]:
        """Execute the units, those of a case in one process and in order, and yield each with its checks.

        If a process is gone, the last one has a failed check, and the rest is left out.
        """
        try:
            for child in self._children:
                self._hand_out(child)
            while busy := [child for child in self._children if child.asked]:
                ready = wait([one for child in busy for one in (child.connection, child.process.sentinel)], PATIENCE)
                for child in busy:
                    if child.connection in ready or child.process.exitcode is not None:
                        unit = self.units[child.asked[0]]
                        try:
                            _, checks = child.answer()
                        except Ended as error:
                            yield unit, [missing("", "", "float64", unit.label, math.inf, str(error))]
                            return
                        if not child.asked:
                            self._hand_out(child)
                        yield unit, checks
        finally:
            self._stop()

    def _hand_out(self, child: _Child) -> None:
        """Give a child the next case of its share, or the last of the longest share that is left."""
        own = self._shares[self._children.index(child)]
        longest = max(self._shares, key=len)
        if own or longest:
            child.ask("execute", own.popleft() if own else longest.pop())

    def _stop(self) -> None:
        for child in self._children:
            child.kill()
