"""The report of a run: ``report.json``, made to a schema, ``report.html``, a page in one file, and pictures."""

from __future__ import annotations

import base64
import gzip
import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from trigraph.terminal import plain
from trigraph.verification import progress
from trigraph.verification.compare import FACTOR, Comparison
from trigraph.verification.evidence import evidence
from trigraph.verification.failures import failures, withheld
from trigraph.verification.record import Check
from trigraph.verification.summary import number, summarise
from trigraph.verification.tolerances import TABLE
from trigraph.verification.units import counted

__all__ = ["ReportError", "assemble", "checks_of", "read", "validate", "write"]

SCHEMA_VERSION = 2
LARGEST = 2**28  # bytes of a report: a complete run makes a fiftieth of that
# Attributes of a check that are texts, and its numbers, as columns of the table of checks.
TEXTS = ("operator", "panel", "dtype", "kind", "case", "field", "note", "trace")
NUMBERS = ("error", "tolerance", "seconds")


class ReportError(ValueError):
    """A report that does not fit the schema."""


def _resource(*path: str) -> str:
    return resources.files("trigraph.verification").joinpath(*path).read_text(encoding="utf-8")


@cache
def _schema() -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(_resource("report.schema.json"))
    return schema


def _extremes(value: Any) -> Any:
    """Return the value with long arrays cut down to what tells their items apart for a schema, which is slow."""
    if isinstance(value, Mapping):
        return {key: _extremes(v) for key, v in value.items()}
    if not isinstance(value, list):
        return value
    kinds: dict[type, list[Any]] = {kind: [v for v in value if type(v) is kind] for kind in set(map(type, value))}
    found: list[Any] = []
    for kind, same in kinds.items():
        if kind in (int, float):
            found += {min(same), max(same)}
        else:
            found += map(_extremes, same) if kind in (dict, list) else dict.fromkeys(same)
    return found


def validate(report: Any) -> None:
    """Check a report against ``report.schema.json``.

    Raises
    ------
    ReportError
        If it does not fit; the message names the place.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    if isinstance(report, dict) and report.get("schema_version", SCHEMA_VERSION) != SCHEMA_VERSION:
        raise ReportError(f"$.schema_version: it is {report['schema_version']!r}; this version reads {SCHEMA_VERSION}")
    error = best_match(Draft202012Validator(_schema()).iter_errors(_extremes(report)))
    if error is not None:
        raise ReportError(f"{error.json_path[:300]}: {error.message[:300]}")
    # What no schema can say.
    table = report["checks"]
    number = len(table["error"])
    for name in (*TEXTS, *NUMBERS, "digest"):
        if len(table[name]) != number:
            raise ReportError(f"$.checks.{name}: it has {len(table[name])} entries; the column of errors has {number}")
    for name in TEXTS:
        if max(table[name], default=0) >= max(1, len(table["texts"])):
            raise ReportError(f"$.checks.{name}: {max(table[name])} is the number of no text")
    for curve in table["curves"]:
        if curve["check"] >= number or curve["steps"] >= len(table["steps"]):
            raise ReportError(f"$.checks.curves: there is no check {curve['check']}, or there are no such steps")
        if len(curve["errors"]) != len(table["steps"][curve["steps"]]):
            raise ReportError(f"$.checks.curves: that of check {curve['check']} has another number of steps and errors")


def _rounded(value: float | None, digits: int) -> float | None:
    """Return a number of so many digits, whole ones as integers, which take less room; None if it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 10**digits else short


def _error(check: Check) -> float | None:
    """Six digits of the error, or all where the six would be on the other side of the tolerance."""
    short = _rounded(check.error, 6)
    return short if short is None or (short <= check.tolerance) == (check.error <= check.tolerance) else check.error


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
        "error": [_error(c) for c in checks],
        "tolerance": [_rounded(c.tolerance, 17) for c in checks],
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
    structures : sequence of str
        Descriptions of the user's structures.

    Returns
    -------
    dict
        Fits the schema.

    Raises
    ------
    ReportError
        If it does not.
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
        return math.nan if value is None else float(value)

    table = report["checks"]
    columns = {name: [table["texts"][code] for code in table[name]] for name in TEXTS}
    columns |= {name: [restored(value) for value in table[name]] for name in NUMBERS} | {"digest": table["digest"]}
    checks = [Check(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]
    for curve in table["curves"]:
        points = zip(table["steps"][curve["steps"]], map(restored, curve["errors"]), strict=True)
        checks[curve["check"]] = replace(checks[curve["check"]], order=curve["order"], curve=tuple(points))
    return checks


def _packed(report: Mapping[str, Any]) -> str:
    """Return what the page's table of checks shows, as compressed JSON in base64."""
    table = report["checks"]
    shown = {name: table[name] for name in ("texts", *TEXTS[:6], *NUMBERS)}
    shown["texts"] = [plain(text) for text in table["texts"]]
    shown["order"] = [None] * len(table["error"])
    for curve in table["curves"]:
        shown["order"][curve["check"]] = curve["order"]
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
        packed=_packed(report),
        comparison=comparison,
        factor=FACTOR,
        tolerances=TABLE,
        svgs=svgs,
    )


def _json(report: Mapping[str, Any]) -> str:
    """Return the report as JSON: a line for each of its parts, and for each column of the table of checks."""

    def dump(value: Any) -> str:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))

    columns = ",\n".join(f"{dump(name)}:{dump(column)}" for name, column in report["checks"].items())
    parts = [f"{dump(name)}:{dump(value)}" for name, value in report.items() if name != "checks"]
    return "{" + ",\n".join([*parts, f'"checks":{{\n{columns}\n}}']) + "}\n"


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
    files["report.json"] = _json(report).encode()
    files["report.html"] = plain(render(report, checks, comparison, svgs)).encode()
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
