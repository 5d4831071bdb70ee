"""Tests of the counting sorts in graphs.c: agreement with NumPy for any number of threads, and invalid input."""

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
from mutated_sources import assert_tests_detect_mutation, write_mutated_sources
from programs import run_command

import trigraph
from trigraph import CSC, EdgeGraph, Segments
from trigraph.fortran.threads import restore_num_threads
from trigraph.graphs import counting, csc, edge_graph

FEW_EDGES = 300
MANY_EDGES = 2 * counting.MIN_PARALLEL_SIZE  # enough to use several threads
RNG = np.random.default_rng(0)


def yield_edge_lists():
    """Yield (sources, destinations, node counts) of random, hub, sorted, self-loop and empty edge lists."""
    for n in (FEW_EDGES, MANY_EDGES):
        yield RNG.integers(5000, size=n), np.where(RNG.random(n) < 0.5, 7, RNG.integers(2, 4000, size=n)), 5000, 4000
    yield RNG.integers(40, size=FEW_EDGES), RNG.integers(60, size=FEW_EDGES), 50, 70
    yield RNG.integers(9, size=MANY_EDGES), np.sort(RNG.integers(9, size=MANY_EDGES)), 9, 9
    # These numbers fall from thread to thread.
    falls = np.repeat([2, 1, 0], np.diff([MANY_EDGES * k // 3 for k in range(4)]))
    yield np.zeros(MANY_EDGES, int), falls, 1, 3
    yield np.arange(5), np.arange(5), 6, 5
    yield np.array([3, 1, 0, 1]), np.array([0, 0, 0, 1]), 4, 2  # sorted by destination; the last two are self-loops
    yield np.array([], int), np.array([], int), 0, 3
    yield np.array([], int), np.array([], int), 0, 0


def yield_edge_lists_by_type_and_threads():
    """Yield each edge list in each index type, for one and for three threads."""
    for src, dst, *sizes in yield_edge_lists():
        for index, threads in itertools.product((np.int32, np.int64), (1, 3)):
            with restore_num_threads():
                trigraph.set_num_threads(threads)
                yield src.astype(index), dst.astype(index), *sizes


def sort_to_offsets_and_order(keys, number):
    return np.searchsorted(np.sort(keys), np.arange(number + 1)), np.argsort(keys, kind="stable")


def test_csc_and_segment_arrays_equal_numpy():
    for src, dst, n_src, n_dst in yield_edge_lists_by_type_and_threads():
        for loops in (-1, min(n_src, n_dst)):
            graph, of_edges = CSC._build_on_host(src, dst, n_src, n_dst, loops=loops), (src, dst)
            if loops >= 0:
                own = np.arange(loops)
                of_edges = [np.append(a[src != dst], own) for a in of_edges]
            offsets, order = sort_to_offsets_and_order(of_edges[1], n_dst)
            sources, destinations = (a[order] for a in of_edges)
            row_arrays = [np.arange(len(order) + 1), np.argsort(order)]
            expected = [offsets, sources, order, destinations, *sort_to_offsets_and_order(sources, n_src), *row_arrays]
            found = graph.offsets, graph.indices, graph.edge_ids, *graph.prepare()
            for got, right in zip(found, expected, strict=True):
                assert got.dtype == src.dtype
                assert not got.flags.writeable
                np.testing.assert_array_equal(got, right)
            assert graph.edges_in_order == (np.diff(of_edges[1]) >= 0).all()
            assert (graph.max_in_degree, graph.num_edges) == (max(np.diff(offsets), default=0), len(order))
        members = Segments(dst, n_dst)
        assert members.is_sorted == (np.diff(dst) >= 0).all()
        for got, right in zip((members.offsets, members.order), sort_to_offsets_and_order(dst, n_dst), strict=True):
            np.testing.assert_array_equal(got, right)
        for position, wrong in ((0, -1), (len(src) - 1, n_src), (len(src) // 2, -(2**31))):
            bad = src.copy()
            if len(src):
                bad[position] = wrong
                text = f"CSC: src\\[{position}\\] is {wrong}; expected 0 <= src < num_src_nodes = {n_src}$"
                with pytest.raises(ValueError, match=text):
                    CSC.from_coo(bad, dst, n_src, n_dst)
                with pytest.raises(ValueError, match=f"index\\[{position}\\] is {wrong}; expected 0 <= index < num_s"):
                    Segments(bad, n_src)


def test_prepare_refuses_overwritten_csc_arrays():
    for offsets, ids in (([0, 5, 2], [0, 1]), ([0, 1, 9], [0, 1]), ([0, 1, 2], [0, -(2**40)])):
        graph = CSC.__new__(CSC)
        graph._set_attributes(np.array(offsets), np.array([0, 1]), np.array(ids), False, 2, 2, 1)
        text = "CSC: an index is out of range, or offsets decrease: the graph's tensors were"
        with pytest.raises(ValueError, match=text):
            graph.prepare()


def list_graph_arrays(graph):
    reverse = graph.prepare() if isinstance(graph, CSC) else ()
    return [np.asarray(a) for a in (*(getattr(graph, n) for n in graph.__slots__), *reverse) if a is not None]


def test_numpy_fallback_gives_equal_arrays(monkeypatch):
    """Edge numbers beyond the range of a C int are sorted by NumPy, with the same results as graphs.c."""
    lists, index = list(yield_edge_lists_by_type_and_threads())[::2], np.int32
    many = np.zeros(600, index), np.zeros(600, index)  # edges between periodic images of one atom
    far = np.arange(1, 301).repeat(3).reshape(300, 3)
    cells, dimer = np.concatenate([far, -far]), (np.array([0, 0, 1, 1], index), np.array([1, 1, 0, 0], index))
    signs = np.array([[1, 0, 2], [0, 0, 0], [0, 0, 0], [-1, 0, -2]])

    def yield_graphs():
        for src, dst, n_src, n_dst in lists:
            yield CSC.from_coo(src, dst, n_src, n_dst)
            yield CSC.from_coo(src, dst, n_src, n_dst, (dst + 1) // 2, n_dst + 1)
            yield CSC.from_coo(src, dst, n_src, n_dst, np.arange(len(src), dtype=src.dtype) // 2, len(src))
            yield CSC.from_coo(src, dst, n_src, n_dst, None, len(src) + 2)
            yield Segments(dst, n_dst)
            yield EdgeGraph.from_unsorted(src, dst, max(n_src, n_dst)).graph
            pairs = np.unique(np.stack([src, dst])[:, :FEW_EDGES], axis=1).reshape(2, -1)
            yield EdgeGraph(*pairs, max(n_src, n_dst))
        yield EdgeGraph(*many, 1, cells)
        yield EdgeGraph(*dimer, 2, signs)

    with restore_num_threads():
        trigraph.set_num_threads(3)
        fast = [list_graph_arrays(graph) for graph in yield_graphs()]
    with pytest.raises(ValueError, match="EdgeGraph: edges 2 and 3 are both the reverse of edge 0; expected every"):
        EdgeGraph(*dimer, 2, 0 * signs)
    for module in (csc, counting, edge_graph):
        monkeypatch.setattr(module, "counts_fit_c_int", lambda *numbers: False)
    for got, right in zip(fast, yield_graphs(), strict=True):
        for a, b in zip(got, list_graph_arrays(right), strict=True):
            np.testing.assert_array_equal(a, b)
            assert a.dtype == b.dtype


MEMORY_PROGRAM = """
import re, resource
import numpy as np
import trigraph
trigraph.Segments(np.array([0]), 1)  # what is loaded late
with open("/proc/self/statm") as file:
    size = int(file.read().split()[0]) * resource.getpagesize()
arrays, sort = "the system has no [0-9]+ bytes for the arrays of a graph", "the system has no memory to sort"
for more, text in ((2**26, arrays), (3 * 2**26, sort)):
    resource.setrlimit(resource.RLIMIT_AS, (size + more, resource.RLIM_INFINITY))
    try:
        trigraph.Segments(np.array([0], np.int32), 2**25)
    except MemoryError as error:
        assert re.match(text, str(error)), error
    else:
        raise AssertionError
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit memory")
def test_segments_without_memory_raise_memory_error():
    run_command(sys.executable, "-c", MEMORY_PROGRAM)


# Mutations of graphs.c as (old text, new text); the first changes nothing.
MUTATIONS = {
    "": ("most", "most"),
    "a sort that is not stable": ("(size_t)part * s->keys + key]", "(s->parts - 1 - part) * s->keys + key]"),
    "an offset is that of the key before": ("s->offsets[key + 1] = total;", "s->offsets[key + 1] = begin;"),
    "negative destinations": ("if (key < 0 || key", "if (key"),
    "negative sources": ("(src[m] < 0 || src[m]", "(src[m]"),
    "what only the first thread finds is wrong": ("if (s->found[part].wrong)", "if (s->found[0].wrong)"),
    "edges of a thread are numbered from 0": ("number += s->found[i].kept;", ";"),
    "edges in order within each thread": ("rises && s->found[part].first >= last", "rises"),
    "a loop too many": ("total += key < loops;", "total += key <= loops;"),
    "loops are in order": ("rises && (loops == 0 || last == 0)", "rises"),
    "rows of two positions are inverted": ("row_positions[row] >= 0;", "row_positions[row] >= -1;"),
    "rows that nothing uses": ("row < num_positions ? row : num_positions;", "row;"),
    "offsets that fall": ("wrong |= offsets[i] > offsets[i + 1];", ";"),
    "rows out of range": ("if (s->edge_ids[p] >= 0 && s", "if (s"),
    "edges back from the node alone": ("s->dst[e] + 1);", "s->dst[e]);"),
    "the reverse has the same shift": ("shift[own] != -shift[other]", "shift[own] != shift[other]"),
    "two reverses": ("s->wrong[part] |= place >= 0;", ""),
    "parallel edges of the last pair": ("most = number > most ? number : most;", "most = number;"),
}


@pytest.mark.slow
@pytest.mark.parametrize("wrong", MUTATIONS)
def test_mutations_of_graphs_c_are_found(tmp_path, wrong):
    write_mutated_sources([Path(trigraph.__file__).parent / "fortran" / "graphs.c"], tmp_path, MUTATIONS[wrong])
    library = tmp_path / "libgraphs.so"
    run_command("gcc", "-O1", "-shared", "-fPIC", tmp_path / "graphs.c", "-o", library, "-pthread")
    use_library = 'from trigraph.arrays import LIBRARIES; LIBRARIES["libtrigraph"] = lambda: sys.argv[1]'
    assert_tests_detect_mutation(library, use_library, __file__, "not memory", bool(wrong))
