"""Write the constants that Python and the CUDA kernels share: ``make_constants.py OUT``, run by the build.

The constants are those in ``src/trigraph/table/constants.py``, and the operator table's numbers for activations.
"""

import importlib
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Write the header file named on the command line."""
    table = runpy.run_path(str(ROOT / "fortran" / "shims.py"))["load_table"]()
    constants = vars(importlib.import_module("trigraph.table.constants"))
    numbers = {name: value for name, value in constants.items() if name.isupper() and not name.startswith("_")}
    numbers |= {f"activation_{name.lower()}": number for number, name in enumerate(table.ACTIVATIONS)}
    lines = [f"constexpr int {name} = {value};\n" for name, value in numbers.items()]
    head = "// Written by tools/make_constants.py from src/trigraph/table.\n#pragma once\n"
    Path(sys.argv[1]).write_text(head + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
