"""Tests of the command line: exit statuses, usage errors and printed output, mostly with fake check results."""

import errno
import json
import math
import os
import pathlib
from dataclasses import replace

import pytest
from click.testing import CliRunner

import trigraph
from slopecheck import isolated, units
from slopecheck.record import Check
from trigraph.backends import BACKENDS
from trigraph.cli import COMMAND_GROUPS, main
from trigraph.table import DEFINITIONS, OPERATORS
from trigraph.verification import run, structures

GOOD = Check(
    "gno_kernel_bwd", "pyref", "float64", "accuracy", "regular", "coords", 1.5, 8.0, seconds=0.25, digest="a" * 16
)
EXACT = replace(GOOD, kind="differences", error=1e-12, tolerance=1e-7, curve=((0.5, 1e-12),), digest=None)
REPEAT = replace(GOOD, kind="repeat", error=0.0, tolerance=0.0, digest=None)


@pytest.fixture
def runner(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0}, raising=False)  # prevents worker processes
    for name in ("COLUMNS", "CI", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    return CliRunner()


@pytest.fixture
def verify_fake_checks(runner, monkeypatch):
    """Return a function that runs `trigraph verify` with fake checks; `planned` determines their planned number."""

    def invoke_verify(checks, *options, planned=len):
        plan_options = []

        def plan_fake_checks(**options):
            plan_options.append(options)
            return [units.WorkUnit(f"unit {len(plan_options)}", 1.0, lambda: planned(checks), lambda: list(checks))]

        monkeypatch.setattr(run, "plan_run", plan_fake_checks)
        result = runner.invoke(main, ["verify", "--backend", "pyref", *map(str, options)], catch_exceptions=False)
        result.asked = plan_options
        return result

    return invoke_verify


def last_line(result):
    return result.stdout.rstrip("\n").split("\n")[-1]


def test_passed_checks_give_exit_status_zero(verify_fake_checks):
    result = verify_fake_checks([GOOD, EXACT, REPEAT])
    assert result.exit_code == 0
    assert last_line(result) == "3 checks passed, 0 failed"
    lines = [line.split() for line in result.stdout.splitlines()]
    row = lines[lines.index(["gno_kernel_bwd"]) + 1]
    assert row == ["✓", "pyref", "float64", "1.5", "8", "exact", "1/1", "0.75"]
    assert "eps × scale" in result.stdout


def test_output_outside_a_terminal_is_plain_text(runner, monkeypatch):
    bad = replace(GOOD, error=9.0)
    parts = {"gno_kernel": [GOOD, bad], "mha_gat_n2n": [GOOD], "golden gno_x": [GOOD], "benzene": [GOOD]}
    # Two units per part; their results arrive in mixed order.
    planned = [
        units.WorkUnit(f"{name}, regular, float64: {i}", 1.0, lambda c=checks: len(c), lambda c=checks: c)
        for name, checks in parts.items()
        for i in range(2)
    ]
    order = [0, 2, 1, 4, 6, 3, 5, 7]
    monkeypatch.setattr(run, "plan_run", lambda **a: planned)
    monkeypatch.setattr(
        units, "execute_units", lambda all_units: ((all_units[i], all_units[i].execute()) for i in order)
    )
    result = runner.invoke(main, ["verify", "--backend", "pyref"])
    assert "\x1b" not in result.output
    assert [line.rpartition(",")[0] for line in result.stderr.splitlines()] == [
        "gno_kernel: 2 checks passed, 2 failed",
        "mha_gat_n2n: 2 checks passed, 0 failed",
        "golden vectors: 2 checks passed, 0 failed",
        "forces: 2 checks passed, 0 failed",
    ]
    assert all(line.endswith(" s") for line in result.stderr.splitlines())
    first = result.stdout.splitlines()[0]
    assert first == "Running 10 checks on 2 operators, and one for each sum without terms."


def test_every_work_unit_has_a_section():
    planned = run.plan_run(backends=["pyref", "judge"])
    assert {run.find_section_name(u) for u in planned} == {*(d.name for d in DEFINITIONS), "golden vectors", "forces"}
    labels = [run.find_section_name(u) for u in planned if u.label.endswith("judge differences")]
    assert set(labels) == {d.name for d in DEFINITIONS}


@pytest.mark.parametrize("error", [9.0, math.nan, math.inf])
def test_failed_checks_are_listed_with_exit_status_1(verify_fake_checks, error):
    bad = replace(GOOD, error=error, field="params", note="[off] by one")
    result = verify_fake_checks([GOOD, bad, replace(bad, case="wide"), replace(GOOD, case="long")])
    assert result.exit_code == 1
    assert last_line(result) == "2 checks passed, 2 failed"
    again = "trigraph verify --operator gno_kernel_bwd --dtype float64 --seed 0 --backend pyref"
    assert f"Next: repeat the first failed check: {again}\n" in result.stdout
    (listed,) = (line for line in result.stdout.splitlines() if "✗ gno_kernel_bwd in pyref" in line)
    reason = "accuracy of params" if math.isfinite(error) else "accuracy: [off] by one"
    assert reason in listed
    assert "2 checks (float64" in listed
    assert "in 2 of 3 cases: regular; wide" in listed
    assert ("error 9 > 8 in regular" in listed) == math.isfinite(error)


def test_the_first_failed_check_is_repeated_by_its_settings(verify_fake_checks):
    """The command that repeats a failure lists the settings in order, because random numbers depend on the order."""
    case = "regular, op=mean, mean_by=weight, edge_weight=None, dtype=odd"
    bad = replace(GOOD, operator="agg_weighted_n2n_bwd", case=case, error=9.0)
    where = ("op=mean", "op=sum", "src_embedding=given")
    result = verify_fake_checks([bad], "--operator", "weighted", *(word for w in where for word in ("--where", w)))
    named = ("op=mean", "mean_by=weight", "edge_weight=None", "src_embedding=given")
    words = " ".join(f"--where {setting}" for setting in named)
    again = f"trigraph verify --operator agg_weighted_n2n_bwd --dtype float64 --seed 0 --backend pyref {words}"
    assert f"Next: repeat the first failed check: {again}\n" in result.stdout


def test_unoffered_checks_neither_pass_nor_fail(verify_fake_checks, tmp_path):
    absent = replace(GOOD, kind="not offered", case="gno_kernel, wide, float64: f accuracy", error=3, note="only d = 1")
    result = verify_fake_checks([GOOD, absent], "--report", tmp_path)  # `absent` stands for 3 planned checks
    assert last_line(result) == "1 checks passed, 0 failed, 3 not offered"
    assert "Not offered by pyref: 3 checks of gno_kernel_bwd: only d = 1" in result.stdout
    assert "(3 not offered)" in result.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["counts"]["passed"], report["counts"]["failed"], report["counts"]["not_offered"]) == (1, 0, 3)


@pytest.mark.parametrize(("num_passed", "status"), [(1, 0), (0, 1)])
def test_runs_with_only_unoffered_checks_fail(verify_fake_checks, num_passed, status):
    absent = replace(GOOD, kind="not offered", case="all", field="", error=3, note="NotImplementedError")
    result = verify_fake_checks([absent, *[GOOD] * num_passed], planned=lambda checks: 3 + num_passed)
    assert result.exit_code == status
    assert last_line(result) == f"{num_passed} checks passed, 0 failed, 3 not offered"


def test_options_reach_the_plan(verify_fake_checks):
    options = ("--operator", "gno_kernel", "--operator", "gno_aggregate_fwd", "--dtype", "float32", "--seed", "3")
    result = verify_fake_checks([GOOD], *options, "--backend", "judge")
    request = {"operators": ("gno_kernel", "gno_aggregate_fwd"), "seed": 3, "where": ()}
    nothing = dict.fromkeys(("implementation", "framework", "device")) | {"structures": [], "alone": False, "skip": ()}
    assert result.asked == [{**request, **nothing, "backends": ["pyref"], "dtypes": ["float32"]}]
    request = {"operators": None, "seed": 0, "where": ("op=sum", "op=max")}
    where = ("--where", "op=sum", "--where", "op=max")
    result = verify_fake_checks([GOOD], "--backend", "judge", "--dtype", "float32", "--dtype", "real128", *where)
    judge = {**request, "backends": ["judge"], "dtypes": ["float64"]}
    assert result.asked == [{**request, **nothing, "backends": ["pyref"], "dtypes": ["float32"]}, judge]
    result = verify_fake_checks([GOOD], "--backend", "judge", "--dtype", "real128", *where)
    assert result.asked == [judge]
    result = verify_fake_checks([GOOD], "--backend", "judge", *where)
    assert result.asked == [{**request, **nothing, "backends": ["pyref", "judge"], "dtypes": ["float32", "float64"]}]


def test_structures_reach_the_plan(verify_fake_checks, tmp_path):
    path = tmp_path / "hydrogen.xyz"
    path.write_text("2\n\nH 0 0 0\nH 0 0 4.5\n")
    result = verify_fake_checks([GOOD], "--structure", path)
    (structure,) = result.asked[0]["structures"]
    assert (structure.name, structure.cutoff, len(structure.src)) == ("hydrogen.xyz", 5.0, 2)
    assert result.asked[0]["alone"]
    assert result.stdout.startswith("Structure hydrogen.xyz: 2 atoms, 2 edges within 5, 2 triplets. The judge checks")
    assert "files of golden vectors" not in result.stdout
    result = verify_fake_checks(
        [GOOD], "--structure", path, "--structure", path, "--cutoff", 6, "--operator", "dimenet"
    )
    assert [s.cutoff for s in result.asked[0]["structures"]] == [6.0, 6.0]
    assert not result.asked[0]["alone"]
    result = verify_fake_checks([GOOD], "--structure", path, "--cutoff", 4)
    assert result.exit_code == 2
    assert result.asked == []
    assert "no two of its 2 atoms are closer than 4" in " ".join(result.stderr.replace("│", " ").split())


def test_implementation_reaches_the_plan_alone(runner, monkeypatch):
    plan_options = []

    def record_workers_and_stop(plan, requests, processes, seconds):
        plan_options.extend([*requests, processes, seconds])
        raise ValueError("that is enough")

    monkeypatch.setattr(isolated, "WorkerPool", record_workers_and_stop)
    options = ["--operator", "gno_kernel_bwd", "--timeout", "3", "--skip", "nan=spread by 0 * NaN"]
    runner.invoke(main, ["verify", "--implementation", "mine:f", *options])
    request, processes, seconds = plan_options
    assert (seconds, request["skip"]) == (3, ("nan",))
    assert (request["implementation"], request["operators"]) == ("mine:f", ("gno_kernel_bwd",))
    assert (request["backends"], request["dtypes"], processes) == ([], ["float32", "float64"], 1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--operator", "gno_kernal"), ("gno_kernal", "gno_kernel_bwd", "gno_kernel", "gno")),
        (("--backend", "cuda"), ("cuda", *BACKENDS, "judge")),
        (("--dtype", "float16"), ("float16", "float32", "float64", "real128")),
        (("--backend", "judge", "--dtype", "float32"), ("nothing to verify", "real128")),
        (("--implementation", "nonsense"), ("nonsense", "module:function")),
        (("--skip", "nan=why"), ("--skip requires an --implementation",)),
        (("--implementation", "mine:f", "--skip", "nan"), ("expected KIND=WHY",)),
        (("--against", "no_such.json"), ("no_such.json",)),
        (("--operator", "weighted", "--where", "op=median"), ("'op=median'", "sum, mean, min, max")),
        (("--operator", "weighted", "--where", "aggregation=sum"), ("'aggregation'", "op, mean_by, edge_weight")),
        (("--operator", "weighted", "--where", "op"), ("'op'", "NAME=VALUE")),
        (("--where", "op=sum"), ("gno_kernel has no setting 'op'",)),
        (("--structure", "no_such.xyz@2"), ("no_such.xyz is not a file",)),
        (("--cutoff", "4"), ("--cutoff requires a --structure",)),
        (("--backend", "pyref", "--operator", "gno_kernel_fwd", "--report", f"{__file__}/report"), ("'--report'",)),
    ],
)
def test_wrong_verify_options_exit_with_status_2(runner, options, expected):
    result = runner.invoke(main, ["verify", *options])
    assert result.exit_code == 2
    for text in expected:
        assert text in result.stderr
    assert "Traceback" not in result.stderr


def test_report_is_written_and_compared_with_earlier(verify_fake_checks, tmp_path):
    folder = tmp_path / "deep" / "report"
    assert verify_fake_checks([GOOD, EXACT], "--report", folder, "--seed", 5).exit_code == 0
    report = json.loads((folder / "report.json").read_text())
    assert report["seed"] == 5
    assert report["command"] == f"trigraph verify --backend pyref --report {folder} --seed 5"
    assert report["environment"]["trigraph"]["version"] == trigraph.__version__
    assert (folder / "report.html").is_file()
    (folder / "report.json").write_text(json.dumps(report | {"seconds": 126.4}))
    for seed, is_shown in ((5, True), (6, False)):  # only an earlier run of the same command is considered
        first = verify_fake_checks([GOOD, EXACT], "--report", folder, "--seed", seed).stdout.split("\n")[0]
        assert first.endswith(" (last time: 2 min 6 s).") is is_shown
    (folder / "report.json").write_text(json.dumps(report))

    other_bits = replace(GOOD, digest="b" * 16, error=3.5)
    again = verify_fake_checks([other_bits, EXACT, REPEAT], "--against", folder / "report.json", "--report", folder)
    assert again.exit_code == 0
    assert "0 outputs are bitwise equal, 1 differ" in again.stdout
    assert last_line(again) == "3 checks passed, 0 failed"
    assert "Changes since" in (folder / "report.html").read_text()


def test_against_refuses_files_other_than_reports(verify_fake_checks, tmp_path):
    (tmp_path / "package.json").write_text('{"name": "something else"}')
    result = verify_fake_checks([GOOD], "--against", tmp_path / "package.json")
    assert result.exit_code == 2
    assert "package.json is not a report of checks" in result.stderr
    assert result.asked == []


def test_a_report_that_cannot_be_written_at_the_end_fails_the_run(verify_fake_checks, tmp_path, monkeypatch):
    def raise_disk_full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pathlib.Path, "write_bytes", raise_disk_full)
    result = verify_fake_checks([GOOD, EXACT], "--report", tmp_path)
    assert (result.exit_code, last_line(result)) == (1, "2 checks passed, 0 failed")
    assert "the report was not written" in result.stderr


def test_a_structure_of_too_many_edges_is_refused_before_it_is_built(runner, tmp_path):
    path = tmp_path / "salt.xyz"
    path.write_text('2\nLattice="4 0 0 0 4 0 0 0 4" Properties=species:S:1:pos:R:3 pbc="T T T"\nH 0 0 0\nH 2 2 2\n')
    result = runner.invoke(main, ["verify", "--operator", "dimenet", "--structure", str(path), "--cutoff", "100000"])
    assert result.exit_code == 2
    text = " ".join(result.stderr.replace("│", " ").split())
    assert "salt.xyz: about 2.6e+14 edges within 100000 need 6.7e+16 bytes" in text


def test_info_command_shows_versions_and_backends(runner):
    result = runner.invoke(main, ["info"])
    assert result.exit_code == 0
    for word in ("trigraph", "Python", "numpy", "processor", "device", *BACKENDS, "judge", trigraph.get_cpu_level()):
        assert word in result.stdout


def test_operators_command_lists_all_operators(runner):
    result = runner.invoke(main, ["operators"])
    assert result.exit_code == 0
    for name in OPERATORS:
        assert name in result.stdout
    assert "coords (num_edges, d)" in result.stdout


def test_version_and_help_show_version_and_commands(runner):
    assert runner.invoke(main, ["--version"]).stdout.strip().endswith(trigraph.__version__)
    shown = runner.invoke(main, ["--help"]).stdout
    assert len(shown.splitlines()) <= 24  # fits on a screen
    commands = [name for names in COMMAND_GROUPS.values() for name in names]
    assert sorted(commands) == sorted(main.list_commands(None))
    for command in (*commands, *COMMAND_GROUPS):
        assert command in shown
    assert "--repeat" in runner.invoke(main, ["bench", "--help"]).stdout


def test_index_selects_a_frame_of_trajectory(tmp_path):
    path = tmp_path / "h@2.xyz"
    path.write_text("".join(f"2\n\nH 0 0 0\nH 0 0 {z}\n" for z in (1, 2, 3)))
    heights = {"": 3, "@0": 1, "@1": 2, "@-1": 3, "@-3": 1}
    for index, height in heights.items():
        structure = structures.read_structure(f"{path}{index}", 5.0)
        assert (structure.name, structure.positions[1, 2]) == (f"h@2.xyz{index}", height)
    for index in ("@3", "@-4"):
        with pytest.raises(ValueError, match=rf"h@2.xyz has no frame {index[1:]}; 0 is the first, -1 the last"):
            structures.read_structure(f"{path}{index}", 5.0)
    for index in ("@", "@:", "@1:2"):
        with pytest.raises(ValueError, match="expected one number"):
            structures.read_structure(f"{path}{index}", 5.0)
