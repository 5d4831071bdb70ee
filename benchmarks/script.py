"""What scripts share: they measure programs of their own as `trigraph bench` measures its own."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trigraph.benchmarks.programs import Program
from trigraph.benchmarks.record import record, write
from trigraph.benchmarks.run import Options, run
from trigraph.benchmarks.tables import workload_table
from trigraph.fortran.threads import get_num_threads
from trigraph.terminal import plain_console


def measure(programs: Iterable[Program], path: Path, rounds: int) -> None:
    """Measure programs in float32 on all threads, print their tables, and write the record."""
    console, options = plain_console(), Options(get_num_threads(), rounds, "float32", "full", peers=True)
    results = []
    for program in programs:
        results.append(run(program, options))
        console.print(workload_table(results[-1], {}))
    write(path, record(options, {}, results, {}))
