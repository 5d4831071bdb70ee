"""The tables `trigraph bench` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table

from trigraph.benchmarks.run import DISTURBED, Options, ProgramResult, Result, Scaling, Verdict, panels_timed

__all__ = ["ceiling_table", "scaling_verdict", "sweep_verdict", "workload_table"]

VERDICTS = {True: "[green]met[/]", False: "[red]missed[/]", None: "not measured"}


def _digits(value: float | None) -> str:
    """Three digits, without an exponent."""
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _table(title: str, caption: str, columns: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left")
    for header in columns:
        table.add_column(header, no_wrap=True)
    for header in numbers:
        table.add_column(header, justify="right", no_wrap=True)
    return table


def _target(verdict: Verdict) -> str:
    unit = "x" if verdict.what in ("time", "memory") else ""
    least = f"{verdict.least:,.0f}/s" if verdict.what == "rate" else f"{verdict.least:.3g}{unit}"
    return f"{verdict.what} {least} {VERDICTS[verdict.met]}"


def sweep_verdict(name: str, verdict: Verdict) -> str:
    """Tell whether the cost per edge of a sweep is flat enough."""
    return f"{name}: smallest over largest cost per edge of the sweep {_digits(verdict.reached)}; {_target(verdict)}"


def scaling_verdict(found: Scaling, options: Options) -> str:
    """Tell what more than one thread gains, beside what it gains a copy of memory."""
    own, copy = (_digits(found.gain(contender)) or "not measured" for contender in ("fortran", "copy"))
    targets = "".join(f"; {_target(v)}, reached {_digits(v.reached)}" for v in found.verdicts(options))
    return f"{found.workload.name}: gain from 1 to {found.threads} threads {own}, of a copy {copy}{targets}"


def workload_table(result: Result | ProgramResult, options: Options, tops: Mapping[str, float]) -> Table:
    """Contenders of one workload: time, ratio to the fast panel (or the first contender), peak memory, targets."""
    workload = result.workload
    caption = f"{result.dtype}; " + ", ".join(f"{n} = {v:,}" for n, v in result.sizes.items())
    if result.others is not None and result.others > DISTURBED:
        caption += f"; other processes used {result.others:.0%} of the processors meanwhile"
    for name, m in result.measured.items():
        if m.shares is not None:
            caption += f"; {name} spends {m.shares['operators']:.0%} of the time in trigraph's operators, "
            caption += f"{m.shares['products']:.0%} in torch's matrix products, the rest in torch"
    quick = any(m.median < 1e-3 for m in result.measured.values())
    unit, scale = ("us", 1e6) if quick else ("ms", 1e3)
    numbers = (unit, "quartiles", "x time", "MiB", "x mem.")
    table = _table(f"{workload.name}: {workload.summary}", caption, ("contender",), numbers)
    if any(result.verdicts(name, options, tops) for name in result.measured):
        table.add_column("target")
    for name, m in result.measured.items():
        verdicts = result.verdicts(name, options, tops)
        targets = ("\n".join(_target(v) for v in verdicts),) if verdicts else ()
        if m.seconds:
            low, mid, high = (_digits(scale * t) for t in m.quartiles)
            time, memory = result.ratios(name)
            memory_columns = (f"{m.peak_bytes / 2**20:.1f}", _digits(memory))
            table.add_row(name, mid, f"{low} - {high}", _digits(time), *memory_columns, *targets)
        elif targets or m.status != "unavailable":
            table.add_row(name, m.status, *[""] * (len(numbers) - 1), *targets)
    return table


def ceiling_table(results: list[Result], ceilings: dict[str, dict[str, float]]) -> Table:
    """Tabulate the share of the machine's ceilings that each panel reaches."""
    words = {"copy": "copy {:.3g} GB/s", "float32": "sgemm {:.3g} Gop/s", "float64": "dgemm {:.3g} Gop/s"}
    parts = [
        f"{place}: " + ", ".join(words[what].format(rate / 1e9) for what, rate in sorted(tops.items()))
        for place, tops in ceilings.items()
    ]
    caption = (
        "Operations of the operator table. Bound: rows that cannot but be gathered, timed in the same rounds, and all "
        "other bytes of inputs and outputs at the rate of the copy."
    )
    numbers = ("Gop/s", "of gemm", "bound, ms", "of bound")
    table = _table(f"Measured ceilings: {'; '.join(parts)}", caption, ("workload", "panel"), numbers)
    for result in results:
        for panel in panels_timed(result):
            top: dict[str, Any] = ceilings["gpu" if panel == "gpu" else "host"]
            bound, share = result.bound(ceilings["host"]), result.gather_share(panel, ceilings["host"])
            rate = result.rate(panel)
            table.add_row(
                result.workload.name,
                panel,
                f"{rate / 1e9:.3g}",
                f"{rate / top[result.dtype]:.1%}",
                "" if bound is None or share is None else _digits(1e3 * bound),
                "" if share is None else f"{share:.1%}",
            )
    return table
