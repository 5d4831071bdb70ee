"""Tests of the argument checks of graph constructors: invalid arrays, indices and counts, and huge numbers."""

import numpy as np
import pytest
from scipy import sparse
from table_calls import assert_raises
from test_graph_objects import INDEX, csc_arguments, int_array

import trigraph
from trigraph import CSC, EdgeGraph, Segments

EDGES = {"src": int_array(0, 1, 2), "dst": int_array(1, 1, 0)}
# Valid arguments of each constructor: index arrays and integer counts.
VALID_ARGUMENTS = {
    CSC: csc_arguments(),
    CSC.from_coo: {**EDGES, "num_src_nodes": 3, "num_dst_nodes": 3, "edge_ids": int_array(0, 1, 2), "num_edges": 3},
    EdgeGraph: {**EDGES, "num_nodes": 3},
    Segments: {"index": int_array(0, 2, 1), "num_segments": 3},
}
CONSTRUCTOR_ARGUMENTS = [(build, name) for build, arguments in VALID_ARGUMENTS.items() for name in arguments]
ARRAYS = [
    (build, name) for build, name in CONSTRUCTOR_ARGUMENTS if isinstance(VALID_ARGUMENTS[build][name], np.ndarray)
]
COUNTS = [pair for pair in CONSTRUCTOR_ARGUMENTS if pair not in ARRAYS]
# Constructor -> the array that determines the required dtype of the other arrays.
DTYPE_SOURCE = {CSC: "offsets", CSC.from_coo: "src", EdgeGraph: "src", Segments: "index"}


def assert_constructor_refuses(build, error, text, **changes):
    """Assert that a constructor raises this error when some of its valid arguments are replaced by `changes`."""
    kind = getattr(build, "__self__", build).__name__
    assert_raises(error, f"{kind}: {text}", build, **(VALID_ARGUMENTS[build] | changes))


@pytest.mark.parametrize(("build", "name"), ARRAYS)
def test_constructors_refuse_wrong_index_arrays(build, name):
    value = VALID_ARGUMENTS[build][name]
    for bad in (value.tolist(), tuple(value), "x", 3, np.ma.masked_array(value), value.view(np.matrix), object()):
        text = f"{name} is a {type(bad).__name__}; expected a numpy.ndarray, cupy.ndarray or torch.Tensor of integers"
        assert_constructor_refuses(build, TypeError, text, **{name: bad})
    for dtype in (np.bool_, np.int8, np.int16, np.uint32, np.uint64, np.float64, object, ">i4", ">i8"):
        bad = value.astype(dtype)
        text = bad.dtype.name + " with non-native byte order" * (not bad.dtype.isnative)
        assert_constructor_refuses(
            build, TypeError, f"{name} has dtype {text}; expected native int32 or int64", **{name: bad}
        )
    for bad in (value[None], value[:, None], np.asarray(value[0])):
        assert_constructor_refuses(
            build, ValueError, f"{name} has shape {bad.shape}; expected one dimension", **{name: bad}
        )


@pytest.mark.parametrize(("build", "name"), [pair for pair in ARRAYS if DTYPE_SOURCE[pair[0]] != pair[1]])
def test_mixed_index_dtypes_are_refused(build, name):
    dtype_source = "indices" if (build, name) == (CSC, "edge_ids") else DTYPE_SOURCE[build]
    text = f"{name} has dtype int32; expected int64, the dtype of {dtype_source}"
    assert_constructor_refuses(build, TypeError, text, **{name: VALID_ARGUMENTS[build][name].astype(np.int32)})


@pytest.mark.parametrize(("build", "name"), COUNTS)
def test_counts_must_be_nonnegative_integers(build, name):
    for bad in (3.0, True, np.True_, "3", [4], np.array([4]), np.array(4.5), 4 + 0j):
        assert_constructor_refuses(
            build, TypeError, f"{name} is a {type(bad).__name__}; expected an int", **{name: bad}
        )
    assert_constructor_refuses(build, ValueError, f"{name} is -2; expected at least 0", **{name: -2})
    for good in (np.int8(5), np.uint64(5), np.array(5)):
        assert getattr(build(**(VALID_ARGUMENTS[build] | {name: good})), name) == 5


FALLS = "expected offsets that never decrease"
BAD_VALUES = {
    CSC: [
        ({"offsets": int_array()}, "offsets is empty; expected (num_dst_nodes + 1,) values"),
        ({"offsets": int_array(1, 2, 2, 3)}, "offsets run from 1 to 3; expected 0 to len(indices) = 3"),
        ({"offsets": int_array(0)}, "offsets run from 0 to 0; expected 0 to len(indices) = 3"),
        ({"offsets": int_array(0, 2, 1, 3)}, f"offsets[2] is 1, below offsets[1] = 2; {FALLS}"),
        ({"offsets": int_array(0, 4, 3)}, f"offsets[2] is 3, below offsets[1] = 4; {FALLS}"),
        ({"indices": int_array(1, -1, 3)}, "indices[1] is -1; expected 0 <= indices < num_src_nodes = 4"),
        ({"indices": int_array(1, 0, 4)}, "indices[2] is 4; expected 0 <= indices < num_src_nodes = 4"),
        ({"num_src_nodes": None}, "indices[2] is 3; expected 0 <= indices < num_src_nodes = 3"),
        ({"edge_ids": int_array(0, 1, 2, 0)}, "edge_ids has shape (4,); expected (3,), the shape of indices"),
        ({"edge_ids": int_array(0, -1, 2)}, "edge_ids[1] is -1; expected 0 <= edge_ids < num_edges = 3"),
        (
            {"edge_ids": int_array(0, -1, -1), "num_edges": None},
            "edge_ids[1] is -1; expected 0 <= edge_ids < num_edges = 1",
        ),
        ({"num_edges": 1}, "edge_ids[1] is 1; expected 0 <= edge_ids < num_edges = 1"),
        ({"edge_ids": None, "num_edges": 2}, "num_edges is 2; expected at least len(indices) = 3"),
    ],
    CSC.from_coo: [
        ({"dst": int_array(1, 1)}, "dst has shape (2,); expected (3,), the shape of src"),
        ({"edge_ids": int_array(0, 1, 2, 3)}, "edge_ids has shape (4,); expected (3,), the shape of src"),
        ({"num_dst_nodes": 1}, "dst[0] is 1; expected 0 <= dst < num_dst_nodes = 1"),
        ({"src": int_array(0, -1, 1), "num_src_nodes": 2}, "src[1] is -1; expected 0 <= src < num_src_nodes = 2"),
        ({"edge_ids": int_array(0, 1, 7)}, "edge_ids[2] is 7; expected 0 <= edge_ids < num_edges = 3"),
        ({"edge_ids": None, "num_edges": 2}, "num_edges is 2; expected at least len(src) = 3"),
    ],
    EdgeGraph: [
        ({"dst": int_array(1, 0, 1, 0)}, "dst has shape (4,); expected (num_edges,) = (3,)"),
        ({"src": int_array(0, 1, 3)}, "src[2] is 3; expected 0 <= src < num_nodes = 3"),
        ({"dst": int_array(1, -1, 0)}, "dst[1] is -1; expected 0 <= dst < num_nodes = 3"),
        ({"num_nodes": 2**32}, "num_nodes is 4294967296; expected at most 3037000499"),
        (
            {"src": int_array(1, 0, 2)},
            "src[1] is 0, below src[0] = 1; expected edges sorted by source (EdgeGraph.from_unsorted sorts them)",
        ),
    ],
    Segments: [
        ({"index": int_array(0, 3)}, "index[1] is 3; expected 0 <= index < num_segments = 3"),
        ({"index": int_array(0, 0, -1)}, "index[2] is -1; expected 0 <= index < num_segments = 3"),
        (
            {"index": np.broadcast_to(np.int32(0), 2**31)},
            "index has 2147483648 values, more than int32 can count; expected int64",
        ),
    ],
}


def test_constructors_refuse_inconsistent_arguments():
    for build, change, text in [(b, *row) for b, rows in BAD_VALUES.items() for row in rows]:
        assert_constructor_refuses(build, ValueError, text, **change)


def test_offsets_with_overflowing_differences_are_refused():
    top = np.iinfo(np.int32).max
    offsets = int_array(0, top, -2, 3, dtype=np.int32)
    text = f"CSC: offsets[2] is -2, below offsets[1] = {top}; {FALLS}"
    assert_raises(ValueError, text, CSC, offsets, int_array(0, 0, 0, dtype=np.int32))


def test_csc_converters_refuse_bad_input():
    text = "CSC: edge_index is a list; expected a numpy.ndarray, cupy.ndarray or torch.Tensor"
    assert_raises(TypeError, text, CSC.from_edge_index, [[0], [1]])
    for shape in ((3, 2), (2,), (2, 3, 1)):
        text = f"CSC: edge_index has shape {shape}; expected (2, num_edges)"
        assert_raises(ValueError, text, CSC.from_edge_index, np.zeros(shape, np.int64))
    text = "CSC: matrix is a ndarray; expected a scipy.sparse matrix or array"
    assert_raises(TypeError, text, CSC.from_scipy, np.eye(3))
    text = "CSC: matrix has shape (3,); expected (num_dst_nodes, num_src_nodes)"
    assert_raises(ValueError, text, CSC.from_scipy, sparse.coo_array(np.ones(3)))
    assert_raises(TypeError, "CSC: graph is a dict; expected a networkx graph", CSC.from_networkx, {0: [1]})


TOP = 2**63 - 1
HUGE = [2**31, 2**48 + 1, TOP, 2**63, 2**64, 2**70, 10**30, 10**5000]


@pytest.mark.parametrize("number", [*HUGE, *(-n for n in HUGE)], ids=lambda n: f"{n.bit_length()} bits {n > 0}")
def test_huge_counts_raise_value_error(number):
    """Counts near or beyond 2^63 raise ValueError, not OverflowError or MemoryError."""
    src, dst = int_array(0, 1, 1, dtype=np.int32), int_array(1, 0, 1, dtype=np.int32)
    calls = [
        lambda: Segments(src, number),
        lambda: EdgeGraph(src, dst, number),
        lambda: EdgeGraph.from_unsorted(src, dst, number),
        lambda: CSC(int_array(0, 1, 3, dtype=np.int32), src, number),
        lambda: CSC(int_array(0, 1, 3, dtype=np.int32), src, num_edges=number),
        lambda: CSC(int_array(0, 1, 3, dtype=np.int32), src, edge_ids=src, num_edges=number),
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
def test_indices_near_largest_integer_are_refused(dtype, below):
    most = 2**48 if dtype is np.int64 else np.iinfo(dtype).max
    value = np.iinfo(dtype).max - (0 if dtype is np.int32 else below)
    big, small = int_array(0, value, dtype=dtype), int_array(0, 1, dtype=dtype)
    offsets = int_array(0, 1, 2, dtype=dtype)
    text = f"is {value}; expected less than {most}"
    assert_raises(ValueError, f"CSC: edge_ids[1] {text}", CSC, offsets, small, edge_ids=big)
    assert_raises(ValueError, f"CSC: src[1] {text}", CSC.from_coo, big, small)
    assert_raises(ValueError, f"CSC: dst[1] {text}", CSC.from_coo, small, big)
    assert_raises(ValueError, f"CSC: edge_ids[1] {text}", CSC.from_coo, small, small, edge_ids=big)
    assert_raises(ValueError, f"CSC: src[1] {text}", CSC.from_edge_index, np.stack([big, small]))
    text = f"CSC: src[1] is {value}; expected 0 <= src < num_src_nodes = 5"
    assert_raises(ValueError, text, CSC.from_coo, big, small, 5, 5)
    text = f"Segments: index[1] is {value}; expected 0 <= index < num_segments = 3"
    assert_raises(ValueError, text, Segments, big, 3)


ENDS = np.array([0, 1]), np.array([1, 0])
MANY = 2561
BEYOND_MEMORY = {
    "CSC: num_dst_nodes": lambda: CSC.from_coo(*ENDS, 2, MANY),
    "CSC: num_src_nodes": lambda: CSC.from_coo(*ENDS, MANY, 2).prepare(),
    "CSC: num_edges": lambda: CSC.from_coo(*ENDS, 2, 2, ENDS[0], MANY).prepare(),
    "CSC: num_edges of edges in order": lambda: CSC(np.array([0, 1, 2]), ENDS[0], 2, None, MANY).prepare(),
    "CSC: num_dst_nodes of an edge_index": lambda: CSC.from_edge_index(np.stack(ENDS), MANY),
    "CSC: num_dst_nodes of the largest index": lambda: CSC.from_coo(ENDS[0], ENDS[0] * (MANY - 1)),
    "EdgeGraph: num_nodes": lambda: EdgeGraph(*ENDS, MANY),
    "EdgeGraph: num_nodes of sorted edges": lambda: EdgeGraph.from_unsorted(*ENDS, MANY),
    "Segments: num_segments": lambda: Segments(ENDS[0], MANY),
}


@pytest.mark.parametrize("name", BEYOND_MEMORY)
def test_sizes_beyond_memory_are_refused(name, monkeypatch):
    """Graphs larger than the machine's memory raise MemoryError before an allocation, which Linux might grant."""
    text = f"{name.partition(' of ')[0]} is 2561, whose arrays take 40976 bytes; expected at most 40960, the memory of"
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 10}.__getitem__)
    with pytest.raises(MemoryError, match=f"^{text} this machine$"):
        BEYOND_MEMORY[name]()


def test_sizes_within_memory_are_accepted(monkeypatch):
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 10}.__getitem__)
    assert EdgeGraph(*ENDS, 2559).num_nodes == 2559
