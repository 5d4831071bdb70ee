"""The command line: exit statuses, usage errors, and what is printed. All but the last runs are of made-up checks."""

import errno
import json
import math
import os
import pathlib
import subprocess
import sys
from dataclasses import replace

import ase.build
import pytest
from click.testing import CliRunner

import trigraph
from trigraph.cli import main
from trigraph.panels import PANELS
from trigraph.table import DEFINITIONS, OPERATORS
from trigraph.verification import golden, isolated, progress, run, structures, units
from trigraph.verification.failures import remark
from trigraph.verification.graphs import GRAPHS
from trigraph.verification.record import Check

GOOD = Check(
    "gno_kernel_bwd", "pyref", "float64", "accuracy", "regular", "coords", 1.5, 8.0, seconds=0.25, digest="a" * 16
)
EXACT = replace(GOOD, kind="differences", error=1e-12, tolerance=1e-7, curve=((0.5, 1e-12),), digest=None)
REPEAT = replace(GOOD, kind="repeat", error=0.0, tolerance=0.0, digest=None)


@pytest.fixture
def runner(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0}, raising=False)  # no processes to share the work
    for name in ("COLUMNS", "CI", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    return CliRunner()


@pytest.fixture
def verify(runner, monkeypatch):
    """Run `trigraph verify` with the given checks in place of the real ones, by default as many as are planned."""

    def invoke(checks, *options, planned=len):
        asked = []

        def plan(**given):
            asked.append(given)
            return [units.Unit(f"unit {len(asked)}", 1.0, lambda: planned(checks), lambda: list(checks))]

        monkeypatch.setattr(run, "plan", plan)
        result = runner.invoke(main, ["verify", "--panel", "pyref", *map(str, options)], catch_exceptions=False)
        result.asked = asked
        return result

    return invoke


def last_line(result):
    return result.stdout.rstrip("\n").split("\n")[-1]


def test_success(verify):
    result = verify([GOOD, EXACT, REPEAT])
    assert result.exit_code == 0
    assert last_line(result) == "3 checks passed, 0 failed"
    lines = [line.split() for line in result.stdout.splitlines()]
    row = lines[lines.index(["gno_kernel_bwd"]) + 1]
    assert row == ["✓", "pyref", "float64", "1.5", "8", "exact", "1/1", "0.75"]
    assert "eps * scale" in result.stdout


def test_output_that_is_no_terminal_is_plain_text_with_a_line_for_each_part(runner, monkeypatch):
    bad = replace(GOOD, error=9.0)
    parts = {"gno_kernel": [GOOD, bad], "mha_gat_n2n": [GOOD], "golden gno_x": [GOOD], "benzene": [GOOD]}
    # Two units of each part, whose results come back in any order.
    planned = [
        units.Unit(f"{name}, regular, float64: {i}", 1.0, lambda c=checks: len(c), lambda c=checks: c)
        for name, checks in parts.items()
        for i in range(2)
    ]
    order = [0, 2, 1, 4, 6, 3, 5, 7]
    monkeypatch.setattr(run, "plan", lambda **a: planned)
    monkeypatch.setattr(units, "execute", lambda found: ((found[i], found[i].execute()) for i in order))
    result = runner.invoke(main, ["verify", "--panel", "pyref"])
    assert "\x1b" not in result.output
    assert [line.rpartition(",")[0] for line in result.stderr.splitlines()] == [
        "gno_kernel: 2 checks passed, 2 failed",
        "mha_gat_n2n: 2 checks passed, 0 failed",
        "golden vectors: 2 checks passed, 0 failed",
        "forces: 2 checks passed, 0 failed",
    ]
    assert all(line.endswith(" s") for line in result.stderr.splitlines())
    first = result.stdout.splitlines()[0]
    parts = "gno_kernel, mha_gat_n2n, golden vectors, forces"
    assert first == (f"10 checks are planned, and zeros where nothing contributes, of {parts}.")


def test_every_unit_of_a_run_belongs_to_a_part():
    found = run.plan(panels=["pyref", "judge"])
    assert {progress.part_of(u) for u in found} == {*(d.name for d in DEFINITIONS), "golden vectors", "forces"}
    labels = [progress.part_of(u) for u in found if u.label.endswith("judge differences")]
    assert set(labels) == {d.name for d in DEFINITIONS}


@pytest.mark.parametrize("error", [9.0, math.nan, math.inf])
def test_failure(verify, error):
    bad = replace(GOOD, error=error, field="params", note="[off] by one")
    result = verify([GOOD, bad, replace(bad, case="wide"), replace(GOOD, case="long")])
    assert result.exit_code == 1
    assert last_line(result) == "2 checks passed, 2 failed"
    (listed,) = (line for line in result.stdout.splitlines() if "✗ gno_kernel_bwd in pyref" in line)
    reason = "accuracy of params" if math.isfinite(error) else "accuracy: [off] by one"
    assert reason in listed
    assert "2 checks (float64" in listed
    assert "in 2 of 3 cases: regular; wide" in listed
    assert ("error 9 > 8 in regular" in listed) == math.isfinite(error)


def test_one_mistake_is_one_failure(verify):
    trace = "Traceback (most recent call last):\n  in mine\nKeyError: 'missing'"
    bad = replace(GOOD, error=math.inf, note="KeyError: 'missing'")
    kinds = [
        replace(bad, kind=kind, case=case) for kind in ("accuracy", "nan", "layout") for case in ("regular", "wide")
    ]
    other = replace(bad, kind="differences", note="gno_kernel_bwd: KeyError: 'missing'")
    shapes = [replace(bad, note=f"coords has shape ({n}, 3); expected (num_edges, d) = ({n}, 2)") for n in (3, 40)]
    result = verify([replace(kinds[0], trace=trace), *kinds[1:], other, *shapes])
    lines = result.stdout.splitlines()
    failed = lines[lines.index("Failed: 9 checks") :]
    assert failed[1] == (
        "  ✗ gno_kernel_bwd in pyref: KeyError: 'missing': 7 checks "
        "(float64; accuracy 2, nan 2, layout 2, differences 1; in 2 of 2 cases)"
    )
    assert failed[2:5] == [f"      {line}" for line in trace.splitlines()]
    assert "accuracy: coords has shape (3, 3); expected (num_edges, d) = (3, 2): 2 checks" in failed[5]
    assert "✗" not in "".join(failed[6:])


def test_what_is_special_about_a_case_is_said_where_it_fails(verify):
    bad = replace(GOOD, error=9.0)
    said = "integers: values before relu are exactly 0 here; convention: relu'(0) = 0"
    assert said in verify([GOOD, replace(bad, case="integers")]).stdout
    assert said not in verify([bad, replace(bad, case="integers")]).stdout
    names = {v.name for kind in GRAPHS.values() for v in kind.variants} - {"regular", "second sizes"}
    for definition in DEFINITIONS:
        assert all(remark(name, f"{definition.name}_bwd") for name in (*names, "hub of 5000, positive"))
        exact = remark("integers", f"{definition.name}_fwd")
        # DimeNet++'s kinks are those of lengths and angles, which no integers meet.
        assert ("convention" in exact) == bool(definition.kinks) or definition.family == "dimenet"


def test_what_is_not_offered_is_neither_passed_nor_failed(verify, tmp_path):
    absent = replace(GOOD, kind="not offered", case="gno_kernel, wide, float64: f accuracy", error=3, note="only d = 1")
    result = verify([GOOD, absent], "--report", tmp_path)  # four are planned: two units' worth
    assert last_line(result) == "1 checks passed, 0 failed, 3 not offered"
    assert "Not offered by pyref: 3 checks of gno_kernel_bwd: only d = 1" in result.stdout
    assert "(3 not offered)" in result.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["counts"]["passed"], report["counts"]["failed"], report["counts"]["not_offered"]) == (1, 0, 3)


@pytest.mark.parametrize(("made", "status"), [(1, 0), (0, 1)])
def test_nothing_but_what_is_not_offered_is_no_success(verify, made, status):
    absent = replace(GOOD, kind="not offered", case="all", field="", error=3, note="NotImplementedError")
    result = verify([absent, *[GOOD] * made], planned=lambda checks: 3 + made)
    assert result.exit_code == status
    assert last_line(result) == f"{made} checks passed, 0 failed, 3 not offered"


def test_options_reach_the_plan(verify):
    options = ("--operator", "gno_kernel", "--operator", "gno_aggregate_fwd", "--dtype", "float32", "--seed", "3")
    result = verify([GOOD], *options, "--panel", "judge")
    request = {"operators": ("gno_kernel", "gno_aggregate_fwd"), "seed": 3, "where": ()}
    nothing = {"structures": [], "alone": False, "implementation": None, "framework": None, "device": None}
    assert result.asked == [{**request, **nothing, "panels": ["pyref"], "dtypes": ["float32"]}]
    request = {"operators": None, "seed": 0, "where": ("op=sum", "op=max")}
    where = ("--where", "op=sum", "--where", "op=max")
    result = verify([GOOD], "--panel", "judge", "--dtype", "float32", "--dtype", "real128", *where)
    judge = {**request, "panels": ["judge"], "dtypes": ["float64"]}
    assert result.asked == [{**request, **nothing, "panels": ["pyref"], "dtypes": ["float32"]}, judge]
    result = verify([GOOD], "--panel", "judge", "--dtype", "real128", *where)
    assert result.asked == [judge]
    result = verify([GOOD], "--panel", "judge", *where)
    assert result.asked == [{**request, **nothing, "panels": ["pyref", "judge"], "dtypes": ["float32", "float64"]}]


def test_structures_reach_the_plan(verify, tmp_path):
    path = tmp_path / "hydrogen.xyz"
    path.write_text("2\n\nH 0 0 0\nH 0 0 4.5\n")
    result = verify([GOOD], "--structure", path)
    (structure,) = result.asked[0]["structures"]
    assert (structure.name, structure.cutoff, len(structure.src)) == ("hydrogen.xyz", 5.0, 2)
    assert result.asked[0]["alone"]
    assert result.stdout.startswith("Structure hydrogen.xyz: 2 atoms, 2 edges within 5, 2 triplets. The judge is asked")
    assert "files of golden vectors" not in result.stdout
    result = verify([GOOD], "--structure", path, "--structure", path, "--cutoff", 6, "--operator", "dimenet")
    assert [s.cutoff for s in result.asked[0]["structures"]] == [6.0, 6.0]
    assert not result.asked[0]["alone"]
    result = verify([GOOD], "--structure", path, "--cutoff", 4)
    assert result.exit_code == 2
    assert result.asked == []
    assert "no two of its 2 atoms are closer than 4" in " ".join(result.stderr.replace("│", " ").split())


def test_implementation_reaches_the_plan_alone(runner, monkeypatch):
    asked = []

    def workers(requests, processes):
        asked.extend([*requests, processes])
        raise ValueError("that is enough")

    monkeypatch.setattr(isolated, "Workers", workers)
    runner.invoke(main, ["verify", "--implementation", "mine:f", "--operator", "gno_kernel_bwd"])
    request, processes = asked
    assert (request["implementation"], request["operators"]) == ("mine:f", ("gno_kernel_bwd",))
    assert (request["panels"], request["dtypes"], processes) == ([], ["float32", "float64"], 1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--operator", "gno_kernal"), ("gno_kernal", "gno_kernel_bwd", "gno_kernel", "gno")),
        (("--panel", "cuda"), ("cuda", *PANELS, "judge")),
        (("--dtype", "float16"), ("float16", "float32", "float64", "real128")),
        (("--seed", "-1"), ("-1",)),
        (("--panel", "judge", "--dtype", "float32"), ("nothing to verify", "real128")),
        (("--panel", "pyref", "--dtype", "real128"), ("nothing to verify", "float32")),
        (("--implementation", "nonsense"), ("nonsense", "module:function")),
        (("--against", "no_such.json"), ("no_such.json",)),
        (("--operator", "weighted", "--where", "op=median"), ("'op=median'", "sum, mean, min, max")),
        (("--operator", "weighted", "--where", "aggregation=sum"), ("'aggregation'", "op, mean_by, edge_weight")),
        (("--operator", "weighted", "--where", "edge_weight=1"), ("edge_weight", "None, given")),
        (("--operator", "weighted", "--where", "op"), ("'op'", "NAME=VALUE")),
        (("--where", "op=sum"), ("gno_kernel has no setting 'op'",)),
        (("--structure", "no_such.xyz@2"), ("no_such.xyz is no file",)),
        (("--panel", "pyref", "--operator", "gno_kernel_fwd", "--report", f"{__file__}/report"), ("'--report'",)),
    ],
)
def test_usage_errors(runner, options, expected):
    result = runner.invoke(main, ["verify", *options])
    assert result.exit_code == 2
    for text in expected:
        assert text in result.stderr
    assert "Traceback" not in result.stderr


def test_panel_that_cannot_run_is_a_usage_error(runner):
    absent = [p for p in PANELS if p not in run.available_panels()]
    for panel in absent:
        result = runner.invoke(main, ["verify", "--panel", panel])
        assert result.exit_code == 2
        assert "cannot run here" in result.stderr


def test_skips_are_told(runner, monkeypatch):
    """Vectors that are not there, of the families that were checked, and panels that cannot run."""
    monkeypatch.setattr(run, "plan", lambda **a: [units.Unit("one", 1.0, lambda: 1, lambda: [GOOD])])
    asked = []
    monkeypatch.setattr(
        golden, "missing", lambda families: asked.append(set(families)) or ("athena_case99", "athena_case98")
    )
    result = runner.invoke(main, ["verify"])
    assert result.exit_code == 0
    assert asked == [{"gno"}]
    (line,) = (line for line in result.stdout.splitlines() if "golden" in line and "Skipped" in line)
    assert line.startswith("Skipped: 2 files of golden vectors (2 of gno): not there; TRIGRAPH_GOLDEN")
    for panel in (p for p in PANELS if p not in run.available_panels()):
        assert f"Skipped: panel {panel}: " in result.stdout


def test_report_and_comparison(verify, tmp_path):
    folder = tmp_path / "deep" / "report"
    assert verify([GOOD, EXACT], "--report", folder, "--seed", 5).exit_code == 0
    report = json.loads((folder / "report.json").read_text())
    assert report["seed"] == 5
    assert report["command"].startswith("trigraph verify --panel pyref --seed 5 --report ")
    assert report["environment"]["trigraph"]["version"] == trigraph.__version__
    assert (folder / "report.html").is_file()

    other_bits = replace(GOOD, digest="b" * 16, error=3.5)
    again = verify([other_bits, EXACT, REPEAT], "--against", folder / "report.json", "--report", folder)
    assert again.exit_code == 0
    assert "0 outputs have the same bits, 1 have other bits" in again.stdout
    assert "1 errors grew or shrank by more than a factor 2" in again.stdout
    assert "seed: 5 -> 0" in again.stdout
    assert "1 checks new of pyref, float64: gno_kernel_bwd" in again.stdout
    assert last_line(again) == "3 checks passed, 0 failed"
    assert "Changes since" in (folder / "report.html").read_text()


def test_against_something_else_is_refused_before_the_run(verify, tmp_path):
    (tmp_path / "package.json").write_text('{"name": "something else"}')
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "nested.json").write_text("[" * 200_000)
    for name, text in (
        ("package.json", "package.json is no report of trigraph verify"),
        ("pipe", "--against"),
        ("nested.json", "--against"),
    ):
        result = verify([GOOD], "--against", tmp_path / name)
        assert result.exit_code == 2
        assert text in result.stderr
        assert "Traceback" not in result.stderr
        assert result.asked == []


def test_against_compares_what_was_run(verify, tmp_path):
    other = replace(GOOD, operator="mha_gat_n2n_fwd", field="output_embedding")
    judge = replace(GOOD, panel="judge", dtype="real128", kind="golden", digest=None)
    assert verify([GOOD, EXACT, other, judge], "--report", tmp_path).exit_code == 0
    result = verify([GOOD], "--operator", "gno_kernel_bwd", "--against", tmp_path / "report.json")
    assert "mha_gat_n2n" not in result.stdout
    assert "judge" not in result.stdout
    assert "1 checks gone of pyref, float64: gno_kernel_bwd" in result.stdout
    # All operators were asked for: what is not there any more is told.
    result = verify([GOOD, EXACT], "--against", tmp_path / "report.json")
    assert "1 checks gone of pyref, float64: mha_gat_n2n_fwd" in result.stdout


def test_a_report_that_cannot_be_written_at_the_end_fails_the_run(verify, tmp_path, monkeypatch):
    assert verify([GOOD], "--report", tmp_path).exit_code == 0
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pathlib.Path, "write_bytes", full)
    result = verify([GOOD, EXACT], "--report", tmp_path)
    assert result.exit_code == 1
    assert "the report is not written" in result.stderr
    assert last_line(result) == "2 checks passed, 0 failed"
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_structure_of_too_many_edges_is_refused_before_it_is_built(runner, tmp_path):
    path = tmp_path / "salt.xyz"
    path.write_text('2\nLattice="4 0 0 0 4 0 0 0 4" Properties=species:S:1:pos:R:3 pbc="T T T"\nH 0 0 0\nH 2 2 2\n')
    result = runner.invoke(main, ["verify", "--operator", "dimenet", "--structure", str(path), "--cutoff", "100000"])
    assert result.exit_code == 2
    text = " ".join(result.stderr.replace("│", " ").split())
    assert "salt.xyz: about 2.6e+14 edges within 100000 need 6.7e+16 bytes" in text


def test_info(runner):
    result = runner.invoke(main, ["info"])
    assert result.exit_code == 0
    for word in ("trigraph", "Python", "numpy", "processor", "device", *PANELS, "judge", trigraph.get_cpu_level()):
        assert word in result.stdout


def test_a_level_that_cannot_run_is_told():
    environment = {**os.environ, "TRIGRAPH_CPU_LEVEL": "v9"}
    command = [sys.executable, "-m", "trigraph", "verify", "--operator", "gno_kernel", "--panel", "fortran"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2, done.stderr
    assert "TRIGRAPH_CPU_LEVEL is 'v9'; expected one of" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_operators(runner):
    result = runner.invoke(main, ["operators"])
    assert result.exit_code == 0
    for name in OPERATORS:
        assert name in result.stdout
    assert "coords (num_edges, d)" in result.stdout


def test_version_and_help(runner):
    assert runner.invoke(main, ["--version"]).stdout.strip().endswith(trigraph.__version__)
    shown = runner.invoke(main, ["--help"]).stdout
    for command in ("verify", "info", "operators", "bench"):
        assert command in shown
    assert "--repeat" in runner.invoke(main, ["bench", "--help"]).stdout


def test_a_frame_of_a_trajectory(tmp_path):
    path = tmp_path / "h@2.xyz"
    path.write_text("".join(f"2\n\nH 0 0 0\nH 0 0 {z}\n" for z in (1, 2, 3)))
    heights = {"": 3, "@0": 1, "@1": 2, "@-1": 3, "@-3": 1}
    for index, height in heights.items():
        found = structures.read(f"{path}{index}", 5.0)
        assert (found.name, found.positions[1, 2]) == (f"h@2.xyz{index}", height)
    for index in ("@3", "@-4"):
        with pytest.raises(ValueError, match=rf"h@2.xyz has no frame {index[1:]}; 0 is the first, -1 the last"):
            structures.read(f"{path}{index}", 5.0)
    for index in ("@", "@:", "@1:2"):
        with pytest.raises(ValueError, match="expected one number"):
            structures.read(f"{path}{index}", 5.0)


@pytest.mark.parametrize("text", ["garbage\n", ""])
def test_a_bad_file_is_named_once(runner, tmp_path, text):
    path = tmp_path / "bad.xyz"
    path.write_text(text)
    result = runner.invoke(main, ["verify", "--structure", str(path)])
    assert result.exit_code == 2
    assert result.stderr.count("bad.xyz") == 1


def test_what_is_cut_off_a_structure_is_said():
    atoms = ase.build.bulk("Cu", cubic=True) * (3, 3, 3)
    whole = structures.from_atoms("copper", atoms, 4.0)
    text = whole.described()
    assert f"108 atoms, {len(whole.src)} edges within 4" in text
    edges = len(whole.within(structures.WHOLE).src)
    share = f"{100 * edges / len(whole.src):.2g} percent; at most {structures.WHOLE} triplets"
    assert f"invariances are of {edges} edges ({share}" in text


def test_structures_alone(tmp_path):
    path = tmp_path / "hydrogen.xyz"
    path.write_text("2\n\nH 0 0 0\nH 0 0 0.7\n")
    found = run.plan(panels=["pyref"], structures=[structures.read(path, 5.0)], alone=True)
    assert all("hydrogen.xyz" in u.label for u in found)
    assert {progress.part_of(u) for u in found} == {"radial_basis", "agg_edge_to_edge", "forces"}
