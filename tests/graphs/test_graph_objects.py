"""Tests of CSC, EdgeGraph and Segments: read-only arrays, pickles, copies, and `prepare` called from threads."""

import copy
import itertools
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_calls import assert_raises

from trigraph import CSC, EdgeGraph, Segments

INDEX = [np.int32, np.int64]


def int_array(*values, dtype=np.int64):
    return np.array(values, dtype)


def csc_arguments():
    return {
        "offsets": int_array(0, 2, 2, 3),
        "indices": int_array(1, 0, 3),
        "num_src_nodes": 4,
        "edge_ids": int_array(0, 1, 1),
        "num_edges": 3,
    }


def draw_edges_and_csc(seed, n_src=7, n_dst=5, n=40, n_rows=25, index=np.int64):
    rng = np.random.default_rng(seed)
    src, dst, rows = (rng.integers(0, size, n).astype(index) for size in (n_src, n_dst, n_rows))
    return src, dst, rows, CSC.from_coo(src, dst, n_src, n_dst, rows, n_rows)


# Parallel edges whose reverses differ only in their shifts; one edge has no reverse.
SHIFTS = np.array([[1, 0, 0], [0, 0, 0], [2, 0, 0], [0, 0, 0], [-1, 0, 0]])
PARALLEL_EDGES = int_array(0, 0, 0, 1, 1), int_array(1, 1, 1, 0, 0), 2, SHIFTS
# Name -> (class, arguments); the index arrays are converted to the tested dtype.
OBJECTS = {
    "CSC": (CSC, [int_array(0, 2, 2, 3), int_array(1, 0, 3), 4, int_array(0, 1, 1), 3]),
    "CSC in order": (CSC, [int_array(0, 2, 2, 3), int_array(1, 0, 3), 4]),
    "EdgeGraph": (EdgeGraph, [int_array(0, 0, 1, 2), int_array(1, 2, 0, 0), 3]),
    "EdgeGraph of parallel edges": (EdgeGraph, [*PARALLEL_EDGES[:3]]),
    "EdgeGraph by shifts": (EdgeGraph, [*PARALLEL_EDGES]),
    "Segments": (Segments, [int_array(2, 0, 2), 3]),
}
each_object = pytest.mark.parametrize("name", OBJECTS)


def get_class_and_arguments(name, dtype=np.int64):
    kind, arguments = OBJECTS[name]
    return kind, [a.astype(dtype) if isinstance(a, np.ndarray) else a for a in arguments]


def build_graph_object(name, dtype=np.int64):
    kind, arguments = get_class_and_arguments(name, dtype)
    return kind(*arguments)


def assert_read_only(array):
    """Assert that neither the array nor any of its bases can be made writable."""
    assert array.flags.c_contiguous
    while isinstance(array, np.ndarray):
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="cannot set WRITEABLE flag"):
            array.setflags(write=True)
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
        array = array.base
    assert type(array) is bytes


def assert_equal_objects(got, expected):
    assert type(got) is type(expected)
    assert repr(got) == repr(expected)
    for name in expected.__slots__:
        actual, value = getattr(got, name), getattr(expected, name)
        if isinstance(value, np.ndarray):
            assert actual.dtype == value.dtype
            assert np.array_equal(actual, value), name
            assert_read_only(actual)
        else:
            assert actual == value
    if isinstance(expected, CSC):
        for actual, value in zip(got.prepare(), expected.prepare(), strict=True):
            assert np.array_equal(actual, value)
            assert_read_only(actual)


@each_object
def test_the_callers_arrays_are_copied(name):
    kind, arguments = get_class_and_arguments(name)
    graph = kind(*arguments)
    for array in (a for a in arguments if isinstance(a, np.ndarray)):
        array[...] = 99
    assert_equal_objects(graph, build_graph_object(name))


@each_object
def test_graph_objects_are_immutable(name):
    graph = build_graph_object(name)
    kind = type(graph).__name__
    for attribute in (*graph.__slots__, "_built", "something"):
        assert_raises(AttributeError, f"{kind} is immutable; cannot set {attribute}", setattr, graph, attribute, 1)
    first = graph.__slots__[0]
    assert_raises(AttributeError, f"{kind} is immutable; cannot delete {first}", delattr, graph, first)
    _, arguments = get_class_and_arguments(name)
    assert_raises(AttributeError, f"{kind} is immutable; cannot initialize it again", graph.__init__, *arguments)
    assert_equal_objects(graph, build_graph_object(name))
    assert {graph: 1}[graph] == 1  # graphs are hashed by identity
    assert (graph.kind, graph.device) == ("numpy", "host")


@each_object
def test_pickles_and_copies_equal_the_original(name):
    for dtype, prepared in itertools.product(INDEX, (False, True)):
        graph = build_graph_object(name, dtype)
        if prepared:
            graph.prepare()
        assert copy.copy(graph) is graph
        assert copy.deepcopy([graph])[0] is graph
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            assert_equal_objects(pickle.loads(pickle.dumps(graph, protocol)), graph)
        buffers = []
        text = pickle.dumps(graph, protocol=5, buffer_callback=buffers.append)
        raw = [bytearray(b.raw()) for b in buffers]
        assert raw
        other = pickle.loads(text, buffers=raw)
        for memory in raw:  # out-of-band buffers may be overwritten after loading
            memory[:] = b"\x7f" * len(memory)
        assert_equal_objects(other, graph)


@pytest.mark.parametrize(
    ("position", "value", "text"),
    [
        (0, 7, "reverse_edge[0] is 7; expected 0 <= reverse_edge < num_edges = 5"),
        (0, 1, "reverse_edge[0] is 1, which is not the reverse of edge 0"),
        (0, -1, "reverse_edge[4] is 0, which is not the reverse of edge 4"),
    ],
)
def test_changed_pickles_are_refused(position, value, text):
    graph = EdgeGraph(*PARALLEL_EDGES)
    assert graph.reverse_edge.tolist() == [4, 3, -1, 1, 0]
    function, (src, dst, num_nodes, reverse_edge) = graph.__reduce__()
    reverse_edge = reverse_edge.copy()
    reverse_edge[position] = value
    assert_raises(ValueError, f"EdgeGraph: {text}", function, src, dst, num_nodes, reverse_edge)
    text = "EdgeGraph: dst[0] is 1; expected 0 <= dst < num_nodes = 1"
    assert_raises(ValueError, text, function, src[:2], dst[:2], 1, None)
    none = function(src[1:4], dst[1:4], num_nodes, None)  # these edges are parallel
    assert none.reverse_edge is None
    assert function(src[2:4], dst[2:4], num_nodes, None).reverse_edge.tolist() == [1, 0]


def test_prepare_in_threads_returns_one_object(monkeypatch):
    assert all(graph.prepare() is graph for graph in map(build_graph_object, ("EdgeGraph", "Segments")))
    *_, graph = draw_edges_and_csc(1)
    built, release, build_reverse = [], threading.Event(), CSC._build_reverse_orders

    def build_reverse_slowly(self):
        built.append(threading.get_ident())
        release.wait(10)
        return build_reverse(self)

    monkeypatch.setattr(CSC, "_build_reverse_orders", build_reverse_slowly)
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(graph.prepare) for _ in range(8)]
        threading.Timer(0.05, release.set).start()
        results = [f.result(20) for f in futures]
    assert len(built) <= 8  # without a lock, each thread may build once
    assert all(r is results[0] is graph.prepare() for r in results)
    with pytest.raises(AttributeError):
        results[0].destinations = None
    results[0].__init__()  # a second __init__ changes nothing
    assert results[0].destinations.size == graph.num_positions


# Segments: the order and offsets are compared with a loop over members.


def group_members_by_loop(index, num_segments):
    members = [[] for _ in range(num_segments)]
    for m, s in enumerate(index):
        members[s].append(m)
    return members


def check_segments_by_loop(segments, index, num_segments):
    members = group_members_by_loop(index, num_segments)
    ends = itertools.pairwise(segments.offsets)
    assert [segments.order[a:b].tolist() for a, b in ends] == members
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
def test_segment_order_and_offsets_equal_a_loop(case):
    num_segments, index = case
    for dtype in INDEX:
        check_segments_by_loop(Segments(np.array(index, dtype), num_segments), index, num_segments)


@pytest.mark.parametrize("num_segments", [0, 1, 4])
def test_segments_accept_no_members(num_segments):
    check_segments_by_loop(Segments(np.array([], np.int32), num_segments), [], num_segments)


def test_segments_accept_noncontiguous_index():
    check_segments_by_loop(Segments(np.array([3, 1, 2, 0])[::2], 4), [3, 2], 4)


def test_million_member_segments_build_under_two_seconds():
    index = np.random.default_rng(3).integers(0, 100_000, 1_000_000)
    start = time.perf_counter()
    Segments(index, 100_000)
    assert time.perf_counter() - start < 2.0
