"""Former names of public methods and attributes, which stay available with a warning."""

import warnings
from typing import Any, NamedTuple


class FormerName(NamedTuple):
    """Descriptor for the deprecated name `old` of the method or attribute `new`, which it returns with a warning."""

    old: str
    new: str

    def __get__(self, instance: Any, owner: type) -> Any:
        text = f"{owner.__name__}.{self.old} is deprecated; use {owner.__name__}.{self.new}"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return getattr(owner if instance is None else instance, self.new)


def keep_former_names(**new_names: str) -> Any:
    """Return a decorator that adds deprecated names to a class; `new_names` has the new name of each."""

    def add_former_names(cls: type) -> type:
        for former in map(FormerName._make, new_names.items()):
            setattr(cls, former.old, former)
        return cls

    return add_former_names
