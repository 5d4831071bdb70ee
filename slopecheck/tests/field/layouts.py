"""Bugs that show when arrays lie in memory otherwise than expected."""

import torch

from field.entry import mistake, numbers, with_gradient

Tensor = torch.Tensor


def _memory(x: Tensor) -> Tensor:
    """Return what a kernel reads that takes a pointer and expects a contiguous array."""
    return torch.as_strided(x, x.shape, torch.empty(x.shape).stride(), x.storage_offset())


@mistake("strides", "nequip 0.19.0", torch.sin, lambda: (numbers(3, 2),), "layout")
@with_gradient(lambda g, x: g * x.cos())
def by_pointer(x: Tensor) -> Tensor:
    """A kernel reads its input by a pointer, whatever its strides are."""
    return _memory(x).sin()


@mistake(
    "strides of the cotangent",
    "flash-attention #355, pytorch #195210",
    torch.sin,
    lambda: (numbers(3, 2),),
    "layout",
)
@with_gradient(lambda g, x: _memory(g) * x.cos())
def cotangent_by_pointer(x: Tensor) -> Tensor:
    """A backward reads its cotangent by a pointer, whatever its strides are."""
    return x.sin()
