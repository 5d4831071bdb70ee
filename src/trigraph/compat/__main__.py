"""``python -m trigraph.compat SCRIPT [ARGS]`` runs a program for which `pylibcugraphops` is this package's drop-in."""

import argparse
import os
import runpy
import sys

from trigraph.compat import install


def main() -> None:
    """Run a script with its arguments, unmodified: its imports of pylibcugraphops find trigraph's drop-in."""
    parser = argparse.ArgumentParser("python -m trigraph.compat", description=main.__doc__)
    parser.add_argument("script")
    parser.add_argument("args", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if not os.path.isfile(arguments.script):
        parser.error(f"{arguments.script} is no file")
    install()
    sys.argv = [arguments.script, *arguments.args]
    sys.path[0] = os.path.dirname(os.path.abspath(arguments.script))
    runpy.run_path(arguments.script, run_name="__main__")


if __name__ == "__main__":
    main()
