"""What the page of benchmarks and README show: tables of the newest record of every workload.

A record counts as *memory kept* where glibc was told, by `MALLOC_TRIM_THRESHOLD_`, to keep the memory that a program
frees; see docs/benchmarks.md.
"""

import json
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from trigraph.benchmarks.run import FAMILIES, PROGRAMS

WORKLOADS = {w.name: w for w in (*(w for family in FAMILIES.values() for w in family.WORKLOADS), *PROGRAMS)}
RECORDS = Path(__file__).parents[1] / "benchmarks" / "records"
OURS = ("fortran", "trigraph")
PEERS = {
    "numpy": "NumPy",
    "scipy": "SciPy",
    "torch": "torch",
    "pyg": "PyTorch Geometric",
    "pyg-sparse": "PyTorch Geometric (sparse matrix)",
    "fairchem": "fairchem",
}
# Titles of the groups of workloads, by family.
GROUPS = {
    "models": "Whole models",
    "dimenet": "DimeNet++",
    "gno": "Graph neural operator",
    "gat": "Graph attention",
    "weighted": "Weighted sum",
    "gemnet": "GemNet-OC",
}


@cache
def load_newest_peer_results() -> dict[str, dict[bool, tuple[str, dict[str, Any]]]]:
    """Return for each workload with a peer its newest result, by whether memory was kept, and the record's name.

    Workloads and peers that `trigraph bench` no longer has are left out, because nobody could repeat their measurement.
    """
    results: dict[str, dict[bool, tuple[str, dict[str, Any]]]] = {}
    for path in sorted(RECORDS.glob("*.json")):
        record = json.loads(path.read_text())
        kept = bool(record["environment"].get("variables", {}).get("MALLOC_TRIM_THRESHOLD_"))
        for result in [*record.get("results", ()), *record.get("programs", ())]:
            present = WORKLOADS[result["workload"]].contenders if result["workload"] in WORKLOADS else ()
            timed = {name: c for name, c in result["contenders"].items() if c.get("median_s") and name in present}
            if timed.keys() & {*OURS} and timed.keys() & PEERS.keys():
                results.setdefault(result["workload"], {})[kept] = path.stem, result | {"contenders": timed}
    return results


def describe_shown_records() -> list[tuple[str, str, str, str, str]]:
    """Return for each record that is shown its name, machine, date, commit and workloads."""
    shown: dict[str, list[str]] = {}
    for workload, results in load_newest_peer_results().items():
        for name, _ in results.values():
            shown.setdefault(name, []).append(f"`{workload}`")
    lines = []
    for name, workloads in sorted(shown.items()):
        record = json.loads((RECORDS / f"{name}.json").read_text())
        cpu, source = record["environment"]["cpu"], record["environment"]["trigraph"]
        machine = f"{cpu['model']}, {record['options']['threads']} threads"
        commit = f"{(source['commit'] or 'unknown')[:7]}{', changed since' if source['dirty'] else ''}"
        lines.append((f"`{name}`", machine, record["created"][:10], commit, ", ".join(workloads)))
    return lines


def get_trigraph_measurement(result: dict[str, Any]) -> dict[str, Any]:
    """Return what was measured of trigraph."""
    (measured,) = (result["contenders"][name] for name in OURS if name in result["contenders"])
    return measured


def compute_speed_ratio(result: dict[str, Any], peer: str) -> float:
    """Return the peer's median over ours."""
    return result["contenders"][peer]["median_s"] / get_trigraph_measurement(result)["median_s"]


def _describe_workload(workload: str) -> str:
    """Return the description of a workload; "the same" refers to the workload of which it is a variant."""
    text, original = WORKLOADS[workload].summary, workload.removesuffix("-power-law")
    return text if original == workload else text.replace("the same", _describe_workload(original), 1)


class PeerComparison(NamedTuple):
    """A workload beside a peer: ratios and seconds with memory kept and by default, None where not measured."""

    group: str
    workload: str
    summary: str  # what one run is
    peer: str
    ratios: tuple[float | None, float | None]
    seconds: tuple[float | None, float | None]  # of trigraph


def list_peer_comparisons() -> list[PeerComparison]:
    """Return the lines of the table: by group, workload and peer, each the largest ratio with memory kept first.

    Those without such a ratio come last.
    """
    lines: list[PeerComparison] = []
    for workload, results in load_newest_peer_results().items():
        peers = {name: None for _, result in results.values() for name in result["contenders"] if name in PEERS}
        for peer in peers:
            measured = {kept: r for kept, (_, r) in results.items() if peer in r["contenders"]}
            ratios, seconds = (
                tuple(of(measured[kept]) if kept in measured else None for kept in (True, False))
                for of in (
                    partial(compute_speed_ratio, peer=peer),
                    lambda result: get_trigraph_measurement(result)["median_s"],
                )
            )
            group = GROUPS[next(iter(results.values()))[1]["family"]]
            lines.append(PeerComparison(group, workload, _describe_workload(workload), PEERS[peer], ratios, seconds))

    def compute_largest_ratio_key(kept: Iterable[PeerComparison]) -> tuple[bool, float]:
        of = [row.ratios for row in kept]
        return all(ratios[0] is None for ratios in of), -max(ratios[0] or ratios[1] or 0.0 for ratios in of)

    def compute_sort_key(row: PeerComparison) -> tuple[tuple[bool, float], ...]:
        return (
            compute_largest_ratio_key(r for r in lines if r.group == row.group),
            compute_largest_ratio_key(r for r in lines if r.workload == row.workload),
            compute_largest_ratio_key([row]),
        )

    return sorted(lines, key=compute_sort_key)


# The lines of README's table, each with its workloads.
WORK = {
    "DimeNet++, crystals of 96 and 108 atoms: energy and forces, training step": (
        *("dimenet-energy-forces", "dimenet-energy-forces-training", "dimenet-copper", "dimenet-copper-training"),
    ),
    "DimeNet++, 32 small molecules: energy and forces, training step": (
        *("dimenet-molecules", "dimenet-molecules-training"),
    ),
    "DimeNet++, 200 different batches of 8 molecules: one epoch of training": ("dimenet-batches-training",),
    "DimeNet++, the same crystals: training on Hessian-vector products": (
        "dimenet-slab-curvature-training",
        "dimenet-copper-curvature-training",
    ),
    "DimeNet++, ethanol: the Hessian": ("dimenet-ethanol-hessian",),
    "DimeNet++'s sum over triplets: forward, gradients, training on forces": (
        *("dimenet-aggregate", "dimenet-aggregate-backward", "dimenet-force-training"),
    ),
    "DimeNet++'s radial basis: gradients": ("dimenet-radial",),
    "graph neural operator: gradients, training on forces": ("gno-message", "gno-force-training"),
    "graph neural operator: gradient of the kernel in the coordinates": ("gno-coords-16", "gno-coords-32"),
    "graph attention: gradients": ("gat", "gat-power-law"),
    "two layers of graph attention: training steps on different graphs": (
        *("gat-minibatches-800", "gat-minibatches-8000", "gat-minibatches-100000", "gat-minibatches-600000"),
    ),
    "small graph of 180 edges: weighted sum, gradients, training step of five layers": (
        *("small-sum", "small-sum-training", "small-layers-training"),
    ),
    "weighted sum: forward, gradients": ("weighted-sum", "weighted-sum-power-law", "weighted-sum-backward"),
    "GemNet-OC's spherical basis and bilinear layer: gradients": (
        *("gemnet", "gemnet-quadruplets", "gemnet-power-law"),
    ),
}


def summarise_speeds_by_work() -> list[tuple[str, list[float], list[float], set[str]]]:
    """Return for each line of `WORK` our seconds, the ratios of the fastest peer, and the names of these peers.

    With memory kept, where that was measured.
    """
    best: dict[str, tuple[float, float, str]] = {}
    for row in list_peer_comparisons():
        at = 0 if row.ratios[0] else 1
        new = (row.ratios[at] or 0.0, row.seconds[at] or 0.0, row.peer)
        best[row.workload] = min(best.get(row.workload, new), new)
    lines = []
    for work, workloads in WORK.items():
        ratios, seconds, peers = zip(*(best[name] for name in workloads), strict=True)
        lines.append((work, sorted(seconds), sorted(ratios), set(peers)))
    return lines
