"""The commands ``trigraph`` and ``python -m trigraph``, which need more than the package itself."""

import sys


def main(name: str = "trigraph") -> None:
    """Run the command line; where a package is missing, say how to get it."""
    try:
        from trigraph.cli import main as command
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich", "slopecheck"):
            raise
        sys.exit(f"{name}: the command line needs {error.name}: pip install 'trigraph[verify]'")
    command(prog_name=name)


if __name__ == "__main__":
    main("python -m trigraph")
