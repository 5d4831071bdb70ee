"""The command line: ``trigraph verify``, ``info``, ``operators``, ``fortran``, ``bench`` and ``qualify``.

What a command needs is imported when it runs, so that ``--help`` and completion are quick.
"""

from __future__ import annotations

import importlib
import shlex
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trigraph import __version__
from trigraph.fortran.threads import MOST, available_processors
from trigraph.panels import PANELS, unavailable
from trigraph.table import DEFINITIONS, OPERATORS, Argument, Array
from trigraph.terminal import Commands, Finite, mark, plain_console, say

if TYPE_CHECKING:
    from trigraph.verification.compare import Comparison
    from trigraph.verification.record import Check
    from trigraph.verification.structures import Structure
    from trigraph.verification.units import Unit

JUDGE, QUAD = "judge", "real128"
FAMILIES = tuple(dict.fromkeys(spec.family for spec in DEFINITIONS))
# Modules of the commands that are imported when they are asked for.
LAZY = {"bench": "trigraph.benchmarks.cli", "qualify": "trigraph.benchmarks.qualify.cli"}
NAMES = (*OPERATORS, *(spec.name for spec in DEFINITIONS), *FAMILIES)


class _Commands(Commands):
    """Imports `bench` and `qualify` when they are asked for: they bring the peers' adapters with them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *LAZY])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in LAZY:
            return super().get_command(ctx, cmd_name)
        command: click.Command = getattr(importlib.import_module(LAZY[cmd_name]), cmd_name)
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="trigraph")
def main() -> None:
    """Graph and geometric message-passing operators in Fortran, NumPy and CUDA, checked against each other."""


# ---- verify ----------------------------------------------------------------------------------------------------------


@contextmanager
def _checked(option: str) -> Iterator[None]:
    """Let an option be to blame for what goes wrong before a run: with files to read, and the folder of the report."""
    from trigraph.verification.report import ReportError

    try:
        yield
    except (ReportError, OSError, ValueError) as error:
        raise click.BadParameter(str(error).removeprefix("verify: "), param_hint=f"'{option}'") from error


def _plan(
    operators: Sequence[str],
    panels: Sequence[str],
    dtypes: Sequence[str],
    seed: int,
    implementation: str | None,
    structures: Sequence[Structure],
    where: Sequence[str],
    jobs: int,
    tensors: Mapping[str, str | None],
) -> tuple[Sequence[Unit], Iterable[tuple[Unit, list[Check]]]]:
    """Return the units of the run, and these with their checks as they come.

    The judge computes in real128 alone, the others in float32 and float64. A user's function runs in one process of its
    own, whatever `jobs` says; it may not expect to be called in several.
    """
    from trigraph.verification.isolated import Refused, Workers
    from trigraph.verification.run import DTYPES, available_panels, plan
    from trigraph.verification.units import execute

    floats = [d for d in dtypes if d != QUAD] if dtypes else list(DTYPES)
    chosen = panels or (() if implementation else available_panels())
    others = [p for p in chosen if p != JUDGE] if floats else []
    judge = JUDGE in chosen and (not dtypes or QUAD in dtypes)
    if judge and others and "float64" in floats:  # whose cases it takes
        others, judge = [*others, JUDGE], False
    alone = bool(structures) and not operators
    requests: list[dict[str, Any]] = []
    common = {"operators": operators or None, "seed": seed, "where": where}
    if floats and (others or implementation):
        choices = {"panels": others, "dtypes": floats, "implementation": implementation, **tensors}
        requests.append({**common, **choices, "structures": structures, "alone": alone})
    if judge and not alone:
        requests.append({**common, "panels": [JUDGE], "dtypes": ["float64"]})
    if not requests:
        raise click.UsageError(
            f"nothing to verify: {JUDGE} computes in {QUAD}, the other panels in {' and '.join(DTYPES)}"
        )
    try:
        if implementation or jobs > 1:
            workers = Workers(requests, 1 if implementation else jobs)
            return workers.units, workers.execute()
        units = list({unit.label: unit for request in requests for unit in plan(**request)}.values())
        return units, execute(units)
    except ValueError as error:
        if isinstance(error, Refused) and error.trace:
            say(error.trace, err=True)
        raise click.UsageError(str(error).removeprefix("verify: ")) from error


def _skips(
    checks: Sequence[Check], panels: Sequence[str], implementation: str | None, alone: bool
) -> list[tuple[str, str]]:
    """Return what a run leaves out without having been asked to, and why; vectors are those of families it checked."""
    from trigraph.verification import golden

    asked = panels or implementation
    skips = [] if asked else [(f"panel {p}", unavailable(p)) for p in PANELS if unavailable(p)]
    if not alone and not golden.check_missing():  # else they are failures
        reason = "not there; TRIGRAPH_GOLDEN names their directory"
        families = dict.fromkeys(OPERATORS[c.operator].family for c in checks if c.operator in OPERATORS)
        absent = {family: len(golden.missing([family])) for family in families}
        if any(absent.values()):
            counts = ", ".join(f"{number} of {family}" for family, number in absent.items() if number)
            skips.append((f"{sum(absent.values())} files of golden vectors ({counts})", reason))
    return skips


def _execute(units: Sequence[Unit], results: Iterable[tuple[Unit, list[Check]]]) -> list[Check]:
    """Collect the checks of the units as they come: a line for each part that is finished, a bar on a terminal."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from trigraph.verification.progress import follow

    console = plain_console(stderr=True)
    columns = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    checks: list[Check] = []
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=sum(u.weight for u in units))
        for unit, unit_checks, line in follow(units, results):
            checks += unit_checks
            progress.update(task, description=unit.label, advance=unit.weight)
            if line:
                with suppress(OSError):
                    console.print(line, markup=False, soft_wrap=True)
    return checks


def _command(ctx: click.Context) -> str:
    """Return the command line that runs this again: the options that were given."""
    words = ["trigraph", ctx.info_name or ""]
    for parameter in ctx.command.params:
        assert isinstance(parameter, click.Option)
        name = parameter.name or ""
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            values = ctx.params[name] if parameter.multiple else (ctx.params[name],)
            words += [word for value in values for word in (parameter.opts[0], str(value))]
    return shlex.join(words)


def _report(
    ctx: click.Context,
    checks: Sequence[Check],
    skips: Sequence[tuple[str, str]],
    planned: int,
    inputs: Sequence[str],
    earlier: dict[str, Any] | None,
) -> tuple[Comparison | None, str]:
    """Write the report, if one was asked for; return the comparison with an earlier one, and why it is not written."""
    from trigraph.environment import collect
    from trigraph.verification.compare import compare
    from trigraph.verification.report import assemble, checks_of, write

    options = ctx.params
    report = assemble(checks, skips, options["seed"], _command(ctx), collect(), planned, inputs)
    names = {c.operator for c in checks} if options["operators"] or options["implementation"] else OPERATORS.keys()
    asked = names, {c.panel for c in checks}, {c.dtype for c in checks}
    comparison = compare(earlier, checks_of(earlier), report, checks, asked) if earlier else None
    try:
        if options["folder"]:
            write(options["folder"], report, checks, comparison)
    except OSError as error:
        return comparison, str(error)
    return comparison, ""


def _calculator(ctx: click.Context) -> int:
    """Check a calculator of ASE; return the exit status."""
    from trigraph.testing.command import verify_calculator
    from trigraph.verification.implementation import LoadError

    options, taken = ctx.params, ("calculator", "files", "skipped", "seed", "folder")
    for parameter in ctx.command.params:
        given = ctx.get_parameter_source(parameter.name or "") is click.core.ParameterSource.COMMANDLINE
        if given and parameter.name not in taken:
            raise click.UsageError(f"{parameter.opts[0]} is not of a --calculator")
    if not options["files"]:
        raise click.UsageError("--calculator needs a --structure; none is given")
    try:
        return 0 if verify_calculator(*(options[name] for name in taken)) else 1
    except LoadError as error:
        if error.__cause__:
            say("".join(traceback.format_exception(error.__cause__)), err=True)
        raise click.UsageError(str(error).removeprefix("verify: ")) from error
    except (ValueError, OSError) as error:
        raise click.UsageError(str(error).removeprefix("verify: ").removeprefix("check_calculator: ")) from error


@main.command(short_help="Check the panels: judge, differences, golden vectors.")
@click.option(
    "--operator",
    "operators",
    multiple=True,
    type=click.Choice(NAMES),
    metavar="NAME",
    help="An operator, a definition (gno_kernel: its three operators) or a family; may be repeated [default: all].",
)
@click.option(
    "--panel",
    "panels",
    multiple=True,
    type=click.Choice((*PANELS, JUDGE)),
    help="May be repeated [default: all that can run here].",
)
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    type=click.Choice(("float32", "float64", QUAD)),
    help="May be repeated; real128 is the judge's [default: all].",
)
@click.option(
    "--structure",
    "files",
    multiple=True,
    metavar="FILE[@INDEX]",
    help="A molecule or crystal, in any format ASE reads, or a frame of a trajectory [default: the last], for the "
    "dimenet family; may be repeated. Without --operator nothing else is checked.",
)
@click.option(
    "--cutoff",
    type=Finite(0, min_open=True),
    default=5.0,
    show_default=True,
    help="Cutoff of the neighbours in --structure files, in their unit of length.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of every generated case.")
@click.option(
    "--report",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write report.json, report.html and pictures here.",
)
@click.option(
    "--against",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="REPORT.JSON",
    help="Tell what changed since an earlier report; the exit status does not depend on it.",
)
@click.option(
    "--implementation",
    metavar="MODULE:FUNCTION",
    help="Verify your own function, for the one --operator it implements [default: the one of its name].",
)
@click.option(
    "--framework",
    type=click.Choice(["torch", "jax"]),
    help="The --implementation is a forward on tensors, for the --operator named without _fwd; its derivatives come "
    "from the framework.",
)
@click.option("--device", metavar="NAME", help="Where the tensors of --framework are, such as cuda:0 [default: cpu].")
@click.option(
    "--calculator",
    metavar="MODULE:FACTORY",
    help="Verify a calculator of ASE, which the factory returns, at the atoms of --structure files: forces, stress, "
    "symmetry, continuity.",
)
@click.option(
    "--skip",
    "skipped",
    multiple=True,
    metavar="KIND=WHY",
    help="Leave out a kind of check of a --calculator, with a word why; may be repeated.",
)
@click.option(
    "--where",
    multiple=True,
    metavar="NAME=VALUE",
    help="Check only these settings: op=sum, or edge_weight=None (given) for an optional input; may be repeated, "
    "values of one name are alternatives.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, MOST),
    default=lambda: len(available_processors()),
    help="Processes that share the work [default: one for each processor]; an implementation has one.",
)
@click.pass_context
def verify(
    ctx: click.Context,
    operators: tuple[str, ...],
    panels: tuple[str, ...],
    dtypes: tuple[str, ...],
    files: tuple[str, ...],
    cutoff: float,
    seed: int,
    folder: Path | None,
    against: Path | None,
    implementation: str | None,
    framework: str | None,
    device: str | None,
    calculator: str | None,
    skipped: tuple[str, ...],
    where: tuple[str, ...],
    jobs: int,
) -> None:
    """Check the panels against each other, the real128 judge, finite differences and golden vectors.

    Exit status: 0 when every check that was planned was made and passed, 1 when one failed or is missing or the report
    could not be written, 2 for wrong options and for an implementation that cannot be imported. Checks that an
    implementation does not offer (NotImplementedError) are counted apart; when it offers none, the status is 1. All
    this holds for a --calculator, too.
    """
    from trigraph.environment import tf32_problems
    from trigraph.verification import progress
    from trigraph.verification.console import print_comparison, print_failures, print_summary, print_withheld
    from trigraph.verification.report import read
    from trigraph.verification.structures import read as read_structure
    from trigraph.verification.units import counted

    if calculator:
        ctx.exit(_calculator(ctx))
    if skipped:
        raise click.UsageError("--skip is of a --calculator; none is given")
    with _checked("--against"):
        earlier = read(against) if against else None
    if not files and ctx.get_parameter_source("cutoff") is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError("--cutoff is of --structure files; none is given")
    with _checked("--structure"):
        structures = [read_structure(path, cutoff) for path in files]
    if framework and not implementation:
        raise click.UsageError("--framework is of an --implementation; none is given")
    if device and not framework:
        raise click.UsageError("--device is of a --framework; none is given")
    tensors = {"framework": framework, "device": device}
    units, results = _plan(operators, panels, dtypes, seed, implementation, structures, where, jobs, tensors)
    if folder:
        with _checked("--report"):
            folder.mkdir(parents=True, exist_ok=True)
    numbers = {unit.label: unit.planned() for unit in units}
    planned = sum(numbers.values())
    if where and not planned:
        raise click.UsageError(f"nothing to verify: no case has {', '.join(where)}")
    inputs = [structure.described() for structure in structures]
    parts = dict.fromkeys(progress.part_of(unit) for unit in units if numbers[unit.label])
    with suppress(OSError):  # the run is made, and its report written, where nobody hears of it
        for text in inputs:
            say(text)
        say(f"{planned} checks are planned, and zeros where nothing contributes, of {', '.join(parts)}.")
    checks = _execute(units, results)
    made = counted(checks)
    skips = _skips(checks, panels, implementation, bool(structures) and not operators)
    comparison, problem = None, ""
    if folder or earlier:  # before anything is printed, which can fail
        comparison, problem = _report(ctx, checks, skips, planned, inputs, earlier)
    console = plain_console()
    print_summary(console, checks)
    print_failures(console, checks)
    print_withheld(console, checks)
    for warning in tf32_problems():
        say(f"Warning: {warning}")
    for what, reason in skips:
        say(f"Skipped: {what}: {reason}")
    if comparison:
        print_comparison(console, comparison)
    if folder and not problem:
        say(f"Report: {folder / 'report.html'}")
    if problem:
        say(f"Error: the report is not written, an earlier one is as it was: {problem}", err=True)
    if made != planned:
        say(f"Error: {made} of {planned} checks that were planned were made", err=True)
    say(progress.result(checks))
    good = any(c.passed for c in checks) and not any(c.failed for c in checks)
    ctx.exit(0 if good and made == planned and not problem else 1)


# ---- info ------------------------------------------------------------------------------------------------------------


@main.command(short_help="Show versions, panels and the build.")
def info() -> None:
    """Show versions, panels and how the package was built: what a bug report should hold."""
    from rich.markup import escape
    from rich.table import Table

    from trigraph.environment import collect

    console = plain_console()
    facts = collect()
    source, build, cpu, cuda = facts["trigraph"], facts["build"] or {}, facts["cpu"], facts["device"]
    commit = f"commit {source['commit']}" if source["commit"] else "not installed from a repository"
    rows = {
        "trigraph": f"{source['version']}, {commit}{', changed since' if source['dirty'] else ''}",
        "Python": f"{facts['python']}, {facts['system']}",
        "packages": ", ".join(f"{name} {version}" for name, version in facts["packages"].items() if version),
        "processor": f"{cpu['model']}, {cpu['processors']} processors",
        "fast path": f"{cpu['level'] or 'none'} of {', '.join(cpu['levels']) or 'none'}, {cpu['threads']} threads "
        "(OMP_NUM_THREADS, else the processors, which ranks of MPI on one machine share)",
        "device": cuda["reason"] or f"{cuda['name']}, driver {cuda['driver']}, CUDA runtime {cuda['runtime']}",
    }
    if facts["warnings"]:
        rows["warning"] = "; ".join(facts["warnings"])
    if build:
        rows["Fortran"] = f"{build['fortran_compiler']} {build['fortran_version']}"
        rows["C++"] = f"{build['cpp_compiler']} {build['cpp_version']}"
        rows["OpenMP"] = "yes" if build["openmp"] else "no"
        rows |= {f"flags, {library}": flags for library, flags in build["flags"].items()}
    table = Table.grid(padding=(0, 2))
    for name, text in rows.items():
        table.add_row(f"[bold]{name}[/]", escape(text))
    console.print(table)
    console.print()
    panels = Table.grid(padding=(0, 2))
    for state in facts["panels"]:
        panels.add_row(mark(console, state["available"]), f"[bold]{state['panel']}[/]", escape(state["detail"]))
    console.print(panels)


# ---- fortran ---------------------------------------------------------------------------------------------------------


@main.command(short_help="Write the Fortran sources, a C header and build files.")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--vector-bytes",
    type=click.Choice(["16", "32", "64"]),
    default="16",
    show_default=True,
    help="Of the processor's vectors: 64 with -march=x86-64-v4, 32 with -march=x86-64-v3, 16 with any.",
)
def fortran(folder: Path, vector_bytes: str) -> None:
    """Write the Fortran sources to FOLDER, for programs without Python.

    There are the reference and the fast path of all families, named constants, a C header, the arguments of every
    operator (README.md), and what fpm and meson need to build them.
    """
    from trigraph.fortran.export import write

    try:
        written = write(folder, int(vector_bytes))
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}; pip install 'trigraph[fortran]' installs it") from error
    say(f"{len(written)} sources, include/trigraph.h, fpm.toml, meson.build and README.md in {folder}")


# ---- operators -------------------------------------------------------------------------------------------------------


def _shapes(arrays: Sequence[Array]) -> str:
    return "\n".join(
        f"{a.name} ({', '.join(a.dims)})" + (" or None" if isinstance(a, Argument) and a.nullable else "")
        for a in arrays
    )


@main.command(short_help="List operators with shapes.")
def operators() -> None:
    """List every operator: its arguments and fields with their shapes."""
    from rich import box
    from rich.table import Table

    console = plain_console()
    for spec in DEFINITIONS:
        table = Table(
            box=box.SIMPLE_HEAD, title=f"[bold]{spec.name}[/]: {spec.summary}", title_justify="left", title_style=""
        )
        for header in ("operator", "arguments", "and", "returns"):
            table.add_column(header, overflow="fold")
        for op in (op for op in OPERATORS.values() if op.definition is spec):
            graphs = [f"{a.name} ({op.graph.type_name})" for a in op.graph.arguments] if op.graph else []
            others = graphs + [a.name for a in op.attributes]
            table.add_row(op.name, _shapes(op.arguments), "\n".join(others), _shapes(op.fields))
            table.add_section()
        console.print(table)
