"""Report of a run: ``report.json``, a self-contained page ``report.html``, and pictures."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from slopecheck import console, progress
from slopecheck.compare import ReportComparison
from slopecheck.record import Check
from slopecheck.report import encode_report, render_template, replace_files
from slopecheck.summary import compute_error_ratio, find_worst_check
from slopecheck.terminal import escape_unprintable
from trigraph.environment import print_environment
from trigraph.table import NAMED
from trigraph.verification.terms import TERMS
from trigraph.verification.tolerances import TABLE


def _summarize_check_kind(name: str, group: Sequence[Check]) -> dict[str, Any]:
    """Return a kind's description, its number of passed checks, and the largest error in units of its tolerance."""
    return {
        "name": name,
        "meaning": TERMS.kinds[name],
        "count": len(group),
        "passed": sum(c.passed for c in group),
        "largest": max(
            (compute_error_ratio(c) for c in group if c.tolerance > 0), default=None
        ),  # None for bitwise checks
    }


def summarize_comparisons(checks: Sequence[Check]) -> dict[str, Any]:
    """Count the comparisons of a run, for the summary paragraph."""
    made = [c for c in checks if c.offered]
    groups = {name: [c for c in made if c.kind == name] for name in TERMS.kinds}
    accuracy, curves = groups["accuracy"], [c for c in made if c.kind in TERMS.curves]
    return {
        "operators": list(dict.fromkeys(c.operator for c in made if c.operator in NAMED)),
        "dtypes": list(dict.fromkeys(c.dtype for c in made if c.dtype != "real128")),
        "kinds": [_summarize_check_kind(name, group) for name, group in groups.items() if group],
        # Number of inputs of all definitions that were compared with the judge.
        "cases": len({(TERMS.definitions.get(c.operator, c.operator), c.case.split(", given")[0]) for c in accuracy}),
        # The comparison with the judge whose error is largest in units of its tolerance.
        "closest": find_worst_check(accuracy),
        "curves": sum(c.backend != "judge" for c in curves),
        "judge_curves": sum(c.backend == "judge" for c in curves),
        "vectors": len({(c.operator, c.case) for c in groups["golden"]}),
        "emulated": any(c.backend == "gpu-host" for c in made),
    }


def _capture_print(show: Callable[..., None], *what: Any) -> str:
    """Return the output of `show` as text, without wrapping lines."""
    text = io.StringIO()
    show(Console(file=text, width=10_000, highlight=False), *what)
    return text.getvalue()


def render_report_page(
    report: Mapping[str, Any], checks: Sequence[Check], comparison: ReportComparison | None, svgs: Mapping[str, str]
) -> str:
    """Return the report as a self-contained HTML page."""
    return render_template(
        "trigraph.verification",
        "report.html.j2",
        report=report,
        result=progress.describe_check_counts(checks),
        evidence=summarize_comparisons(checks),
        summary=_capture_print(console.print_summary, checks, TERMS),
        failures=_capture_print(console.print_failures, checks, TERMS),
        withheld=_capture_print(console.print_checks_not_offered, checks, TERMS),
        comparison=_capture_print(console.print_comparison, comparison) if comparison else "",
        environment_text=_capture_print(print_environment, report["environment"]),
        tolerances=TABLE,
        svgs=svgs,
    )


def write_report(
    folder: Path, report: Mapping[str, Any], checks: Sequence[Check], comparison: ReportComparison | None = None
) -> None:
    """Write ``report.json``, ``report.html`` and the pictures in `PICTURES` (``agreement.png``...) to a folder.

    The folder is created if necessary. `checks` are the checks from which the report was assembled. Pictures without
    data are removed. Raises OSError if space or permission is lacking; files of an earlier report are then unchanged.
    """
    from slopecheck.plots import PICTURES, png, svg

    svgs, files = {}, {}
    for name, draw in PICTURES.items():
        figure = draw(checks, TERMS)
        if figure is not None:
            files[f"{name}.png"] = png(figure)
            svgs[name] = svg(figure)
    files["report.json"] = encode_report(report)
    files["report.html"] = escape_unprintable(render_report_page(report, checks, comparison, svgs)).encode()
    replace_files(folder, files, [f"{name}.png" for name in PICTURES])
