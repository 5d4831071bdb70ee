"""Tests that gpu-host reports each faulty kernel, but not its correct version, in every thread order.

If this file is run as a script with a library's path, it launches the library's kernels (under AddressSanitizer).
"""

import copy
import os
import re
import sys
from typing import NamedTuple

import numpy as np
import pytest
from host_kernels import HERE, INSTANCES, build_test_library, find_kernel_line
from sanitizers import run_with_address_sanitizer

from trigraph.gpu.launcher import ORDERS, HostLibrary, KernelError, select_runtime, using_host_library


def launch_fault_case(kernel, right, case):
    host_runtime = select_runtime(np.empty(0))
    arguments = {name: copy.copy(value) for name, value in case.args.items()} | {"shared_mem": case.shared_mem}
    host_runtime.launch("faults", kernel, (right,), (case.blocks,), (case.threads,), **arguments)


def find_next_kernel(kernel):
    """Return the kernel that follows another one in the file."""
    kernels = list(dict.fromkeys(name.split("<")[0] for name in INSTANCES["faults"]))
    return kernels[kernels.index(kernel) + 1]


class FaultCase(NamedTuple):
    """Launch parameters of a kernel in faults.cu, and the expected error message."""

    threads: int
    args: dict[str, object]
    says: str
    line: str = ""  # text of the source line named in the message
    shared_mem: int = 0
    blocks: int = 1


ROW, INTEGERS = {"y": np.zeros(64, np.float32)}, {"y": np.zeros(32, np.int32)}

#: Faults that the race detector reports.
RACES = {
    "missing_barrier": FaultCase(64, ROW, r"race: .* tile\[\d+\] \(shared\)", "tile["),
    "broken_syncwarp_chain": FaultCase(32, ROW, r"(race|uninitialised): .* cell\[0\] \(shared\)", "cell"),
    "race_between_blocks": FaultCase(1, ROW, r"race: .* y\[\d\] .* another block", "y[", blocks=4),
    "uninitialised_read": FaultCase(64, ROW, r"uninitialised: reads tile\[5\] \(shared\)", "] = tile"),
    "unsynchronised_bytes": FaultCase(64, {"y": np.zeros(64, np.int32)}, r"words\[", "bytes[", shared_mem=64),
    "read_outside_array": FaultCase(64, ROW | {"x": ROW["y"]}, r"out of bounds: reads x\[64\]", "x[threadIdx.x"),
    "write_outside_array": FaultCase(64, ROW, r"out of bounds: writes y\[-1\]", "y[int(threadIdx.x)"),
    "read_outside_shared": FaultCase(64, ROW | {"beyond": 1}, r"reads tile\[64\] \(shared\)", "row["),
    "write_outside_dynamic": FaultCase(64, ROW, r"writes buffer\[64\] \(shared\)", "buffer[", shared_mem=256),
    "null_pointer_read": FaultCase(64, ROW | {"x": None}, r"reads at .* through a null pointer", "y[thr"),
}

#: Faults that every build detects, because no thread can continue.
SCHEDULE = {
    "deadlock": FaultCase(
        64,
        ROW,
        r"deadlock: 24 threads, first thread \(40, 0, 0\), have returned; "
        r"40 threads, first thread \(0, 0, 0\), wait at __syncthreads",
    ),
    "different_barriers": FaultCase(64, ROW, r"reached __syncthreads at .* waits at another one"),
    "different_collectives": FaultCase(32, INTEGERS, r"reached __\w+_sync at .* of its mask 0xffffffff wait"),
    "returned_lane": FaultCase(32, ROW, r"mask 0xffffffff names lane \d+, which has returned|deadlock"),
    "lane_returning_during_wait": FaultCase(
        32, ROW, r"which has returned|deadlock: .* wait at __syncwarp with mask 0xffffffff"
    ),
    "mask_beyond_block": FaultCase(
        40, {"y": np.zeros(40, np.int32)}, r"__any_sync at .* lane 8, which the block does not have"
    ),
    "caller_not_in_mask": FaultCase(32, INTEGERS, r"lane \d+ calls with mask 0x0000ffff, which leaves it out"),
    "source_not_in_mask": FaultCase(
        32, ROW, r"lane \d+ reads from lane (1[6-9]|2\d|3[01]), which is not in mask 0x0000ffff"
    ),
    "invalid_shuffle_width": FaultCase(32, ROW | {"width": 12}, r"width 12 is not a power of two"),
}

#: Faults that AddressSanitizer or UBSan reports before exiting; no other build detects the last two faults.
OUT_OF_BOUNDS = "read_outside_array", "write_outside_array", "read_outside_shared", "write_outside_dynamic"
ASAN = {kernel: RACES[kernel]._replace(says="heap-buffer-overflow") for kernel in OUT_OF_BOUNDS} | {
    "read_outside_local": FaultCase(64, ROW | {"last": 7}, "insufficient space|stack-buffer-overflow"),
    "misaligned_read": FaultCase(1, {"x": np.zeros(8, np.float32), "y": np.zeros(1, np.float32)}, "misaligned address"),
}


def test_every_faulty_kernel_has_a_case():
    kernels = {name.split("<")[0] for name in INSTANCES["faults"]}
    assert kernels == {*RACES, *SCHEDULE, *ASAN}


@pytest.fixture(scope="session", params=[(), pytest.param(("-DCUDA_HOST_UCONTEXT",), marks=pytest.mark.slow)])
def fast_library(request):
    """Return the library of faults.cu, also with ucontext fibers (used except on x86-64 and aarch64)."""
    return HostLibrary(build_test_library("faults", extra_flags=request.param))


@pytest.fixture(scope="session")
def race_library():
    return HostLibrary(build_test_library("faults", "race"))


@pytest.mark.parametrize("thread_order", ORDERS)
@pytest.mark.parametrize("kernel", RACES)
def test_race_build_reports_races_and_invalid_accesses(race_library, thread_order, kernel):
    case = RACES[kernel]
    with using_host_library(race_library, thread_order, seed=5):
        launch_fault_case(kernel, True, case)
        with pytest.raises(KernelError) as caught:
            launch_fault_case(kernel, False, case)
    message = str(caught.value)
    assert re.search(case.says, message), message
    lines = (HERE / "faults.cu").read_text().splitlines()
    named = [int(number) for number in re.findall(r"faults\.cu:(\d+)", message)]
    assert len(named) == (2 if "race:" in message else 1), message
    first, end = (find_kernel_line("faults.cu", name) for name in (kernel, find_next_kernel(kernel)))
    assert all(first < number < end and case.line in lines[number - 1] for number in named), message


@pytest.mark.parametrize("thread_order", ORDERS)
@pytest.mark.parametrize("kernel", SCHEDULE)
def test_every_build_reports_synchronization_faults(fast_library, race_library, thread_order, kernel):
    case = SCHEDULE[kernel]
    for build in (fast_library, race_library):
        with using_host_library(build, thread_order, seed=5):
            for _ in range(2):  # a failed launch must not affect the next one
                with pytest.raises(KernelError, match=case.says):
                    launch_fault_case(kernel, False, case)
            launch_fault_case(kernel, True, case)


def test_many_seeds_give_no_false_alarm(race_library):
    for seed in range(20):
        with using_host_library(race_library, "random", seed):
            for kernel, case in {**RACES, **SCHEDULE}.items():
                launch_fault_case(kernel, True, case)


def test_address_sanitizer_reports_each_memory_fault():
    """Correct kernels cause no report, and each faulty kernel causes the expected report."""
    output, report = run_with_address_sanitizer(__file__, build_test_library("faults", "asan"))
    reports = dict(re.findall(r"^begin (\w+)$(.*?)^end$", report, re.DOTALL | re.MULTILINE))
    assert output == "all right\n", report
    assert reports.pop("right").strip() == ""
    assert set(reports) == set(ASAN)
    for kernel, case in ASAN.items():
        assert re.search(case.says, reports[kernel]), reports[kernel]
        assert "faults.cu:" in reports[kernel]


def launch_right_kernels(path):
    """Launch all correct kernels, each after a deadlock, whose abandoned threads must not leave poisoned memory."""
    for order in ORDERS:
        with using_host_library(path, order):
            for kernel, case in {**RACES, **SCHEDULE, **ASAN}.items():
                launch_fault_case(kernel, True, case)
                with pytest.raises(KernelError):
                    launch_fault_case("deadlock", False, SCHEDULE["deadlock"])


def launch_wrong_kernel(path, kernel):
    with using_host_library(path):
        launch_fault_case(kernel, False, ASAN[kernel])


if __name__ == "__main__":
    tasks = {"right": lambda: launch_right_kernels(sys.argv[1])}
    tasks |= {kernel: lambda kernel=kernel: launch_wrong_kernel(sys.argv[1], kernel) for kernel in ASAN}
    failed = []
    for name, work in tasks.items():
        print(f"begin {name}", file=sys.stderr, flush=True)
        if (child := os.fork()) == 0:
            work()
            os._exit(0)
        failed += [name] if os.waitpid(child, 0)[1] else []
        print("\nend", file=sys.stderr, flush=True)
    print("all right" if failed == list(ASAN) else failed)
