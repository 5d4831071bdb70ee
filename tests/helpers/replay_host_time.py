"""Measure the host time and operations of captured steps whose replays do nothing.

Run as ``python replay_host_time.py``. The benchmark's DimeNet++ in float32 is applied to its slab of 96 atoms.
"""

import time

import graph_stand_in
import pytest
import torch

from trigraph.benchmarks.models import SLAB, WIDTHS, build_atoms, make_dimenet
from trigraph.torch import compile_potential

CALLS = 200


def count_and_time_step(step, graphs):
    """Return one step's numbers of operations and replays, and the fastest step's time in milliseconds."""
    before = sum(graph.replays for graph in graphs)
    with graph_stand_in.OperationCounter() as counter:
        step()
    replays, times = sum(graph.replays for graph in graphs) - before, []
    for _ in range(CALLS):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return counter.count, replays, 1e3 * min(times)


def main():
    (atoms,) = build_atoms("slab", SLAB)
    z, pos = torch.as_tensor(atoms.numbers), torch.as_tensor(atoms.positions).float()
    cell = torch.as_tensor(atoms.cell.array).float()[None]
    model = make_dimenet("trigraph", "float32", **WIDTHS)
    with pytest.MonkeyPatch.context() as monkeypatch:
        graphs = graph_stand_in.install_cuda_graphs(monkeypatch)
        captured = compile_potential(model, capture=True)
        neighbors = model.neighbors(pos, cell=cell)
        labels = {"forces": torch.zeros_like(pos)}

        def compute_force_loss(structures, labels):
            differences = structures.energy_forces_stress().forces - labels["forces"]
            return (differences.square().sum(1) * structures.real_atoms).sum()

        train = captured.training_step(compute_force_loss)
        given = {"cell": cell, "neighbors": neighbors}
        steps = {
            "energy and forces": lambda: captured.energy_forces_stress(z, pos, **given),
            "training on forces": lambda: train(z, pos, **given, of_atoms=labels),
        }
        for step in steps.values():
            for _ in range(3):
                step()  # the first calls capture the step

        def count_replay(graph):
            graph.replays += 1

        monkeypatch.setattr(graph_stand_in.CUDAGraph, "replay", count_replay)
        for name, step in steps.items():
            count, replays, milliseconds = count_and_time_step(step, graphs)
            print(f"| {name} | {replays} | {count} | {milliseconds:.2f} |")


if __name__ == "__main__":
    main()
