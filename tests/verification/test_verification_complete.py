"""Tests that a run with fewer checks than planned fails, whatever the function under test does."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner
from programs import is_running, wait_until

from slopecheck import units
from slopecheck.record import Check
from trigraph.cli import main

OPERATOR = "gno_kernel_fwd"
MODULE = """
import ctypes, os, subprocess, sys, time
from trigraph import pyref

def right(**arguments):
    return pyref.gno_kernel_fwd(**arguments)

def gone_late(coords, **arguments):
    if len(coords) == 1:
        os._exit(0)
    return right(coords=coords, **arguments)

def crashes(**arguments):
    ctypes.string_at(0)

def leaves_a_fork(**arguments):
    if os.fork() == 0:
        time.sleep(600)
    os._exit(3)

def interrupts(**arguments):
    raise KeyboardInterrupt

def hangs(**arguments):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open("pids", "w") as file:
        file.write(f"{os.getpid()} {child.pid}\\n")
    time.sleep(600)
"""


@pytest.fixture
def user_module_folder(tmp_path, monkeypatch):
    for name in ("COLUMNS", "CI", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "raises.py").write_text("raise RuntimeError('half \\x1b built')\n")
    (tmp_path / "ends.py").write_text("import os; os._exit(0)\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


OPTIONS = ["verify", "--operator", OPERATOR, "--dtype", "float32", "--implementation"]


@pytest.mark.parametrize(
    ("function", "status", "message"),
    [
        ("right", 0, " 0 failed"),
        ("gone_late", 1, "ended with status 0"),
        ("crashes", 1, "was ended by signal SIGSEGV"),
        ("leaves_a_fork", 1, "ended with status 3"),
        ("hangs", 1, "it takes longer than 1 s (gno_kernel, "),
        ("interrupts", 1, "KeyboardInterrupt"),
    ],
)
def test_crashing_or_hanging_functions_fail_the_run(user_module_folder, function, status, message):
    timeout = "1" if function == "hangs" else "100"
    result = CliRunner().invoke(main, [*OPTIONS, f"mine:{function}", "--timeout", timeout])
    assert result.exit_code == status, result.output
    assert message in result.stdout
    if function == "hangs":
        wait_until(lambda: not any(map(is_running, (user_module_folder / "pids").read_text().split())))
    planned, last = int(result.stdout.split()[1].replace(",", "")), result.stdout.splitlines()[-1].split()
    assert planned >= 20
    alive = int(last[0]) + int(last[3]) >= planned
    assert alive == (function in ("right", "interrupts"))
    assert ("planned checks were run" in result.stderr) != alive


def test_an_import_that_fails_is_status_2_with_its_traceback(user_module_folder):
    result = CliRunner().invoke(main, [*OPTIONS, "raises:f"])
    assert result.exit_code == 2
    for text in ("Traceback (most recent call last)", "raises.py", r"RuntimeError: half \x1b built"):
        assert text in result.stderr
    assert "\x1b" not in result.stderr
    result = CliRunner().invoke(main, [*OPTIONS, "ends:f"])
    assert result.exit_code == 2
    assert "ended with status 0" in result.stderr


@pytest.mark.usefixtures("default_signal_handlers")
@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM, signal.SIGKILL]
)
def test_signal_ends_workers_and_their_children(user_module_folder, number):
    """A signal to the main process ends its workers and their children, even if the tested function never returns."""
    command, file, pids = [sys.executable, "-m", "trigraph", *OPTIONS, "mine:hangs"], user_module_folder / "pids", []
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        wait_until(lambda: file.is_file() and file.read_text().endswith("\n"))
        pids = file.read_text().split()
        assert all(map(is_running, pids))
        os.killpg(process.pid, number)  # to the whole process group, as a terminal does
        _, errors = process.communicate(timeout=30)
        killed = number == signal.SIGKILL
        assert process.returncode == (-number if killed else 128 + number)
        assert errors.split("\n") == ([""] if killed else ["", f"Ended by {number.name}", ""])
        wait_until(lambda: not any(map(is_running, pids)))
    finally:  # surviving children would keep the pipe open
        for pid in filter(is_running, pids):
            os.kill(int(pid), signal.SIGKILL)
        process.kill()
        process.communicate()


def make_unit_of_checks(count, checks):
    def return_or_raise():
        if isinstance(checks, BaseException):
            raise checks
        return checks

    return units.make_work_unit(
        "a unit", 1.0, lambda: [units.CheckTask(OPERATOR, "pyref", "float64", count, return_or_raise)]
    )


CHECK = Check(OPERATOR, "pyref", "float64", "accuracy", "regular", "kernel", 1.0, 8.0)


def test_checks_that_are_missing_are_a_failed_check():
    assert make_unit_of_checks(1, [CHECK]).execute() == [CHECK]
    assert make_unit_of_checks(1, [CHECK, replace(CHECK, kind="empty")]).execute()[0].passed
    for count, outcome in ((1, []), (2, [CHECK]), (1, [CHECK, CHECK]), (1, SystemExit(0)), (1, ValueError("x"))):
        unit = make_unit_of_checks(count, outcome)
        assert unit.planned() == count
        failed = [c for c in unit.execute() if not c.passed]
        assert [(c.kind, c.operator, c.backend) for c in failed] == [("complete", OPERATOR, "pyref")]
