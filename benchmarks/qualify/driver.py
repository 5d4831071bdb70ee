"""Run the parts of all stages, each in its own process, within a deadline, and write the record."""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from trigraph.benchmarks.qualify.part import read_notes
from trigraph.benchmarks.qualify.place import Device

RESERVE = 5.0  # seconds reserved for the summary
MIN_SECONDS = 2.0  # seconds that must be left to start a part
LAST_LINES = 12  # number of output lines to keep if a part crashes


class Stage(NamedTuple):
    """A stage: its name, its share of the time left when it begins, and the package that contains its module.

    The module defines ``list_parts(target)``, which lists names of parts in order of importance, and ``run_part(part,
    place, notes)``. It may define ``make_command_prefix(part, place)``, a tool that runs the command;
    ``parse_output(part, output)``, which converts the output of the process to lines; ``AT_ONCE``, whether parts may
    run concurrently; and ``ALONE``, whether a part needs exclusive use of the device for timing (default: False; None
    if the part locks the device itself).
    """

    name: str
    share: float
    package: str = "trigraph.benchmarks.qualify.stages"


STAGES = (
    Stage("environment", 0.06),
    Stage("compile", 0.2),
    Stage("verify", 0.3),
    Stage("third", 0.3),
    Stage("torch", 0.3),
    Stage("models", 0.4),
    Stage("checks", 0.2),
    Stage("compiled", 0.8),
    Stage("bench", 0.5),
    Stage("sanitizer", 0.9),
    Stage("curvature", 1.0),
)


class _StageRunner:
    """Runner of the parts of one stage, which are stopped at the time `end` of the monotonic clock."""

    def __init__(self, stage: Stage, target: Device, folder: Path, end: float) -> None:
        self._stage, self._place, self._folder, self._end = stage, target, folder, end
        self._name = f"{stage.package}.{stage.name}"
        self._module = importlib.import_module(self._name)
        self._processes: list[subprocess.Popen[Any]] = []

    def run_parts(
        self, chosen: Sequence[str], save_record: Callable[[list[dict[str, Any]]], None]
    ) -> list[dict[str, Any]]:
        """Run the `chosen` parts (default: all), call `save_record` after each part, and return the records."""
        try:
            names = [name for name in self._module.list_parts(self._place) if name in chosen or not chosen]
        except Exception as error:  # for example, CuPy may fail without a device; the other stages still run
            return [_make_part_record("", "crashed", repr(error))]
        records: list[dict[str, Any]] = []
        pool = ThreadPoolExecutor(self._place.jobs if getattr(self._module, "AT_ONCE", False) else 1)
        try:
            for record in pool.map(self._run_part, names):
                records.append(record)
                save_record(records)
        finally:  # also after Ctrl-C, which raises KeyboardInterrupt
            self._end = 0.0  # prevents other parts from starting
            pool.shutdown(wait=False, cancel_futures=True)
            for process in self._processes:
                _kill_process_group(process)
            pool.shutdown()
        return records

    def _run_part(self, part: str) -> dict[str, Any]:
        begun = time.monotonic()
        stem = f"{self._stage.name}-{part}".replace(" ", "-").replace("/", "-")
        notes, log = self._folder / f"{stem}.jsonl", self._folder / f"{stem}.log"
        notes.unlink(missing_ok=True)
        try:
            make_prefix = getattr(self._module, "make_command_prefix", None)
            prefix = make_prefix(part, self._place) if make_prefix else []
        except FileNotFoundError as error:  # the tool is not installed
            return _make_part_record(part, "not run", str(error))
        if self._end - begun < MIN_SECONDS:
            return _make_part_record(part, "not run", "no time was left")
        command = [*prefix, sys.executable, "-m", "trigraph.benchmarks.qualify.part"]
        command += [self._place.backend, self._name, part, str(notes)]
        with log.open("w") as output:
            # In its own session, the process does not receive Ctrl-C, and can be killed with all its children.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._processes.append(process)
        try:
            status = process.wait(self._end - time.monotonic())
            state, note = ("done", "") if status == 0 else ("crashed", _describe_exit(status))
        except subprocess.TimeoutExpired:
            state, note = "out of time", f"stopped after {time.monotonic() - begun:.0f} s"
        _kill_process_group(process)
        printed, lines = log.read_text(encoding="utf-8", errors="replace"), read_notes(notes)
        # A process that was stopped has not printed its result.
        if hasattr(self._module, "parse_output") and state != "out of time":
            lines += self._module.parse_output(part, printed)
        if state == "crashed":
            note = "\n".join([note, *printed.strip().splitlines()[-LAST_LINES:]])
        return _make_part_record(part, state, note, time.monotonic() - begun, lines)


def _kill_process_group(process: subprocess.Popen[Any]) -> None:
    """Kill a process and all of its children, unless it has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _describe_exit(status: int) -> str:
    """Describe how a process ended."""
    return f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _make_part_record(part: str, status: str, note: str, seconds: float = 0.0, lines: Any = ()) -> dict[str, Any]:
    return {"part": part, "status": status, "seconds": seconds, "note": note, "lines": list(lines)}


def have_parts_passed(parts: Sequence[dict[str, Any]]) -> bool | None:
    """Return whether all parts ran and passed, or None if none failed but a part was stopped or did not run."""
    states = {part["status"] for part in parts}
    if "crashed" in states or any(line["passed"] is False for part in parts for line in part["lines"]):
        return False
    return True if states == {"done"} else None


def run_stages(
    target: Device,
    out: Path,
    deadline: float,
    stages: Sequence[Stage] = STAGES,
    chosen: Sequence[str] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Run all or the `chosen` parts of the stages; return the record, also written to ``record.json`` after each part.

    ``out / "parts"`` contains the notes and output of each part. Everything, including the summary, ends within
    `deadline` seconds. A stage may use its share of the time left when it begins, and the last stage may use all of it;
    time that a stage does not need is available to later stages.
    """
    begun = time.monotonic()
    folder = out / "parts"
    folder.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {
        "format": 1,
        "rehearsal": target.rehearsal,
        "backend": target.backend,
        "kit": os.environ.get("TRIGRAPH_KIT", ""),  # origin of the wheel, set by `make qualify-kit`
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "deadline": deadline,
        "chosen": list(chosen),
        "left_out": [stage.name for stage in STAGES if stage not in stages],
        "stages": [],
    }
    for stage in stages:
        start = time.monotonic()
        limit = max(begun + deadline - RESERVE - start, 0.0) * (stage.share if stage is not stages[-1] else 1.0)
        progress(f"{stage.name}: at most {limit:.0f} s")
        entry: dict[str, Any] = {"stage": stage.name, "limit": limit}
        record["stages"].append(entry)

        def save_record(parts: list[dict[str, Any]], entry: dict[str, Any] = entry, start: float = start) -> None:
            now = time.monotonic()
            entry.update(passed=have_parts_passed(parts), seconds=now - start, parts=parts)
            record["seconds"] = now - begun
            whole = out / "record.part"  # renamed when the file is complete, so that readers never see part of a record
            whole.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            whole.replace(out / "record.json")

        save_record(_StageRunner(stage, target, folder, start + limit).run_parts(chosen, save_record))
    return record
