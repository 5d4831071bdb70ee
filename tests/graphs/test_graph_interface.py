"""Tests of the functions of the library that build and check arrays of graphs, from C and from Fortran."""

import contextlib
import copy
import ctypes
import re
from pathlib import Path

import numpy as np
import pytest
from library_programs import array_pointer, compile_and_run_fortran

import trigraph

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(trigraph.__file__).parent

EDGE_ARRAYS = ("dst_offsets", "dst_edge_index", "reverse_edge", "src_offsets", "reverse_start", "reverse_stop")


def list_check_edge_graph_arguments(graph, reverse=True):
    """Return the arguments of check_edge_graph."""
    names = ("src", "dst", *EDGE_ARRAYS)
    arrays = [np.array(getattr(graph, n)) if n != "reverse_edge" or reverse else np.zeros(1, np.int64) for n in names]
    return [graph.num_nodes, graph.num_edges, int(reverse), 1, *arrays]


RNG = np.random.default_rng(0)
CSC_GRAPH = trigraph.CSC.from_coo(RNG.integers(0, 7, 30), RNG.integers(0, 5, 30), 7, 5)
ATOM_GRAPH = trigraph.EdgeGraph.from_positions(2.0 * RNG.random((6, 3)), 1.6, 2.0 * np.eye(3), True).graph
PARALLEL = trigraph.EdgeGraph(ATOM_GRAPH.src, ATOM_GRAPH.dst, 6)
SEGMENTS_GRAPH = trigraph.Segments(RNG.integers(0, 6, 20), 6)
GRAPHS = {
    "csc": (7, 5, 30, 30, *map(np.array, (CSC_GRAPH.offsets, CSC_GRAPH.indices, CSC_GRAPH.edge_ids))),
    "edge_graph": list_check_edge_graph_arguments(ATOM_GRAPH),
    "edge_graph, parallel": list_check_edge_graph_arguments(PARALLEL, False),
    "segments": (20, 6, 1, *map(np.array, (SEGMENTS_GRAPH.index, SEGMENTS_GRAPH.offsets, SEGMENTS_GRAPH.order))),
    "segments in order": (20, 6, 0, np.sort(SEGMENTS_GRAPH.index), SEGMENTS_GRAPH.offsets, np.zeros(1, np.int64)),
}
EMPTY_GRAPHS = {
    "csc": (0, 0, 0, 0, np.zeros(1, np.int64), *[np.zeros(0, np.int64)] * 2),
    "edge_graph": list_check_edge_graph_arguments(trigraph.EdgeGraph(np.zeros(0, np.int64), np.zeros(0, np.int64), 0)),
    "segments": (0, 0, 1, np.zeros(0, np.int64), np.zeros(1, np.int64), np.zeros(0, np.int64)),
}


def get_graph_check_status(library, kind, arguments, index="i64"):
    """Check a graph and return the status; each array is followed by an invalid element, which must not be read."""
    dtype = {"i32": np.int32, "i64": np.int64}[index]
    arrays = [a if isinstance(a, int) else np.append(a, -99).astype(dtype) for a in arguments]
    passed = [ctypes.c_int(a) if isinstance(a, int) else a.ctypes.data_as(ctypes.c_void_p) for a in arrays]
    return getattr(library, f"trigraph_check_{kind.split(',')[0].split(' ')[0]}_{index}")(*passed)


def change_one_argument(arguments, at, change):
    """Return the arguments with `change` applied to the one at position `at`."""
    return [*arguments[:at], change(copy.copy(arguments[at])), *arguments[at + 1 :]]


def make_element_setter(place, value):
    def set_element(array):
        array[place] = value
        return array

    return set_element


def read_graph_status_codes():
    text = (PACKAGE / "include" / "trigraph.h").read_text()
    return {name.lower(): int(value) for name, value in re.findall(r"TRIGRAPH_GRAPH_(\w+) = (\d+)", text)}


@pytest.mark.parametrize("index", ["i32", "i64"])
def test_graph_checks_return_expected_status(fortran_library, index):
    status = read_graph_status_codes()
    assert sorted(status.values()) == list(range(1, 10))
    documented = (ROOT / "docs" / "fortran.md").read_text()
    assert all(f"| {number} | `graph_{name}` |" in documented for name, number in status.items())
    for kind, arguments in (*GRAPHS.items(), *EMPTY_GRAPHS.items()):
        assert get_graph_check_status(fortran_library, kind, arguments, index) == 0, kind
        for k in range(2):
            negative = change_one_argument(arguments, k, lambda number: -1)
            assert get_graph_check_status(fortran_library, kind, negative, index) == status["size"]
    for expected, kind, at, change in (
        ("first", "csc", 4, lambda a: a + 1),  # offsets that start at 1
        ("range", "csc", 5, lambda a: a + 1),
        ("range", "csc", 6, lambda a: a + 1),
        ("fall", "csc", 4, make_element_setter(2 if GRAPHS["csc"][4][1] > 0 else 3, 0)),
        ("last", "csc", 4, make_element_setter(-1, 31)),
        ("last", "csc", 4, make_element_setter(slice(1, None), 2**31 - 1)),
        ("range", "csc", 5, make_element_setter(3, -1)),
        ("range", "csc", 6, make_element_setter(0, 2**31 - 1)),
        ("range", "edge_graph", 4, lambda a: a + 1),
        ("range", "edge_graph", 5, lambda a: a + 1),
        ("order", "edge_graph", 4, lambda a: a[::-1].copy()),
        ("first", "edge_graph", 6, lambda a: a + 1),
        ("range", "edge_graph", 7, lambda a: a + 1),
        ("order", "edge_graph", 7, lambda a: a[::-1].copy()),
        ("range", "edge_graph", 8, make_element_setter(0, -2)),
        ("reverse", "edge_graph", 8, lambda a: a[::-1].copy()),
        ("reverse", "edge_graph", 8, make_element_setter(0, -1)),
        ("first", "edge_graph", 9, lambda a: a + 1),
        ("reverse", "edge_graph", 10, lambda a: a + 1),
        ("range", "segments", 3, make_element_setter(0, 6)),
        ("first", "segments", 4, lambda a: a + 1),
        ("range", "segments", 5, lambda a: a + 1),
        ("order", "segments", 5, lambda a: a[::-1].copy()),
        ("order", "segments", 2, lambda number: 0),
    ):
        changed = change_one_argument(GRAPHS[kind], at, change)
        assert get_graph_check_status(fortran_library, kind, changed, index) == status[expected], (expected, kind, at)


def build_graph_arrays_by_library(library, name, index, numbers, given, lengths):
    """Call a function that builds graph arrays; assert that it stays in bounds, and return its status and results."""
    dtype = {"i32": np.int32, "i64": np.int64}[index]
    arrays = [np.append(a, -99).astype(dtype) for a in given] + [np.full(n + 1, -7, dtype) for n in lengths]
    status = getattr(library, f"trigraph_build_{name}_{index}")(
        *map(ctypes.c_int, numbers), *map(array_pointer, arrays)
    )
    results = arrays[len(given) :]
    assert all(a[-1] == -7 for a in results)
    return status, [a[:-1] for a in results]


@pytest.mark.parametrize("index", ["i32", "i64"])
def test_library_graph_arrays_equal_python(fortran_library, index):
    """Arrays agree with Python's for random graphs, some of them empty, and for a periodic graph."""
    rng = np.random.default_rng(2)
    for _ in range(60):
        num_src, num_dst, num_edges = (int(n) for n in rng.integers(0, (7, 6, 30)))
        num_edges *= num_src * num_dst > 0
        src, dst = (rng.integers(0, max(n, 1), num_edges) for n in (num_src, num_dst))
        graph, members = trigraph.CSC.from_coo(src, dst, num_src, num_dst), trigraph.Segments(dst, num_dst)
        sizes = (num_src, num_dst, num_edges)
        status, arrays = build_graph_arrays_by_library(
            fortran_library, "csc", index, sizes, (src, dst), (num_dst + 1, num_edges, num_edges)
        )
        rows = np.sort(rng.integers(0, 40, num_edges))
        shared = trigraph.CSC(graph.offsets, graph.indices, num_src, rows, 40)
        given, lengths = (graph.offsets, graph.indices, rows), (num_edges, num_src + 1, num_edges, 41, num_edges)
        of_orders, orders = build_graph_arrays_by_library(
            fortran_library, "csc_orders", index, (*sizes, 40), given, lengths
        )
        of_members, parts = build_graph_arrays_by_library(
            fortran_library, "segments", index, sizes[:0:-1], (dst,), (num_dst + 1, num_edges)
        )
        pairs = np.sort(rng.permutation(num_src**2)[:num_edges])
        pairs = np.divmod(pairs, num_src) if num_src else (pairs, pairs)
        edges, shifts = [trigraph.EdgeGraph(*pairs, num_src)], [np.zeros((0, 3))]
        periodic = trigraph.EdgeGraph.from_positions(
            rng.random((3, 3)) + np.arange(3)[:, None], 2.5, 3 * np.eye(3), True
        )
        for graph_of_edges, shift in ((edges[0], shifts[0]), (periodic.graph, periodic.shifts)):
            n, e = graph_of_edges.num_nodes, graph_of_edges.num_edges
            given = (graph_of_edges.src, graph_of_edges.dst, shift)
            numbers = (n, e, int(shift.size > 0))
            of_edges, found = build_graph_arrays_by_library(
                fortran_library, "edge_graph", index, numbers, given, (n + 1, e, e, n + 1, e, e)
            )
            assert of_edges == 0
            for name, array in zip(EDGE_ARRAYS, found, strict=True):
                assert array.tolist() == getattr(graph_of_edges, name).tolist(), name
        assert (status, of_orders, of_members) == (0, 0, 0)
        expected = (graph.offsets, graph.indices, graph.edge_ids, *shared.prepare(), members.offsets, members.order)
        for array, right in zip((*arrays, *orders, *parts), expected, strict=True):
            assert array.tolist() == right.tolist()


def test_invalid_edge_lists_are_refused(fortran_library):
    status = read_graph_status_codes()
    two = np.array([0, 1])
    for expected, name, numbers, given in (
        ("size", "csc", (2, 2, -1), (two, two)),
        ("range", "csc", (1, 2, 2), (two, two)),
        ("range", "csc", (2, 1, 2), (two, two)),
        ("range", "csc", (2, 2, 2), (two - 1, two)),
        ("size", "csc_orders", (2, -1, 2, 2), (two, two, two)),
        ("last", "csc_orders", (2, 1, 2, 2), (two, two, two)),
        ("range", "segments", (2, 1), (two,)),
        ("size", "segments", (2, -1), (two,)),
        ("order", "edge_graph", (2, 2, 0), (1 - two, two, two)),
        ("range", "edge_graph", (2, 2, 0), (two, two + 1, two)),
        ("size", "edge_graph", (2, 2, 2), (two, two, two)),
        ("parallel", "edge_graph", (2, 3, 0), ([0, 1, 1], [1, 0, 0], two)),
        ("parallel", "edge_graph", (2, 3, 1), ([0, 1, 1], [1, 0, 0], np.zeros(9))),
        ("parallel", "edge_graph", (1, 1, 1), ([0], [0], np.zeros(3))),
    ):
        found, _ = build_graph_arrays_by_library(
            fortran_library, name, "i64", numbers, given, [4] * {"csc": 3, "csc_orders": 5, "segments": 2}.get(name, 6)
        )
        assert found == status[expected], (expected, name, numbers)


def python_accepts_graph_arrays(kind, changed_arguments, unchanged):
    """Return whether `trigraph.CSC` accepts the arrays; other graph classes compute them, so return `unchanged`."""
    if kind != "csc":
        return unchanged
    offsets, indices, edge_ids = changed_arguments[4:]
    with contextlib.suppress(ValueError):
        trigraph.CSC(offsets, indices, 7, edge_ids, 30)
        return True
    return False


def test_changed_graph_elements_are_detected(fortran_library):
    rng, seen = np.random.default_rng(1), set()
    for kind, arguments in GRAPHS.items():
        for at in (k for k, a in enumerate(arguments) if not isinstance(a, int) and a.size > 1):
            for _ in range(200):
                size = arguments[at].size
                place, value = rng.integers(size), rng.integers(-2, arguments[at].max() + 3)
                wrong = change_one_argument(arguments, at, make_element_setter(place, value))
                status = get_graph_check_status(fortran_library, kind, wrong)
                accepted = python_accepts_graph_arrays(kind, wrong, value == arguments[at][place])
                assert (status == 0) == accepted, (kind, at, place, value)
                seen.add(status)
    assert seen == {0, 2, 3, 4, 5, 6, 7}


GRAPH_PROGRAM = """program graphs
    use trigraph_kinds, only: i32, i64
    use trigraph_graphs
    implicit none
    integer(i64) :: offsets(4) = [0_i64, 2_i64, 2_i64, 3_i64], indices(3) = [2_i64, 0_i64, 1_i64]
    integer(i64) :: rows(3) = [0_i64, 1_i64, 2_i64]
    integer(i64) :: src(5) = [2_i64, 0_i64, 1_i64, 2_i64, 2_i64], dst(5) = [1_i64, 0_i64, 2_i64, 0_i64, 0_i64]
    integer(i64) :: shifts(3, 5) = 0
    integer(i64), allocatable :: permutation(:)
    type(csc_i64) :: csc, wrong
    type(edge_graph_i64) :: edges
    type(segments_i64) :: members
    integer :: status(8), made(9)
    integer, parameter :: first = 0
    logical :: kept
    src = src + first
    dst = dst + first
    call check_csc(3, 3, 3, 3, offsets, indices, rows, status(1))
    call check_csc(3, 3, 3, 3, int(offsets, i32), int(indices, i32), int(rows, i32), status(2))
    call check_csc(3, 3, 3, 3, offsets + 1, indices, rows, status(3))
    call check_csc(3, 3, 3, 3, offsets, indices + 1, rows, status(4))
    call check_csc(3, 3, 3, 3, offsets([1, 2, 4, 3]), indices, rows, status(5))
    call check_csc(0, 0, 0, 0, offsets(:1), indices(:0), rows(:0), status(6))
    call check_segments(3, 3, 1, indices, [0_i64, 1_i64, 2_i64, 3_i64], [1_i64, 2_i64, 0_i64], status(7))
    call check_segments(3, 3, 0, [0_i64, 0_i64, 2_i64], offsets, rows, status(8))  ! destinations of the positions
    print '(8(1x, i0))', status
    print '(3(1x, i0))', graph_first, graph_range, graph_last
    shifts(:, 2) = 1  ! of a node to itself
    shifts(:, 4) = [1_i64, 2_i64, 3_i64]
    call make_csc(csc, 3, 3, src, dst, made(1), first + [4_i64, 3_i64, 2_i64, 1_i64, 0_i64], 6, first)
    call make_csc(wrong, huge(1), 3, src, dst, made(2), first=first)
    call make_csc(wrong, 3, 3, src, dst(:4), made(3), first=first)
    call make_csc(wrong, 2, 3, src, dst, made(4), first=first)
    call make_edge_graph(edges, 3, src, dst, made(5), shifts, first=first)
    call make_edge_graph(edges, 3, first + [0_i64, 1_i64], first + [1_i64, 0_i64], made(6), first=first)
    call make_edge_graph(edges, 3, first + [0_i64, 1_i64, 1_i64], first + [1_i64, 0_i64, 0_i64], made(7), first=first)
    kept = allocated(wrong%offsets) .or. allocated(edges%dst_offsets)
    call make_edge_graph(edges, 3, src, dst, made(8), shifts, permutation, first)
    call make_segments(members, 2, dst, made(9), first)
    print '(9(1x, i0), 1x, l1)', made, kept .or. allocated(members%offsets)
    call make_segments(members, 3, dst, made(9), first)
    print '(*(1x, i0))', csc%offsets
    print '(*(1x, i0))', csc%indices
    print '(*(1x, i0))', csc%edge_ids
    print '(*(1x, i0))', csc%destinations
    print '(*(1x, i0))', csc%src_offsets
    print '(*(1x, i0))', csc%src_positions
    print '(*(1x, i0))', csc%row_offsets
    print '(*(1x, i0))', csc%row_positions
    print '(*(1x, i0))', edges%src
    print '(*(1x, i0))', edges%dst
    print '(*(1x, i0))', edges%dst_offsets
    print '(*(1x, i0))', edges%dst_edge_index
    print '(*(1x, i0))', edges%reverse_edge
    print '(*(1x, i0))', edges%src_offsets
    print '(*(1x, i0))', edges%reverse_start
    print '(*(1x, i0))', edges%reverse_stop
    print '(*(1x, i0))', permutation
    print '(*(1x, i0))', members%index
    print '(*(1x, i0))', members%offsets
    print '(*(1x, i0))', members%order
end program graphs
"""


@pytest.mark.parametrize("first", [0, 1])
def test_graphs_are_made_and_checked_from_fortran(tmp_path, first):
    program = GRAPH_PROGRAM.replace(":: first = 0", f":: first = {first}")
    statuses, named, of_made, *lines = (
        line.split() for line in compile_and_run_fortran(tmp_path, program).splitlines()
    )
    of_first, of_range, _ = named
    assert statuses == ["0", "0", of_first, of_range, "3", "0", "0", "0"]
    assert of_made == ["0", "1", "1", "5", "6", "0", "8", "0", "5", "F"]
    src, dst, shifts = np.array([2, 0, 1, 2, 2]), np.array([1, 0, 2, 0, 0]), np.array([[0, 1, 0, 0, 0]] * 3).T
    shifts[3] = 1, 2, 3
    graph = trigraph.CSC.from_coo(src, dst, 3, 3, np.array([4, 3, 2, 1, 0]), 6)
    edges, permutation = trigraph.EdgeGraph.from_unsorted(src, dst, 3, shifts)
    members = trigraph.Segments(dst, 3)
    expected = [graph.offsets, graph.indices, graph.edge_ids, *graph.prepare(), edges.src, edges.dst]
    expected += [*(getattr(edges, n) for n in EDGE_ARRAYS), permutation + first]
    expected += [members.index, members.offsets, members.order]
    assert [list(map(int, line)) for line in lines] == [array.tolist() for array in expected]
