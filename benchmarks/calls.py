"""The type of what is timed, `Call`, and the check of modules that it needs."""

import importlib.util
from collections.abc import Callable
from typing import Any

Call = Callable[[], dict[str, Any]]
"""A contender ready to run: returns its results by name, ``gno_message_bwd.coords``, each an array or, where its form
has to be changed for the comparison, a function that returns one."""


class Unavailable(RuntimeError):
    """A contender's requirements are not met on this machine."""


def require(*modules: str) -> None:
    """Raise Unavailable unless all modules are installed."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise Unavailable(f"{module} is not installed")
