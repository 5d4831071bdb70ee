"""Process for one part of a stage, and its notes: ``python -m trigraph.benchmarks.qualify.part``.

The arguments are the place, the stage's module, the part and a file. Each finding is written to the file immediately,
so that none is lost in a crash.
"""

import contextlib
import fcntl
import importlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from trigraph.benchmarks.qualify.place import make_device

LOCK = Path(tempfile.gettempdir()) / f"trigraph-qualify-{os.getuid()}.lock"


@contextlib.contextmanager
def lock_device(exclusive: bool) -> Iterator[None]:
    """Share the device with other parts or, with `exclusive` for timing, lock out all other parts on this machine."""
    with LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield


def _convert_to_json_value(value: Any) -> Any:
    """Convert a value for JSON: NumPy's numbers to Python's, and non-finite numbers to text."""
    if isinstance(value, dict):
        return {str(name): _convert_to_json_value(v) for name, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_convert_to_json_value(v) for v in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value.decode(errors="replace") if isinstance(value, bytes) else value


class Notes:
    """Findings of one part, as lines.

    A line is a dict with a `name` and `passed`: True, False, or None for a measurement or for a check that was skipped
    for the reason in `note`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_text("")

    def add(self, name: str, passed: bool | None = None, note: str = "", **values: Any) -> None:
        """Append a line to the file."""
        line = {"name": name, "passed": passed if passed is None else bool(passed), "note": note, **values}
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(_convert_to_json_value(line)) + "\n")


def read_notes(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file, except for a line that a crash has truncated."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        with suppress(ValueError):
            lines.append(json.loads(text))
    return lines


def main() -> None:
    """Run the part of a stage that is named on the command line."""
    where, module, part, path = sys.argv[1:]
    stage = importlib.import_module(module)
    alone = getattr(stage, "ALONE", False)
    with contextlib.nullcontext() if alone is None else lock_device(alone):
        stage.run_part(part, make_device(where), Notes(Path(path)))


if __name__ == "__main__":
    main()
