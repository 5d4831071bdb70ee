"""Functions that call the operators of a backend without checking arguments."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from trigraph.checks.arrays import find_symbol_sizes
from trigraph.table.grammar import Operator


def make_unchecked_function(op: Operator, execute: Callable[..., Any], lead: int = 0) -> Callable[..., Any]:
    """Return a function with the table's signature plus `out`, which calls a backend's `execute`.

    Its array arguments have `lead` more leading axes than in the table.
    """

    def unchecked_function(*args: Any, out: Mapping[str, Any] | None = None, **kwargs: Any) -> Any:
        bound = op.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = bound.arguments
        sizes = find_symbol_sizes(op, values, lead)
        requested = values.pop("wrt", None)
        names = (requested,) if isinstance(requested, str) else requested
        wanted = tuple(f.name for f in op.list_returned_fields(values, sizes) if names is None or f.name in names)
        return execute(op, values, sizes, wanted, out or {})

    unchecked_function.__name__ = unchecked_function.__qualname__ = op.name
    unchecked_function.__doc__ = f"{op.definition.summary} See `trigraph.{op.name}`."
    keyword = inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None)
    unchecked_function.__signature__ = op.signature.replace(  # type: ignore[attr-defined]
        parameters=[*op.signature.parameters.values(), keyword]
    )
    return unchecked_function
