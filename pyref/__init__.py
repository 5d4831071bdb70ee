"""The readable version in NumPy: one file for each family; each function fits a page and reads like the formula."""

from importlib import import_module
from typing import Any

from trigraph.table import DEFINITIONS, Operator

for _spec in DEFINITIONS:  # the functions of its orders and, named ..._kinks, of its kinks
    _functions = vars(import_module(f"trigraph.pyref.{_spec.family}"))
    globals().update({name: f for name, f in _functions.items() if name.startswith(f"{_spec.name}_")})


def execute(op: Operator, values: Any, sizes: Any, wanted: Any, out: Any, backend_cache: Any) -> Any:
    """Run a call that has passed the checks; `out` receives copies, since formulas return new arrays."""
    result = globals()[op.name](**values, **({"wrt": wanted} if op.selective else {}))
    for name, array in out.items():
        array[...] = result if op.single else getattr(result, name)
    return result
