"""Segments: order and offsets against a loop over members, and every bad input with its text."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_calls import raises

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


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_order_is_stable(dtype):
    index = np.random.default_rng(1).integers(0, 5, 3000).astype(dtype)
    np.testing.assert_array_equal(Segments(index, 5).order, np.argsort(index, kind="stable"))


def test_sorted_members_keep_their_place():
    segments = Segments(np.array([0, 0, 2, 2, 2]), 4)
    assert segments.is_sorted
    np.testing.assert_array_equal(segments.order, np.arange(5))
    np.testing.assert_array_equal(segments.offsets, [0, 2, 2, 5, 5])
    assert not Segments(np.array([0, 1, 0]), 2).is_sorted


@pytest.mark.parametrize("num_segments", [0, 1, 4])
def test_no_members(num_segments):
    check(Segments(np.array([], np.int32), num_segments), [], num_segments)


def test_num_segments_of_any_integer_kind():
    assert Segments(np.array([0]), np.int32(2)).num_segments == 2


def test_an_index_that_is_not_contiguous():
    check(Segments(np.array([3, 1, 2, 0])[::2], 4), [3, 2], 4)


ARRAY = "expected a numpy.ndarray, cupy.ndarray or torch.Tensor of integers"
BAD = [
    ([0, 1], 2, TypeError, f"index is a list; {ARRAY}"),
    (np.ma.array([0]), 2, TypeError, f"index is a MaskedArray; {ARRAY}"),
    (np.array([0.0]), 2, TypeError, "index has dtype <f8; expected native int32 or int64"),
    (np.array([0], np.uint32), 2, TypeError, "index has dtype <u4; expected native int32 or int64"),
    (np.array([0], ">i4"), 2, TypeError, "index has dtype >i4; expected native int32 or int64"),
    (np.array([[0]]), 2, ValueError, "index has shape (1, 1); expected one dimension"),
    (np.array(0), 2, ValueError, "index has shape (); expected one dimension"),
    (np.array([0, 2]), 2, ValueError, "index[1] is 2; expected 0 <= index < num_segments = 2"),
    (np.array([0, 0, -1]), 2, ValueError, "index[2] is -1; expected 0 <= index < num_segments = 2"),
    (np.array([0]), 0, ValueError, "index[0] is 0; expected 0 <= index < num_segments = 0"),
    (np.array([0]), -1, ValueError, "num_segments is -1; expected at least 0"),
    (np.array([0]), 2.0, TypeError, "num_segments is a float; expected an int"),
    (np.array([0]), True, TypeError, "num_segments is a bool; expected an int"),
    (np.array([0]), None, TypeError, "num_segments is a NoneType; expected an int"),
    (
        np.broadcast_to(np.int32(0), 2**31),
        1,
        ValueError,
        "index has 2147483648 values, more than int32 can count; expected int64",
    ),
]


@pytest.mark.parametrize(("index", "num_segments", "error", "text"), BAD, ids=range(len(BAD)))
def test_bad_input(index, num_segments, error, text):
    raises(error, f"Segments: {text}", Segments, index, num_segments)


def test_a_million_members_take_a_moment():
    index = np.random.default_rng(3).integers(0, 100_000, 1_000_000)
    start = time.perf_counter()
    Segments(index, 100_000)
    assert time.perf_counter() - start < 2.0
