"""Public functions of all operators, which check their arguments and choose a backend."""

from trigraph.backends.choice import backend_function, unavailable
from trigraph.backends.front_door import FUNCTIONS, LIBRARY_OF, choose_backend, execute, raise_named
from trigraph.table.public import BACKENDS

__all__ = [
    "BACKENDS",
    "FUNCTIONS",
    "LIBRARY_OF",
    "backend_function",
    "choose_backend",
    "execute",
    "raise_named",
    "unavailable",
]
