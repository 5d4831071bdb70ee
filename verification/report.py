"""The report of a run: ``report.json``, made to a schema, ``report.html``, a page in one file, and pictures."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from trigraph.verification.compare import FACTOR, Comparison
from trigraph.verification.record import KINDS, Check
from trigraph.verification.summary import number, summarise
from trigraph.verification.tolerances import TABLE
from trigraph.verification.units import counted

__all__ = ["ReportError", "assemble", "checks_of", "read", "validate", "write"]

SCHEMA_VERSION = 1
LARGEST = 2**28  # bytes of a report: a complete run makes a tenth of that


class ReportError(ValueError):
    """A report that does not fit the schema."""


def _resource(*path: str) -> str:
    return resources.files("trigraph.verification").joinpath(*path).read_text(encoding="utf-8")


@cache
def _schema() -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(_resource("report.schema.json"))
    return schema


def validate(report: Any) -> None:
    """Check a report against ``report.schema.json``.

    Raises
    ------
    ReportError
        If it does not fit; the message names the place.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    error = best_match(Draft202012Validator(_schema()).iter_errors(report))
    if error is not None:
        raise ReportError(f"{error.json_path[:300]}: {error.message[:300]}")


def _finite(value: Any) -> Any:
    """Replace every number that is not finite by None."""
    if isinstance(value, Mapping):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def assemble(
    checks: Sequence[Check],
    skips: Sequence[tuple[str, str]],
    seed: int,
    command: str,
    environment: Mapping[str, Any],
    planned: int,
) -> dict[str, Any]:
    """Put a report together.

    Parameters
    ----------
    checks : sequence of Check
    skips : sequence of (what, reason)
        What did not run.
    seed : int
    command : str
        The command line, to run it again.
    environment : mapping
        From `trigraph.environment.collect`.
    planned : int
        Number of checks that were planned, those of kind ``empty`` aside.

    Returns
    -------
    dict
        Fits the schema.

    Raises
    ------
    ReportError
        If it does not.
    """
    passed = sum(c.passed for c in checks)
    report: dict[str, Any] = _finite(
        {
            "schema_version": SCHEMA_VERSION,
            "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "command": command,
            "seed": seed,
            "verdict": "passed" if checks and passed == len(checks) and counted(checks) == planned else "failed",
            "counts": {
                "planned": planned,
                "passed": passed,
                "failed": len(checks) - passed,
                "skipped": len(skips),
            },
            "environment": environment,
            "checks": [c.as_dict() for c in checks],
            "skips": [{"what": what, "reason": reason} for what, reason in skips],
        }
    )
    validate(report)
    return report


def read(path: Path) -> dict[str, Any]:
    """Read a ``report.json``.

    Raises
    ------
    ReportError
        If it cannot be read, is no JSON, or does not fit the schema.
    """
    try:
        if not path.is_file():  # to read a pipe might wait for ever
            raise ReportError(f"{path} is no file")
        if path.stat().st_size > LARGEST:
            raise ReportError(f"{path} has {path.stat().st_size} bytes; no report has more than {LARGEST}")
        report = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
        validate(report)
    except ReportError as error:
        problem = f"{path} is no report of trigraph verify: {error}" if str(error).startswith("$") else str(error)
        raise ReportError(problem) from error
    except RecursionError:
        raise ReportError(f"{path} is no report of trigraph verify: it is nested too deeply") from None
    except MemoryError:
        raise ReportError(f"{path}: there is no memory to read it") from None
    except (OSError, ValueError) as error:  # ValueError: no text, no JSON, a number of too many digits
        raise ReportError(f"{path}: {error}") from error
    checked: dict[str, Any] = report
    return checked


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def checks_of(report: Mapping[str, Any]) -> list[Check]:
    """Return the checks of a report; an error that was not finite comes back as NaN."""

    def restored(value: float | None) -> float:
        return math.nan if value is None else value

    return [
        Check(
            **{key: value for key, value in entry.items() if key not in ("error", "curve", "passed")},
            error=restored(entry["error"]),
            curve=tuple((step, restored(error)) for step, error in entry["curve"]),
        )
        for entry in report["checks"]
    ]


def render(
    report: Mapping[str, Any], checks: Sequence[Check], comparison: Comparison | None, svgs: Mapping[str, str]
) -> str:
    """Return the report as one HTML page that needs nothing else."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["number"] = number
    return environment.from_string(_resource("templates", "report.html.j2")).render(
        report=report,
        checks=checks,
        rows=summarise(checks),
        failures=[c for c in checks if not c.passed],
        comparison=comparison,
        factor=FACTOR,
        kinds=KINDS,
        tolerances=TABLE,
        svgs=svgs,
    )


def write(
    folder: Path, report: Mapping[str, Any], checks: Sequence[Check], comparison: Comparison | None = None
) -> None:
    """Write ``report.json``, ``report.html`` and the pictures of `PICTURES` (``agreement.png``...) into a folder.

    Parameters
    ----------
    folder : Path
        Made if it is not there. Pictures of which there is nothing to show are removed.
    report : mapping
        From `assemble`.
    checks : sequence of Check
        What it was assembled from.
    comparison : Comparison, optional
        With an earlier report, for the page.

    Raises
    ------
    OSError
        If there is no room, or no right to write; the files of an earlier report are as they were.
    """
    from trigraph.verification.plots import PICTURES, png, svg

    svgs, files = {}, {}
    for name, draw in PICTURES.items():
        figure = draw(checks)
        if figure is not None:
            files[f"{name}.png"] = png(figure)
            svgs[name] = svg(figure)
    text = json.dumps(report, indent=1, allow_nan=False, ensure_ascii=False)
    files["report.json"] = f"{text}\n".encode()
    files["report.html"] = render(report, checks, comparison, svgs).encode()
    folder.mkdir(parents=True, exist_ok=True)
    beside = {name: folder / f".{name}.{os.getpid()}" for name in files}
    try:
        for name, content in files.items():
            beside[name].write_bytes(content)
        for name, path in beside.items():
            path.replace(folder / name)
    finally:
        for path in beside.values():
            path.unlink(missing_ok=True)
    for name in PICTURES:
        if f"{name}.png" not in files:
            (folder / f"{name}.png").unlink(missing_ok=True)
