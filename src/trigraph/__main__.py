"""Entry point of the commands ``trigraph`` and ``python -m trigraph``, which need optional packages."""

import sys


def main(name: str = "trigraph") -> None:
    """Run the command line; if a package is missing, say how to install it."""
    try:
        from trigraph.cli import main as command
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich", "slopecheck"):
            raise
        sys.exit(f"{name}: the command line needs {error.name}: pip install 'trigraph[verify]'")
    command(prog_name=name)


if __name__ == "__main__":
    main("python -m trigraph")
