"""Read the parameters of every kernel instance from its source; the build writes them to a file.

``python gpu/host/parameters.py parameters.json parameters.d gpu WRITTEN`` writes the types and names of the parameters
by family and instance, and a make rule with the files from which they were read. WRITTEN is the folder of generated
headers. The device launcher checks arguments against this file, because CuPy would pass any value. The script does not
need the CPU library, which a build may omit and a cross build cannot load.
"""

import json
import runpy
import sys
from pathlib import Path


def main() -> None:
    """Write the files named on the command line."""
    target, dependencies, folder, written = map(Path, sys.argv[1:])
    build, instances = runpy.run_path(str(folder / "host" / "build.py")), runpy.run_path(str(folder / "instances.py"))
    table: dict[str, dict[str, tuple[str, str]]] = {}
    files: dict[Path, str] = {}
    for family, names in instances["INSTANCES"].items():
        seen: dict[Path, str] = {}
        build["expand_includes"]((folder / "kernels" / f"{family}.cu").resolve(), folder.resolve(), seen, written)
        text = "\n".join(seen.values())
        parameters = build["kernel_parameters"](text, build["struct_members"](text))
        types = build["kernel_parameter_types"](text, names)
        table[family] = {name: (types[name], ",".join(parameters[name.partition("<")[0]])) for name in names}
        files |= seen
    target.write_text(json.dumps(table, indent=0), encoding="utf-8")
    dependencies.write_text(build["format_make_rule"](target, files), encoding="utf-8")


if __name__ == "__main__":
    main()
