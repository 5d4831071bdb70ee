"""Import functions that a command line names as ``MODULE:FUNCTION``."""

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from slopecheck.outcome import describe_exception


class LoadError(ValueError):
    """The import of a function's module failed; the cause is chained."""


def import_function(name: str, what: str) -> Callable[..., Any]:
    """Import a function named ``"mymodule:function"`` or ``"package.module:Class.method"``.

    The current directory is searched first. Raises ValueError, with a text that begins with `what`, if the name is
    malformed or the function does not exist, and `LoadError` if the import of its module fails.
    """
    module, colon, path = name.partition(":")
    if not (module and colon and path):
        raise ValueError(f"{what} is {name!r}; expected 'module:function'")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    value: Any = None
    try:
        value = importlib.import_module(module)
        for part in path.split("."):
            value = getattr(value, part)
    except BaseException as error:  # importing a user's module may raise any exception, even SystemExit
        absent = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        kind = ValueError if absent or (isinstance(error, AttributeError) and value is not None) else LoadError
        raise kind(f"{what} {name!r} cannot be loaded: {describe_exception(error)}") from error
    if not callable(value):
        raise ValueError(f"{what} {name!r} is a {type(value).__name__}; expected a function")
    return value
