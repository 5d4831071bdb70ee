"""Tests that all contenders in the benchmarks of whole models compute the same results."""

import importlib.util
import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")

from trigraph.benchmarks import cli, models, run  # noqa: E402
from trigraph.benchmarks.device_workloads import DEVICE  # noqa: E402
from trigraph.benchmarks.measure import compute_relative_error, convert_to_numpy  # noqa: E402
from trigraph.graphs.edge_graph import EdgeGraph  # noqa: E402

WIDTHS = {"hidden_channels": 8, "num_blocks": 2, "int_emb_size": 4, "basis_emb_size": 3, "out_emb_channels": 8}
SMALL_SIZES = {
    **models.SMALL_SLAB,
    "nx": 3,  # smaller cells have collinear atoms, where PyTorch Geometric's angles are not differentiable
    "ny": 3,
    **models.SMALL_BATCH,
    **WIDTHS,
    "batches": 4,
    "cells": 2,
    "num_spherical": 2,
    "num_radial": 2,
    "num_nodes": 20,
    "num_edges": 90,
}
PROGRAMS = {f"{p.name}: {p.summary}": p for p in models.PROGRAMS}
TRAINING = next(p for p in models.PROGRAMS if p.name == "gat-training")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch_geometric uses deprecated torch names


def shrink_sizes(program):
    return {n: min(SMALL_SIZES.get(n, 90), v) for n, v in program.sizes.items()}


@pytest.mark.parametrize(
    "program",
    # Compilation takes a minute per model.
    [pytest.param(p, marks=[pytest.mark.slow] * any("compiled" in c for c in p.contenders)) for p in PROGRAMS.values()],
    ids=list(PROGRAMS),
)
def test_contenders_compute_the_same(program):
    expected = None
    for name, contender in program.contenders.items():
        if any(importlib.util.find_spec(m) is None for m in contender.requires):
            continue
        call = program.make_contender_call(name, shrink_sizes(program), "float32")
        got = {n: convert_to_numpy(v) for n, v in call().items()}
        assert {v.dtype.name for v in got.values()} == {"float32"}
        assert all(np.linalg.norm(v) > 0 for v in got.values())
        expected = expected or got
        assert compute_relative_error(got, expected) <= run.compute_peer_tolerance("float32"), name


@pytest.mark.slow
@pytest.mark.parametrize(
    "program", [p for p in DEVICE if "trigraph-captured" in p.contender_names], ids=lambda program: program.name
)
def test_captured_contenders_compute_the_same(program):
    names = [n for n in ("trigraph", "trigraph-captured", "pyg-compiled") if n in program.contenders]
    results = (program.make_contender_call(name, shrink_sizes(program), "float32")() for name in names)
    expected, *others = ({n: convert_to_numpy(v) for n, v in each.items()} for each in results)
    for got in others:
        assert compute_relative_error(got, expected) <= run.compute_peer_tolerance("float32")


def test_programs_are_consistent():
    for program in models.PROGRAMS:
        first, *_ = program.contenders.values()
        assert not first.peer
        assert {*program.small} <= {*program.sizes}
        pickle.dumps(program)
        several = (run.Options(1, 1, "float32", "full", peers) for peers in (False, True))
        alone, beside = (options.select_contenders(program) for options in several)
        assert beside == [*program.contenders]
        assert "pyg" not in alone


def test_peer_equals_pyg_forward(monkeypatch):
    dimenet = pytest.importorskip("torch_geometric.nn.models.dimenet")
    ase = pytest.importorskip("ase.build")
    atoms = ase.molecule("C6H6")
    edges = EdgeGraph.from_ase(atoms, models.CUTOFF)
    edge_index = torch.tensor(np.stack([edges.graph.src, edges.graph.dst]))
    ji, kj = (torch.tensor(a) for a in edges.graph.triplets("edge"))
    (src, dst), z = edge_index, torch.tensor(atoms.numbers)
    pos = torch.tensor(atoms.positions, dtype=torch.float32)
    indices = (dst, src, dst[ji], src[ji], src[kj], kj, ji)
    monkeypatch.setattr(dimenet, "radius_graph", lambda *args, **kwargs: edge_index)
    monkeypatch.setattr(dimenet, "triplets", lambda *args, **kwargs: indices)
    model = models.make_dimenet("pyg", "float32", **{n: SMALL_SIZES.get(n, 1) for n in models.WIDTHS})
    with torch.no_grad():
        own = model(z, pos)
        ours = models.compute_pyg_atom_energies(model, z, pos[src] - pos[dst], edge_index, ji, kj).sum(dim=0)
    assert own.abs().item() > 0
    torch.testing.assert_close(ours, own, rtol=1e-5, atol=0)


def test_slab_has_the_size_that_is_stated():
    pytest.importorskip("ase")
    graph = EdgeGraph.from_ase(models.build_atoms("slab", models.SLAB)[0], models.CUTOFF).graph
    assert graph.num_nodes == 96
    assert 45 < graph.num_edges / graph.num_nodes < 55
    assert graph.num_triplets("edge") == models.TRIPLETS


def test_bench_command_records_model_programs(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "ATTEMPTS", 1)
    monkeypatch.setattr(cli, "measure_peak_rates", lambda *arguments: {"float32": 1e9})
    monkeypatch.setattr(run, "PROGRAMS", (replace(TRAINING, small=shrink_sizes(TRAINING)),))
    arguments = ["--workload", "gat-training", "--size", "small", "--repeat", "1", "--threads", "1"]
    ran = CliRunner().invoke(cli.bench, [*arguments, "--out", str(tmp_path)], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    (path,) = tmp_path.glob("*.json")
    (entry,) = json.loads(path.read_text())["results"]
    own, peer = entry["contenders"]["trigraph"], entry["contenders"]["pyg"]
    assert peer["time_over_fast"] == peer["median_s"] / own["median_s"]
    assert peer["relative_error"] <= run.compute_peer_tolerance("float32")
    assert entry["sizes"]["num_edges"] == 90
