"""Tests of captured potentials that find neighbours in a (stand-in) CUDA graph, with kernels on gpu-host."""

import cupy_stand_in
import graph_stand_in
import numpy as np
import pytest
import torch
import torch_stand_in
from ase import units
from ase.build import bulk
from ase.md.verlet import VelocityVerlet
from expect_error import expect_error
from test_torch_captured import Springs, make_crystal_tensors, make_molecule_tensors, make_potential

import trigraph.ase
from trigraph.torch import Capacity, compile_potential
from trigraph.torch.potentials.capacity_search import PaddedNeighborSearch
from trigraph.torch.potentials.padding import PaddedBuffers


@pytest.fixture
def graphs_and_host_searches(monkeypatch):
    """Return the captured graphs, and a list to which each search on the host adds its number of atoms."""
    graphs, calls, search = graph_stand_in.install_cuda_graphs(monkeypatch), [], Springs.neighbors

    def record_host_search(model, pos, *args, **kwargs):
        calls.append(len(pos))
        return search(model, pos, *args, **kwargs)

    monkeypatch.setattr("trigraph.torch.potentials.potential.Potential.neighbors", record_host_search)
    return graphs, calls


def compute_checked_results(captured, model, *arguments, **keywords):
    """Assert that a captured potential agrees with the model; return the captured potential's results."""
    got, expected = (one.energy_forces_stress(*arguments, **keywords) for one in (captured, model))
    for a, b in zip(got, expected, strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            assert a.shape == b.shape
            assert torch.equal(a.isnan(), b.isnan())
            assert float((a - b).nan_to_num().abs().max()) <= 1e-12 * float(b.nan_to_num().abs().max().clamp(min=1.0))
    return got


def test_host_searches_only_if_graph_cannot(graphs_and_host_searches):
    """The host searches in the first two calls, and when the graph cannot; all results are correct."""
    _, calls = graphs_and_host_searches
    model, (z, pos, cell) = make_potential(), make_crystal_tensors()
    captured, exact = compile_potential(model, capture=True), make_potential()
    for step in range(8):
        pos = pos + 0.02 * torch.randn_like(pos)
        cell = cell * (1 + 0.001 * step)
        given = compile_potential(model, capture=True, capacity=captured.capacities or None)
        got = compute_checked_results(captured, exact, z, pos, None, cell)
        for a, b in zip(got, given.energy_forces_stress(z, pos, cell=cell), strict=True):
            assert step == 0 or torch.equal(a, b)
    assert calls.count(len(z)) == 2 + 8 + 8  # 2 searches by `captured`, 8 by `exact`, 8 by new potentials
    assert len(captured.capacities) == 1
    calls.clear()

    def count_host_searches(*arguments, **keywords):
        before = len(calls)
        got = captured.energy_forces_stress(*arguments, **keywords)
        found = len(calls) - before
        for a, b in zip(got, exact.energy_forces_stress(*arguments, **keywords), strict=True):
            assert float((a - b).abs().max()) <= 1e-12 * float(b.abs().max().clamp(min=1.0))
        return found

    flags = torch.tensor([True, True, False])
    assert count_host_searches(z, pos, cell=cell) == 0
    assert count_host_searches(z, pos, torch.zeros_like(z), cell[None], True) == 0
    assert count_host_searches(z, pos, cell=cell, pbc=torch.tensor(True)) == 0
    # Repeat with permuted atoms and other periodic directions, passed as a tensor, as a list, or by default.
    for other in ({"pbc": flags}, {"pbc": flags.tolist()}, {}):
        assert [count_host_searches(z.roll(1), pos, cell=cell, **other) for _ in range(4)] == [1, 1, 0, 0]
        assert [count_host_searches(z, pos, cell=cell, **other) for _ in range(4)] == [1, 1, 0, 0]
    before = captured.capacities[-1]
    tight = 0.6 * cell  # this cell has more edges than the capacity
    assert [count_host_searches(z, 0.6 * pos, cell=tight) for _ in range(3)] == [1, 0, 0]
    assert captured.capacities[-1].edges > before.edges
    assert [count_host_searches(z, 1.4 * pos, cell=1.4 * cell) for _ in range(3)] == [
        0,
        1,
        0,
    ]  # call 2 selects a smaller capacity
    assert captured.capacities[-1] == before
    # After a change of the model, the host searches again.
    model.cutoff = exact.cutoff = 3.1
    assert [count_host_searches(z, pos, cell=cell) for _ in range(3)] == [1, 0, 0]
    with expect_error("ValueError: EdgeGraph: positions[3] is ..."):
        captured.energy_forces_stress(z, torch.where(torch.arange(len(z))[:, None] == 3, torch.nan, pos), cell=cell)
    together = pos.clone()
    together[1] = pos[0] + cell[0]
    with expect_error("ValueError: ..."):
        captured.energy_forces_stress(z, together, cell=cell)
    assert count_host_searches(z, pos, cell=cell) == 0


def test_captured_searches_are_correct_for_batches(graphs_and_host_searches):
    """Results are correct for structures without cells, and if atoms are reassigned to other structures."""
    _, calls = graphs_and_host_searches
    model = Springs()
    captured = compile_potential(model, capture=True)
    z, pos, batch = make_molecule_tensors("C6H6", "H2O", "CH4")
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(0))
    for several in (batch, batch[order], batch):
        for step in range(4):
            calls.clear()
            compute_checked_results(captured, model, z, pos, several)
            assert len(calls) == 1 + (step < 2)
            pos = pos + 0.01 * torch.randn_like(pos)
    model.max_num_neighbors = 4
    for _ in range(4):
        compute_checked_results(captured, model, z, pos, batch)


def test_results_beyond_capacity_are_nan(graphs_and_host_searches):
    """If edges exceed the capacity, replayed results are NaN until the host has searched."""
    model, (z, pos, cell) = make_potential(), make_crystal_tensors()
    captured = compile_potential(model, capture=True)
    for _ in range(4):
        captured.energy_forces_stress(z, pos, cell=cell)
    (padding,) = captured._paddings.values()
    (replay, _) = next(iter(captured._replays.values()))
    assert padding.search.load_arguments(z, 0.5 * pos, None, 0.5 * cell, None)
    padding.search.start_search()
    results = replay()
    assert padding.search.wait_for_result()[0]
    assert all(bool(t.isnan().all()) for t in results)
    compute_checked_results(captured, model, z, pos, None, cell)


@pytest.mark.parametrize("skin", [0.0, 0.3])
@pytest.mark.usefixtures("graphs_and_host_searches")
def test_captured_ase_dynamics_agree_with_eager(skin):
    """Captured dynamics agree with eager dynamics, use a single capacity, and search in a graph if there is no skin."""
    model, positions = make_potential(), []
    for options in ({}, {"capture": True}):
        atoms = bulk("Cu", cubic=True)
        atoms.rattle(0.1, seed=0)
        atoms.calc = trigraph.ase.Calculator(model, skin=skin, **options)
        VelocityVerlet(atoms, 1 * units.fs).run(6)
        positions.append(atoms.positions)
        atoms.get_stress()
    assert np.abs(positions[0] - positions[1]).max() < 1e-10
    assert len(atoms.calc.model.capacities) == 1
    assert (atoms.calc.model._search_padding is None) == (skin > 0)


def test_device_search_never_synchronizes(monkeypatch, tmp_path):
    """A search never makes the host wait, and finds the same neighbours as on the CPU."""
    model, (z, pos, cell) = Springs(), make_crystal_tensors(torch.float32)
    neighbors, flags = model.neighbors(pos, cell=cell), np.ones((1, 3), bool)
    graph_stand_in.install_cuda_graphs(monkeypatch)
    torch_stand_in.install_torch_and_cupy(monkeypatch, tmp_path)
    padding = PaddedBuffers(Capacity.from_neighbors(neighbors).grow(), pos, True, torch.int32)
    padding.load_structures(z, pos, cell[None], neighbors, model.cutoff)
    expected = [t.clone() for t in padding.edges.values()]
    search = PaddedNeighborSearch(padding, model.cutoff, None)
    search.record_checked_atoms(flags)
    assert search.load_arguments(z, pos, None, cell, None)
    search.find_and_write_edges()
    for array in padding.edges.values():
        array.zero_()
    launches = cupy_stand_in.state.launches
    with cupy_stand_in.simulate_capture(), graph_stand_in.OperationRecorder():
        (result,) = search.find_and_write_edges()
    assert cupy_stand_in.state.launches - launches == 6
    assert result[0] == 0
    assert all(torch.equal(a, b) for a, b in zip(padding.edges.values(), expected, strict=True))
