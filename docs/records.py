"""What the page of benchmarks shows: a table and a picture of the newest record of every workload.

A record counts as *memory kept* where glibc was told, by `MALLOC_TRIM_THRESHOLD_`, to keep the memory that a program
frees; see docs/benchmarks.md.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).parents[1] / "benchmarks" / "records"
OURS = ("fortran", "trigraph")
PEERS = {
    "numpy": "NumPy",
    "scipy": "SciPy",
    "torch": "torch",
    "torch-sparse": "torch.sparse",
    "pyg": "PyTorch Geometric",
}
PEERS |= {"fairchem": "fairchem"}


@cache
def newest() -> dict[str, dict[bool, tuple[str, dict[str, Any]]]]:
    """Return for each workload with a peer its newest result, by whether memory was kept, and the record's name."""
    results: dict[str, dict[bool, tuple[str, dict[str, Any]]]] = {}
    for path in sorted(RECORDS.glob("*.json")):
        record = json.loads(path.read_text())
        kept = bool(record["environment"].get("variables", {}).get("MALLOC_TRIM_THRESHOLD_"))
        for result in [*record.get("results", ()), *record.get("programs", ())]:
            timed = {name: c for name, c in result["contenders"].items() if c.get("median_s")}
            if timed.keys() & {*OURS} and timed.keys() & PEERS.keys():
                results.setdefault(result["workload"], {})[kept] = path.stem, result | {"contenders": timed}
    return results


def origins() -> list[tuple[str, str, str, str, str]]:
    """Return for each record that is shown its name, machine, date, commit and workloads."""
    shown: dict[str, list[str]] = {}
    for workload, results in newest().items():
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


def ratio(result: dict[str, Any], peer: str) -> float:
    """Return the peer's median over ours."""
    timed = result["contenders"]
    (ours,) = (timed[name] for name in OURS if name in timed)
    return timed[peer]["median_s"] / ours["median_s"]


def rows() -> list[tuple[str, str, str, float | None, float | None]]:
    """Return for each workload and peer: its name, what one run is, the peer, and both ratios (kept, default)."""
    lines = []
    for workload, results in newest().items():
        peers = {name: None for _, result in results.values() for name in result["contenders"] if name in PEERS}
        for peer in peers:
            ratios = {k: ratio(r, peer) for k, (_, r) in results.items() if peer in r["contenders"]}
            summary = next(iter(results.values()))[1]["summary"]
            lines.append((workload, summary, PEERS[peer], ratios.get(True), ratios.get(False)))
    return lines


def picture(path: Path) -> None:
    """Draw all ratios, one line for each workload and peer."""
    from matplotlib.figure import Figure

    lines = rows()[::-1]
    figure = Figure(figsize=(8, 0.5 + 0.28 * len(lines)), layout="constrained")
    ax = figure.subplots()
    for i, (*_, kept, default) in enumerate(lines):
        if kept and default:
            ax.plot([kept, default], [i, i], color="0.7", linewidth=1)
        for value, marker, color in ((kept, "o", "#006BA4"), (default, "|", "black")):
            if value:
                ax.plot(value, i, marker, color=color, markersize=8)
    ax.plot([], [], "o", color="#006BA4", label="memory kept")
    ax.plot([], [], "|", color="black", label="glibc's default")
    ax.axvline(1, color="0.5", linestyle=":")
    ax.set_yticks(range(len(lines)), [f"{workload}, {peer}" for workload, _, peer, *_ in lines], fontsize=8)
    ax.set(xscale="log", xlabel="time of the peer over time of trigraph", ylim=(-1, len(lines)))
    ax.grid(axis="x", alpha=0.4)
    ax.legend(loc="lower right")
    figure.savefig(path, dpi=130)
