"""Former names of public methods and attributes, which stay available with a warning."""

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

C = TypeVar("C", bound=type)


class FormerName:
    """Descriptor for the deprecated name `old` of the method or attribute `new`, which it returns with a warning."""

    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = old, new

    def __get__(self, instance: Any, owner: type) -> Any:
        text = f"{owner.__name__}.{self.old} is deprecated; use {owner.__name__}.{self.new}"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return getattr(owner if instance is None else instance, self.new)


def keep_former_names(**new_names: str) -> Callable[[C], C]:
    """Return a decorator that adds deprecated names to a class, which may be a named tuple; `new_names` maps them."""

    def add_former_names(cls: C) -> C:
        for old, new in new_names.items():
            setattr(cls, old, FormerName(old, new))
        return cls

    return add_former_names
