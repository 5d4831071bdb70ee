"""The soak test runs for some seconds, and fails when it must."""

import functools
import re
import sys

import numpy as np
import pytest
from programs import run

from trigraph.benchmarks import soak
from trigraph.table import DEFINITIONS


def test_some_seconds_of_it():
    options = ("-W", "ignore::DeprecationWarning", "-m", "trigraph.benchmarks.soak", "--seconds", 6, "--seed", 1)
    printed = run(sys.executable, *options, timeout=5 * soak.HANG).stdout
    assert "soak: passed" in printed
    for what in ("forks", "interruptions", "calls in finalisers", "calls in signal handlers"):
        assert re.search(rf"\b[1-9]\d* {what}\b", printed), what


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


def test_what_fails_exits_with_1(monkeypatch, capsys):
    def wrong(self, job, result, what):
        raise soak.Failure("on purpose")

    monkeypatch.setattr(soak.Soak, "check", wrong)
    assert not soak.run(1, 0, soak.Console())
    assert "on purpose" in capsys.readouterr().out
