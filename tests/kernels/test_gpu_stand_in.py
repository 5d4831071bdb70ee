"""Tests of the device code with a stand-in for CuPy: devices, streams, captures, synchronisation, launch counts."""

import cupy_stand_in
import numpy as np
import pytest
import table_calls
from cupy_stand_in import DeviceMisuse, asarray, ndarray, simulate_capture
from table_calls import (
    FUNCTIONS,
    GRAPHS,
    OPERATORS,
    OPS_WITH_BWD3,
    compute_fields,
    draw_operator_arguments,
    map_fields_to_arrays,
    select_graph_arguments,
)

from trigraph.backends.choice import is_bwd3_native, supports_bwd3
from trigraph.gpu import sums
from trigraph.graphs import to_device
from trigraph.table import NAMED, SYMBOLS


def draw_host_and_device_arguments(op, **sizes):
    """Return random arguments of an operator on the host, and copies on the device."""
    values = draw_operator_arguments(op, np.float32, **sizes)
    return values, {name: to_device(value) for name, value in values.items()}


@pytest.fixture
def stand_in_cupy(monkeypatch, tmp_path):
    return cupy_stand_in.install_cupy(monkeypatch, tmp_path)


@pytest.mark.parametrize(
    "name", [op.name for op in OPS_WITH_BWD3 if supports_bwd3("gpu", op, draw_operator_arguments(op))]
)
def test_results_equal_gpu_host_bitwise(stand_in_cupy, name):
    """Results are on the arrays' device, whichever device is current, and bitwise identical to those of gpu-host.

    Calls with prepared graphs never synchronise, with or without long rows, and can therefore be captured.
    """
    for device, sizes in ((0, {"num_positions": 3000, "num_triplets": 3000}), (1, {})):
        with stand_in_cupy.cuda.Device(device):
            values, on_device = draw_host_and_device_arguments(NAMED[name], **sizes)
            for graph in select_graph_arguments(NAMED[name], on_device).values():
                graph.prepare()
        expected = map_fields_to_arrays(NAMED[name], FUNCTIONS[name](**values, backend="gpu-host"))
        with simulate_capture():
            results = map_fields_to_arrays(NAMED[name], FUNCTIONS[name](**on_device))
        assert stand_in_cupy.cuda.Device().id == 0
        with stand_in_cupy.cuda.Device(device):
            for field, array in expected.items():
                assert (array is None) == (results[field] is None)
                assert array is None or results[field].device.id == device
                assert array is None or results[field].get().tobytes() == array.tobytes(), field


@pytest.mark.parametrize("graph", ["csc", "edges", "triplets"])
def test_graphs_prepare_on_a_noncurrent_device(stand_in_cupy, graph):
    values = GRAPHS[graph]({"num_nodes": 5, **dict.fromkeys(SYMBOLS, 5)}, np.int32, np.random.default_rng(0))
    for value in values.values() if isinstance(values, dict) else (values,):
        function, arguments = value.__reduce__()
        with stand_in_cupy.cuda.Device(1):
            on_device = [to_device(a) for a in arguments]
        graph = function(*on_device)
        assert graph.device == "cuda:1"
        assert graph.prepare() is not None


def test_new_graphs_are_ready_for_other_streams(stand_in_cupy):
    """Another stream may use a new graph immediately, because constructing and preparing a graph synchronises."""
    for op in (op for op in OPERATORS.values() if op.graph_kind):
        values, on_device = draw_host_and_device_arguments(op)
        with stand_in_cupy.cuda.Stream():
            graphs = {n: to_device(graph) for n, graph in select_graph_arguments(op, values).items()}
            for graph in graphs.values():
                graph.prepare()
        compute_fields(op, {**on_device, **graphs})


@pytest.mark.usefixtures("stand_in_cupy")
def test_index_arrays_give_warnings():
    """An index array in place of a graph object causes a warning, because each call sorts it and synchronises."""
    op = OPERATORS["interaction_bilinear_fwd"]
    _, on_device = draw_host_and_device_arguments(op)
    expected = compute_fields(op, on_device)
    with pytest.warns(RuntimeWarning, match="triplets is an index array on a device") as caught:
        results = compute_fields(op, {**on_device, "triplets": on_device["triplets"].index})
    assert [w.filename for w in caught] == [table_calls.__file__]
    assert results["m_ca"].get().tobytes() == expected["m_ca"].get().tobytes()


def test_stand_in_reports_device_misuse(stand_in_cupy):
    """The stand-in raises an error for each misuse that would cause wrong results or an error on a device."""
    x = asarray(np.ones(3))
    with stand_in_cupy.cuda.Device(1), pytest.raises(DeviceMisuse, match="device 0 is used while device 1"):
        x + x
    with stand_in_cupy.cuda.Stream():
        y = x + x
    with pytest.raises(DeviceMisuse, match="another stream"):
        y + y
    with simulate_capture(), pytest.raises(DeviceMisuse, match="captured"):
        float(x.sum())


@pytest.mark.usefixtures("stand_in_cupy")
def test_sum_of_many_rows_needs_several_launches(monkeypatch):
    """A sum over more than 16 million rows exceeds the largest grid, so it is divided among several launches."""
    x, total = (ndarray(np.empty(shape, np.float32)) for shape in ((sums.MAX_LAUNCH_ROWS + 256, 1), 1))
    cupy_stand_in.state.dry = True
    before = cupy_stand_in.state.launches
    sums.sum_rows(sums.KernelLauncher("gno", x), x, total)
    assert cupy_stand_in.state.launches - before == 4
    monkeypatch.setattr(sums, "MAX_LAUNCH_ROWS", len(x))
    with pytest.raises(DeviceMisuse, match="more than a device grants"):
        sums.sum_rows(sums.KernelLauncher("gno", x), x, total)


# Maximum numbers of kernel launches (trigraph's and CuPy's) for a molecule, by derivative order. A launch takes
# microseconds of host time, which small calls cannot hide. Products with a transposed matrix first copy the matrix.
MAX_LAUNCHES = {
    "gno_kernel": (2, 11, 17),
    "gno_aggregate": (1, 2, 3),
    "gno_message": (1, 8, 12),
    "radial_basis": (1, 4, 4, 3),
    "agg_edge_to_edge": (4, 11, 12, 10),
    "mha_gat_n2n": (2, 6, 9),
    "agg_weighted_n2n": (1, 3, 5),
    "basis_embedding_radial": (2, 4, 8),
    "basis_embedding_spherical": (1, 5, 7),
    "basis_embedding_triplets": (3, 10, 19),
    "interaction_bilinear": (4, 9, 16),
}
MOLECULE = dict.fromkeys(("num_nodes", "num_src_nodes", "num_dst_nodes", "num_outputs"), 5)
MOLECULE |= dict.fromkeys(("num_edges", "num_positions", "num_inputs"), 20) | {"num_triplets": 60}


@pytest.mark.usefixtures("stand_in_cupy")
def test_launches_do_not_grow_with_the_batch():
    """A batch of 256 molecules needs as many launches as one molecule, plus at most one for a sum over all edges."""
    for name, op in NAMED.items():
        if op.order > 2 and not is_bwd3_native("gpu", name):
            continue
        counts = []
        symbols = {*op.definition.symbols, *(op.graph_kind.sizes if op.graph_kind else ())}
        for molecules in (1, 256):
            sizes = {s: n * molecules for s, n in MOLECULE.items() if s in symbols}
            _, values = draw_host_and_device_arguments(op, **sizes)
            for graph in select_graph_arguments(op, values).values():
                graph.prepare()
            before, cupy_stand_in.state.dry = cupy_stand_in.state.launches, True
            compute_fields(op, values)
            counts.append(cupy_stand_in.state.launches - before)
            cupy_stand_in.state.dry = False
        extra_launches = any(f.name in ("params", "weights") for f in op.fields) + (name == "radial_basis_bwd3")
        assert counts[0] <= MAX_LAUNCHES[op.definition.name][op.order], name
        assert counts[1] <= counts[0] + extra_launches, name
