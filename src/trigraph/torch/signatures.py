"""Helpers for custom autograd functions: cheaper signatures for `apply`, forward mode, and vmap rules."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad


class _SignatureWithoutDefaults(inspect.Signature):
    """Signature for functions without default arguments, which binds any arguments without inspection."""

    class GivenArguments(NamedTuple):
        """The part of `inspect.BoundArguments` that torch uses."""

        args: tuple[Any, ...]
        kwargs: dict[str, Any]

        def apply_defaults(self) -> None:
            """Do nothing."""

    def bind(self, *args: Any, **kwargs: Any) -> Any:
        """Return the arguments as given."""
        return self.GivenArguments(args, kwargs)


def skip_default_argument_search(function: type[torch.autograd.Function]) -> None:
    """Skip the search for default arguments in each `function.apply`; `forward` must not have default arguments."""
    function.forward.__signature__ = _SignatureWithoutDefaults()  # type: ignore[attr-defined]


def allow_nesting(jvp: Callable[..., Any]) -> Any:
    """Return a `jvp` for a custom function that outer torch.func levels can also differentiate in forward mode.

    The given `jvp` receives the saved tensors as its second argument. Torch disables forward mode while a `jvp` runs,
    and so silently loses the tangents of outer levels. The saved tensors still have tangents at the function's level.
    """

    @functools.wraps(jvp)
    def compute_nestable_jvp(ctx: Any, *tangents: Any) -> Any:
        floating = [t is not None and t.is_floating_point() for t in ctx.saved_tensors]
        pairs = zip(ctx.saved_tensors, floating, strict=True)
        # Compiled programs do not update `forward_ad`'s current level, so pass the outermost level, 0.
        saved = [forward_ad.unpack_dual(t, level=0).primal if is_floating else t for t, is_floating in pairs]
        # `inference_mode(False)` is the public way to enable forward mode (it also enables reverse mode).
        recorded = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.set_grad_enabled(recorded):
            return jvp(ctx, saved, *tangents)

    return compute_nestable_jvp


class ElementwiseFunction(torch.autograd.Function):
    """Custom function whose arguments and results all have the same shape, with its own vmap rule; saves its arguments.

    Torch's generated rule cannot be nested: it passes batched tensors to a `jvp`, which `allow_nesting` cannot unpack.
    """

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the arguments for both modes."""
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *tensors: Any) -> Any:
        """Apply the function to tensors with one more dimension."""
        pairs = zip(tensors, in_dims, strict=True)
        moved = [t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0) for t, d in pairs]
        return cls.apply(*moved), 0  # type: ignore[no-untyped-call]


class SequentialVmapFunction(torch.autograd.Function):
    """Custom function that torch.vmap applies to each entry separately, for the reason in `ElementwiseFunction`."""

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        """Apply the function to each entry."""
        return apply_to_batch_entries(cls.apply, info.batch_size, in_dims, args)


def apply_to_batch_entries(
    function: Callable[..., Any], number: int, in_dims: Sequence[int | None], args: Sequence[Any]
) -> tuple[Any, Any]:
    """Apply a function to each entry of a torch.vmap batch; return the stacked results and their batch dimensions.

    For an empty batch, the function is called with zeros.
    """
    pairs = [*zip(args, in_dims, strict=True)]
    if number == 0:
        pairs = [(a if d is None else a.new_zeros(1, *a.movedim(d, 0).shape[1:]), d and 0) for a, d in pairs]
    entries = []
    for i in range(max(number, 1)):
        result = function(*(a if d is None else a.select(d, i) for a, d in pairs))
        entries.append(result if isinstance(result, tuple) else (result,))
    stacked = tuple(torch.stack(column)[:number] for column in zip(*entries, strict=True))
    return (stacked, (0,) * len(stacked)) if len(stacked) > 1 else (stacked[0], 0)
