"""The padded interface of GemNet-OC's layers: golden vectors, sums, empty lists, bad input."""

import numpy as np
import pytest
from padded_gemnet import EDGES, EMB_IN, EMB_OUT, INTERM, RADIAL, SPHERICAL, VECTORS, Padded, vectors
from table_calls import CPU_BACKENDS

from trigraph.compat.gemnet import basis_embedding, interaction_bilinear


def close(got, expected, eps=1e-12):
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    assert np.allclose(got, expected, rtol=eps, atol=eps * abs(expected).max(initial=0))


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("name", VECTORS)
def test_golden(name, backend):
    z = vectors(name)
    lists = {"idx_sph_outer": z["in_idx_agg_outer"], "idx_sph_inner": z["in_idx_agg_inner"]}
    atoms, sums = {}, {}
    if "in_num_atoms" in z:
        outer, inner, number = z["in_idx_agg2_outer"], z["in_idx_agg2_inner"], int(z["in_num_atoms"])
        atoms = {"idx_rad_outer": outer, "idx_rad_inner": inner, "num_atoms": number}
        sums = {"idx_agg2_outer": outer, "idx_agg2_inner": inner, "agg2_out_size": number}
        got = basis_embedding(z["in_weight_radial_only"], z["in_rad_basis"], backend=backend, **atoms)
        close(got, z["out_radial_only_padded"])
    basis = basis_embedding(
        z["in_basis_weight"], z["in_rad_basis"], z["in_sph_basis"], backend=backend, **lists, **atoms
    )
    close(basis[0], z["out_rad_W1"])
    close(basis[1], z["out_sph_padded"], 0)
    m_ca = interaction_bilinear(z["in_bilinear_weight"], basis, z["in_m"], *lists.values(), backend=backend, **sums)
    close(m_ca, z["out_m_ca"])
    close(basis_embedding(z["in_weight_radial_only"], z["in_rad_basis"], backend=backend), z["out_radial_only"])
    if "out_sph_W1_per_triplet" in z:
        inputs = (z["in_basis_weight"], z["in_rad_basis"], z["in_sph_basis"])
        got = basis_embedding(*inputs, idx_sph_outer=z["in_idx_agg_outer"], backend=backend)
        close(got, z["out_sph_W1_per_triplet"])


@pytest.mark.parametrize("edges", [0, 4])
@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_empty_lists(backend, edges):
    """Lists without edges, triplets or slots give zeros; the original fails for some of them."""
    none, each = np.zeros(0, np.int64), np.arange(edges)
    ones = np.ones((RADIAL, SPHERICAL, INTERM)), np.ones((edges, RADIAL)), np.ones((0, SPHERICAL))
    dense, m = np.ones((EMB_OUT, INTERM * EMB_IN)), np.ones((0, EMB_IN))
    assert basis_embedding(*ones, idx_sph_outer=none, backend=backend).shape == (0, INTERM)
    basis = basis_embedding(*ones, idx_sph_outer=none, idx_sph_inner=none, backend=backend)
    assert [b.shape for b in basis] == [(edges, INTERM, SPHERICAL), (edges, SPHERICAL, 0)]
    assert np.array_equal(
        interaction_bilinear(dense, basis, m, none, none, backend=backend), np.zeros((edges, EMB_OUT))
    )
    basis = basis_embedding(*ones, 0 * each, each, none, none, 3, backend=backend)
    assert basis[0].shape == (3, INTERM, edges * SPHERICAL)
    got = interaction_bilinear(dense, basis, m, none, none, 0 * each, each, 3, backend=backend)
    assert np.array_equal(got, np.zeros((3, EMB_OUT)))


def test_slots_nobody_fills_are_zero():
    """Slots that no triplet fills count as zero, and a NaN in a slot of one edge does not reach other edges."""
    case = Padded(np.float32, np.int32)
    case.sph_basis[case.outer == 3] = np.nan
    basis = basis_embedding(case.weight, case.rad_basis, case.sph_basis, backend="pyref", **case.lists)
    got = interaction_bilinear(case.dense, basis, case.m, case.outer, case.inner, backend="pyref")
    assert np.array_equal(np.isnan(got).any(axis=1), np.arange(EDGES) == 3)


BAD_BASIS = [
    ("weight", np.ndarray.tolist, TypeError, "weight is a list; expected an ndarray of float32 or float64"),
    ("weight", lambda w: w[0, 0], ValueError, r"weight has shape \(2,\); expected \(interm, num_radial\) or"),
    ("rad_basis", lambda x: x[:, 1:], ValueError, "weight has shape|rad_basis has shape"),
    ("sph_basis", lambda x: x[:, 1:], ValueError, r"sph_basis has shape \(23, 2\); expected .* = \(23, 3\)"),
    ("outer", lambda x: x[1:], ValueError, r"idx_sph_outer has shape \(22,\); expected \(num_triplets,\) = \(23,\)"),
    ("outer", lambda x: x + 1, ValueError, r"idx_sph_outer\[\d+\] is 9; expected 0 <= idx_sph_outer < num_edges = 9"),
    ("inner", lambda x: x - 1, ValueError, r"idx_sph_inner\[\d+\] is -1; expected 0 <= idx_sph_inner"),
    ("inner", lambda x: 0 * x, ValueError, "a slot that an earlier member has; expected one of its own for each"),
    ("number", lambda x: 0 * x, ValueError, r"idx_rad_outer\[\d\], idx_rad_inner\[\d\] are \d, 0, a slot that"),
]


@pytest.mark.parametrize(("name", "change", "error", "text"), BAD_BASIS)
def test_bad_basis(name, change, error, text):
    case = Padded()
    setattr(case, name, change(getattr(case, name)))
    with pytest.raises(error, match=text) as caught:
        basis_embedding(case.weight, case.rad_basis, case.sph_basis, backend="pyref", **case.lists, **case.atoms)
    assert str(caught.value).startswith("basis_embedding")


ABSENT = [
    ({"sph_basis": None}, ValueError, "idx_sph_inner is given, but sph_basis is None; expected both or none"),
    ({"idx_sph_inner": None}, ValueError, "idx_rad_inner and sph_basis are given; expected idx_sph_inner, too"),
    ({"idx_sph_inner": None, "weight": Padded().radial}, ValueError, "for a sph_basis without idx_sph_inner"),
    ({"num_atoms": None}, TypeError, "num_atoms is a NoneType; expected an int"),
]


@pytest.mark.parametrize(("changes", "error", "text"), ABSENT)
def test_what_is_given_must_fit(changes, error, text):
    case = Padded()
    arguments = {n: getattr(case, n) for n in ("weight", "rad_basis", "sph_basis")} | case.lists | case.atoms
    with pytest.raises(error, match=text):
        basis_embedding(**arguments | changes)


BAD_BILINEAR = [
    ({"basis": np.ones(3)}, TypeError, "basis is a ndarray; expected a tuple of two arrays, rad_W1 and sph"),
    ({"basis": lambda b: (b[0], b[1][:, :, 1:])}, ValueError, "sph has shape .*; expected .* Kmax"),
    ({"m": lambda m: m[1:]}, ValueError, r"idx_agg_outer has shape \(23,\); expected \(num_triplets,\) = \(22,\)"),
    ({"weight": lambda w: w[:, 1:]}, ValueError, r"weight has shape \(7, 11\); expected \(emb_out, interm\*emb_in\)"),
    ({"idx_agg_inner": lambda i: 0 * i}, ValueError, "a slot that an earlier member has"),
    ({"idx_agg2_outer": np.zeros(EDGES, int)}, TypeError, "idx_agg2_inner is a NoneType|agg2_out_size is a NoneType"),
    (
        {"idx_agg2_outer": np.zeros(EDGES, int), "idx_agg2_inner": np.arange(EDGES), "agg2_out_size": 2},
        ValueError,
        r"rad_W1 has shape \(9, 2, 3\); expected \(agg2_out_size, interm, Kmax2\*num_spherical\) = \(2, 2, 27\)",
    ),
]


@pytest.mark.parametrize(("changes", "error", "text"), BAD_BILINEAR)
def test_bad_bilinear(changes, error, text):
    case = Padded()
    basis = basis_embedding(case.weight, case.rad_basis, case.sph_basis, backend="pyref", **case.lists)
    arguments = {"weight": case.dense, "basis": basis, "m": case.m}
    arguments |= {"idx_agg_outer": case.outer, "idx_agg_inner": case.inner}
    arguments |= {n: c(arguments[n]) if callable(c) else c for n, c in changes.items()}
    with pytest.raises(error, match=text) as caught:
        interaction_bilinear(**arguments, backend="pyref")
    assert str(caught.value).startswith("interaction_bilinear")


@pytest.mark.parametrize("slot", [2**62, 2**63 - 1, 2**48])
def test_slots_that_no_memory_holds(slot):
    """Indices and numbers of atoms that ask for too much memory raise ValueError, never OverflowError."""
    weight, rad_basis, outer = np.ones((4, 2)), np.ones((2, 2)), np.array([0, 1])
    inner = np.array([0, slot])
    with pytest.raises(ValueError, match=rf"^basis_embedding: idx_rad_inner\[1\] is {slot}; expected 0 <= idx_rad"):
        basis_embedding(weight, rad_basis, None, outer, inner, num_atoms=2)
    with pytest.raises(ValueError, match=rf"^basis_embedding: num_atoms is {2 * slot}; expected at most "):
        basis_embedding(weight, rad_basis, None, outer, outer, num_atoms=2 * slot)
    for slots, number, size in ((np.array([0, 10**12]), 2, "2000000000002"), (outer, 10**12, "2000000000000")):
        text = rf"^basis_embedding: num_atoms \* \(max\(idx_rad_inner\) \+ 1\) is {size}, whose arrays"
        with pytest.raises(MemoryError, match=text):
            basis_embedding(weight, rad_basis, None, outer, slots, num_atoms=number)
