"""The command line: ``trigraph verify``, ``info``, ``operators``, ``lammps``, ``config``, ``fortran``, ``bench``...

Each command imports its dependencies when it runs, so that ``--help`` and completion are quick.
"""

from __future__ import annotations

import importlib
import math
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slopecheck.terminal import CommandGroup, FiniteFloatRange, format_pass_mark, make_escaping_console, print_escaped
from trigraph import __version__
from trigraph.backends import BACKENDS, explain_unavailable
from trigraph.fortran.threads import MOST, list_available_processors
from trigraph.table import DEFINITIONS, FAMILIES, NAMED, Array, ArrayArgument

if TYPE_CHECKING:
    from slopecheck.compare import ReportComparison
    from slopecheck.record import Check
    from slopecheck.units import WorkUnit
    from trigraph.verification.structures import AtomicStructure

JUDGE, QUAD = "judge", "real128"
# Commands by purpose, in the order of `trigraph --help`.
COMMAND_GROUPS = {
    "Check": ("verify",),
    "Look up": ("info", "operators"),
    "Use from LAMMPS, Fortran, C and C++": ("lammps", "config", "fortran"),
    "Develop trigraph": ("bench", "qualify"),
}
# Modules of commands that are imported on demand.
LAZY_COMMANDS = {
    "bench": ("trigraph.benchmarks.cli", "Time the backends of trigraph next to other packages (peers)."),
    "qualify": ("trigraph.benchmarks.qualify.cli", "Verify and time the kernels on a CUDA device."),
}
OPERATOR_NAMES = (*NAMED, *(spec.name for spec in DEFINITIONS), *FAMILIES)


class _LazyCommandGroup(CommandGroup):
    """Command group that imports `bench` and `qualify` on demand, because they import adapters of other packages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *LAZY_COMMANDS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in LAZY_COMMANDS:
            return super().get_command(ctx, cmd_name)
        return getattr(importlib.import_module(LAZY_COMMANDS[cmd_name][0]), cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in COMMAND_GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (n, LAZY_COMMANDS[n][1] if n in LAZY_COMMANDS else self.commands[n].short_help or "")
                        for n in names
                    ]
                )


@click.group(cls=_LazyCommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="trigraph")
def main() -> None:
    """Check, list and export operators of trigraph. Start with `trigraph verify --operator gat`; commands have -h."""


# ---- verify ----------------------------------------------------------------------------------------------------------


@contextmanager
def _convert_to_option_errors(option: str) -> Iterator[None]:
    """Convert errors from reading input files or creating the report folder to errors of a command-line option."""
    from slopecheck.report import ReportError

    try:
        yield
    except (ReportError, OSError, ValueError) as error:
        raise click.BadParameter(str(error).removeprefix("verify: "), param_hint=f"'{option}'") from error


def _plan_units_and_checks(
    options: Mapping[str, Any], structures: Sequence[AtomicStructure]
) -> tuple[Sequence[WorkUnit], Iterable[tuple[WorkUnit, list[Check]]]]:
    """Return the units of the run and an iterator over units and their checks.

    The judge computes in real128 only; all other backends compute in float32 and float64. A user's function or a
    framework always runs in one separate process, regardless of `--jobs`, because it may not support several processes.
    """
    from slopecheck.isolated import ChildEnded, PlanningError, WorkerPool, merge_units
    from slopecheck.units import execute_units
    from trigraph.verification.run import DTYPES, list_available_backends, plan_run

    operators, dtypes = options["operators"], options["dtypes"]
    implementation = options["implementation"] or options["framework"]
    floats = [d for d in dtypes if d != QUAD] if dtypes else list(DTYPES)
    chosen = options["backends"] or (() if implementation else list_available_backends())
    other_backends = [p for p in chosen if p != JUDGE] if floats else []
    judge = JUDGE in chosen and (not dtypes or QUAD in dtypes)
    if judge and other_backends and "float64" in floats:  # check the judge on the cases of float64
        other_backends, judge = [*other_backends, JUDGE], False
    structures_only = bool(structures) and not operators
    requests: list[dict[str, Any]] = []
    common = {"operators": operators or None, "seed": options["seed"], "where": options["where"]}
    if floats and (other_backends or implementation):
        tensors = {name: options[name] for name in ("implementation", "framework", "device")}
        requests.append(
            {
                **common,
                **tensors,
                "backends": other_backends,
                "dtypes": floats,
                "structures": structures,
                "alone": structures_only,
                "skip": tuple(options["left_out"]),
            }
        )
    if judge and not structures_only:
        requests.append({**common, "backends": [JUDGE], "dtypes": ["float64"]})
    if not requests:
        raise click.UsageError(
            f"nothing to verify: {JUDGE} computes in {QUAD}, the other backends in {' and '.join(DTYPES)}"
        )
    try:
        if implementation or options["jobs"] > 1:
            workers = WorkerPool(
                plan_run, requests, 1 if implementation else options["jobs"], options["timeout"] or math.inf
            )
            return workers.units, workers.execute_units()
        units = merge_units(plan_run, requests)
        return units, execute_units(units)
    except ChildEnded as error:
        raise click.UsageError(f"importing implementation {options['implementation']!r}: {error}") from error
    except ValueError as error:
        if isinstance(error, PlanningError) and error.trace:
            print_escaped(error.trace, err=True)
        raise click.UsageError(str(error).removeprefix("verify: ")) from error


def _list_skip_reasons(
    checks: Sequence[Check], backends_were_chosen: bool, structures_only: bool
) -> list[tuple[str, str]]:
    """Return what was skipped and why: missing golden vectors and, unless the user chose backends, absent backends."""
    from trigraph.verification import golden

    skips = (
        []
        if backends_were_chosen
        else [(f"backend {p}", explain_unavailable(p)) for p in BACKENDS if explain_unavailable(p)]
    )
    if (
        not structures_only and not golden.list_missing_vector_failures()
    ):  # missing files that already failed are not skipped
        searched_folder = (
            golden.find_golden_directory() or "the package, nor in a folder shared/golden beside a checkout"
        )
        reason = f"not in {searched_folder}; TRIGRAPH_GOLDEN=DIR names another (docs/accuracy.md#golden-vectors)"
        families = dict.fromkeys(NAMED[c.operator].family for c in checks if c.operator in NAMED)
        absent = {family: len(golden.list_missing_vectors([family])) for family in families}
        if any(absent.values()):
            counts = ", ".join(f"{number} of {family}" for family, number in absent.items() if number)
            skips.append((f"{sum(absent.values())} files of golden vectors ({counts})", reason))
    return skips


def _collect_checks_with_progress(
    units: Sequence[WorkUnit], results: Iterable[tuple[WorkUnit, list[Check]]], checks: list[Check]
) -> None:
    """Add the checks of all units to a list; print a line for each finished part and, on a terminal, a progress bar."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from slopecheck.progress import add_progress_lines
    from trigraph.verification.run import find_section_name

    console = make_escaping_console(stderr=True)
    columns = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=sum(u.weight for u in units))
        for unit, unit_checks, line in add_progress_lines(units, results, find_section_name):
            checks += unit_checks
            progress.update(task, description=unit.label, advance=unit.weight)
            if line:
                with suppress(OSError):
                    console.print(line, markup=False, soft_wrap=True)


def _format_command_line(ctx: click.Context) -> str:
    """Return the command line that repeats this run."""
    return shlex.join(("trigraph", *ctx.obj))


def _compare_and_write_report(
    ctx: click.Context,
    checks: Sequence[Check],
    skips: Sequence[tuple[str, str]],
    planned: int,
    inputs: Sequence[str],
    earlier: dict[str, Any] | None,
    seconds: float,
) -> tuple[ReportComparison | None, str]:
    """Write the report if requested; return the comparison with an earlier report and the error if writing failed."""
    from slopecheck.compare import compare_reports
    from slopecheck.report import assemble_report, checks_of
    from trigraph.environment import collect_environment
    from trigraph.verification.report import write_report
    from trigraph.verification.terms import TERMS

    options = ctx.params
    report = assemble_report(
        checks, skips, options["seed"], _format_command_line(ctx), collect_environment(), planned, inputs, seconds
    )
    names = {c.operator for c in checks} if options["operators"] or options["implementation"] else NAMED.keys()
    selection = names, {c.backend for c in checks}, {c.dtype for c in checks}
    comparison = compare_reports(earlier, checks_of(earlier), report, checks, TERMS, selection) if earlier else None
    try:
        if options["folder"]:
            write_report(options["folder"], report, checks, comparison)
    except OSError as error:
        return comparison, str(error)
    return comparison, ""


def _describe_last_duration(ctx: click.Context) -> str:
    """Return the duration of the last run of this command, from the report that this run will replace."""
    from slopecheck.report import ReportError, read

    with suppress(ReportError):
        report = read(ctx.params["folder"] / "report.json")
        if report["command"] == _format_command_line(ctx) and report.get("seconds"):
            minutes, seconds = divmod(round(report["seconds"]), 60)
            return " (last time: " + f"{minutes} min " * bool(minutes) + f"{seconds} s)"
    return ""


def _format_first_failure_command(checks: Sequence[Check], options: Mapping[str, Any]) -> str:
    """Return the command that repeats the cases with the settings of the first failed check.

    Return "" if no check failed or if structures were given.
    """
    from trigraph.verification.settings import parse_restriction_from_case_name

    failed = next((c for c in checks if c.failed and c.operator in NAMED), None)
    if failed is None or options["files"]:
        return ""
    implementation, framework = options["implementation"], options["framework"]
    definition = NAMED[failed.operator].definition
    operator = definition.name if framework else failed.operator
    words = ["--operator", operator, "--dtype", failed.dtype, "--seed", str(options["seed"])]
    words += ["--implementation", implementation] if implementation else ["--backend", failed.backend]
    given = ("framework", "device", "timeout")
    words += [word for name in given if options[name] for word in (f"--{name}", str(options[name]))]
    settings = parse_restriction_from_case_name(failed.case, definition)
    where = [f"{name}={value}" for name, (value,) in settings.items()]
    where += [setting for setting in options["where"] if setting.partition("=")[0] not in settings]
    words += [word for setting in where for word in ("--where", setting)]
    words += [word for kind in options["skipped"] for word in ("--skip", kind)]
    return shlex.join(("trigraph", "verify", *words))


@main.command(short_help="Check operators, or your own function.")
@click.option(
    "--operator",
    "operators",
    multiple=True,
    type=click.Choice(OPERATOR_NAMES),
    metavar="NAME",
    help="An operator, a definition (gno_kernel selects its three operators) or a family; repeatable [default: all].",
)
@click.option(
    "--backend",
    "backends",
    multiple=True,
    type=click.Choice((*BACKENDS, JUDGE)),
    help="An implementation to check; repeatable [default: all available].",
)
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    type=click.Choice(("float32", "float64", QUAD)),
    help="A precision to check, real128 for the judge only; repeatable [default: all].",
)
@click.option(
    "--structure",
    "files",
    multiple=True,
    metavar="FILE[@INDEX]",
    help="Check the dimenet family on a molecule or crystal in any format that ASE reads; INDEX selects the frame of a "
    "trajectory [default: the last]. Repeatable. Without --operator, only the structures are checked.",
)
@click.option(
    "--cutoff",
    type=FiniteFloatRange(0, min_open=True),
    default=5.0,
    show_default=True,
    help="Cutoff distance for neighbours in --structure files, in their unit of length.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of all random cases.")
@click.option(
    "--report",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write report.json, report.html and figures to this directory.",
)
@click.option(
    "--against",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="REPORT.JSON",
    help="Print the changes since an earlier report; they do not affect the exit status.",
)
@click.option(
    "--implementation",
    metavar="MODULE:FUNCTION",
    help="Verify your own function; --operator is the operator that it implements [default: the function's name].",
)
@click.option(
    "--framework",
    type=click.Choice(["torch", "jax"]),
    help="The --implementation is a forward function of tensors, for the --operator named without _fwd; the framework "
    "differentiates it. Without --implementation: verify trigraph.torch, or trigraph.jax.",
)
@click.option("--device", metavar="NAME", help="Device of the tensors for --framework, such as cuda:0 [default: cpu].")
@click.option(
    "--skip",
    "skipped",
    multiple=True,
    metavar="KIND=WHY",
    help="Skip a kind of check of an --implementation and record the reason; repeatable.",
)
@click.option(
    "--timeout",
    type=FiniteFloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Time limit for one kind of check in one case of an --implementation [default: none].",
)
@click.option(
    "--where",
    multiple=True,
    metavar="NAME=VALUE",
    help="Check only cases with this setting, such as op=sum, edge_weight=None or edge_weight=given; repeatable, "
    "several values of one name are alternatives.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, MOST),
    default=lambda: len(list_available_processors()),
    help="Number of worker processes; an --implementation always has one [default: one per processor].",
)
@click.pass_context
def verify(ctx: click.Context, /, **options: Any) -> None:
    """Check the backends against each other, the real128 judge, finite differences and golden vectors.

    Exit status: 0 if all planned checks ran and passed; 1 if a check failed or did not run, or if the report could not
    be written; 2 if an option is wrong or the implementation cannot be imported. A check for which an implementation
    raises NotImplementedError counts as not offered; if all checks are of this kind, the status is 1.
    """
    from slopecheck import progress
    from slopecheck.console import print_checks_not_offered, print_comparison, print_failures, print_summary
    from slopecheck.report import read
    from slopecheck.running import parse_skip_options
    from slopecheck.units import count_checks_for_plan
    from trigraph.environment import list_tf32_warnings
    from trigraph.verification.run import find_section_name
    from trigraph.verification.structures import read_structure as read_structure
    from trigraph.verification.terms import TERMS

    folder, against, where = options["folder"], options["against"], options["where"]
    if options["skipped"] and not options["implementation"]:
        raise click.UsageError("--skip requires an --implementation; none is given")
    with _convert_to_option_errors("--skip"):
        options["left_out"] = parse_skip_options(options["skipped"])
    with _convert_to_option_errors("--against"):
        earlier = read(against) if against else None
    if not options["files"] and ctx.get_parameter_source("cutoff") is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError("--cutoff requires a --structure; none is given")
    with _convert_to_option_errors("--structure"):
        structures = [read_structure(path, options["cutoff"]) for path in options["files"]]
    if options["device"] and not options["framework"]:
        raise click.UsageError("--device requires a --framework; none is given")
    if options["timeout"] and not options["implementation"]:
        raise click.UsageError("--timeout requires an --implementation; none is given")
    units, results = _plan_units_and_checks(options, structures)
    last = ""
    if folder:
        with _convert_to_option_errors("--report"):
            folder.mkdir(parents=True, exist_ok=True)
        last = _describe_last_duration(ctx)
    planned_by_unit = {unit.label: unit.planned() for unit in units}
    planned = sum(planned_by_unit.values())
    if where and not planned:
        raise click.UsageError(f"nothing to verify: no case has {', '.join(where)}")
    inputs = [structure.describe() for structure in structures]
    sections = dict.fromkeys(find_section_name(unit) for unit in units if planned_by_unit[unit.label])
    with suppress(OSError):  # if stdout is closed, continue the run and write the report
        for text in inputs:
            print_escaped(text)
        checked = sum(part in OPERATOR_NAMES for part in sections)
        operators_text = f" on {checked} operator{'s'[: checked > 1]}" if checked else ""
        print_escaped(
            f"Running {planned:,} check{'s'[: planned != 1]}{operators_text}, and one for each sum without terms{last}."
        )
    start = time.monotonic()
    checks: list[Check] = []
    console = make_escaping_console()
    try:
        _collect_checks_with_progress(units, results, checks)
    except KeyboardInterrupt:  # show the results so far, write no report, and raise again
        with suppress(OSError):
            print_summary(console, checks, TERMS)
            print_failures(console, checks, TERMS)
            print_escaped(f"{progress.describe_check_counts(checks)}, then interrupted")
        raise
    num_executed = count_checks_for_plan(checks)
    backends_were_chosen = bool(options["backends"] or options["implementation"] or options["framework"])
    structures_only = bool(structures) and not options["operators"]
    skips = [*options["left_out"].items(), *_list_skip_reasons(checks, backends_were_chosen, structures_only)]
    comparison, problem = None, ""
    if folder or earlier:  # write the report before printing, which can fail
        comparison, problem = _compare_and_write_report(
            ctx, checks, skips, planned, inputs, earlier, time.monotonic() - start
        )
    print_summary(console, checks, TERMS)
    print_failures(console, checks, TERMS)
    print_checks_not_offered(console, checks, TERMS)
    for warning in list_tf32_warnings():
        print_escaped(f"Warning: {warning}")
    for what, reason in skips:
        print_escaped(f"Skipped: {what}: {reason}")
    if comparison:
        print_comparison(console, comparison)
    if repeat_command := _format_first_failure_command(checks, options):
        print_escaped(f"Next: repeat the first failed check: {repeat_command}")
    if folder and not problem:
        print_escaped(f"Next: open the report in a browser: {folder / 'report.html'}")
    elif not folder:
        print_escaped("Next: add --report DIR to write all checks to an HTML page with figures.")
    if problem:
        print_escaped(f"Error: the report was not written, and an earlier one is unchanged: {problem}", err=True)
    if num_executed != planned:
        print_escaped(f"Error: {num_executed:,} of {planned:,} planned checks were run", err=True)
    if options["implementation"]:
        print_escaped(progress.describe_verdict(checks, TERMS))
    print_escaped(progress.describe_check_counts(checks))
    has_passed = any(c.passed for c in checks) and not any(c.failed for c in checks)
    ctx.exit(0 if has_passed and num_executed == planned and not problem else 1)


# ---- info ------------------------------------------------------------------------------------------------------------


@main.command(short_help="Show versions, backends and missing packages of each extra.")
def info() -> None:
    """Show versions, backends and build settings, for example for a bug report."""
    from rich.markup import escape
    from rich.table import Table

    from trigraph.environment import collect_environment, list_missing_packages, print_environment

    console = make_escaping_console()
    print_environment(console, collect_environment())
    console.print()
    extras = Table.grid(padding=(0, 2))
    for extra, packages in list_missing_packages().items():
        text = f"missing: {', '.join(packages)}; pip install 'trigraph[{extra}]'" if packages else "complete"
        extras.add_row(format_pass_mark(console, not packages), f"[bold]{extra}[/]", escape(text))
    console.print(extras)


# ---- config, fortran -------------------------------------------------------------------------------------------------


@main.command(short_help="Print what a compiler needs for the library in C and Fortran.")
@click.option("--include", is_flag=True, help="The option that finds trigraph.h and the Fortran modules.")
@click.option("--libs", is_flag=True, help="The options that link the library.")
@click.option("--pkgconfigdir", is_flag=True, help="The folder of trigraph.pc, for PKG_CONFIG_PATH.")
def config(include: bool, libs: bool, pkgconfigdir: bool) -> None:
    """Print what a compiler needs for programs in C, C++ and Fortran.

    `cc program.c $(trigraph config --include --libs)` builds a program that finds the installed library at run time.
    """
    from trigraph.fortran.levels import LIBRARY

    if not (include or libs or pkgconfigdir):
        raise click.UsageError("expected --include, --libs or --pkgconfigdir")
    folder = LIBRARY.parent
    headers = folder.parent / "include"
    words = [f"-I{headers if headers.is_dir() else folder}"] * include  # editable installs have no include/
    words += [f"-L{folder} -Wl,-rpath,{folder} -ltrigraph_fortran -ltrigraph"] * libs
    click.echo(" ".join(words + [str(folder.parent / "pkgconfig" if headers.is_dir() else folder)] * pkgconfigdir))


@main.command(short_help="Write the Fortran sources, a C header and build files.")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--vector-bytes",
    type=click.Choice(["16", "32", "64"]),
    default="16",
    show_default=True,
    help="Width of the SIMD registers: 64 for -march=x86-64-v4, 32 for -march=x86-64-v3, 16 for any processor.",
)
def fortran(folder: Path, vector_bytes: str) -> None:
    """Write the sources of the library to FOLDER, which must be new or empty, for a build without Python.

    FOLDER receives the reference and the fast path of all families, procedures that make and check graphs, named
    constants, a C header, a README.md, and build files for CMake and fpm.
    """
    from trigraph.fortran.export import write_sources

    try:
        write_sources(folder, int(vector_bytes))
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}; pip install 'trigraph[fortran]' installs it") from error
    except FileExistsError as error:
        raise click.ClickException(str(error)) from error
    print_escaped(f"Sources, include/trigraph.h, CMakeLists.txt, fpm.toml and README.md are in {folder}")


# ---- lammps ----------------------------------------------------------------------------------------------------------


@main.command(short_help="Run an input script of LAMMPS with a potential.")
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENTS...]")
@click.option(
    "--model",
    "file",
    required=True,
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Model saved by torch.save. The file can run any code when it is loaded: use trusted files only.",
)
@click.option("--elements", required=True, metavar="SYMBOLS", help="Chemical symbol of each atom type, such as Cu,Au.")
@click.option(
    "--skin",
    type=FiniteFloatRange(0),
    default=0.0,
    show_default=True,
    help="Reuse neighbours until an atom moved by half, in Å.",
)
@click.option("--compile", is_flag=True, help="Compile energies, forces and stresses into one program.")
def lammps(script: Path, arguments: tuple[str, ...], file: str, elements: str, skin: float, compile: bool) -> None:
    """Run SCRIPT with a potential in place of its line `fix ID all external pf/callback 1 1`.

    ARGUMENTS are passed to LAMMPS, for example `-- -log none -var T 300`. The classes of the model may also be defined
    in modules in the current directory.
    """
    try:
        from trigraph.calculators.lammps import read_model, run
    except ImportError as error:
        raise click.ClickException(str(error)) from error
    try:
        model = read_model(file)
    except Exception as error:  # unpickling can raise any error
        raise click.BadParameter(f"{file} cannot be read: {error}", param_hint="'--model'") from error
    try:
        run(model, script, elements.split(","), skin=skin, compile=compile, arguments=arguments, progress=True).close()
    except Exception as error:
        raise click.ClickException(f"{error}" or type(error).__name__) from error


# ---- operators -------------------------------------------------------------------------------------------------------


def _format_shapes(arrays: Sequence[Array]) -> str:
    return "\n".join(
        f"{a.name} ({', '.join(a.dims)})" + (" or None" if isinstance(a, ArrayArgument) and a.nullable else "")
        for a in arrays
    )


@main.command(short_help="List all operators with their arguments and shapes.")
def operators() -> None:
    """List every operator with the shapes of its arguments and results."""
    from rich import box
    from rich.table import Table

    console = make_escaping_console()
    for spec in DEFINITIONS:
        table = Table(
            box=box.SIMPLE_HEAD, title=f"[bold]{spec.name}[/]: {spec.summary}", title_justify="left", title_style=""
        )
        for header in ("operator", "arguments", "and", "returns"):
            table.add_column(header, overflow="fold")
        for op in (op for op in NAMED.values() if op.definition is spec):
            graphs = [f"{a.name} ({op.graph_kind.type_name})" for a in op.graph_kind.arguments] if op.graph_kind else []
            others = graphs + [a.name for a in op.attributes]
            table.add_row(op.name, _format_shapes(op.arguments), "\n".join(others), _format_shapes(op.fields))
            table.add_section()
        console.print(table)
