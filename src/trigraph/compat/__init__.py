"""Interfaces of other packages, implemented with trigraph's operators.

`pylibcugraphops` and `cugraph_ops_binding` have the interfaces of two retired packages of NVIDIA. After
:func:`install`, programs can import both by these names. `neuralop` has neuraloperator's sums over neighbours.
"""

import importlib
import sys

__all__ = ["install"]
DROP_INS = ("cugraph_ops_binding", *(f"pylibcugraphops{name}" for name in ("", ".pytorch", ".pytorch.operators")))


def install() -> None:
    """Make ``import pylibcugraphops`` and ``import cugraph_ops_binding`` find the replacements in this package.

    The replacements take precedence over installed packages of these names. A second call has no effect.

    Raises
    ------
    RuntimeError
        If one of the replaced packages has already been imported, because other code may use it.
    """
    drop_ins = {name: importlib.import_module(f"trigraph.compat.{name}") for name in DROP_INS}
    for name, module in drop_ins.items():
        if sys.modules.get(name, module) is not module:
            raise RuntimeError(f"install: another {name} is imported already; expected the call before that import")
    sys.modules.update(drop_ins)
