"""Other packages' interfaces over trigraph's operators.

`pylibcugraphops` and `cugraph_ops_binding` have the interfaces of NVIDIA's retired packages, which programs import by
those names after :func:`install`. `neuralop` has neuraloperator's sums over neighbours.
"""

import importlib
import sys

__all__ = ["install"]
DROP_INS = ("cugraph_ops_binding", *(f"pylibcugraphops{name}" for name in ("", ".pytorch", ".pytorch.operators")))


def install() -> None:
    """Let ``import pylibcugraphops`` and ``import cugraph_ops_binding`` find the drop-ins of this package.

    They come before packages of these names that are installed. A second call changes nothing.

    Raises
    ------
    RuntimeError
        If such a package has been imported already: its names may be in use.
    """
    drop_ins = {name: importlib.import_module(f"trigraph.compat.{name}") for name in DROP_INS}
    for name, module in drop_ins.items():
        if sys.modules.get(name, module) is not module:
            raise RuntimeError(f"install: another {name} is imported already; expected the call before that import")
    sys.modules.update(drop_ins)
