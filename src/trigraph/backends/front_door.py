"""The front door: one checked function for each operator of the table.

``trigraph.X(..., backend=None)`` checks its arguments against the table, chooses the backend and calls it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from trigraph.backends import third
from trigraph.backends.choice import backend_function, choose_backend
from trigraph.checks.arrays import Checked, check_call
from trigraph.checks.attributes import bind_arguments
from trigraph.graphs.base import entered
from trigraph.table.grammar import Operator
from trigraph.table.operators import NAMED
from trigraph.table.public import BACKENDS, docstring, public_signature, publish


def raise_named(op: Operator, error: MemoryError) -> NoReturn:
    """Raise an error again, adding the operator's name if the message lacks it."""
    try:
        if type(error).__module__.partition(".")[0] == "cupy" or str(error).startswith(f"{op.name}: "):
            raise error
        raise MemoryError(f"{op.name}: {str(error) or 'out of memory'}") from error
    finally:
        # An error refers to the frames it passed. If this frame also referred to the error, the memory of these frames
        # would be freed only by the next search for reference cycles.
        del error


def front_door(op: Operator) -> Callable[..., Any]:
    """Return the checked public function of an operator."""
    signature = public_signature(op)

    def call(*args: Any, out: Any = None, backend: str | None = None, **kwargs: Any) -> Any:
        try:
            return checked_call(bind_arguments(op, args, kwargs, signature), out, backend)
        except MemoryError as error:
            raise_named(op, error)

    def checked_call(values: dict[str, Any], out: Any, backend: str | None) -> Any:
        wrt = values.pop("wrt", None)
        chosen = choose_backend(op, values, backend)
        if BACKENDS[chosen][1] == "numpy":
            return execute(op, check_call(op, values, wrt, out, "numpy", chosen), chosen)
        with entered(*values.values()):
            return execute(op, check_call(op, values, wrt, out, BACKENDS[chosen][1], chosen), chosen)

    publish(call, "trigraph", op.name, signature, docstring(op))
    return call


def function_of(op: Operator, backend: str) -> Callable[..., Any]:
    """Return the function that runs a checked call of an operator in a backend: ``execute`` of its module."""
    return partial(third.execute, backend=backend) if op.order == 3 else backend_function(backend, "execute")


def execute(op: Operator, checked: Checked, backend: str) -> Any:
    """Run a checked call in a backend, and return the result of the public function."""
    out = {n: a[..., 0] if n in checked.columns else a for n, a in checked.out.items()}
    run = function_of(op, backend)
    return _restore(op, run(op, checked.values, checked.sizes, checked.wanted, out, checked.backend_cache), checked)


def _restore(op: Operator, result: Any, checked: Checked) -> Any:
    """Return the result with the caller's own output arrays, and with the trailing axis of column inputs restored."""
    if op.single:
        return next(iter(checked.out.values()), result)
    if not checked.columns and not checked.out:
        return result
    columns = {n: getattr(result, n)[..., None] for n in checked.columns if getattr(result, n) is not None}
    changed = columns | checked.out
    return result._replace(**changed) if changed else result


FUNCTIONS = {name: front_door(op) for name, op in NAMED.items()}
