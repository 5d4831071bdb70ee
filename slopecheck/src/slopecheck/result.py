"""Results of checks: a table, figures, a report, and an exception that summarizes failures."""

import io
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slopecheck import progress
from slopecheck.record import Check
from slopecheck.report import assemble_report, encode_report, render_template
from slopecheck.running import P, run_plan
from slopecheck.terms import ReportTerms
from slopecheck.units import count_checks_for_plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Advice on the next step: by words in the note of a check (CAUSES), else by the kind of check (NEXT).
CAUSES = {
    "on a kink": "it is not differentiable here: check another point",
    "on a jump": "it is not continuous here: check another point",
    "computes in float32": "compute in float64 throughout, or convert a module by .double()",
    "as by float32": "compute in float64 throughout, or convert a module by .double()",
    "an earlier call": "let cached results depend on values, not on shapes",
    "the sign?": "look for a wrong sign",
    "a factor of": "look for a wrong factor",
    "transposed?": "look for a transposed matrix",
    "detached": "look for tensors that are detached, or computed without a graph",
    "units: ": "convert units",
    "real and imaginary": "check real and imaginary parts separately",
    "may hold NaN": "select with where instead of multiplying by 0, or skip nan with a reason",
    "larger timeout": "give more time, or fewer elements",
    "others hide": "check parts of different sizes one by one",
    "decide": "rescale the inputs, or allow inconclusive checks with a reason",
}
NEXT = {
    "call": "make this call separately",
    "differences": "compare the formula of this derivative",
    "elements": "compare the formula of this derivative",
    "adjoint": "compare the derivative with respect to the cotangent, or the direction",
    "symmetry": "compare the second derivatives of pairs of inputs",
    "repeat": "look for random numbers, or memory that is reused",
    "kept": "return new arrays, not views of memory that is reused",
    "history": "look for state that is kept from call to call",
    "threads": "look for sums whose order depends on threads",
    "layout": "use strides, or make arrays contiguous first",
    "unchanged": "work on a copy",
    "nan": "select with where instead of multiplying by 0, or skip nan with a reason",
    "float32": "look for computations that differ in float32, or overflow there",
    "form": "return the dtype and shape of the argument",
    "alone": "look for results that depend on which derivatives are requested",
    "forces": "compare the formula of the forces",
    "stress": "compare the formula of the virial, its sign and its unit",
    "net force": "look for a force without its reaction",
    "net torque": "look for forces that depend on the axes",
    "rotation": "look for terms that depend on the axes",
    "reflection": "look for a triple product",
    "translation": "look for positions that are used without taking differences",
    "renumbering": "look for terms that depend on the order of atoms, such as a limit on neighbours",
    "wrapping": "take differences of positions across the cell's boundaries",
    "repetition": "sum over all images within the cutoff, and over atoms",
    "cutoff": "let energy and forces end smoothly at this distance",
    "scale": "let energy and forces end smoothly at this distance, and raise any limit on neighbours",
    "line": "look for a sine of the angle in a denominator, or an arc cosine",
    "lone atom": "return the energy of an atom, and no force, if there are no neighbours",
    "two atoms": "compare the force of a pair with the slope of its energy",
    "far atoms": "look for interactions of unlimited range, or skip this with a reason",
    "company": "look for sums or means over all atoms",
    "constraints": "leave constraints to ase.Atoms",
    "copy": "look for state that is not copied",
    "pickle": "look for state that is not pickled",
    "drift": "compare the forces along the path with the energy",
}


def _get_output_encoding() -> str:
    return getattr(sys.stdout, "encoding", None) or "utf-8"


def _escape_unencodable(text: str) -> str:
    """Escape characters that the encoding of the output lacks, as on Windows consoles."""
    return text.encode(_get_output_encoding(), "backslashreplace").decode(_get_output_encoding())


@dataclass
class Result:
    """Checks of one function or calculator; prints as a table.

    Attributes
    ----------
    name : str
        Name of the function or calculator.
    checks : list of slopecheck.record.Check
    skipped : dict
        Kinds of check that were skipped, with the reasons.
    seed : int
    """

    name: str
    checks: list[Check] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    cases: str = "order"  # meaning of `Check.case`, used as the heading of its column
    title: str = "Derivatives of"
    seed: int = 0
    terms: ReportTerms = field(default_factory=ReportTerms, repr=False)
    what: str = "checks of its derivatives"
    allowed: str = ""  # reason for allowing inconclusive checks, "" if they are not allowed

    @property
    def verdict(self) -> str:
        """``"failed"`` if a check failed or none passed, else ``"inconclusive"`` (unless allowed) or ``"passed"``."""
        if self.failures or not any(c.passed or c.inconclusive for c in self.checks):
            return "failed"
        return "inconclusive" if self.inconclusive and not self.allowed else "passed"

    @property
    def passed(self) -> bool:
        """Whether a check passed, none failed, and none is inconclusive unless that is allowed."""
        return self.verdict == "passed"

    @property
    def failures(self) -> list[Check]:
        """The failed checks."""
        return [c for c in self.checks if c.failed]

    @property
    def inconclusive(self) -> list[Check]:
        """The checks that double precision cannot decide, for the reason in their notes."""
        return [c for c in self.checks if c.inconclusive]

    @property
    def headline(self) -> str:
        """The verdict if no check failed or is inconclusive, else the number of these checks and the next step."""
        rows = self.failures or self.inconclusive
        if not rows:
            return self.verdict
        causes = (text for word, text in CAUSES.items() if any(word in c.note for c in rows))
        next_step = next(causes, NEXT.get(rows[0].kind, ""))
        what = f"{len(rows)} of {len(self.checks)} {self.what} {'failed' if self.failures else 'are inconclusive'}"
        return f"{what}: {next_step}" if next_step else what

    def __str__(self) -> str:
        return self.table(True)

    if not TYPE_CHECKING:  # otherwise, type checkers would accept every name

        def __getattr__(self, name):
            """Return a method by its former name, with a warning."""
            former_names = {"encoded": "encode", "fill": "run_checks"}
            if name not in former_names:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            text = f"Result.{name} is deprecated; use Result.{former_names[name]}"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            return getattr(self, former_names[name])

    def table(self, every: bool) -> str:
        """Return the table of checks that have not passed, after all passed checks if `every` is True."""
        from rich import box
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        frame = box.HEAVY_HEAD if _get_output_encoding().lower().startswith("utf") else box.ASCII
        columns = ("check", self.cases, "of", "error", "allowed", "slope", "remark")
        table = Table(*columns, title=escape(self.name), box=frame)
        shown = [c for c in self.checks if every or not c.passed]
        for c in sorted(shown, key=lambda c: (c.failed, c.inconclusive)):
            mark = "failed: " if c.failed else "inconclusive: " if c.inconclusive else ""
            slope = "" if c.order is None else f"{c.order:.2f}".replace("-0.00", "0.00")
            numbers = (f"{c.error:.1e}", f"{c.tolerance:.1e}") if c.offered else ("", "")
            table.add_row(c.kind, c.case, c.field, *numbers, slope, escape(mark + c.note))
        for kind, why in self.skipped.items():
            table.add_row(kind, "", "", "", "", "", escape(f"skipped: {why}"))
        text = io.StringIO()
        console = Console(file=text, width=150, highlight=False)
        if table.row_count:
            console.print(table)
        told = progress.describe_verdict(self.checks, self.terms) if self.failures else ""
        console.print("; ".join(filter(None, [progress.describe_check_counts(self.checks), told])), markup=False)
        if self.failures or self.inconclusive:
            console.print(
                f"{self.verdict}: {self.headline}" + f"; allowed: {self.allowed}" * bool(self.allowed), markup=False
            )
        return _escape_unencodable(text.getvalue())

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
        from slopecheck.plots import draw_difference_curves

        figure = draw_difference_curves(self.checks, self.terms)
        if figure is None:
            raise ValueError("plot: there is no curve; expected a result with checks of kind 'differences'")
        return figure

    def save(self, path: str | Path) -> None:
        """Write the table and the curves as an HTML page, or all checks as JSON.

        Parameters
        ----------
        path : str or Path
            File name, such as ``"report.html"``, or ``"report.json"`` for the format of `report.assemble_report`.

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        Path(path).write_bytes(self.encode(path))

    def encode(self, path: str | Path) -> bytes:
        """Return the bytes that `save` writes to a file of this name."""
        if Path(path).suffix == ".json":
            return encode_report(self.report())
        from slopecheck.plots import svg

        picture = svg(self.plot()) if any(c.curve for c in self.checks) else ""
        return render_template("slopecheck", "result.html.j2", result=self, picture=picture).encode()

    def report(self) -> dict[str, Any]:
        """Return the content of a ``report.json`` (`slopecheck.report.KEYS`)."""
        skips, command = list(self.skipped.items()), f"{self.title} {self.name}"
        skips += [("inconclusive checks", self.allowed)] * bool(self.allowed)
        report = assemble_report(
            self.checks, skips, self.seed, command, self.terms.environment(), count_checks_for_plan(self.checks)
        )
        return {**report, "verdict": self.verdict}

    def run_checks(self, make: Callable[[bool], P], timeout: float | None) -> P:
        """Run the checks of a plan (`running.run`) and return the plan; a KeyboardInterrupt gets a `result`."""
        try:
            return run_plan(make, timeout, self.checks)
        except KeyboardInterrupt as interrupt:
            interrupt.result = self  # type: ignore[attr-defined]
            raise


class DerivativeError(AssertionError):
    """Checks of derivatives failed; the message lists them, `result` holds all checks.

    Attributes
    ----------
    result : Result
    """

    def __init__(self, result: Result) -> None:
        failed = result.failures or result.inconclusive
        # Omit the failure of an element if the note of another check, such as the input's, already describes it.
        told = [
            c for c in failed if c.kind != "elements" or not any(c.note in other.note for other in failed if other != c)
        ]
        lines = [f"{result.name}: {result.headline}"]
        for c in told[:10]:
            order = f"{result.cases} {c.case}, " if c.case else ""
            of = f" ({order}{c.field})" if c.field else ""
            lines.append(f"  {c.kind}{of}: {c.note or f'error {c.error:.1e}; allowed {c.tolerance:.1e}'}")
        if len(told) > 10:
            lines.append(f"  and {len(told) - 10} more; see the result of this error")
        super().__init__(_escape_unencodable("\n".join(lines)))
        self.result = result


class CalculatorError(DerivativeError):
    """Checks of a calculator failed; the message lists them, `result` holds all checks.

    Attributes
    ----------
    result : Result
    """
