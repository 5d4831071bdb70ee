"""Measurement of contenders, each in a process of its own, timed alternately; and of the machine's ceilings."""

import importlib
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np

from slopecheck.isolated import Child, Ended
from trigraph.benchmarks.calls import Call
from trigraph.benchmarks.worker import Job, serve

LEAST_SAMPLES = 3
END = 10.0  # seconds for a worker to end
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


@dataclass(frozen=True)
class Measurement:
    """Results of one contender."""

    seconds: tuple[float, ...] = ()  # of one call, by round
    peak_bytes: int = 0  # memory of its first run, without inputs
    error: float | None = None  # largest relative error of its results against the baseline's; None for the baseline
    status: str = "timed"  # or "unavailable", "failed", "wrong"
    note: str = ""  # why it was not timed

    @property
    def median(self) -> float:
        """Median of the rounds; NaN when it was not timed."""
        return self.quartiles[1]

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """Lower quartile, median and upper quartile."""
        if not self.seconds:
            return (float("nan"),) * 3
        low, mid, high = np.percentile(self.seconds, (25, 50, 75))
        return float(low), float(mid), float(high)


class Worker(Child):
    """A contender's process, with a number of threads for every library.

    It is started fresh, never forked, since OpenMP does not survive a fork.
    """

    def __init__(self, threads: int) -> None:
        with mock.patch.dict(os.environ, dict.fromkeys(THREAD_VARIABLES, str(threads))):
            super().__init__(serve, ())

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, kind: object = None, *exception: object) -> None:
        # One that ends by itself waits for its child processes, whose processor time is then counted with its own.
        with suppress(OSError):
            self.connection.send(None)
        self.process.join(0 if kind else END)
        self.kill()

    def ask(self, command: str, argument: Any = None) -> tuple[str, Any]:
        """Send a command (``open``, ``first``, ``sample``); return its status, and the value or the reason."""
        with suppress(OSError):  # the process has ended; `receive` says how
            self.connection.send((command, argument))
        try:
            status, value = self.receive()
        except Ended as error:
            return "failed", str(error)
        return status, value


def relative_error(got: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    """Largest ``|got - expected| / |expected|`` (2-norms) over the results; NaN or inf when they cannot be compared."""
    if got.keys() != expected.keys():
        return float("inf")
    errors = [0.0]
    for name, reference in expected.items():
        if got[name].shape != reference.shape or got[name].dtype != reference.dtype:
            return float("inf")
        difference = np.linalg.norm((got[name].astype(np.float64) - reference).ravel())
        scale = np.linalg.norm(reference.astype(np.float64).ravel())
        errors.append(float(difference / scale) if scale else float(difference))
    return float(np.max(errors))


def _begin(
    worker: Worker, job: Job, expected: Mapping[str, np.ndarray] | None, tolerance: float
) -> tuple[Measurement, dict[str, np.ndarray]]:
    """Run a contender once: measure memory, and compare its results."""
    status, note = worker.ask("open", job)
    if status != "done":
        return Measurement(status=status, note=note), {}
    status, first = worker.ask("first")
    if status != "done":
        return Measurement(status=status, note=first), {}
    measurement = Measurement(peak_bytes=first.peak_bytes)
    if expected is None:
        return measurement, first.results
    error = relative_error(first.results, expected)
    if not (error <= tolerance):
        note = f"differs from the baseline by {error:.1e}, more than {tolerance:.1e}"
        return Measurement(error=error, status="wrong", note=note), {}
    return replace(measurement, error=error), {}


def alternate(
    jobs: Mapping[str, Job],
    repeat: int,
    threads: int,
    tolerance: float = float("inf"),
    budget: float = 60.0,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Measurement]:
    """Time contenders alternately in `repeat` rounds, every second one in reverse order.

    The first that runs is the baseline; others are timed only if their results differ from it by at most `tolerance`
    (relative). A contender that has used `budget` seconds is left out of further rounds, after at least three.
    `progress` is called with a description of each step.
    """
    measurements: dict[str, Measurement] = {}
    expected: dict[str, np.ndarray] | None = None
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name, job in jobs.items():
            progress(name)
            worker = stack.enter_context(Worker(threads))
            measurements[name], results = _begin(worker, job, expected, tolerance)
            if measurements[name].status == "timed":
                workers[name] = worker
                expected = results if expected is None else expected
            else:
                worker.__exit__()
        samples: dict[str, list[float]] = {name: [] for name in workers}
        for turn in range(repeat):
            order = list(workers)
            for name in order if turn % 2 == 0 else reversed(order):
                if len(samples[name]) >= LEAST_SAMPLES and sum(samples[name]) > budget:
                    continue
                progress(f"{name}, round {turn + 1} of {repeat}")
                status, value = workers[name].ask("sample")
                if status == "done":
                    samples[name].append(value)
                else:
                    measurements[name] = Measurement(status=status, note=value)
                    del workers[name]
    return {n: replace(m, seconds=tuple(samples[n])) if n in workers else m for n, m in measurements.items()}


def copy_call(library: str, nbytes: int, threads: int) -> Call:
    """Return a call that copies `nbytes` between arrays of "numpy" (in one thread per slice) or "cupy"."""
    if library == "cupy":
        import cupy

        source, target = cupy.ones(nbytes // 8), cupy.zeros(nbytes // 8)
        return lambda: cupy.copyto(target, source) or {}
    source, target = np.ones(nbytes // 8), np.zeros(nbytes // 8)
    bounds = np.linspace(0, source.size, threads + 1, dtype=int)
    pool = ThreadPoolExecutor(threads)

    def call() -> dict[str, Any]:
        done = [pool.submit(np.copyto, target[a:b], source[a:b]) for a, b in pairwise(bounds)]
        for each in done:
            each.result()
        return {}

    return call


def matmul_call(library: str, n: int, dtype: str) -> Call:
    """Return a call that multiplies square matrices by the BLAS of "numpy" or "cupy"."""
    xp = importlib.import_module(library)
    a = xp.ones((n, n), dtype)
    out = xp.empty_like(a)

    def call() -> dict[str, Any]:
        xp.matmul(a, a, out=out)
        return {}

    return call


def ceilings(threads: int, repeat: int, nbytes: int, n: int) -> dict[str, float]:
    """Measure the machine's peak rates: the best of `repeat` rounds.

    ``copy`` is in bytes/s, read and written bytes added, for arrays of `nbytes`, which should exceed the last cache.
    ``float32`` and ``float64`` are operations/s of BLAS's product of matrices of order `n`.
    """
    work = {"copy": 2.0 * nbytes, "float32": 2.0 * n**3, "float64": 2.0 * n**3}
    jobs = {name: Job(partial(matmul_call, "numpy", n, name)) for name in ("float32", "float64")}
    jobs["copy"] = Job(partial(copy_call, "numpy", nbytes, threads))
    measured = alternate(jobs, repeat, threads)
    return {name: work[name] / min(m.seconds) for name, m in measured.items() if m.seconds}
