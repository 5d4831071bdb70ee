"""Attributes that are computed at first access.

This module uses only the standard library, because the build runs it before the package exists.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class lazy(Generic[T]):
    """`functools.cached_property` without the lock that it has before Python 3.12.

    All objects of a class share that lock. A process that is forked while another thread holds the lock would wait
    forever. With `lazy`, two threads may both compute a value, and one of the equal results is kept.

    A value is stored in its object and must depend only on attributes of the object that never change.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        if instance is None:
            return self  # type: ignore[return-value]
        values: dict[str, T] = vars(instance)  # later accesses read this dictionary and bypass __get__
        return values.setdefault(self.function.__name__, self.function(instance))
