"""The report of a run: ``report.json``, ``report.html``, a page in one file, and pictures."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
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

SCHEMA_VERSION = 3
NUMBERS = ("error", "tolerance", "seconds")  # of a check; None in a report where they are not finite
COLUMNS = tuple(f.name for f in fields(Check))


class ReportError(ValueError):
    """A file that is no report, or one of another version."""


def _tabulated(checks: Sequence[Check]) -> dict[str, list[Any]]:
    """Return checks as columns, one for each attribute; JSON has no number that is not finite: None."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [plain(part) for part in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {name: [plain(getattr(c, name)) for c in checks] for name in COLUMNS}


def assemble(
    checks: Sequence[Check],
    skips: Sequence[tuple[str, str]],
    seed: int,
    command: str,
    environment: Mapping[str, Any],
    planned: int,
    structures: Sequence[str] = (),
) -> dict[str, Any]:
    """Put a report together.

    `skips` are pairs: what did not run, and why; `command` is the command line, to run it again; `environment` is from
    `trigraph.environment.collect`; `planned` is the number of checks that were planned, those of kind ``empty`` aside;
    `structures` are descriptions of the user's.
    """
    passed, failed = sum(c.passed for c in checks), sum(c.failed for c in checks)
    return {
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


def read(path: Path) -> dict[str, Any]:
    """Read a ``report.json``; `ReportError` if it cannot be read, is no JSON, or is no report of this version."""
    if not path.is_file():  # to read a pipe might wait for ever
        raise ReportError(f"{path} is no file")
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no text, no JSON; the last: nested too deeply
        raise ReportError(f"{path}: {error}") from error
    version = report.get("schema_version") if isinstance(report, dict) else None
    if version != SCHEMA_VERSION:
        raise ReportError(f"{path} is no report of trigraph verify with schema_version {SCHEMA_VERSION}")
    try:
        checks_of(report)
    except (LookupError, TypeError, ValueError) as error:
        raise ReportError(f"{path} is no report of trigraph verify: its checks: {str(error)[:300]}") from error
    return dict(report)


def checks_of(report: Mapping[str, Any]) -> list[Check]:
    """Return the checks of a report; an error that was not finite comes back as NaN."""

    def restored(value: float | None) -> float:
        return math.nan if value is None else float(value)

    checks = []
    for row in zip(*(report["checks"][name] for name in COLUMNS), strict=True):
        values = dict(zip(COLUMNS, row, strict=True))
        values |= {name: restored(values[name]) for name in NUMBERS}
        values["curve"] = tuple((float(step), restored(error)) for step, error in values["curve"])
        checks.append(Check(**values))
    return checks


def render(
    report: Mapping[str, Any], checks: Sequence[Check], comparison: Comparison | None, svgs: Mapping[str, str]
) -> str:
    """Return the report as one HTML page that needs nothing else."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["number"] = number
    template = resources.files("trigraph.verification") / "templates" / "report.html.j2"
    return environment.from_string(template.read_text(encoding="utf-8")).render(
        report=report,
        result=progress.result(checks),
        evidence=evidence(checks),
        rows=summarise(checks),
        failures=failures(checks),
        withheld=withheld(checks),
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
