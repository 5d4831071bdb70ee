"""What calls cost each other that take turns in one process: of two libraries that use OpenMP, of one, and with none.

    python benchmarks/alternation.py RECORD.json    # about two minutes

A product of matrices by torch, attention and DimeNet++'s sum by trigraph, each on all threads, are timed alone, one
call after another, and in turn with another call. Beside them stand a second product by torch, and a loop of Python
that does nothing for as long: it uses neither OpenMP nor memory. Each sample is the median of `CALLS` calls, and a
ratio is the median over rounds of the time in turn over the time alone, of the same round. float32.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from statistics import median

import numpy as np
import torch

import trigraph
from trigraph import CSC, EdgeGraph, environment

ROUNDS, CALLS = 41, 15
# Side of the matrices; nodes and edges of attention; edges of DimeNet++'s sum, at 30 for each node; seconds of waiting.
SIZES = {"4 ms": (650, 10_000, 160_000, 12_000, 4e-3), "0.1 ms": (128, 200, 3_000, 250, 1e-4)}
PAIRS = (
    ("product", "attention"),
    ("product", "DimeNet++"),
    ("product", "other product"),
    ("attention", "DimeNet++"),
    ("product", "waiting"),
    ("attention", "waiting"),
)


def product(side: int) -> Callable[[], object]:
    """Return a product of square matrices by torch."""
    a, b, c = torch.randn(side, side), torch.randn(side, side), torch.empty(side, side)
    return lambda: torch.mm(a, b, out=c)


def attention(nodes: int, edges: int, rng: np.random.Generator) -> Callable[[], object]:
    """Return attention on a random graph, 4 heads of 16."""
    graph = CSC.from_coo(*rng.integers(0, nodes, (2, edges)), nodes, nodes)
    x, a = rng.standard_normal((nodes, 64), np.float32), rng.standard_normal(128, np.float32)
    return lambda: trigraph.mha_gat_n2n_fwd(x, x, a, graph, 4)


def dimenet(edges: int, rng: np.random.Generator) -> Callable[[], object]:
    """Return DimeNet++'s sum over triplets, at the sizes of its pretrained models."""
    nodes = edges // 30
    src, dst = np.sort(rng.integers(0, nodes, edges)), rng.integers(0, nodes, edges)
    vec = rng.standard_normal((edges, 3), np.float32)
    graph = EdgeGraph(src, dst, nodes, vec=vec)
    rbf, x, weights = (rng.standard_normal(shape, np.float32) for shape in ((edges, 42), (edges, 64), (106, 8)))
    return lambda: trigraph.agg_edge_to_edge_fwd(vec, rbf, x, weights, graph)


def waiting(seconds: float) -> Callable[[], object]:
    """Return a loop of Python that only looks at the clock."""

    def wait() -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass

    return wait


def seconds(*calls: Callable[[], object]) -> list[float]:
    """Return the median time of each of the calls, made in turn."""
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(CALLS):
        for call, times in zip(calls, found, strict=True):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return [median(times) for times in found]


def main(record: Path) -> None:
    """Measure, print, and write the record."""
    rng = np.random.default_rng(0)
    trigraph.set_num_threads(trigraph.get_num_threads())  # small calls, too
    torch.set_num_threads(trigraph.get_num_threads())
    found: dict = {}
    for size, (side, nodes, edges, dimenet_edges, pause) in SIZES.items():
        calls = {
            "product": product(side),
            "other product": product(side + 16),
            "attention": attention(nodes, edges, rng),
            "DimeNet++": dimenet(dimenet_edges, rng),
            "waiting": waiting(pause),
        }
        alone: dict[str, list[float]] = {name: [] for name in calls}
        turns: dict[tuple[str, str], list[list[float]]] = {pair: [] for pair in PAIRS}
        for _ in range(ROUNDS + 1):  # the first is not counted
            for name, call in calls.items():
                alone[name] += seconds(call)
            for pair, times in turns.items():
                times.append(seconds(*(calls[name] for name in pair)))
        found[size] = {"alone, seconds": {name: median(times[1:]) for name, times in alone.items()}}
        for pair, times in turns.items():
            single = [[alone[name][i] for name in pair] for i in range(ROUNDS + 1)]
            ratios = {
                "whole": median(sum(t) / sum(s) for t, s in zip(times[1:], single[1:], strict=True)),
                **{
                    name: median(t[i] / s[i] for t, s in zip(times[1:], single[1:], strict=True))
                    for i, name in enumerate(pair)
                },
            }
            found[size][" and ".join(pair)] = ratios
            print(f"{size:8s}{' and '.join(pair):28s}", *(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))
    about = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "environment": environment.collect(),
        "threads": trigraph.get_num_threads(),
        "rounds": ROUNDS,
        "calls": CALLS,
    }
    record.write_text(json.dumps(about | {"in turn over alone": found}, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
