"""Page ``summary.md`` with the findings of a qualification, generated from the record."""

from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from slopecheck.terminal import escape_unprintable

NOTE = 300  # maximum number of characters in a note
# Verdicts and the command's exit status. Without a complete `trigraph verify`, little was checked.
VERDICTS = {"passed": 0, "failed": 1, "passed in part": 3, "little was checked": 4}


def _iterate_findings(record: Mapping[str, Any], stage: str) -> Iterator[dict[str, Any]]:
    """Yield the lines of all parts of a stage."""
    for entry in record["stages"]:
        if entry["stage"] == stage:
            for part in entry["parts"]:
                yield from part["lines"]


def _summarise_stages(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the page's entry for each stage: verdict, counts, and failures."""
    for stage in record["stages"]:
        lines = [line for part in stage["parts"] for line in part["lines"]]
        wrong = [f"{line['name']}: {line['note'] or 'failed'}" for line in lines if line["passed"] is False]
        broken = [p for p in stage["parts"] if p["status"] == "crashed"]
        wrong += [f"{p['part']}: {p['status']}, {_join_first_and_last_line(p['note'])}" for p in broken]
        yield {
            "name": stage["stage"],
            "passed": stage["passed"],
            "seconds": stage["seconds"],
            "parts": len(stage["parts"]),
            "done": sum(part["status"] == "done" for part in stage["parts"]),
            "checks": sum(line["passed"] is not None for line in lines),
            "failed": [text[:NOTE] for text in wrong],
        }


def _join_first_and_last_line(note: str) -> str:
    """Return the first and the last line of a note: how a process ended, and the end of its output."""
    lines = note.strip().splitlines() or [""]
    return "; ".join(dict.fromkeys((lines[0], lines[-1].strip())))


def _iterate_skipped_checks(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what was stopped or not run, and why."""
    for name in record.get("left_out", ()):
        yield name, "not a requested --stage"
    for stage in record["stages"]:
        for part in stage["parts"]:
            if part["status"] in ("not run", "out of time"):
                yield f"{stage['stage']}, {part['part']}", part["note"]
            for line in part["lines"]:
                if line["passed"] is None and line["note"] and "seconds" not in line:
                    yield f"{stage['stage']}, {part['part']}, {line['name']}", line["note"][:NOTE]


def _tabulate_workload_times(record: Mapping[str, Any], ceilings: Mapping[str, float]) -> list[Any]:
    """Return a row for each workload: trigraph's times, shares of the roofline, and ratios to the peers."""
    rows: dict[str, dict[str, Any]] = {}
    for line in _iterate_findings(record, "bench"):
        if "workload" not in line or "seconds" not in line:
            continue
        row = rows.setdefault(line["workload"], {"workload": line["workload"], "ms": {}, "share": {}, "peers": {}})
        if line["contender"] != "trigraph":
            row["peers"][line["contender"]] = line["ratio"]
            continue
        row["ms"][line["index"]] = 1e3 * line["seconds"]
        row["summary"] = line["summary"]
        bounds = [(amount / ceilings[name], name) for name, amount in line["least"].items() if name in ceilings]
        if bounds:  # lower bound on the seconds of the workload, and the ceiling that determines it
            least, row["bound_by"] = max(bounds)
            row["bound_ms"] = 1e3 * least
            row["share"][line["index"]] = least / line["seconds"]
    return list(rows.values())


def summarise_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the contents of the page."""
    ceilings = {
        line["ceiling"]: line["value"] for line in _iterate_findings(record, "environment") if "ceiling" in line
    }
    versions = next((line for line in _iterate_findings(record, "environment") if line["name"] == "environment"), {})
    stages = list(_summarise_stages(record))
    verdicts = [stage["passed"] for stage in stages]
    verified = not record.get("chosen") and any(stage["name"] == "verify" and stage["passed"] for stage in stages)
    unfinished = "passed in part" if verified else "little was checked"
    ended = all(p["status"] == "done" for s in record["stages"] for p in s["parts"])
    complete = verified and ended and None not in verdicts and not record.get("left_out")
    return {
        "title": "rehearsal on gpu-host, not a device" if record["rehearsal"] else "qualification of a device",
        "verdict": "failed" if False in verdicts else "passed" if complete else unfinished,
        "created": record["created"],
        "seconds": record["seconds"],
        "deadline": record["deadline"],
        "properties": versions.get("properties", {}),
        "trigraph": versions.get("collected", {}).get("trigraph", {}),
        "kit": record["kit"],
        "warnings": versions.get("collected", {}).get("warnings", []),
        "ceilings": ceilings,
        "stages": stages,
        "times": _tabulate_workload_times(record, ceilings),
        "steps": [line for line in _iterate_findings(record, "torch") if line.get("ratio")],
        "models": [
            m for name in ("models", "compiled", "curvature") for m in _iterate_findings(record, name) if "seconds" in m
        ],
        "left_out": list(_iterate_skipped_checks(record)),
    }


def write_summary(out: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """Write the page to a folder; return its contents."""
    from jinja2 import Environment, StrictUndefined

    summary = summarise_record(record)
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = resources.files("trigraph.benchmarks.qualify") / "templates" / "summary.md.j2"
    page = environment.from_string(template.read_text(encoding="utf-8")).render(summary)
    (out / "summary.md").write_text(escape_unprintable(page), encoding="utf-8")
    return summary
