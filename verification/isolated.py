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
from trigraph.verification.subjects import own_interrupts
from trigraph.verification.units import Ended, Unit, missing

__all__ = ["Refused", "Workers"]

PATIENCE = 0.5  # seconds between looks whether a child still lives: processes that it forked may keep the pipe open
# Where several processes share the processors. Libraries that NumPy's products come from would start as many threads in
# every process as there are processors; threads of the fast path that wait for others would keep a processor busy.
SHARING = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


class Refused(ValueError):
    """No child could plan: what is wrong, and the traceback of a module's own failure ("" if that is not it)."""

    def __init__(self, text: str, trace: str = "") -> None:
        super().__init__(text)
        self.trace = trace


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


def _serve(connection: Connection, folder: str, requests: Sequence[Mapping[str, Any]]) -> None:
    """Plan, then count or execute the units that the parent asks for, in the child."""
    os.setpgrp()  # with the processes that a user's function starts: all end together
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.chdir(folder)
    try:
        with own_interrupts():
            try:
                units = _planned(requests)
            except LoadError as error:
                cause = error.__cause__
                connection.send(("refused", str(error), "".join(traceback.format_exception(cause)) if cause else ""))
                return
            except ValueError as error:
                connection.send(("refused", str(error), ""))
                return
            connection.send(("planned", [(unit.label, unit.weight, unit.group) for unit in units]))
            while True:
                wanted, numbers = connection.recv()
                for number in numbers:
                    unit = units[number]
                    connection.send((number, unit.planned() if wanted == "count" else unit.execute()))
    except (KeyboardInterrupt, EOFError, BrokenPipeError):
        pass  # the parent was interrupted, or is gone


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


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Start a process that does not hear the terminal's Ctrl-C, which this one answers; until then this one waits."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Child:
    """A process, what it sends, and the numbers of the units it was asked for last."""

    def __init__(self, requests: Sequence[Mapping[str, Any]]) -> None:
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, os.getcwd(), list(requests)))
        with _no_interrupts():
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
        """Return the next message.

        Raises
        ------
        Ended
            If there is none to come.
        """
        try:
            while not self.connection.poll(PATIENCE):
                if not self.process.is_alive() and not self.connection.poll():
                    raise EOFError
            return self.connection.recv()
        except (EOFError, OSError):
            raise self._ended() from None

    def answer(self) -> tuple[int, Any]:
        """Return the number of the next unit that was asked for, and what was asked."""
        number, found = self.receive()
        self.asked.popleft()
        return number, found

    def _ended(self) -> Ended:
        self.process.join()
        code = self.process.exitcode
        status = f"ended with status {code}"
        if code is not None and code < 0:
            status = f"was ended by signal {signal.Signals(-code).name}"
        return Ended(f"the process that runs it {status}")


class Workers:
    """Processes that lay out a run and share its units.

    Parameters
    ----------
    requests : sequence of mappings
        Arguments of `run.plan`, one for each plan; implementations are names.
    processes : int

    Attributes
    ----------
    units : list of Unit

    Raises
    ------
    Refused
        If the arguments are wrong, or the implementation cannot be imported.
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
        """Execute the units, those of a case in one process and in order.

        Yields
        ------
        unit : Unit
        checks : list of Check
            The last one has a failed check, and the rest is left out, if a process is gone.
        """
        with own_interrupts():
            try:
                for child in self._children:
                    self._hand_out(child)
                while busy := [child for child in self._children if child.asked]:
                    ready = wait([child.connection for child in busy], PATIENCE)
                    for child in busy:
                        if child.connection in ready or not child.process.is_alive():
                            yield self._next(child)
            except _Over as over:
                yield over.unit, [missing("", "", "float64", over.unit.label, math.inf, str(over.__cause__))]
            finally:
                self._stop()

    def _next(self, child: _Child) -> tuple[Unit, list[Check]]:
        unit = self.units[child.asked[0]]
        try:
            number, checks = child.answer()
            if not child.asked:
                self._hand_out(child)
        except Ended as error:
            raise _Over(unit) from error
        return self.units[number], checks

    def _hand_out(self, child: _Child) -> None:
        """Give a child the next case of its share, or the last of the longest share that is left."""
        own = self._shares[self._children.index(child)]
        longest = max(self._shares, key=len)
        if own or longest:
            child.ask("execute", own.popleft() if own else longest.pop())

    def _stop(self) -> None:
        for child in self._children:
            child.kill()


class _Over(Exception):
    """A process is gone while this unit was to be executed."""

    def __init__(self, unit: Unit) -> None:
        super().__init__(unit.label)
        self.unit = unit
