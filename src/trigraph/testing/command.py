"""``trigraph verify --calculator``: the checks of a calculator of ASE from the command line."""

import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trigraph.terminal import say
from trigraph.testing.calculators import result_of
from trigraph.testing.result import Result
from trigraph.verification import progress
from trigraph.verification.implementation import load
from trigraph.verification.structures import read_atoms


def left_out_by(skips: Sequence[str]) -> dict[str, str]:
    """Return kinds of check and reasons, of words ``KIND=WHY``; ValueError if one has another form."""
    left_out = {}
    for skip in skips:
        kind, _, why = skip.partition("=")
        if not (kind and why.strip()):
            raise ValueError(f"--skip {skip!r}; expected KIND=WHY")
        left_out[kind] = why
    return left_out


def verify_calculator(
    name: str, files: Sequence[str], skips: Sequence[str], seed: int, folder: Path | None, timeout: float | None
) -> bool:
    """Check the calculators of a factory on structure files; print a table, and write a report if there is a folder.

    Arguments are those of the command line: `name` is ``"module:factory"``, `files` are as for `read_atoms`, `skips`
    are ``KIND=WHY``. Return whether all checks passed and the report was written. Raise ValueError if the factory, a
    file or a kind does not exist, `LoadError` if its module fails, and OSError if the folder cannot be created. When
    it is interrupted, it prints the table of what was checked, and raises again.
    """
    left_out = left_out_by(skips)
    structures = [read_atoms(file) for file in files]
    names = [Path(file).name for file in files]
    if folder:
        folder.mkdir(parents=True, exist_ok=True)

    def show(result: Result) -> None:
        result.name = name
        say(str(result))

    def interrupted(result: Result) -> None:
        with suppress(OSError):  # the terminal may be gone, too
            show(result)
            say(f"{progress.result(result.checks)}, then interrupted")

    result = result_of(load(name), structures, names, left_out, timeout or math.inf, seed, interrupted)
    show(result)
    written = folder is None or _write(result, folder)
    return written and result.passed


def _write(result: Result, folder: Path) -> bool:
    """Write the report of a result; print an error, and return whether there was none."""
    try:
        for file in ("report.html", "report.json"):
            result.save(folder / file)
    except OSError as error:
        say(f"Error: the report was not written: {error}", err=True)
        return False
    say(f"Report: {folder / 'report.html'}")
    return True
