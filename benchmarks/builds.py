"""Two builds of trigraph side by side, in alternating rounds: what a change of the fast path gained.

    pip install --target before .         # the build of before; the other is the one that runs this
    python -m trigraph.benchmarks.builds RECORD.json before weighted-sum gat

Workloads are those of `trigraph bench`, in float32. A relative error of 0 says that both builds gave the same numbers.
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
from trigraph.benchmarks.workloads import Workload, make_call

ROUNDS = 25


def build(sizes: Mapping[str, int], dtype: str, name: str) -> Call:
    """Return the fast panel on a workload, which each build looks up among its own."""
    (workload,) = find(names=(name,))
    assert isinstance(workload, Workload)
    return make_call(workload, "fortran", sizes, dtype)


def program(workload: Workload, before: Path) -> Program:
    """Return both builds, the later one first."""
    fast = partial(build, name=workload.name)
    contenders = {
        "after": Contender(fast, "the installed build", ()),
        "before": Contender(fast, str(before), (), folder=str(before.resolve())),
    }
    return Program(workload.name, workload.family, workload.summary, contenders, workload.sizes, {})


if __name__ == "__main__":
    record, before, *names = sys.argv[1:]
    chosen = [program(w, Path(before)) for w in find(names=names) if isinstance(w, Workload)]
    measure(chosen, Path(record), ROUNDS)
