"""What `CSC.renumbered` gains: graphs whose nodes came in any order, beside the same graphs renumbered.

    python benchmarks/renumbering.py RECORD.json    # about a minute and 3 GB

Rounds alternate between all graphs; a time is the median over rounds. float32, 64 features, or 4 heads of 16.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from statistics import median

import numpy as np
from ase.build import fcc111

import trigraph
from trigraph import CSC, EdgeGraph, environment
from trigraph.verification.networks import power_law

ROUNDS, WIDTH, HEADS = 7, 64, 4
CELLS, CUTOFF = (100, 100, 10), 3.7  # of a copper slab of 100,000 atoms; in angstrom, neighbours of two shells


def slab(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, int]:
    """Return sources and destinations of the edges of a slab whose atoms come in any order, and their number."""
    graph = EdgeGraph.from_ase(fcc111("Cu", CELLS, vacuum=8.0), CUTOFF).graph
    number = rng.permutation(graph.num_nodes)
    return number[graph.src], number[graph.dst], graph.num_nodes


def uniform(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, int]:
    """Return any source and any destination for each edge."""
    return *rng.integers(0, 100_000, (2, 1_600_000)), 100_000


def skewed(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, int]:
    """Return a power law: a few nodes have very many edges."""
    graph = power_law(100_000, 1_600_000)
    return graph.indices, graph.prepare().destinations, graph.num_dst_nodes


def calls(graph: CSC, rng: np.random.Generator) -> dict:
    """Return calls of the operators that are bound by gathering rows."""
    x = rng.standard_normal((graph.num_src_nodes, WIDTH), np.float32)
    edge_weight = rng.standard_normal(graph.num_edges, np.float32)
    a = rng.standard_normal(2 * WIDTH, np.float32)
    return {
        "agg_weighted_n2n_fwd": lambda: trigraph.agg_weighted_n2n_fwd(x, edge_weight, graph),
        "agg_weighted_n2n_bwd": lambda: trigraph.agg_weighted_n2n_bwd(x, x, edge_weight, graph),
        "mha_gat_n2n_fwd": lambda: trigraph.mha_gat_n2n_fwd(x, x, a, graph, HEADS),
        "mha_gat_n2n_bwd": lambda: trigraph.mha_gat_n2n_bwd(x, x, x, a, graph, HEADS),
    }


def seconds(call) -> float:
    """Time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main(record: Path) -> None:
    """Measure, print, and write the record."""
    rng = np.random.default_rng(0)
    found, timed = {}, {}
    for name, make in (("slab", slab), ("uniform", uniform), ("power law", skewed)):
        src, dst, nodes = make(rng)
        given = CSC.from_coo(src, dst, nodes, nodes)
        given.prepare()
        start = time.perf_counter()
        other, _ = given.renumbered()
        found[name] = {"nodes": nodes, "edges": len(src), "renumbering, seconds": time.perf_counter() - start}
        other.prepare()
        timed[name] = {"given": calls(given, rng), "renumbered": calls(other, rng)}
    times: dict = {}
    for _ in range(ROUNDS + 1):  # the first is not counted
        for name, graphs in timed.items():
            for order, some in graphs.items():
                for op, call in some.items():
                    times.setdefault((name, op, order), []).append(seconds(call))
    for name, row in found.items():
        for op in timed[name]["given"]:
            pair = {order: median(times[name, op, order][1:]) for order in ("given", "renumbered")}
            row[op] = {**pair, "gain": pair["given"] / pair["renumbered"]}
            print(f"{name:10s} {op:22s}", *(f"{1e3 * t:8.1f} ms" for t in pair.values()), f"{row[op]['gain']:6.2f}")
        print(f"{name:10s} renumbering {row['renumbering, seconds']:.3f} s")
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    about = {"date": now, "environment": environment.collect()}
    record.write_text(json.dumps(about | {"threads": trigraph.get_num_threads(), "graphs": found}, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
