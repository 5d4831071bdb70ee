"""Graphs in torch's checkpoints: safe loading stays as safe as torch's own, and graphs are checked as they are read."""

import copy
import pickle
import pickletools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import trigraph.torch as tt  # noqa: E402
from trigraph import CSC, EdgeGraph, Segments  # noqa: E402

GRAPHS = {
    "CSC": lambda: CSC(np.array([0, 2, 3]), np.array([0, 1, 1]), 3, np.array([1, 0, 1]), 2),
    "EdgeGraph": lambda: EdgeGraph(np.array([0, 0, 1, 2]), np.array([1, 2, 0, 0]), 3),
    "Segments": lambda: Segments(np.array([1, 0, 1], np.int32), 3),
    "no edges": lambda: EdgeGraph(np.zeros(0, np.int32), np.zeros(0, np.int32), 3),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_in_checkpoints(name, tmp_path):
    """And in pickles and copies."""
    graph = GRAPHS[name]()
    values = (graph, tt.GraphTensors.of(graph))
    torch.save(values, tmp_path / "checkpoint.pt")
    again = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    for value in (*again, *pickle.loads(pickle.dumps(values)), *copy.deepcopy(values)):
        assert isinstance(value, (type(graph), tt.GraphTensors))
        found = value.graph() if isinstance(value, tt.GraphTensors) else value
        if found is value:
            assert repr(found) == repr(graph)
        made, expected = tt.GraphTensors.of(found), tt.GraphTensors.of(graph)
        assert made.numbers == expected.numbers
        for a, b in zip(made.tensors, expected.tensors, strict=True):
            assert (a is None) == (b is None)
            assert a is None or (a.dtype == b.dtype and torch.equal(a, b))
    program = pickletools.genops(pickle.dumps(graph, torch.serialization.DEFAULT_PROTOCOL))
    assert not any("numpy" in str(argument) for _, argument, _ in program)


@pytest.mark.parametrize("load_in_inference_mode", [False, True])
@pytest.mark.parametrize(("name", "place"), [("CSC", 1), ("EdgeGraph", 3), ("Segments", 0)])  # indices, src, index
def test_checkpoints_of_impossible_graphs_are_refused(name, place, load_in_inference_mode, tmp_path):
    """Nothing checks a graph's indices later: kernels would read whatever memory they point at."""
    apart = tt.GraphTensors.of(GRAPHS[name]())
    apart.tensors[place] = apart.tensors[place] + 1000
    torch.save(apart, tmp_path / "apart.pt")
    with (
        torch.inference_mode(load_in_inference_mode),
        pytest.raises(ValueError, match=r"is 100[01]; expected 0 <= |is not sorted"),
    ):
        torch.load(tmp_path / "apart.pt", weights_only=True)


class Forged:
    """What `torch.save` writes as a call of one of its own making."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


def test_forged_checkpoints_are_refused(tmp_path):
    """Safe loading calls what is allowed with any arguments."""
    out_of_range = r"^CSC: indices\[0\] is 1000; expected 0 <= indices < num_src_nodes = 3"
    make, (name, arguments) = GRAPHS["CSC"]().__reduce_ex__(torch.serialization.DEFAULT_PROTOCOL)
    impossible = name, (arguments[0], arguments[1] + 1000, *arguments[2:])
    apart = vars(tt.GraphTensors.of(GRAPHS["CSC"]()))
    for value, kind, text in (
        (Forged(make, impossible), ValueError, out_of_range),
        (Forged(make, ("eval", ())), ValueError, "^rebuilt: type_name is 'eval'; expected one of CSC"),
        (Forged(tt.GraphTensors, tuple(apart.values())), pickle.UnpicklingError, "GraphTensors"),
    ):
        torch.save(value, tmp_path / "forged.pt")
        with pytest.raises(kind, match=text):
            torch.load(tmp_path / "forged.pt", weights_only=True)
