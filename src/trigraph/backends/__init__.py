"""The public functions, which check their arguments (the front door), and the backends that compute."""

from trigraph.backends.choice import backend_function, choose_backend, unavailable
from trigraph.backends.front_door import FUNCTIONS, execute, function_of, raise_named
from trigraph.table.public import BACKENDS

__all__ = [
    "BACKENDS",
    "FUNCTIONS",
    "backend_function",
    "choose_backend",
    "execute",
    "function_of",
    "raise_named",
    "unavailable",
]
