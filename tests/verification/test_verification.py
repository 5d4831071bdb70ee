"""Tests of `trigraph verify`: a small run makes all planned checks, and the full plan covers every operator."""

import itertools
import json
import os
from dataclasses import replace

import cupy_stand_in
import numpy as np
import pytest
from click.testing import CliRunner

from slopecheck import isolated
from slopecheck.record import Check
from trigraph import cli
from trigraph.backends import BACKENDS
from trigraph.cli import main
from trigraph.fortran.threads import get_num_threads
from trigraph.table import DEFINITIONS, OPERATORS
from trigraph.verification import golden, subjects
from trigraph.verification.cases import build_case, list_variants
from trigraph.verification.properties import list_cpu_levels_to_compare
from trigraph.verification.run import DTYPES, EMULATED, HUB, LONGEST_HUB, plan_run

HOST = ("pyref", "fortran", "fortran-reference", "gpu-host")
VARIANTS = ("regular", "second sizes", "one channel")  # labels of the variants of operators without a graph
CHECK_KINDS = ("accuracy", "nan", "algebra", "differences", "calls")
COMMON_KINDS = {"accuracy", "adjoint", "symmetry", "permutation", "repeat", "layout", "empty", "out", "nan", "batch"}


def execute_units(units):
    return [check for unit in units for check in unit.execute()]


def test_two_processes_make_all_planned_checks(tmp_path):
    """A small run in two processes makes all planned checks, including every kind of check."""
    options = ["--operator", "basis_embedding_radial", "--backend", "fortran", "--backend", "judge", "--jobs", "2"]
    result = CliRunner().invoke(main, ["verify", *options, "--report", str(tmp_path)])
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["verdict"], report["counts"]["failed"]) == ("passed", 0)
    expected = (
        COMMON_KINDS | {"differences", "threads", "golden"} | ({"levels"} if list_cpu_levels_to_compare()[1] else set())
    )
    assert set(report["checks"]["kind"]) >= expected


def test_plan_contains_every_check():
    """The plan contains every check; a run that omits a planned check fails (test_verification_complete.py)."""
    labels = {u.label for u in plan_run()}
    assert {*HOST, "gpu"} == {*BACKENDS}
    assert {f"golden dimenet_H2O: {backend} {dtype}" for backend in HOST for dtype in DTYPES} <= labels
    assert "golden dimenet_H2O: judge" in labels
    for definition, degree in itertools.product(DEFINITIONS, (HUB, LONGEST_HUB)):
        assert any(label.startswith(f"{definition.name}, hub of {degree}, constant") for label in labels)
    for definition, backend in itertools.product(DEFINITIONS, HOST):
        for variant in list_variants(definition):
            cases = [f"{definition.name}, {variant.label}, {dtype}" for dtype in DTYPES]
            made = {kind: sum(f"{case}: {backend} {kind}" in labels for case in cases) for kind in CHECK_KINDS}
            # Large gpu-host cases, NaN checks and checks of calls alternate dtypes, so some have only one dtype.
            assert made["accuracy"] >= (1 if backend in EMULATED and variant.kind.large else 2)
            if variant.kind.differenced:
                assert made["nan"] >= 1
                assert made["algebra"] >= 1
                assert made["differences"] >= 1 or backend in EMULATED
                assert any(f"{case}: judge differences" in labels for case in cases)
            assert made["calls"] >= (variant.name in ("skewed", "one channel"))


@pytest.mark.parametrize("name", ["gno_kernel", "agg_weighted_n2n"])
def test_one_dtype_alone_is_checked_in_full(name):
    both, single = ([u.label for u in plan_run([name], ["pyref"], dtypes)] for dtypes in (DTYPES, ["float32"]))
    for end in ("nan", "calls"):
        taken, alone = ([label for label in labels if label.endswith(end)] for labels in (both, single))
        assert {label.replace("float64", "float32") for label in taken} == set(alone)


def test_worker_processes_limit_library_threads(monkeypatch):
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "3")
    before = dict(os.environ)
    with isolated._limit_library_threads(1):
        assert dict(os.environ) == before
    with isolated._limit_library_threads(2):
        variables = {name: os.environ[name] for name in isolated.SHARING}
        assert variables == {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "3", "OMP_WAIT_POLICY": "passive"}
    assert dict(os.environ) == before


@pytest.mark.parametrize("name", ["gno_aggregate_bwd", "gno_aggregate", "gno"])
def test_only_selected_operators_are_checked(name):
    threads = get_num_threads()
    units = plan_run([name], ["pyref"], ["float32"], seed=7)
    checks = execute_units(u for u in units if "regular" in u.label and u.label.endswith("accuracy"))
    selected = {op.name for op in OPERATORS.values() if name in (op.name, op.definition.name, op.family)}
    assert {c.operator for c in checks} == selected
    assert {(c.backend, c.dtype) for c in checks} == {("pyref", "float32")}
    assert all(c.passed for c in checks)
    assert get_num_threads() == threads


def test_a_backend_that_cannot_run_says_why(monkeypatch):
    monkeypatch.setattr(subjects, "explain_unavailable", lambda name: "no CUDA device")
    with pytest.raises(ValueError, match="'gpu' cannot run here: no CUDA device"):
        plan_run(backends=["gpu"])


def test_arguments_move_to_the_device_and_back(monkeypatch, tmp_path):
    """Arguments are copied to the device and results to the host (CuPy's stand-in, with gpu-host's kernels)."""
    cupy_stand_in.install_cupy(monkeypatch, tmp_path)
    monkeypatch.setattr(subjects, "explain_unavailable", lambda name: "")
    op = OPERATORS["gno_message_bwd"]
    values = build_case(op.definition, list_variants(op.definition)[1], "float64", 0).arguments(op)
    results, expected = (subjects.make_backend_subject(name).call(op, values, None) for name in ("gpu", "gpu-host"))
    assert results.keys() == expected.keys()
    assert all(results[name].tobytes() == array.tobytes() for name, array in expected.items())


def test_wrong_wrt_subsets_and_none_cotangents_are_caught(monkeypatch):
    name = "gno_kernel_bwd2"
    good = subjects.FUNCTIONS[name]

    def list_failed_checks(function):
        monkeypatch.setitem(subjects.FUNCTIONS, name, function)
        units = [u for u in plan_run([name], ["pyref"], ["float64"]) if u.label.endswith("calls")]
        return {(c.kind, c.case, c.field) for u in units for c in u.execute() if not c.passed}

    def ignore_wrt(wrt=None, **arguments):
        return good(**arguments)

    def change_last_bit(wrt=None, **arguments):
        result = good(wrt=wrt, **arguments)
        if wrt is not None and result.params is not None:
            result.params[...] = np.nextafter(result.params, np.inf)
        return result

    def replace_none_by_ones(gg_coords, wrt=None, **arguments):
        gg = np.ones_like(arguments["coords"]) if gg_coords is None else gg_coords
        return good(gg_coords=gg, wrt=wrt, **arguments)

    assert ("repeat", "regular, coords alone", "coords") in list_failed_checks(ignore_wrt)
    alone = {f"{v}, params alone" for v in (*VARIANTS, "no edges")}
    assert {case for _, case, _ in list_failed_checks(change_last_bit)} == alone
    without = {("accuracy", f"{v}, gg_coords=None") for v in VARIANTS}
    assert {(kind, case) for kind, case, _ in list_failed_checks(replace_none_by_ones)} == without


# Golden vectors: search, missing files, and detection of changed values.

PACKAGED_NAMES = tuple(sorted(path.stem for path in golden.PACKAGED.glob("*.npz")))
MISSING_NAMES = tuple(name for names in golden.FILES.values() for name in names if name not in PACKAGED_NAMES)


@pytest.fixture
def empty_golden_folder(monkeypatch, tmp_path):
    """Use an empty directory for additional golden vectors."""
    monkeypatch.setenv("TRIGRAPH_GOLDEN", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    return tmp_path


def test_every_definition_has_packaged_vectors():
    operators = set()
    for name in PACKAGED_NAMES:
        vectors = list(golden.read_vectors(name, golden.PACKAGED / f"{name}.npz"))
        assert all(v.expected for v in vectors)
        operators |= {v.operator for v in vectors}
    # The golden vectors contain no derivatives of these operators.
    alone = {f"basis_embedding_{form}_{order}" for form in ("radial", "triplets") for order in ("bwd", "bwd2")}
    alone |= {"gno_kernel_bwd2", "gno_aggregate_bwd2"}
    assert set(OPERATORS) - alone <= operators


def test_missing_vectors_are_skipped_outside_ci(empty_golden_folder):
    assert sorted(golden.find_golden_files()) == sorted(PACKAGED_NAMES)
    assert golden.list_missing_vectors() == MISSING_NAMES
    assert golden.list_missing_vector_failures() == []
    ((what, why),) = cli._list_skip_reasons([Check("gno_kernel_fwd", *[""] * 5, 0.0, 0.0)], True, False)
    assert what == "2 files of golden vectors (2 of gno)"
    assert why.startswith(f"not in {empty_golden_folder}; TRIGRAPH_GOLDEN=DIR names another")
    labels = {u.label.split(":")[0] for u in plan_run(backends=["pyref"]) if "golden" in u.label}
    assert labels == {f"golden {name}" for name in PACKAGED_NAMES}


def test_missing_vectors_fail_under_ci(empty_golden_folder, monkeypatch):
    monkeypatch.setenv("CI", "true")
    failed = golden.list_missing_vector_failures()
    assert [c.case for c in failed] == list(MISSING_NAMES)
    assert not any(c.passed for c in failed)
    assert any(u.label == "golden vectors that are missing" for u in plan_run(backends=["pyref"]))


def test_missing_golden_directory_passes_under_ci(monkeypatch):
    monkeypatch.setattr(golden, "find_golden_directory", lambda: None)
    monkeypatch.setenv("CI", "true")
    assert golden.list_missing_vector_failures() == []
    assert golden.list_missing_vectors() == MISSING_NAMES


def read_golden_vector(name, operator):
    return next(v for v in golden.read_vectors(name, golden.PACKAGED / f"{name}.npz") if v.operator == operator)


@pytest.mark.parametrize(
    ("name", "operator", "change", "single"),
    [
        ("gno_d1_H8_Fi1_Fo8", "gno_message_bwd", 1e-12, False),
        ("gno_d1_H8_Fi1_Fo8", "gno_message_bwd", np.nan, False),
        ("dimenet_H2O", "agg_edge_to_edge_bwd", 1e-9, False),  # a larger change, because long sums cancel
        ("gno_d1_H8_Fi1_Fo8", "gno_kernel_fwd", 1e-5, True),
        ("gno_d1_H8_Fi1_Fo8", "gno_kernel_fwd", np.nan, True),
    ],
)
def test_changed_golden_value_is_noticed(name, operator, change, single):
    """A change of the largest value is detected, also in golden vectors that were computed in float32."""
    right = replace(read_golden_vector(name, operator), single=single)
    ways = [*((subjects.make_backend_subject("pyref"), dtype) for dtype in right.dtypes), (None, "float64")]
    assert all(c.passed for subject, dtype in ways for c in golden.check_golden_vector(subject, right, dtype))
    for name in right.expected:
        changed = {n: a.copy() for n, a in right.expected.items()}
        at = np.unravel_index(np.argmax(abs(changed[name])), changed[name].shape)
        changed[name][at] *= 1 + change
        other = replace(right, expected=changed)
        for subject, dtype in ways:
            assert [c.field for c in golden.check_golden_vector(subject, other, dtype) if not c.passed] == [name]
