"""No run ends green with fewer checks than planned, whatever the function under test does to it."""

import os
import pathlib
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from click.testing import CliRunner

from trigraph import pyref
from trigraph.cli import main
from trigraph.verification import units
from trigraph.verification.implementation import adapt
from trigraph.verification.record import Check
from trigraph.verification.run import plan
from trigraph.verification.subjects import own_interrupts

OPERATOR = "gno_kernel_fwd"
MODULE = """
import ctypes, os, sys
import numpy as np
from trigraph import pyref

def right(**arguments):
    return pyref.gno_kernel_fwd(**arguments)

class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no text")

class Ends(Exception):
    def __str__(self):
        sys.exit(0)

class Liar(np.ndarray):
    def __array_ufunc__(self, *arguments, **keywords):
        sys.exit(0)

class Number:
    def __float__(self):
        sys.exit(0)

def exits(**arguments):
    sys.exit(0)

def exits_late(coords, **arguments):
    if len(coords) == 1:
        sys.exit(0)
    return right(coords=coords, **arguments)

def interrupts(**arguments):
    raise KeyboardInterrupt

def unprintable(**arguments):
    raise Unprintable

def unprintable_and_ends(**arguments):
    raise Ends

def gone(**arguments):
    os._exit(0)

def gone_late(coords, **arguments):
    if len(coords) == 1:
        os._exit(0)
    return right(coords=coords, **arguments)

def crashes(**arguments):
    ctypes.string_at(0)

forked = []

def two_of_it(**arguments):
    if not forked:  # both of them would fork at the next call, and four at the one after it
        forked.append(True)
        os.fork()
    return right(**arguments)

def liar(**arguments):
    return right(**arguments).view(Liar)

def numbers(**arguments):
    made = right(**arguments)
    return np.array([Number()] * made.size, dtype=object).reshape(made.shape)
"""


@pytest.fixture
def verify(tmp_path, monkeypatch):
    for name in ("COLUMNS", "CI", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)

    def invoke(name, *options):
        words = ["verify", "--operator", OPERATOR, "--dtype", "float32", "--implementation", name, *options]
        return CliRunner().invoke(main, words, catch_exceptions=False)

    return invoke


def test_a_right_function_makes_what_was_planned(verify):
    result = verify("mine:right")
    assert result.exit_code == 0, result.output
    planned = int(result.stdout.split()[0])
    assert planned >= 20
    assert "checks are planned" in result.stdout.splitlines()[0]
    assert int(result.stdout.rstrip().splitlines()[-1].split()[0]) >= planned


@pytest.mark.parametrize(
    ("function", "note"),
    [
        ("exits", "SystemExit: 0"),
        ("exits_late", "SystemExit: 0"),
        ("interrupts", "KeyboardInterrupt"),
        ("unprintable", "Unprintable, whose text cannot be had (ValueError)"),
        ("unprintable_and_ends", "Ends, whose text cannot be had (SystemExit)"),
        ("liar", "kernel is a Liar of float32; expected a numpy.ndarray of numbers"),
        ("numbers", "kernel is a ndarray of object; expected a numpy.ndarray of numbers"),
    ],
)
def test_what_a_function_raises_is_a_failed_check(verify, function, note):
    result = verify(f"mine:{function}")
    assert result.exit_code == 1, result.output
    assert note in result.stdout
    planned, last = int(result.stdout.split()[0]), result.stdout.rstrip().splitlines()[-1]
    assert int(last.split()[0]) + int(last.split()[3]) >= planned


@pytest.mark.parametrize(
    ("function", "how"),
    [
        ("gone", "ended with status 0"),
        ("gone_late", "ended with status 0"),
        ("crashes", "was ended by signal SIGSEGV"),
        ("two_of_it", ""),
    ],
)
def test_a_function_that_takes_the_process_with_it(verify, function, how):
    result = verify(f"mine:{function}")
    assert result.exit_code == 1, result.output
    assert how in result.stdout
    if how:
        assert "checks that were planned were made" in result.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise RuntimeError('half built')", "RuntimeError: half built"),
        ("import no_such_module_of_mine", "No module named 'no_such_module_of_mine'"),
        ("def f(:", "SyntaxError"),
    ],
)
def test_an_import_that_fails_is_status_2_with_its_traceback(verify, tmp_path, text, says):
    (tmp_path / "broken.py").write_text(f"{text}\n")
    result = verify("broken:f")
    assert result.exit_code == 2
    assert "Traceback (most recent call last)" in result.stderr
    assert "broken.py" in result.stderr
    assert says in result.stderr


def test_an_import_that_takes_the_process_with_it_is_status_2(verify, tmp_path):
    (tmp_path / "broken.py").write_text("import os; os._exit(0)\n")
    result = verify("broken:f")
    assert result.exit_code == 2
    assert "ended with status 0" in " ".join(result.stderr.replace("│", " ").split())


def test_what_is_not_there_needs_no_traceback(verify):
    for name in ("no_such_module:f", "mine:no_such_function"):
        result = verify(name)
        assert result.exit_code == 2
        assert "Traceback" not in result.stderr


# Units


def made_up(count, checks):
    def make():
        if isinstance(checks, BaseException):
            raise checks
        return checks

    return units.unit_of("a unit", 1.0, lambda: [units.Task(OPERATOR, "pyref", "float64", count, make)])


CHECK = Check(OPERATOR, "pyref", "float64", "accuracy", "regular", "kernel", 1.0, 8.0)


def test_checks_that_are_missing_are_a_failed_check():
    assert made_up(1, [CHECK]).execute() == [CHECK]
    assert made_up(1, [CHECK, replace(CHECK, kind="empty")]).execute()[0].passed
    for count, found in ((1, []), (2, [CHECK]), (1, [CHECK, CHECK]), (1, SystemExit(0)), (1, ValueError("x"))):
        unit = made_up(count, found)
        assert unit.planned() == count
        failed = [c for c in unit.execute() if not c.passed]
        assert [(c.kind, c.operator, c.panel) for c in failed] == [("complete", OPERATOR, "pyref")]


def test_ctrl_c_goes_through_and_what_a_function_raises_does_not():
    def interrupts(**arguments):
        raise KeyboardInterrupt

    def pressed(**arguments):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)

    def swallows(**arguments):
        try:
            pressed()
        except KeyboardInterrupt:
            return pyref.gno_kernel_fwd(**arguments)

    before = signal.getsignal(signal.SIGINT)
    for function in (pressed, swallows):
        with pytest.raises(KeyboardInterrupt):
            list(units.execute(plan(implementation=adapt("user:function", OPERATOR, function))))
        assert signal.getsignal(signal.SIGINT) is before
    unit = plan(implementation=adapt("user:function", OPERATOR, interrupts))[0]
    with own_interrupts():
        assert all(not c.passed and c.note.startswith("KeyboardInterrupt") for c in unit.execute())
    with pytest.raises(KeyboardInterrupt):  # nobody listens: it could be the user's
        unit.execute()


def test_ctrl_c_ends_the_run_and_its_process(tmp_path):
    (tmp_path / "slow.py").write_text(
        "import os, time\ndef gno_kernel_fwd(**arguments):\n"
        "    open('pid', 'w').write(str(os.getpid()))\n    time.sleep(60)\n"
    )
    command = [sys.executable, "-m", "trigraph", "verify", "--implementation", "slow:gno_kernel_fwd"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    pid = tmp_path / "pid"
    while not (pid.is_file() and pid.read_text()):
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "Aborted" in errors
    assert "Traceback" not in errors
    deadline = time.monotonic() + 20
    while pathlib.Path(f"/proc/{pid.read_text()}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
