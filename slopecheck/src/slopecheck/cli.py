"""The command line: ``slopecheck function`` and ``slopecheck calculator``."""

import math
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slopecheck import __version__
from slopecheck.terminal import CommandGroup, FiniteFloatRange, make_escaping_console, print_escaped

if TYPE_CHECKING:
    from slopecheck.result import Result


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="slopecheck")
def main() -> None:
    """Check derivatives by the slope of the error of central differences.

    Modules are searched for in the current directory first.
    """


def _add_shared_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that both commands share."""
    options = (
        click.option(
            "--skip",
            "skipped",
            multiple=True,
            metavar="KIND=WHY",
            help="Skip a kind of check and record the reason; repeatable.",
        ),
        click.option(
            "--timeout",
            type=FiniteFloatRange(0, min_open=True),
            metavar="SECONDS",
            help="Time limit for one kind of check [default: none].",
        ),
        click.option("--allow-inconclusive", "reason", default="", metavar="WHY", help="Let inconclusive checks pass."),
        click.option("--all", "every", is_flag=True, help="Also show the checks that passed."),
        click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of all directions."),
        click.option(
            "--report",
            "folder",
            type=click.Path(file_okay=False, path_type=Path),
            metavar="DIR",
            help="Write report.json and report.html to this directory.",
        ),
        click.option(
            "--against",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            metavar="REPORT.JSON",
            help="Print the changes since an earlier report; they do not affect the exit status.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@main.command(short_help="Check the derivatives of a function.")
@click.argument("name", metavar="MODULE:FUNCTION")
@click.argument("arguments", metavar="MODULE:ARGUMENTS")
@click.option("--order", type=click.IntRange(1, 3), help="Highest order of derivatives [default: as --vjp..., else 2].")
@click.option(
    "--accuracy", type=FiniteFloatRange(0, 1), default=0.0, metavar="ERROR", help="Relative error that is accepted."
)
@click.option("--calls", type=click.IntRange(1), metavar="N", help="Make about N calls by comparing fewer elements.")
@click.option(
    "--framework",
    type=click.Choice(["numpy", "torch", "jax"]),
    help="Source of the derivatives [default: the library of the first argument].",
)
@click.option("--vjp", metavar="MODULE:FUNCTION", help="Function that returns the gradients of a NumPy function.")
@click.option("--vjp2", metavar="MODULE:FUNCTION", help="Function that returns second derivatives; needs --vjp.")
@click.option("--vjp3", metavar="MODULE:FUNCTION", help="Function that returns third derivatives; needs --vjp2.")
@_add_shared_options
@click.pass_context
def function(
    ctx: click.Context,
    /,
    name: str,
    arguments: str,
    order: int | None,
    accuracy: float,
    calls: int | None,
    framework: str | None,
    vjp: str | None,
    vjp2: str | None,
    vjp3: str | None,
    **options: Any,
) -> None:
    """Check the derivatives of a function at the arguments that ARGUMENTS, a function without arguments, returns.

    Exit status: 0 if every check passed, 1 if a check failed or the report could not be written, 2 for wrong options
    and for a function that cannot be imported, 3 if no check failed and one is inconclusive.
    """
    from slopecheck.derivatives import check_derivatives
    from slopecheck.loading import LoadError, import_function
    from slopecheck.outcome import describe_exception

    def load_and_check_function(**keywords: Any) -> "Result":
        own = import_function(name, "function")
        given = [None if word is None else import_function(word, "derivative") for word in (vjp, vjp2, vjp3)]
        while given and given[-1] is None:
            given.pop()
        try:
            inputs = import_function(arguments, "arguments")()
        except LoadError:
            raise
        except Exception as error:  # the user's code may raise any exception
            raise LoadError(f"arguments {arguments!r} cannot be made: {describe_exception(error)}") from error
        derivatives = tuple(given) if len(given) > 1 else given[0] if given else None
        keywords |= {"order": order, "framework": framework, "accuracy": accuracy, "calls": calls}
        return check_derivatives(own, inputs, vjp=derivatives, **keywords)

    _check_report_and_exit(ctx, name, load_and_check_function, **options)


@main.command(short_help="Check an ASE calculator.")
@click.argument("name", metavar="MODULE:FACTORY")
@click.option(
    "--structure",
    "files",
    multiple=True,
    required=True,
    metavar="FILE[@INDEX]",
    help="A molecule or crystal in any format that ASE reads; INDEX selects the frame of a trajectory [default: the "
    "last]. Repeatable.",
)
@_add_shared_options
@click.pass_context
def calculator(ctx: click.Context, /, name: str, files: Sequence[str], **options: Any) -> None:
    """Check forces, stress, symmetry and continuity of the ASE calculator that FACTORY returns.

    Exit status: 0 if every check passed, 1 if a check failed or the report could not be written, 2 for wrong options
    and for a factory that cannot be imported, 3 if no check failed and one is inconclusive.
    """
    from slopecheck.calculators import check_calculator
    from slopecheck.loading import import_function
    from slopecheck.structures import read_atoms

    def load_and_check_calculator(**keywords: Any) -> "Result":
        structures, names = [read_atoms(file) for file in files], [Path(file).name for file in files]
        return check_calculator(import_function(name, "factory"), structures, names=names, **keywords)

    _check_report_and_exit(ctx, name, load_and_check_calculator, **options)


def _check_report_and_exit(
    ctx: click.Context,
    name: str,
    check: Callable[..., "Result"],
    skipped: Sequence[str],
    timeout: float | None,
    reason: str,
    every: bool,
    seed: int,
    folder: Path | None,
    against: Path | None,
) -> None:
    """Run the checks in a separate process, print a table, write the report, and exit with the status."""
    from slopecheck import progress, running
    from slopecheck.loading import LoadError
    from slopecheck.report import read

    def print_result_table(result: "Result", all_of_it: bool) -> None:
        result.name = name
        print_escaped(result.table(all_of_it))

    fresh = copy_context()
    fresh.run(running.FRESH.set, True)
    allowed = {"inconclusive": "allow" if reason else "fail", "reason": reason}
    try:
        left_out, earlier = running.parse_skip_options(skipped), read(against) if against else None
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
        result = fresh.run(check, skip=left_out, timeout=timeout or math.inf, seed=seed, raises=False, **allowed)
    except KeyboardInterrupt as interrupt:
        if known := getattr(interrupt, "result", None):
            with suppress(OSError):  # the terminal may have been closed
                print_result_table(known, True)
                print_escaped(f"{progress.describe_check_counts(known.checks)}, then interrupted")
        raise
    except LoadError as error:
        if error.__cause__:
            print_escaped("".join(traceback.format_exception(error.__cause__)), err=True)
        raise click.UsageError(str(error)) from error
    except (ValueError, TypeError, ImportError, OSError) as error:
        text = str(error).removeprefix("check_calculator: ").removeprefix("check_derivatives: ")
        raise click.UsageError(text) from error
    print_result_table(result, every)
    written = _compare_and_write_report(result, folder, earlier)
    ctx.exit({"passed": 0, "failed": 1, "inconclusive": 3}[result.verdict] if written else 1)


def _compare_and_write_report(result: "Result", folder: Path | None, earlier: dict[str, Any] | None) -> bool:
    """Print what changed since an earlier report, and write the new one; return whether it could be written."""
    from slopecheck.compare import compare_reports
    from slopecheck.console import print_comparison
    from slopecheck.report import checks_of, replace_files

    if earlier:
        changes = compare_reports(earlier, checks_of(earlier), result.report(), result.checks, result.terms)
        print_comparison(make_escaping_console(), changes)
    if folder is None:
        return True
    try:
        replace_files(folder, {name: result.encode(name) for name in ("report.html", "report.json")})
    except OSError as error:
        print_escaped(f"Error: the report was not written: {error}", err=True)
        return False
    print_escaped(f"Report: {folder / 'report.html'}")
    return True
