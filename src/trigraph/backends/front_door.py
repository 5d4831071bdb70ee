"""Public functions: one for each operator of the table.

``trigraph.X(..., backend=None)`` checks its arguments against the table, chooses a backend and calls it.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from trigraph.arrays import ArrayLibrary, name_library
from trigraph.backends import third
from trigraph.backends.choice import get_backend_function
from trigraph.checks.arrays import CheckedArguments, check_arguments
from trigraph.checks.attributes import bind_arguments, check_and_convert_attributes
from trigraph.graphs.base import enter_device
from trigraph.table.grammar import Operator
from trigraph.table.operators import NAMED
from trigraph.table.public import BACKENDS, docstring, public_signature, set_function_metadata

LIBRARY_BY_BACKEND = {name: ArrayLibrary(kind, name) for name, (_, kind) in BACKENDS.items()}


def choose_backend(op: Operator, values: dict[str, Any], backend: Any) -> str:
    """Return the requested backend, or the default one for the library of the arrays."""
    if backend is None:
        for a in op.arguments:
            if type(values[a.name]) is not np.ndarray and name_library(values[a.name]) == "cupy":
                return "gpu"
        return "fortran"
    if not isinstance(backend, str):
        raise TypeError(f"{op.name}: backend is a {type(backend).__name__}; expected a string")
    if backend not in BACKENDS:
        raise ValueError(f"{op.name}: backend is {backend!r}; expected one of {', '.join(BACKENDS)}")
    return backend


def raise_with_operator_name(op: Operator, error: MemoryError) -> NoReturn:
    """Re-raise an error, with the operator's name added if the message lacks it."""
    try:
        if type(error).__module__.partition(".")[0] == "cupy" or str(error).startswith(f"{op.name}: "):
            raise error
        raise MemoryError(f"{op.name}: {str(error) or 'out of memory'}") from error
    finally:
        # An error refers to the frames that it passed through. If this frame also referred to the error, only the
        # garbage collector would free the memory of these frames.
        del error


def make_public_function(op: Operator) -> Callable[..., Any]:
    """Return the checked public function of an operator."""
    signature = public_signature(op)

    def public_function(*args: Any, out: Any = None, backend: str | None = None, **kwargs: Any) -> Any:
        try:
            values = bind_arguments(op, args, kwargs, signature)
            check_and_convert_attributes(op, values)
            wrt = values.pop("wrt", None)
            library = LIBRARY_BY_BACKEND[choose_backend(op, values, backend)]
            if library.kind == "numpy":
                return execute(op, check_arguments(op, values, wrt, out, library), library.backend)
            with enter_device(*values.values()):
                return execute(op, check_arguments(op, values, wrt, out, library), library.backend)
        except MemoryError as error:
            raise_with_operator_name(op, error)

    set_function_metadata(public_function, "trigraph", op.name, signature, docstring(op))
    return public_function


def execute(op: Operator, checked: CheckedArguments, backend: str) -> Any:
    """Run a checked call on a backend and return the result of the public function."""
    values, sizes, wanted, out, columns = checked
    if columns:
        out = {n: a[..., 0] if n in columns else a for n, a in out.items()}
    if op.order == 3:
        result = third.execute_bwd3(op, values, sizes, wanted, out, backend)
    else:
        result = get_backend_function(backend, "execute")(op, values, sizes, wanted, out)
    return result if not columns and not out else _restore_caller_outputs(op, result, checked)


def _restore_caller_outputs(op: Operator, result: Any, checked: CheckedArguments) -> Any:
    """Return the result with the caller's own output arrays, and with the trailing axis of column inputs restored."""
    if op.returns_array:
        return next(iter(checked.out.values()), result)
    columns = {n: getattr(result, n)[..., None] for n in checked.columns if getattr(result, n) is not None}
    changed = columns | checked.out
    return result._replace(**changed) if changed else result


FUNCTIONS = {name: make_public_function(op) for name, op in NAMED.items()}
