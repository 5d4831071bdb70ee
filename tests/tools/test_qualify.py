"""Tests of `trigraph qualify`, rehearsed on gpu-host: every stage, crashes, hangs, missing tools, deadlines."""

import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import types
import venv
import zipfile
from fcntl import flock
from pathlib import Path
from unittest import mock

import cupy_stand_in
import numpy as np
import pytest
from click.testing import CliRunner
from programs import is_running, run_command, wait_until

from trigraph import environment
from trigraph.benchmarks.measure import compute_relative_error
from trigraph.benchmarks.programs import Contender, Program
from trigraph.benchmarks.qualify import cases, driver, summary
from trigraph.benchmarks.qualify import part as qualify_part
from trigraph.benchmarks.qualify.part import Notes, read_notes
from trigraph.benchmarks.qualify.place import Device, Rehearsal
from trigraph.benchmarks.qualify.stages import bench, checks, models, sanitizer
from trigraph.benchmarks.qualify.stages import compile as compile_stage
from trigraph.benchmarks.qualify.stages import torch as torch_stage
from trigraph.benchmarks.qualify.stages.environment import GATHER
from trigraph.benchmarks.qualify.workloads import WORKLOADS, choose_workload_sizes, convert_indices
from trigraph.cli import main
from trigraph.table import OPERATORS
from trigraph.verification import tolerances

ROOT = Path(__file__).parents[2]
# A fake compute-sanitizer that runs the command after its options and prints the real tool's last line.
SANITIZER = f"""#!{sys.executable}
import subprocess, sys
command = sys.argv[sys.argv.index({sys.executable!r}):]
status = subprocess.run(command).returncode
tool = sys.argv[sys.argv.index("--tool") + 1]
print("========= COMPUTE-SANITIZER")
if tool == "racecheck":
    print("========= Error: Race reported between Write access at cut_rows in sums.cuh:42")
    print("========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)")
else:
    print("========= ERROR SUMMARY: 0 errors")
sys.exit(status)
"""


@pytest.fixture(autouse=True)
def _make_test_stages_importable(monkeypatch):
    """Let child processes import the test stages from this folder."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)]))


@pytest.fixture(autouse=True)
def _use_separate_lock(monkeypatch, tmp_path):
    """Use a separate lock, so that these tests do not wait for other runs on this machine."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(qualify_part, "LOCK", tmp_path / "lock")


def make_test_stage(name, share):
    return driver.Stage(name, share, "qualify_stages")


@pytest.mark.slow
def test_rehearsal_runs_every_stage(tmp_path, monkeypatch):
    """Every stage runs in a rehearsal, and the page states that it is a rehearsal."""
    out, program = tmp_path / "out", tmp_path / "compute-sanitizer"
    program.write_text(SANITIZER)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    ran = CliRunner().invoke(main, ["qualify", "--rehearse", "--out", str(out), "--deadline", "400"])
    record = json.loads((out / "record.json").read_text())
    stages = {stage["stage"]: stage for stage in record["stages"]}
    assert list(stages) == [stage.name for stage in driver.STAGES]
    crashed = {p["part"]: p["note"] for s in stages.values() for p in s["parts"] if p["status"] != "done"}
    assert not crashed
    assert [name for name, stage in stages.items() if stage["passed"] is not True] == ["sanitizer"]
    lines = {name: [line for p in stage["parts"] for line in p["lines"]] for name, stage in stages.items()}
    race = next(line for line in lines["sanitizer"] if line["name"] == "racecheck gno" and not line["passed"])
    assert "sums.cuh:42" in race["findings"][1]
    assert len(lines["checks"]) > 10
    (verified,), (third,) = lines["verify"], lines["third"]
    assert all(re.fullmatch(r"\d\d+ checks passed, 0 failed", line["note"]) for line in (verified, third))
    page = ran.stdout
    assert "rehearsal on gpu-host, not a device" in page.splitlines()[0]
    assert "| sanitizer | **failed** | 3 of 3 |" in page
    assert "RACECHECK SUMMARY: 1 hazard" in page
    assert "weighted-64: weighted sum, dim 64" in page
    assert f"| {models.NAMES[0]}, pyg | " in page
    assert page == (out / "summary.md").read_text() + "\n"
    kept = summary.summarise_record(record)
    assert kept["verdict"] == "failed"
    assert kept["times"][0]["share"]["int32"] > 0
    assert kept["times"][0]["peers"].keys() == {"scipy", "pyg-sparse", "pyg"}
    assert set(kept["ceilings"]) == {"copy", "gather", "launch", "float16", "float32", "float64"}
    assert ran.exit_code == 1


@pytest.mark.slow
def test_failures_do_not_affect_other_parts(tmp_path):
    begun = time.monotonic()
    record = driver.run_stages(
        Rehearsal(), tmp_path, 5 + 20, [make_test_stage("ends", 0.6), make_test_stage("refuses", 1.0)]
    )
    assert time.monotonic() - begun < 25
    ends, refuses = record["stages"]
    parts = {part["part"]: part for part in ends["parts"]}
    assert {name: part["status"] for name, part in parts.items()} == {
        "hangs": "out of time",
        **dict.fromkeys(("raises", "killed", "exits"), "crashed"),
        "tool": "not run",
        **dict.fromkeys(("good", "bad"), "done"),
    }
    assert all(part["lines"][0]["name"] == "before" for name, part in parts.items() if name != "tool")
    assert "illegal memory access" in parts["raises"]["note"]
    wait_until(lambda: not is_running(parts["hangs"]["lines"][1]["child"]), 10)
    assert (ends["passed"], refuses["passed"]) == (False, False)
    assert json.loads((tmp_path / "record.json").read_text()) == json.loads(json.dumps(record))
    assert summary.write_summary(tmp_path, record)["verdict"] == "failed"
    text = (tmp_path / "summary.md").read_text()
    for expected_text in (
        "two is not three",
        "ends, tool: the tool is not there",
        "ended by SIGSEGV",
        "ended with status 3",
    ):
        assert expected_text in text
    assert "no CUDA device" in text


@pytest.mark.parametrize(
    ("status", "line_passed", "verdict"),
    [
        ("done", None, True),
        ("done", False, False),
        ("crashed", None, False),
        ("out of time", True, None),
        ("out of time", False, False),
        ("not run", None, None),
    ],
)
def test_unfinished_parts_leave_stage_undecided(status, line_passed, verdict):
    """A part that is cut off by the deadline has neither passed nor failed, unless one of its lines has failed."""
    parts = [{"status": "done", "lines": [{"passed": True}]}, {"status": status, "lines": [{"passed": line_passed}]}]
    assert driver.have_parts_passed(parts) is verdict


@pytest.mark.parametrize(
    ("verify", "other", "status"),
    [
        (["done"], "done", 0),
        (["done"], "not run", 3),
        (["done"], "out of time", 3),
        (["done", "out of time"], "done", 4),
        (["not run"], "not run", 4),
        ([], "done", 4),
        (["not run"], "crashed", 1),
        (["crashed"], "done", 1),
    ],
)
def test_exit_status_follows_the_verdict(verify, other, status):
    """The verdict is "little was checked" unless every family is verified."""
    stages = {"verify": verify, "bench": [other]}
    parts = {name: [driver._make_part_record("", state, "") for state in states] for name, states in stages.items()}
    record = {
        "stages": [
            {"stage": name, "passed": driver.have_parts_passed(of), "seconds": 1.0, "parts": of}
            for name, of in parts.items()
        ]
    }
    record |= {"rehearsal": False, "created": "", "seconds": 1.0, "deadline": 1, "kit": ""}
    assert summary.VERDICTS[summary.summarise_record(record)["verdict"]] == status
    if status == 0:  # "in part" if `--stage` excluded stages
        left = summary.summarise_record(record | {"left_out": ["sanitizer"]})
        assert (left["verdict"], left["left_out"][0][0]) == ("passed in part", "sanitizer")


@pytest.mark.usefixtures("default_signal_handlers")
def test_ctrl_c_ends_running_and_later_parts(tmp_path):
    begun, notes, children = time.monotonic(), tmp_path / "parts" / "ends-hangs.jsonl", []

    def interrupt_after_child_starts():
        while not children:
            time.sleep(0.05)
            children.extend(line["child"] for line in read_notes(notes) if "child" in line)
        os.kill(os.getpid(), signal.SIGINT)

    interrupt_thread = threading.Thread(target=interrupt_after_child_starts)
    interrupt_thread.start()
    with pytest.raises(KeyboardInterrupt):
        driver.run_stages(Rehearsal(), tmp_path, 60, [make_test_stage("ends", 1.0)])
    interrupt_thread.join()
    assert time.monotonic() - begun < 30
    wait_until(lambda: not is_running(children[0]), 10)


@pytest.mark.slow
def test_short_deadline_starts_no_part(tmp_path):
    """If too little time is left, no part starts, and the output says so."""
    begun = time.monotonic()
    ran = CliRunner().invoke(main, ["qualify", "--rehearse", "--out", str(tmp_path), "--deadline", "10"])
    assert time.monotonic() - begun < 10
    assert "no time was left" in ran.stdout
    assert "**passed**" not in ran.stdout
    assert ("**little was checked**" in ran.stdout, ran.exit_code) == (True, 4)


def test_single_stage_does_not_qualify_device(tmp_path):
    """A stage that runs alone may use all the time, but does not qualify the device."""
    command = ["qualify", "--rehearse", "--out", str(tmp_path), "--deadline", "120", "--stage", "environment"]
    ran = CliRunner().invoke(main, command)
    (stage,) = json.loads((tmp_path / "record.json").read_text())["stages"]
    assert (stage["stage"], stage["passed"], ran.exit_code) == ("environment", True, 4)
    assert stage["limit"] > 100


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is installed")
def test_qualify_refuses_to_run_without_device(tmp_path):
    """Without a device, the command refuses to run; if the device is lost during the run, the summary says so."""
    ran = CliRunner().invoke(main, ["qualify", "--out", str(tmp_path)])
    assert (ran.exit_code, "CuPy is not installed" in ran.output) == (2, True)
    record = driver.run_stages(Device(), tmp_path, 60, driver.STAGES[:1])
    (failed,) = summary.write_summary(tmp_path, record)["stages"][0]["failed"]
    assert failed.endswith("ended with status 1; ModuleNotFoundError: No module named 'cupy'")
    assert "qualification of a device" in (tmp_path / "summary.md").read_text()


def test_notes_are_written_line_by_line(tmp_path):
    notes = Notes(tmp_path / "part.jsonl")
    assert read_notes(notes.path) == []
    notes.add("first", np.bool_(False), value=np.float32(np.nan), deep={"a": [np.int64(3), b"x"]})
    with notes.path.open("a") as stream:
        stream.write('{"name": "cut by a cr')
    (line,) = read_notes(notes.path)
    assert line == {"name": "first", "passed": False, "note": "", "value": "nan", "deep": {"a": [3, "x"]}}


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_device_workloads_agree_for_both_index_dtypes(workload):
    """Device workloads run at small sizes on gpu-host, with equal results for int32 and int64 indices."""
    sizes = choose_workload_sizes(Rehearsal(), workload)
    case = bench.draw_workload_inputs(workload, sizes, bench.DTYPE)
    results = [bench.make_backend_call(workload, "gpu-host", c)() for c in (case, convert_indices(case, np.int32))]
    assert compute_relative_error(*results) == 0
    least = bench._compute_least_work(case, choose_workload_sizes(Device(), workload))
    assert least["copy"] > 2**26
    assert least["float32"] > 2**29
    assert any(peer.device for peer in workload.peers.values())


def test_a_wrong_peer_is_not_timed(tmp_path):
    workload, place = WORKLOADS[0], Rehearsal()
    case = bench.draw_workload_inputs(workload, choose_workload_sizes(place, workload), bench.DTYPE)
    ours = bench.make_backend_call(workload, "gpu-host", case)
    good = workload.peers["scipy"]
    spoilt = type(good)(lambda case: lambda: {n: v * np.nan for n, v in ours().items()}, "spoilt")
    broken = type(good)(lambda case: lambda: 1 / 0, "broken")
    notes = Notes(tmp_path / "part.jsonl")
    for name, peer in (("good", good), ("spoilt", spoilt), ("broken", broken)):
        bench._time_peer(place, notes, ("weighted-64", name, "int64"), peer, case, ours, ours(), 40)
    lines = read_notes(notes.path)
    assert [line["passed"] for line in lines] == [None, False, None]
    assert lines[0]["ratio"] > 0
    assert "ZeroDivisionError" in lines[2]["note"]


@pytest.mark.slow
def test_wrong_or_failing_programs_are_noted(tmp_path, monkeypatch):
    """An incorrect program of trigraph fails; a peer's is timed and marked, and a peer's error is noted."""
    pytest.importorskip("torch")

    def make_contender(value, peer=False):
        return Contender(lambda sizes, dtype: lambda: {"x": np.float32([1 / value, 1])}, "", peer)

    contenders = {
        "trigraph": make_contender(1),
        "trigraph-compiled": make_contender(2),
        "equal-compiled": make_contender(1),
    }
    contenders |= {
        "pyg": make_contender(np.nan, peer=True),
        "pyg-compiled": make_contender(0, peer=True),
        "own": make_contender(0),
    }
    monkeypatch.setattr(models, "PROGRAMS", (Program("work", "", contenders, {}),))
    found = {}
    for name in list(contenders)[1:-1]:
        notes = Notes(tmp_path / "notes.jsonl")
        models.compare_contender_with_trigraph("work", name, Rehearsal(), notes)
        lines = {line["name"]: line for line in read_notes(notes.path)}
        found[name] = lines.pop(f"work, {name}")
        assert lines["work, trigraph"]["peak_bytes"] >= 0
        assert len(lines["work, trigraph"]["samples"]) == 2
    assert [line["passed"] for line in found.values()] == [False, None, None, None]
    assert {name for name, line in found.items() if "differs" in line["note"]} == {"trigraph-compiled", "pyg"}
    assert found["equal-compiled"]["ratio"] > 0
    assert "ZeroDivisionError" in found["pyg-compiled"]["note"]
    with pytest.raises(ZeroDivisionError):
        models.compare_contender_with_trigraph("work", "own", Rehearsal(), notes)


def test_exclusive_device_lock_excludes_others(monkeypatch):
    monkeypatch.setattr(qualify_part.fcntl, "flock", lambda file, kind: flock(file, kind | qualify_part.fcntl.LOCK_NB))
    with (
        qualify_part.lock_device(exclusive=False),
        qualify_part.lock_device(exclusive=False),
        pytest.raises(BlockingIOError),
    ):
        qualify_part.lock_device(exclusive=True).__enter__()
    with qualify_part.lock_device(exclusive=True), pytest.raises(BlockingIOError):
        qualify_part.lock_device(exclusive=False).__enter__()


def test_roofline_share_uses_largest_bound():
    """The roofline bound is the largest bound over all measured peak rates."""
    line = {"name": "", "passed": None, "note": "", "workload": "gat", "contender": "trigraph", "summary": ""}
    line |= {"index": "int32", "seconds": 1.0, "least": {"copy": 1e9, "gather": 4e9, "float32": 1e9}}
    properties = {"device": {"name": "NVIDIA H200"}}
    lines = [{"name": "environment", "passed": None, "note": "", "properties": properties}, line]
    ceiling = {"name": "", "passed": None, "note": "", "value": 8e9}
    lines += [ceiling | {"ceiling": name} for name in ("gather", "copy")]
    stages = [
        {"stage": stage, "passed": True, "parts": [{"part": "", "status": "done", "note": "", "lines": lines}]}
        for stage in ("environment", "bench")
    ]
    record = {"stages": [{**s, "seconds": 1.0} for s in stages], "rehearsal": False, "created": "", "deadline": 1}
    record["kit"] = ""
    (row,) = summary.summarise_record({**record, "seconds": 1.0})["times"]
    assert (row["bound_by"], row["share"]["int32"]) == ("gather", 0.5)


@pytest.mark.parametrize(
    ("output", "passed"),
    [
        ("========= ERROR SUMMARY: 0 errors", True),
        ("========= Race at sums.cuh:42\n========= RACECHECK SUMMARY: 1 hazard displayed (1 error)", False),
        ("", False),
        ("========= COMPUTE-SANITIZER\nSegmentation fault", False),
    ],
)
def test_a_sanitizer_passes_only_without_findings(output, passed):
    (line,) = sanitizer.parse_output("memcheck gat", output)
    assert line["passed"] is passed


@pytest.mark.parametrize("name", environment.TF32_VARIABLES)
def test_enabled_tf32_causes_a_warning(name, monkeypatch):
    """`trigraph info` and reports warn of TF32, which rounds the factors of float32 products to 10 bits."""
    for variable in environment.TF32_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, "0")
    assert environment.collect_environment()["warnings"] == []
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(platform, "system", lambda: "Darwin")
        assert environment.collect_environment()["warnings"] == [
            "trigraph was not tested on macOS: run `trigraph verify` to check it"
        ]
    monkeypatch.setenv(name, "1")
    (warning,) = environment.collect_environment()["warnings"]
    assert f"{name}=1" in warning
    assert f"{name}=1" in CliRunner().invoke(main, ["info"]).stdout.replace("\n", " ")


@pytest.mark.slow
def test_kit_runs_with_only_numpy_and_scipy(tmp_path):
    """The one-file kit is small and runs with only NumPy and SciPy installed (here as a rehearsal)."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copytree(ROOT, tmp_path / "source", ignore=shutil.ignore_patterns(".venv", "build", "dist", ".nox"))
    run_command("make", "qualify-kit", f"KIT_PYTHON={name}", cwd=tmp_path / "source")
    archive = tmp_path / "source" / "dist" / "qualify-kit.tar"
    assert archive.stat().st_size < 64 * 2**20
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    alone = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}  # pip would use PYTHONPATH
    subprocess.run([python, "-m", "pip", "install", "--quiet", "numpy", "scipy"], env=alone, check=True)
    script = tmp_path / "qualify-kit" / "qualify.sh"
    (wheel,) = (script.parent / "wheels").glob("trigraph-*manylinux_2_28*.whl")
    assert any("libgomp" in name for name in zipfile.ZipFile(wheel).namelist())
    variables = {k: v for k, v in alone.items() if not k.startswith("PIP")} | {"PYTHON": str(python)}
    done = subprocess.run(["sh", script, tmp_path / "out"], env=variables, capture_output=True, text=True, check=False)
    assert "CuPy is not installed" in done.stderr
    variables["PYTHONPATH"] = str(script.parent / "lib")
    rehearse = [python, "-m", "trigraph", "qualify", "--rehearse", "--out", "out", "--deadline", "120"]
    ran = subprocess.run(rehearse, env=variables, cwd=tmp_path, capture_output=True, text=True, check=False)
    passed = "**passed in part** on rehearsal on gpu-host" in ran.stdout
    assert (passed, ran.returncode) == (True, 3), ran.stdout + ran.stderr  # compute-sanitizer is missing


def test_gather_ceiling_kernel_compiles():
    core = pytest.importorskip("cuda.core")
    program = core.Program(GATHER.read_text(), "c++", core.ProgramOptions(std="c++17", arch="sm_90"))
    assert b"sum_gathered_rows" in bytes(program.compile("cubin").code)


def test_array_checks_find_errors(tmp_path, monkeypatch):
    """The checks find a capture that replays nothing, and results that are not written."""
    cupy, real = cupy_stand_in.install_cupy(monkeypatch, tmp_path), checks.call_operator
    for name in ("Stream", "MemoryPool", "using_allocator"):  # replays of this stream's graphs do nothing
        setattr(cupy.cuda, name, mock.MagicMock())
    monkeypatch.setattr(Device, "synchronize", lambda self: None)
    monkeypatch.setattr(checks, "_limit_names_in_rehearsal", lambda place, *names: list(OPERATORS)[:2])

    def replace_results_by_empty_arrays(op, values, backend, out=None):
        return {n: np.empty_like(array) for n, array in real(op, values, backend, out).items()}

    for check, place, call in (("capture", Device(), real), ("poisoned", Rehearsal(), replace_results_by_empty_arrays)):
        monkeypatch.setattr(checks, "call_operator", call)
        notes = Notes(tmp_path / f"{check}.json")
        checks.run_part(check, place, notes)
        assert [line["passed"] for line in read_notes(notes.path)] == [False, False]


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
@pytest.mark.parametrize("check", ["derivatives", "half precision", "layers"])
def test_torch_checks_pass_with_the_stand_ins(monkeypatch, check, tmp_path):
    """The checks of derivatives, half precision and layers in torch pass with the stand-ins."""
    torch_stand_in = pytest.importorskip("torch_stand_in")
    torch_stand_in.install_torch_and_cupy(monkeypatch, tmp_path)
    notes = Notes(tmp_path / "notes.json")
    torch_stage.run_part(check, Device(), notes)
    lines = read_notes(notes.path)
    assert {line["passed"] for line in lines} == {True}, lines
    assert cupy_stand_in.state.launches > 0


def test_extreme_results_must_satisfy_the_tolerance():
    """The check of extremes accepts results that differ in the last bit, and detects inaccurate or NaN results."""
    field = OPERATORS["agg_weighted_n2n_fwd"].fields[0]
    right = np.linspace(1, 2, 32, dtype=np.float32)
    exact, most = np.stack([right, 0 * right, right]), tolerances.accuracy_tolerance(True, 20)
    assert checks.is_accurate(field, np.nextafter(right, np.float32(3)), right, exact, most)
    assert not checks.is_accurate(field, right * np.float32(1.001), right, exact, most)
    assert not checks.is_accurate(field, np.where(right < 1.5, right, np.nan), right, exact, most)


def test_kernel_cases_run_with_device_arrays(monkeypatch, tmp_path):
    cupy_stand_in.install_cupy(monkeypatch, tmp_path)
    assert all(type(a) is np.ndarray for a in cases.compare_kernels_with_judge("gat", Device()).values())


def test_local_memory_of_a_kernel_that_is_not_listed_is_noted(tmp_path):
    place, notes = types.SimpleNamespace(architecture=lambda: "sm_90"), Notes(tmp_path / "notes.json")
    usages = {name: {"registers": 32, "local_bytes": 8} for name in ("dimenet_radial<float>", "sum_rows<float>")}
    compile_stage._note_unlisted_local_memory(place, notes, usages)
    (line,) = read_notes(notes.path)
    assert line["passed"] is False
    assert line["over"] == ["sum_rows<float> has LocalMemoryUsage(stack=8, spills=0)"]
