"""`check_derivatives` reports calls that fail, rejects bad arguments, and shows and saves its result."""

import ctypes
import io
import os
import re
import signal
import sys

import numpy as np
import pytest
from cubes import (
    X,
    cube,
    gradient,
    gradient_with_wrong_element,
    list_failure_notes,
    second_derivatives,
    third_derivatives,
)
from rich.console import Console

from slopecheck import check_derivatives, running
from slopecheck.curves import ArrayWithRounding, GradientClaim
from slopecheck.kinds import FUNCTION_CHECKS
from slopecheck.report import checks_of, read


def raise_zero_division(x):
    raise ZeroDivisionError("of a stranger")


def exit_with_status_3(x):
    sys.exit(3)


def wait_in_c(x):
    ctypes.CDLL(None).pause()


def exit_without_exception(x):
    os._exit(0)


def kill_process(x):
    os.kill(os.getpid(), signal.SIGKILL)  # SIGSEGV would make pytest print a traceback


CALLS = {
    raise_zero_division: (None, "ZeroDivisionError: of a stranger"),
    exit_with_status_3: (None, "SystemExit: 3"),
    np.argmax: (60, "no output has an element of a floating dtype"),
    wait_in_c: (0.2, "it takes longer than 0.2 s; a larger timeout, or inputs of fewer elements, would decide"),
    exit_without_exception: (60, "the process that runs it ended with status 0"),
    kill_process: (60, "the process that runs it was ended by signal SIGKILL"),
}


@pytest.mark.parametrize("function", CALLS, ids=lambda f: f.__name__)
def test_failed_first_call_is_reported(function):
    timeout, note = CALLS[function]
    result = check_derivatives(function, (X,), order=1, vjp=gradient, timeout=timeout, raises=False)
    assert not result.passed
    assert [check.note for check in result.checks] == [note]
    with pytest.raises(ValueError, match="there is no curve"):
        result.plot()


def test_later_call_errors_fail_only_their_checks():
    """An exception or a wrong shape in a later call fails only the checks that make this call; other checks run."""

    def raise_in_gradient(x, g):
        raise ZeroDivisionError("in the gradient")

    result = check_derivatives(cube, (X,), order=1, vjp=raise_in_gradient, raises=False)
    assert list_failure_notes(result, "differences") == ["ZeroDivisionError: in the gradient"]
    assert [c.passed for c in result.checks if c.kind == "nan"] == [True]
    calls = []

    def change_output_shape(x):
        calls.append(x)
        return x[: 3 if len(calls) == 1 else 2]

    result = check_derivatives(change_output_shape, (X[:, 0],), order=1, vjp=lambda x, g: g, raises=False)
    assert list_failure_notes(result, "differences") == [
        "shapes (2,) were returned; expected (3,), as in the first call"
    ]


@pytest.mark.parametrize(
    ("first", "second", "note"),
    [(2, 1, ["2 gradients in the inputs"]), (1, 2, ["2 second derivatives in the inputs"]), (1, 1, [])],
)
@pytest.mark.parametrize("left_out", [{}, {"form": "for a reason"}])
def test_surplus_derivatives_are_reported_once(first, second, note, left_out):
    """A gradient that also returns None for integer inputs is reported only once."""

    def gather_squares(x, index):
        return x[index] ** 2

    def vjp(inputs, cotangents):
        (x, index), (g,) = inputs, cotangents
        gradient = np.zeros_like(x)
        np.add.at(gradient, index, 2 * x[index] * g)
        return (gradient, None)[:first]

    def vjp2(inputs, cotangents, directions):
        (x, index), (g,), (u,) = inputs, cotangents, directions
        gradient = np.zeros_like(x)
        np.add.at(gradient, index, 2 * u[index] * g)
        return (gradient, None)[:second], (2 * x[index] * u[index],)

    inputs = np.linspace(1.0, 2.0, 4), np.array([0, 2, 2])
    result = check_derivatives(gather_squares, inputs, vjp=(vjp, vjp2), skip=left_out, raises=False)
    expected = [f"{text} were returned; expected 1, only for the floating inputs (x)" for text in note]
    assert [c.note for c in result.failures] == expected


@pytest.mark.parametrize(
    ("spoilt", "note"), [(wait_in_c, "it takes longer than 2 s"), (exit_without_exception, "the process that")]
)
def test_ended_or_hanging_child_loses_one_check(spoilt, note):
    """If the child process ends or hangs, one check is lost; other checks have the same results as without a child."""

    def cube_failing_for_nan(x):
        return cube(x) if np.isfinite(x).all() else spoilt(x)

    keywords = {"order": 1, "vjp": gradient_with_wrong_element, "raises": False}
    result = check_derivatives(cube_failing_for_nan, (X,), timeout=2, **keywords)
    assert [c.note.startswith(note) for c in result.checks if c.kind == "nan"] == [True]
    expected = [c for c in check_derivatives(cube, (X,), **keywords).checks if c.kind != "nan"]
    assert [(c.kind, c.field, c.passed) for c in result.checks if c.kind != "nan"] == [
        (c.kind, c.field, c.passed) for c in expected
    ]
    same = check_derivatives(cube, (X,), timeout=60, **keywords).checks
    assert [c.curve for c in same if c.kind != "nan"] == [c.curve for c in expected]


def test_forked_child_works_beside_torch_threads():
    """torch's threads do not survive a fork; the child must run on one thread instead of waiting for them."""
    torch = pytest.importorskip("torch")

    def mean_of_many_exponentials(x):
        return (x.sum() * torch.ones(100_000, dtype=x.dtype)).exp().mean()

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        mean_of_many_exponentials(torch.ones(3, requires_grad=True)).backward()
        result = check_derivatives(mean_of_many_exponentials, (torch.ones(3),), framework="torch", order=1, timeout=20)
    finally:
        torch.set_num_threads(before)
    assert result.skipped == {"threads": "a fork has one thread"}


def test_terminal_shows_progress_bar(monkeypatch):
    """A terminal shows a progress bar, and prints names with brackets unchanged."""
    text = io.StringIO()
    monkeypatch.setattr(running, "PATIENCE", 0.0)
    monkeypatch.setattr(running, "Console", lambda stderr: Console(file=text, force_terminal=True))
    monkeypatch.setattr(cube, "__name__", "[/]")
    check_derivatives(cube, (X,), order=1, vjp=gradient)
    assert "[/]: 1 differences" in text.getvalue()


def test_keyboard_interrupt_reaches_the_caller():
    def raise_keyboard_interrupt(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_derivatives(raise_keyboard_interrupt, (X,), order=1, vjp=gradient)


def test_macos_timeout_rejects_unpicklable_function(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ValueError, match=r"^timeout: libraries of macOS do not survive a fork, and the function or"):
        check_derivatives(lambda x: x, (X,), timeout=60)


# Results


def test_a_failure_is_an_assertion_error_with_the_result():
    with pytest.raises(
        AssertionError,
        match=r"^cube: 2 of 26 checks of its derivatives failed: compare the formula of this derivative\n  differences",
    ) as caught:
        check_derivatives(cube, (X,), order=1, vjp=gradient_with_wrong_element)
    assert caught.value.result.failures


def test_notes_distinguish_kinks_from_mistakes():
    def relu(x):
        return np.maximum(x, 0)

    def relu_gradient(x, g):
        return ((x[0] > 0) * g[0],)

    result = check_derivatives(relu, (np.array([1.0, -1.0, 1e-3]),), order=1, vjp=relu_gradient)
    (remark, _) = [check.note for check in result.checks if check.kind == "differences"]  # `_`: the second point's note
    assert re.fullmatch(r"steps above \de-0\d cross a kink, or the curvature is large", remark)
    result = check_derivatives(relu, (np.array([1.0, -1.0, 0.0]),), order=1, vjp=relu_gradient, raises=False)
    (note,) = list_failure_notes(result, "elements")
    assert re.match(r"element \[2\] is -?0; .*; the point lies on a kink: slopes are -?0 before it and ", note)
    assert not list_failure_notes(
        check_derivatives(relu, (np.array([0.0]),), order=1, vjp=relu_gradient, raises=False), "form"
    )


@pytest.mark.parametrize(("factor", "power"), [(1, 2.0), (1, 2.5), (1e3, 2.0), (1e4, 1.95), (1e5, 1.95)])
def test_functions_without_third_derivative_are_judged_correctly(factor, power):
    """Where the error falls with a power of the step below 2, its limit decides, even if every error is large."""

    def power_function(x):
        return factor * np.sign(x[0]) * abs(x[0]) ** power + x[1] ** 2

    def power_gradient(x, g):
        return (g[0] * np.array([factor * power * abs(x[0][0]) ** (power - 1), 2 * x[0][1]]),)

    x, skip = (np.array([0.0, 1.0]),), dict.fromkeys(set(FUNCTION_CHECKS) - {"differences"}, "another test")
    assert check_derivatives(power_function, x, vjp=power_gradient, skip=skip, raises=False).passed
    at, v = np.array([0.0, 1.0]), np.array([1.0, 0.7])
    for wrong in (0.0, -3e-7, 3e-7, 1e-5):
        gradient = np.array([0.0, 2 * (1 + wrong)])
        verdict = GradientClaim(
            power_function, ArrayWithRounding(gradient, 2.0**-52 * gradient), at, 2.0**-54
        ).compare_over_steps(v, 1.0)
        assert (verdict.problem == "") == (not wrong), verdict
        assert not verdict.inconclusive


def test_result_prints_plots_and_saves_reports(tmp_path):
    def cube_with_markup_name(x):
        """Return the cube; the function's name and messages look like markup."""
        return cube(x)

    cube_with_markup_name.__name__ = "<b>[red]strange[/]"
    result = check_derivatives(
        cube_with_markup_name,
        (X,),
        order=1,
        vjp=gradient_with_wrong_element,
        raises=False,
        skip={"nan": "[/] it may <be> anything"},
    )
    table = str(result)
    rows = [line.split()[1] for line in table.splitlines() if re.match(r"│ \w", line)]
    assert rows[-3:] == ["differences", "elements", "nan"], "failures are last, but for what was left out"
    alone = [line.split()[1] for line in result.table(False).splitlines() if re.match(r"│ \w", line)]
    assert alone == rows[-3:]
    assert table.splitlines()[-1].startswith("failed: 2 of ")
    assert "<b>[red]strange[/]" in table
    assert "skipped: [/] it may <be> anything" in table
    assert re.search(r"│ differences +│ 1 +│ x +│ inf +│ 1.0e-07 +│ .*failed: element \[2, 1\]", table)
    assert len(result.plot().axes) >= 1
    result.save(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "&lt;b&gt;[red]strange[/]" in page
    assert "failed: element [2, 1] is" in page
    result.save(tmp_path / "report.json")
    report = read(tmp_path / "report.json")
    assert (report["command"], report["verdict"]) == ("Derivatives of <b>[red]strange[/]", "failed")
    assert report["skips"] == [{"what": "nan", "reason": "[/] it may <be> anything"}]
    assert [(c.kind, c.failed, c.curve) for c in checks_of(report)] == [
        (c.kind, c.failed, c.curve) for c in result.checks
    ]


def test_skip_leaves_out_named_kinds_of_check():
    kinds = ("form", "unchanged", "repeat", "kept", "history", "layout", "nan", "float32", "adjoint", "symmetry")
    result = check_derivatives(
        cube, (X,), vjp=(gradient, second_derivatives), skip=dict.fromkeys(kinds, "for a reason")
    )
    assert {check.kind for check in result.checks} == {"differences", "elements"}
    assert {check.case for check in result.checks} == {"1", "2"}
    result = check_derivatives(cube, (X,), order=1, vjp=gradient)
    assert not {"adjoint", "symmetry"} & {check.kind for check in result.checks}
    assert "2" not in {check.case for check in result.checks}


BAD = [
    (TypeError, "function is a int; expected a callable", {"function": 3}),
    (TypeError, "inputs is a ndarray; expected a tuple of arrays", {"inputs": X}),
    (ValueError, "order is 4; expected 1, 2 or 3", {"order": 4}),
    (ValueError, "skip of 'nan' is ' '; expected a reason", {"skip": {"nan": " "}}),
    (ValueError, "framework is 'theano'; expected 'numpy', 'torch' or 'jax'", {"framework": "theano", "vjp": None}),
    (TypeError, "vjp is a NoneType; expected a function for 'numpy'", {"vjp": None}),
    (TypeError, r"order is 2 and vjp is not a pair; expected \(vjp, vjp2\), or order=1", {"order": 2}),
    (
        TypeError,
        r"order is 3 and vjp is not three functions; expected \(vjp, vjp2, vjp3\), or order=2",
        {"order": 3, "vjp": (gradient, second_derivatives)},
    ),
    (TypeError, "order is 2 and vjp is not a pair", {"order": 2, "vjp": (gradient, None, third_derivatives)}),
    (TypeError, "skip is a list; expected a mapping of kinds to reasons", {"skip": ["nan"]}),
    (ValueError, "skip names speed; expected form, unchanged, repeat, kept,", {"skip": {"speed": "why"}}),
    (ValueError, "timeout is 0; expected seconds above 0, or None", {"timeout": 0}),
    (TypeError, "vjp is given for 'torch', which differentiates itself", {"framework": "torch"}),
    (ValueError, "inputs have no nonempty numpy array of floating dtype", {"inputs": (np.arange(3), "x")}),
    (ValueError, "inputs have no nonempty numpy array of floating dtype", {"inputs": (np.zeros((0, 3)),)}),
]


@pytest.mark.parametrize(("kind", "text", "changed"), BAD)
def test_check_derivatives_rejects_bad_arguments(kind, text, changed):
    calls = []

    def cube_counting_calls(x):
        calls.append(x)
        return cube(x)

    arguments = {"function": cube_counting_calls, "inputs": (X,), "order": 1, "vjp": gradient, **changed}
    with pytest.raises(kind, match=f"^check_derivatives: {text}"):
        check_derivatives(**arguments)
    assert not calls
