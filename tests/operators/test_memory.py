"""Tests that the memory of results is reused if and only if nothing refers to it any more.

`test_soak.py` calls operators in signal handlers.
"""

import dataclasses
import errno
import itertools
import os
import signal
import sys
import threading

import numpy as np
import pytest

import trigraph
from trigraph.fortran import memory
from trigraph.fortran.memory import LEAST, BlockPool

LARGE = (LEAST // 4,)  # shape of the smallest float32 array whose memory is kept


def array_address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@pytest.fixture
def block_pool() -> BlockPool:
    return BlockPool(kept=8 * LEAST)


def test_pool_gives_ordinary_aligned_arrays(block_pool: BlockPool) -> None:
    array = block_pool.empty((LEAST // 64, 8), np.dtype(np.float64))
    assert type(array) is np.ndarray
    assert array.shape == (LEAST // 64, 8)
    assert array.dtype == np.float64
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert array.flags.aligned
    assert array_address(array) % 64 == 0
    array[...] = 1
    assert array.sum() == array.size


@pytest.mark.parametrize("make_reference", [lambda a: a[1:], lambda a: a.reshape(2, -1).T, memoryview, np.from_dlpack])
def test_referenced_memory_is_not_reused(block_pool: BlockPool, make_reference) -> None:
    array = block_pool.empty(LARGE, np.dtype(np.float32))
    array[...] = 7
    view = make_reference(array)
    del array
    other = block_pool.empty(LARGE, np.dtype(np.float32))
    other[...] = 3
    assert np.all(np.asarray(view) == 7)


def test_blocks_are_reused_for_similar_sizes(block_pool: BlockPool) -> None:
    array = block_pool.empty((2 * LEAST,), np.dtype(np.int8))
    before = array_address(array)
    del array
    array = block_pool.empty((2 * LEAST - 1000,), np.dtype(np.int8))
    assert array_address(array) == before
    assert array.size == 2 * LEAST - 1000
    del array
    assert array_address(block_pool.empty((LEAST,), np.dtype(np.int8))) != before


def test_small_and_very_large_arrays_are_numpys_own(block_pool: BlockPool) -> None:
    for size in (0, 1, LEAST - 1, block_pool.kept + 1):
        assert block_pool.empty((size,), np.dtype(np.int8)).flags.owndata
    assert not block_pool.blocks


def test_kept_memory_is_limited(block_pool: BlockPool) -> None:
    held = [block_pool.empty((3 * LEAST,), np.dtype(np.int8)) for _ in range(4)]
    assert [a.flags.owndata for a in held] == [False, False, True, True]
    assert sum(len(b[0]) for b in block_pool.blocks) <= block_pool.kept
    del held
    large = block_pool.empty((7 * LEAST,), np.dtype(np.int8))  # this allocation releases free blocks to make room
    assert not large.flags.owndata
    assert sum(len(b[0]) for b in block_pool.blocks) <= block_pool.kept


def test_forked_processes_share_no_memory(block_pool: BlockPool) -> None:
    array = block_pool.empty(LARGE, np.dtype(np.float32))
    array[...] = 1
    child = os.fork()
    if child == 0:
        array[...] = 2
        os._exit(0)
    os.waitpid(child, 0)
    assert np.all(array == 1)


# Nested calls, forks, refused memory


class CallInterrupted(Exception):
    """Raised by a test to interrupt a call."""


def make_opcode_tracer(action):
    """Return a trace function that runs `action` before the n-th bytecode instruction in memory.py, and its state."""
    state = {"left": 0, "busy": False}

    def trace_opcode(frame, event, _):
        if frame.f_code.co_filename != memory.__file__ or state["busy"]:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            state["left"] -= 1
            if state["left"] == 0:
                state["busy"] = True
                try:
                    action()
                finally:
                    state["busy"] = False
        return trace_opcode

    return trace_opcode, state


@pytest.mark.parametrize("free", [0, 1, 3])
@pytest.mark.parametrize("outcome", ["returns", "raises"])
def test_nested_calls_share_no_block(outcome: str, free: int) -> None:
    """If a second call runs during any step of a first call, no block is lost, and no two results share a block."""
    held = []

    def allocate_in_handler() -> None:
        held.append(blocks.empty(LARGE, np.dtype(np.float32)))
        if outcome == "raises":
            raise CallInterrupted

    step, finished = 0, False
    while not finished:
        step += 1
        blocks = BlockPool(kept=8 * LEAST)
        kept = [blocks.empty(LARGE, np.dtype(np.float32)) for _ in range(free)]
        kept.clear()
        held.clear()
        trace, state = make_opcode_tracer(allocate_in_handler)
        state["left"] = step
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            held.append(blocks.empty(LARGE, np.dtype(np.float32)))
        except CallInterrupted:
            pass
        finally:
            sys.settrace(before)
        finished = state["left"] > 0
        starts = sorted(array_address(a) for a in held)
        assert all(b - a >= LEAST for a, b in itertools.pairwise(starts)), step
        assert len({id(b[0]) for b in blocks.blocks}) == len(blocks.blocks)
        assert len(blocks.blocks) >= len(held)
        number = len(blocks.blocks)
        held.clear()  # free every block
        held.extend(blocks.empty(LARGE, np.dtype(np.float32)) for _ in range(number))
        assert len(blocks.blocks) == number
    assert step > 100


def test_refused_memory_raises_error_and_frees_blocks(block_pool: BlockPool, monkeypatch: pytest.MonkeyPatch) -> None:
    used = block_pool.empty(LARGE, np.dtype(np.float32))
    free = block_pool.empty((3 * LEAST,), np.dtype(np.int8))
    del free
    in_use = block_pool.blocks[0]

    make = memory.mmap.mmap

    def map_first_block_only(*args: object, **keywords: object) -> object:
        if block_pool.blocks:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return make(*args, **keywords)

    monkeypatch.setattr(memory.mmap, "mmap", map_first_block_only)
    with pytest.raises(MemoryError, match=rf"^the system has no {2 * LEAST} bytes for a result: Cannot allocate"):
        block_pool.empty((2 * LEAST,), np.dtype(np.int8))
    assert block_pool.blocks == [in_use]  # the free block was released, and the used one is still listed
    del used
    again = block_pool.empty(LARGE, np.dtype(np.float32))
    assert block_pool.blocks[0][0] is in_use[0]
    assert not again.flags.owndata
    del again  # the next allocation releases this free block instead of failing
    assert not block_pool.empty((2 * LEAST,), np.dtype(np.int8)).flags.owndata


def test_forks_beside_working_threads_do_not_deadlock() -> None:
    """A child forked while another thread executes this code can use memory, graphs and the table without deadlock."""
    graphs = [make_csc()]
    graphs[0].prepare()  # import SciPy now: a fork during an import would leave the import lock held
    stop = threading.Event()

    def use_memory_and_graphs() -> None:
        while not stop.is_set():
            memory.empty((LEAST,), np.int8)
            graphs[0] = make_csc()
            graphs[0].prepare()
            compute_table_properties()

    thread = threading.Thread(target=use_memory_and_graphs)
    thread.start()
    try:
        for _ in range(40):
            child = os.fork()
            if child == 0:
                signal.alarm(30)  # kill a child that hangs
                memory.empty((LEAST,), np.int8)
                graphs[0].prepare()
                compute_table_properties()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        thread.join()


def make_csc() -> trigraph.CSC:
    return trigraph.CSC(np.arange(0, 3001, 3), np.arange(3000) % 1000)


def compute_table_properties() -> None:
    """Compute cached properties of an operator and its definition, using copies with empty caches."""
    op = dataclasses.replace(trigraph.OPERATORS["gno_message_bwd2"])
    assert op.signature is op.signature
    assert dataclasses.replace(op.definition).symbols
