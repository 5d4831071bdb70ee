"""Reports: reading of the JSON, figures, summaries, and comparisons with an earlier report."""

import json
import math
import re
from dataclasses import fields, replace

import numpy as np
import pytest

from slopecheck import plots
from slopecheck.compare import compare_reports
from slopecheck.environment import collect_environment
from slopecheck.record import COLUMNS, Check
from slopecheck.report import KEYS, ReportError, assemble_report, checks_of, encode_report, read
from slopecheck.summary import compute_error_ratio, find_worst_check, make_summary_rows
from slopecheck.terms import ReportTerms
from slopecheck.units import count_checks_for_plan

STEPS = tuple(2.0**-k for k in range(6, 37, 3))


CHECK = Check("gno_kernel_bwd", "pyref", "float64", "accuracy", "regular", "coords", 1.0, 8.0)


def make_passing_checks():
    """Return made-up checks of a small run, all of which pass."""
    rng = np.random.default_rng(0)
    checks = []
    for name, field, order in (("gno_kernel_fwd", "kernel", 0), ("gno_kernel_bwd", "coords", 1)):
        for backend in ("fortran", "pyref"):
            for dtype in ("float32", "float64"):
                error, bits = 8 * rng.random(), f"{rng.integers(2**62):016x}"
                made = Check(name, backend, dtype, "accuracy", "regular", field, error, 8.0, seconds=0.001, digest=bits)
                checks += [made, replace(made, kind="repeat", error=0.0, tolerance=0.0)]
            curve = tuple((h, 2e-16 * (0.1 + rng.random()) / h) for h in STEPS)
            checks += [replace(made, kind="differences", error=1e-14, tolerance=1e-7, curve=curve)] * order
        curve = tuple((h, h**2 + 1e-31 / h) for h in STEPS)
        judge = Check(name, "judge", "real128", "differences", "regular", field, 1e-21, 5e-20, 2.01, curve=curve)
        checks += [judge] * order
    return checks


@pytest.fixture(scope="module")
def environment():
    return collect_environment()


def assemble_test_report(checks, environment, seed=0):
    return assemble_report(
        checks,
        [("backend gpu", "CuPy is not installed")],
        seed,
        "a command",
        environment,
        count_checks_for_plan(checks),
    )


def test_report_reads_back_unchanged(tmp_path, environment):
    checks = make_passing_checks()
    report = assemble_test_report(checks, environment)
    (tmp_path / "report.json").write_bytes(encode_report(report))
    again = read(tmp_path / "report.json")
    assert again == report
    assert checks_of(again) == checks
    assert list(again) == list(KEYS)
    assert list(again["checks"]) == list(COLUMNS) == [f.name for f in fields(Check)]
    assert set(again["counts"]) | {"what", "reason"} == set(re.findall("`([a-z_]+)`", KEYS["counts"] + KEYS["skips"]))
    assert KEYS["schema_version"].startswith(f"{again['schema_version']}: ")
    assert report["verdict"] == "passed"
    assert tuple(report["counts"].values()) == (len(checks), len(checks), 0, 0, 0, 1)


@pytest.mark.parametrize("error", [math.nan, math.inf])
def test_nonfinite_errors_become_null_and_fail(environment, error):
    checks = make_passing_checks()
    checks[0] = replace(checks[0], error=error, note="NaN")
    checks[-1] = replace(checks[-1], error=error, order=error, curve=((0.5, error), (0.25, 1e-3)))
    raw = json.loads(json.dumps(assemble_test_report(checks, environment), allow_nan=False))
    assert raw["verdict"] == "failed"
    assert raw["counts"]["failed"] == 2
    assert raw["checks"]["error"][0] is None
    assert raw["checks"]["curve"][-1] == [[0.5, None], [0.25, 1e-3]]
    assert raw["checks"]["order"][-1] is None
    restored = checks_of(raw)
    assert not restored[0].passed
    assert math.isnan(restored[-1].curve[0][1])


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (("checks", "error"), [], "shorter"),
        (("checks",), [], "its checks: []; expected dict"),
        (("checks", "kind"), "a", 'its kind: "a"; expected list'),
        (("checks", "error", 5), "5.0", 'its error: "5.0"; expected int or float or null'),
        (("checks", "error", 5), True, "its error: true; expected"),
        pytest.param(("checks", "error", 5), 10**400, "int too large", id="large"),
        (("checks", "kind", 5), ["accuracy"], 'its kind: ["accuracy"]; expected str'),
        *((("checks", name, 5), None, f"its {name}: null; expected str") for name in ("operator", "backend", "dtype")),
        *((("checks", name, 5), {}, f"its {name}: {{}}; expected str") for name in ("case", "field", "note", "trace")),
        (("checks", "digest", 5), ["a"], 'its digest: ["a"]; expected str or null'),
        (("checks", "order", 5), "2", 'its order: "2"; expected int or float or null'),
        (("checks", "curve", 5), [[1.0]], "not enough values"),
        (("checks", "curve", 5), [["a", "b"]], 'its curve: "a"; expected'),
        (("command",), [], "its command: []; expected str"),
        (("seconds",), "long", 'its seconds: "long"; expected'),
        (("seconds",), math.inf, "its seconds: inf; expected a finite number"),
        (("schema_version",), 1, "with schema_version 3"),
    ],
)
def test_malformed_report_contents_are_refused(environment, tmp_path, place, value, says):
    report = target = json.loads(json.dumps(assemble_test_report(make_passing_checks(), environment)))
    for key in place[:-1]:
        target = target[key]
    target[place[-1]] = value
    (tmp_path / "report.json").write_text(json.dumps(report))
    with pytest.raises(ReportError, match="is not a report of checks") as caught:
        read(tmp_path / "report.json")
    assert says in str(caught.value)


def test_missing_or_unoffered_checks_are_no_success(environment):
    checks = make_passing_checks()
    assert assemble_test_report([], environment)["verdict"] == "failed"
    assert assemble_report(checks, [], 0, "a command", environment, len(checks) + 1)["verdict"] == "failed"
    absent = Check("gno_kernel_fwd", "f", "float64", "not offered", "gno_kernel, wide, float64: f", "", 7, 0.0)
    report = assemble_test_report([*checks, absent], environment)
    assert (report["verdict"], report["counts"]["not_offered"]) == ("passed", 7)
    assert report["counts"]["passed"] == len(checks)
    assert assemble_test_report([absent], environment)["verdict"] == "failed"
    assert not checks_of(report)[-1].passed
    assert not checks_of(report)[-1].failed


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Expecting value"),
        ('{"schema_version": 3}', "'command'"),
        ("[" * 200_000, "while decoding a JSON array"),
        ('{"schema_version": ' + "1" * 10_000 + "}", "digits"),
    ],
)
def test_files_other_than_reports_raise_short_errors(tmp_path, text, says):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ReportError, match=r"other\.json") as caught:
        read(path)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(path))
    assert "\n" not in str(caught.value)


def test_plots_accept_nan_and_infinite_values():
    check = replace(CHECK, kind="differences", error=math.inf)
    curves = [((0.5, 0.0), (0.25, math.nan)), ((0.5, 0.0),), ((0.5, 1e-3), (0.25, math.inf))]
    assert plots.png(plots.draw_difference_curves([replace(check, curve=c) for c in curves], ReportTerms())).startswith(
        b"\x89PNG"
    )
    wrong = [replace(CHECK, backend=p, error=e) for p, e in [("a", math.nan), ("b", 1e9), ("c", math.inf)]]
    assert plots.svg(plots.draw_error_matrix(wrong, ReportTerms())).count("NaN") == 1


def test_summary_shows_worst_check():
    checks = [
        CHECK,
        replace(CHECK, error=10.0, tolerance=100.0),
        *(replace(CHECK, kind="differences", error=1e-9, tolerance=1e-7, order=order) for order in (1.97, 2.01)),
        replace(CHECK, kind="golden"),
        replace(CHECK, kind="repeat", error=1.0, tolerance=0.0),
    ]
    (row,) = make_summary_rows(checks, ReportTerms())
    assert (row.error, row.tolerance, row.order, row.other_kinds, row.passed) == (1.0, 8.0, "1.97", "1/2", False)
    nan = replace(CHECK, error=math.nan)
    assert find_worst_check([CHECK, nan]) is nan
    assert compute_error_ratio(replace(CHECK, error=0.0, tolerance=0.0)) == 0.0
    assert compute_error_ratio(checks[-1]) == math.inf


def test_comparison_lists_changed_and_missing_checks(environment):
    before = [replace(CHECK, case=str(n), digest=str(n)) for n in range(8)]
    errors = {1: (1.0, 2.1), 2: (1.0, 1.9), 3: (1.0, math.nan), 4: (math.inf, 1.0), 5: (3.8e-17, 1.7e-17)}
    before, after = ([replace(c, error=errors.get(n, (1.0, 1.0))[k]) for n, c in enumerate(before)] for k in (0, 1))
    after[0] = replace(before[0], digest="0" * 16)
    after[7] = replace(before[7], operator="gno_message_fwd")
    comparison = compare_reports(
        assemble_test_report(before, environment),
        before,
        assemble_test_report(after, environment, seed=1),
        after,
        ReportTerms(),
    )
    assert comparison.influences == [("seed", "0", "1")]
    assert comparison.changed_bits == [(before[0], after[0])]
    assert comparison.same_bits == len(before) - 2
    assert comparison.changed_accuracy == [(before[i], after[i]) for i in (1, 3, 4)]
    assert (comparison.repaired, comparison.broken) == (1, 1)
    assert comparison.gone == {("gno_kernel_bwd", "pyref", "float64"): 1}
    assert comparison.new == {("gno_message_fwd", "pyref", "float64"): 1}


def test_comparison_keeps_checks_of_the_same_name_apart(environment):
    before, after = [replace(CHECK, digest="1")] * 2, [replace(CHECK, digest=bits) for bits in "12"]
    comparison = compare_reports(
        assemble_test_report(before, environment),
        before,
        assemble_test_report(after, environment),
        after,
        ReportTerms(),
    )
    assert (comparison.same_bits, len(comparison.changed_bits)) == (1, 1)
    assert (comparison.new, comparison.gone) == ({}, {})


def test_comparison_ignores_checks_outside_the_selection(environment):
    checks = make_passing_checks()
    earlier = assemble_test_report(checks, environment)
    now = [c for c in checks if c.operator == "gno_kernel_bwd" and c.backend == "pyref" and c.dtype == "float64"]
    now, lost = now[1:], now[0]
    report = assemble_test_report(now, environment)
    assert sum(compare_reports(earlier, checks, report, now, ReportTerms()).gone.values()) == len(checks) - len(now)
    asked = ({"gno_kernel_bwd"}, {"pyref"}, {"float64"})
    comparison = compare_reports(earlier, checks, report, now, ReportTerms(), asked)
    assert (comparison.gone, comparison.new) == ({(lost.operator, lost.backend, lost.dtype): 1}, {})
