"""The report of a run: ``report.json``, made to a schema, ``report.html``, a page in one file, and pictures."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trigraph.terminal import plain
from trigraph.verification import progress
from trigraph.verification.compare import FACTOR, Comparison
from trigraph.verification.failures import failures, withheld
from trigraph.verification.record import Check
from trigraph.verification.summary import evidence, number, summarise
from trigraph.verification.tolerances import TABLE
from trigraph.verification.units import counted

SCHEMA_VERSION = 2
SAMPLE = 100  # rows of the table of checks that stand for all others where a report is validated, which is slow
# Attributes of a check that are texts, and its numbers, as columns of the table of checks.
TEXTS = ("operator", "panel", "dtype", "kind", "case", "field", "note", "trace")
NUMBERS = ("error", "tolerance", "seconds")


class ReportError(ValueError):
    """A report that does not fit the schema."""


def _resource(*path: str) -> str:
    return resources.files("trigraph.verification").joinpath(*path).read_text(encoding="utf-8")


def validate(report: Any) -> None:
    """Check a report against ``report.schema.json``: of the table of checks its first rows, and that all are there.

    Raises
    ------
    ReportError
        If it does not fit; the message names the place.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    if isinstance(report, dict) and report.get("schema_version", SCHEMA_VERSION) != SCHEMA_VERSION:
        raise ReportError(f"$.schema_version: it is {report['schema_version']!r}; this version reads {SCHEMA_VERSION}")
    table, sample = report.get("checks") if isinstance(report, dict) else None, report
    if isinstance(table, dict):
        rows = {name: column[:SAMPLE] if isinstance(column, list) else column for name, column in table.items()}
        sample = {**report, "checks": rows}
    error = best_match(Draft202012Validator(json.loads(_resource("report.schema.json"))).iter_errors(sample))
    if error is not None:
        raise ReportError(f"{error.json_path[:300]}: {error.message[:300]}")
    try:
        checks_of(report)
    except (LookupError, TypeError, ValueError) as problem:
        raise ReportError(f"$.checks: {problem}") from problem


def _rounded(value: float | None, digits: int = 17) -> float | None:
    """Return a number of so many digits; None, since JSON has no such number, if it is not finite."""
    return float(f"{value:.{digits}g}") if value is not None and math.isfinite(value) else None


def _tabulated(checks: Sequence[Check]) -> dict[str, Any]:
    """Return checks as columns: texts and the steps of curves are numbers of entries of lists."""
    # The most frequent texts have the shortest numbers; the empty one is 0.
    frequent = Counter(getattr(c, name) for c in checks for name in TEXTS).most_common()
    texts = {text: number for number, text in enumerate(["", *(text for text, _ in frequent if text)])}
    steps: dict[tuple[float, ...], int] = {}
    columns = {name: [texts[getattr(c, name)] for c in checks] for name in TEXTS}
    curves: list[dict[str, Any]] = []
    for row, c in enumerate(checks):
        if c.curve:
            number = steps.setdefault(tuple(step for step, _ in c.curve), len(steps))
            errors = [_rounded(error, 4) for _, error in c.curve]
            curves.append({"check": row, "order": _rounded(c.order, 4), "steps": number, "errors": errors})
    return {
        "texts": list(texts),
        **columns,
        "error": [_rounded(c.error) for c in checks],
        "tolerance": [_rounded(c.tolerance) for c in checks],
        "seconds": [_rounded(c.seconds, 2) for c in checks],
        "digest": [c.digest for c in checks],
        "steps": [list(s) for s in steps],
        "curves": curves,
    }


def assemble(
    checks: Sequence[Check],
    skips: Sequence[tuple[str, str]],
    seed: int,
    command: str,
    environment: Mapping[str, Any],
    planned: int,
    structures: Sequence[str] = (),
) -> dict[str, Any]:
    """Put a report together; `ReportError` if it does not fit the schema.

    `skips` are pairs: what did not run, and why; `command` is the command line, to run it again; `environment` is from
    `trigraph.environment.collect`; `planned` is the number of checks that were planned, those of kind ``empty`` aside;
    `structures` are descriptions of the user's.
    """
    passed, failed = sum(c.passed for c in checks), sum(c.failed for c in checks)
    report: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": command,
        "seed": seed,
        "verdict": "passed" if passed and not failed and counted(checks) == planned else "failed",
        "counts": {
            "planned": planned,
            "passed": passed,
            "failed": failed,
            "not_offered": counted(c for c in checks if not c.offered),
            "skipped": len(skips),
        },
        "environment": environment,
        "structures": list(structures),
        "skips": [{"what": what, "reason": reason} for what, reason in skips],
        "checks": _tabulated(checks),
    }
    validate(report)
    return report


def read(path: Path) -> dict[str, Any]:
    """Read a ``report.json``.

    Raises
    ------
    ReportError
        If it cannot be read, is no JSON, or does not fit the schema.
    """
    if not path.is_file():  # to read a pipe might wait for ever
        raise ReportError(f"{path} is no file")
    try:
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        validate(report)
    except ReportError as error:
        raise ReportError(f"{path} is no report of trigraph verify: {error}") from error
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no text, no JSON; the last: nested too deeply
        raise ReportError(f"{path}: {error}") from error
    return report


def checks_of(report: Mapping[str, Any]) -> list[Check]:
    """Return the checks of a report; an error that was not finite comes back as NaN."""

    def restored(value: float | None) -> float:
        return math.nan if value is None else float(value)

    table = report["checks"]
    columns = {name: [table["texts"][code] for code in table[name]] for name in TEXTS}
    columns |= {name: [restored(value) for value in table[name]] for name in NUMBERS} | {"digest": table["digest"]}
    checks = [Check(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]
    for curve in table["curves"]:
        points = zip(table["steps"][curve["steps"]], map(restored, curve["errors"]), strict=True)
        checks[curve["check"]] = replace(checks[curve["check"]], order=curve["order"], curve=tuple(points))
    return checks


def _packed(table: Mapping[str, Any], checks: Sequence[Check]) -> str:
    """Return what the page's table of checks shows, as compressed JSON in base64; numbers as they are shown."""
    shown = {name: table[name] for name in TEXTS[:6]} | {"texts": [plain(text) for text in table["texts"]]}
    shown |= {name: [_rounded(value, 3) for value in table[name]] for name in NUMBERS}
    shown |= {"order": [_rounded(c.order, 3) for c in checks], "failed": [int(c.failed) for c in checks]}
    text = json.dumps(shown, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def render(
    report: Mapping[str, Any], checks: Sequence[Check], comparison: Comparison | None, svgs: Mapping[str, str]
) -> str:
    """Return the report as one HTML page that needs nothing else."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["number"] = number
    return environment.from_string(_resource("templates", "report.html.j2")).render(
        report=report,
        result=progress.result(checks),
        evidence=evidence(checks),
        rows=summarise(checks),
        failures=failures(checks),
        withheld=withheld(checks),
        packed=_packed(report["checks"], checks),
        comparison=comparison,
        factor=FACTOR,
        tolerances=TABLE,
        svgs=svgs,
    )


def write(
    folder: Path, report: Mapping[str, Any], checks: Sequence[Check], comparison: Comparison | None = None
) -> None:
    """Write ``report.json``, ``report.html`` and the pictures of `PICTURES` (``agreement.png``...) into a folder.

    The folder is made if it is not there. `checks` are those that the report was assembled from. Pictures of which
    there is nothing to show are removed. OSError if there is no room, or no right to write; the files of an earlier
    report are then as they were.
    """
    from trigraph.verification.plots import PICTURES, png, svg

    svgs, files = {}, {}
    for name, draw in PICTURES.items():
        figure = draw(checks)
        if figure is not None:
            files[f"{name}.png"] = png(figure)
            svgs[name] = svg(figure)
    files["report.json"] = json.dumps(report, allow_nan=False, separators=(",", ":")).encode()
    files["report.html"] = plain(render(report, checks, comparison, svgs)).encode()
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as beside:
        for name, content in files.items():
            Path(beside, name).write_bytes(content)
        for name in files:
            Path(beside, name).replace(folder / name)
    for name in PICTURES:
        if f"{name}.png" not in files:
            (folder / f"{name}.png").unlink(missing_ok=True)
