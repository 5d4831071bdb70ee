"""Bugs in how first derivatives are made differentiable."""

from __future__ import annotations

from typing import Any

import torch

from trigraph.verification.field.entry import Entry, numbers

Tensor = torch.Tensor


class _Saved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.twice = 2 * x  # neither input nor output: autograd does not know where it comes from
        return ctx.twice**2  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 4 * ctx.twice * g  # type: ignore[no-any-return]


def saved_intermediate(x: Tensor) -> Tensor:
    """Square of 2 x, whose backward uses what the forward kept."""
    return _Saved.apply(x)  # type: ignore[no-any-return]


def squared(x: Tensor) -> Tensor:
    """Square of 2 x."""
    return 4 * x**2


def length_of_part(x: Tensor) -> Tensor:
    """Energy of the square of a length, by the length."""
    length: Tensor = x[:, :2].norm(dim=-1)
    return (length**2 + x[:, 2].sin()).sum()


def square_of_part(x: Tensor) -> Tensor:
    """Give the same energy without the root."""
    return (x[:, :2].square().sum(-1) + x[:, 2].sin()).sum()


ENTRIES = (
    Entry(
        "kept intermediate",
        "pytorch #58509, #76185",
        "backward uses an intermediate result that forward kept, and second derivatives lack its part",
        saved_intermediate,
        squared,
        lambda: (numbers(3),),
        "differences",
        2,
    ),
    Entry(
        "along an axis",
        "fairchem #1618",
        "energy and forces are right, second derivatives are NaN where a bond lies along an axis",
        length_of_part,
        square_of_part,
        lambda: (torch.tensor([[0.0, 0.0, 1.0], [0.3, 0.2, 0.5]], dtype=torch.float64),),
        "differences",
        2,
    ),
)
