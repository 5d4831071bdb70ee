"""Tests that commands handle unusual encodings, control characters, full disks, closed pipes, signals and NaN."""

import json
import os
import signal
import sys
from contextlib import contextmanager

import programs
import pytest
from click.testing import CliRunner

from slopecheck import units
from slopecheck.record import Check
from trigraph.cli import main
from trigraph.verification import run

HOSTILE = "caf\u00e9 \udc80 \x1b[31mred\x1b[0m \u202e \x07"
ESCAPED = r"caf\xe9 \udc80 \x1b[31mred\x1b[0m \u202e \x07"
GOOD = Check("gno_kernel_bwd", "pyref", "float64", "accuracy", "regular", "coords", 1.5, 8.0)
BAD = Check(
    "gno_kernel_bwd", "mine:f", "float64", "accuracy", HOSTILE, HOSTILE, float("inf"), 8.0,
    note=f"ValueError: {HOSTILE}", trace=f"Traceback (most recent call last):\n{HOSTILE}",
)  # fmt: skip
NOT_OFFERED = Check("gno_kernel_bwd", "pyref", "float64", "not offered", HOSTILE, "", 1, 0.0, note=HOSTILE)


@pytest.fixture
def fake_checks(monkeypatch):
    """Make `trigraph verify` run one unit that returns fake checks."""
    checks = [GOOD]

    def raise_signal_and_get_checks():
        signal_number = getattr(signal, os.environ.get("HIT", ""), None)
        if signal_number:
            os.kill(os.getpid(), signal_number)
        return checks

    monkeypatch.setattr(
        run,
        "plan_run",
        lambda **a: [
            units.WorkUnit(HOSTILE, 1.0, lambda: units.count_checks_for_plan(checks), raise_signal_and_get_checks)
        ],
    )
    return checks


@pytest.mark.parametrize("charset", ["ascii", "latin-1", "utf-8"])
def test_hostile_text_is_escaped(fake_checks, tmp_path, charset):
    fake_checks += [BAD, NOT_OFFERED]
    folder = tmp_path / os.fsdecode(b"caf\xc3\xa9 \x80 \x1b[31m")
    words = ["verify", "--backend", "pyref", "--jobs", "1", "--report", str(folder)]
    result = CliRunner(charset=charset).invoke(main, words)
    assert result.exit_code == 1, result.exception
    assert r"caf\xe9 \udc80 \x1b[31m".replace(r"\xe9", r"\xe9" if charset == "ascii" else "\u00e9") in result.stdout
    assert {"ascii": "ok pyref", "latin-1": "ok pyref", "utf-8": "\u2713 pyref"}[charset] in result.stdout
    page, text = (folder / "report.html").read_text("utf-8"), (folder / "report.json").read_text("ascii")
    for shown in (result.output, page, text):
        assert not {"\x1b", "\udc80", "\u202e", "\x07"}.intersection(shown)
    assert HOSTILE in json.loads(text)["checks"]["case"]
    assert ESCAPED.replace(r"\xe9", "\u00e9") in page
    # Texts from earlier reports are escaped, too.
    result = CliRunner(charset=charset).invoke(main, [*words[:-2], "--against", str(folder / "report.json")])
    assert result.exit_code == 1, result.exception
    assert "\x1b" not in result.output


@contextmanager
def open_unwritable_stream(kind):
    """Yield a stream that writes to a full disk or to a closed pipe."""
    reader, writer = os.pipe()
    os.close(reader)
    with open("/dev/full" if kind == "disk" else writer, "w", encoding="utf-8") as stream:
        yield stream
        stream.flush()  # raises the error here, not at exit


def run_and_get_exit_status(words):
    """Run a command and return its exit status."""
    with pytest.raises(SystemExit) as caught:
        main(words, prog_name="trigraph")
    return caught.value.code


VERIFY = ["verify", "--backend", "pyref", "--jobs", "1"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
@pytest.mark.parametrize(
    ("kind", "line"),
    [("disk", "Error: the output cannot be used: No space left on device\n"), ("pipe", "")],
)
@pytest.mark.parametrize("words", [["--help"], ["operators"], VERIFY], ids=lambda words: words[0])
def test_unwritable_output_ends_with_an_error(words, kind, line, fake_checks, tmp_path, monkeypatch, capsys):
    """If standard output cannot be written, commands exit with an error, but still write their report."""
    report = ["--report", str(tmp_path)] if words is VERIFY else []
    with open_unwritable_stream(kind) as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        assert run_and_get_exit_status([*words, *report]) == 1
    errors = capsys.readouterr().err
    assert errors.endswith(line)
    assert errors.count("\n") == bool(line) + bool(report)  # with a report, there is one more line
    assert (tmp_path / "report.json").is_file() == bool(report)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
@pytest.mark.parametrize("kind", ["disk", "pipe"])
@pytest.mark.parametrize(("words", "status"), [(["no such command"], 2), (VERIFY, 0)])
def test_unwritable_stderr_keeps_the_exit_status(kind, words, status, fake_checks, tmp_path, monkeypatch):
    report = ["--report", str(tmp_path)] if status == 0 else []
    with open_unwritable_stream(kind) as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        assert run_and_get_exit_status([*words, *report]) == status
    assert (tmp_path / "report.json").is_file() == bool(report)


@pytest.mark.usefixtures("default_signal_handlers")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_one_line_and_its_status(number, fake_checks, monkeypatch):
    before = signal.getsignal(number)
    monkeypatch.setenv("HIT", number.name)
    result = CliRunner().invoke(main, VERIFY)
    assert (result.exit_code, result.stderr.strip()) == (128 + number, f"Ended by {number.name}")
    assert signal.getsignal(number) is before


@pytest.mark.usefixtures("default_signal_handlers")
def test_an_interrupted_run_shows_completed_checks(fake_checks, monkeypatch):
    fake_checks += [BAD]
    (unit,), hit = run.plan_run(), units.WorkUnit("hit", 1.0, lambda: 1, lambda: os.kill(os.getpid(), signal.SIGINT))
    monkeypatch.setattr(run, "plan_run", lambda **a: [unit, hit])
    result = CliRunner().invoke(main, VERIFY)
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (130, "Ended by SIGINT")
    assert "Failed: 1 checks" in result.stdout
    assert result.stdout.splitlines()[-1] == "1 checks passed, 1 failed, then interrupted"


def test_signals_that_a_shell_ignores_fail_no_test():
    """The tests of signals also pass if SIGHUP and SIGINT are ignored, as under `nohup make test &`."""
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "is_one_line or an_interrupted"]
    programs.run_command("sh", "-c", 'trap "" HUP INT; exec "$@"', "sh", sys.executable, *words)


def test_a_signal_that_is_ignored_stays_ignored(fake_checks, monkeypatch):
    """SIGHUP stays ignored if it was ignored before, as under `nohup`."""
    monkeypatch.setenv("HIT", "SIGHUP")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert CliRunner().invoke(main, VERIFY).exit_code == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    "words",
    [
        *(["verify", "--structure", "x.xyz", "--cutoff", value] for value in ("nan", "inf", "-inf", "0", "-1")),
        *(["verify", "--jobs", value] for value in ("0", "-1", "nan", "1000000000", "9" * 5000)),
        *(["verify", "--seed", value] for value in ("-1", "nan", "9" * 5000)),
        *(["qualify", "--out", "x", "--deadline", value] for value in ("9", "nan", "inf", "1e300")),
        ["fortran", "x", "--vector-bytes", "1000000000"],
    ],
    ids=lambda words: " ".join(words)[:50],
)
def test_invalid_numbers_are_refused(words):
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert f"Invalid value for '{words[-2]}'" in result.stderr
