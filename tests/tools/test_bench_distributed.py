"""The bench workload of divided graphs: its ranks give the same results, and none stays behind."""

import tempfile

import numpy as np
import pytest

from trigraph.benchmarks import distributed, run
from trigraph.benchmarks.calls import Unavailable
from trigraph.benchmarks.measure import relative_error
from trigraph.benchmarks.programs import make_program

pytest.importorskip("mpi4py")

(PROGRAM,) = distributed.PROGRAMS
SIZES = {**PROGRAM.sizes, **dict.fromkeys(PROGRAM.small, 90)}


@pytest.fixture(autouse=True)
def _folder(monkeypatch):
    """MPICH leaves files in the folder of temporary files."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield


def test_ranks_compute_the_same_and_end():
    results = {}
    for name, contender in PROGRAM.contenders.items():
        call = make_program(contender, SIZES, "float32")
        results[name] = {n: value() for n, value in call().items()}
        (ranks,) = (cell.cell_contents for cell in call.__closure__)
        process = ranks._process
        del call, ranks
        assert process.returncode == 0
    assert all(np.linalg.norm(v) > 0 for v in results["1 rank"].values())
    assert relative_error(results["2 ranks"], results["1 rank"]) <= run._tolerance("float32")


def test_without_mpiexec(monkeypatch):
    monkeypatch.setattr(distributed.shutil, "which", lambda *_, **__: None)
    with pytest.raises(Unavailable, match="mpiexec is not installed"):
        distributed.on_ranks(SIZES, "float32", 2)


def test_ranks_that_have_ended():
    ranks = distributed._Ranks(["true"])
    ranks._process.wait()
    with pytest.raises(RuntimeError, match="a rank has ended"):
        ranks.ask("step")
