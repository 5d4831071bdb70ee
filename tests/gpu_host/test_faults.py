"""What is wrong with a kernel is found, and its right twin raises no alarm, in each order of threads."""

import re

import numpy as np
import pytest
from conftest import HERE, INSTANCES, line_of

from trigraph.gpu.launcher import KernelError, runtime, using_host_library

TWINS = [True, False]


def launch(kernel, right, block, args, shared_mem=0, grid=(1,)):
    runtime(np.empty(0)).launch("faults", kernel, (right,), grid, (block,), args, shared_mem)


def following(kernel):
    """Return the kernel that stands behind another one in the file."""
    kernels = list(dict.fromkeys(name.split("<")[0] for name in INSTANCES["faults"]))
    return kernels[kernels.index(kernel) + 1]


def floats(size):
    return np.zeros(size, np.float32)


def integers(size):
    return np.zeros(size, np.int32)


#: kernel -> threads, arguments, dynamic shared memory, blocks, what the race build says, a text on the line that it names
RACES = {
    "missing_barrier": (64, lambda: [floats(64)], 0, 1, r"race: .* tile\[\d+\] \(shared\)", "tile["),
    "missing_barrier_in_loop": (64, lambda: [floats(64)], 0, 1, r"race: .* tile\[\d+\]", "tile["),
    "missing_barrier_in_reduction": (128, lambda: [floats(128), floats(1)], 0, 1, r"race: .* tile\[\d+\]", "tile["),
    "missing_syncwarp": (64, lambda: [floats(64)], 0, 1, r"(race|uninitialised): .* tile\[\d+\]", "tile["),
    "syncwarp_of_half": (32, lambda: [floats(32)], 0, 1, r"(race|uninitialised): .* tile\[", "tile["),
    "chain_of_syncwarps": (32, lambda: [floats(1)], 0, 1, r"(race|uninitialised): .* cell\[0\] \(shared\)", "cell"),
    "between_blocks": (1, lambda: [floats(4)], 0, 4, r"race: .* y\[\d\] .* another block", "y["),
    "lost_update": (64, lambda: [integers(1)], 0, 1, r"race: .* count\[0\]", "*count += 1"),
    "atomic_and_plain": (64, lambda: [integers(1), integers(64)], 0, 1, r"race: .* count\[0\]", "count"),
    "read_then_write": (64, lambda: [floats(64)], 0, 1, r"race: .* cell\[0\] \(shared\)", "cell"),
    "uninitialised": (64, lambda: [floats(64)], 0, 1, r"uninitialised: reads tile\[5\] \(shared\)", "y[threadIdx.x] = tile"),
    "bytes_of_a_word": (64, lambda: [np.zeros(64, np.uint8)], 64, 1, r"(race|uninitialised): .* words\[", "bytes["),
    "read_outside": (64, lambda: [floats(64), floats(64)], 0, 1, r"out of bounds: reads x\[64\]", "x[threadIdx.x"),
    "write_outside": (64, lambda: [floats(64)], 0, 1, r"out of bounds: writes y\[-1\]", "y[int(threadIdx.x)"),
    "outside_shared": (64, lambda: [floats(64), np.int32(1)], 0, 1, r"out of bounds: reads tile\[64\] \(shared\)", "row["),
    "outside_dynamic": (64, lambda: [floats(64)], 256, 1, r"out of bounds: writes buffer\[64\] \(shared\)", "buffer["),
    "null_pointer": (64, lambda: [None, floats(64)], 0, 1, r"out of bounds: reads at .* through a null pointer", "y[thr"),
}  # fmt: skip

#: kernel -> threads, arguments, what every build says; kernels whose schedule cannot go on
SCHEDULE = {
    "deadlock": (64, lambda: [floats(64)], r"deadlock: threads 0-39 wait at __syncthreads .*; threads 40-63 have returned"),
    "different_barriers": (64, lambda: [floats(64)], r"reached __syncthreads at .* waits at another one"),
    "different_collectives": (32, lambda: [integers(32)], r"reached __\w+_sync at .* lanes of its mask 0xffffffff wait at"),
    "returned_lane": (32, lambda: [floats(32)], r"mask 0xffffffff names lane \d+, which has returned|deadlock"),
    "leaving_lane": (32, lambda: [floats(32)], r"which has returned|deadlock: .* wait at __syncwarp with mask 0xffffffff"),
    "missing_lanes_of_block": (40, lambda: [integers(40)], r"__any_sync at .* lane 8, which the block does not have"),
    "caller_not_in_mask": (32, lambda: [integers(32)], r"lane \d+ calls with mask 0x0000ffff, which leaves it out"),
    "source_not_in_mask": (32, lambda: [floats(32)], r"lane 15 reads from lane 16, which is not in mask 0x0000ffff"),
    "width_of_shuffle": (32, lambda: [floats(32), np.int32(12)], r"width 12 is not a power of two"),
    "trap": (32, lambda: [floats(32)], r"__trap\(\) at .*faults.cu:\d+"),
}  # fmt: skip

ASAN_ONLY = {"misaligned", "outside_local", "busy"}


def test_every_kernel_is_tested():
    kernels = {name.split("<")[0] for name in INSTANCES["faults"]}
    assert kernels == set(RACES) | set(SCHEDULE) | ASAN_ONLY


@pytest.mark.parametrize("right", TWINS)
@pytest.mark.parametrize("kernel", RACES)
def test_race_build(faults_race, order, kernel, right):
    threads, args, shared_mem, blocks, says, line = RACES[kernel]
    with using_host_library(faults_race, order, seed=5):
        if right:
            launch(kernel, right, threads, args(), shared_mem, (blocks,))
            return
        with pytest.raises(KernelError) as caught:
            launch(kernel, right, threads, args(), shared_mem, (blocks,))
    message = str(caught.value)
    assert re.search(says, message), message
    lines = (HERE / "faults.cu").read_text().splitlines()
    named = [int(number) for number in re.findall(r"faults\.cu:(\d+)", message)]
    assert len(named) == (2 if "race:" in message else 1), message
    first, end = (line_of("faults.cu", name) for name in (kernel, following(kernel)))
    assert all(first < number < end and line in lines[number - 1] for number in named), message


@pytest.mark.parametrize("right", TWINS)
@pytest.mark.parametrize("kernel", SCHEDULE)
def test_schedule(faults_fast, faults_race, order, kernel, right):
    threads, args, says = SCHEDULE[kernel]
    for build in (faults_fast, faults_race):
        with using_host_library(build, order, seed=5):
            if right:
                launch(kernel, right, threads, args())
                continue
            for _ in range(2):  # a failed launch leaves nothing behind
                with pytest.raises(KernelError, match=says):
                    launch(kernel, right, threads, args())
            launch(kernel, True, threads, args())


def test_many_seeds_give_no_false_alarm(faults_race):
    for seed in range(20):
        with using_host_library(faults_race, "random", seed):
            for kernel, (threads, args, shared_mem, blocks, *_) in RACES.items():
                launch(kernel, True, threads, args(), shared_mem, (blocks,))


def test_wrong_kernel_may_be_right_in_one_order(faults_fast):
    results = {}
    for order in ("forward", "reverse", "random"):
        y = floats(64)
        with using_host_library(faults_fast, order):
            launch("missing_barrier", False, 64, [y])
        results[order] = (y == np.arange(64)[::-1]).all()
    assert not all(results.values())
