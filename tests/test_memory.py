"""Memory of results: reused when nothing refers to it any more, never before."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from trigraph.fortran import memory
from trigraph.fortran.memory import LEAST, Blocks

LARGE = (LEAST // 4,)  # of float32: the least that is kept


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@pytest.fixture
def blocks() -> Blocks:
    return Blocks(kept=8 * LEAST)


def test_an_array_is_an_ordinary_one(blocks: Blocks) -> None:
    array = blocks.empty((LEAST // 64, 8), np.dtype(np.float64))
    assert type(array) is np.ndarray
    assert array.shape == (LEAST // 64, 8)
    assert array.dtype == np.float64
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert array.flags.aligned
    assert address(array) % 64 == 0
    array[...] = 1
    assert array.sum() == array.size


def test_memory_is_used_again(blocks: Blocks) -> None:
    array = blocks.empty(LARGE, np.dtype(np.float32))
    before = address(array)
    del array
    assert address(blocks.empty(LARGE, np.dtype(np.float32))) == before


@pytest.mark.parametrize("refer", [lambda a: a[1:], lambda a: a.reshape(2, -1).T, memoryview, np.from_dlpack])
def test_memory_in_use_is_left_alone(blocks: Blocks, refer) -> None:
    array = blocks.empty(LARGE, np.dtype(np.float32))
    array[...] = 7
    view = refer(array)
    del array
    other = blocks.empty(LARGE, np.dtype(np.float32))
    other[...] = 3
    assert np.all(np.asarray(view) == 7)


def test_a_block_may_be_a_little_larger_not_much(blocks: Blocks) -> None:
    array = blocks.empty((2 * LEAST,), np.dtype(np.int8))
    before = address(array)
    del array
    array = blocks.empty((2 * LEAST - 1000,), np.dtype(np.int8))
    assert address(array) == before
    assert array.size == 2 * LEAST - 1000
    del array
    assert address(blocks.empty((LEAST,), np.dtype(np.int8))) != before


def test_small_and_very_large_arrays_are_numpys_own(blocks: Blocks) -> None:
    for size in (0, 1, LEAST - 1, blocks.kept + 1):
        assert blocks.empty((size,), np.dtype(np.int8)).flags.owndata
    assert not blocks.blocks


def test_no_more_is_kept_than_allowed(blocks: Blocks) -> None:
    held = [blocks.empty((3 * LEAST,), np.dtype(np.int8)) for _ in range(4)]
    assert [a.flags.owndata for a in held] == [False, False, True, True]
    assert sum(len(b[0]) for b in blocks.blocks) <= blocks.kept
    del held
    large = blocks.empty((7 * LEAST,), np.dtype(np.int8))  # takes the place of free ones
    assert not large.flags.owndata
    assert sum(len(b[0]) for b in blocks.blocks) <= blocks.kept


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12: other threads are idle here
def test_a_forked_process_has_memory_of_its_own(blocks: Blocks) -> None:
    array = blocks.empty(LARGE, np.dtype(np.float32))
    array[...] = 1
    child = os.fork()
    if child == 0:
        array[...] = 2
        os._exit(0)
    os.waitpid(child, 0)
    assert np.all(array == 1)


def test_threads_never_share_a_block(blocks: Blocks) -> None:
    wrong = []

    def work(number: int) -> None:
        for _ in range(200):
            array = blocks.empty(LARGE, np.dtype(np.float32))
            array[...] = number
            if not np.all(array == number):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_operators_results_stay_as_they_are() -> None:
    """Two calls, the first one's results alive: the second one has memory of its own."""
    import trigraph

    rng = np.random.default_rng(0)
    weight = rng.standard_normal((16, 8)).astype(np.float32)
    first, second = (rng.standard_normal((20_000, 8)).astype(np.float32) for _ in range(2))
    kept = trigraph.basis_embedding_radial_fwd(first, weight)
    assert kept.nbytes >= LEAST
    expected = kept.copy()
    trigraph.basis_embedding_radial_fwd(second, weight)
    np.testing.assert_array_equal(kept, expected)
    assert any(len(b[0]) >= kept.nbytes for b in memory._blocks.blocks)
