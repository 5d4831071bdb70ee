"""Runs the parts of all stages, each in a process of its own, within a deadline, and keeps the record."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trigraph.benchmarks.qualify.notes import write_json
from trigraph.benchmarks.qualify.place import Device

__all__ = ["STAGES", "Stage", "qualify"]

RESERVE = 5.0  # seconds kept for the summary
GRACE = 1.0  # seconds that a stopped process has to end by itself
LEAST = 2.0  # seconds under which a part is not begun
LAST_LINES = 12  # of the output of a part that failed


@dataclass(frozen=True)
class Stage:
    """A stage: its name, the module that holds it, and its share of the time that is left when it begins.

    The module has ``parts(place)``, names of parts in the order of their worth, and ``run(part, place, notes)``. It may
    have ``prefix(part, place)``, a tool that stands before the command, ``read(part, output)``, lines made of what the
    process printed, and ``AT_ONCE``: whether parts may run together.
    """

    name: str
    module: str
    share: float


STAGES = (
    Stage("environment", "trigraph.benchmarks.qualify.stages.environment", 0.06),
    Stage("compile", "trigraph.benchmarks.qualify.stages.compile", 0.2),
    Stage("verify", "trigraph.benchmarks.qualify.stages.verify", 0.25),
    Stage("checks", "trigraph.benchmarks.qualify.stages.checks", 0.25),
    Stage("sanitizer", "trigraph.benchmarks.qualify.stages.sanitizer", 0.35),
    Stage("bench", "trigraph.benchmarks.qualify.stages.bench", 0.75),
    Stage("kernels", "trigraph.benchmarks.qualify.stages.kernels", 1.0),
)


def _run_part(
    stage: Stage, part: str, place: Device, folder: Path, end: float, processes: list[subprocess.Popen[str]]
) -> dict[str, Any]:
    """Run a part until `end` (by the monotonic clock) at the latest, and return what is known of it."""
    module = importlib.import_module(stage.module)
    begun = time.monotonic()
    known: dict[str, Any] = {"part": part, "status": "not run", "seconds": 0.0, "note": "", "lines": []}
    stem = f"{stage.name}-{part}".replace(" ", "-").replace("/", "-")
    notes, log = folder / f"{stem}.json", folder / f"{stem}.log"
    notes.unlink(missing_ok=True)
    try:
        prefix = module.prefix(part, place) if hasattr(module, "prefix") else []
    except FileNotFoundError as error:  # a tool that is not there
        return known | {"note": str(error)}
    if end - begun < LEAST:
        return known | {"note": "no time was left"}
    command = [
        *prefix,
        sys.executable,
        "-m",
        "trigraph.benchmarks.qualify.part",
        place.name,
        stage.module,
        part,
        str(notes),
    ]
    with log.open("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # so that what it has started ends with it
        )
        processes.append(process)
        try:
            process.wait(end - time.monotonic())
            status = "done" if process.returncode == 0 else "crashed"
            note = "" if process.returncode == 0 else _ended(process.returncode)
        except subprocess.TimeoutExpired:
            status, note = "out of time", f"stopped after {time.monotonic() - begun:.0f} s"
        _stop(process)
        output.seek(0)
        printed = output.read()
    try:
        lines = json.loads(notes.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        lines = []
    if hasattr(module, "read"):
        lines += module.read(part, printed)
    if status == "crashed":
        note = "\n".join([note, *printed.strip().splitlines()[-LAST_LINES:]])
    return known | {"status": status, "seconds": time.monotonic() - begun, "note": note, "lines": lines}


def _ended(status: int) -> str:
    return f"ended by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def _stop(process: subprocess.Popen[str]) -> None:
    """End a process and whatever it has started; what has ended is left alone."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            break
        if sign == signal.SIGTERM:
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                continue
    process.wait()


def _passed(parts: Sequence[dict[str, Any]]) -> bool | None:
    """Whether all that was planned was done and passed; None where nothing was done."""
    if all(part["status"] == "not run" for part in parts):
        return None
    lines = [line["passed"] for part in parts for line in part["lines"]]
    return all(part["status"] == "done" for part in parts) and False not in lines


def _run_stage(
    stage: Stage, place: Device, folder: Path, end: float, kept: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Run the parts of a stage, and let each be `kept` as it comes."""
    begun = time.monotonic()
    record: dict[str, Any] = {"stage": stage.name, "passed": None, "seconds": 0.0, "limit": end - begun, "parts": []}
    module = importlib.import_module(stage.module)
    try:
        names = list(module.parts(place))
    except Exception as error:  # CuPy without a device, say: the other stages go on
        record["parts"] = [{"part": "", "status": "crashed", "seconds": 0.0, "note": repr(error), "lines": []}]
        return {**record, "passed": False}
    processes: list[subprocess.Popen[str]] = []
    found: dict[str, dict[str, Any]] = {}
    lock = threading.Lock()
    pool = ThreadPoolExecutor(place.jobs if getattr(module, "AT_ONCE", False) else 1)

    def run(name: str) -> None:
        found[name] = _run_part(stage, name, place, folder, end, processes)
        with lock:
            record["parts"] = [found[n] for n in names if n in found]
            kept(record)

    try:
        for job in [pool.submit(run, name) for name in names]:
            job.result()
    finally:  # also at the user's Ctrl-C
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            _stop(process)
        pool.shutdown()
    return {**record, "seconds": time.monotonic() - begun, "passed": _passed(record["parts"])}


def qualify(
    place: Device,
    out: Path,
    deadline: float,
    stages: Sequence[Stage] = STAGES,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Run all stages; return the record, which is kept in ``record.json`` from the first part on.

    Parameters
    ----------
    place : Device
    out : Path
        Folder for the record, and for what each part noted and printed (``parts``).
    deadline : float
        Seconds after which everything has ended, the summary included. A stage may take its share of what is left when
        it begins; what it does not need is left to those after it.
    stages : sequence of Stage
    progress : callable
        Told what is going on.

    Returns
    -------
    dict
    """
    begun = time.monotonic()
    folder = out / "parts"
    folder.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {
        "format": 1,
        "rehearsal": place.rehearsal,
        "panel": place.panel,
        "kit": os.environ.get("TRIGRAPH_KIT", ""),  # where the wheel of `make qualify-kit` comes from
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "deadline": deadline,
        "stages": [],
    }
    done: list[dict[str, Any]] = []

    def kept(latest: dict[str, Any]) -> None:
        record["stages"] = [*(s for s in done if s["stage"] != latest["stage"]), latest]
        record["seconds"] = time.monotonic() - begun
        write_json(out / "record.json", record)

    for stage in stages:
        left = max(begun + deadline - RESERVE - time.monotonic(), 0.0)
        progress(f"{stage.name}: at most {left * stage.share:.0f} s")
        done.append(_run_stage(stage, place, folder, time.monotonic() + left * stage.share, kept))
        kept(done[-1])
    return record
