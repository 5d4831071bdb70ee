"""Tests that calls from threads, forked processes and signal handlers are bitwise identical to a first call."""

import functools
import gc
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from programs import run_command
from scipy.stats import theilslopes

from trigraph import set_num_threads
from trigraph.backends import FUNCTIONS
from trigraph.fortran import memory
from trigraph.table import DEFINITIONS, NAMED, evaluate_expression
from trigraph.verification.cases import build_case, list_variants
from trigraph.verification.judged import list_all_operators
from trigraph.verification.subjects import convert_result_to_mapping

BACKENDS = {"fortran": 3e7, "fortran-reference": 2e6, "pyref": 2e6, "gpu-host": 2e5}  # limits on operations per call
GROWTH = 32 * 2**20  # bytes by which the resident memory may grow


@functools.cache
def make_soak_calls():
    """Map (operator, case, dtype, backend) to functions that take milliseconds and accept `out`."""
    found = {}
    for definition in DEFINITIONS:
        for variant in list_variants(definition)[:8]:
            for dtype in ("float32", "float64"):
                case = build_case(definition, variant, dtype, 0)
                for op in list_all_operators(definition):
                    for backend, max_operations in BACKENDS.items():
                        if evaluate_expression(op.operation_count_expression, case.sizes) <= max_operations:
                            call = functools.partial(FUNCTIONS[op.name], **case.arguments(op), backend=backend)
                            found[op.name, variant.label, dtype, backend] = call
    return found


def map_fields_to_bytes(name, result):
    return {n: None if a is None else a.tobytes() for n, a in convert_result_to_mapping(NAMED[name], result).items()}


def compare_random_calls(seed, seconds, failures, main=False):
    """Compare random calls with their first results; the main thread also interrupts calls and forks."""
    rng, deadline = np.random.default_rng(seed), time.monotonic() + seconds
    names, first_results = list(make_soak_calls()), {}
    while time.monotonic() < deadline and not failures:
        key = names[rng.integers(len(names))]
        expected = first_results.setdefault(key, map_fields_to_bytes(key[0], make_soak_calls()[key]()))
        if main and rng.random() < 0.3:
            inner = names[rng.integers(len(names))]
            interrupts = rng.random() < 0.5
            raised = signal.default_int_handler if interrupts else lambda *_, inner=inner: make_soak_calls()[inner]()
            signal.signal(signal.SIGALRM, raised)
            fields = convert_result_to_mapping(NAMED[key[0]], make_soak_calls()[key]())
            out = {n: np.full_like(a, 7) for n, a in fields.items() if a is not None}
            before = {n: a.tobytes() for n, a in out.items()}
            try:
                signal.setitimer(signal.ITIMER_REAL, 10 ** rng.uniform(-5, -2))
                make_soak_calls()[key](out=out)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                now = {n: a.tobytes() for n, a in out.items()}
                if key[3].startswith("fortran") and now not in (before, {n: expected[n] for n in out}):
                    failures.append(f"{key}: a partial result after an interruption")
        if main and rng.random() < 0.05:
            set_num_threads(int(rng.integers(1, 5)))
            if (pid := os.fork()) == 0:
                signal.alarm(60)  # kill a process that hangs
                os._exit(map_fields_to_bytes(key[0], make_soak_calls()[key]()) != expected)
            if status := os.waitpid(pid, 0)[1]:
                failures.append(f"{key}: a forked process ended with {os.waitstatus_to_exitcode(status)}")
        if map_fields_to_bytes(key[0], make_soak_calls()[key]()) != expected:
            failures.append(f"{key}: different bits than the first call")


def measure_resident_bytes():
    """Return the resident memory in bytes, without blocks kept for reuse."""
    gc.collect()
    memory._blocks.blocks.clear()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def find_soak_failures(seconds, seed):
    """Make random calls from three threads for some seconds; return the failures."""
    failures, samples, files = [], [], []
    for call in make_soak_calls().values():
        call()  # import modules now, since KeyboardInterrupt may break an import
    for block in range(12):
        threads = [
            threading.Thread(target=compare_random_calls, args=([seed, block, n], seconds / 12, failures))
            for n in (1, 2)
        ]
        for thread in threads:
            thread.start()
        compare_random_calls([seed, block, 0], seconds / 12, failures, main=True)
        for thread in threads:
            thread.join()
        samples.append(measure_resident_bytes())
        files.append(len(os.listdir("/proc/self/fd")))
    growth = theilslopes(samples[3:]).slope * len(samples[3:])
    if not growth <= GROWTH:
        failures.append(f"resident memory grew by {growth / 2**20:.1f} MiB")
    if not files[-1] <= files[3]:
        failures.append(f"{files[3]} files were open, {files[-1]} at the end")
    return failures


@pytest.mark.parametrize("seconds", [3, pytest.param(120, marks=pytest.mark.slow)])
def test_repeated_random_calls_give_identical_bits(seconds):
    # With several threads, OpenBLAS hangs in a product if another thread forks.
    helpers = str(Path(__file__).parents[1] / "helpers")
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "PYTHONPATH": helpers}
    run_command(sys.executable, "-W", "ignore::DeprecationWarning", __file__, seconds, 1, env=environment)


if __name__ == "__main__":
    sys.exit("\n".join(find_soak_failures(float(sys.argv[1]), int(sys.argv[2]))) or 0)
