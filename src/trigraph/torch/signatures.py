"""Signatures of torch's custom functions, which torch reads in each call of `apply`."""

import inspect
from typing import Any, NamedTuple

import torch


class _WithoutDefaults(inspect.Signature):
    """Signature of a function without default arguments, to which a call binds arguments as they are given."""

    class Bound(NamedTuple):
        """The part of `inspect.BoundArguments` that torch uses."""

        args: tuple[Any, ...]
        kwargs: dict[str, Any]

        def apply_defaults(self) -> None:
            """Do nothing."""

    def bind(self, *args: Any, **kwargs: Any) -> Any:
        """Return the arguments."""
        return self.Bound(args, kwargs)


def without_defaults(function: type[torch.autograd.Function]) -> None:
    """Spare each call of `function.apply` the search for default arguments, of which `forward` has none."""
    function.forward.__signature__ = _WithoutDefaults()  # type: ignore[attr-defined]
