"""Results of checks: a table, figures, a report, and an exception that summarizes failures."""

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slopecheck import progress
from slopecheck.record import Check
from slopecheck.report import assemble, encoded, page
from slopecheck.running import P, run
from slopecheck.terms import Terms
from slopecheck.units import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass
class Result:
    """Checks of one function; prints as a table.

    Attributes
    ----------
    name : str
        Name of the function.
    checks : list of slopecheck.record.Check
    skipped : dict
        Kinds of check that were skipped, and why.
    seed : int
    """

    name: str
    checks: list[Check] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    cases: str = "order"  # meaning of `Check.case`, the heading of its column
    title: str = "Derivatives of"
    seed: int = 0
    terms: Terms = field(default_factory=Terms, repr=False)

    @property
    def passed(self) -> bool:
        """Whether a check passed, and none failed."""
        return any(c.passed for c in self.checks) and not self.failures

    @property
    def failures(self) -> list[Check]:
        """The failed checks."""
        return [c for c in self.checks if c.failed]

    @property
    def inconclusive(self) -> list[Check]:
        """The checks that double precision cannot decide, for the reason in their notes."""
        return [c for c in self.checks if c.inconclusive]

    def __str__(self) -> str:
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        table = Table("check", self.cases, "of", "error", "allowed", "slope", "remark", title=escape(self.name))
        for c in sorted(self.checks, key=lambda c: (not c.failed, not c.inconclusive)):
            mark = "failed: " if c.failed else "inconclusive: " if c.inconclusive else ""
            slope = "" if c.order is None else f"{c.order:.2f}".replace("-0.00", "0.00")
            numbers = (f"{c.error:.1e}", f"{c.tolerance:.1e}") if c.offered else ("", "")
            table.add_row(c.kind, c.case, c.field, *numbers, slope, escape(mark + c.note))
        for kind, why in self.skipped.items():
            table.add_row(kind, "", "", "", "", "", escape(f"skipped: {why}"))
        text = io.StringIO()
        console = Console(file=text, width=150, highlight=False)
        console.print(table)
        told = progress.verdict(self.checks, self.terms) if self.failures else ""
        console.print("; ".join(filter(None, [progress.result(self.checks), told])), markup=False)
        return text.getvalue()

    def plot(self) -> "Figure":
        """Plot the error of central differences against the step, with a line for each curve.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        ValueError
            If there is no curve.
        """
        from slopecheck.plots import differences

        figure = differences(self.checks, self.terms)
        if figure is None:
            raise ValueError("plot: there is no curve; expected a result with checks of kind 'differences'")
        return figure

    def save(self, path: str | Path) -> None:
        """Write the table and the curves as an HTML page, or all checks as JSON.

        Parameters
        ----------
        path : str or Path
            Such as ``"report.html"``, or ``"report.json"`` in the format of `report.assemble`.

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        Path(path).write_bytes(self.encoded(path))

    def encoded(self, path: str | Path) -> bytes:
        """Return the content of a file as `save` writes it."""
        if Path(path).suffix == ".json":
            return encoded(self.report())
        from slopecheck.plots import svg

        picture = svg(self.plot()) if any(c.curve for c in self.checks) else ""
        return page("slopecheck", "result.html.j2", result=self, picture=picture).encode()

    def report(self) -> dict[str, Any]:
        """Return what a ``report.json`` holds (`slopecheck.report.KEYS`)."""
        skips, command = list(self.skipped.items()), f"{self.title} {self.name}"
        return assemble(self.checks, skips, self.seed, command, self.terms.environment(), counted(self.checks))

    def fill(
        self,
        make: Callable[[bool], P],
        timeout: float | None,
        interrupted: Callable[["Result"], None] | None = None,
    ) -> P:
        """Run the checks of a plan (`running.run`), and return it.

        For the command line with a function, and then in a fresh process: it is called with what was checked before an
        interrupt, which goes on.
        """
        try:
            return run(make, timeout, interrupted is not None, self.checks)[0]
        except KeyboardInterrupt:
            if interrupted is not None:
                interrupted(self)
            raise


class DerivativeError(AssertionError):
    """Checks of derivatives failed; the message lists them, `result` holds all checks.

    Attributes
    ----------
    result : Result
    """

    what = "checks of its derivatives"

    def __init__(self, result: Result) -> None:
        failed = result.failures
        # The failure of an element is also in the line of its input.
        told = [
            c for c in failed if c.kind != "elements" or not any(c.note in other.note for other in failed if other != c)
        ]
        lines = [f"{result.name}: {len(failed)} of {len(result.checks)} {self.what} failed"]
        for c in told[:10]:
            order = f"{result.cases} {c.case}, " if c.case else ""
            of = f" ({order}{c.field})" if c.field else ""
            lines.append(f"  {c.kind}{of}: {c.note or f'error {c.error:.1e}; allowed {c.tolerance:.1e}'}")
        if len(told) > 10:
            lines.append(f"  and {len(told) - 10} more; see the result of this error")
        super().__init__("\n".join(lines))
        self.result = result


class CalculatorError(DerivativeError):
    """Checks of a calculator failed; the message lists them, `result` holds all checks.

    Attributes
    ----------
    result : Result
    """

    what = "checks"
