"""Tests that all contenders in the benchmarks of whole models compute the same results."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")

from trigraph.benchmarks import cli, models, run  # noqa: E402
from trigraph.benchmarks.measure import compute_relative_error, convert_to_numpy, is_missing_package  # noqa: E402
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
TRAINING = next(p for p in models.PROGRAMS if p.name == "gat-minibatches-800")
ACCURATE = "dimenet-copper-training"  # needs all basis functions, because PyTorch Geometric loses digits without them
# Compilation takes a minute per model, and the derivation of all basis functions half a minute.
CONTENDERS = [
    pytest.param(
        *(program, name),
        marks=[pytest.mark.slow] * ("-" in name or program.name == ACCURATE),
        id=f"{program.name}-{name}",
    )
    for program in models.PROGRAMS
    for name in list(program.contenders)[1:]
]

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch_geometric uses deprecated torch names


def shrink_sizes(program):
    small = {n: min(SMALL_SIZES.get(n, 90), v) for n, v in program.sizes.items()}
    basis = {n: v for n, v in program.sizes.items() if n in ("num_spherical", "num_radial")}
    return small | basis if program.name == ACCURATE else small


@pytest.mark.parametrize(("program", "other"), CONTENDERS)
def test_contenders_compute_the_same(program, other):
    results = []
    for name in ("trigraph", other):
        try:
            call = program.make_contender_call(name, shrink_sizes(program), "float32")
        except Exception as error:
            if not is_missing_package(error):
                raise
            pytest.skip(str(error))
        results.append({n: convert_to_numpy(v) for n, v in call().items()})
        assert {v.dtype.name for v in results[-1].values()} == {"float32"}
        assert all(np.linalg.norm(v) > 0 for v in results[-1].values())
    assert compute_relative_error(*results[::-1]) <= run.compute_peer_tolerance("float32")


def test_programs_are_consistent():
    for program in models.PROGRAMS:
        first, *_ = program.contenders.values()
        assert not first.peer
        assert {*program.small} <= {*program.sizes}
        pickle.dumps(program)
        on_device = [n for n, contender in program.contenders.items() if contender.device]
        for device in (False, True):
            chosen = run.Options(1, 1, "full", device=device).select_contenders(program)
            assert chosen == [n for n in program.contenders if device or n not in on_device]
        assert run.Options(1, 1, "full", ("pyg", *on_device)).select_contenders(program) in ([], ["pyg"])


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
    monkeypatch.setattr(run, "PROGRAMS", (replace(TRAINING, small=shrink_sizes(TRAINING)),))
    arguments = ["--workload", "gat-minibatches-800", "--size", "small", "--repeat", "1", "--threads", "1"]
    ran = CliRunner().invoke(cli.bench, [*arguments, "--out", str(tmp_path)], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    (path,) = tmp_path.glob("*.json")
    (entry,) = json.loads(path.read_text())["results"]
    own, peer = entry["contenders"]["trigraph"], entry["contenders"]["pyg"]
    assert min(own["median_s"], peer["median_s"]) > 0
    assert peer["relative_error"] <= run.compute_peer_tolerance("float32")
    assert entry["sizes"]["num_edges"] == 90
