"""CSC: bad input, immutability, the reverse order against brute force, constructors; odd graphs in every panel."""

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
from table_calls import CPU_PANELS, OPS, assert_close, assert_right, call, draw

import trigraph
from trigraph import CSC, EdgeGraph, Segments
from trigraph.operators import SYMBOLS

INDEX = [np.int32, np.int64]
CSC_OPS, EDGE_OPS = ([pytest.param(op, id=op.name) for op in OPS if op.definition.graph == g] for g in ("csc", "edges"))
ARRAYS = ("offsets", "indices", "edge_ids")
REVERSE = ("destinations", "src_offsets", "src_positions", "row_offsets", "row_positions")


def ints(*values, dtype=np.int64):
    return np.array(values, dtype)


def arguments():
    return {
        "offsets": ints(0, 2, 2, 3),
        "indices": ints(1, 0, 3),
        "num_src_nodes": 4,
        "edge_ids": ints(0, 1, 1),
        "num_edges": 3,
    }


def raises(kind, text, function, *args, **kwargs):
    with pytest.raises(kind) as caught:
        function(*args, **kwargs)
    assert caught.type is kind
    assert str(caught.value) == text


def random_graph(seed, n_src=7, n_dst=5, n=40, n_rows=25, index=np.int64):
    rng = np.random.default_rng(seed)
    src, dst, rows = (rng.integers(0, size, n).astype(index) for size in (n_src, n_dst, n_rows))
    return src, dst, rows, CSC.from_coo(src, dst, n_src, n_dst, rows, n_rows)


# Bad input


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_the_wrong_kind(name):
    value = arguments()[name]
    for bad in (value.tolist(), tuple(value), "x", 3, np.ma.masked_array(value), value.view(np.matrix), object()):
        text = f"CSC: {name} is a {type(bad).__name__}; expected a numpy.ndarray or cupy.ndarray of integers"
        raises(TypeError, text, CSC, **(arguments() | {name: bad}))
    for dtype in (np.bool_, np.int8, np.int16, np.uint32, np.uint64, np.float64, object, ">i4", ">i8"):
        bad = value.astype(dtype)
        text = f"CSC: {name} has dtype {bad.dtype.str}; expected native int32 or int64"
        raises(TypeError, text, CSC, **(arguments() | {name: bad}))
    for bad in (value[None], value[:, None], np.asarray(value[0])):
        text = f"CSC: {name} has shape {bad.shape}; expected one dimension"
        raises(ValueError, text, CSC, **(arguments() | {name: bad}))


@pytest.mark.parametrize(("name", "like"), [("indices", "offsets"), ("edge_ids", "indices")])
def test_dtypes_that_differ(name, like):
    bad = arguments()[name].astype(np.int32)
    text = f"CSC: {name} has dtype int32; expected int64, the dtype of {like}"
    raises(TypeError, text, CSC, **(arguments() | {name: bad}))


BAD_VALUES = [
    ({"offsets": ints()}, "offsets is empty; expected (num_dst_nodes + 1,) values"),
    ({"offsets": ints(1, 2, 2, 3)}, "offsets run from 1 to 3; expected 0 to len(indices) = 3"),
    ({"offsets": ints(-1, 2, 2, 3)}, "offsets run from -1 to 3; expected 0 to len(indices) = 3"),
    ({"offsets": ints(0, 2, 2, 4)}, "offsets run from 0 to 4; expected 0 to len(indices) = 3"),
    ({"offsets": ints(0, 2, 2, 2)}, "offsets run from 0 to 2; expected 0 to len(indices) = 3"),
    ({"offsets": ints(0)}, "offsets run from 0 to 0; expected 0 to len(indices) = 3"),
    (
        {"offsets": ints(0, 2, 1, 3)},
        "offsets[2] is 1, below offsets[1] = 2; expected offsets that never decrease",
    ),
    (
        {"offsets": ints(0, 4, 3)},
        "offsets[2] is 3, below offsets[1] = 4; expected offsets that never decrease",
    ),
    ({"indices": ints(1, -1, 3)}, "indices[1] is -1; expected 0 <= indices < num_src_nodes = 4"),
    ({"indices": ints(1, 0, 4)}, "indices[2] is 4; expected 0 <= indices < num_src_nodes = 4"),
    ({"num_src_nodes": 3}, "indices[2] is 3; expected 0 <= indices < num_src_nodes = 3"),
    ({"num_src_nodes": None}, "indices[2] is 3; expected 0 <= indices < num_src_nodes = 3"),
    ({"num_src_nodes": -1}, "num_src_nodes is -1; expected at least 0"),
    ({"edge_ids": ints(0, 1)}, "edge_ids has shape (2,); expected (3,), the shape of indices"),
    ({"edge_ids": ints(0, 1, 2, 0)}, "edge_ids has shape (4,); expected (3,), the shape of indices"),
    ({"edge_ids": ints(0, -1, 2)}, "edge_ids[1] is -1; expected 0 <= edge_ids < num_edges = 3"),
    ({"edge_ids": ints(0, -1, -1), "num_edges": None}, "edge_ids[1] is -1; expected 0 <= edge_ids < num_edges = 1"),
    ({"edge_ids": ints(-1, -1, -1), "num_edges": None}, "edge_ids[0] is -1; expected 0 <= edge_ids < num_edges = 0"),
    ({"edge_ids": ints(0, 1, 3)}, "edge_ids[2] is 3; expected 0 <= edge_ids < num_edges = 3"),
    ({"num_edges": 1}, "edge_ids[1] is 1; expected 0 <= edge_ids < num_edges = 1"),
    ({"edge_ids": None, "num_edges": 2}, "num_edges is 2; expected at least len(indices) = 3"),
    ({"num_edges": -1}, "num_edges is -1; expected at least 0"),
]


@pytest.mark.parametrize(("change", "text"), BAD_VALUES)
def test_bad_values(change, text):
    raises(ValueError, f"CSC: {text}", CSC, **(arguments() | change))


def test_offsets_whose_differences_overflow():
    top = np.iinfo(np.int32).max
    offsets = ints(0, top, -2, 3, dtype=np.int32)
    text = f"CSC: offsets[2] is -2, below offsets[1] = {top}; expected offsets that never decrease"
    raises(ValueError, text, CSC, offsets, ints(0, 0, 0, dtype=np.int32))


@pytest.mark.parametrize("name", ["num_src_nodes", "num_edges"])
def test_counts(name):
    for bad in (3.0, True, np.True_, "3", [4], np.array([4]), np.array(4.5), 4 + 0j):
        text = f"CSC: {name} is a {type(bad).__name__}; expected an int"
        raises(TypeError, text, CSC, **(arguments() | {name: bad}))
    for good in (np.int8(5), np.uint64(5), np.array(5)):
        assert getattr(CSC(**(arguments() | {name: good})), name) == 5


def test_from_coo_bad_input():
    src, dst = ints(0, 1, 2), ints(1, 1, 0)
    kind = "expected a numpy.ndarray or cupy.ndarray of integers"
    raises(TypeError, f"CSC: src is a list; {kind}", CSC.from_coo, [0, 1], dst)
    raises(TypeError, f"CSC: dst is a list; {kind}", CSC.from_coo, src, [0, 1, 2])
    raises(TypeError, f"CSC: edge_ids is a list; {kind}", CSC.from_coo, src, dst, edge_ids=[0, 1, 2])
    small = src.astype(np.int32)
    raises(TypeError, "CSC: dst has dtype int32; expected int64, the dtype of src", CSC.from_coo, src, small)
    text = "CSC: edge_ids has dtype int32; expected int64, the dtype of src"
    raises(TypeError, text, CSC.from_coo, src, dst, edge_ids=small)
    raises(ValueError, "CSC: dst has shape (2,); expected (3,), the shape of src", CSC.from_coo, src, dst[:2])
    for bad in (dst[:2], ints(0, 1, 2, 3)):
        text = f"CSC: edge_ids has shape {bad.shape}; expected (3,), the shape of src"
        raises(ValueError, text, CSC.from_coo, src, dst, edge_ids=bad)
    text = "CSC: src[2] is 2; expected 0 <= src < num_src_nodes = 2"
    raises(ValueError, text, CSC.from_coo, src, dst, 2, 2)
    text = "CSC: dst[0] is 1; expected 0 <= dst < num_dst_nodes = 1"
    raises(ValueError, text, CSC.from_coo, src, dst, 3, 1)
    text = "CSC: src[1] is -1; expected 0 <= src < num_src_nodes = 2"
    raises(ValueError, text, CSC.from_coo, ints(0, -1, 1), dst)
    text = "CSC: edge_ids[2] is 7; expected 0 <= edge_ids < num_edges = 3"
    raises(ValueError, text, CSC.from_coo, src, dst, edge_ids=ints(0, 1, 7), num_edges=3)
    raises(ValueError, "CSC: num_edges is 2; expected at least len(src) = 3", CSC.from_coo, src, dst, num_edges=2)
    for name in ("num_src_nodes", "num_dst_nodes", "num_edges"):
        for bad in (3.5, "3", True):
            text = f"CSC: {name} is a {type(bad).__name__}; expected an int"
            raises(TypeError, text, CSC.from_coo, src, dst, **{name: bad})
        raises(ValueError, f"CSC: {name} is -2; expected at least 0", CSC.from_coo, src, dst, **{name: -2})


def test_other_constructors_bad_input():
    for bad in ([[0], [1]], sparse.csr_array((2, 2)), None):
        text = f"CSC: edge_index is a {type(bad).__name__}; expected a numpy.ndarray or cupy.ndarray"
        raises(TypeError, text, CSC.from_edge_index, bad)
    for shape in ((3, 2), (2,), (2, 3, 1), (1, 4)):
        text = f"CSC: edge_index has shape {shape}; expected (2, num_edges)"
        raises(ValueError, text, CSC.from_edge_index, np.zeros(shape, np.int64))
    text = "CSC: src has dtype <f8; expected native int32 or int64"
    raises(TypeError, text, CSC.from_edge_index, np.zeros((2, 3)))
    for bad in (np.eye(3), [[0, 1]], nx.path_graph(3)):
        text = f"CSC: matrix is a {type(bad).__name__}; expected a scipy.sparse matrix or array"
        raises(TypeError, text, CSC.from_scipy, bad)
    text = "CSC: matrix has shape (3,); expected (num_dst_nodes, num_src_nodes)"
    raises(ValueError, text, CSC.from_scipy, sparse.coo_array(np.ones(3)))
    for bad in (np.eye(3), {0: [1]}, [(0, 1)]):
        text = f"CSC: graph is a {type(bad).__name__}; expected a networkx graph"
        raises(TypeError, text, CSC.from_networkx, bad)


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


TOP = 2**63 - 1
HUGE = [2**31, 2**48 + 1, TOP, 2**63, 2**64, 2**70, 10**30, 10**5000]


@pytest.mark.parametrize("number", [*HUGE, *(-n for n in HUGE)], ids=lambda n: f"{n.bit_length()} bits {n > 0}")
def test_huge_numbers_are_value_errors(number):
    """Never an OverflowError, nor memory asked for."""
    src, dst = ints(0, 1, 1, dtype=np.int32), ints(1, 0, 1, dtype=np.int32)
    calls = [
        lambda: Segments(src, number),
        lambda: EdgeGraph(src, dst, number),
        lambda: EdgeGraph.sorted(src, dst, number),
        lambda: CSC(ints(0, 1, 3, dtype=np.int32), src, number),
        lambda: CSC(ints(0, 1, 3, dtype=np.int32), src, num_edges=number),
        lambda: CSC(ints(0, 1, 3, dtype=np.int32), src, edge_ids=src, num_edges=number),
        lambda: CSC.from_coo(src, dst, number),
        lambda: CSC.from_coo(src, dst, None, number),
        lambda: CSC.from_coo(src, dst, num_edges=number),
        lambda: CSC.from_edge_index(np.stack([src, dst]), number),
        lambda: trigraph.set_num_threads(number),
        lambda: trigraph.unpack_gno_params(np.zeros(9), number, 1, 1),
    ]
    for build in calls:
        with pytest.raises(ValueError, match=r"expected (at (least|most) |.* with a whole hidden)") as caught:
            build()
        assert len(str(caught.value)) < 700


@pytest.mark.parametrize("dtype", INDEX)
@pytest.mark.parametrize("below", [0, 1, 2])
def test_indices_near_the_largest_integer(dtype, below):
    most = 2**48 if dtype is np.int64 else np.iinfo(dtype).max
    value = np.iinfo(dtype).max - (0 if dtype is np.int32 else below)
    big, small = ints(0, value, dtype=dtype), ints(0, 1, dtype=dtype)
    offsets = ints(0, 1, 2, dtype=dtype)
    text = f"is {value}; expected less than {most}"
    raises(ValueError, f"CSC: edge_ids[1] {text}", CSC, offsets, small, edge_ids=big)
    raises(ValueError, f"CSC: src[1] {text}", CSC.from_coo, big, small)
    raises(ValueError, f"CSC: dst[1] {text}", CSC.from_coo, small, big)
    raises(ValueError, f"CSC: edge_ids[1] {text}", CSC.from_coo, small, small, edge_ids=big)
    raises(ValueError, f"CSC: src[1] {text}", CSC.from_edge_index, np.stack([big, small]))
    raises(ValueError, f"CSC: src[1] is {value}; expected 0 <= src < num_src_nodes = 5", CSC.from_coo, big, small, 5, 5)
    raises(ValueError, f"Segments: index[1] is {value}; expected 0 <= index < num_segments = 3", Segments, big, 3)


def test_tensors_are_told_what_to_pass():
    kind = type("Tensor", (), {"__module__": "torch"})
    more = type("Parameter", (kind,), {"__module__": "my.layers"})
    for value in (kind(), more()):
        text = f"CSC: src is a {type(value).__name__}; expected a numpy.ndarray or cupy.ndarray of integers"
        raises(TypeError, f"{text}: pass src.detach().cpu().numpy()", CSC.from_coo, value, ints(0))


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


# Graphs at the edge of the ordinary, through every operator and CPU panel


def _graph(sizes, src=(), dst=(), rows=None, index=np.int64):
    n_src, n_dst, num_edges = sizes
    rows = None if rows is None else ints(*rows, dtype=index)
    return CSC.from_coo(ints(*src, dtype=index), ints(*dst, dtype=index), n_src, n_dst, rows, num_edges)


ODD = {
    "nothing": ((0, 0, 0),),
    "no edges": ((3, 2, 0),),
    "rows that nothing uses": ((3, 2, 4),),
    "no destinations": ((3, 0, 2),),
    "no sources": ((0, 3, 2),),
    "one edge": ((1, 1, 1), (0,), (0,)),
    "one edge of many": ((4, 5, 6), (2,), (3,), (4,)),
    "one row for all": ((3, 2, 1), (0, 1, 2, 2), (0, 1, 1, 0), (0, 0, 0, 0)),
    "shared and unused rows": ((5, 4, 6), (0, 1, 1, 3, 3), (0, 1, 1, 3, 2), (5, 2, 5, 2, 2)),
    "parallel edges and self loops": ((3, 3, 4), (1, 1, 2, 0), (1, 1, 2, 1)),
}


@pytest.mark.parametrize("panel", CPU_PANELS)
@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("op", CSC_OPS)
def test_odd_graphs(op, name, panel):
    for index in INDEX:
        graph = _graph(*ODD[name], index=index)
        for dtype in (np.float32, np.float64):
            values = draw(op, dtype, graph=graph)
            got = call(op, values, panel=panel)
            assert_right(op, values, got)
            for field in (f for f in op.fields if f.name in got):
                value, rows = got[field.name], np.ones(got[field.name].shape[0], bool)
                used = {"num_edges": graph.edge_ids, "num_src_nodes": graph.indices}.get(field.dims[0], rows)
                if field.dims[0] == "num_dst_nodes":
                    used = graph.prepare().destinations
                rows[used] = False
                assert value.dtype == (index if field.index else dtype)
                nothing = -1 if field.index else 0
                assert (value[rows] == nothing).all()  # gradients of what nothing uses are exactly 0
                assert graph.num_positions or (value == nothing).all()


# Nodes, sources, destinations and shifts along one axis. A triplet of an edge with itself is never alone: its
# derivative in vec is zero but for rounding, and results are compared relative to the largest value.
ODD_EDGES = {
    "nothing": (0,),
    "no edges": (3,),
    "one edge": (2, (0,), (1,), (0,)),
    "edges to its own images": (1, (0, 0), (0, 0), (1, 2)),
    "an edge and its reverse": (4, (1, 2), (2, 1), (0, 0)),
    "images of itself": (2, (0, 0, 0), (0, 0, 0), (1, -1, 2)),
    "parallel edges": (2, (0, 0, 1, 1, 1), (1, 1, 0, 0, 0), (0, 1, 0, -1, 3)),
    "a chain": (5, (0, 1, 2), (1, 2, 3), (0, 0, 0)),
    "a node that is entered only": (3, (0, 1), (2, 2), (0, 0)),
    "a node that is left only": (3, (1, 1), (0, 2), (0, 0)),
}


@pytest.mark.parametrize("panel", CPU_PANELS)
@pytest.mark.parametrize("name", ODD_EDGES)
@pytest.mark.parametrize("op", EDGE_OPS)
def test_odd_edge_graphs(op, name, panel):
    nodes, src, dst, along = (*ODD_EDGES[name], (), (), ())[:4]
    shifts = [(s, 0, 0) for s in along]
    for index in INDEX:
        graph = EdgeGraph(
            ints(*src, dtype=index), ints(*dst, dtype=index), nodes, ints(*shifts, dtype=index).reshape(-1, 3)
        )
        for exclude in ("node", "edge", None):
            outer, inner = graph.triplets(exclude)
            used = {"out": outer, "rbf": inner, "embedding": inner, "vec": np.concatenate([outer, inner])}
            for dtype in (np.float32, np.float64):
                values = draw(op, dtype, graph=graph) | {"exclude": exclude}
                got = call(op, values, panel=panel)
                assert_close(got, call(op, values, panel="pyref"))
                for field, value in got.items():
                    rows = np.ones(len(value), bool)
                    rows[used.get(field.removeprefix("grad_"), slice(None if len(outer) else 0))] = False
                    assert value.dtype == dtype
                    assert not value[rows].any()  # what is in no triplet is exactly 0


@pytest.mark.parametrize("panel", CPU_PANELS)
@pytest.mark.parametrize("op", [pytest.param(op, id=op.name) for op in OPS if not op.graph])
def test_no_rows_and_one_row(op, panel):
    entities = {s for s in op.definition.symbols if SYMBOLS[s].minimum == 0}
    for size in (0, 1):
        values = draw(op, **dict.fromkeys(entities, size))
        got = call(op, values, panel=panel)
        assert_close(got, call(op, values, panel="pyref"))
        assert size or not any(value.any() for value in got.values())


def test_examples_of_the_docstrings():
    results = doctest.testmod(trigraph.graphs)
    assert results.attempted
    assert not results.failed
