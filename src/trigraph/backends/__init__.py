"""Public functions of all operators, which check their arguments and choose a backend."""

from trigraph.backends.choice import explain_unavailable, get_backend_function
from trigraph.backends.front_door import (
    FUNCTIONS,
    LIBRARY_BY_BACKEND,
    choose_backend,
    execute,
    raise_with_operator_name,
)
from trigraph.table.public import BACKENDS

__all__ = [
    "BACKENDS",
    "FUNCTIONS",
    "LIBRARY_BY_BACKEND",
    "choose_backend",
    "execute",
    "explain_unavailable",
    "get_backend_function",
    "raise_with_operator_name",
]
