"""Modules of other people's packages, loaded from a wheel by path, without the packages around them.

A package whose pins forbid an installation beside a current torch can be a peer, or a client, all the same: the modules
wanted are imported with empty packages above them, and with stand-ins for what they import and is not there. All of
these leave ``sys.modules`` again. Nothing of theirs is kept here.
"""

import importlib
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from sysconfig import get_path
from types import ModuleType
from typing import Any

from trigraph.benchmarks.calls import Unavailable


@dataclass(frozen=True)
class Original:
    """A release of a project.

    It is known by the folder of a `package` in it. The environment variable `variable` names the folder of its wheel,
    or the folder in which the wheel has been unpacked.
    """

    project: str
    version: str
    package: str
    variable: str

    def root(self) -> str:
        """Return the folder, or the wheel, in which its packages lie; Unavailable if there is none of the version."""
        folder = os.environ.get(self.variable)
        if folder:
            places = [Path(folder), *Path(folder).glob(f"{self.project.replace('-', '_')}-{self.version}-*.whl")]
            for root in (str(p) for p in places if p.suffix == ".whl" or (p / self.package).is_dir()):
                return root
        try:
            if version(self.project) == self.version:
                return get_path("purelib")
        except PackageNotFoundError:
            pass
        raise Unavailable(
            f"{self.project} {self.version} is not there: pip download {self.project}=={self.version} --no-deps, "
            f"and name the folder of its wheel in {self.variable}"
        )


def stand_in(name: str, **contents: Any) -> ModuleType:
    """Return a module with the contents given, for one that is not there or is not wanted."""
    module = ModuleType(name)
    vars(module).update(contents)
    return module


def load(
    root: str, packages: Iterable[str], modules: Iterable[str], stand_ins: Mapping[str, Mapping[str, Any]] | None = None
) -> list[Any]:
    """Import modules from a folder or a wheel.

    The ``__init__`` of `packages` is left out; each comes after the one around it. `stand_ins` are the contents, by
    name, of modules in place of others.
    """
    loaded = {name: stand_in(name, **contents) for name, contents in (stand_ins or {}).items()}
    for name in packages:
        loaded[name] = stand_in(name, __path__=[os.path.join(root, *name.split("."))])
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
