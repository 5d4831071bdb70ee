"""``python -m trigraph`` is the command line."""

from trigraph.cli import main

if __name__ == "__main__":
    main(prog_name="python -m trigraph")
