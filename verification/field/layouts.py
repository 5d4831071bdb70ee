"""Bugs that show when arrays lie in memory otherwise than expected."""

from __future__ import annotations

from typing import Any

import torch

from trigraph.verification.field.entry import Entry, numbers

Tensor = torch.Tensor


def _memory(x: Tensor) -> Tensor:
    """Return what a kernel reads that takes a pointer and expects a contiguous array."""
    return torch.as_strided(x, x.shape, torch.empty(x.shape).stride(), x.storage_offset())


class _Pointer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return _memory(x).sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * x.cos()


def by_pointer(x: Tensor) -> Tensor:
    """Sine of what a pointer leads to."""
    return _Pointer.apply(x)  # type: ignore[no-any-return]


class _Cotangent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return _memory(g) * x.cos()


def cotangent_by_pointer(x: Tensor) -> Tensor:
    """Sine, whose gradient expects a contiguous cotangent."""
    return _Cotangent.apply(x)  # type: ignore[no-any-return]


ENTRIES = (
    Entry(
        "strides",
        "nequip 0.19.0",
        "a kernel reads its input by a pointer, whatever its strides are",
        by_pointer,
        torch.sin,
        lambda: (numbers(3, 2),),
        "layout",
    ),
    Entry(
        "strides of the cotangent",
        "flash-attention #355, pytorch #195210",
        "a backward reads its cotangent by a pointer, whatever its strides are",
        cotangent_by_pointer,
        torch.sin,
        lambda: (numbers(3, 2),),
        "layout",
    ),
)
