"""The command `trigraph bench`."""

import os
from pathlib import Path
from typing import Any

import click
import numpy as np

from slopecheck.terminal import plain_console
from trigraph.benchmarks.measure import ceilings
from trigraph.benchmarks.programs import Program
from trigraph.benchmarks.record import record, stem, write
from trigraph.benchmarks.run import DIRECT, Options, Result, find, operator_workload, run
from trigraph.benchmarks.tables import ceiling_table, workload_table
from trigraph.benchmarks.workloads import Workload
from trigraph.fortran.threads import MOST, get_num_threads
from trigraph.table import OPERATORS, SYMBOLS

# For the machine's ceilings: bytes to copy, and order of matrices to multiply.
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


def _check_memory(workload: Workload, options: Options) -> None:
    """Raise if the sizes do not fit into memory, before the system kills a process."""
    needed = workload.bytes_moved(workload.at(options.size), np.dtype(options.dtype))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        raise click.UsageError(
            f"{workload.name}: arrays of these --sizes need {needed:.2g} bytes; the machine has {memory:.2g}"
        )


def _chosen(
    families: tuple[str, ...], names: tuple[str, ...], operators: tuple[str, ...], sizes: dict[str, int]
) -> list[Workload | Program]:
    if operators:
        if families or names:
            raise click.UsageError("--operator excludes --family and --workload")
        return [operator_workload(name, sizes) for name in operators]
    if sizes:
        raise click.UsageError("--sizes requires an --operator; named workloads have fixed sizes")
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
    help="Time the workloads of this family only; repeatable.",
)
@click.option(
    "--workload",
    "names",
    multiple=True,
    type=click.Choice(_names("name")),
    help="Time this workload only; repeatable.",
)
@click.option(
    "--operator",
    "operators",
    multiple=True,
    type=click.Choice(list(OPERATORS)),
    help="Time all CPU backends on this operator; repeatable.",
)
@click.option(
    "--sizes", multiple=True, callback=_sizes, metavar="SYMBOL=N", help="Sizes for --operator, e.g. num_edges=5000."
)
@click.option(
    "--size", type=click.Choice(list(CEILING_SIZES)), default="full", show_default=True, help="small is full / 20."
)
@click.option(
    "--threads",
    type=click.IntRange(1, MOST),
    default=get_num_threads,
    help="Threads of each contender [default: all processors].",
)
@click.option("--repeat", type=click.IntRange(1, 1000), default=9, show_default=True, help="Number of rounds.")
@click.option("--dtype", type=click.Choice(["float32", "float64"]), default="float32", show_default=True)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write a JSON record to this directory.",
)
@click.option("--no-peers", "peers", flag_value=False, default=True, help="Time the backends of trigraph only.")
@click.option(
    "--contender",
    "contenders",
    multiple=True,
    type=click.Choice(sorted({*DIRECT, *(name for w in find() for name in w.names)})),
    metavar="NAME",
    help="Time this backend or peer only, such as fortran or scipy; repeatable.",
)
def bench(
    families: tuple[str, ...],
    names: tuple[str, ...],
    operators: tuple[str, ...],
    sizes: dict[str, int],
    out: Path | None,
    **measured: Any,
) -> None:
    """Time the backends of trigraph next to other packages (peers).

    Each contender runs in its own process, all with the same number of threads, in alternating rounds; the table shows
    medians. A peer is timed only if its results agree with trigraph's. Peers that are not installed are skipped and
    listed (pip install 'trigraph[bench]').
    """
    console = plain_console()
    options = Options(**measured)
    workloads = _chosen(families, names, operators, sizes)
    for workload in workloads:
        if operators and isinstance(workload, Workload):
            _check_memory(workload, options)
    workloads = [w for w in workloads if options.wanted(w)]
    if not workloads:
        asked = ", ".join((*families, *names, *options.contenders))
        raise click.UsageError(f"nothing to time: no workload fits {asked}")
    with console.status("peak rates", spinner="line") as status:
        tops = ceilings(options.threads, min(options.repeat, 5), *CEILING_SIZES[options.size])
        results: list[Result] = []
        for workload in workloads:
            results.append(run(workload, options, status.update))
            console.print(workload_table(results[-1]))
    console.print(ceiling_table([r for r in results if isinstance(r.workload, Workload)], tops))
    every = [pair for r in results for pair in r.measured.items()]
    for name, note in {name: m.note for name, m in every if m.status != "timed"}.items():
        console.print(f"Not timed: {name} ({note})")
    if out is not None:
        kept = record(options, tops, results)
        path = out / f"{stem(kept)}.json"
        out.mkdir(parents=True, exist_ok=True)
        write(path, kept)
        console.print(f"Record: {path}")
