"""Bugs in how first derivatives are made differentiable."""

from typing import Any

import torch

from field.entry import mistake, numbers, with_gradient

Tensor = torch.Tensor


class _Saved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.twice = 2 * x  # neither input nor output: autograd does not know where it comes from
        return ctx.twice**2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 4 * ctx.twice * g


@mistake("kept intermediate", "pytorch #58509, #76185", lambda x: 4 * x**2, lambda: (numbers(3),), order=2)
def saved_intermediate(x: Tensor) -> Tensor:
    """Backward uses an intermediate result that forward kept, and second derivatives lack its part."""
    return _Saved.apply(x)


def normalised(x: Tensor) -> Tensor:
    """Divide rows by the root of their mean square."""
    return x * _scale(x)


def _scale(x: Tensor) -> Tensor:
    return x.square().mean(-1, keepdim=True).rsqrt()


def _bend(gg: Tensor, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    scale = _scale(x).detach()  # saved by the forward
    a, b, ab = ((product).mean(-1, keepdim=True) for product in (gg * x, g * x, gg * g))
    of_x = 3 * a * b * x * scale**5 - (ab * x + a * g + b * gg) * scale**3
    return gg * scale - a * x * scale**3, of_x


@with_gradient(_bend)
def _slope(g: Tensor, x: Tensor) -> Tensor:
    return g * _scale(x) - (g * x).mean(-1, keepdim=True) * x * _scale(x) ** 3


@mistake("saved statistics", "pytorch #175754, #186256", normalised, lambda: (numbers(3, 4),), order=3)
@with_gradient(_slope)
def normalised_by_saved(x: Tensor) -> Tensor:
    """A second backward takes the scale that the forward saved, a constant to autograd: third derivatives lack it."""
    return normalised(x)


def square_of_part(x: Tensor) -> Tensor:
    """Energy of the square of a length, without the root."""
    return (x[:, :2].square().sum(-1) + x[:, 2].sin()).sum()


def _bonds() -> tuple[Tensor]:
    return (torch.tensor([[0.0, 0.0, 1.0], [0.3, 0.2, 0.5]], dtype=torch.float64),)


@mistake("along an axis", "fairchem #1618", square_of_part, _bonds, order=2)
def length_of_part(x: Tensor) -> Tensor:
    """Energy and forces are right, second derivatives are NaN where a bond lies along an axis."""
    length: Tensor = x[:, :2].norm(dim=-1)
    return (length**2 + x[:, 2].sin()).sum()
