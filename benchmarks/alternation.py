"""What calls cost each other that take turns in one process: of two libraries that use OpenMP, of one, and with none.

    python -m trigraph.benchmarks.alternation RECORD.json    # about two minutes

A product of matrices by torch, attention and DimeNet++'s sum by trigraph are called a number of times one after the
other, and as often in turn. Beside them stand a second product by torch, and a loop of Python that does nothing for as
long: it uses neither OpenMP nor memory.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import trigraph
from trigraph.benchmarks.calls import Call
from trigraph.benchmarks.dimenet import WORKLOADS as DIMENET
from trigraph.benchmarks.gather import WORKLOADS as GATHER
from trigraph.benchmarks.programs import Contender, Program
from trigraph.benchmarks.script import measure
from trigraph.benchmarks.workloads import make_call

ROUNDS, CALLS = 41, 15
# Side of the matrices; nodes and edges of attention; edges of DimeNet++'s sum, at 30 for each node; microseconds.
SIZES = {
    "4 ms": {"side": 650, "nodes": 10_000, "edges": 160_000, "dimenet_edges": 12_000, "waiting": 4_000},
    "0.1 ms": {"side": 128, "nodes": 200, "edges": 3_000, "dimenet_edges": 250, "waiting": 100},
}
PAIRS = (
    ("product", "attention"),
    ("product", "DimeNet++"),
    ("product", "other product"),
    ("attention", "DimeNet++"),
    ("product", "waiting"),
    ("attention", "waiting"),
)


def _product(side: int) -> Callable[[], Any]:
    import torch

    a, b, c = torch.randn(side, side), torch.randn(side, side), torch.empty(side, side)
    return lambda: torch.mm(a, b, out=c)


def _attention(sizes: Mapping[str, int]) -> Call:
    workload = next(w for w in GATHER if w.name == "attention-forward-100k-64")
    nodes = dict.fromkeys(("num_src_nodes", "num_dst_nodes"), sizes["nodes"])
    edges = dict.fromkeys(("num_positions", "num_edges"), sizes["edges"])
    return make_call(workload, "fortran", {**workload.sizes, **nodes, **edges}, "float32")


def _dimenet(edges: int) -> Call:
    workload = next(w for w in DIMENET if w.name == "dimenet-aggregate")
    sizes = {**workload.sizes, "num_edges": edges, "num_nodes": max(2, edges // 30)}
    return make_call(workload, "fortran", sizes, "float32")


def _wait(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def calls(sizes: Mapping[str, int], dtype: str, pair: tuple[str, str], turns: bool) -> Call:
    """Return `CALLS` calls of each of a pair, in turn or one after the other."""
    make: dict[str, Callable[[], Callable[[], Any]]] = {
        "product": lambda: _product(sizes["side"]),
        "other product": lambda: _product(sizes["side"] + 16),
        "attention": lambda: _attention(sizes),
        "DimeNet++": lambda: _dimenet(sizes["dimenet_edges"]),
        "waiting": lambda: partial(_wait, 1e-6 * sizes["waiting"]),
    }
    trigraph.set_num_threads(trigraph.get_num_threads())  # small calls use all of them, too
    first, second = (make[name]() for name in pair)
    order = [first, second] * CALLS if turns else [first] * CALLS + [second] * CALLS

    def run() -> dict[str, Any]:
        for call in order:
            call()
        return {}

    return run


PROGRAMS = tuple(
    Program(
        name=f"{' and '.join(pair)}, {size}",
        family="alternation",
        summary=f"{CALLS} calls of each",
        contenders={
            name: Contender(partial(calls, pair=pair, turns=turns), name)
            for name, turns in (("one after the other", False), ("in turn", True))
        },
        sizes=sizes,
        small=SIZES["0.1 ms"],
    )
    for size, sizes in SIZES.items()
    for pair in PAIRS
)


if __name__ == "__main__":
    measure(PROGRAMS, Path(sys.argv[1]), ROUNDS)
