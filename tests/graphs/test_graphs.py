"""CSC: immutability, pickles, the reverse order against brute force, constructors."""

import copy
import doctest
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from small_graphs import ARRAYS, INDEX, REVERSE, arguments, ints, random_graph
from table_calls import assert_close, raises

import trigraph
from trigraph import CSC, EdgeGraph, Segments

# Immutable, picklable, safe to share


def test_the_callers_arrays_are_copied():
    given = arguments()
    graph = CSC(**given)
    expected = CSC(**arguments())
    before = {name: getattr(graph, name).copy() for name in ARRAYS}
    for name in ARRAYS:
        given[name][...] = 99
        assert np.array_equal(getattr(graph, name), before[name])
        assert not np.shares_memory(getattr(graph, name), given[name])
    for name in REVERSE:
        assert np.array_equal(getattr(graph.prepare(), name), getattr(expected.prepare(), name))


@pytest.mark.parametrize("graph", [CSC(**arguments()), CSC(**(arguments() | {"edge_ids": None}))])
def test_attributes_and_arrays_are_read_only(graph):
    for name in (*ARRAYS, "num_edges", "num_src_nodes", "max_in_degree", "_built", "something"):
        raises(AttributeError, f"CSC is immutable; cannot set {name}", setattr, graph, name, 1)
    raises(AttributeError, "CSC is immutable; cannot delete offsets", delattr, graph, "offsets")
    reverse = graph.prepare()
    for array in (*(getattr(graph, n) for n in ARRAYS), *reverse):
        assert_nobody_can_write(array)
    with pytest.raises(AttributeError):
        reverse.destinations = None
    reverse.__init__()  # what a tuple holds stays
    assert graph.prepare() is reverse


@pytest.mark.parametrize("build", [lambda: CSC(**arguments()), lambda: Segments(ints(1, 0, 1), 3), lambda: triangle()])
def test_no_object_is_initialized_twice(build):
    graph = build()
    before = [getattr(graph, n) for n in graph.__slots__]
    other = {"CSC": (ints(0, 1), ints(0)), "Segments": (ints(0), 1), "EdgeGraph": (ints(0), ints(1), 2)}
    name = type(graph).__name__
    text = f"{name} is immutable; cannot initialize it again"
    raises(AttributeError, text, graph.__init__, *other[name])
    assert all(getattr(graph, n) is a for n, a in zip(graph.__slots__, before, strict=True))


def triangle():
    return EdgeGraph(ints(0, 0, 1, 2), ints(1, 2, 0, 0), 3)


def assert_nobody_can_write(array):
    """Neither this array, nor what it is a view of, whatever its flags are set to."""
    assert array.flags.c_contiguous
    while isinstance(array, np.ndarray):
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="cannot set WRITEABLE flag"):
            array.setflags(write=True)
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
        array = array.base
    assert type(array) is bytes


@pytest.mark.parametrize("dtype", INDEX)
@pytest.mark.parametrize("kind", ["CSC", "EdgeGraph", "EdgeGraph by shifts", "Segments"])
def test_pickle_out_of_band(kind, dtype):
    """Memory that a pickle was read from may change afterwards: the graph owns copies."""
    graph = {
        "CSC": lambda: random_graph(3, index=dtype)[-1],
        "EdgeGraph": lambda: EdgeGraph(ints(0, 0, 1, 2, dtype=dtype), ints(1, 2, 0, 0, dtype=dtype), 3),
        "EdgeGraph by shifts": lambda: images(dtype),
        "Segments": lambda: Segments(ints(2, 0, 2, dtype=dtype), 3),
    }[kind]()
    buffers = []
    text = pickle.dumps(graph, protocol=5, buffer_callback=buffers.append)
    raw = [bytearray(b.raw()) for b in buffers]
    assert raw
    other = pickle.loads(text, buffers=raw)
    for memory in raw:
        memory[:] = b"\x7f" * len(memory)
    for name in graph.__slots__:
        expected, got = getattr(graph, name), getattr(other, name)
        if isinstance(expected, np.ndarray):
            assert got.dtype == expected.dtype
            assert np.array_equal(got, expected), name
            assert_nobody_can_write(got)
        elif name != "_built":
            assert got == expected


def images(dtype):
    """Parallel edges, with reverses that only shifts tell; one edge has none."""
    shifts = np.array([[1, 0, 0], [0, 0, 0], [2, 0, 0], [0, 0, 0], [-1, 0, 0]], dtype)
    return EdgeGraph(ints(0, 0, 0, 1, 1, dtype=dtype), ints(1, 1, 1, 0, 0, dtype=dtype), 2, shifts)


@pytest.mark.parametrize(
    ("place", "value", "text"),
    [
        (0, 7, "reverse_edge[0] is 7; expected 0 <= reverse_edge < num_edges = 5"),
        (0, -2, "reverse_edge[0] is -2; expected 0 <= reverse_edge < num_edges = 5"),
        (0, 1, "reverse_edge[0] is 1, which is not the reverse of edge 0"),
        (0, 3, "reverse_edge[0] is 3, which is not the reverse of edge 0"),
        (0, -1, "reverse_edge[4] is 0, which is not the reverse of edge 4"),
    ],
)
def test_a_pickle_that_was_changed_is_refused(place, value, text):
    graph = images(np.int64)
    assert graph.reverse_edge.tolist() == [4, 3, -1, 1, 0]
    function, (src, dst, num_nodes, reverse_edge) = graph.__reduce__()
    reverse_edge = reverse_edge.copy()
    reverse_edge[place] = value
    raises(ValueError, f"EdgeGraph: {text}", function, src, dst, num_nodes, reverse_edge)
    text = "EdgeGraph: dst[0] is 1; expected 0 <= dst < num_nodes = 1"
    raises(ValueError, text, function, src[:2], dst[:2], 1, None)
    none = function(src[1:4], dst[1:4], num_nodes, None)  # parallel edges
    assert none.reverse_edge is None
    assert function(src[2:4], dst[2:4], num_nodes, None).reverse_edge.tolist() == [1, 0]


@pytest.mark.parametrize("prepared", [False, True])
def test_pickle_and_copy(prepared):
    *_, graph = random_graph(0)
    if prepared:
        graph.prepare()
    assert copy.copy(graph) is graph
    assert copy.deepcopy([graph])[0] is graph
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        other = pickle.loads(pickle.dumps(graph, protocol))
        assert type(other) is CSC
        assert repr(other) == repr(graph)
        for name in ARRAYS:
            assert np.array_equal(getattr(other, name), getattr(graph, name))
            assert getattr(other, name).dtype == getattr(graph, name).dtype
            assert not getattr(other, name).flags.writeable
        for name in REVERSE:
            assert np.array_equal(getattr(other.prepare(), name), getattr(graph.prepare(), name))


def test_prepare_gives_all_the_same(monkeypatch):
    *_, graph = random_graph(1)
    assert graph.prepare() is graph.prepare()
    *_, graph = random_graph(1)
    built, release, build = [], threading.Event(), CSC._build_reverse

    def slow(self):
        built.append(threading.get_ident())
        release.wait(10)
        return build(self)

    monkeypatch.setattr(CSC, "_build_reverse", slow)
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(graph.prepare) for _ in range(8)]
        threading.Timer(0.05, release.set).start()
        results = [f.result(20) for f in futures]
    assert len(built) <= 8  # nobody waits for another, who may be in the same thread, or not in this process
    assert all(r is results[0] is graph.prepare() for r in results)


def test_a_failed_prepare_can_be_repeated(monkeypatch):
    *_, graph = random_graph(1)
    with monkeypatch.context() as patch:
        patch.setattr(CSC, "_build_reverse", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            graph.prepare()
    assert graph.prepare().destinations.size == graph.num_positions


def test_repr_and_sizes():
    graph = CSC(**arguments())
    assert repr(graph) == "CSC(num_src_nodes=4, num_dst_nodes=3, num_positions=3, num_edges=3, int64, host)"
    assert (graph.kind, graph.device, graph.max_in_degree) == ("numpy", "host", 2)
    assert CSC(ints(0, 0, 2), ints(0, 1)).edge_ids.tolist() == [0, 1]
    assert CSC(ints(0, 0, 2), ints(0, 1), num_edges=5).num_edges == 5
    assert CSC(ints(0, 0, 2), ints(0, 1), edge_ids=ints(3, 0)).num_edges == 4
    assert {graph: 1}[graph] == 1  # hashable, by identity


# The reverse order


def brute_order(keys, num_keys):
    groups = [[p for p, key in enumerate(keys) if key == k] for k in range(num_keys)]
    offsets = np.cumsum([0, *(len(g) for g in groups)])
    return offsets.tolist(), [p for group in groups for p in group]


@settings(deadline=None, max_examples=60, database=None)
@given(data=st.data(), index=st.sampled_from(INDEX))
def test_reverse_order_against_brute_force(data, index):
    n_src, n_dst, n_rows = (data.draw(st.integers(0, 6)) for _ in range(3))
    n = data.draw(st.integers(0, 30)) if min(n_src, n_dst, n_rows) else 0
    ends = [np.array(data.draw(st.lists(st.integers(0, max(size - 1, 0)), min_size=n, max_size=n)), index)
            for size in (n_src, n_dst, n_rows)]  # fmt: skip
    src, dst, rows = ends
    graph = CSC.from_coo(src, dst, n_src, n_dst, rows, n_rows)
    offsets, order = brute_order(dst, n_dst)
    assert graph.offsets.tolist() == offsets
    assert graph.indices.tolist() == src[order].tolist()
    assert graph.edge_ids.tolist() == rows[order].tolist()
    assert graph.max_in_degree == max(np.diff(offsets), default=0)
    reverse = graph.prepare()
    assert reverse.destinations.tolist() == sorted(dst.tolist())
    assert (reverse.src_offsets.tolist(), reverse.src_positions.tolist()) == brute_order(graph.indices, n_src)
    assert (reverse.row_offsets.tolist(), reverse.row_positions.tolist()) == brute_order(graph.edge_ids, n_rows)
    assert {getattr(reverse, name).dtype for name in REVERSE} == {np.dtype(index)}


# Constructors


def aggregate(graph, features, weights, panel="fortran"):
    """Sum over in-edges of weight times feature: the aggregation with a one by one kernel."""
    return trigraph.gno_aggregate_fwd(features[:, None], weights[:, None], graph, 1, 1, panel=panel)[:, 0]


@pytest.mark.parametrize("index", INDEX)
def test_from_coo_keeps_the_order_of_the_edges(index):
    rng = np.random.default_rng(0)
    src, dst = (rng.integers(0, n, 40).astype(index) for n in (7, 5))
    features, weights = rng.standard_normal(7), rng.standard_normal(40)
    expected = np.zeros(5)
    for j, i, w in zip(src, dst, weights, strict=True):
        expected[i] += w * features[j]
    graph = CSC.from_coo(src, dst, 7, 5)
    assert graph.offsets.dtype == index
    assert graph.num_edges == 40
    assert sorted(graph.edge_ids) == list(range(40))
    assert_close({"": aggregate(graph, features, weights)}, {"": expected})
    back = trigraph.gno_aggregate_bwd(np.ones((5, 1)), features[:, None], weights[:, None], graph, 1, 1)
    assert np.array_equal(back.kernel[:, 0], features[src])
    src, dst, rows, graph = random_graph(3)
    expected = np.zeros(graph.num_dst_nodes)
    features, weights = rng.standard_normal(graph.num_src_nodes), rng.standard_normal(graph.num_edges)
    for j, i, row in zip(src, dst, rows, strict=True):
        expected[i] += weights[row] * features[j]
    assert_close({"": aggregate(graph, features, weights)}, {"": expected})


def test_from_coo_sizes():
    src, dst = ints(0, 4), ints(2, 1)
    for counts, sizes in [((), (5, 5)), ((6,), (6, 6)), ((None, 7), (7, 7)), ((5, 3), (5, 3)), ((8, 9), (8, 9))]:
        graph = CSC.from_coo(src, dst, *counts)
        assert (graph.num_src_nodes, graph.num_dst_nodes) == sizes
    assert CSC.from_coo(src, dst, num_edges=9).num_edges == 9
    assert CSC.from_coo(src, dst, edge_ids=ints(3, 1)).num_edges == 4


def test_from_edge_index():
    edge_index = np.array([[0, 1, 3, 3], [2, 2, 0, 2]])
    graph = CSC.from_edge_index(edge_index)
    expected = CSC.from_coo(edge_index[0], edge_index[1])
    assert repr(graph) == repr(expected)
    for name in ARRAYS:
        assert np.array_equal(getattr(graph, name), getattr(expected, name))
    assert graph.offsets.tolist() == [0, 1, 1, 4, 4]
    assert graph.indices.tolist() == [3, 0, 1, 3]
    assert CSC.from_edge_index(edge_index, 6).num_dst_nodes == 6
    assert CSC.from_edge_index(np.asfortranarray(edge_index)).indices.tolist() == [3, 0, 1, 3]
    assert CSC.from_edge_index(np.zeros((2, 0), np.int32)).num_positions == 0


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "lil", "dok", "bsr"])
@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csr_matrix])
def test_from_scipy_aggregates_as_the_product(form, kind):
    rng = np.random.default_rng(0)
    shape = (6, 9)
    matrix = kind(np.where(rng.random(shape) < 0.3, rng.random(shape), 0)).asformat(form)
    x = rng.standard_normal(9)
    graph = CSC.from_scipy(matrix)
    assert (graph.num_dst_nodes, graph.num_src_nodes) == shape
    assert_close({"": aggregate(graph, x, matrix.tocsr().data)}, {"": matrix @ x})


def test_from_scipy_keeps_zeros_and_duplicates():
    matrix = sparse.csr_array((np.array([1.0, 0.0, 2.0]), np.array([1, 1, 0]), np.array([0, 2, 3])), shape=(2, 3))
    graph = CSC.from_scipy(matrix)
    assert graph.indices.tolist() == [1, 1, 0]
    assert graph.offsets.tolist() == [0, 2, 3]


def adjacency(graph, rows):
    """Multiset of (source, destination, edge of the networkx graph) of every position."""
    destinations = graph.prepare().destinations
    return sorted(
        (int(j), int(i), rows[r]) for j, i, r in zip(graph.indices, destinations, graph.edge_ids, strict=True)
    )


def test_from_networkx_directed():
    g = nx.DiGraph([("a", "b"), ("c", "b"), ("b", "b"), ("b", "a")])
    graph = CSC.from_networkx(g)
    number = {node: i for i, node in enumerate(g.nodes)}
    edges = list(g.edges)
    assert (graph.num_positions, graph.num_edges, graph.num_dst_nodes) == (4, 4, 3)
    assert adjacency(graph, edges) == sorted((number[u], number[v], (u, v)) for u, v in edges)


@pytest.mark.parametrize("kind", [nx.Graph, nx.MultiGraph])
def test_from_networkx_undirected_edges_share_a_row(kind):
    g = kind([("a", "b"), ("c", "b"), ("b", "b"), ("c", "a"), ("a", "c")])
    graph = CSC.from_networkx(g)
    number = {node: i for i, node in enumerate(g.nodes)}
    edges = list(g.edges)
    both = [(number[u], number[v], e) for e in edges for u, v in {(e[0], e[1]), (e[1], e[0])}]
    assert graph.num_edges == len(edges)
    assert graph.num_positions == 2 * len(edges) - 1  # the self loop is one position
    assert adjacency(graph, edges) == sorted(both)


def test_from_networkx_multigraph_and_nodes():
    g = nx.MultiDiGraph([(0, 1), (0, 1), (2, 1)])
    g.add_node(7)
    graph = CSC.from_networkx(g)
    assert (graph.num_positions, graph.num_edges, graph.num_dst_nodes) == (3, 3, 4)
    assert adjacency(graph, list(g.edges)) == [(0, 1, (0, 1, 0)), (0, 1, (0, 1, 1)), (2, 1, (2, 1, 0))]
    for empty in (nx.Graph(), nx.DiGraph(), nx.empty_graph(3)):
        graph = CSC.from_networkx(empty)
        assert (graph.num_positions, graph.num_edges, graph.num_dst_nodes) == (0, 0, len(empty))


def test_examples_of_the_docstrings():
    results = doctest.testmod(trigraph.graphs.csc)
    assert results.attempted
    assert not results.failed
