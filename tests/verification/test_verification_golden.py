"""Golden vectors: where they are found, what is done about those that are missing, and that differences are noticed."""

import numpy as np
import pytest

from trigraph.table import OPERATORS
from trigraph.verification import golden
from trigraph.verification.run import plan
from trigraph.verification.subjects import panel

HERE = tuple(sorted(path.stem for path in golden.PACKAGED.glob("*.npz")))
ELSEWHERE = tuple(name for names in golden.FILES.values() for name in names if name not in HERE)
# Operators that a file has vectors of, by what its name begins with.


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """A machine whose directory of vectors is empty."""
    monkeypatch.setenv("TRIGRAPH_GOLDEN", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    return tmp_path


def test_every_definition_has_packaged_vectors():
    found = set()
    for name in HERE:
        vectors = list(golden.vectors(name, golden.PACKAGED / f"{name}.npz"))
        assert all(v.expected for v in vectors)
        found |= {v.operator for v in vectors}
    # Nobody's vectors have the derivatives of these forms.
    alone = {f"basis_embedding_{form}_{order}" for form in ("radial", "triplets") for order in ("bwd", "bwd2")}
    alone |= {"gno_kernel_bwd2", "gno_aggregate_bwd2"}
    assert set(OPERATORS) - alone <= found


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


@pytest.mark.parametrize(
    ("name", "operator", "change"),
    [
        ("gno_d1_H8_Fi1_Fo8", "gno_message_bwd", 1e-12),
        ("gno_d1_H8_Fi1_Fo8", "gno_message_bwd", np.nan),
        ("dimenet_H2O", "agg_edge_to_edge_bwd", 1e-9),  # long sums, of terms that cancel
    ],
)
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
