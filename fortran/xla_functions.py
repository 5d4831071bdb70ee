"""Write the functions that ``xla.c`` calls from the operator table: ``xla_functions.py OUT``.

Each function calls a function of the C interface, whose arguments it receives as addresses in the same order.
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # the package cannot be imported during the build
    import shims  # type: ignore[import-not-found]

    shims.load_table()

from trigraph.fortran.calls import EXPORTED, list_kind_pairs, name_c_function
from trigraph.fortran.shims import SHIM_SETS, order_arguments


def main() -> None:
    """Run the command line that meson uses."""
    text, entries = "", []
    for op in EXPORTED.values():
        order = order_arguments(op, SHIM_SETS["fast"])
        kinds = dict.fromkeys(order.numbers, "*(double *)") | dict.fromkeys(
            order.graph + order.inputs + order.outputs, ""
        )
        passed = ", ".join(f"{kinds.get(n, '*(int *)')}p[{k}]" for k, n in enumerate(order.names))
        for instance in list_kind_pairs(op):
            name = name_c_function(op, *instance)
            text += f"static int call_{name}(void **p)\n{{\n    return {name}({passed});\n}}\n\n"
            entries.append((name.removeprefix("trigraph_"), len(order.names)))
    lines = [f'    {{"{name}", call_trigraph_{name}, {number}}},\n' for name, number in sorted(entries)]
    text += f"static const struct function functions[] = {{\n{''.join(lines)}}};\n"
    Path(sys.argv[1]).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
