"""Two builds of trigraph side by side, in alternating rounds: what a change of the fast path gained.

    pip install --target before .         # the build of before; the other is the one that runs this
    python benchmarks/builds.py RECORD.json before weighted-forward-100k-64 attention-forward-100k-64

Workloads are those of `trigraph bench`, in float32. Each build lives in a process of its own; the later one also
times the gather of a workload's rows where there is one. Before a call is timed it is made once, after a pause in which
the threads of the other process stop spinning. Times are medians over rounds. Results are compared bit by bit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from statistics import median

from trigraph import environment, get_num_threads
from trigraph.benchmarks.run import find_workloads

ROUNDS = 25
WORKER = """
import hashlib, sys, time
import numpy as np
import trigraph
from trigraph.benchmarks.run import find_workloads
from trigraph.benchmarks.workloads import gather_call, make_case, panel_call

calls = {}
for line in sys.stdin:
    what, name = line.split()
    if what == "prepare":
        (workload,) = find_workloads((), (name,))
        case = make_case(workload, workload.sizes, np.dtype("float32"))
        calls = {"run": panel_call(workload, "fortran", case)}
        if workload.gathers:
            calls["gather"] = gather_call(workload, case)
        results = calls["run"]()
        found = [np.ascontiguousarray(results[key]).tobytes() for key in sorted(results)]
        print(trigraph.__file__, hashlib.sha256(b"".join(found)).hexdigest(), flush=True)
    else:
        time.sleep(0.01)
        call = calls[what]
        call()
        start = time.perf_counter()
        call()
        print(time.perf_counter() - start, flush=True)
"""


def ask(worker: subprocess.Popen, line: str) -> str:
    """Return what a worker answers."""
    worker.stdin.write(line + "\n")
    worker.stdin.flush()
    return worker.stdout.readline().strip()


def start(folder: Path | None) -> subprocess.Popen:
    """Start a worker with the package of a folder, or with the installed one."""
    env = os.environ | ({"PYTHONPATH": str(folder.resolve())} if folder else {})
    return subprocess.Popen(
        [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    )


def main(record: Path, before: Path, *names: str) -> None:
    """Measure, print, and write the record."""
    workers = {"before": start(before), "after": start(None)}
    found = {}
    for workload in find_workloads((), names):
        name = workload.name
        places, digests = zip(*(ask(worker, f"prepare {name}").split() for worker in workers.values()), strict=True)
        if places[0] == places[1]:
            raise SystemExit(f"both builds are {places[0]}: an editable installation comes before PYTHONPATH")
        times: dict[str, list[float]] = {"before": [], "after": []} | ({"gather": []} if workload.gathers else {})
        for _ in range(ROUNDS):
            for build, worker in workers.items():
                times[build].append(float(ask(worker, f"run {name}")))
            if workload.gathers:
                times["gather"].append(float(ask(workers["after"], f"gather {name}")))
        middle = {what: median(samples) for what, samples in times.items()}
        found[name] = {
            "seconds": middle,
            "after over before": middle["after"] / middle["before"],
            "least after over least before": min(times["after"]) / min(times["before"]),
            "equal bits": digests[0] == digests[1],
        }
        row = "".join(f"{1e3 * t:9.2f} ms" for t in middle.values())
        print(f"{name:40s}{row}{found[name]['after over before']:6.2f}", flush=True)
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    about = {"date": now, "environment": environment.collect(), "threads": get_num_threads(), "rounds": ROUNDS}
    record.write_text(json.dumps(about | {"workloads": found}, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
