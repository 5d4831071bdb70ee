"""Windows consoles can print all results, and the package works without signals and forks that Windows lacks."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from cubes import X, cube, gradient, gradient_with_wrong_element

from slopecheck import check_derivatives, isolated, outcome, running, terminal
from slopecheck.kinds import CALCULATOR_CHECKS, FUNCTION_CHECKS
from slopecheck.result import NEXT

PROGRAM = """
import numpy as np
from slopecheck import DerivativeError, check_derivatives

def φ(x):
    return np.exp(x)

def wrong(x, g):
    raise ValueError("∇φ → λ ≠ 0")

x = np.ones(3)
print(check_derivatives(φ, (x,), vjp=lambda x, g: (g[0] * np.exp(x[0]),)))
for vjp in (wrong, lambda x, g: (1.1 * g[0] * np.exp(x[0]),)):
    try:
        check_derivatives(φ, (x,), vjp=vjp)
    except DerivativeError as error:
        print(error)
        print(error.result)
"""


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8"])
def test_console_of_any_encoding_prints_results(encoding):
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr.decode(encoding)
    text = done.stdout.decode(encoding)
    assert ("φ" if encoding == "utf-8" else r"\u03c6") in text
    assert text.count("checks of its derivatives failed") == 4


def copy_module_without(module, *names):
    """Return a copy of a module without the named attributes."""
    return SimpleNamespace(**{n: value for n, value in vars(module).items() if n not in names})


def test_results_do_not_need_fork_or_signals(monkeypatch):
    """Results do not change without alarms, SIGKILL, SIGHUP, process groups and fork."""
    signals = ("SIGALRM", "SIGKILL", "SIGHUP", "SIGPIPE", "setitimer", "ITIMER_REAL", "alarm", "pthread_kill")
    for module in (outcome, isolated, terminal):
        monkeypatch.setattr(module, "signal", copy_module_without(signal, *signals))
    for module in (isolated, running):
        monkeypatch.setattr(module, "os", copy_module_without(os, "fork", "killpg", "setpgrp"))
    for vjp, passed in ((gradient, True), (gradient_with_wrong_element, False)):
        for timeout in (None, 60):  # a timeout starts a new process
            assert check_derivatives(cube, (X,), vjp=vjp, timeout=timeout, raises=False).passed == passed
    with pytest.raises(ValueError, match=r"^timeout: this system has no fork, and the function or inputs cannot be"):
        check_derivatives(lambda x: x, (X,), vjp=lambda x, g: g, timeout=60)
    with terminal._treat_signals_like_ctrl_c() as came:
        assert came == []


def test_each_kind_of_check_has_a_next_step():
    assert {"call", "elements", *FUNCTION_CHECKS, *CALCULATOR_CHECKS} == set(NEXT)


def test_functions_and_calculators_share_five_kinds():
    """Functions and calculators share only these kinds of check."""
    assert set(FUNCTION_CHECKS) & set(CALCULATOR_CHECKS) == {"unchanged", "repeat", "kept", "history", "symmetry"}
