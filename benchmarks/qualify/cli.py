"""The command `trigraph qualify`."""

from pathlib import Path

import click

from slopecheck.terminal import FiniteFloatRange, print_escaped
from trigraph.backends import explain_unavailable
from trigraph.benchmarks.qualify.driver import STAGES, run_stages
from trigraph.benchmarks.qualify.place import make_device
from trigraph.benchmarks.qualify.summary import VERDICTS, write_summary


@click.command
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="Write record.json, summary.md, and the notes and output of each stage to this directory.",
)
@click.option(
    "--deadline",
    type=FiniteFloatRange(10, 86400),
    default=530,
    show_default=True,
    help="Time limit in seconds; the summary lists the checks that did not fit.",
)
@click.option(
    "--stage",
    "stages",
    multiple=True,
    type=click.Choice([stage.name for stage in STAGES]),
    help="Run this stage alone; may be repeated (default: all).",
)
@click.option(
    "--part", "chosen_parts", multiple=True, metavar="NAME", help="Run this part of the stages alone; may be repeated."
)
@click.option("--rehearse", is_flag=True, hidden=True, help="Run on the CPU with gpu-host, to test this command.")
@click.pass_context
def qualify(
    ctx: click.Context,
    out: Path,
    deadline: float,
    stages: tuple[str, ...],
    chosen_parts: tuple[str, ...],
    rehearse: bool,
) -> None:
    """Verify the kernels on the CUDA device and measure their speed, in ten minutes.

    Stages: environment and peak rates, compilation and spills, `trigraph verify`, checks that need a device,
    compute-sanitizer, and times next to cuSPARSE, torch and PyTorch Geometric, of operators and of potentials. Each
    stage has its own processes and share of the time, so that one that crashes or hangs does not affect the others.

    Exit status: 0 if all checks ran and passed; 1 if one failed; 2 without a device; 3 if none failed and `trigraph
    verify` ran whole, but something else did not, because time or a tool was missing; 4 if that did not run whole.
    """
    where = make_device("gpu-host" if rehearse else "gpu")
    if not rehearse and explain_unavailable("gpu"):
        print_escaped(f"Error: {explain_unavailable('gpu')}", err=True)
        ctx.exit(2)
    chosen = [stage for stage in STAGES if stage.name in stages or not stages]
    record = run_stages(where, out, deadline, chosen, chosen_parts, progress=lambda text: print_escaped(text, err=True))
    summary = write_summary(out, record)
    print_escaped((out / "summary.md").read_text(encoding="utf-8"))
    ctx.exit(VERDICTS[summary["verdict"]])
