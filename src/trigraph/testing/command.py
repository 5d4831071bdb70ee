"""``trigraph verify --calculator``: the checks of a calculator of ASE from the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trigraph.terminal import say
from trigraph.testing.calculators import check_calculator
from trigraph.testing.result import Result
from trigraph.verification.implementation import load
from trigraph.verification.structures import read_atoms


def verify_calculator(name: str, files: Sequence[str], skips: Sequence[str], seed: int, folder: Path | None) -> bool:
    """Check the calculators of a factory at the structures of files; print the table, and write a page if asked to.

    Parameters
    ----------
    name : str
        ``"module:factory"``; the current directory is searched first.
    files : sequence of str
        As of `read_atoms`.
    skips : sequence of str
        Kinds of check to leave out, each ``KIND=WHY``.
    seed : int
    folder : Path, optional
        Where to write report.html.

    Returns
    -------
    bool
        Whether all checks passed, and the page was written.

    Raises
    ------
    ValueError
        If there is no such factory, file or kind; `LoadError` if the factory's module fails.
    OSError
        If the folder cannot be made.
    """
    left_out = {}
    for skip in skips:
        kind, _, why = skip.partition("=")
        if not (kind and why.strip()):
            raise ValueError(f"--skip {skip!r}; expected KIND=WHY")
        left_out[kind] = why
    structures = [read_atoms(file) for file in files]
    names = [Path(file).name for file in files]
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    result = check_calculator(load(name), structures, names=names, skip=left_out, raises=False, seed=seed)
    result.name = name
    say(str(result))
    problem = _written(result, folder) if folder else ""
    passed = sum(c.passed for c in result.checks)
    absent = sum(not c.offered for c in result.checks)
    text = f"{passed} checks passed, {len(result.failures)} failed"
    say(text + f", {absent} not offered" * bool(absent))
    return result.passed and passed > 0 and not problem


def _written(result: Result, folder: Path) -> str:
    """Write the page of a result; return why that is not possible."""
    try:
        result.save(folder / "report.html")
    except OSError as error:
        say(f"Error: the report is not written: {error}", err=True)
        return str(error)
    say(f"Report: {folder / 'report.html'}")
    return ""
