"""Two builds of trigraph side by side, in alternating rounds: what a change of the fast path gained.

    pip install --target before .         # the build of before; the other is the one that runs this
    python -m trigraph.benchmarks.builds RECORD.json before weighted-forward-100k-64 attention-forward-100k-64

Workloads are those of `trigraph bench`, in float32; the gather of a workload's rows is timed with them where there is
one. A relative error of 0 says that both builds gave the same numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from trigraph.benchmarks.calls import Call
from trigraph.benchmarks.programs import Contender, Program
from trigraph.benchmarks.record import record, write
from trigraph.benchmarks.run import Options, find, run
from trigraph.benchmarks.tables import workload_table
from trigraph.benchmarks.workloads import GATHER, Workload, make_call
from trigraph.fortran.threads import get_num_threads
from trigraph.terminal import plain_console

ROUNDS = 25


def build(sizes: Mapping[str, int], dtype: str, name: str, contender: str) -> Call:
    """Return a contender of a workload, which each build looks up among its own."""
    (workload,) = find(names=(name,))
    assert isinstance(workload, Workload)
    return make_call(workload, contender, sizes, dtype)


def program(workload: Workload, before: Path) -> Program:
    """Return both builds, the later one first."""
    fast = partial(build, name=workload.name, contender="fortran")
    contenders = {
        "after": Contender(fast, "the installed build", ()),
        "before": Contender(fast, str(before), (), folder=str(before.resolve())),
    }
    if workload.gathers:
        gather = partial(build, name=workload.name, contender=GATHER)
        contenders[GATHER] = Contender(gather, "the gather of its rows", (), compared=False)
    return Program(workload.name, workload.family, workload.summary, contenders, workload.sizes, {})


def main(path: Path, before: Path, names: list[str]) -> None:
    """Measure in float32 on all threads, print the tables, and write the record."""
    console, options = plain_console(), Options(get_num_threads(), ROUNDS, "float32", "full", peers=True)
    results = []
    for workload in find(names=names):
        assert isinstance(workload, Workload)
        results.append(run(program(workload, before), options))
        console.print(workload_table(results[-1], {}))
    write(path, record(options, {"host": {}}, results, {}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
