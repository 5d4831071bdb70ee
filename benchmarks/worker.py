"""The process of one contender, which builds and runs it on command and measures time and memory.

In its own process a contender shares no thread pool or memory with others.
"""

import ctypes
import gc
import os
import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trigraph.benchmarks.calls import Call, Unavailable

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
PAUSE = 0.05  # seconds; idle threads of another process (OpenBLAS) spin for up to 30 ms
WARM_UP = 0.03  # seconds of untimed calls before short ones are timed
BLOCK = 0.02  # seconds timed at once, so that the clock's resolution does not matter


@dataclass(frozen=True)
class Job:
    """What a worker runs; picklable, so partials of functions of a module."""

    make: Callable[[], Call]
    warm: Callable[[], Call] | None = None  # the same on tiny inputs, to load libraries


class First(NamedTuple):
    """Results of the first run as NumPy arrays, and its memory without inputs."""

    results: dict[str, np.ndarray]
    peak_bytes: int


def _high_water() -> int:
    """Return the largest resident size of this process so far, in bytes.

    VmHWM is the counter behind ru_maxrss. The latter also remembers the parent's size at the time of exec, so that a
    child of a large process seems to use nothing.
    """
    if STATUS.exists():
        for line in STATUS.read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def peak_memory(call: Call) -> tuple[dict[str, Any], int]:
    """Run once; return the results and the largest growth of the process in bytes."""
    gc.collect()  # return free memory, which would hide a run's use, and reset the high-water mark
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
    if CLEAR_REFS.exists():
        CLEAR_REFS.write_text("5")
    before = _high_water()
    results = call()
    return results, _high_water() - before


def as_numpy(value: Any) -> np.ndarray:
    """Return a result of any library as a NumPy array."""
    if callable(value):  # computed for the comparison only, after the timing
        value = value()
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return value if isinstance(value, np.ndarray) else np.asarray(value.get() if hasattr(value, "get") else value)


def seconds_of(call: Call, number: int) -> float:
    """Return the mean seconds of `number` calls."""
    start = time.perf_counter()
    for _ in range(number):
        call()
    return (time.perf_counter() - start) / number


class _Runner:
    """A built job: its first run, and samples of its time."""

    def __init__(self, job: Job) -> None:
        if job.warm is not None:
            job.warm()()
        self.call = job.make()
        self.seconds = 0.0

    def first(self) -> First:
        """Run once for results and memory, and once for an estimate of the time."""
        results, peak = peak_memory(self.call)
        named = {n: as_numpy(v) for n, v in results.items()}
        del results
        self.seconds = seconds_of(self.call, 1)
        return First(named, peak)

    def sample(self) -> float:
        """Return the seconds of one call, averaged over a block of calls if they are short."""
        time.sleep(PAUSE)
        if self.seconds < WARM_UP:
            seconds_of(self.call, round(WARM_UP / self.seconds))
        self.seconds = seconds_of(self.call, max(1, round(BLOCK / self.seconds)))
        return self.seconds


def serve(connection: Connection) -> None:
    """Answer commands until the parent ends; failures are answers too."""
    os.dup2(2, 1)  # libraries' output must not mix with the tables
    runner: _Runner | None = None
    with suppress(EOFError):  # the parent has ended
        for command, argument in iter(connection.recv, None):
            try:
                if command == "open":
                    runner = _Runner(argument)
                answer = "done", None if command == "open" else getattr(runner, command)()
            except Unavailable as error:
                answer = "unavailable", str(error)
            except Exception as error:
                answer = "failed", f"{type(error).__name__}: {error}"
            connection.send(answer)
