"""Modules of other packages, loaded by path from a wheel, without the packages that contain the modules.

A package whose pinned requirements exclude a current torch can still be a peer or client: its modules are imported into
empty packages, with substitutes for missing imports, and then removed from ``sys.modules``. This repository contains no
copy of the modules.
"""

import importlib
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

VARIABLE = "TRIGRAPH_CLIENTS"


@dataclass(frozen=True)
class WheelRelease:
    """Release of a project, as a wheel.

    The environment variable TRIGRAPH_CLIENTS names the folder with the wheel, or with the unpacked wheel, which
    contains the folder `package`.
    """

    project: str
    version: str
    package: str

    def find_root(self) -> str:
        """Return the folder or wheel of the release; raise ModuleNotFoundError if the version is not found."""
        folder = os.environ.get(VARIABLE)
        if folder:
            places = [Path(folder), *Path(folder).glob(f"{self.project.replace('-', '_')}-{self.version}-*.whl")]
            for root in (str(p) for p in places if p.suffix == ".whl" or (p / self.package).is_dir()):
                return root
        raise ModuleNotFoundError(
            f"{self.project} {self.version} was not found: pip download {self.project}=={self.version} --no-deps, "
            f"and set {VARIABLE} to the folder of the wheel"
        )


def load_modules(
    root: str, packages: Iterable[str], modules: Iterable[str], stand_ins: Mapping[str, Mapping[str, Any]] | None = None
) -> list[Any]:
    """Import modules from a folder or a wheel.

    The ``__init__`` of `packages` (outer packages first) is not run. `stand_ins` contains substitutes for modules.
    """
    contents = {
        **(stand_ins or {}),
        **{name: {"__path__": [os.path.join(root, *name.split("."))]} for name in packages},
    }
    loaded = {name: ModuleType(name) for name in contents}
    for name, module in loaded.items():
        vars(module).update(contents[name])
    tops = {name.partition(".")[0] for name in loaded}
    before = {n: m for n, m in sys.modules.items() if n.partition(".")[0] in tops}
    for name in before:
        del sys.modules[name]
    try:
        sys.modules.update(loaded)
        return [importlib.import_module(name) for name in modules]
    finally:
        for name in [n for n in sys.modules if n.partition(".")[0] in tops]:
            del sys.modules[name]
        sys.modules.update(before)
