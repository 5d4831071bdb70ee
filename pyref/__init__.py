"""Readable NumPy implementation: one file for each family, with short functions that follow the formulas."""

from importlib import import_module
from typing import Any

import numpy as np

from trigraph.table import DEFINITIONS, OPERATORS, Operator, result_type

# Complex step of `third`: the imaginary part of a number is its direction times 2^-STEP. Products with 2^-STEP are
# exact, its square is far below epsilon, and results times 2^-STEP do not underflow, for directions from
# 2^(LARGEST - RANGE) to 2^LARGEST. Other directions are scaled by a power of 2^RANGE, and results are scaled back.
STEP, LARGEST, RANGE = 100, 8, 80

for _spec in DEFINITIONS:  # import the functions of all orders, and the function ..._kinks if there is one
    _functions = vars(import_module(f"trigraph.pyref.{_spec.family}"))
    globals().update({name: f for name, f in _functions.items() if name.startswith(f"{_spec.name}_")})


def compute_third_derivative(op: Operator, values: Any, wanted: Any) -> Any:
    """Return bwd3, the derivative of bwd and bwd2 along the cotangents ggg_, from the same formulas.

    An analytic f has f(x + i h c) = f(x) + i h f'(x) c + O(h^2), where h^2 is far below the rounding error of f(x), so
    complex numbers serve as dual numbers (Squire & Trapp, SIAM Review 40, 110, 1998). If all terms of f' are zero, the
    result is h^2 times a derivative that is two orders higher. Results are computed in float64 and rounded.
    Components of c of very different magnitude use separate calls, which is exact because f' c is linear in c.
    """
    spec, real = op.definition, dict(values)
    names = (*(f"grad_{a.name}" for a in spec.outputs), *(a.name for a in spec.inputs))
    given = {n: (values[n], real.pop(f"ggg_{n}")) for n in names}
    along = {
        n: np.asarray(np.zeros(x.shape) if c is None else c, np.float64) for n, (x, c) in given.items() if x is not None
    }
    powers = {n: (np.frexp(c)[1] - 1 - LARGEST) // RANGE + 1 for n, c in along.items()}
    results: dict[str, Any] = {}
    with np.errstate(all="ignore"):
        for power in sorted({0, *(int(p) for each in powers.values() for p in np.unique(each))}):
            shift, moved = STEP + RANGE * power, dict(real)
            for n, c in along.items():
                moved[n] = values[n].astype(np.complex128)
                moved[n].imag = np.ldexp(np.where(powers[n] == power, c, 0), -shift)
            for order, prefix in (("bwd", "gg_"), ("bwd2", "")):
                lower = OPERATORS[f"{spec.name}_{order}"]
                fields = {prefix + f.name: f.name for f in lower.fields if prefix + f.name in wanted}
                arguments = {n: moved.get(n) for n in lower.signature_names} | {"wrt": tuple(fields.values())}
                found = globals()[lower.name](**arguments)
                for n, f in fields.items():
                    results[n] = results.get(n, 0) + np.ldexp(getattr(found, f).imag, shift)
        results = {n: total.astype(values[spec.inputs[0].name].dtype) for n, total in results.items()}
    return result_type(op.name)(**{f.name: results.get(f.name) for f in op.fields})


def execute(op: Operator, values: Any, sizes: Any, wanted: Any, out: Any) -> Any:
    """Run a call that has passed the checks. `out` receives copies, because the formulas return new arrays."""
    if op.order == 3:
        result = compute_third_derivative(op, values, wanted)
    else:
        result = globals()[op.name](**values, **({"wrt": wanted} if op.accepts_wrt else {}))
    for name, array in out.items():
        array[...] = result if op.returns_array else getattr(result, name)
    return result
