"""The production backend: CUDA kernels launched through CuPy, or gpu-host on the CPU for NumPy arrays.

Functions have the names and signatures of the operator table and do not check their arguments, since `trigraph.X` does.
A function of the same name in the module of its family launches the kernels of each operator.
"""

import importlib
from typing import Any

from trigraph.checks import make_unchecked_function
from trigraph.gpu.cache import compile as compile
from trigraph.gpu.call import OperatorCall
from trigraph.table import NAMED, Operator


def execute(op: Operator, values: Any, sizes: Any, wanted: Any, out: Any) -> Any:
    """Execute an operator whose arguments have been checked."""
    call = OperatorCall(op, values, sizes, wanted, out)
    if wanted:
        getattr(_FAMILIES[op.family], op.name)(call)
    return call.fields.store_and_return_outputs()


_FAMILIES = {op.family: importlib.import_module(f"trigraph.gpu.{op.family}") for op in NAMED.values()}

# Skip the operators without a function in the module of their family: a bwd3 that is derived from bwd and bwd2.
globals().update(
    {op.name: make_unchecked_function(op, execute) for op in NAMED.values() if hasattr(_FAMILIES[op.family], op.name)}
)
