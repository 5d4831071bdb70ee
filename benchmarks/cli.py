"""The command `trigraph bench`."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import click
import numpy as np

from trigraph.benchmarks.measure import ceilings
from trigraph.benchmarks.programs import Program
from trigraph.benchmarks.record import record, stem, write
from trigraph.benchmarks.run import (
    DIRECT,
    SIZES,
    Options,
    Result,
    find,
    operator_workload,
    run,
    sweep,
)
from trigraph.benchmarks.tables import ceiling_table, workload_table
from trigraph.benchmarks.workloads import Workload, scaled
from trigraph.fortran.threads import MOST, get_num_threads
from trigraph.table import OPERATORS, SYMBOLS
from trigraph.terminal import plain_console

# Bytes copied and order of the matrices multiplied, for the ceilings.
CEILING_SIZES = {"full": (2**29, 3072), "small": (2**26, 1024)}


def _sizes(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    sizes = {}
    for value in values:
        name, _, digits = value.partition("=")
        number = int(digits) if digits.isdecimal() and len(digits) < 19 else 0
        if name not in SYMBOLS or number < max(1, SYMBOLS[name].minimum):
            raise click.BadParameter(f"{value!r}; expected SYMBOL=NUMBER with one of {', '.join(SYMBOLS)}")
        sizes[name] = number
    return sizes


def _contenders() -> list[str]:
    """Return the names of all panels that are timed, peers, and contenders of programs."""
    return sorted({*DIRECT, *(name for w in find() for name in w.names)})


def _check_memory(workload: Workload, options: Options) -> None:
    """Refuse sizes that no process could have: one would take memory until the system ends something."""
    sizes = scaled(workload.sizes, SIZES[options.size])
    needed = workload.bytes_moved(sizes, np.dtype(options.dtype))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        raise click.UsageError(
            f"{workload.name}: arrays of these --sizes need {needed:.2g} bytes; {memory:.2g} are there"
        )


def _chosen(
    families: tuple[str, ...], names: tuple[str, ...], operators: tuple[str, ...], sizes: dict[str, int]
) -> list[Workload | Program]:
    if operators:
        if families or names:
            raise click.UsageError("--operator stands for a workload; leave out --family and --workload")
        return [operator_workload(name, sizes) for name in operators]
    if sizes:
        raise click.UsageError("--sizes belongs to --operator; named workloads have their own")
    return find(families, names)


def _names(of: str) -> list[str]:
    """Return the families, or the names, of all workloads and programs."""
    return list(dict.fromkeys(getattr(w, of) for w in find()))


@click.command()
@click.option(
    "--family",
    "families",
    multiple=True,
    type=click.Choice(_names("family")),
    help="Workloads of this family only; may be repeated.",
)
@click.option(
    "--workload",
    "names",
    multiple=True,
    type=click.Choice(_names("name")),
    help="This workload only; may be repeated.",
)
@click.option(
    "--operator",
    "operators",
    multiple=True,
    type=click.Choice(list(OPERATORS)),
    help="Time the panels on one operator.",
)
@click.option(
    "--sizes", multiple=True, callback=_sizes, metavar="SYMBOL=N", help="Sizes for --operator, e.g. num_edges=5000."
)
@click.option(
    "--size", type=click.Choice(list(SIZES)), default="full", show_default=True, help="Small: a twentieth of it, quick."
)
@click.option(
    "--threads",
    type=click.IntRange(1, MOST),
    default=get_num_threads,
    help="Of every contender [default: all processors].",
)
@click.option("--repeat", type=click.IntRange(1, 1000), default=9, show_default=True, help="Alternating rounds.")
@click.option("--dtype", type=click.Choice(["float32", "float64"]), default="float32", show_default=True)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write a record (JSON) and a plot of cost against size (PNG) here.",
)
@click.option("--no-peers", is_flag=True, help="trigraph's panels only.")
@click.option(
    "--contender",
    "contenders",
    multiple=True,
    type=click.Choice(_contenders()),
    metavar="NAME",
    help="Run this panel or peer only, such as fortran or scipy; may be repeated.",
)
def bench(
    families: tuple[str, ...],
    names: tuple[str, ...],
    operators: tuple[str, ...],
    sizes: dict[str, int],
    size: str,
    threads: int,
    repeat: int,
    dtype: str,
    out: Path | None,
    no_peers: bool,
    contenders: tuple[str, ...],
) -> None:
    """Time the panels side by side with what users would otherwise run.

    Each contender runs in a process of its own, all with the same number of threads, in alternating rounds; medians are
    compared. A peer is timed only if its results agree with trigraph's. Peers that are not installed are left out and
    named (pip install 'trigraph[bench]'). A missed target does not change the exit status.
    """
    console = plain_console()
    options = Options(threads, repeat, dtype, size, not no_peers, contenders)
    workloads = _chosen(families, names, operators, sizes)
    for workload in workloads:
        if operators and isinstance(workload, Workload):
            _check_memory(workload, options)
    workloads = [w for w in workloads if not contenders or {*w.names}.intersection(contenders)]
    if contenders and not workloads:
        raise click.UsageError(f"nothing to time: no workload that was asked for has {', '.join(contenders)}")
    with console.status("ceilings", spinner="line") as status:
        tops = ceilings(threads, min(repeat, 5), *CEILING_SIZES[size])
        results: list[Result] = []
        sweeps: dict[str, list[Result]] = {}

        for workload in workloads:
            results.append(run(workload, options, status.update))
            console.print(workload_table(results[-1], tops))
            if isinstance(workload, Workload) and out is not None and workload.sweep:
                sweeps[workload.name] = sweep(workload, options, status.update)
    console.print(ceiling_table([r for r in results if isinstance(r.workload, Workload)], tops))
    every = [pair for r in itertools.chain(results, *sweeps.values()) for pair in r.measured.items()]
    for name, note in {name: m.note for name, m in every if m.status != "timed"}.items():
        console.print(f"Not timed: {name} ({note})")
    if out is not None:
        path = _write(out, record(options, tops, results, sweeps), sweeps)
        console.print(f"Record: {path}")
        if sweeps:
            console.print(f"Plot: {path.with_suffix('.png')}")


def _write(out: Path, kept: dict[str, Any], sweeps: dict[str, list[Result]]) -> Path:
    """Write the record, and a plot of what was swept; return the path of the former."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{stem(kept)}.json"
    write(path, kept)
    if sweeps:
        from trigraph.benchmarks.plot import plot_sweeps  # matplotlib takes its time to load

        machine, options = kept["environment"], kept["options"]
        where, day = machine["cpu"]["model"], kept["created"][:10]
        caption = f"{options['dtype']}, {options['threads']} threads, {where}, {day}"
        plot_sweeps(sweeps, caption, path.with_suffix(".png"))
    return path
