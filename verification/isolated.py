"""A run in a process of its own: a user's function can end its process, but not the run.

The child imports the function, plans, and hands over each unit's checks; the parent counts them. An ``os._exit`` or a
crash in the function, which leaves no exception behind, is thereby a failed run, whatever status it left.
"""

from __future__ import annotations

import atexit
import os
import signal
import traceback
from collections.abc import Mapping
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from trigraph.verification.implementation import LoadError
from trigraph.verification.record import Check
from trigraph.verification.subjects import own_interrupts
from trigraph.verification.units import Ended, Unit

__all__ = ["Refused", "plan_apart"]

PATIENCE = 0.5  # seconds between looks whether the child still lives: its children may keep the pipe open


class Refused(ValueError):
    """The child could not plan: what is wrong, and the traceback of the module's own failure ("" if that is not it)."""

    def __init__(self, text: str, trace: str = "") -> None:
        super().__init__(text)
        self.trace = trace


def _serve(connection: Connection, folder: str, request: Mapping[str, Any]) -> None:
    """Plan and execute in the child."""
    from trigraph.verification.run import plan

    os.chdir(folder)
    try:
        with own_interrupts():
            try:
                units = plan(**request)
                listed = [(u.label, u.weight, u.planned()) for u in units]
            except LoadError as error:
                cause = error.__cause__
                connection.send(("refused", str(error), "".join(traceback.format_exception(cause)) if cause else ""))
                return
            except ValueError as error:
                connection.send(("refused", str(error), ""))
                return
            connection.send(("planned", listed))
            for number, unit in enumerate(units):
                connection.send((number, unit.execute()))
    except KeyboardInterrupt:
        pass  # the parent was interrupted, too


class _Child:
    """The process and what it sends."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        context = get_context("spawn")
        self.connection, theirs = context.Pipe(duplex=False)
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, os.getcwd(), dict(request)))
        self.process.start()
        theirs.close()
        atexit.register(self.process.kill)

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
            self.process.join()
            raise Ended(f"the process that runs it {_status(self.process.exitcode)}") from None

    def checks(self, number: int) -> list[Check]:
        """Return the checks of a unit."""
        sent, checks = self.receive()
        if sent != number:
            raise Ended(f"the process that runs it sent the checks of unit {sent}; expected those of {number}")
        found: list[Check] = checks
        return found


def _status(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was ended by signal {signal.Signals(-code).name}"
    return f"ended with status {code}"


def plan_apart(request: Mapping[str, Any]) -> list[Unit]:
    """Lay out a run whose units are executed in another process, in their order.

    Parameters
    ----------
    request : mapping
        Arguments of `run.plan`; the implementation is a name.

    Returns
    -------
    list of Unit

    Raises
    ------
    Refused
        If the plan's arguments are wrong, or the implementation cannot be imported.
    """
    child = _Child(request)
    try:
        kind, *content = child.receive()
    except Ended as error:
        raise Refused(f"verify: importing implementation {request['implementation']!r}: {error}") from None
    if kind == "refused":
        raise Refused(*content)
    (listed,) = content
    return [
        Unit(label, weight, partial(int, planned), partial(child.checks, number))
        for number, (label, weight, planned) in enumerate(listed)
    ]
