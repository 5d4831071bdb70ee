"""The checks of `trigraph qualify` by the lines that run on a device, with the stand-in for CuPy."""

import contextlib
import types

import cupy_stand_in
import numpy as np
import pytest
from cupy_stand_in import asarray

from trigraph.benchmarks.qualify import cases
from trigraph.benchmarks.qualify.part import Notes, read
from trigraph.benchmarks.qualify.place import Device
from trigraph.benchmarks.qualify.stages import checks
from trigraph.benchmarks.qualify.stages import torch as torch_stage
from trigraph.table import OPERATORS
from trigraph.verification import tolerances

NAMES = ("agg_weighted_n2n_bwd", "mha_gat_n2n_fwd", "agg_edge_to_edge_fwd", "interaction_bilinear_fwd")


class Stream(cupy_stand_in.Stream):
    """With a graph of the calls that it captured, which nothing replays."""

    def __init__(self, non_blocking):
        super().__init__()
        assert non_blocking

    def begin_capture(self):
        self.captured = True

    def end_capture(self):
        self.captured = False
        return types.SimpleNamespace(launch=lambda stream: None)


@pytest.fixture
def device(monkeypatch, tmp_path):
    """The device, with what the stand-in for CuPy needs besides."""
    cupy = cupy_stand_in.install(monkeypatch, tmp_path)
    cupy.asnumpy = lambda array: np.asarray(array.get() if hasattr(array, "get") else array)
    cupy.take = lambda array, index, axis: asarray(np.take(array.get(), index.get(), axis))
    cupy.cuda.Stream = Stream
    cupy.cuda.MemoryPool = lambda: types.SimpleNamespace(malloc=None)
    cupy.cuda.using_allocator = lambda malloc: contextlib.nullcontext()
    monkeypatch.setattr(
        cupy_stand_in.Device, "synchronize", lambda self: cupy_stand_in.state.stream.synchronize(), False
    )
    monkeypatch.setattr(checks, "_names", lambda place, names=checks.EVERY_OPERATOR: [n for n in NAMES if n in names])
    return Device()


@pytest.mark.parametrize("check", ["poisoned", "views", "extremes"])
def test_checks(device, check, tmp_path):
    notes = Notes(tmp_path / "notes.json")
    checks.run(check, device, notes)
    lines = read(notes.path)
    assert {line["passed"] for line in lines} == {True}, lines


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
@pytest.mark.parametrize("check", ["derivatives", "half precision", "layers"])
def test_checks_of_torch(monkeypatch, check, tmp_path):
    """As far as the stand-ins go: no streams, captures, compilation, or memory."""
    torch_stand_in = pytest.importorskip("torch_stand_in")
    cupy, _ = torch_stand_in.install(monkeypatch, tmp_path)
    cupy.asnumpy = lambda array: np.asarray(array.get() if hasattr(array, "get") else array)
    notes = Notes(tmp_path / "notes.json")
    torch_stage.run(check, Device(), notes)
    lines = read(notes.path)
    assert {line["passed"] for line in lines} == {True}, lines
    assert cupy_stand_in.state.launches > 0


def test_extremes_are_judged_by_the_table():
    """Numbers one rounding off pass, whatever error gpu-host's happen to have; a lost term does not."""
    field = OPERATORS["agg_weighted_n2n_fwd"].fields[0]
    right = np.linspace(1, 2, 32, dtype=np.float32)
    exact, most = np.stack([right, 0 * right, right]), tolerances.accuracy(True, 20)
    assert checks._as_good(field, np.nextafter(right, np.float32(3)), right, exact, most)
    assert not checks._as_good(field, right * np.float32(1.001), right, exact, most)
    assert not checks._as_good(field, np.where(right < 1.5, right, np.nan), right, exact, most)


def test_a_capture_that_replays_nothing_is_found(device, tmp_path):
    notes = Notes(tmp_path / "notes.json")
    checks.run("capture", device, notes)
    assert [line["passed"] for line in read(notes.path)] == [False] * len(NAMES)


def test_memory_that_is_not_written_is_found(device, tmp_path, monkeypatch):
    """A result that a call leaves as it was."""
    real = checks.called

    def leaves(op, values, panel, out=None):
        found = real(op, values, panel, out)
        first = next(iter(found))
        return {**found, first: device.xp.empty(found[first].shape, found[first].dtype)}

    monkeypatch.setattr(checks, "called", leaves)
    notes = Notes(tmp_path / "notes.json")
    checks.run("poisoned", device, notes)
    assert False in {line["passed"] for line in read(notes.path)}


@pytest.mark.parametrize("family", ["gno", "gat", "dimenet"])
def test_sanitizer_cases(device, family):
    """They run with arrays of a device, and their results are compared on the host."""
    assert all(type(array) is np.ndarray for array in cases.run(family, device).values())
