"""The soak test runs for some seconds, and fails when it must."""

from __future__ import annotations

import functools
import re
import subprocess
import sys

import numpy as np
import pytest

from trigraph.benchmarks import soak
from trigraph.table import DEFINITIONS

SECONDS = 6
TIMEOUT = 5 * soak.HANG


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "trigraph.benchmarks.soak", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)


def test_some_seconds_of_it():
    done = run("--seconds", str(SECONDS), "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "soak: passed" in done.stdout
    for what in ("forks", "interruptions", "calls in finalisers", "calls in signal handlers"):
        assert re.search(rf"\b[1-9]\d* {what}\b", done.stdout), what


@functools.cache
def a_job() -> soak.Job:
    case = soak.build(DEFINITIONS[0], soak.variants(DEFINITIONS[0])[0], "float64", 0)
    return soak.Job(case, soak.every_operator_of(DEFINITIONS[0])[1], "fortran", None)


def test_other_bits_fail():
    tried, job = soak.Soak(0), a_job()
    result = job.call()
    tried.check(job, result, "first")
    tried.check(job, job.call(fresh=True), "again")
    changed = {n: v.copy() for n, v in result.items()}
    next(iter(changed.values())).flat[0] *= 1 + 2.0**-52
    with pytest.raises(soak.Failure, match="other bits"):
        tried.check(job, changed, "changed")


def test_half_a_result_fails():
    tried, job = soak.Soak(0), a_job()
    out = tried.outputs(job)
    tried.untouched(job, out, "before")
    job.call(out=out)
    tried.untouched(job, out, "after")
    out = tried.outputs(job)
    next(iter(out.values())).flat[0] = 0
    with pytest.raises(soak.Failure, match="half a result"):
        tried.untouched(job, out, "in between")


def test_cases_are_a_function_of_their_number():
    for number in range(30):
        first, second = soak.draw_case(number), soak.draw_case(number)
        assert first.definition is second.definition
        assert first.sizes == second.sizes
        for op in soak.every_operator_of(first.definition):
            for (name, a), b in zip(first.arguments(op).items(), second.arguments(op).values(), strict=True):
                if isinstance(a, np.ndarray):
                    assert a.tobytes() == b.tobytes(), name


def test_the_trend_of_memory():
    level = [(float(t), 1000 + (-1) ** t) for t in range(40)]
    assert abs(soak.trend(level)) < 0.1
    assert soak.trend([(t, r + int(5 * t)) for t, r in level]) == pytest.approx(5, abs=0.2)
    level[20] = (20.0, 10**9)
    assert abs(soak.trend(level)) < 0.1


def test_what_fails_exits_with_1(monkeypatch, capsys):
    def wrong(self, job, result, what):
        raise soak.Failure("on purpose")

    monkeypatch.setattr(soak.Soak, "check", wrong)
    assert not soak.run(1, 0, soak.Console())
    assert "on purpose" in capsys.readouterr().out
