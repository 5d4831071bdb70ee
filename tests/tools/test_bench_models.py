"""Benchmarks of whole models: do all contenders compute the same, and are costs and shares what they are said to be?"""

import importlib.util
import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("torch")
import torch

from trigraph.benchmarks import cli, models, run
from trigraph.benchmarks.calls import Unavailable
from trigraph.benchmarks.measure import Measurement, relative_error
from trigraph.benchmarks.programs import Contender, Program, make_program
from trigraph.benchmarks.worker import _to_numpy, shares
from trigraph.benchmarks.workloads import Target
from trigraph.graphs.edge_graph import EdgeGraph

OPTIONS = run.Options(threads=1, repeat=1, dtype="float32", size="full", peers=True)
WIDTHS = {"hidden_channels": 8, "num_blocks": 2, "int_emb_size": 4, "basis_emb_size": 3, "out_emb_channels": 8}
TINY = {**models.SMALL_SLAB, **WIDTHS, "num_spherical": 2, "num_radial": 2, "num_nodes": 20, "num_edges": 90}
PROGRAMS = {f"{p.name}: {p.summary}": p for p in models.PROGRAMS}

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch_geometric uses torch's own old names


def tiny(program):
    if program.name == "small-graphs":
        return program.sizes
    return {n: min(TINY.get(n, 90), v) for n, v in program.sizes.items()}


def results(call):
    return {n: _to_numpy(v) for n, v in call().items()}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=list(PROGRAMS))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_contenders_compute_the_same(program, dtype):
    expected = None
    for name, contender in program.contenders.items():
        if any(importlib.util.find_spec(m) is None for m in contender.requires):
            continue
        try:
            call = make_program(contender, tiny(program), dtype)
        except Unavailable:
            assert (name, dtype) == ("pyg", "float64")
            assert program.name.startswith("dimenet")
            continue
        got = results(call)
        assert {v.dtype.name for v in got.values()} == {dtype}
        assert all(np.linalg.norm(v) > 0 for v in got.values())
        expected = expected or got
        assert relative_error(got, expected) <= run._tolerance(dtype), name


def test_the_peer_is_the_forward_of_pytorch_geometric(monkeypatch):
    dimenet = pytest.importorskip("torch_geometric.nn.models.dimenet")
    ase = pytest.importorskip("ase.build")
    atoms = ase.molecule("C6H6")
    edges = EdgeGraph.from_ase(atoms, models.CUTOFF)
    edge_index = torch.tensor(np.stack([edges.graph.src, edges.graph.dst]))
    ji, kj = (torch.tensor(a) for a in edges.graph.triplets("edge"))
    (src, dst), z = edge_index, torch.tensor(atoms.numbers)
    pos = torch.tensor(atoms.positions, dtype=torch.float32)
    found = (dst, src, dst[ji], src[ji], src[kj], kj, ji)
    monkeypatch.setattr(dimenet, "radius_graph", lambda *args, **kwargs: edge_index)
    monkeypatch.setattr(dimenet, "triplets", lambda *args, **kwargs: found)
    model = models._dimenet("pyg", "float32", **{n: TINY.get(n, 1) for n in models.WIDTHS})
    with torch.no_grad():
        own = model(z, pos)
        ours = models.pyg_dimenet(model, z, pos[src] - pos[dst], edge_index, ji, kj)
    assert own.abs().item() > 0
    torch.testing.assert_close(ours, own, rtol=1e-5, atol=0)


def test_slab_has_the_size_that_is_stated():
    pytest.importorskip("ase")
    graph = EdgeGraph.from_ase(models._slab(models.SLAB, (1, 1)), models.CUTOFF).graph
    assert graph.num_nodes == 96
    assert 45 < graph.num_edges / graph.num_nodes < 55
    assert graph.num_triplets("edge") == models.TRIPLETS
    for structure, counts in models.GRAPHS.items():
        if structure != "random":
            small = models._small_graph(structure)
            assert (small.num_dst_nodes, small.num_edges) == counts


def test_shares_of_the_time():
    program = next(p for p in models.PROGRAMS if p.name == "torch-overhead")
    call = make_program(program.contenders["trigraph.torch"], {**program.sizes, **program.small}, "float32")
    call()
    assert 0.3 < shares(call)["operators"] <= 1
    x = torch.ones(500, 500)
    alone = shares(lambda: {"x": x @ x, "y": torch.nn.functional.linear(x, x, x[0])})
    assert alone["operators"] == 0
    assert 0.5 < alone["products"] <= 1

    def both():
        call()
        return {"x": torch.linalg.svd(x)[1]}

    assert 0 < shares(both)["operators"] < shares(call)["operators"]


@pytest.mark.parametrize("program", models.PROGRAMS)
def test_programs_are_honest(program):
    first, *_ = program.contenders.values()
    assert not first.peer
    assert first.work == 1
    assert {t.peer for t in program.targets} <= {*program.contenders}
    assert {*program.small} <= {*program.sizes}
    jobs = program.jobs(program.sizes, "float32", peers=True)
    assert [*jobs] == [*program.contenders]
    assert [j.profiled for j in jobs.values()] == [program.profiled] + [False] * (len(jobs) - 1)
    pickle.dumps(jobs)
    assert "pyg" not in program.jobs(program.sizes, "float32", peers=False)


def result(targets, **measured):
    contenders = {n: Contender(dict, n, work=4 if n == "large" else 1) for n in measured}
    program = Program("p", "models", "", contenders, {"n": 5}, {"n": 2}, targets)
    return run.ProgramResult(program, program.sizes, "float32", measured, (0, 0), None)


def test_verdicts():
    own, peer = Measurement((1.0, 2.0, 3.0), 10), Measurement((5.0,), 20)
    found = result((Target("pyg", time=2.5, memory=3.0), Target("own", rate=0.5)), own=own, pyg=peer)
    assert found.ratios("pyg") == (2.5, 2)
    assert [(v.what, v.met) for v in found.verdicts("pyg", OPTIONS)] == [("time", True), ("memory", False)]
    assert [(v.what, v.met) for v in found.verdicts("own", OPTIONS)] == [("rate", True)]
    slower = replace(found, measured={"own": Measurement((2.1,), 10), "pyg": peer})
    assert [v.met for v in slower.verdicts("own", OPTIONS)] == [False]
    assert [v.met for v in slower.verdicts("pyg", OPTIONS)] == [False, False]
    absent = replace(found, measured={"own": own, "pyg": Measurement(status="wrong")})
    assert absent.ratios("pyg") == (None, None)
    assert [v.met for v in absent.verdicts("pyg", OPTIONS)] == [None, None]
    without = replace(found, measured={"own": own})
    assert [v.met for v in without.verdicts("own", OPTIONS)] == [True]
    for other in (
        replace(found, sizes={"n": 2}).verdicts("pyg", OPTIONS),
        found.verdicts("pyg", replace(OPTIONS, dtype="float64")),
    ):
        assert other == []


def test_costs_are_compared_for_the_same_work():
    def flat(large):
        return result((Target("own", flat=1 / 1.15),), own=Measurement((1.0,), 10), large=Measurement((large,), 40))

    assert flat(4.4).ratios("large") == (pytest.approx(1.1), 1)
    assert [v.met for v in flat(4.4).verdicts("own", OPTIONS)] == [True]
    assert [v.met for v in flat(4.8).verdicts("own", OPTIONS)] == [False]
    assert [v.met for v in flat(3.2).verdicts("own", OPTIONS)] == [False]
    unknown = replace(flat(4.0), measured={"own": Measurement((1.0,), 10), "large": Measurement(status="failed")})
    assert [v.met for v in unknown.verdicts("own", OPTIONS)] == [None]


def test_tolerance_grows_with_the_sums_of_a_peer():
    eps = float(np.finfo("float32").eps)
    assert run._tolerance("float32", 90_000) == 300 * eps
    assert run._tolerance("float32", 10_000) == run._tolerance("float32") == 200 * eps


def test_what_a_contender_requires():
    with pytest.raises(Unavailable, match="no_such_module is not installed"):
        make_program(Contender(models.front_door, "", ("no_such_module",)), {}, "float32")


def test_families_and_names_choose():
    assert {p.name for p in run.find_programs(("models",), ())} == {
        "dimenet-energy-forces",
        "dimenet-energy-forces-training",
        "dimenet-molecule",
        "dimenet-size",
        "gat-training",
        "torch-overhead",
    }
    assert run.find_workloads(("models",), ()) == []
    assert len(run.find_programs((), ("small-graphs",))) == 4
    assert run.find_workloads((), ("small-graphs",)) == []
    assert run.find_programs(("gno",), ()) == []
    assert not {p.name for p in models.PROGRAMS} & {w.name for w in run.find_workloads((), ())}


def test_command_records_programs(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "ATTEMPTS", 1)
    program = next(p for p in models.PROGRAMS if p.name == "torch-overhead")
    monkeypatch.setattr(run, "PROGRAMS", (replace(program, profiled=True),))
    arguments = ["--workload", "torch-overhead", "--size", "small", "--repeat", "1", "--threads", "1"]
    ran = CliRunner().invoke(cli.bench, [*arguments, "--out", str(tmp_path)], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    assert "the rest in torch" in " ".join(ran.output.split())
    (path,) = tmp_path.glob("*.json")
    record = json.loads(path.read_text())
    assert record["results"] == []
    (entry,) = record["programs"]
    own, front = entry["contenders"]["trigraph.torch"], entry["contenders"]["front door"]
    assert 0 < own["share_of_operators"] <= 1
    assert own["share_of_products"] == 0
    assert own["time_over_fast"] == 1
    assert front["time_over_fast"] == front["median_s"] / own["median_s"]
    assert front["relative_error"] <= run._tolerance("float32")
    assert entry["sizes"]["num_edges"] == 20_000
