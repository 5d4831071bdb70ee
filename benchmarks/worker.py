"""The process of one contender: builds it, runs it on command, and measures its own time and memory.

A contender that shares its process with nothing else has thread pools and memory of its own.
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
PAUSE = 0.05  # seconds: another process's threads spin for up to 30 ms after their last work (OpenBLAS)
WARM_UP = 0.03  # seconds of untimed calls before short ones are timed
BLOCK = 0.02  # seconds timed at once, so that the clock's resolution does not matter


@dataclass(frozen=True)
class Job:
    """What a worker runs; picklable, so partials of functions of a module."""

    make: Callable[[], Call]
    warm: Callable[[], Call] | None = None  # the same on tiny inputs: loads what is loaded at the first call


class First(NamedTuple):
    """Results of the first run as NumPy arrays, and the memory it took beyond its inputs."""

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
    """Run once; return the results and by how many bytes the process grew at most."""
    gc.collect()  # give free memory back, lest it hide what a run takes, and start the high-water mark anew
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
    if CLEAR_REFS.exists():
        CLEAR_REFS.write_text("5")
    before = _high_water()
    results = call()
    return results, _high_water() - before


def as_numpy(value: Any) -> np.ndarray:
    """Return a result as an array of NumPy's, whoever has made it."""
    if callable(value):  # what only the comparison needs, left for after the timing
        value = value()
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return value if isinstance(value, np.ndarray) else np.asarray(value.get() if hasattr(value, "get") else value)


def seconds_of(call: Call, number: int) -> float:
    """Return the seconds of one of so many calls."""
    start = time.perf_counter()
    for _ in range(number):
        call()
    return (time.perf_counter() - start) / number


class _Runner:
    """A job, built: first run, then samples."""

    def __init__(self, job: Job) -> None:
        if job.warm is not None:
            job.warm()()
        self.call = job.make()
        self.seconds = 0.0

    def first(self) -> First:
        """Run once for results and memory, once more for an idea of the time."""
        results, peak = peak_memory(self.call)
        named = {n: as_numpy(v) for n, v in results.items()}
        del results
        self.seconds = seconds_of(self.call, 1)
        return First(named, peak)

    def sample(self) -> float:
        """Seconds of one call, over a block of calls where they are short."""
        time.sleep(PAUSE)
        if self.seconds < WARM_UP:
            seconds_of(self.call, round(WARM_UP / self.seconds))
        self.seconds = seconds_of(self.call, max(1, round(BLOCK / self.seconds)))
        return self.seconds


def serve(connection: Connection) -> None:
    """Answer commands until there are no more; a failure is an answer too."""
    os.dup2(2, 1)  # what libraries print must not mix with the tables
    runner: _Runner | None = None
    with suppress(EOFError):  # the parent is gone
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
