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
from trigraph.benchmarks.run import find
from trigraph.benchmarks.script import measure
from trigraph.benchmarks.workloads import GATHER, Workload, make_call

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


if __name__ == "__main__":
    record, before, *names = sys.argv[1:]
    chosen = [program(w, Path(before)) for w in find(names=names) if isinstance(w, Workload)]
    measure(chosen, Path(record), ROUNDS)
