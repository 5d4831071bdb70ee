"""The serial Fortran reference, which evaluates the formulas directly; third derivatives come from the judge."""

import importlib
from typing import Any

from trigraph.fortran import judge
from trigraph.fortran.binding import make_backend_functions
from trigraph.table import Operator, result_type

FUNCTIONS = make_backend_functions("reference", lambda: importlib.import_module("trigraph.fortran._reference"))
globals().update(FUNCTIONS)


def execute(op: Operator, values: Any, sizes: Any, wanted: Any, out: Any) -> Any:
    """Execute an operator with checked arguments (see `trigraph.fortran.binding`); bwd3 is computed by the judge."""
    if op.order < 3:
        return FUNCTIONS["execute"](op, values, sizes, wanted, out)
    pairs = {a.name: judge.make_exact_pair(values[a.name]) for a in op.select_present_arguments(values)}
    judged = judge.FUNCTIONS["execute"](op, {**values, **pairs}, sizes, wanted, {})
    dtype = values[op.definition.inputs[0].name].dtype
    results = dict.fromkeys(f.name for f in op.fields)
    for name in wanted:
        rounded = getattr(judged, name)[0].astype(dtype)
        if name in out:
            out[name][...] = rounded
        results[name] = out.get(name, rounded)
    return result_type(op.name)(**results)
