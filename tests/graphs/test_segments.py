"""Segments: order and offsets against a loop over members."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trigraph.graphs.segments import Segments

DTYPES = [np.int32, np.int64]


def by_loop(index, num_segments):
    members = [[] for _ in range(num_segments)]
    for m, s in enumerate(index):
        members[s].append(m)
    return members


def check(segments, index, num_segments):
    members = by_loop(index, num_segments)
    assert [
        segments.order[a:b].tolist() for a, b in zip(segments.offsets[:-1], segments.offsets[1:], strict=True)
    ] == members
    assert segments.offsets.shape == (num_segments + 1,)
    assert segments.offsets[0] == 0
    assert segments.offsets[-1] == len(index) == segments.num_members
    assert segments.num_segments == num_segments
    assert segments.max_size == max(map(len, members), default=0)
    assert segments.is_sorted == (list(index) == sorted(index))
    np.testing.assert_array_equal(segments.index, index)
    for array in (segments.index, segments.offsets, segments.order):
        assert array.dtype == segments.index.dtype
        assert array.flags.c_contiguous
        assert not array.flags.writeable


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n - 1), max_size=30))))
def test_order_and_offsets_equal_a_loop(case):
    num_segments, index = case
    for dtype in DTYPES:
        check(Segments(np.array(index, dtype), num_segments), index, num_segments)


@pytest.mark.parametrize("num_segments", [0, 1, 4])
def test_no_members(num_segments):
    check(Segments(np.array([], np.int32), num_segments), [], num_segments)


def test_an_index_that_is_not_contiguous():
    check(Segments(np.array([3, 1, 2, 0])[::2], 4), [3, 2], 4)


def test_a_million_members_take_a_moment():
    index = np.random.default_rng(3).integers(0, 100_000, 1_000_000)
    start = time.perf_counter()
    Segments(index, 100_000)
    assert time.perf_counter() - start < 2.0
