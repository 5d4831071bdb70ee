"""The tables `trigraph bench` prints."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from slopecheck.console import table_of
from trigraph.backends import BACKENDS
from trigraph.benchmarks.run import DISTURBED, Result


def _digits(value: float | None) -> str:
    """Format with three digits and no exponent."""
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _caption(result: Result) -> str:
    caption = f"{result.dtype}; " + ", ".join(f"{n} = {v:,}" for n, v in result.sizes.items())
    if result.other_share is not None and result.other_share > DISTURBED:
        caption += f"; other processes used {result.other_share:.0%} of the processors"
    return caption


def workload_table(result: Result) -> Table:
    """Tabulate time and peak memory of a workload's contenders, and ratios to the fast backend or the first one."""
    quick = any(m.median < 1e-3 for m in result.measured.values())
    unit, scale = ("us", 1e6) if quick else ("ms", 1e3)
    numbers = (unit, "quartiles", "time ratio", "MiB", "memory ratio")
    title = f"{result.workload.name}: {result.workload.summary}"
    table = table_of(("contender",), numbers, title, _caption(result))
    for name, m in result.measured.items():
        if m.seconds:
            low, mid, high = (_digits(scale * t) for t in m.quartiles)
            time, memory = result.ratios(name)
            memory_columns = (f"{m.peak_bytes / 2**20:.1f}", _digits(memory))
            table.add_row(name, mid, f"{low} - {high}", _digits(time), *memory_columns)
        elif m.status != "unavailable":
            table.add_row(name, m.status, *[""] * (len(numbers) - 1))
    return table


def ceiling_table(results: Sequence[Result], tops: Mapping[str, float]) -> Table:
    """Tabulate the fraction of the machine's peak rates that each backend reaches."""
    words = {"copy": "copy {:.3g} GB/s", "float32": "sgemm {:.3g} Gop/s", "float64": "dgemm {:.3g} Gop/s"}
    measured = ", ".join(words[what].format(rate / 1e9) for what, rate in sorted(tops.items()))
    caption = "Operations as counted by the operator table; bytes of inputs and outputs, without indices."
    numbers = ("Gop/s", "% of gemm", "GB/s", "% of copy")
    table = table_of(("workload", "backend"), numbers, f"Measured peak rates: {measured}", caption)
    for result in results:
        for backend in (n for n in result.measured if n in BACKENDS and result.measured[n].seconds):
            rates = (result.rate(backend), tops[result.dtype]), (result.byte_rate(backend), tops["copy"])
            cells = (cell for rate, top in rates for cell in (f"{rate / 1e9:.3g}", f"{rate / top:.1%}"))
            table.add_row(result.workload.name, backend, *cells)
    return table
