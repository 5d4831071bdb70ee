"""Tests that the neighbour search with a fixed capacity finds the same edges as on the CPU, in the same order.

If this file is run as a script with a library's path, it tests that library.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
import sanitizers
from neighbor_cases import CUTOFF, draw_structure_batch

from trigraph.gpu.instances import INSTANCES
from trigraph.gpu.launcher import ORDERS, HostLibrary, KernelError, find_installed_library, using_host_library

pytest.importorskip("torch")

import torch

from trigraph.torch import Capacity
from trigraph.torch.potentials.capacity_search import PaddedNeighborSearch
from trigraph.torch.potentials.padding import PaddedBuffers
from trigraph.torch.potentials.structures import find_neighbors


def build_search_library(variant):
    """Build a library with only the search kernels, under the name of their family; return its path."""
    names = [name for name in INSTANCES["dimenet"] if name.startswith("neighbor")]
    return sanitizers.build_library_with_barrier_switch("dimenet", variant, "neighbors.cuh", names)


def make_padding(capacity, index, pos, of_atom, cells, flags, cutoff=CUTOFF):
    """Return a padding with the neighbours that the CPU finds within `cutoff`."""
    padding = PaddedBuffers(capacity, pos, True, index)
    neighbors = find_neighbors("test", pos, cutoff, of_atom, cells, flags)
    padding.load_structures(torch.ones(len(pos), dtype=torch.int64), pos, cells, neighbors, CUTOFF)
    return padding


def search_neighbors(padding, flags, pos, of_atom, cells):
    """Search with the kernels; return whether the search was refused, and the number of edges."""
    search = PaddedNeighborSearch(padding, CUTOFF, None)
    search.record_checked_atoms(flags.numpy())
    assert search.load_arguments(torch.ones(len(pos), dtype=torch.int64), pos, of_atom, cells, flags)
    return search.find_and_write_edges()[0].tolist()


def list_padding_bytes(padding):
    """Return the bytes of every array in a padding that potentials use."""
    neighbors = padding.neighbors
    graphs = (neighbors.ends, neighbors.into, neighbors.members, neighbors.sources)
    arrays = [a for graph in graphs for a in (*graph.prepare(), graph.offsets, graph.indices)]
    return [
        a.tobytes() for a in (*arrays, *(t.numpy() for t in (*padding.edges.values(), padding.pos, padding.shifts)))
    ]


def check_random_batches(seeds):
    """Assert that searches fill paddings, including ghost atoms, like neighbours found on the CPU."""
    for seed in seeds:
        dtype, index = (np.float32, np.float64)[seed // 2 % 2], (torch.int32, torch.int64)[seed // 4 % 2]
        pos, of_atom, cells, flags = map(torch.from_numpy, draw_structure_batch(seed, dtype))
        given = pos, of_atom, cells
        needed = Capacity.from_neighbors(find_neighbors("test", pos, CUTOFF, of_atom, cells, flags))
        edges = max(needed.edges, 1) + seed % 3 * 77
        capacity = Capacity(needed.atoms + seed % 5, edges, len(cells) + seed % 2, needed.degree)
        padding = make_padding(capacity, index, *given, flags)
        expected = list_padding_bytes(padding)
        for name, array in padding.edges.items():
            array.fill_(7 if "offsets" in name else 0)
        padding.shifts.fill_(7)
        assert search_neighbors(padding, flags, *given) == [0, needed.edges]
        assert list_padding_bytes(padding) == expected, seed
        if needed.edges > 1:  # the edges do not fit, so only ghost edges remain
            padding.capacity = capacity._replace(edges=needed.edges - 1)
            assert search_neighbors(padding, flags, *given) == [1, needed.edges]
            assert padding.refused
            empty = make_padding(capacity, index, *given, flags, cutoff=1e-4)
            assert not empty.edges["src_offsets"][len(pos)]
            assert list_padding_bytes(padding) == list_padding_bytes(empty), seed


@pytest.mark.parametrize("order", ORDERS)
def test_edges_equal_cpu_search(order):
    """The edges of random structures agree: skewed or tiny cells, slabs, wires, molecules, distances at the cutoff."""
    with using_host_library(find_installed_library("dimenet"), order, seed=1):
        check_random_batches(range(150) if order == "forward" else range(150, 170))


@pytest.mark.slow
def test_neighbor_kernels_race_only_without_a_barrier():
    library = HostLibrary(build_search_library("race"))
    with using_host_library(library, "random", seed=1):
        check_random_batches(range(40))
        for barrier in sanitizers.list_barriers("dimenet"):
            if barrier[0] == "neighbors.cuh":
                with sanitizers.disable_barrier(library, "dimenet", barrier), pytest.raises(KernelError):
                    check_random_batches(range(40))


@pytest.mark.slow
def test_neighbor_kernels_pass_address_sanitizer(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "helpers"))
    output, report = sanitizers.run_with_address_sanitizer(__file__, build_search_library("asan"))
    assert output == "all right\n", report


def test_search_refuses_unsuitable_structures():
    """The search refuses distant or coincident atoms, NaN, dependent cell vectors, and too many neighbours."""
    pos = torch.from_numpy(np.random.default_rng(0).random((5, 3)) * 3)
    cell, flags = 3 * torch.eye(3).double(), torch.ones(1, 3, dtype=torch.bool)

    def is_refused(other, box, degree=512):
        padding = make_padding(Capacity(5, 200, 1, degree), torch.int64, pos, None, cell[None], flags)
        refused, _ = search_neighbors(padding, flags, other, None, box)
        assert refused == (not padding.edges["src_offsets"][5])
        return refused

    far, together = pos.clone(), pos.clone()
    far[2] = 3e9
    together[3] = together[1] + torch.tensor([3, 0, -3])
    flat = torch.tensor([[1.0, 0, 0], [0, 1, 0], [1, 1, 0]]).double()
    for other, box in ((far, cell), (together, cell), (pos * np.nan, cell), (pos, flat), (pos, 1e-3 * cell)):
        assert is_refused(other, box)
    degree = int(np.diff(find_neighbors("test", pos, CUTOFF, None, cell, flags).graph.src_offsets).max())
    assert not is_refused(pos, cell, degree)
    assert is_refused(pos, cell, degree - 1)


if __name__ == "__main__":
    with using_host_library(sys.argv[1], "random", seed=1):
        check_random_batches(range(30))
    print("all right")
