"""gpu-host reports the fault of each wrong kernel, and none for its correct version, in each order of threads.

Run as a program with the path of a library, this file launches the kernels under AddressSanitizer.
"""

import os
import re
import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from host_kernels import HERE, INSTANCES, find_line, library
from sanitizers import run_program

from trigraph.gpu.launcher import KernelError, runtime, using_host_library


def launch(kernel, right, case):
    place = runtime(np.empty(0))
    options = {"shared_mem": case.shared_mem, **case.args()}
    place.launch("faults", kernel, (right,), (case.blocks,), (case.threads,), **options)


def find_next_kernel(kernel):
    """Return the kernel that follows another one in the file."""
    kernels = list(dict.fromkeys(name.split("<")[0] for name in INSTANCES["faults"]))
    return kernels[kernels.index(kernel) + 1]


def floats(size):
    return np.zeros(size, np.float32)


def integers(size):
    return np.zeros(size, np.int32)


class Case(NamedTuple):
    """A launch of a kernel of faults.cu, and the expected message."""

    threads: int
    args: Callable[[], dict[str, object]]
    says: str
    line: str = ""  # text of the source line that the message names
    shared_mem: int = 0
    blocks: int = 1


def row():
    return {"y": floats(64)}


#: Faults that only the race detector finds.
RACES = {
    "missing_barrier": Case(64, row, r"race: .* tile\[\d+\] \(shared\)", "tile["),
    "chain_of_syncwarps": Case(32, row, r"(race|uninitialised): .* cell\[0\] \(shared\)", "cell"),
    "between_blocks": Case(1, row, r"race: .* y\[\d\] .* another block", "y[", blocks=4),
    "uninitialised": Case(64, row, r"uninitialised: reads tile\[5\] \(shared\)", "] = tile"),
    "bytes_of_a_word": Case(64, lambda: {"y": integers(64)}, r"words\[", "bytes[", shared_mem=64),
    "read_outside": Case(64, lambda: row() | {"x": floats(64)}, r"out of bounds: reads x\[64\]", "x[threadIdx.x"),
    "write_outside": Case(64, row, r"out of bounds: writes y\[-1\]", "y[int(threadIdx.x)"),
    "outside_shared": Case(64, lambda: row() | {"beyond": 1}, r"reads tile\[64\] \(shared\)", "row["),
    "outside_dynamic": Case(64, row, r"writes buffer\[64\] \(shared\)", "buffer[", shared_mem=256),
    "null_pointer": Case(64, lambda: row() | {"x": None}, r"reads at .* through a null pointer", "y[thr"),
}

#: Faults that every build finds, because no thread can continue.
SCHEDULE = {
    "deadlock": Case(
        64,
        row,
        r"deadlock: 24 threads, first thread \(40, 0, 0\), have returned; "
        r"40 threads, first thread \(0, 0, 0\), wait at __syncthreads",
    ),
    "different_barriers": Case(64, row, r"reached __syncthreads at .* waits at another one"),
    "different_collectives": Case(
        32, lambda: {"y": integers(32)}, r"reached __\w+_sync at .* of its mask 0xffffffff wait"
    ),
    "returned_lane": Case(32, row, r"mask 0xffffffff names lane \d+, which has returned|deadlock"),
    "leaving_lane": Case(32, row, r"which has returned|deadlock: .* wait at __syncwarp with mask 0xffffffff"),
    "missing_lanes_of_block": Case(
        40, lambda: {"y": integers(40)}, r"__any_sync at .* lane 8, which the block does not have"
    ),
    "caller_not_in_mask": Case(
        32, lambda: {"y": integers(32)}, r"lane \d+ calls with mask 0x0000ffff, which leaves it out"
    ),
    "source_not_in_mask": Case(
        32, row, r"lane \d+ reads from lane (1[6-9]|2\d|3[01]), which is not in mask 0x0000ffff"
    ),
    "width_of_shuffle": Case(32, lambda: row() | {"width": 12}, r"width 12 is not a power of two"),
}

#: Faults that AddressSanitizer or UBSan finds and that end the process; no other build finds the last two.
BOUNDS = "read_outside", "write_outside", "outside_shared", "outside_dynamic"
ASAN = {kernel: RACES[kernel]._replace(says="heap-buffer-overflow") for kernel in BOUNDS} | {
    "outside_local": Case(64, lambda: row() | {"last": 7}, "insufficient space|stack-buffer-overflow"),
    "misaligned": Case(1, lambda: {"x": floats(8), "y": floats(1)}, "misaligned address"),
}


def test_every_kernel_is_tested():
    kernels = {name.split("<")[0] for name in INSTANCES["faults"]}
    assert kernels == {*RACES, *SCHEDULE, *ASAN}


@pytest.mark.parametrize("kernel", RACES)
def test_race_build(faults_race, order, kernel):
    case = RACES[kernel]
    with using_host_library(faults_race, order, seed=5):
        launch(kernel, True, case)
        with pytest.raises(KernelError) as caught:
            launch(kernel, False, case)
    message = str(caught.value)
    assert re.search(case.says, message), message
    lines = (HERE / "faults.cu").read_text().splitlines()
    named = [int(number) for number in re.findall(r"faults\.cu:(\d+)", message)]
    assert len(named) == (2 if "race:" in message else 1), message
    first, end = (find_line("faults.cu", name) for name in (kernel, find_next_kernel(kernel)))
    assert all(first < number < end and case.line in lines[number - 1] for number in named), message


@pytest.mark.parametrize("kernel", SCHEDULE)
def test_schedule(faults_fast, faults_race, order, kernel):
    case = SCHEDULE[kernel]
    for build in (faults_fast, faults_race):
        with using_host_library(build, order, seed=5):
            for _ in range(2):  # a failed launch does not affect the next
                with pytest.raises(KernelError, match=case.says):
                    launch(kernel, False, case)
            launch(kernel, True, case)


def test_many_seeds_give_no_false_alarm(faults_race):
    for seed in range(20):
        with using_host_library(faults_race, "random", seed):
            for kernel, case in {**RACES, **SCHEDULE}.items():
                launch(kernel, True, case)


def test_asan():
    """Correct kernels cause no report; then each wrong kernel causes its own."""
    output, report = run_program(__file__, library("faults", "asan"))
    reports = dict(re.findall(r"^begin (\w+)$(.*?)^end$", report, re.DOTALL | re.MULTILINE))
    assert output == "all right\n", report
    assert reports.pop("right").strip() == ""
    assert set(reports) == set(ASAN)
    for kernel, case in ASAN.items():
        assert re.search(case.says, reports[kernel]), reports[kernel]
        assert "faults.cu:" in reports[kernel]


def right_kernels(path):
    """Launch all correct kernels, after a deadlock whose abandoned threads must leave no poisoned memory."""
    for order in ("forward", "reverse", "random"):
        with using_host_library(path, order):
            for kernel, case in {**RACES, **SCHEDULE, **ASAN}.items():
                launch(kernel, True, case)
                with pytest.raises(KernelError):
                    launch("deadlock", False, SCHEDULE["deadlock"])


def wrong_kernel(path, kernel):
    with using_host_library(path):
        launch(kernel, False, ASAN[kernel])


if __name__ == "__main__":
    works = {"right": lambda: right_kernels(sys.argv[1])}
    works |= {kernel: lambda kernel=kernel: wrong_kernel(sys.argv[1], kernel) for kernel in ASAN}
    failed = []
    for name, work in works.items():
        print(f"begin {name}", file=sys.stderr, flush=True)
        if (child := os.fork()) == 0:
            work()
            os._exit(0)
        failed += [name] if os.waitpid(child, 0)[1] else []
        print("\nend", file=sys.stderr, flush=True)
    print("all right" if failed == list(ASAN) else failed)
