"""Console output of a run: the summary table, failures, checks that are not offered, and changes."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from slopecheck.compare import FACTOR, ReportComparison
from slopecheck.failures import group_checks_not_offered, group_failures
from slopecheck.record import Check
from slopecheck.summary import format_number, make_summary_rows
from slopecheck.terminal import format_pass_mark
from slopecheck.terms import ReportTerms


def make_empty_table(
    words: Iterable[str], numbers: Iterable[str], title: str | None = None, caption: str | None = None
) -> Table:
    """Return an empty table with the given headers of text columns and of number columns."""
    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left")
    for header in words:
        table.add_column(header, overflow="fold")
    for header in numbers:
        table.add_column(header, justify="right", no_wrap=True)
    return table


def print_summary(console: Console, checks: Sequence[Check], terms: ReportTerms) -> None:
    """Print a row for each backend and dtype under each operator, within 80 columns."""
    table = make_empty_table(("operator, backend", "dtype"), ("error", "tolerance", "order", "other", "seconds"))
    for operator, rows in groupby(make_summary_rows(checks, terms), key=lambda row: row.operator):
        table.add_row(f"[bold]{escape(operator)}[/]")
        for row in rows:
            numbers = (
                format_number(row.error),
                format_number(row.tolerance),
                row.order,
                row.other_kinds,
                f"{row.seconds:.2f}",
            )
            table.add_row(f"{format_pass_mark(console, row.passed)} {escape(row.backend)}", row.dtype, *numbers)
    console.print(table)
    console.print(terms.legend, style="dim")


def print_failures(console: Console, checks: Sequence[Check], terms: ReportTerms) -> None:
    """Print each kind of failure with its count and cases, and the traceback of the first exception."""
    groups = group_failures(checks, terms)
    if groups:
        console.print(f"[bold red]Failed: {sum(f.count for f in groups)} checks[/]")
    for f in groups:
        name = " in ".join(filter(None, (f.operator, f.backend)))
        mark, noun = format_pass_mark(console, False), "checks" if f.count > 1 else "check"
        console.print(f"  {mark} [bold]{escape(name)}[/]: {escape(f.what)}: {f.count} {noun}", end="")
        console.print(f" [dim]({escape(f.where)})[/]")
        for text in (*f.remarks, *f.trace.splitlines()):
            console.print(f"      {escape(text)}", style="dim")
    if groups:
        console.print()


def print_checks_not_offered(console: Console, checks: Sequence[Check], terms: ReportTerms) -> None:
    """Print which checks a user's function does not offer, and why."""
    groups = group_checks_not_offered(checks, terms)
    for w in groups:
        console.print(f"Not offered by {escape(w.backend)}: {w.count} checks of {escape(w.operator)}: {escape(w.what)}")
        console.print(f"      {escape(w.where)}", style="dim")
    if groups:
        console.print()


def _make_changes_table(title: str, changes: Sequence[tuple[Check, Check]]) -> Table:
    table = make_empty_table(("operator", "backend", "dtype", "kind", "case", "field"), ("error then", "now"), title)
    for then, now in changes:
        texts = (escape(t) for t in (now.operator, now.backend, now.dtype, now.kind, now.case, now.field))
        table.add_row(*texts, format_number(then.error), format_number(now.error))
    return table


def print_comparison(console: Console, comparison: ReportComparison) -> None:
    """Print what changed since an earlier report."""
    commit = f", commit {escape(comparison.commit[:12])}" * bool(comparison.commit)
    console.print(f"[bold]Changes since {escape(comparison.date)}{commit}[/]")
    for name, then, now in comparison.influences:
        console.print(f"  {name}: {escape(then)} -> {escape(now)}")
    console.print(f"  {comparison.repaired} failed checks pass now, {comparison.broken} passed checks fail now")
    bits, accuracy = comparison.changed_bits, comparison.changed_accuracy
    if comparison.same_bits or bits:
        console.print(f"  {comparison.same_bits} outputs are bitwise equal, {len(bits)} differ")
    console.print(f"  {len(accuracy)} errors changed by more than a factor of {FACTOR:g}")
    for what, groups in (("new", comparison.new), ("gone", comparison.gone)):
        for backend, dtype in dict.fromkeys(key[1:] for key in groups):
            counts = {key[0]: n for key, n in groups.items() if key[1:] == (backend, dtype)}
            names = escape(", ".join(counts))
            console.print(f"  {sum(counts.values())} {what} checks of {escape(backend)}, {dtype}: {names}")
    for title, changes in (("Changed bits", bits), ("Changed accuracy", accuracy)):
        if changes:
            console.print(_make_changes_table(title, changes))
