"""The readable version in NumPy: one file for each family; each function fits a page and reads like the formula."""

from importlib import import_module
from typing import Any

import numpy as np

from trigraph.table import DEFINITIONS, OPERATORS, Operator, result_type

# The imaginary part of a number is its direction times this step. It is a power of two, so that products with it are
# exact; its square is far below epsilon, and results times it do not underflow.
STEP = 2.0**-100

for _spec in DEFINITIONS:  # the functions of its orders and, named ..._kinks, of its kinks
    _functions = vars(import_module(f"trigraph.pyref.{_spec.family}"))
    globals().update({name: f for name, f in _functions.items() if name.startswith(f"{_spec.name}_")})


def third(op: Operator, values: Any, wanted: Any) -> Any:
    """Return bwd3, the derivative of bwd and bwd2 along the cotangents ggg_, from the same formulas.

    An analytic f has f(x + i h c) = f(x) + i h f'(x) c + O(h^2), and h^2 is far below the rounding of f(x): numbers
    with an imaginary part are dual numbers (Squire & Trapp, SIAM Review 40, 110, 1998). Where all terms of f' are zero,
    h^2 = 2^-200 times a derivative of two orders more remains. Results are rounded from float64.
    """
    spec, moved = op.definition, dict(values)
    for name in (*(f"grad_{a.name}" for a in spec.outputs), *(a.name for a in spec.inputs)):
        along = moved.pop(f"ggg_{name}")
        if values[name] is not None:
            moved[name] = values[name].astype(np.complex128)
            moved[name].imag = 0 if along is None else STEP * along.astype(np.float64)
    results: dict[str, Any] = {}
    with np.errstate(all="ignore"):
        for order, prefix in (("bwd", "gg_"), ("bwd2", "")):
            lower = OPERATORS[f"{spec.name}_{order}"]
            fields = {prefix + f.name: f.name for f in lower.fields if prefix + f.name in wanted}
            given = {n: moved.get(n) for n in lower.names} | {"wrt": tuple(fields.values())}
            found = globals()[lower.name](**given)
            dtype = values[spec.inputs[0].name].dtype
            results |= {n: (getattr(found, f).imag / STEP).astype(dtype) for n, f in fields.items()}
    return result_type(op.name)(**{f.name: results.get(f.name) for f in op.fields})


def execute(op: Operator, values: Any, sizes: Any, wanted: Any, out: Any, backend_cache: Any) -> Any:
    """Run a call that has passed the checks; `out` receives copies, since formulas return new arrays."""
    if op.order == 3:
        result = third(op, values, wanted)
    else:
        result = globals()[op.name](**values, **({"wrt": wanted} if op.selective else {}))
    for name, array in out.items():
        array[...] = result if op.single else getattr(result, name)
    return result
