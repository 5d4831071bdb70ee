"""Cost against size: time and peak memory of every contender of every sweep, in one figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from trigraph.benchmarks.run import Result
from trigraph.benchmarks.workloads import Workload
from trigraph.panels import PANELS

MARKERS = "ovsD^PX<>h*"


def plot_sweeps(sweeps: dict[str, list[Result]], caption: str, path: Path) -> None:
    """Write the figure; one column for each workload."""
    figure = Figure(figsize=(4.2 * len(sweeps), 6.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, len(sweeps), squeeze=False, sharex="col")
    shown = {}
    # One colour and marker for each contender, wherever it appears; trigraph's panels are drawn solid, peers dashed.
    names = list(dict.fromkeys(n for results in sweeps.values() for r in results for n in r.measured))
    styles = {
        name: {
            "color": f"C{k}",
            "marker": MARKERS[k % len(MARKERS)],
            "markersize": 5,
            "linestyle": "-" if name in PANELS else "--",
        }
        for k, name in enumerate(names)
    }
    for column, results in enumerate(sweeps.values()):
        workload = results[0].workload
        assert isinstance(workload, Workload)
        times, memories = axes[0, column], axes[1, column]
        for name in dict.fromkeys(n for r in results for n in r.measured):
            points = [(workload.position(r.sizes), r.measured[name]) for r in results if name in r.measured]
            points = [(x, m) for x, m in points if m.seconds]
            if not points:
                continue
            style: dict[str, Any] = styles[name]
            x = [p[0] for p in points]
            low, mid, high = zip(*(m.quartiles for _, m in points), strict=True)
            (shown[name],) = times.plot(x, [1e3 * t for t in mid], **style)
            times.fill_between(
                x, [1e3 * t for t in low], [1e3 * t for t in high], color=style["color"], alpha=0.2, linewidth=0
            )
            memories.plot(x, [max(m.peak_bytes, 2**12) / 2**20 for _, m in points], **style)
        for axis in (times, memories):
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.grid(which="major", alpha=0.3)
        times.set_title(workload.name, fontsize=10)
        memories.set_xlabel(workload.sweep_symbol)
        if workload.sweep_symbol == "in_degree":  # less than a decade: the points are the ticks
            memories.set_xlabel("mean in-degree")
            memories.set_xticks(workload.sweep, [str(p) for p in workload.sweep])
            memories.set_xticks([], minor=True)
    axes[0, 0].set_ylabel("ms of one run (median, quartiles)")
    axes[1, 0].set_ylabel("peak memory beyond the inputs, MiB")
    columns = min(len(shown), 8)
    lines = list(shown.values())
    figure.legend(lines, list(shown), loc="outside upper center", ncols=columns, frameon=False, fontsize=9)
    figure.supxlabel(caption, fontsize=8, color="#555555")
    figure.savefig(path, dpi=150)
