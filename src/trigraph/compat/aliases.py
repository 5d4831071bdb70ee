"""The names under which programs import NVIDIA's retired packages."""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from types import ModuleType

RETIRED = ("pylibcugraphops", "cugraph_ops_binding")


class _Aliases(MetaPathFinder, Loader):
    """Finds `pylibcugraphops` and its submodules in this package, as modules that hold the same objects."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in RETIRED:
            return None
        aliased = find_spec(f"trigraph.compat.{fullname}")
        if aliased is None:
            return None
        package = aliased.submodule_search_locations is not None
        return spec_from_loader(fullname, self, origin=aliased.origin, is_package=package)

    def exec_module(self, module: ModuleType) -> None:
        source = importlib.import_module(f"trigraph.compat.{module.__name__}")
        own = {"__name__", "__spec__", "__loader__", "__package__", "__path__", "__file__", "__cached__"}
        vars(module).update({name: value for name, value in vars(source).items() if name not in own})


_FINDER = _Aliases()


def install() -> None:
    """Let ``import pylibcugraphops`` and ``import cugraph_ops_binding`` find the drop-ins of this package.

    They come before packages of these names that are installed. A second call changes nothing.

    Raises
    ------
    RuntimeError
        If such a package has been imported already: its names may be in use.
    """
    for name in RETIRED:
        module = sys.modules.get(name)
        if module is not None and getattr(module.__spec__, "loader", None) is not _FINDER:
            raise RuntimeError(f"install: another {name} is imported already; expected the call before that import")
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
