"""``python -m trigraph.compat SCRIPT [ARGS]`` runs a program for which `pylibcugraphops` is this package's drop-in."""

import os
import runpy
import sys

import click

from trigraph.compat import install


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def main(script: str, args: tuple[str, ...]) -> None:
    """Run SCRIPT with ARGS, unmodified: its imports of pylibcugraphops find trigraph's drop-in."""
    install()
    sys.argv = [script, *args]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(prog_name="python -m trigraph.compat")
