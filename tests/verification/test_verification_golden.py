"""Golden vectors: where they are found, what is done about those that are missing, and that differences are noticed."""

import numpy as np
import pytest

from trigraph.table import DEFINITIONS, OPERATORS
from trigraph.verification import golden
from trigraph.verification.run import plan
from trigraph.verification.subjects import panel

HERE = (
    "dimenet_crystal_small_cell_edge",
    "dimenet_H2O",
    "dimenet_radial_basis",
    "gat_ELU_edge",
    "gat_tanh",
    "gemnet_edge_to_atom",
    "gemnet_triplet",
    "gno_d1_H8_Fi1_Fo8",
    "gno_d3_H16_Fi4_Fo6",
    "weighted_random",
)
ELSEWHERE = (
    "gno_d2_H32_Fi8_Fo3",
    "athena_gno",
    "dimenet_CH3CH2OH",
    "dimenet_C6H6",
    "dimenet_slab_pbc_edge",
    "dimenet_slab_pbc_node",
    "gat_h1_d8_concat",
    "gat_h4_d16_concat",
    "gat_airfoil_h4_d8_concat",
    "gat_h3_d5_mean",
    "gat_h8_d8_mean",
    "gat_linear_edge",
    "gat_ReLU",
    "gat_sigmoid_edge",
    "weighted_airfoil_bipartite",
    "weighted_skewed",
    "gemnet_quadruplet_49",
)
# Operators that a file has vectors of, by what its name begins with.
OPERATORS_IN = {"gno": 7, "athena": 6, "dimenet": 5, "dimenet_radial_basis": 3, "gat": 3, "weighted": 3}
OPERATORS_IN |= {"gemnet": 8, "gemnet_edge_to_atom": 7}


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """A machine whose directory of vectors is empty."""
    monkeypatch.setenv("TRIGRAPH_GOLDEN", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    return tmp_path


def test_every_family_has_vectors():
    assert {d.family for d in DEFINITIONS} <= set(golden.FILES)
    assert sorted(HERE + ELSEWHERE) == sorted(n for names in golden.FILES.values() for n in names)


def test_every_definition_has_packaged_vectors():
    found = {v.operator for name in HERE for v in golden.vectors(name, golden.PACKAGED / f"{name}.npz")}
    alone = {
        "basis_embedding_radial_bwd",
        "basis_embedding_triplets_bwd",
    }  # nobody's vectors have these forms' derivatives
    assert {f"{d.name}_{order}" for d in DEFINITIONS for order in ("fwd", "bwd")} - alone <= found
    assert {"gno_message_bwd2", "radial_basis_bwd2", "agg_edge_to_edge_bwd2"} <= found
    assert {"mha_gat_n2n_bwd2", "agg_weighted_n2n_bwd2", "interaction_bilinear_bwd2"} <= found
    assert {op.name for op in OPERATORS.values() if op.restriction} <= found


@pytest.mark.parametrize("name", [n for names in golden.FILES.values() for n in names])
def test_vectors_are_there(name):
    if name not in golden.files():
        assert not golden.check_missing()
        pytest.skip(f"golden vectors {name}.npz are not on this machine")
    found = list(golden.vectors(name, golden.files()[name]))
    kind = name if name in OPERATORS_IN else name.split("_")[0]
    assert len({v.operator for v in found}) == OPERATORS_IN[kind]
    assert all(v.expected for v in found)


def test_packaged_vectors_are_those_of_the_directory():
    directory = golden.directory()
    if directory is None:
        pytest.skip("no directory of golden vectors on this machine")
    for path in golden.PACKAGED.glob("*.npz"):
        assert path.read_bytes() == (directory / path.name).read_bytes()


def test_packaged_vectors_suffice(elsewhere):
    assert sorted(golden.files()) == sorted(HERE)
    assert golden.missing() == ELSEWHERE
    assert golden.check_missing() == []
    labels = {u.label.split(":")[0] for u in plan(panels=["pyref"]) if "golden" in u.label}
    assert labels == {f"golden {name}" for name in HERE}


def test_missing_vectors_fail_under_ci(elsewhere, monkeypatch):
    monkeypatch.setenv("CI", "true")
    failed = golden.check_missing()
    assert [c.case for c in failed] == list(ELSEWHERE)
    assert not any(c.passed for c in failed)
    assert any(u.label == "golden vectors that are missing" for u in plan(panels=["pyref"]))


def test_a_clone_without_a_directory_passes_under_ci(monkeypatch):
    monkeypatch.setattr(golden, "directory", lambda: None)
    monkeypatch.setenv("CI", "true")
    assert golden.check_missing() == []
    assert golden.missing() == ELSEWHERE


def vector(name, operator):
    return next(v for v in golden.vectors(name, golden.PACKAGED / f"{name}.npz") if v.operator == operator)


# Relative changes that are noticed: sums of DimeNet++ are long, of terms that cancel.
CHANGED = (
    ("gno_d1_H8_Fi1_Fo8", "gno_message_bwd", 1e-12),
    ("dimenet_radial_basis", "radial_basis_bwd2", 1e-9),
    ("dimenet_H2O", "agg_edge_to_edge_bwd", 1e-9),
    ("gat_tanh", "mha_gat_n2n_bwd", 1e-9),
    ("weighted_random", "agg_weighted_n2n_bwd", 1e-12),
    ("dimenet_crystal_small_cell_edge", "agg_edge_to_edge_bwd2_main", 1e-9),
)


@pytest.mark.parametrize(("name", "operator", "change"), [*CHANGED, *((*c[:2], np.nan) for c in CHANGED)])
def test_a_changed_value_is_noticed(name, operator, change):
    found = vector(name, operator)
    assert all(c.passed for c in golden.check_golden(panel("pyref"), found, "float64"))
    assert all(c.passed for c in golden.check_golden(None, found, "float64"))
    for name in found.expected:
        changed = {n: a.copy() for n, a in found.expected.items()}
        at = np.unravel_index(np.argmax(abs(changed[name])), changed[name].shape)
        changed[name][at] *= 1 + change
        other = golden.Vector(found.case, found.operator, found.values, changed, single=False)
        for subject in (panel("pyref"), None):
            assert [c.field for c in golden.check_golden(subject, other, "float64") if not c.passed] == [name]


def test_a_nan_is_noticed_relative_to_the_largest_value():
    found = vector("gno_d1_H8_Fi1_Fo8", "gno_kernel_fwd")
    kernel = found.expected["kernel"]
    for wrong in (np.where(kernel == kernel.max(), np.nan, kernel), kernel * (1 + 1e-5)):
        other = golden.Vector(found.case, found.operator, found.values, {"kernel": wrong}, single=True)
        for dtype in ("float32", "float64"):
            assert not any(c.passed for c in golden.check_golden(panel("pyref"), other, dtype))
    same = golden.Vector(found.case, found.operator, found.values, dict(found.expected), single=True)
    assert all(c.passed for t in ("float32", "float64") for c in golden.check_golden(panel("pyref"), same, t))
