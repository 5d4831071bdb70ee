"""Calls that may fail: their results, the text and traceback of exceptions, and requests that are not offered."""

import math
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import parent_process
from typing import Any

# Largest numbers of frames and of characters that are shown from the end of a traceback.
TRACE_FRAMES, TRACE_LENGTH = 12, 4000


@dataclass(frozen=True)
class CallOutcome:
    """Outcome of a call: fields, time in seconds, and the problem ("" if none)."""

    fields: Mapping[str, Any]
    seconds: float
    problem: str


class NotOffered(Exception):
    """The subject of the checks does not support the request, for the reason in the message."""


# Auxiliary outputs that a user's function has left out since this set was last cleared.
LEFT_OUT: set[str] = set()
# Tracebacks of exceptions by the note of a check; of several exceptions with the same note, the first is kept.
_TRACES: dict[str, str] = {}


def _store_traceback(error: BaseException, problem: str, hidden: tuple[str, ...]) -> None:
    """Store the traceback of the first exception with this note, without the frames of the checks themselves."""
    where = error.__traceback__
    while where is not None and f"{where.tb_frame.f_globals.get('__name__', '')}.".startswith(hidden):
        where = where.tb_next
    frames = traceback.extract_tb(where)
    if frames:
        text = "".join(traceback.format_list(frames[-TRACE_FRAMES:]))
        _TRACES.setdefault(problem, f"Traceback (most recent call last):\n{text}{problem}"[-TRACE_LENGTH:])


def find_traceback(note: str) -> str:
    """Return the traceback of the exception whose message ends a note; "" if there is none."""
    return next((trace for problem, trace in _TRACES.items() if note.endswith(problem)), "")


def describe_exception(error: BaseException) -> str:
    """Return the type and the text of an exception."""
    return ": ".join(filter(None, [type(error).__name__, str(error)]))[:2000]


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError after this many seconds; only in the main thread, and where the system has alarms."""
    if (
        seconds == math.inf
        or not hasattr(signal, "setitimer")
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return

    def raise_timeout(number: int, frame: Any) -> None:
        raise TimeoutError(
            f"it takes longer than {seconds:.0f} s: a loop that waits for convergence, which never comes?"
        )

    before = signal.signal(signal.SIGALRM, raise_timeout)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def record_call_outcome(call: Callable[[], Mapping[str, Any]], *hidden: str) -> CallOutcome:
    """Make a call; any exception but the user's Ctrl-C and `NotOffered` becomes the problem of the outcome.

    The traceback starts below the frames of this package and of packages in `hidden`.
    """
    start = time.perf_counter()
    fields: Mapping[str, Any] = {}
    try:
        fields, problem = call(), ""
    except NotOffered:
        raise
    except BaseException as error:  # any exception of the subject is a finding, even SystemExit
        # In the main process this is the user's Ctrl-C, which child processes do not receive (isolated.py).
        if isinstance(error, KeyboardInterrupt) and parent_process() is None:
            raise
        problem = describe_exception(error)
        _store_traceback(error, problem, ("slopecheck.", *(f"{name}." for name in hidden)))
    return CallOutcome(fields, time.perf_counter() - start, problem)
