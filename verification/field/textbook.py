"""The kinds of mistake that a check of derivatives must find."""

from __future__ import annotations

from typing import Any

import torch

from trigraph.verification.field.entry import Entry, numbers

Tensor = torch.Tensor


def bend(positions: Tensor) -> Tensor:
    """Energy of distances and of products of positions."""
    distances = ((positions[:, None] - positions).square().sum(-1) + 0.1).sqrt()
    return (distances * torch.tanh(positions @ positions.T)).sum()


def detached_bend(positions: Tensor) -> Tensor:
    """Be `bend`, one factor of which is taken from positions without their history."""
    distances = ((positions[:, None] - positions).square().sum(-1) + 0.1).sqrt()
    return (distances * torch.tanh(positions.detach() @ positions.T)).sum()


class _Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 3 * torch.as_strided(x, x.shape, torch.empty(x.shape).stride(), x.storage_offset()) ** 2 * g


def cube(x: Tensor) -> Tensor:
    """Third power, whose gradient reads memory as if it were contiguous."""
    return _Cube.apply(x)  # type: ignore[no-any-return]


def any_order(x: Tensor) -> Tensor:
    """Add cubes up in an order that changes from run to run."""
    return (x[torch.randperm(len(x))] ** 3).cumsum(0)[-1]


def fixed_order(x: Tensor) -> Tensor:
    """Add cubes up in the order in which they come."""
    return (x**3).cumsum(0)[-1]


def two_powers(x: Tensor) -> Tensor:
    """Third power above 0, twice the negative square below."""
    return torch.where(x > 0, x**3, -2 * x**2)


class _TwoPowers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return two_powers(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return _TwoPowersGradient.apply(g, *ctx.saved_tensors)


class _TwoPowersGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(g, x)
        return g * torch.where(x > 0, 3 * x**2, -4 * x)

    @staticmethod
    def backward(ctx: Any, gg: Tensor) -> tuple[Tensor, Tensor]:
        g, x = ctx.saved_tensors
        second = torch.where(x > 0, 6 * x, torch.full_like(x, -5.0))  # it is -4
        return gg * torch.where(x > 0, 3 * x**2, -4 * x), gg * g * second


def wrong_side(x: Tensor) -> Tensor:
    """Be `two_powers`, with a second derivative that is wrong below the kink."""
    return _TwoPowers.apply(x)  # type: ignore[no-any-return]


def table_in_float32(x: Tensor) -> Tensor:
    """Exponential function with an error of 0.1 % in float32 only."""
    return torch.exp(x) * (1.001 if x.dtype == torch.float32 else 1.0)


class _Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * x.cos() * (1 + 1e-5)


def sine(x: Tensor) -> Tensor:
    """Sine, whose gradient is wrong by 1e-5."""
    return _Sine.apply(x)  # type: ignore[no-any-return]


def gate(x: Tensor, w: Tensor) -> Tensor:
    """Use `x` twice: in the gate, and as what passes it."""
    return torch.tanh(x @ w) * x


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return gate(x, w)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        inner = g * x * (1 - torch.tanh(x @ w) ** 2)
        return inner @ w.T, x.T @ inner


def forgetful_gate(x: Tensor, w: Tensor) -> Tensor:
    """Be `gate`, whose gradient forgets what passes."""
    return _Gate.apply(x, w)  # type: ignore[no-any-return]


class _Exponential(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * x.detach().exp()


def flat_gradient(x: Tensor) -> Tensor:
    """Exponential function with a gradient that autograd takes for a constant."""
    return _Exponential.apply(x)  # type: ignore[no-any-return]


def _matrix() -> tuple[Tensor]:
    return (numbers(3, 2),)


ENTRIES = (
    Entry(
        "detached geometry",
        "",
        "one of two uses of the positions is detached",
        detached_bend,
        bend,
        lambda: (numbers(3, 3),),
        "differences",
    ),
    Entry(
        "contiguous only",
        "",
        "the gradient is right for contiguous inputs only",
        cube,
        lambda x: x**3,
        _matrix,
        "layout",
    ),
    Entry(
        "any order", "", "a sum differs from run to run", any_order, fixed_order, lambda: (numbers(60),), "repeat", 0
    ),
    Entry(
        "one side of a kink",
        "",
        "the second derivative is wrong on one side of a kink",
        wrong_side,
        two_powers,
        _matrix,
        "differences",
        2,
    ),
    Entry("float32", "", "results are wrong by 0.1 % in float32 only", table_in_float32, torch.exp, _matrix, "float32"),
    Entry("1e-5", "", "a derivative is wrong by a factor of 1 + 1e-5", sine, torch.sin, _matrix, "differences"),
    Entry(
        "one of two uses",
        "",
        "a backward forgets one of two uses of an input",
        forgetful_gate,
        gate,
        lambda: (numbers(3, 2), numbers(2, 2, seed=1)),
        "differences",
    ),
    Entry(
        "silent zero",
        "",
        "the second derivative is zero, without a word",
        flat_gradient,
        torch.exp,
        _matrix,
        "differences",
        2,
    ),
)
