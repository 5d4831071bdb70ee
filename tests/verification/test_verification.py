"""The whole run on the panels of the package: everything is checked, and everything agrees."""

import os
import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from trigraph.fortran.threads import get_num_threads
from trigraph.panels import PANELS
from trigraph.table import DEFINITIONS, OPERATORS
from trigraph.verification import isolated, subjects
from trigraph.verification.cases import build, variants
from trigraph.verification.isolated import Workers
from trigraph.verification.properties import levels
from trigraph.verification.record import KINDS
from trigraph.verification.run import DTYPES, EMULATED, available_panels, plan, run
from trigraph.verification.units import counted

HOST = ("pyref", "fortran", "fortran-reference", "gpu-host")
VARIANTS = ("regular", "second sizes", "one channel")  # whose calls are varied where there is no graph


@pytest.fixture(scope="module")
def units():
    return []


@pytest.fixture(scope="module")
def checks(units):
    """Return the checks of a whole run by two processes, as the command line makes it."""
    units += [(unit.label, found) for unit, found in Workers([{}], 2).execute()]
    return [check for _, found in units for check in found]


def test_every_check_passes(checks):
    assert [c for c in checks if not c.passed] == []


def test_every_host_panel_is_there():
    assert set(HOST) < set(available_panels())
    assert available_panels()[-1] == "judge"


def test_every_panel_is_checked_in_every_way(checks):
    kinds = {(c.panel, c.kind) for c in checks}
    assert {c.kind for c in checks} == set(KINDS) - {"complete", "not offered"} - (set() if levels()[1] else {"levels"})
    for panel in available_panels()[:-1]:
        common = {"accuracy", "golden", "adjoint", "symmetry", "permutation", "repeat", "layout", "empty"}
        assert {(panel, kind) for kind in common} <= kinds
    for panel in ("pyref", "fortran", "fortran-reference", "judge"):
        assert (panel, "differences") in kinds
    assert ("judge", "golden") in kinds
    assert ("fortran", "threads") in kinds


def test_every_field_is_compared_with_the_judge_in_every_case(checks):
    found = Counter((c.operator, c.panel, c.dtype, c.case, c.field) for c in checks if c.kind == "accuracy")
    assert set(found.values()) == {1}
    for panel in available_panels()[:-1]:
        for op in OPERATORS.values():
            for variant in variants(op.definition):
                absent = {name for name, value in variant.setting.items() if value is None}
                for field in op.fields:
                    if field.when or (field.optional and field.name in absent):
                        continue  # whether it is there depends on the choices; see below
                    keys = [(op.name, panel, dtype, variant.label, field.name) for dtype in ("float32", "float64")]
                    in_turn = panel in EMULATED and variant.kind.large
                    assert sum(key in found for key in keys) >= (1 if in_turn else 2)
            for field in op.fields:
                assert any(key[:2] == (op.name, panel) and key[4] == field.name for key in found)


def test_every_derivative_is_differenced(checks):
    found = {(c.operator, c.panel, c.field) for c in checks if c.kind == "differences"}
    for panel in ("pyref", "fortran", "fortran-reference", "judge"):
        for op in (op for op in OPERATORS.values() if op.order):
            assert {(op.name, panel, f.name) for f in op.fields} <= found
    for c in checks:
        if c.kind == "differences":
            assert len(c.curve) >= 4
            assert c.tolerance <= (1e-19 if c.panel == "judge" else 1e-7)


def test_checks_in_one_dtype_meet_every_setting_and_both_dtypes(checks):
    """NaN, and calls of some cases, take dtypes in turn; together they leave out no operator, panel or setting."""
    kinds = {"nan": None, "out": ("skewed", "one channel"), "layout": ("skewed", "one channel")}
    for kind, names in kinds.items():
        found = {(c.operator, c.panel, c.case.split(", spoilt")[0]) for c in checks if c.kind == kind}
        dtypes = {(c.operator, c.panel, c.dtype) for c in checks if c.kind == kind}
        for panel in HOST:
            for op in OPERATORS.values():
                for variant in variants(op.definition):
                    if variant.kind.differenced if names is None else variant.name in names:
                        assert (op.name, panel, variant.label) in found
                assert {(op.name, panel, dtype) for dtype in DTYPES} <= dtypes


@pytest.mark.parametrize("name", ["gno_kernel", "agg_weighted_n2n"])
def test_one_dtype_alone_is_checked_in_full(name):
    both, single = ([u.label for u in plan([name], ["pyref"], dtypes)] for dtypes in (DTYPES, ["float32"]))
    for end in ("nan", "calls"):
        taken, alone = ([label for label in labels if label.endswith(end)] for labels in (both, single))
        assert {label.replace("float64", "float32") for label in taken} == set(alone)


def test_units_are_the_plan(units, checks):
    planned = plan()
    assert sorted(u.label for u in planned) == sorted(label for label, _ in units)
    assert sum(len(found) for _, found in units) == len(checks)
    assert sum(u.planned() for u in planned) == counted(checks)
    assert all(u.weight > 0 for u in planned)


def test_processes_share_the_processors(monkeypatch):
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "3")
    before = dict(os.environ)
    with isolated._sharing_processors(1):
        assert dict(os.environ) == before
    with isolated._sharing_processors(2):
        there = {name: os.environ[name] for name in isolated.SHARING}
        assert there == {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "3", "OMP_WAIT_POLICY": "passive"}
    assert dict(os.environ) == before


def test_selections():
    threads = get_num_threads()
    for name in ("gno_aggregate_bwd", "gno_aggregate", "gno"):
        ops = {
            c.operator for u in plan([name], ["pyref"], ["float32"]) for c in u.execute() if "airfoil" not in u.label
        }
        assert ops == {o.name for o in OPERATORS.values() if name in (o.name, o.definition.name, o.family)}
    checks = run(["gno_aggregate_bwd"], ["pyref", "judge"], ["float64"], seed=7)
    assert {c.panel for c in checks} == {"pyref", "judge"}
    assert {c.dtype for c in checks} == {"float64", "real128"}
    assert all(c.passed for c in checks)
    assert get_num_threads() == threads


@pytest.mark.slow
def test_another_seed_agrees():
    units = plan(panels=["pyref", "fortran"], dtypes=["float64"], seed=1)
    # Golden vectors are the same for every seed. The cases of the other names are too large for a second run.
    large = ("golden", "airfoil", "power law", "copper slab", "hub of")
    wanted = [u for u in units if not any(name in u.label for name in large)]
    assert [c for u in wanted for c in u.execute() if not c.passed] == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"operators": ["gno_kernel_fwd", "nonsense"]}, "operator is 'nonsense'"),
        ({"panels": ["nonsense"]}, "panel is 'nonsense'"),
        ({"dtypes": ["float16"]}, "dtype is 'float16'"),
    ],
)
def test_bad_requests_say_so(arguments, text):
    with pytest.raises(ValueError, match=text):
        run(**arguments)


def test_a_panel_that_cannot_run_says_why(monkeypatch):
    monkeypatch.setattr(subjects, "unavailable", lambda name: "no CUDA device")
    with pytest.raises(ValueError, match="'gpu' cannot run here: no CUDA device"):
        plan(panels=["gpu"])


def test_arguments_move_to_the_device_and_back(monkeypatch):
    """With a stand-in for CuPy that hands out copies: every array of a call and of its graph is moved, nothing else."""
    moved = []

    def asarray(array):
        moved.append(array)
        return array.copy()

    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(asarray=asarray))
    case = build(
        OPERATORS["gno_message_bwd"].definition, variants(OPERATORS["gno_message_bwd"].definition)[1], "float64", 0
    )
    values = case.arguments(OPERATORS["gno_message_bwd"])
    there = {name: subjects.to_device(value) for name, value in values.items()}
    graph, copy = values["graph"], there["graph"]
    assert copy is not graph
    assert (copy.num_src_nodes, copy.num_dst_nodes, copy.num_edges) == (
        graph.num_src_nodes,
        graph.num_dst_nodes,
        graph.num_edges,
    )
    for name in ("offsets", "indices", "edge_ids"):
        assert any(getattr(graph, name) is array for array in moved)
        assert np.array_equal(getattr(copy, name), getattr(graph, name))
    assert len(moved) == 3 + sum(isinstance(value, np.ndarray) for value in values.values())
    assert there["f_in"] == values["f_in"]


def test_a_panel_that_fails_is_reported(monkeypatch):
    """A panel that raises, or forgets a field, or is late with a dtype, is a failed check and no exception."""
    definition = DEFINITIONS[0]
    good = subjects.FUNCTIONS[f"{definition.name}_bwd"]

    def broken(*args, **kwargs):
        result = good(*args, **kwargs)
        return result._replace(coords=None if result.coords is None else result.coords.astype(np.float32))

    monkeypatch.setitem(subjects.FUNCTIONS, f"{definition.name}_bwd", broken)
    units = [u for u in plan([f"{definition.name}_bwd"], ["pyref"], ["float64"]) if "airfoil" not in u.label]
    failed = [c for u in units for c in u.execute() if not c.passed]
    assert {c.field for c in failed if c.kind == "accuracy"} == {"coords"}
    assert {c.note for c in failed if c.kind == "accuracy"} == {"coords has dtype float32; expected float64"}

    def raising(*args, **kwargs):
        raise MemoryError("none left")

    monkeypatch.setitem(subjects.FUNCTIONS, f"{definition.name}_bwd", raising)
    failed = [c for u in units for c in u.execute()]
    assert not any(c.passed for c in failed)
    assert all("MemoryError: none left" in c.note for c in failed)


def test_wrong_subsets_and_cotangents_that_are_none_are_caught(monkeypatch):
    name = "gno_kernel_bwd2"
    good = subjects.FUNCTIONS[name]

    def failed(function):
        monkeypatch.setitem(subjects.FUNCTIONS, name, function)
        units = [u for u in plan([name], ["pyref"], ["float64"]) if u.label.endswith("calls")]
        return {(c.kind, c.case, c.field) for u in units for c in u.execute() if not c.passed}

    def everything(wrt=None, **arguments):
        return good(**arguments)

    def other_bits(wrt=None, **arguments):
        result = good(wrt=wrt, **arguments)
        if wrt is not None and result.params is not None:
            result.params[...] = np.nextafter(result.params, np.inf)
        return result

    def ones(gg_coords, wrt=None, **arguments):
        gg = np.ones_like(arguments["coords"]) if gg_coords is None else gg_coords
        return good(gg_coords=gg, wrt=wrt, **arguments)

    assert ("repeat", "regular, coords alone", "coords") in failed(everything)
    assert {case for _, case, _ in failed(other_bits)} == {f"{v}, params alone" for v in (*VARIANTS, "no edges")}
    assert {(kind, case) for kind, case, _ in failed(ones)} == {("accuracy", f"{v}, gg_coords=None") for v in VARIANTS}


def test_panels_are_those_of_the_package():
    assert set(HOST) | {"gpu"} == set(PANELS)
