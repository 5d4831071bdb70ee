"""Tests of the device tests (tests/device), rehearsed on gpu-host: they pass, detect errors, and end in time."""

import importlib
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from programs import run_command

from trigraph.benchmarks.qualify.place import Rehearsal
from trigraph.benchmarks.qualify.stages import checks
from trigraph.gpu.instances import INSTANCES
from trigraph.table import OPERATORS
from trigraph.verification import tolerances

# A fake compute-sanitizer that runs the command after its options and prints the real tool's last line.
SANITIZER = f"""#!/bin/sh
while [ "$1" != {sys.executable} ]; do shift; done
"$@" && echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
"""
FOLDER = Path(__file__).parents[1] / "device"
TEST_ENDINGS = """
import os, signal, time

def test_good(record_property):
    record_property("number", 2)

def test_bad():
    assert 2 == 3, "two is not three"

def test_killed():
    os.kill(os.getpid(), signal.SIGSEGV)

def test_device_broken(target):
    target.synchronize = lambda: 1 / 0  # as after an illegal access

def test_hangs():
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
    time.sleep(600)
"""


@pytest.fixture
def import_device_module(monkeypatch):
    """Return a function that imports a module from tests/device."""
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.delitem(sys.modules, "conftest", raising=False)
    return importlib.import_module


def rehearse_device_tests(folder, record, *options, status=0):
    """Rehearse the tests of a folder in two processes; return the record."""
    command = [sys.executable, "-m", "pytest", folder, "--rehearse", "-p", "no:cacheprovider", "-n", "2"]
    command += ["--maxschedchunk", "1", "--record", record, *options]
    done = run_command(*command, status=status, cwd=FOLDER.parents[1])
    record_content = json.loads(record.read_text())
    assert f"{record_content['verdict']}: {record}" in done.stdout
    assert record_content["rehearsal"]
    return record_content


@pytest.mark.slow
def test_rehearsal_passes_but_checks_little(tmp_path, monkeypatch):
    """Some tests of every file pass, but the verdict says that little was checked."""
    names = "kernels or gno_message_bwd- or bwd2 and capture or streams or beyond or gno-race or test_verify and gemnet"
    program = tmp_path / "compute-sanitizer"
    program.write_text(SANITIZER)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    record_content = rehearse_device_tests(FOLDER, tmp_path / "record.json", "-k", names)
    outcomes = {name.rpartition("/")[2]: test["outcome"] for name, test in record_content["tests"].items()}
    assert {name for name, outcome in outcomes.items() if outcome != "passed"} == set()
    assert len({name.partition("::")[0] for name in outcomes}) == 5
    assert record_content["verdict"] == "little was checked"
    assert record_content["environment"]["trigraph"]["version"]


@pytest.mark.slow
def test_crashes_do_not_stop_other_tests(tmp_path):
    """A crash, a broken device and a hanging test are recorded, and the other tests still run."""
    for name in ("conftest.py", "deadline.py"):
        shutil.copy(FOLDER / name, tmp_path)
    (tmp_path / "test_device_checks.py").write_text(TEST_ENDINGS)
    record_content = rehearse_device_tests(
        tmp_path, tmp_path / "record.json", "-n", "3", "--device-seconds", "90", status=2
    )
    assert record_content["seconds"] < 90
    tests = {name.partition("::test_")[2]: test for name, test in record_content["tests"].items()}
    outcomes = {name: test["outcome"] for name, test in tests.items()}
    failed = dict.fromkeys(("bad", "killed", "device_broken"), "failed")
    assert outcomes == {"good": "passed", "hangs": "not run", **failed}
    assert tests["good"]["number"] == 2
    assert "two is not three" in tests["bad"]["note"]
    assert "crashed while running" in tests["killed"]["note"]
    assert record_content["verdict"] == "failed"


def test_verdict_requires_every_family_verified(import_device_module):
    """The verdict is "little was checked" unless every family is verified."""
    for verify, other, parts, verdict in (
        ("passed", "passed", False, "passed"),
        ("passed", "passed", True, "passed in part"),
        ("passed", "skipped", False, "passed in part"),
        ("skipped", "passed", False, "little was checked"),
        ("not run", "passed", True, "little was checked"),
        ("skipped", "failed", False, "failed"),
        ("failed", "passed", False, "failed"),
    ):
        record = object.__new__(import_device_module("conftest").DeviceTestRecorder)
        outcomes = {f"test_device_verify.py::test_verify[{family}]": "passed" for family in INSTANCES}
        outcomes |= dict.fromkeys([*outcomes][:1], verify) | {"test_device_checks.py::test_capture": other}
        record.parts, record.tests = parts, {name: {"outcome": outcome} for name, outcome in outcomes.items()}
        assert record.verdict() == verdict


def test_device_tests_detect_errors(import_device_module, monkeypatch):
    """An empty replay, unwritten results, and inaccurate or different results are detected."""
    device_tests, op = import_device_module("test_device_checks"), OPERATORS["gno_message_fwd"]
    target, real = Rehearsal(), checks.call_operator
    monkeypatch.setattr(target, "capture_call", lambda call: (call(), lambda: None))
    with pytest.raises(AssertionError):
        device_tests.test_captured_call_replays_with_other_inputs(target, op)
    monkeypatch.setattr(checks, "call_operator", lambda *given: {n: np.empty_like(a) for n, a in real(*given).items()})
    with pytest.raises(AssertionError):
        device_tests.test_results_do_not_depend_on_unwritten_memory(target, op)
    right = np.linspace(1, 2, 32, dtype=np.float32)
    exact, most = np.stack([right, 0 * right, right]), tolerances.accuracy_tolerance(True, 20)
    assert checks.is_accurate(op.fields[0], np.nextafter(right, np.float32(3)), right, exact, most)
    assert not checks.is_accurate(op.fields[0], right * np.float32(1.001), right, exact, most)
    assert not checks.is_accurate(op.fields[0], np.where(right < 1.5, right, np.nan), right, exact, most)
    got = {"x": None, "y": np.nextafter(right, 9), "z": right}
    assert checks.find_different_fields(target, got, dict.fromkeys("xyz", right)) == "x, y"
