"""Graphs in torch's checkpoints: safe loading stays as safe as torch's own, and graphs are checked as they are read."""

import pickle
import pickletools
import subprocess
import sys
import textwrap

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import trigraph.torch as tt  # noqa: E402
from trigraph import CSC, EdgeGraph, Segments  # noqa: E402

GRAPHS = {
    "CSC": lambda: CSC(np.array([0, 2, 3]), np.array([0, 1, 1]), 3, np.array([1, 0, 1]), 2),
    "EdgeGraph": lambda: EdgeGraph(np.array([0, 0, 1, 2]), np.array([1, 2, 0, 0]), 3),
    "Segments": lambda: Segments(np.array([1, 0, 1], np.int32), 3),
}


def test_the_import_allows_nothing_of_numpys():
    """An object array over bytes of a file makes NumPy follow addresses that the file names: torch refuses it."""
    script = """
        import io, pickle, zipfile
        import numpy as np
        import torch

        class Attack:
            def __reduce__(self):
                return np.ndarray, ((1,), np.dtype("O"), b"A" * 8)

        class Harmless:
            def __reduce__(self):
                return bytes, ([65],)

        def load(value):
            file = io.BytesIO()
            torch.save(value, file)
            file.seek(0)
            torch.load(file, weights_only=True)

        before = set(torch.serialization.get_safe_globals())
        import trigraph.torch
        added = set(torch.serialization.get_safe_globals()) - before
        print(sorted(f"{a.__module__}.{a.__qualname__}" for a in added))
        for value in (Attack(), Harmless(), np.ones(2), np.dtype("f8")):
            try:
                load(value)
            except pickle.UnpicklingError as error:
                print("refused")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    added, *refused = done.stdout.splitlines()
    assert added == "['trigraph.torch.graphs.GraphTensors', 'trigraph.torch.graphs.rebuilt']"
    assert refused == ["refused"] * 4


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_in_checkpoints(name, tmp_path):
    graph = GRAPHS[name]()
    torch.save({"graph": graph, "apart": tt.GraphTensors.of(graph)}, tmp_path / "checkpoint.pt")
    again = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    for found in (again["graph"], again["apart"].graph(), pickle.loads(pickle.dumps(graph))):
        assert repr(found).replace("torch.int", "int") == repr(graph)
        made, expected = tt.GraphTensors.of(found), tt.GraphTensors.of(graph)
        assert made.numbers == expected.numbers
        for a, b in zip(made.tensors, expected.tensors, strict=True):
            assert (a is None) == (b is None)
            assert a is None or (a.dtype == b.dtype and torch.equal(a, b))
    program = pickletools.genops(pickle.dumps(graph, torch.serialization.DEFAULT_PROTOCOL))
    assert not any("numpy" in str(argument) for _, argument, _ in program)


@pytest.mark.parametrize("name", GRAPHS)
def test_checkpoints_of_impossible_graphs_are_refused(name, tmp_path):
    """Nothing checks a graph's indices later: kernels would read whatever memory they point at."""
    apart = tt.GraphTensors.of(GRAPHS[name]())
    place = {"CSC": 1, "EdgeGraph": 3, "Segments": 0}[name]  # indices, src, index
    apart.tensors = [t if i != place else t + 1000 for i, t in enumerate(apart.tensors)]
    torch.save(apart, tmp_path / "apart.pt")
    with pytest.raises(ValueError, match=r"is 100[01]; expected 0 <= |is not sorted"):
        torch.load(tmp_path / "apart.pt", weights_only=True)
    apart = tt.GraphTensors.of(GRAPHS[name]())
    apart.numbers = [n + 1 for n in apart.numbers]
    torch.save(apart, tmp_path / "numbers.pt")
    with pytest.raises(ValueError, match=f"are not those of a {name}"):
        torch.load(tmp_path / "numbers.pt", weights_only=True)


class Forged:
    """A graph as `torch.save` writes it, with an index that is out of range."""

    def __reduce__(self):
        make, (name, arguments) = GRAPHS["CSC"]().__reduce_ex__(torch.serialization.DEFAULT_PROTOCOL)
        return make, (name, (arguments[0], arguments[1] + 1000, *arguments[2:]))


def test_a_checkpoint_with_indices_out_of_range_is_refused(tmp_path):
    torch.save(Forged(), tmp_path / "forged.pt")
    with pytest.raises(ValueError, match=r"^CSC: indices\[0\] is 1000; expected 0 <= indices < num_src_nodes = 3"):
        torch.load(tmp_path / "forged.pt", weights_only=True)
