"""The readable panel in NumPy: one file for each family; each function fits a page and reads like the formula."""

from typing import Any

from trigraph.pyref.dimenet import *  # noqa: F403
from trigraph.pyref.gat import *  # noqa: F403
from trigraph.pyref.gemnet import *  # noqa: F403
from trigraph.pyref.gno import *  # noqa: F403
from trigraph.pyref.weighted import *  # noqa: F403
from trigraph.table import Operator


def execute(op: Operator, values: Any, sizes: Any, wanted: Any, out: Any, kept: Any) -> Any:
    """Run a call that has passed the checks; `out` receives copies, since formulas return new arrays."""
    result = globals()[op.name](**values, **({"wrt": wanted} if op.selective else {}))
    for name, array in out.items():
        array[...] = result if op.single else getattr(result, name)
    return result
