"""Reports: ``report.json`` and its reader, HTML pages from templates, and atomic replacement of files."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from slopecheck.record import COLUMNS, Check
from slopecheck.summary import format_number
from slopecheck.units import count_checks_for_plan

SCHEMA_VERSION = 3
NUMBERS = ("error", "tolerance", "seconds")  # columns of a check that a report stores as None if they are not finite
# Keys of a report.json of this version, for a run or a `Result`; `COLUMNS` describes the checks.
KEYS = {
    "schema_version": f"{SCHEMA_VERSION}: another number if a key is removed or changes its meaning",
    "date": "time at which the report was written, in UTC, such as `2026-11-24T16:00:00Z`",
    "command": "command line that repeats the run; for a `Result`, the name of the function or calculator",
    "seconds": "duration of the run; null if unknown",
    "seed": "seed of all random numbers",
    "verdict": "`passed` if at least one check passed, none failed, and no planned check is missing; for a `Result`, "
    "`inconclusive` if a check is inconclusive and this was not allowed; otherwise `failed`",
    "counts": "numbers of checks (`planned`, `passed`, `failed`, `inconclusive`, `not_offered`), and of skipped parts "
    "(`skipped`)",
    "environment": "versions and processor; for `trigraph verify`, the output of `trigraph info`",
    "structures": "for `trigraph verify`, one sentence about each `--structure` argument",
    "skips": "list of skipped parts, each with `what` was skipped and the `reason`",
    "checks": "table of checks, a dictionary from column names to lists of equal length",
}


class ReportError(ValueError):
    """A file is not a report, or is a report of another version."""


def _convert_checks_to_columns(checks: Sequence[Check]) -> dict[str, list[Any]]:
    """Return checks as columns, one for each attribute. Numbers that are not finite, which JSON lacks, become None."""

    def convert_to_json_value(value: Any) -> Any:
        if isinstance(value, tuple):
            return [convert_to_json_value(part) for part in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {name: [convert_to_json_value(getattr(c, name)) for c in checks] for name in COLUMNS}


def assemble_report(
    checks: Sequence[Check],
    skips: Sequence[tuple[str, str]],
    seed: int,
    command: str,
    environment: Mapping[str, Any],
    planned: int,
    structures: Sequence[str] = (),
    seconds: float | None = None,
) -> dict[str, Any]:
    """Assemble a report.

    `skips` has pairs of a skipped part and the reason; `command` is the command line that repeats the run;
    `environment` describes everything on which results depend; `planned` is the number of planned checks, except those
    of kind ``empty``; `structures` describes the user's structures; `seconds` is the duration of the run.
    """
    passed, failed = sum(c.passed for c in checks), sum(c.failed for c in checks)
    return {
        "schema_version": SCHEMA_VERSION,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": command,
        "seconds": seconds,
        "seed": seed,
        "verdict": "passed" if passed and not failed and count_checks_for_plan(checks) == planned else "failed",
        "counts": {
            "planned": planned,
            "passed": passed,
            "failed": failed,
            "inconclusive": sum(c.inconclusive for c in checks),
            "not_offered": count_checks_for_plan(c for c in checks if not c.offered),
            "skipped": len(skips),
        },
        "environment": environment,
        "structures": list(structures),
        "skips": [{"what": what, "reason": reason} for what, reason in skips],
        "checks": _convert_checks_to_columns(checks),
    }


def encode_report(report: Mapping[str, Any]) -> bytes:
    """Return a report as JSON."""
    return json.dumps(report, allow_nan=False, separators=(",", ":")).encode()


def read(path: Path) -> dict[str, Any]:
    """Read a ``report.json``; raise `ReportError` if it cannot be read or is not a JSON report of this version."""
    if not path.is_file():  # reading a pipe might wait forever
        raise ReportError(f"{path} is not a file")
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # not text or JSON, or nested too deeply
        raise ReportError(f"{path}: {error}") from error
    version = report.get("schema_version") if isinstance(report, dict) else None
    if version != SCHEMA_VERSION:
        raise ReportError(f"{path} is not a report of checks with schema_version {SCHEMA_VERSION}")
    try:
        _require_type("command", report["command"], (str,))
        if not math.isfinite(_require_type("seconds", report["seconds"], NUMBER) or 0):
            raise ValueError(f"its seconds: {report['seconds']}; expected a finite number")
        checks_of(report)
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise ReportError(f"{path} is not a report of checks: {str(error)[:300]}") from error
    return dict(report)


def _require_type(name: str, value: Any, types: tuple[type, ...]) -> Any:
    """Return a value of a report; raise TypeError with the value's name if its type is not among `types`."""
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        expected = " or ".join("null" if t is type(None) else t.__name__ for t in types)
        raise TypeError(f"its {name}: {json.dumps(value)[:100]}; expected {expected}")
    return value


NUMBER = (int, float, type(None))
TYPES: dict[str, tuple[type, ...]] = dict.fromkeys(COLUMNS, (str,))
TYPES |= dict.fromkeys((*NUMBERS, "order"), NUMBER) | {"digest": (str, type(None)), "inconclusive": (bool,)}


def checks_of(report: Mapping[str, Any]) -> list[Check]:
    """Return the checks of a report; an error that was not finite becomes NaN.

    Raises TypeError, ValueError, LookupError or OverflowError for wrong columns or values of a wrong type.
    """

    def restore_column_value(name: str, value: Any) -> Any:
        if name == "curve":
            return tuple((restore_number(name, step), restore_number(name, error)) for step, error in value)
        return restore_number(name, value) if name in NUMBERS else _require_type(name, value, TYPES[name])

    def restore_number(name: str, value: Any) -> float:
        value = _require_type(name, value, NUMBER)
        return math.nan if value is None else float(value)

    columns = _require_type("checks", report["checks"], (dict,))
    columns = {"inconclusive": [False] * len(columns["kind"]), **columns}  # earlier reports lack this column
    rows = zip(*(_require_type(name, columns[name], (list,)) for name in COLUMNS), strict=True)
    return [
        Check(**{name: restore_column_value(name, value) for name, value in zip(COLUMNS, row, strict=True)})
        for row in rows
    ]


def render_template(package: str, template: str, **values: Any) -> str:
    """Render an HTML page from a template of a package."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    options: dict[str, Any] = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=PackageLoader(package), undefined=StrictUndefined, **options)
    environment.filters["number"] = format_number
    return environment.get_template(template).render(**values)


def replace_files(folder: Path, files: Mapping[str, bytes], names: Iterable[str] = ()) -> None:
    """Write files into a folder, which is created if necessary; remove files in `names` that are not in `files`.

    Raises OSError if space or permission is missing; earlier files are then unchanged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as beside:
        for name, content in files.items():
            Path(beside, name).write_bytes(content)
        for name in files:
            Path(beside, name).replace(folder / name)
    for name in set(names) - set(files):
        (folder / name).unlink(missing_ok=True)
