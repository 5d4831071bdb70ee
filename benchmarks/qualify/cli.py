"""The command `trigraph qualify`."""

from __future__ import annotations

from pathlib import Path

import click

from trigraph.benchmarks.qualify.driver import qualify as run_stages
from trigraph.benchmarks.qualify.place import place
from trigraph.benchmarks.qualify.summary import write
from trigraph.panels import unavailable
from trigraph.terminal import Finite, say


@click.command(short_help="Show whether a CUDA device computes right, and how fast.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="For record.json, summary.md, and what each part noted and printed.",
)
@click.option(
    "--deadline",
    type=Finite(10, 86400),
    default=530,
    show_default=True,
    help="Seconds after which everything has ended; what did not fit is told.",
)
@click.option("--rehearse", is_flag=True, hidden=True, help="On the CPU with gpu-host, to try the command itself.")
@click.pass_context
def qualify(ctx: click.Context, out: Path, deadline: float, rehearse: bool) -> None:
    """Show whether the CUDA device computes right with these kernels, and how fast, in ten minutes.

    Stages: environment and ceilings, compilation beside the budgets, `trigraph verify`, checks that need a device,
    compute-sanitizer, times beside cuSPARSE, torch and PyTorch Geometric. Each has processes and a share of the time of
    its own: one that crashes or hangs costs no other its results.

    Exit status: 0 when nothing failed, also where time or a tool was lacking, else 1.
    """
    where = place("gpu-host" if rehearse else "gpu")
    if not rehearse and unavailable("gpu"):
        raise click.ClickException(unavailable("gpu"))
    record = run_stages(where, out, deadline, progress=lambda text: say(text, err=True))
    summary = write(out, record)
    say((out / "summary.md").read_text(encoding="utf-8"))
    ctx.exit(1 if summary["verdict"] == "failed" else 0)
