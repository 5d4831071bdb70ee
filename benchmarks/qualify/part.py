"""The process of one part: ``python -m trigraph.benchmarks.qualify.part PLACE MODULE PART FILE``."""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path

from trigraph.benchmarks.qualify.notes import Notes
from trigraph.benchmarks.qualify.place import place

__all__ = ["main"]


def main() -> None:
    """Run one part of a stage and note what it finds in a file; an exception is on the standard error, as ever."""
    where, module, part, path = sys.argv[1:]
    begun = time.perf_counter()
    stage = importlib.import_module(module)
    notes = Notes(Path(path))
    stage.run(part, place(where), notes)
    print(f"{module} {part}: {time.perf_counter() - begun:.1f} s")


if __name__ == "__main__":
    main()
