"""Tests that the neighbour search with a fixed capacity finds the same edges as on the CPU, in the same order.

If this file is run as a script with a library's path, it tests that library.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import sanitizers
from neighbor_cases import CUTOFF, draw_structure_batch, find_edges_on_cpu

from trigraph.gpu.cache import KERNELS
from trigraph.gpu.host.build import build_host_library
from trigraph.gpu.instances import INSTANCES
from trigraph.gpu.launcher import using_host_library
from trigraph.gpu.neighbors import bin_atoms, count_or_write_pairs, sort_and_link_edges
from trigraph.graphs import EdgeGraph
from trigraph.table import GRAPH_PARTS
from trigraph.table.constants import NEIGHBOR_FRAME, NEIGHBOR_LANES

NUM_GHOST_ATOMS = 3


def build_search_library(variant):
    """Build a library with only the search kernels, under the name of their family; return its path."""
    sanitizers.require_compiler()
    with tempfile.TemporaryDirectory() as folder:
        copies = shutil.copytree(KERNELS, Path(folder) / "kernels")
        (copies / "search.cu").write_text('#include "neighbors.cuh"\n')
        names = [name for name in INSTANCES["dimenet"] if name.startswith("neighbor")]
        return str(build_host_library("dimenet", variant, source=copies / "search.cu", instances=names))


def search_with_kernels(pos, of_atom, cells, flags, index, most_edges, degree=512):
    """Return offsets, edges, counts, graph arrays, shifts and whether all edges fit, like `PaddedNeighborSearch`.

    Unused entries of the arrays stay -1.
    """
    own, atoms = len(pos), len(pos) + NUM_GHOST_ATOMS
    batch = np.append(of_atom, np.full(NUM_GHOST_ATOMS, len(cells) + 1))
    members = np.argsort(batch, kind="stable").astype(index)
    offsets = np.searchsorted(batch[members], np.arange(len(cells) + 3)).astype(index)
    pos = np.append(pos, np.zeros((NUM_GHOST_ATOMS, 3)), axis=0).astype(pos.dtype)
    frames = np.full((len(cells), NEIGHBOR_FRAME), np.nan)
    bins, crossed, refused = (np.full(size, -1, np.int32) for size in (atoms, (atoms, 3), atoms))
    bin_atoms(pos, cells, flags, batch, offsets, members, CUTOFF, (frames, bins, crossed, refused))
    order = np.argsort(bins, kind="stable").astype(np.int32)
    starts = np.searchsorted(bins[order], np.arange(atoms + 1)).astype(np.int32)
    counts = np.full((atoms, NEIGHBOR_LANES), -1, np.int32)
    found = pos, batch, offsets, (frames, bins, crossed), (order, starts), CUTOFF, degree
    count_or_write_pairs(*found, counts)
    ends = counts.cumsum(dtype=np.int64)
    fits = ends[-1] <= most_edges and counts.sum(axis=1).max() <= degree and not refused.any()
    rows = np.append(0, ends[NEIGHBOR_LANES - 1 :: NEIGHBOR_LANES]).astype(np.int32) * np.int32(fits)
    edges = np.full((5, most_edges), -1, np.int32)
    count_or_write_pairs(*found, counts, ends, np.array(fits), edges)
    arrays = [np.full(most_edges, -1, index) for _ in range(8)]
    shifts = np.full((most_edges, 3), -1, pos.dtype)
    sort_and_link_edges(pos, rows, edges, arrays, shifts)
    assert rows[-1] == rows[own]
    return rows[: own + 1], edges, counts, dict(zip(_NAMES, arrays, strict=True)), shifts, fits


_NAMES = [name for name in GRAPH_PARTS["EdgeGraph"].arrays if "offsets" not in name]


def check_random_batches(seeds):
    """Assert that edges and graph arrays agree with the CPU's; return the number of edges."""
    total = 0
    for seed in seeds:
        dtype, index = ((np.float32, np.float64)[seed // 2 % 2], (np.int32, np.int64)[seed // 4 % 2])
        given = draw_structure_batch(seed, dtype)
        expected = find_edges_on_cpu(*given)
        number, atoms = len(expected), len(given[0])
        rows, _, counts, arrays, shifts, fits = search_with_kernels(
            *given, index, number + seed % 3 * 50 + (number == 0)
        )
        assert fits
        assert counts.sum() == number
        graph = EdgeGraph(*(expected[:, k].copy() for k in (0, 1)), atoms, shifts=expected[:, 2:].copy())
        assert np.array_equal(rows, graph.src_offsets)
        assert np.array_equal(rows, graph.dst_offsets)
        assert np.array_equal(shifts[:number], expected[:, 2:]), seed
        for name, array in arrays.items():
            assert np.array_equal(array[:number], getattr(graph, name)), (seed, name)
            assert (array[number:] == -1).all()
        if number > 1:
            rows, edges, counts, arrays, _, fits = search_with_kernels(*given, index, number - 1)
            assert not fits
            assert counts.sum() == number
            assert not rows.any()
            assert all((array == -1).all() for array in (edges, *arrays.values()))
        total += number
    return total


@pytest.mark.parametrize("order", sanitizers.ORDERS)
def test_edges_equal_cpu_search(order):
    """The edges of random structures agree: skewed or tiny cells, slabs, wires, molecules, distances at the cutoff."""
    with using_host_library(sanitizers.find_installed_library("dimenet"), order, seed=1):
        assert check_random_batches(range(150) if order == "forward" else range(150, 170)) > 1000


@pytest.mark.slow
def test_neighbor_kernels_have_no_race():
    with using_host_library(build_search_library("race"), "random", seed=1):
        check_random_batches(range(40))


@pytest.mark.slow
def test_neighbor_kernels_pass_address_sanitizer(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "helpers"))
    output, report = sanitizers.run_with_address_sanitizer(__file__, build_search_library("asan"))
    assert output == "all right\n", report


def test_search_refuses_unsuitable_structures():
    """The search refuses distant or coincident atoms, NaN, dependent cell vectors, and too many neighbours."""
    rng = np.random.default_rng(0)
    pos, one = rng.random((5, 3)) * 3, np.zeros(5, np.int64)
    cell, flags = 3 * np.eye(3)[None], np.ones((1, 3), bool)
    assert search_with_kernels(pos, one, cell, flags, np.int64, 200)[-1]
    flat = np.array([[[1.0, 0, 0], [0, 1, 0], [1, 1, 0]]])
    far, together = pos.copy(), pos.copy()
    far[2] = 3e9
    together[3] = together[1] + [3, 0, -3]
    for other, box in ((far, cell), (together, cell), (pos * np.nan, cell), (pos, flat), (pos, 1e-3 * cell)):
        rows, edges, *_, fits = search_with_kernels(other, one, box, flags, np.int64, 200)
        assert not fits
        assert not rows.any()
        assert (edges == -1).all()
    degree = int(np.bincount(find_edges_on_cpu(pos, one, cell, flags)[:, 0]).max())
    assert search_with_kernels(pos, one, cell, flags, np.int64, 200, degree)[-1]
    assert not search_with_kernels(pos, one, cell, flags, np.int64, 200, degree - 1)[-1]


if __name__ == "__main__":
    with using_host_library(sys.argv[1], "random", seed=1):
        check_random_batches(range(30))
    print("all right")
