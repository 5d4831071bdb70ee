"""Tests of the neighbour search: real structures compared with loops over images, extreme geometry, invalid input."""

import itertools
import sys

import numpy as np
import pytest
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc111, molecule
from table_calls import assert_raises

from trigraph.graphs.edge_graph import EdgeGraph
from trigraph.graphs.neighbors import find_neighbor_pairs, find_neighbors_of_molecules


def ethanol_crystal():
    atoms = molecule("CH3CH2OH", cell=[[5.1, 0, 0], [1.3, 5.6, 0], [-0.8, 1.1, 4.9]], pbc=True)
    # Atoms may be outside the cell, up to several cells away.
    atoms.positions += [40.0, -70.0, 13.0]
    atoms.positions[2] += [3, -2, 1] @ np.array(atoms.cell)
    atoms.positions[7] += [0, 4, -3] @ np.array(atoms.cell)
    return atoms


def slab_with_adsorbate():
    atoms = fcc111("Al", (1, 1, 3), vacuum=6.0)
    add_adsorbate(atoms, molecule("CO"), 1.9, "ontop")
    return atoms


def carbon_chain():
    return Atoms("C2", positions=[[0, 0, 0], [1.2, 0.4, 0]], cell=[0, 0, 2.5], pbc=[False, False, True])


def left_handed_crystal():
    return Atoms("C2", positions=[[0, 0, 0], [1.2, 0.4, 0.3]], cell=[[0, 3, 0], [2.8, 0, 0], [0, 0.5, 3.1]], pbc=True)


STRUCTURES = {
    "water": (lambda: molecule("H2O"), 2.0),
    "ethanol": (lambda: molecule("CH3CH2OH"), 3.0),
    "benzene": (lambda: molecule("C6H6"), 5.0),
    "rock salt": (lambda: bulk("NaCl", "rocksalt", a=5.64), 6.5),
    "one atom": (lambda: bulk("Cu"), 5.2),
    "ethanol crystal": (ethanol_crystal, 3.6),
    "slab": (slab_with_adsorbate, 4.5),
    "chain": (carbon_chain, 4.0),
    "left-handed": (left_handed_crystal, 4.3),
}


@pytest.fixture(params=["ase", "matscipy"])
def neighbor_backend(request, monkeypatch):
    """Run each test with both neighbour-search packages, ASE and matscipy."""
    if request.param == "ase":
        monkeypatch.setitem(sys.modules, "matscipy.neighbours", None)
    else:
        pytest.importorskip("matscipy.neighbours")
    return request.param


def find_neighbors_by_loop(atoms, cutoff):
    """Return (src, dst, *shift) of every pair within the cutoff, found by a loop over all nearby images."""
    n, cell, p = len(atoms), np.array(atoms.cell), atoms.positions
    cells = np.array(list(itertools.product(*(range(-8, 9) if c else [0] for c in atoms.pbc))))
    pairs = []
    for j, i in itertools.product(range(n), repeat=2):
        d = np.linalg.norm(p[j] - p[i] + cells @ cell, axis=1)
        near = cells[d < cutoff]
        pairs += [(j, i, *s) for s in near.tolist() if i != j or any(s)]
    return sorted(pairs)


@pytest.mark.parametrize("name", STRUCTURES)
def test_neighbors_of_structures_equal_a_loop(name, neighbor_backend):
    build, cutoff = STRUCTURES[name]
    atoms = build()
    graph, vec, offset, shifts = EdgeGraph.from_ase(atoms, cutoff)
    src, dst = graph.src, graph.dst
    rows = list(zip(src.tolist(), dst.tolist(), *shifts.T.tolist(), strict=True))
    assert rows == find_neighbors_by_loop(atoms, cutoff)
    p = atoms.positions
    np.testing.assert_array_equal(vec, p[src] - p[dst] + offset)
    np.testing.assert_allclose(offset, shifts @ np.array(atoms.cell), rtol=0, atol=1e-13)
    assert not np.linalg.norm(vec, axis=1).max() >= cutoff
    number = {row: e for e, row in enumerate(rows)}
    assert graph.reverse_edge.tolist() == [number[(i, j, *(-c for c in s))] for j, i, *s in rows]
    np.testing.assert_array_equal(vec[graph.reverse_edge], -vec)
    by_vec = EdgeGraph(src, dst, len(atoms), vec=vec)
    np.testing.assert_array_equal(by_vec.reverse_edge, graph.reverse_edge)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("pbc", [(True, True, True), (True, False, True), (False, False, True)])
def test_atoms_moved_by_cells_keep_neighbors(pbc, dtype, neighbor_backend):
    """Atoms moved by whole cells keep their neighbours; moves beyond a limit raise an error that names the atom."""
    # The lattice components are exact in binary, so that moved positions are exact up to float32's limit.
    cell = np.array([[4, 0, 0], [1, 4, 0], [-1, 0.5, 4]], dtype)
    positions = (np.random.default_rng(2).integers(0, 1024, (6, 3)) / 1024 @ cell).astype(dtype)
    positions[0] = cell.sum(axis=0) / 2
    near = EdgeGraph.from_positions(positions, 3.0, cell, pbc)
    assert near.graph.num_edges > 20
    limit = {np.float64: 2**18, np.float32: int(2**11.5)}[dtype]
    for away, sign in itertools.product((1, 37, limit), (1, -1)):
        moves = np.zeros((6, 3), np.int64)
        moves[2] = sign * away * np.array(pbc)
        far = EdgeGraph.from_positions((positions + moves @ cell).astype(dtype), 3.0, cell, pbc)
        rows = np.column_stack([near.graph.src, near.graph.dst, near.shifts])
        rows[:, 2:] += moves[rows[:, 1]] - moves[rows[:, 0]]
        order = np.lexsort(rows.T[::-1])
        np.testing.assert_array_equal(np.column_stack([far.graph.src, far.graph.dst, far.shifts]), rows[order])
        # The rounding error is eps times the distance, which is at most 3 * away cells of length 4.25.
        rounding = np.finfo(dtype).eps * away * 3 * 4.25
        np.testing.assert_allclose(far.vec, near.vec[order], rtol=0, atol=rounding)
    for away in (limit + 2, 2**20, 2**31, 2**33, 2**52, 2**60):
        for k in np.flatnonzero(pbc):
            positions_far = positions.copy()
            positions_far[2] -= dtype(away) * cell[k]
            text = rf"positions\[2\] is .* cells from the origin along cell\[{k}\].*expected at most {limit},"
            with pytest.raises(ValueError, match=f"^EdgeGraph: {text}"):
                EdgeGraph.from_positions(positions_far, 3.0, cell, pbc)


@pytest.mark.parametrize("away", [1e1, 1e3, 1e6, 1e9, 1e13, 1e20, 1e100, 1e150])
def test_distant_atoms_without_cell_find_neighbors(away, neighbor_backend):
    """The memory used by the search does not grow with the distances between atoms."""
    near = np.random.default_rng(3).uniform(0, 2, (6, 3))
    apart = np.array([[0.0, 0, 0], [1, 1, 0], [0, 1, 1]]) + away  # from 1e20 on, rounding makes the positions equal
    alone = -away * np.ones((1, 3))
    positions = np.concatenate([apart, near, alone]) if away < 1e15 else np.concatenate([near, apart[:1], alone])
    # Cell vectors in non-periodic directions have no effect.
    edges = EdgeGraph.from_positions(positions, 2.5, np.ones((3, 3)), [False, False, False])
    distance = np.linalg.norm(positions[:, None] - positions, axis=2)
    src, dst = np.nonzero((distance < 2.5) & ~np.eye(len(positions), dtype=bool))
    assert src.size > (26 if away < 1e15 else 20)
    np.testing.assert_array_equal(edges.graph.src, src)
    np.testing.assert_array_equal(edges.graph.dst, dst)
    np.testing.assert_array_equal(edges.vec, positions[src] - positions[dst])
    assert not edges.offset.any()
    assert not edges.shifts.any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("away", [0.0, 1e3, 1e20, 1e37])
def test_joint_search_equals_searches_of_single_molecules(away, dtype, neighbor_backend):
    """Overlapping molecules have no edges between them; distant atoms do not reduce the precision elsewhere."""
    rng = np.random.default_rng(5)
    molecule_index = rng.integers(12, size=90)
    molecule_index[molecule_index == 3] = 4  # makes molecule 3 empty
    positions = rng.uniform(0, 4, (90, 3)).astype(dtype)
    positions[::9] += dtype(away)
    positions[molecule_index == 7] -= dtype(away)
    found = find_neighbors_of_molecules(positions, 2.0, molecule_index)
    alone = []
    for molecule_of in range(12):
        atoms = np.flatnonzero(molecule_index == molecule_of)
        src, dst, shifts, offset = find_neighbor_pairs(positions[atoms], 2.0, None, False)
        alone.append((atoms[src], atoms[dst], shifts, offset))
    columns = [np.concatenate(parts) for parts in zip(*alone, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    assert len(order) > 100
    for one, other in zip(found, columns, strict=True):
        np.testing.assert_array_equal(one, other[order], strict=True)


@pytest.mark.parametrize("length", [1e3, 1e4, 1e6, 1e9, 1e12])
def test_few_atoms_in_large_cell_find_neighbors(length, neighbor_backend):
    """A search for few atoms in a huge periodic cell needs little memory."""
    positions = np.array([[0.5, 0, 0], [1, -1, 0], [1, 0, -1], [0.2, 0.5 + 0.7 * length, 0.9]])
    for pbc in ((True, True, True), (False, True, False)):
        graph, _, _, shifts = EdgeGraph.from_positions(positions, 4.0, length * np.eye(3), pbc)
        edges = list(zip(graph.src.tolist(), graph.dst.tolist(), strict=True))
        assert edges == list(itertools.permutations(range(3), 2))
        assert not shifts.any()


@pytest.mark.parametrize("unit", [1e-140, 1e-100, 1e-9, 1e9, 1e100, 1e140])
def test_neighbors_do_not_depend_on_length_unit(unit, neighbor_backend):
    atoms = ethanol_crystal()
    for pbc in (True, False):
        plain = EdgeGraph.from_positions(atoms.positions, 3.6, np.array(atoms.cell), pbc)
        scaled = EdgeGraph.from_positions(atoms.positions * unit, 3.6 * unit, np.array(atoms.cell) * unit, pbc)
        np.testing.assert_array_equal(scaled.graph.src, plain.graph.src)
        np.testing.assert_array_equal(scaled.graph.dst, plain.graph.dst)
        np.testing.assert_array_equal(scaled.shifts, plain.shifts)


def test_atoms_far_above_slab_lose_their_neighbors(neighbor_backend):
    atoms = slab_with_adsorbate()
    atoms.rotate(33, (1, 2, 3), rotate_cell=True)
    near = EdgeGraph.from_ase(atoms, 2.0)
    up = np.cross(*np.array(atoms.cell)[:2])
    up /= np.linalg.norm(up)
    atoms.positions[-2:] += 2.0**26 * up
    far = EdgeGraph.from_ase(atoms, 2.0)  # of the pairs of a moved atom, only the CO bond is within the cutoff
    kept = (near.graph.src < 3) == (near.graph.dst < 3)
    assert 2 <= kept.sum() < kept.size
    for got, expected in ((far.graph.src, near.graph.src), (far.graph.dst, near.graph.dst), (far.shifts, near.shifts)):
        np.testing.assert_array_equal(got, expected[kept])
    atoms.positions[-1] += 2.0**27 * up
    text = r"positions\[4\] is .* cutoffs from the origin along cell\[2\], which is not "
    with pytest.raises(ValueError, match=text):
        EdgeGraph.from_ase(atoms, 2.0)


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_search_without_neighbors_gives_empty_arrays(n, dtype, neighbor_backend):
    graph, vec, offset, shifts = EdgeGraph.from_positions(np.zeros((n, 3), dtype), 1.0)
    assert (graph.num_nodes, graph.num_edges) == (n, 0)
    assert vec.shape == offset.shape == shifts.shape == (0, 3)
    assert vec.dtype == offset.dtype == dtype


def test_a_pair_at_the_cutoff_is_both_edges_or_none(neighbor_backend):
    """If a distance equals the cutoff up to rounding, the search finds both an edge and its reverse, or neither."""
    atoms = bulk("NaCl", "rocksalt", a=5.64).repeat((2, 2, 1))
    atoms.positions += [0.1, 0.7, 1.3]
    for cutoff in (5.64 / 2, 5.64 / np.sqrt(2), 5.64):
        assert bool((EdgeGraph.from_ase(atoms, cutoff).graph.reverse_edge >= 0).all())


# Invalid input


FLAT = np.array([[1.0, 0, 0], [2.0, 0, 0], [0, 0, 1.0]])
LINE = np.array([[0.0, 0, 0], [1.0, 0, 0]])
INDEPENDENT = "expected independent vectors in periodic directions"
AT_MOST = "expected absolute values of at most 2^500 = 3.3e+150"
CUTOFFS = "expected a number from 2^-500 = 3.1e-151 to 2^500 = 3.3e+150"
ZERO = "[0.0, 0.0, 0.0] (edge from node 0 to node 1); expected a finite vector of non-zero length"
INT, NAN, INF = np.eye(3, dtype=int), np.diag([1, np.nan, 1]), np.diag([1, np.inf, 1])
BAD_POSITIONS = [
    ({"positions": INT}, TypeError, "positions has dtype int64; expected native float32 or float64"),
    ({"positions": np.eye(2)}, ValueError, "positions has shape (2, 2); expected (num_nodes, 3)"),
    ({"positions": NAN}, ValueError, "positions[1] is [0.0, nan, 0.0]; expected finite values"),
    ({"positions": LINE * 1e151}, ValueError, f"positions[1] is [1e+151, 0.0, 0.0]; {AT_MOST}"),
    ({"positions": np.zeros((2, 3))}, ValueError, f"vec[0] is {ZERO}"),
    ({"cutoff": 1e151}, ValueError, f"cutoff is 1e+151; {CUTOFFS}"),
    ({"cutoff": 1e-151}, ValueError, f"cutoff is 1e-151; {CUTOFFS}"),
    ({"cutoff": True}, TypeError, "cutoff is a bool; expected a number"),
    ({"cutoff": 0}, ValueError, "cutoff is 0.0; expected a finite number above 0"),
    ({"cutoff": np.float32(np.nan)}, ValueError, "cutoff is nan; expected a finite number above 0"),
    ({"pbc": [True, False]}, ValueError, "pbc has shape (2,); expected a bool or three bools"),
    ({"cell": np.ones((2, 3))}, ValueError, "cell has shape (2, 3); expected (3, 3)"),
    ({"cell": INF}, ValueError, "cell[1] is [0.0, inf, 0.0]; expected finite values"),
    ({"pbc": True}, ValueError, f"cell is None with pbc [True, True, True]; {INDEPENDENT}"),
    (
        {"pbc": [True, True, False], "cell": FLAT},
        ValueError,
        f"cell is {FLAT.tolist()} with pbc [True, True, False]; {INDEPENDENT}",
    ),
]


@pytest.mark.parametrize(("changes", "error", "text"), BAD_POSITIONS, ids=range(len(BAD_POSITIONS)))
def test_bad_search_arguments_are_refused(changes, error, text):
    arguments = {"positions": np.eye(3), "cutoff": 2.0} | changes
    with np.errstate(invalid="ignore"):
        assert_raises(error, f"EdgeGraph: {text}", EdgeGraph.from_positions, **arguments)
