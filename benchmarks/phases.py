"""Where the time of the fast path goes, by phase: samples of Linux perf, counted by the procedure they fall into.

    python -m trigraph.benchmarks.phases RECORD.json    # two minutes; needs perf and permission to sample (cpu-clock)

Workloads of `trigraph bench` run for some seconds each in a process of its own, with all threads. What the compiler
puts into its caller counts as the caller. float32.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from trigraph import get_num_threads
from trigraph.benchmarks.record import about, write

SECONDS, RATE = 6, 1000  # of sampling, samples in a second of each thread
WORKLOADS = (
    "dimenet-aggregate",
    "dimenet-aggregate-backward",
    "attention-forward-100k-64",
    "attention-backward-100k-64",
)
PROGRAM = """
import time
from trigraph.benchmarks.run import find
from trigraph.benchmarks.workloads import make_call

(workload,) = find(names=({name!r},))
call = make_call(workload, "fortran", workload.sizes, "float32")
call()
stop = time.perf_counter() + {seconds}
while time.perf_counter() < stop:
    call()
"""
# The first that fits a procedure's name is its phase.
PHASES = {
    "products": r"mult_|gemm_|tile_n|tiles_|put_",
    "features of edges: products of K and rbf, and with x": r"make_features|make_tile|weigh",
    "harmonics, directions and pairs": r"harmonics|legendre|unit_vector|gradient_|hessian|turn|differentiate|"
    r"pairs|leave_out|take_off",
    "rows gathered and added": r"add_heads|add_gathered|dot_heads|dot_gathered|add_and_dot|ask|node_scores",
    "exponential and activation": r"exponential|activate|times_slope|curvature",
    "softmax: sums and peaks": r"peaks|sums_|means_|divide_rows|subtract_rows|gather_differences|multiply|"
    r"add_product|totals",
    "loading and storing": r"load|store|gather|scatter|transpose|copy|clear|by_head|cut_rows",
    "sums over blocks and parts": r"carry|collect|add_partials|add_columns|sum_rows|sum_columns",
    "memory moved, cleared, given": r"mem(move|cpy|set)|clear_page|page_fault",
    "waiting for threads": r"gomp|omp_|do_wait|barrier|futex",
}


def phase_of(symbol: str) -> str:
    """Return the phase of a procedure; the rest of the package and the system are phases of their own."""
    name = symbol.split("_MOD_")[-1]
    for phase, pattern in PHASES.items():
        if re.search(pattern, name):
            return phase
    return "the rest of the package" if "trigraph" in symbol else "Python, NumPy and the system"


def shares(name: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return the share of each phase of a workload, and of the procedures with the largest shares."""
    program = PROGRAM.format(name=name, seconds=SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        data = str(Path(folder) / "perf.data")
        # What is prepared takes some seconds, which are not sampled.
        record = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(RATE), "-D", "3000", "-o", data]
        subprocess.run([*record, sys.executable, "-c", program], check=True, cwd=folder)
        told = subprocess.run(
            ["perf", "script", "-i", data, "-F", "ip,sym"], check=True, capture_output=True, text=True, cwd=folder
        )
    samples = (line.split(maxsplit=1) for line in told.stdout.splitlines())  # address, procedure
    symbols = Counter(sample[-1].strip() for sample in samples if sample)
    total = symbols.total()
    phases: Counter[str] = Counter()
    for symbol, number in symbols.items():
        phases[phase_of(symbol)] += number
    found = {phase: number / total for phase, number in phases.most_common()}
    return found, {symbol: number / total for symbol, number in symbols.most_common(20)}


def main(path: Path) -> None:
    """Measure, print, and write the record."""
    found = {}
    for name in WORKLOADS:
        phases, procedures = shares(name)
        found[name] = {"phases": phases, "procedures": procedures}
        print(name)
        for phase, share in phases.items():
            print(f"  {100 * share:5.1f} %  {phase}")
    write(path, about(threads=get_num_threads()) | {"workloads": found})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
