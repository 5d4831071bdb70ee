"""Time and memory of contenders, which are timed alternately, and the peak rates of a CUDA device.

Each contender runs in its own process, so that contenders share neither thread pools nor memory.
"""

import ctypes
import gc
import importlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from slopecheck.isolated import ChildEnded, ChildProcess
from trigraph.benchmarks.programs import Call

LEAST_SAMPLES = 3
END = 10.0  # seconds to wait for a contender's process to end
PAUSE = 0.05  # seconds before a sample, because idle OpenBLAS threads of other processes spin for up to 30 ms
WARM_UP = 0.03  # seconds of untimed calls before short calls are timed
BLOCK = 0.02  # seconds of calls to time together, to make the clock's resolution irrelevant
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
GATHER = Path(__file__).resolve().parent / "gather.cu"
CHUNK, WIDTH, GATHER_BLOCK = 16, 64, 256  # constants of gather.cu: rows per sum, numbers per row, threads per block


@dataclass(frozen=True)
class Measurement:
    """Results of one contender."""

    seconds: tuple[float, ...] = ()  # seconds of one call, by round
    peak_bytes: int = 0  # peak memory of the first run, without inputs
    error: float | None = None  # largest relative error of the results against the baseline; None for the baseline
    status: str = "timed"  # "timed", "unavailable", "failed" or "wrong"
    note: str = ""  # reason why the contender was not timed

    @property
    def median(self) -> float:
        """Median of the rounds in seconds; NaN if the contender was not timed."""
        return self.quartiles[1]

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """Lower quartile, median and upper quartile of the rounds in seconds."""
        if not self.seconds:
            return (float("nan"),) * 3
        low, mid, high = np.percentile(self.seconds, (25, 50, 75))
        return float(low), float(mid), float(high)


@dataclass(frozen=True)
class ContenderJob:
    """Job for a contender's process. Its functions must be picklable, such as partials of module functions."""

    make: Callable[[], Call]
    warm: Callable[[], Call] | None = None  # makes a call with tiny inputs, which only loads libraries
    device: bool = False  # whether the job runs on the CUDA device, whose time and memory are measured differently


def _read_peak_memory() -> int:
    """Return the largest resident size of this process so far, in bytes; ru_maxrss would include the parent's size."""
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def measure_peak_memory(call: Call) -> tuple[dict[str, Any], int]:
    """Call once; return the results and the largest growth of the process in bytes."""
    gc.collect()  # free unused memory, which would hide the call's use, and reset the high-water mark
    ctypes.CDLL(None).malloc_trim(0)
    if CLEAR_REFS.exists():
        CLEAR_REFS.write_text("5")
    before = _read_peak_memory()
    results = call()
    return results, _read_peak_memory() - before


def make_call_on_device(make: Callable[[], Call]) -> Call:
    """Create a program's call with CUDA as torch's default device."""
    import torch

    with torch.device("cuda"):
        return make()


def wait_for_device() -> None:
    """Wait until the device has finished all submitted work."""
    import cupy

    cupy.cuda.Device().synchronize()


def measure_device_memory(call: Call) -> tuple[dict[str, Any], int]:
    """Run once; return the results and the decrease of free device memory in bytes (memory pools keep their peak)."""
    import cupy

    gc.collect()
    cupy.get_default_memory_pool().free_all_blocks()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()
    before = cupy.cuda.runtime.memGetInfo()[0]
    results = call()
    wait_for_device()
    return results, before - cupy.cuda.runtime.memGetInfo()[0]


def convert_to_numpy(value: Any) -> np.ndarray:
    """Return a result from any library as a NumPy array."""
    if callable(value):  # a result that is computed only for the comparison, after the timing
        value = value()
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return value if isinstance(value, np.ndarray) else np.asarray(value.get() if hasattr(value, "get") else value)


def measure_mean_seconds(call: Call, number: int, wait: Callable[[], None] = lambda: None) -> float:
    """Return the mean seconds of `number` calls; `wait` must wait until all work that the calls started is complete."""
    start = time.perf_counter()
    for _ in range(number):
        call()
    wait()
    return (time.perf_counter() - start) / number


class JobRunner:
    """Runner of a job in the contender's process."""

    def __init__(self, job: ContenderJob) -> None:
        self.wait = wait_for_device if job.device else lambda: None
        self.peak_memory = measure_device_memory if job.device else measure_peak_memory
        if job.warm is not None:
            job.warm()()
        self.call = job.make()
        self.seconds = 0.0

    def measure_first_call(self) -> tuple[dict[str, np.ndarray], int]:
        """Return the results and peak bytes (without inputs) of a first call; estimate the time with a second call."""
        results, peak = self.peak_memory(self.call)
        named = {n: convert_to_numpy(v) for n, v in results.items()}
        del results
        self.seconds = measure_mean_seconds(self.call, 1, self.wait)
        return named, peak

    def sample_seconds(self) -> float:
        """Return the seconds of one call, averaged over a block of calls if calls are short."""
        time.sleep(PAUSE)
        if self.seconds < WARM_UP:
            measure_mean_seconds(self.call, round(WARM_UP / self.seconds), self.wait)
        self.seconds = measure_mean_seconds(self.call, max(1, round(BLOCK / self.seconds)), self.wait)
        return self.seconds


def is_missing_package(error: Exception) -> bool:
    """Return whether an exception reports a package of a contender that is not installed."""
    return isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] != "trigraph"


def run_job(connection: Connection, job: ContenderJob) -> None:
    """Send the results and peak memory of a first call, then the seconds of a call for each message, or an error."""
    os.dup2(2, 1)  # keep the output of libraries out of the tables
    try:
        runner = JobRunner(job)
        connection.send(("timed", runner.measure_first_call()))
        while connection.recv():
            connection.send(("timed", runner.sample_seconds()))
    except EOFError:  # the parent has ended
        pass
    except Exception as error:
        missing = is_missing_package(error)
        connection.send(("unavailable", str(error)) if missing else ("failed", f"{type(error).__name__}: {error}"))


class ContenderProcess(ChildProcess):
    """A contender's process, with a given number of threads for every library.

    The process is spawned instead of forked, because OpenMP does not survive a fork.
    """

    def __init__(self, job: ContenderJob, threads: int) -> None:
        with mock.patch.dict(os.environ, dict.fromkeys(THREAD_VARIABLES, str(threads))):
            super().__init__(run_job, (job,))

    def end(self, kind: object = None, *exception: object) -> None:
        """Let the process end by itself, which includes its children's processor time; kill it after an exception."""
        with suppress(OSError):
            self.connection.send(False)
        self.process.join(0 if kind else END)
        self.kill()

    def receive_answer(self, again: bool = False) -> tuple[str, Any]:
        """Return "timed" and what was measured (`again`: the seconds of a call), or another status and the reason."""
        if again:
            with suppress(OSError):  # the process has ended; `receive_message` reports the reason
                self.connection.send(True)
        try:
            status, value = self.receive_message()
        except ChildEnded as error:
            return "failed", str(error)
        return status, value


def compute_relative_error(got: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    """Return the largest ``|got - expected| / |expected|`` (2-norms), or NaN or inf if results cannot be compared."""
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


def _check_first_call(
    answer: tuple[str, Any], expected: Mapping[str, np.ndarray] | None, tolerance: float
) -> tuple[Measurement, dict[str, np.ndarray]]:
    """Return the memory of a contender's first call, after a comparison with `expected`, and its results."""
    status, first = answer
    if status != "timed":
        return Measurement(status=status, note=first), {}
    results, peak = first
    error = None if expected is None else compute_relative_error(results, expected)
    if error is not None and not (error <= tolerance):
        note = f"differs from the baseline by {error:.1e}, more than {tolerance:.1e}"
        return Measurement(error=error, status="wrong", note=note), {}
    return Measurement(peak_bytes=peak, error=error), results


def time_jobs_alternately(
    jobs: Mapping[str, ContenderJob],
    repeat: int,
    threads: int,
    tolerance: float = float("inf"),
    budget: float = 60.0,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Measurement]:
    """Time contenders alternately in `repeat` rounds, with the order reversed in every second round.

    The first contender that runs is the baseline; others are timed only if their results differ from the baseline's by
    a relative error of at most `tolerance`. After three rounds, a contender that has used `budget` seconds is skipped.
    `progress` is called with a description of each step.
    """
    measurements: dict[str, Measurement] = {}
    expected: dict[str, np.ndarray] | None = None
    with ExitStack() as stack:
        workers: dict[str, ContenderProcess] = {}
        for name, job in jobs.items():
            progress(name)
            worker = ContenderProcess(job, threads)
            stack.push(worker.end)
            measurements[name], results = _check_first_call(worker.receive_answer(), expected, tolerance)
            if measurements[name].status == "timed":
                workers[name] = worker
                expected = results if expected is None else expected
            else:
                worker.end()
        samples: dict[str, list[float]] = {name: [] for name in workers}
        for turn in range(repeat):
            order = list(workers)
            for name in order if turn % 2 == 0 else reversed(order):
                if len(samples[name]) >= LEAST_SAMPLES and sum(samples[name]) > budget:
                    continue
                progress(f"{name}, round {turn + 1} of {repeat}")
                status, value = workers[name].receive_answer(again=True)
                if status == "timed":
                    samples[name].append(value)
                else:
                    measurements[name] = Measurement(status=status, note=value)
                    del workers[name]
    return {n: replace(m, seconds=tuple(samples[n])) if n in workers else m for n, m in measurements.items()}


def make_copy_call(library: str, nbytes: int) -> Call:
    """Return a call that copies an array of `nbytes` of "numpy" or "cupy"."""
    xp = importlib.import_module(library)
    source, target = xp.ones(nbytes // 8), xp.zeros(nbytes // 8)
    return lambda: xp.copyto(target, source) or {}


def make_matmul_call(library: str, n: int, dtype: str) -> Call:
    """Return a call that multiplies square matrices with the BLAS of "numpy" or "cupy"."""
    xp = importlib.import_module(library)
    a = xp.ones((n, n), dtype)
    out = xp.empty_like(a)

    def multiply_matrices() -> dict[str, Any]:
        xp.matmul(a, a, out=out)
        return {}

    return multiply_matrices


def make_gather_call(rows: int) -> Call:
    """Return a call that reads 4 * rows random rows of 256 bytes and sums them in chunks."""
    import cupy

    module = cupy.RawModule(code=GATHER.read_text(encoding="utf-8"), options=("-std=c++17",))
    function = module.get_function("sum_gathered_rows")
    table, count = cupy.ones((rows, WIDTH), np.float32), 4 * rows
    index = cupy.asarray(np.random.default_rng(0).integers(0, rows, count).astype(np.int32))
    groups = -(-count // CHUNK)
    out = cupy.empty((groups, WIDTH), np.float32)
    grid, arguments = (-(-groups * CHUNK // GATHER_BLOCK),), (table, index, out, np.int64(count))
    return lambda: function(grid, (GATHER_BLOCK,), arguments) or {}


def measure_device_peak_rates(repeat: int, nbytes: int = 2**31, n: int = 8192) -> dict[str, float]:
    """Measure the peak rates of the CUDA device: the best of `repeat` rounds.

    ``copy`` is the rate of reading plus writing in bytes/s, for arrays of `nbytes`. ``float32`` is the rate of matrix
    products of order `n` in operations/s. ``gather`` is the rate, in bytes/s, of reading indices and rows of 256 bytes
    in random order.
    """
    work = {"copy": 2.0 * nbytes, "float32": 2.0 * n**3, "gather": (nbytes // 256) * 4 * 260.0}
    jobs = {
        "copy": ContenderJob(partial(make_copy_call, "cupy", nbytes), device=True),
        "float32": ContenderJob(partial(make_matmul_call, "cupy", n, "float32"), device=True),
        "gather": ContenderJob(partial(make_gather_call, nbytes // 256), device=True),
    }
    measured = time_jobs_alternately(jobs, repeat, threads=1)
    return {name: work[name] / min(m.seconds) for name, m in measured.items() if m.seconds}
