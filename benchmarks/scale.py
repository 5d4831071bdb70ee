"""How a divided graph scales: rows and bytes counted for up to 1024 ranks, a model of the time, two ranks measured.

    python benchmarks/scale.py    # some twenty minutes and 12 GB; writes a record and benchmarks/scaling.md

The counts are those of `trigraph.distributed.traffic`: no rank runs. The model takes the time of an edge from one rank
on this machine, with one thread, and assumes the network. One and two ranks are measured with mpiexec.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

import trigraph
from trigraph import CSC, EdgeGraph, environment
from trigraph.checks import shape_of
from trigraph.distributed import Traffic, owners, partition, traffic
from trigraph.distributed.functions import ENTITIES, entity_of
from trigraph.table import OPERATORS
from trigraph.verification.networks import power_law

HERE = Path(__file__).parent
LATENCY, BANDWIDTH = 2e-6, 10e9  # of the network: seconds for each message, bytes in a second into each rank; assumed
PARTS = tuple(2**k for k in range(1, 11))
FEW = (2, 16, 128, 1024)  # for the largest graphs, where counting takes minutes
REPEAT = 7
LATTICE, CUTOFF = 3.615, 5.4  # of copper, in angstrom: 54 neighbours in the crystal, fewer at the surfaces
SLABS = {"10^3": (8, 4), "10^4": (16, 10), "10^5": (50, 10), "10^6": (158, 10)}  # cells along both sides, and layers
SIZES = {"num_heads": 4, "dim_head": 16, "n_radial": 6, "n_spherical": 7, "n_emb": 64, "n_mid": 8}
ATTENTION, ANGULAR = "attention", "DimeNet++"
FAMILIES = {ATTENTION: "mha_gat_n2n", ANGULAR: "agg_edge_to_edge"}
ATTRIBUTES = {ATTENTION: {"num_heads": 4}, ANGULAR: {}}
OUTPUTS = {ATTENTION: "output_embedding", ANGULAR: "out"}


class Case(NamedTuple):
    """A graph, and where its nodes are; positions and vectors of edges in angstrom, None where there are none."""

    name: str
    graph: CSC | EdgeGraph
    positions: np.ndarray | None = None
    vec: np.ndarray | None = None

    @property
    def edges(self) -> int:
        """Positions or edges."""
        return self.graph.num_positions if isinstance(self.graph, CSC) else self.graph.num_edges


# ---- graphs ----------------------------------------------------------------------------------------------------------


def slab(size: str, operator: str, geometry: bool = False) -> Case:
    """Return a slab of face-centred cubic cells, periodic along two directions, in closed form: 10^6 atoms fit.

    Each direction of a pair of atoms within the cutoff is an edge. The reverse of an edge is one, too, so that the
    neighbours of an atom are its in-edges in the graph for attention.
    """
    side, layers = SLABS[size]
    basis = np.array([[0, 0, 0], [1, 1, 0], [1, 0, 1], [0, 1, 1]])  # in half cells
    steps = np.stack(np.meshgrid(*[np.arange(-3, 4)] * 3, indexing="ij"), -1).reshape(-1, 3)
    reach = 2 * CUTOFF / LATTICE
    steps = steps[(steps.sum(1) % 2 == 0) & (np.linalg.norm(steps, axis=1) < reach) & steps.any(1)]
    grid = np.stack(np.meshgrid(np.arange(side), np.arange(side), np.arange(layers), indexing="ij"), -1)
    sites = (2 * grid.reshape(-1, 1, 3) + basis).reshape(-1, 3).astype(np.int32)  # atom 4 cell + place in the basis
    place = np.zeros(8, np.int32)
    place[basis @ [4, 2, 1]] = np.arange(4)
    ends = np.empty((len(sites), len(steps)), np.int32)
    for at, step in enumerate(steps):
        x, y, z = (sites + step).T
        x, y = x % (2 * side), y % (2 * side)
        cell = ((x // 2) * side + y // 2) * layers + z // 2
        ends[:, at] = np.where((z >= 0) & (z < 2 * layers), 4 * cell + place[x % 2 * 4 + y % 2 * 2 + z % 2], -1)
    there = ends >= 0
    degrees, dst = there.sum(1, dtype=np.int32), ends[there]
    positions = sites * (LATTICE / 2)
    if operator == ATTENTION:
        offsets = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int32)
        return Case(f"slab of {size} atoms", CSC(offsets, dst, len(sites)), positions)
    graph = EdgeGraph(np.repeat(np.arange(len(sites), dtype=np.int32), degrees), dst, len(sites))
    vec = (np.nonzero(there)[1], steps)
    return Case(f"slab of {size} atoms", graph, positions, vec[1][vec[0]] * (LATTICE / 2) if geometry else None)


def network(edges: int) -> Case:
    """Return a graph whose in- and out-degrees fall as rank**-0.6, 20 edges for a node in the mean."""
    return Case(f"power law, 10^{round(math.log10(edges))} edges", power_law(edges // 20, edges))


def owner_of(case: Case, how: str, parts: int) -> np.ndarray:
    """Return the rank of each node."""
    if how == "bisection":
        return owners.bisection(case.positions, parts)
    if how == "METIS":
        return owners.metis(case.graph, parts)
    return owners.blocks(case.graph.num_dst_nodes, parts)  # type: ignore[union-attr]


# ---- counts and model ------------------------------------------------------------------------------------------------


@cache
def arrays_of(operator: str, suffix: str) -> dict[str, tuple[int, int]]:
    """Return by symbol how many arrays of such rows a call is given, and the bytes of a row of all of them, float32."""
    found: dict[str, tuple[int, int]] = {}
    known = {**SIZES, **dict.fromkeys(ENTITIES, 1), "num_nodes": 1, "has_edge_embedding": 0, "concat_heads": 1}
    for argument in OPERATORS[FAMILIES[operator] + suffix].arguments:
        divided = entity_of(argument)
        if divided and argument.name != "edge_embedding":
            number, size = found.get(divided[0], (0, 0))
            found[divided[0]] = number + 1, size + 4 * math.prod(shape_of(argument, known))
    return found


def counted(case: Case, operator: str, how: str, parts: int) -> dict[str, Any]:
    """Return what each phase of a step costs in members, rows, bytes and messages, for all ranks."""
    start = time.process_time()
    owner = owner_of(case, how, parts)
    found: Traffic = traffic(case.graph, owner, parts)
    row = {"graph": case.name, "operator": operator, "owners": how, "parts": parts, "edges": case.edges, "phases": {}}
    shared = "num_src_nodes" if operator == ATTENTION else "num_edges"
    for phase, cost, suffix in (
        ("forward", found.forward, "_fwd"),
        ("backward", found.backward, "_bwd"),
        ("sums", found.sums, "_bwd"),
    ):
        arrays = arrays_of(operator, suffix)
        coming = sum(cost.received[s] * size for s, (_, size) in arrays.items())
        messages = cost.neighbours * sum(n for s, (n, _) in arrays.items() if cost.received[s].any())
        row["phases"][phase] = {  # type: ignore[index]
            "members": cost.members,
            "rows": cost.received[shared],
            "bytes": coming,
            "messages": messages,
        }
    row["seconds_to_count"] = time.process_time() - start
    return row


def modelled(row: dict[str, Any], cost: dict[str, float]) -> dict[str, Any]:
    """Return the row with the model's times and efficiencies, and arrays as their sums, means and maxima.

    The time of a rank is that of its members, messages and bytes, one after the other, and of an exchange between all
    ranks in each of the three phases. A step takes as long as the rank that takes longest.
    """
    parts, phases = row["parts"], row["phases"]
    together = LATENCY * math.log2(parts)
    seconds = {
        name: cost[name] * p["members"] + LATENCY * p["messages"] + p["bytes"] / BANDWIDTH + together
        for name, p in phases.items()
    }
    plain = [cost[f"one process, {name}"] * row["edges"] for name in ("forward", "all")]
    alone = {"forward": plain[0], "step": sum(plain)}
    model = {"forward": float(seconds["forward"].max()), "step": float(sum(seconds.values()).max())}  # type: ignore[union-attr]
    summary = {
        name: {
            "work": float(p["members"].sum() / row["edges"]),
            "balance": float(p["members"].max() / max(p["members"].mean(), 1)),
            "rows_mean": float(p["rows"].mean()),
            "rows_max": int(p["rows"].max()),
            "bytes_mean": float(p["bytes"].mean()),
            "bytes_max": int(p["bytes"].max()),
            "messages_max": int(p["messages"].max()),
        }
        for name, p in phases.items()
    }
    efficiency = {name: alone[name] / (parts * model[name]) for name in model}
    return {**row, "phases": summary, "model_seconds": model, "one_process_seconds": alone, "efficiency": efficiency}


# ---- measurements ----------------------------------------------------------------------------------------------------


def inputs(case: Case, operator: str) -> dict[str, Any]:
    """Return arrays for a step, float32."""
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32)

    if operator == ATTENTION:
        nodes = case.graph.num_src_nodes, case.graph.num_dst_nodes  # type: ignore[union-attr]
        return {
            "src_embedding": draw(nodes[0], 64),
            "dst_embedding": draw(nodes[1], 64),
            "attention_weights": draw(128),
        }
    edges = case.edges
    vec = draw(edges, 3) if case.vec is None else case.vec.astype(np.float32)
    return {"vec": vec, "rbf": draw(edges, 42), "embedding": draw(edges, 64), "weights": draw(106, 8)}


def steps(module: Any, operator: str, values: dict[str, Any], graph: Any) -> dict[str, Callable[[], Any]]:
    """Return the calls of a step: forward, and the backward of everything, of rows, and of parameters."""
    given = {**values, **ATTRIBUTES[operator], "graph": graph}
    forward, backward = (getattr(module, FAMILIES[operator] + s) for s in ("_fwd", "_bwd"))
    found = forward(**given)
    output = found.output_embedding if operator == ATTENTION else found
    given |= {f"grad_{OUTPUTS[operator]}": np.ones_like(output)}
    if operator == ATTENTION:
        given["softmax_scores"] = found.softmax_scores
    fields = OPERATORS[FAMILIES[operator] + "_bwd"].fields
    rows = [f.name for f in fields if entity_of(f) and f.name in values]
    sums = [f.name for f in fields if not entity_of(f)]
    plain = {n: v for n, v in given.items() if n not in ("softmax_scores", f"grad_{OUTPUTS[operator]}")}
    return {
        "forward": lambda: forward(**plain),
        "all": lambda: backward(**given),
        "backward": lambda: backward(**given, wrt=rows),
        "sums": lambda: backward(**given, wrt=sums),
    }


def fastest(
    calls: dict[str, Callable[[], Any]],
    clock: Callable[[], float] = time.process_time,
    wait: Callable[[], object] = lambda: None,
) -> dict[str, float]:
    """Return the least seconds of each call, all called in turn: what else runs on the machine only adds to them."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for at in range(REPEAT + 1):
        for name, call in calls.items():
            wait()
            start = clock()
            call()
            wait()
            if at:  # the first loads what is loaded late
                found[name].append(clock() - start)
    return {name: min(seconds) for name, seconds in found.items()}


def seconds_of_an_edge(case: Case, operator: str) -> dict[str, float]:
    """Return what an edge costs in one thread: the ordinary operators, and one rank, which copies rows beside.

    A rank may compute an edge twice, and then each counts: chunks of an `EdgeGraph` do.
    """
    values = inputs(case, operator)
    plain = fastest(steps(trigraph, operator, values, case.graph))
    divided = fastest(steps(trigraph.distributed, operator, values, partition(case.graph, MPI.COMM_SELF)))
    counts = traffic(case.graph, None, 1)
    members = {"forward": counts.forward, "backward": counts.backward, "sums": counts.sums}
    found = {f"one process, {name}": plain[name] / case.edges for name in ("forward", "all")}
    return found | {name: divided[name] / int(cost.members[0]) for name, cost in members.items()}


def worker(name: str, operator: str) -> None:
    """Be a rank of a measurement: print what a step takes on all ranks, the ordinary operators beside them on one."""
    comm = MPI.COMM_WORLD
    trigraph.set_num_threads(1)
    case, how = MEASURED[name]()
    owner = owner_of(case, how, comm.size)
    start = time.perf_counter()
    part = partition(case.graph, comm, owner)
    values = inputs(case, operator)
    mine = {}
    for argument in OPERATORS[FAMILIES[operator] + "_fwd"].arguments:
        if argument.name in values:
            divided = entity_of(argument)
            mine[argument.name] = part.take(values[argument.name], *divided) if divided else values[argument.name]
    calls = steps(trigraph.distributed, operator, mine, part)
    calls["all"]()
    made = time.perf_counter() - start  # with the layouts, which the first calls make
    found: dict[str, Any] = {"ranks": comm.size, "partition": made, **fastest(calls, time.perf_counter, comm.Barrier)}
    if comm.size == 1:
        plain = fastest(steps(trigraph, operator, values, case.graph), time.perf_counter)
        found["one process"] = {n: plain[n] for n in ("forward", "all")}
    if comm.rank == 0:
        print(json.dumps(found), flush=True)


MEASURED: dict[str, Callable[[], tuple[Case, str]]] = {
    "slab of 10^4 atoms, attention": lambda: (slab("10^4", ATTENTION), "bisection"),
    "slab of 10^5 atoms, attention": lambda: (slab("10^5", ATTENTION), "bisection"),
    "power law, 10^6 edges, attention": lambda: (network(10**6), "blocks"),
    "slab of 10^4 atoms, DimeNet++": lambda: (slab("10^4", ANGULAR, geometry=True), "bisection"),
}


def measured(name: str, costs: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    """Run one and two ranks, and return what they took beside the model."""
    case, how = MEASURED[name]()
    operator = name.split(", ")[-1]
    rows = []
    for ranks in (1, 2):
        command = [str(Path(sys.executable).parent / "mpiexec"), "-n", str(ranks), sys.executable, __file__, "rank"]
        load = os.getloadavg()[0]
        done = subprocess.run([*command, name, operator], capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        row = modelled(counted(case, operator, how, ranks), costs[cost_name(operator, case.name)])
        rows.append({"name": name, "load": load, "measured": found, **row})
    return rows


def cost_name(operator: str, graph: str) -> str:
    """Return which measurement of an edge's cost goes with a graph."""
    return f"{operator}, {'power law' if graph.startswith('power') else 'slab'}"


# ---- the run ---------------------------------------------------------------------------------------------------------


def cases() -> Iterator[tuple[Case, str, str, tuple[int, ...]]]:
    """Yield graph, operator, way to find owners and numbers of parts."""
    for size in SLABS:
        for operator in (ATTENTION, ANGULAR):
            yield slab(size, operator), operator, "bisection", FEW if size == "10^6" else PARTS
    for edges in (10**5, 10**6, 10**7):
        case = network(edges)
        yield case, ATTENTION, "blocks", PARTS if edges < 10**7 else FEW
        if edges < 10**7:
            yield case, ATTENTION, "METIS", PARTS


def main() -> None:
    """Measure what an edge costs, count, run the ranks, and write what was found."""
    trigraph.set_num_threads(1)
    costs = {
        cost_name(ATTENTION, "slab"): seconds_of_an_edge(slab("10^4", ATTENTION), ATTENTION),
        cost_name(ANGULAR, "slab"): seconds_of_an_edge(slab("10^4", ANGULAR, geometry=True), ANGULAR),
        cost_name(ATTENTION, "power law"): seconds_of_an_edge(network(10**6), ATTENTION),
    }
    print(json.dumps(costs), flush=True)
    record: dict[str, Any] = {
        "format": 1,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "environment": environment.collect(),
        "assumed": {"latency_s": LATENCY, "bandwidth_bytes_per_s": BANDWIDTH},
        "seconds_of_an_edge": costs,
        "measured": [row for name in MEASURED for row in measured(name, costs)],
        "counted": [],
    }
    path = HERE / "records" / f"{record['created'][:10]}-epyc-2core-distributed.json"
    for case, operator, how, numbers in cases():
        for parts in numbers:
            row = modelled(counted(case, operator, how, parts), costs[cost_name(operator, case.name)])
            print(case.name, operator, how, parts, f"{row['seconds_to_count']:.1f} s", row["efficiency"], flush=True)
            record["counted"].append(row)
        path.write_text(json.dumps(record, indent=1) + "\n")
        (HERE / "scaling.md").write_text(page(record, path.name))


def page(record: dict[str, Any], name: str) -> str:
    """Return the tables of a record: what an edge costs, ranks measured, ranks counted."""
    latency, bandwidth = LATENCY * 1e6, BANDWIDTH / 1e9
    names = ("one process, forward", "one process, all", "forward", "backward", "sums")
    lines = [
        "# How a divided graph scales",
        "",
        f"Made by `benchmarks/scale.py` from `records/{name}`. Rows, bytes and balance are counted by",
        "`trigraph.distributed.traffic`: no ranks run. Times of more than two ranks are those of a **model**: the",
        "edges that a rank computes, times what an edge takes on one rank (below; one thread, processor time, the",
        f"least of {REPEAT}), plus {latency:.0f} us for each message (an array from a neighbour) and",
        f"{bandwidth:.0f} GB/s into each rank. The two are assumed. Nothing overlaps, and the slowest rank counts.",
        "Efficiency: the time of the ordinary operators in one process over the time of all ranks together. A step is",
        "the forward, the backward of all inputs with rows, and the backward of the parameters, which goes by chunks",
        "of blocks. `work` is what all ranks compute over the edges of the graph.",
        "",
        "| ns for an edge computed | ordinary forward | ordinary backward | one rank: forward | rows' | parameters' |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for case, cost in record["seconds_of_an_edge"].items():
        lines.append(f"| {case} | " + " | ".join(f"{cost[n] * 1e9:.0f}" for n in names) + " |")
    lines += ["", "## One and two ranks on this machine, beside the model", "", *_measured_table(record["measured"])]
    lines += [
        "",
        "One thread for each rank; `load` is that of the machine before the run.",
    ]
    lines += ["", "## Counted, and modelled"]
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in record["counted"]:
        groups.setdefault((row["graph"], row["operator"], row["owners"]), []).append(row)
    for (graph, operator, how), rows in groups.items():
        lines += [
            "",
            f"### {graph}, {operator}, owners by {how} ({rows[0]['edges']:,} edges)",
            "",
            *_counted_table(rows),
        ]
    return "\n".join(lines) + "\n"


def _measured_table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of what ranks took beside the model, in milliseconds."""
    lines = [
        "| case | ranks | forward, ms | model | step, ms | model | speedup of the step | partition, s | load |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    alone: dict[str, float] = {}
    for row in rows:
        found, model = row["measured"], row["model_seconds"]
        if "one process" in found:
            plain, expected = found["one process"], row["one_process_seconds"]
            alone[row["name"]] = plain["forward"] + plain["all"]
            lines.append(
                f"| {row['name']} | no MPI | {plain['forward'] * 1e3:.1f} | {expected['forward'] * 1e3:.1f} | "
                f"{alone[row['name']] * 1e3:.1f} | {expected['step'] * 1e3:.1f} | 1 | | {row['load']:.1f} |"
            )
        step = found["forward"] + found["all"]
        ratio = alone[row["name"]] / step
        lines.append(
            f"| | {found['ranks']} | {found['forward'] * 1e3:.1f} | {model['forward'] * 1e3:.1f} | {step * 1e3:.1f} | "
            f"{model['step'] * 1e3:.1f} | {ratio:.2f} | {found['partition']:.2f} | {row['load']:.1f} |"
        )
    return lines


def _counted_table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the counts and the model of one graph."""
    lines = [
        "| ranks | halo rows forward, mean (max) | backward | parameters | MB a step into a rank, mean (max) | "
        "balance forward, backward | work forward, backward, parameters | model, ms | efficiency forward | step |",
        "|" + " --- |" * 10,
    ]
    for row in rows:
        phases = [row["phases"][n] for n in ("forward", "backward", "sums")]
        halos = " | ".join(f"{p['rows_mean']:.0f} ({p['rows_max']})" for p in phases)
        mean, largest = (sum(p[f"bytes_{n}"] for p in phases) / 1e6 for n in ("mean", "max"))
        balance = ", ".join(f"{p['balance']:.2f}" for p in phases[:2])
        work = ", ".join(f"{p['work']:.2f}" for p in phases)
        lines.append(
            f"| {row['parts']} | {halos} | {mean:.3g} ({largest:.3g}) | {balance} | {work} | "
            f"{row['model_seconds']['step'] * 1e3:.3g} | {row['efficiency']['forward']:.1%} | "
            f"{row['efficiency']['step']:.1%} |"
        )
    return lines


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        worker(*sys.argv[2:])
    else:
        main()
