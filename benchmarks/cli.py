"""Command `trigraph bench`, and the tables that it prints."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from slopecheck.console import make_empty_table
from slopecheck.terminal import make_escaping_console
from trigraph.backends import explain_unavailable
from trigraph.benchmarks.measure import measure_device_peak_rates
from trigraph.benchmarks.programs import Program
from trigraph.benchmarks.run import (
    DIRECT,
    DISTURBED,
    DTYPE,
    FAMILIES,
    BenchmarkResult,
    Options,
    find_workloads,
    make_operator_workload,
    make_record,
    measure_workload,
    write_record,
)
from trigraph.benchmarks.workloads import Workload
from trigraph.fortran.threads import MOST, get_num_threads
from trigraph.table import OPERATORS, SYMBOLS


def _parse_sizes(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    sizes = {}
    for value in values:
        name, _, digits = value.partition("=")
        number = int(digits) if digits.isdecimal() and len(digits) < 19 else 0
        if name not in SYMBOLS or number < max(1, SYMBOLS[name].minimum):
            raise click.BadParameter(f"{value!r}; expected SYMBOL=NUMBER with one of {', '.join(SYMBOLS)}")
        sizes[name] = number
    return sizes


def _choose_workloads(
    families: Sequence[str], names: Sequence[str], operators: Sequence[str], sizes: dict[str, int], options: Options
) -> list[Workload | Program]:
    """Return the workloads that fit the options and have a requested contender."""
    if options.device and explain_unavailable("gpu"):
        raise click.UsageError(f"--device: {explain_unavailable('gpu')}")
    if sizes and not operators:
        raise click.UsageError("--sizes requires an --operator; named workloads have fixed sizes")
    if operators and (families or names or options.device):
        raise click.UsageError("--operator excludes --family, --workload and --device")
    of_operators = [make_operator_workload(name, sizes) for name in operators]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for workload in of_operators:  # the system would kill a process that needs more
        needed = workload.count_bytes_moved(workload.choose_run_sizes(options.size), DTYPE)
        if needed > memory:
            raise click.UsageError(
                f"{workload.name}: arrays of these --sizes need {needed:.2g} bytes; the machine has {memory:.2g}"
            )
    workloads = of_operators or find_workloads(families, names, options.device)
    if not (fitting := [w for w in workloads if options.select_contenders(w)]):
        asked = ", ".join((*families, *names, *options.contenders))
        raise click.UsageError(f"nothing to time: no workload fits {asked}")
    return fitting


EVERYTHING = [*find_workloads(), *find_workloads(device=True)]
NAMES = list(dict.fromkeys(workload.name for workload in EVERYTHING))
CONTENDERS = sorted({*DIRECT, *(name for workload in EVERYTHING for name in workload.contenders)})


def _format_three_digits(value: float | None) -> str:
    """Format a number with three digits and without an exponent."""
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _format_caption(result: BenchmarkResult) -> str:
    caption = ", ".join(f"{n} = {v:,}" for n, v in result.sizes.items())
    if result.other_share > DISTURBED:
        caption += f"; other processes used {result.other_share:.0%} of the processors"
    return caption


def _make_contender_table(result: BenchmarkResult, peak_rates: Mapping[str, float]) -> Table:
    """Tabulate time and peak memory of a workload's contenders, and their ratios to the first contender."""
    quick = any(m.median < 1e-3 for m in result.measured.values())
    unit, scale = ("us", 1e6) if quick else ("ms", 1e3)
    least = result.compute_least_seconds(peak_rates)
    numbers = (unit, "quartiles", "time ratio", "MiB", "memory ratio", *["% of bound"] * (least is not None))
    title = f"{result.workload.name}: {result.workload.summary}"
    table = make_empty_table(("contender",), numbers, title, _format_caption(result))
    for name, m in result.measured.items():
        if m.seconds:
            low, mid, high = (_format_three_digits(scale * t) for t in m.quartiles)
            time, memory = map(_format_three_digits, result.compute_ratios_to_first(name))
            share = [] if least is None else [f"{least / m.median:.1%}"]
            table.add_row(name, mid, f"{low} - {high}", time, f"{m.peak_bytes / 2**20:.1f}", memory, *share)
        elif m.status != "unavailable":
            table.add_row(name, m.status, *[""] * (len(numbers) - 1))
    return table


@click.command()
@click.option(
    "--family", multiple=True, type=click.Choice([*FAMILIES, "models"]), help="Time only this family; repeatable."
)
@click.option("--workload", multiple=True, type=click.Choice(NAMES), help="Time only this workload; repeatable.")
@click.option(
    "--operator",
    multiple=True,
    type=click.Choice(list(OPERATORS)),
    help="Time all CPU backends on this operator; repeatable.",
)
@click.option(
    "--sizes",
    multiple=True,
    callback=_parse_sizes,
    metavar="SYMBOL=N",
    help="Sizes for --operator, e.g. num_edges=5000.",
)
@click.option(
    "--size", type=click.Choice(["full", "small"]), default="full", show_default=True, help="small is full / 20."
)
@click.option(
    "--threads",
    type=click.IntRange(1, MOST),
    default=get_num_threads,
    help="Threads of each contender [default: all processors].",
)
@click.option("--repeat", type=click.IntRange(1, 1000), default=9, show_default=True, help="Number of rounds.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Write a JSON record to this directory.")
@click.option("--device", is_flag=True, help="Time the workloads for a CUDA device, and the peers that run on it.")
@click.option(
    "--contender",
    "contenders",
    multiple=True,
    type=click.Choice(CONTENDERS),
    metavar="NAME",
    help="Time only this backend or peer, such as fortran or scipy; repeatable.",
)
def bench(sizes: dict[str, int], out: Path | None, **chosen: Any) -> None:
    """Time the backends of trigraph next to other packages (peers).

    Each contender runs in its own process, all with the same number of threads, in alternating rounds; the table shows
    medians. A peer is timed only if its results agree with trigraph's. Peers that are not installed are skipped and
    listed (pip install 'trigraph[bench]').
    """
    console = make_escaping_console()
    families, names, operators = (chosen.pop(name) for name in ("family", "workload", "operator"))
    options = Options(**chosen)
    workloads = _choose_workloads(families, names, operators, sizes, options)
    with console.status("peak rates", spinner="line") as status:
        peak_rates = measure_device_peak_rates(min(options.repeat, 5)) if options.device else {}
        if peak_rates:
            rates = ", ".join(f"{name} {rate:.3g}" for name, rate in peak_rates.items())
            console.print(f"Measured peak rates in bytes or operations per second: {rates}")
        results: list[BenchmarkResult] = []
        for workload in workloads:
            results.append(measure_workload(workload, options, status.update))
            console.print(_make_contender_table(results[-1], peak_rates))
            if out is not None:  # written after each workload, in case the run is interrupted
                path = write_record(out, make_record(options, peak_rates, results))
    every = [pair for r in results for pair in r.measured.items()]
    for name, note in {name: m.note for name, m in every if m.status != "timed"}.items():
        console.print(f"Not timed: {name} ({note})")
    if out is not None:
        console.print(f"Record: {path}")
