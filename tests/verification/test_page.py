"""Tests of the report page and pictures: they are self-contained and replace the files of an earlier run."""

import errno
import math
import pathlib
import re
from dataclasses import replace

import pytest

from slopecheck.compare import compare_reports
from slopecheck.record import Check
from slopecheck.report import assemble_report
from slopecheck.units import count_checks_for_plan
from trigraph.environment import collect_environment
from trigraph.verification.report import write_report
from trigraph.verification.terms import TERMS


def make_passing_checks():
    """Return the checks of a small run that passes."""
    accuracy = Check("gno_kernel_bwd", "pyref", "float64", "accuracy", "regular", "coords", 2.0, 8.0)
    curve = tuple((2.0**-k, 2e-16 * 2.0**k) for k in range(6, 37, 3))
    differences = replace(accuracy, kind="differences", error=1e-14, tolerance=1e-7, curve=curve)
    return [accuracy, replace(accuracy, backend="fortran", digest="0" * 16), differences]


@pytest.fixture(scope="module")
def environment():
    return collect_environment()


def assemble_test_report(checks, environment):
    return assemble_report(checks, [], 0, "trigraph verify", environment, count_checks_for_plan(checks))


def test_pictures_without_data_are_removed(tmp_path, environment):
    checks = make_passing_checks()
    write_report(tmp_path, assemble_test_report(checks, environment), checks)
    files = {"report.json", "report.html", "agreement.png"}
    assert {p.name for p in tmp_path.iterdir()} == files | {"differences.png"}
    fewer = checks[:2]  # the removed checks are the only ones with differences
    write_report(tmp_path, assemble_test_report(fewer, environment), fewer)
    assert {p.name for p in tmp_path.iterdir()} == files


def test_page_is_ordered_and_self_contained(tmp_path, environment):
    checks = make_passing_checks()
    bad = replace(checks[0], error=math.nan, note="KeyError: '<script>x</script> &'", trace="Traceback:\nKeyError: 'x'")
    absent = replace(bad, backend="f", kind="not offered", error=7, note="why")
    checks[:1] = [bad, replace(bad, case="wide"), absent]
    report = assemble_report(
        checks, [("backend gpu", "none")], 0, "c", environment, len(checks), ["Structure w: 5 percent"]
    )
    earlier = assemble_test_report(checks[1:], environment)
    write_report(tmp_path, report, checks, compare_reports(earlier, checks[1:], report, checks, TERMS))
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    places = ('class="verdict failed"', "2 failed, 7 not offered", "<svg", "Failures", "&lt;script&gt;x&lt;/script&gt;",
              ": 2 checks (", "Traceback:", "7 checks of", "compared with what", "Structure w: 5",
              "Not run: backend gpu",
              "Changes since", "<details", "Every operator,", "report.json")  # fmt: skip
    positions = [text.index(place) for place in places]
    assert positions == sorted(positions)
    assert text.count("KeyError") == 2  # the note and the traceback contain it
    assert text.count("<svg") == 2
    assert not re.search(r"\b(?:src|srcset)=|href=\"[^#]", text)
    assert not re.search(r"@import|url\((?!#)", text)


def test_a_disk_that_is_full_leaves_the_earlier_report(tmp_path, environment, monkeypatch):
    checks = make_passing_checks()[:2]  # produces one picture
    write_report(tmp_path, assemble_test_report(checks, environment), checks)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    other = [replace(c, error=c.error / 2) for c in checks]
    good = pathlib.Path.write_bytes
    for fails_at in range(len(before)):
        calls = iter(range(100))

        def write_until_full(path, content, calls=calls, fails_at=fails_at):
            if next(calls) == fails_at:
                raise OSError(errno.ENOSPC, "No space left on device")
            return good(path, content)

        monkeypatch.setattr(pathlib.Path, "write_bytes", write_until_full)
        with pytest.raises(OSError, match="No space left"):
            write_report(tmp_path, assemble_test_report(other, environment), other)
        assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
