"""Edges of real structures: against loops over images, ASE's conventions, known counts, and every bad input."""

import itertools
import sys

import numpy as np
import pytest
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc111, molecule
from ase.neighborlist import neighbor_list

from trigraph.graphs.edge_graph import EdgeGraph

RULES = ["node", "edge", None]


def ethanol_crystal():
    atoms = molecule("CH3CH2OH", cell=[[5.1, 0, 0], [1.3, 5.6, 0], [-0.8, 1.1, 4.9]], pbc=True)
    # Outside the cell, and some of its atoms cells away from the others.
    atoms.positions += [40.0, -70.0, 13.0]
    atoms.positions[2] += [3, -2, 1] @ np.array(atoms.cell)
    atoms.positions[7] += [0, 4, -3] @ np.array(atoms.cell)
    return atoms


def slab():
    atoms = fcc111("Al", (1, 1, 3), vacuum=6.0)
    add_adsorbate(atoms, molecule("CO"), 1.9, "ontop")
    return atoms


def chain():
    return Atoms("C2", positions=[[0, 0, 0], [1.2, 0.4, 0]], cell=[0, 0, 2.5], pbc=[False, False, True])


def left_handed():
    return Atoms("C2", positions=[[0, 0, 0], [1.2, 0.4, 0.3]], cell=[[0, 3, 0], [2.8, 0, 0], [0, 0.5, 3.1]], pbc=True)


STRUCTURES = {
    "water": (lambda: molecule("H2O"), 2.0),
    "ethanol": (lambda: molecule("CH3CH2OH"), 3.0),
    "benzene": (lambda: molecule("C6H6"), 5.0),
    "rock salt": (lambda: bulk("NaCl", "rocksalt", a=5.64), 6.5),
    "one atom": (lambda: bulk("Cu"), 5.2),
    "ethanol crystal": (ethanol_crystal, 3.6),
    "slab": (slab, 4.5),
    "chain": (chain, 4.0),
    "left-handed": (left_handed, 4.3),
}


@pytest.fixture(params=["ase", "matscipy"])
def backend(request, monkeypatch):
    """Both sources of neighbour lists give the same graph."""
    if request.param == "ase":
        monkeypatch.setitem(sys.modules, "matscipy.neighbours", None)
    else:
        pytest.importorskip("matscipy.neighbours")
    return request.param


def loop_neighbors(atoms, cutoff):
    """(src, dst, shift) of every pair closer than the cutoff, from all images that could be."""
    n, cell, p = len(atoms), np.array(atoms.cell), atoms.positions
    cells = np.array(list(itertools.product(*(range(-8, 9) if c else [0] for c in atoms.pbc))))
    found = []
    for j, i in itertools.product(range(n), repeat=2):
        d = np.linalg.norm(p[j] - p[i] + cells @ cell, axis=1)
        near = cells[d < cutoff]
        found += [(j, i, *s) for s in near.tolist() if i != j or any(s)]
    return sorted(found)


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures(name, backend):
    build, cutoff = STRUCTURES[name]
    atoms = build()
    graph, vec, offset, shifts = EdgeGraph.from_ase(atoms, cutoff)
    src, dst = graph.src, graph.dst
    rows = list(zip(src.tolist(), dst.tolist(), *shifts.T.tolist(), strict=True))
    assert rows == loop_neighbors(atoms, cutoff)
    p = atoms.positions
    np.testing.assert_array_equal(vec, p[src] - p[dst] + offset)
    np.testing.assert_allclose(offset, shifts @ np.array(atoms.cell), rtol=0, atol=1e-13)
    assert not np.linalg.norm(vec, axis=1).max() >= cutoff
    number = {row: e for e, row in enumerate(rows)}
    assert graph.reverse_edge.tolist() == [number[(i, j, *(-c for c in s))] for j, i, *s in rows]
    np.testing.assert_array_equal(vec[graph.reverse_edge], -vec)
    by_vec = EdgeGraph(src, dst, len(atoms), vec=vec)
    np.testing.assert_array_equal(by_vec.reverse_edge, graph.reverse_edge)


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_convention_of_ase(name):
    """i = dst, j = src: ASE's D is the vector of the edge, and its S the shift."""
    build, cutoff = STRUCTURES[name]
    atoms = build()
    i, j, big_d, big_s = neighbor_list("ijDS", atoms, cutoff)
    order = np.lexsort((*big_s.T[::-1], i, j))
    result = EdgeGraph.from_ase(atoms, cutoff)
    np.testing.assert_array_equal(result.graph.src, j[order])
    np.testing.assert_array_equal(result.graph.dst, i[order])
    np.testing.assert_array_equal(result.shifts, big_s[order])
    np.testing.assert_allclose(result.vec, big_d[order], rtol=0, atol=1e-12)
    # ASE's list as it comes, through `sorted`.
    graph, permutation = EdgeGraph.sorted(j, i, len(atoms), shifts=big_s)
    vec = atoms.positions[graph.src] - atoms.positions[graph.dst] + (big_s @ np.array(atoms.cell))[permutation]
    np.testing.assert_allclose(vec, big_d[permutation], rtol=0, atol=1e-12)


def test_counts_that_are_known(backend):
    """Rock salt in its two-atom cell: 6 neighbours at a/2, 12 at a/sqrt(2), as self-images of each kind."""
    a = 5.64
    graph, vec, _, _ = EdgeGraph.from_ase(bulk("NaCl", "rocksalt", a=a), 0.8 * a)
    own = graph.src == graph.dst
    assert (graph.num_edges, int(own.sum())) == (36, 24)
    np.testing.assert_allclose(np.linalg.norm(vec, axis=1), np.where(own, a / np.sqrt(2), a / 2), rtol=1e-14)
    # "edge": 18 in-edges but one; "node": those of the other kind for a self-image, of the own kind for the others.
    assert [graph.num_triplets(r) for r in RULES] == [24 * 6 + 12 * 12, 36 * 17, 36 * 18]


def test_vectors_at_other_positions_and_in_another_cell(backend):
    atoms = ethanol_crystal()
    graph, vec, offset, shifts = EdgeGraph.from_ase(atoms, 3.0)
    strain = np.eye(3) + np.array([[0.01, 0.02, 0], [0, -0.01, 0.005], [0.01, 0, 0.02]])
    atoms.set_cell(np.array(atoms.cell) @ strain, scale_atoms=True)
    p = atoms.positions
    moved = p[graph.src] - p[graph.dst] + shifts @ np.array(atoms.cell)
    np.testing.assert_allclose(moved, vec @ strain, rtol=0, atol=1e-12)
    assert not np.allclose(shifts @ np.array(atoms.cell), offset)


def test_positions_without_a_cell(backend):
    positions = np.random.default_rng(5).normal(size=(60, 3)) * [1.0, 30.0, 0.0]
    graph, vec, offset, shifts = EdgeGraph.from_positions(positions, 2.5)
    distance = np.linalg.norm(positions[:, None] - positions, axis=2)
    src, dst = np.nonzero((distance < 2.5) & ~np.eye(60, dtype=bool))
    np.testing.assert_array_equal(graph.src, src)
    np.testing.assert_array_equal(graph.dst, dst)
    np.testing.assert_array_equal(vec, positions[src] - positions[dst])
    assert not offset.any()
    assert not shifts.any()
    # A cell that is not periodic is not read, whatever it holds.
    again = EdgeGraph.from_positions(positions, 2.5, np.ones((3, 3)), [False, False, False])
    np.testing.assert_array_equal(again.graph.dst, dst)


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_neighbors(n, dtype, backend):
    graph, vec, offset, shifts = EdgeGraph.from_positions(np.zeros((n, 3), dtype), 1.0)
    assert (graph.num_nodes, graph.num_edges) == (n, 0)
    assert vec.shape == offset.shape == shifts.shape == (0, 3)
    assert vec.dtype == offset.dtype == dtype


def test_single_precision_positions(backend):
    atoms = slab()
    double = EdgeGraph.from_ase(atoms, 4.2)
    single = EdgeGraph.from_positions(atoms.positions.astype(np.float32), 4.2, np.array(atoms.cell), atoms.pbc)
    assert single.vec.dtype == single.offset.dtype == np.float32
    np.testing.assert_array_equal(single.shifts, double.shifts)
    np.testing.assert_array_equal(single.graph.reverse_edge, double.graph.reverse_edge)
    np.testing.assert_array_equal(single.vec[single.graph.reverse_edge], -single.vec)
    np.testing.assert_allclose(single.vec, double.vec, rtol=0, atol=1e-5)


def test_a_pair_at_the_cutoff_is_both_edges_or_none(backend):
    """Distances that rounding puts on either side of the cutoff: an edge never comes without its reverse."""
    atoms = bulk("NaCl", "rocksalt", a=5.64).repeat((2, 2, 1))
    atoms.positions += [0.1, 0.7, 1.3]
    for cutoff in (5.64 / 2, 5.64 / np.sqrt(2), 5.64):
        assert bool((EdgeGraph.from_ase(atoms, cutoff).graph.reverse_edge >= 0).all())


def test_a_neighbor_list_needs_ase_or_matscipy(monkeypatch):
    monkeypatch.setitem(sys.modules, "matscipy.neighbours", None)
    monkeypatch.setitem(sys.modules, "ase.neighborlist", None)
    with pytest.raises(ImportError) as caught:
        EdgeGraph.from_positions(np.zeros((1, 3)), 1.0)
    assert str(caught.value) == "EdgeGraph: neighbour lists need ase or matscipy: pip install 'trigraph[ase]'"


# Bad input.


def place(**changes):
    return {"positions": np.eye(3), "cutoff": 2.0, **changes}


FLAT = np.array([[1.0, 0, 0], [2.0, 0, 0], [0, 0, 1.0]])
INDEPENDENT = "expected independent vectors in periodic directions"
BAD_PLACES = [
    (
        place(positions=[[0, 0, 0]]),
        TypeError,
        "positions is a list; expected a numpy.ndarray or a CPU tensor of float32 or float64",
    ),
    (place(positions=np.eye(3, dtype=int)), TypeError, "positions has dtype <i8; expected native float32 or float64"),
    (place(positions=np.eye(2)), ValueError, "positions has shape (2, 2); expected (num_nodes, 3)"),
    (place(positions=np.zeros(3)), ValueError, "positions has shape (3,); expected (num_nodes, 3)"),
    (
        place(positions=np.eye(3) / [1, 1, np.nan]),
        ValueError,
        "positions[0] is [1.0, 0.0, nan]; expected finite values",
    ),
    (
        place(positions=np.zeros((2, 3))),
        ValueError,
        "vec[0] is [0.0, 0.0, 0.0] (edge from node 0 to node 1); expected a finite vector of non-zero length",
    ),
    (place(cutoff="2"), TypeError, "cutoff is a str; expected a number"),
    (place(cutoff=True), TypeError, "cutoff is a bool; expected a number"),
    (place(cutoff=0), ValueError, "cutoff is 0.0; expected a finite number above 0"),
    (place(cutoff=np.float32(np.nan)), ValueError, "cutoff is nan; expected a finite number above 0"),
    (place(cutoff=np.inf), ValueError, "cutoff is inf; expected a finite number above 0"),
    (place(pbc=1), TypeError, "pbc is 1; expected a bool or three of them"),
    (place(pbc=[True, False]), ValueError, "pbc has shape (2,); expected a bool or three of them"),
    (
        place(cell=[1, 1, 1]),
        TypeError,
        "cell is a list; expected a numpy.ndarray or a CPU tensor of float32 or float64",
    ),
    (place(cell=np.ones(3)), ValueError, "cell has shape (3,); expected (3, 3)"),
    (place(cell=np.ones((2, 3))), ValueError, "cell has shape (2, 3); expected (3, 3)"),
    (place(cell=np.diag([1, np.inf, 1])), ValueError, "cell[1] is [0.0, inf, 0.0]; expected finite values"),
    (place(pbc=True), ValueError, f"cell is None with pbc [True, True, True]; {INDEPENDENT}"),
    (
        place(pbc=[True, True, False], cell=FLAT),
        ValueError,
        f"cell is {FLAT.tolist()} with pbc [True, True, False]; {INDEPENDENT}",
    ),
]


@pytest.mark.parametrize(("arguments", "error", "text"), BAD_PLACES, ids=range(len(BAD_PLACES)))
def test_bad_positions(arguments, error, text):
    with pytest.raises(error) as caught, np.errstate(invalid="ignore"):
        EdgeGraph.from_positions(**arguments)
    assert str(caught.value) == f"EdgeGraph: {text}"


def test_atoms_of_another_kind():
    with pytest.raises(TypeError) as caught:
        EdgeGraph.from_ase(np.eye(3), 1.0)
    assert str(caught.value) == "EdgeGraph: atoms is a ndarray; expected an ase.Atoms"
