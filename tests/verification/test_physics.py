"""Tests that the checks of forces, force training, invariance and radial functions detect incorrect backends."""

import sys

import numpy as np
import pytest
from scipy.special import spherical_jn

from trigraph.verification import bessel, physics, structures
from trigraph.verification.run import plan_run
from trigraph.verification.subjects import Subject, make_backend_subject

SHIPPED = {s.name: s for s in structures.load_shipped_structures()}


def make_wrong_subject(operator, change):
    """Return pyref with the result of one operator modified by `change`."""
    right = make_backend_subject("pyref")

    def compute_wrong_fields(op, values, wrt):
        fields = right.call(op, values, wrt)
        return {**fields, **change(fields, values)} if op.name == operator else fields

    return Subject("spoilt", False, compute_wrong_fields)


@pytest.fixture(scope="module")
def ethanol_system():
    return physics.make_physical_system(SHIPPED["ethanol"])


WRONG_FORCES = {
    "no angular part": ("agg_edge_to_edge_bwd", lambda f, v: {"vec": np.zeros_like(f["vec"])}),
    "sign of the radial part": ("radial_basis_bwd", lambda f, v: {"dist": -f["dist"]}),
    "one off by 1e-5": (
        "agg_edge_to_edge_bwd",
        lambda f, v: {"vec": f["vec"] * np.where(f["vec"] < f["vec"].max(), 1, 1.00001)},
    ),
    "NaN": ("radial_basis_bwd", lambda f, v: {"dist": f["dist"] * np.nan}),
}
WRONG_TRAINING = {
    "first order only": ("agg_edge_to_edge_bwd2", lambda f, v: {"weights": np.zeros_like(f["weights"])}),
    # As in the original DimeNet code, the vectors are treated as constants, so angular forces are not trained.
    "no gg_vec": (
        "agg_edge_to_edge_bwd2",
        lambda f, v: dict(
            make_backend_subject("pyref").call(
                physics.OPERATORS["agg_edge_to_edge_bwd2"], {**v, "gg_vec": np.zeros_like(v["vec"])}, None
            )
        ),
    ),
    "no radial part": ("radial_basis_bwd2", lambda f, v: {"grad_sbf_rad": np.zeros_like(f["grad_sbf_rad"])}),
}


# Results that depend on the coordinate axes, and results that depend on the numbering of the atoms.
AXES, NUMBERING = (
    ("agg_edge_to_edge_fwd", lambda f, v: {"out": f["out"] * (1 + 1e-6 * v["vec"][:, :1])}),
    ("agg_edge_to_edge_fwd", lambda f, v: {"out": f["out"] * (1 + 1e-6 * np.arange(len(f["out"]))[:, None])}),
)
# Kind of check, mistake, and the fields or transformations whose checks must fail.
MISTAKES = [("forces", wrong, {"positions"}) for wrong in WRONG_FORCES.values()]
MISTAKES += [("force training", wrong, {"weights"}) for wrong in WRONG_TRAINING.values()]
MISTAKES += [("invariance", AXES, {"rotated", "mirrored"}), ("invariance", NUMBERING, {"renumbered"})]


@pytest.mark.parametrize(("kind", "wrong", "expected"), MISTAKES)
def test_physics_checks_find_wrong_backends(kind, wrong, expected, ethanol_system):
    checks = physics.CHECKS[kind](make_wrong_subject(*wrong), ethanol_system, physics.INVOLVED[kind][0])
    failures = [c for c in checks if not c.passed]
    assert expected <= {c.case.split(", ")[-1] if kind == "invariance" else c.field for c in failures}
    assert kind == "force training" or len(failures) == len(expected)
    assert kind != "forces" or failures[0].note


@pytest.mark.parametrize("kind", physics.CHECKS)
def test_exceptions_fail_physics_checks(kind, ethanol_system):
    def raise_runtime_error(op, values, wrt):
        raise RuntimeError("no memory")

    for c in physics.CHECKS[kind](
        Subject("broken", False, raise_runtime_error), ethanol_system, "agg_edge_to_edge_bwd"
    ):
        assert not c.passed
        assert "no memory" in c.note


def test_inaccurate_closed_forms_fail_bessel_check():
    """The check of radial functions detects a closed form of j_2 without any correct digit in float32 at x = 0.001."""

    def use_closed_form(fields, values):
        x = values["dist"].astype(np.float32)[:, None] * np.float32(bessel.bessel_zeros(8, 6)[2])
        j = (np.float32(3) / x**3 - 1 / x) * np.sin(x) - 3 / x**2 * np.cos(x)
        sbf = fields["sbf_rad"].reshape(len(x), 8, 6).copy()
        exact = spherical_jn(2, x.astype(float))
        sbf[:, 2] *= (j / exact).astype(sbf.dtype)
        return {"sbf_rad": sbf.reshape(len(x), -1)}

    subject = make_wrong_subject("radial_basis_fwd", use_closed_form)
    checks = bessel.check_sbf_rad_against_scipy(subject, bessel.make_radial_basis_case("float32", 0))
    assert [c.field for c in checks if not c.passed] == ["sbf_rad, l = 2"]


def test_shipped_structures_have_valid_edges():
    assert set(SHIPPED) == {"benzene", "ethanol", "copper slab with CO", "rock salt"}
    for s in SHIPPED.values():
        length = np.linalg.norm(s.vec, axis=1)
        assert s.graph.num_edges == len(s.src) > 0
        assert length.min() > 0
        assert length.max() < s.cutoff == 5.0
        assert (s.graph.reverse_edge >= 0).all()
        assert s.note == s.describe_exclusions(False) == ""
    assert SHIPPED["rock salt"].graph.max_parallel_edges > 1
    assert SHIPPED["rock salt"].graph.num_nodes == 2


def test_the_default_run_does_not_need_ase(monkeypatch):
    monkeypatch.setitem(sys.modules, "ase", None)
    monkeypatch.setitem(sys.modules, "ase.io", None)
    assert len(structures.load_shipped_structures()) == 4
    assert plan_run(operators=["dimenet"], backends=["pyref"], dtypes=["float64"])
    with pytest.raises(ValueError, match=r"need ASE: pip install ase"):
        structures.read_structure("some.xyz", 5.0)


def write_xyz(tmp_path, *lines):
    path = tmp_path / "some.xyz"
    path.write_text("\n".join([str(len(lines)), "", *lines]) + "\n")
    return path


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("H 0 0 0", "H 0 0 0"), r"some\.xyz: .*non-zero length"),
        (("H 0 0 0", "H 0 0 9"), r"no two of its 2 atoms are closer than 5"),
        (("H 0 0",), r"some\.xyz cannot be read"),
        (("H 0 0 0", "H 0 nan 1"), r"some\.xyz: .*finite"),
    ],
)
def test_unusable_structure_files_raise_value_error(tmp_path, lines, message):
    pytest.importorskip("ase")
    with pytest.raises(ValueError, match=message):
        structures.read_structure(write_xyz(tmp_path, *lines), 5.0)


@pytest.mark.parametrize("kind", ["one atom and its images", "no triplets", "too many triplets"])
def test_physics_checks_pass_for_limiting_structures(kind):
    build = pytest.importorskip("ase.build")
    atoms = {
        "one atom and its images": lambda: build.bulk("Cu"),
        "no triplets": lambda: build.molecule("H2"),
        "too many triplets": lambda: build.bulk("Cu", cubic=True).repeat(3),
    }[kind]()
    structure = structures.make_structure(kind, atoms, 3.0 if kind == "too many triplets" else 5.0)
    limited = structure.limit_triplets(1800)
    assert (limited.note == "") == (kind != "too many triplets")
    for check in physics.CHECKS.values():
        for c in check(make_backend_subject("pyref"), physics.make_physical_system(limited), "agg"):
            assert c.passed, c
            assert c.note == limited.note


def test_a_structure_is_verified_like_the_shipped_ones(tmp_path):
    pytest.importorskip("ase")
    water = structures.read_structure(write_xyz(tmp_path, "O 0 0 0.12", "H 0 0.76 -0.48", "H 0 -0.76 -0.48"), 5.0)
    units = plan_run(operators=["dimenet"], backends=["pyref"], dtypes=["float64"], structures=[water, water])
    own = [u for u in units if "some.xyz" in u.label]
    assert len({u.label for u in own}) == len(own) == 2 * (2 * 3 + 3)
    kinds = {c.kind for u in own for c in u.execute() if c.passed or pytest.fail(str(c))}
    assert {"accuracy", "adjoint", "differences", "forces", "force training", "invariance"} <= kinds
