"""Golden vectors: where they are found, what is done about those that are missing, and that differences are noticed."""

import numpy as np
import pytest

from trigraph.operators import DEFINITIONS
from trigraph.verification import golden
from trigraph.verification.run import plan
from trigraph.verification.subjects import panel


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """A machine whose directory of vectors is empty."""
    monkeypatch.setenv("TRIGRAPH_GOLDEN", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    return tmp_path


def test_every_family_has_vectors():
    assert {d.family for d in DEFINITIONS} <= set(golden.FILES)


@pytest.mark.parametrize("name", [n for names in golden.FILES.values() for n in names])
def test_vectors_are_there(name):
    if name not in golden.files():
        assert not golden.check_missing()
        pytest.skip(f"golden vectors {name}.npz are not on this machine")
    found = list(golden.vectors(name, golden.files()[name]))
    assert len(found) >= 6
    assert all(v.expected for v in found)


def test_packaged_vectors_are_those_of_the_directory():
    directory = golden.directory()
    if directory is None:
        pytest.skip("no directory of golden vectors on this machine")
    for path in golden.PACKAGED.glob("*.npz"):
        assert path.read_bytes() == (directory / path.name).read_bytes()


def test_packaged_vectors_suffice(elsewhere):
    assert sorted(golden.files()) == ["gno_d1_H8_Fi1_Fo8", "gno_d3_H16_Fi4_Fo6"]
    assert golden.missing() == ("gno_d2_H32_Fi8_Fo3", "athena_gno")
    assert golden.check_missing() == []
    assert {u.label.split(",")[0] for u in plan(panels=["pyref"]) if "golden" in u.label} == {
        "golden gno_d1_H8_Fi1_Fo8",
        "golden gno_d3_H16_Fi4_Fo6",
    }


def test_missing_vectors_fail_under_ci(elsewhere, monkeypatch):
    monkeypatch.setenv("CI", "true")
    failed = golden.check_missing()
    assert [c.case for c in failed] == ["gno_d2_H32_Fi8_Fo3", "athena_gno"]
    assert not any(c.passed for c in failed)
    assert any(u.label == "golden vectors that are missing" for u in plan(panels=["pyref"]))


def test_a_clone_without_a_directory_passes_under_ci(monkeypatch):
    monkeypatch.setattr(golden, "directory", lambda: None)
    monkeypatch.setenv("CI", "true")
    assert golden.check_missing() == []
    assert len(golden.missing()) == 2


def vector(name, operator):
    return next(v for v in golden.vectors(name, golden.PACKAGED / f"{name}.npz") if v.operator == operator)


@pytest.mark.parametrize("change", [1e-12, np.nan])
def test_a_changed_value_is_noticed(change):
    found = vector("gno_d1_H8_Fi1_Fo8", "gno_message_bwd")
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
