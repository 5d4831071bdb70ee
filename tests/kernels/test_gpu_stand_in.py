"""The device path with a stand-in for CuPy (see cupy_stand_in.py): devices, streams, captures and waits."""

import numpy as np
import pytest
import table_calls
from cupy_stand_in import Misuse, asarray, capturing, moved, moved_call
from table_calls import FUNCTIONS, GRAPHS, OPERATORS, call, fields, graphs_of

from trigraph.table import SYMBOLS


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("name", OPERATORS)
def test_bits_of_gpu_host(cupy, name, device):
    """The device of the arrays is entered, whichever is the current one; results are there, too."""
    with cupy.cuda.Device(device):
        values, on_device = moved_call(OPERATORS[name])
    expected = fields(OPERATORS[name], FUNCTIONS[name](**values, panel="gpu-host"))
    found = fields(OPERATORS[name], FUNCTIONS[name](**on_device))
    assert cupy.cuda.Device().id == 0
    with cupy.cuda.Device(device):
        for field, array in expected.items():
            assert (array is None) == (found[field] is None)
            assert array is None or found[field].device.id == device
            assert array is None or found[field].get().tobytes() == array.tobytes(), field


@pytest.mark.parametrize("graph", ["csc", "edges", "triplets"])
def test_graphs_of_another_device(cupy, graph):
    values = GRAPHS[graph]({"num_nodes": 5, **dict.fromkeys(SYMBOLS, 5)}, np.int32, np.random.default_rng(0))
    for value in values.values() if isinstance(values, dict) else (values,):
        function, arguments = value.__reduce__()
        with cupy.cuda.Device(1):
            given = [moved(a) for a in arguments]
        graph = function(*given)
        assert graph.device == "cuda:1"
        assert graph.prepare() is not None


@pytest.mark.parametrize("name", [name for name, op in OPERATORS.items() if op.graph])
def test_a_graph_is_done_when_it_is_there(cupy, name):
    """Another stream may use a graph, and its order of the backward, as soon as they are there."""
    op = OPERATORS[name]
    values, on_device = moved_call(op)
    with cupy.cuda.Stream():
        graphs = {n: moved(graph) for n, graph in graphs_of(op, values).items()}
        for graph in graphs.values():
            graph.prepare()
    call(op, {**on_device, **graphs})


@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize("name", OPERATORS)
def test_calls_can_be_captured(name):
    """With graphs that have been prepared, with and without long rows: a call waits for nothing."""
    op = OPERATORS[name]
    for sizes in ({}, {"num_positions": 3000, "num_triplets": 3000}):
        _, on_device = moved_call(op, **sizes)
        for graph in graphs_of(op, on_device).values():
            graph.prepare()
        with capturing():
            call(op, on_device)


@pytest.mark.usefixtures("cupy")
def test_an_index_array_is_warned_of():
    """It is sorted and checked at each call, for which the host waits; a graph object is so once."""
    op = OPERATORS["interaction_bilinear_fwd"]
    _, on_device = moved_call(op)
    expected = call(op, on_device)
    with pytest.warns(RuntimeWarning, match="triplets is an index array on a device") as caught:
        found = call(op, {**on_device, "triplets": on_device["triplets"].index})
    assert [w.filename for w in caught] == [table_calls.__file__]
    assert found["m_ca"].get().tobytes() == expected["m_ca"].get().tobytes()


def test_the_stand_in_is_strict(cupy):
    """What it is for: each of these would be a wrong number on a device, or none."""
    x = asarray(np.ones(3))
    with cupy.cuda.Device(1), pytest.raises(Misuse, match="device 0 is used while device 1"):
        x + x
    with cupy.cuda.Stream():
        y = x + x
    with pytest.raises(Misuse, match="another stream"):
        y + y
    with capturing(), pytest.raises(Misuse, match="captured"):
        float(x.sum())
