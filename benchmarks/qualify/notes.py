"""What a part of a stage finds, written to its file at every line: a crash loses nothing that was found before."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

__all__ = ["Notes", "plain", "write_json"]


def plain(value: Any) -> Any:
    """Return a value as JSON has it: NumPy's numbers as Python's, what is not finite as text."""
    if isinstance(value, dict):
        return {str(name): plain(v) for name, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file in one step: a reader finds the old one or the new one, whole."""
    whole = path.with_suffix(".part")
    whole.write_text(json.dumps(plain(value), indent=1) + "\n", encoding="utf-8")
    os.replace(whole, path)


class Notes:
    """Lines of one part.

    A line is a dict with a `name` and `passed`: True, False, or None for what is a measurement, or was left out and
    says why under `note`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.folder = path.with_suffix("")  # for files that belong to the part
        self.lines: list[dict[str, Any]] = []
        self._write()

    def add(self, name: str, passed: bool | None = None, note: str = "", **values: Any) -> None:
        """Note a line and write all of them to the file."""
        self.lines.append({"name": name, "passed": passed if passed is None else bool(passed), "note": note, **values})
        self._write()

    def _write(self) -> None:
        write_json(self._path, self.lines)
