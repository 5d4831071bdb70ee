"""Where the time of the fast path goes, by phase: samples of Linux perf, counted by the procedure they fall into.

    python benchmarks/phases.py RECORD.json    # about two minutes; needs perf and permission to sample (cpu-clock)

Each operator runs for some seconds in a process of its own, with all threads. What the compiler puts into its caller
counts as the caller. float32.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path

from trigraph import environment, get_num_threads

SECONDS, RATE = 6, 1000  # of sampling, samples in a second of each thread
PREPARE = {
    "agg_edge_to_edge": """
vec, nodes = rng.standard_normal((30_000, 3)).astype("f4"), 600
src, dst = np.sort(rng.integers(0, nodes, 30_000)), rng.integers(0, nodes, 30_000)
graph = trigraph.EdgeGraph(src, dst, nodes, vec=vec)
count = graph.num_edges
rbf, x, weights = (rng.standard_normal(s).astype("f4") for s in ((count, 42), (count, 64), (42 + 64, 8)))
g = rng.standard_normal((count, 64)).astype("f4")
""",
    "mha_gat_n2n": """
n = 100_000
graph = trigraph.CSC.from_coo(*rng.integers(0, n, (2, 1_600_000)), n, n)
x, a = rng.standard_normal((n, 64)).astype("f4"), rng.standard_normal(128).astype("f4")
""",
}
CALLS = {
    "agg_edge_to_edge_fwd": "trigraph.agg_edge_to_edge_fwd(vec, rbf, x, weights, graph)",
    "agg_edge_to_edge_bwd": "trigraph.agg_edge_to_edge_bwd(g, vec, rbf, x, weights, graph)",
    "mha_gat_n2n_fwd": "trigraph.mha_gat_n2n_fwd(x, x, a, graph, 4)",
    "mha_gat_n2n_bwd": "trigraph.mha_gat_n2n_bwd(x, x, x, a, graph, 4)",
}
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
    """Return the share of each phase of an operator, and of the procedures with the largest shares."""
    family = name.rsplit("_", 1)[0]
    program = (
        "import time, numpy as np, trigraph\nrng = np.random.default_rng(0)\n"
        f"{PREPARE[family]}\ngraph.prepare() if hasattr(graph, 'prepare') else None\n{CALLS[name]}\n"
        f"stop = time.perf_counter() + {SECONDS}\n"
        f"while time.perf_counter() < stop: {CALLS[name]}\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        data = str(Path(folder) / "perf.data")
        # What is prepared takes about a second, which is not sampled.
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


def main(record: Path) -> None:
    """Measure, print, and write the record."""
    found = {}
    for name in CALLS:
        phases, procedures = shares(name)
        found[name] = {"phases": phases, "procedures": procedures}
        print(name)
        for phase, share in phases.items():
            print(f"  {100 * share:5.1f} %  {phase}")
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    about = {"date": now, "environment": environment.collect(), "threads": get_num_threads()}
    record.write_text(json.dumps(about | {"operators": found}, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
