"""Kinds of mistake that a check of derivatives must find, and that no public bug among the others shows."""

import torch

from field.entry import mistake, numbers, with_gradient

Tensor = torch.Tensor


def _matrix() -> tuple[Tensor]:
    return (numbers(3, 2),)


def fixed_order(x: Tensor) -> Tensor:
    """Add cubes up in the order in which they come."""
    return (x**3).cumsum(0)[-1]


@mistake("any order", "", fixed_order, lambda: (numbers(60),), "repeat", 0)
def any_order(x: Tensor) -> Tensor:
    """A sum differs from run to run."""
    return (x[torch.randperm(len(x))] ** 3).cumsum(0)[-1]


def two_powers(x: Tensor) -> Tensor:
    """Third power above 0, twice the negative square below."""
    return torch.where(x > 0, x**3, -2 * x**2)


def _wrong_below(gg: Tensor, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    second = torch.where(x > 0, 6 * x, torch.full_like(x, -5.0))  # it is -4
    return gg * torch.where(x > 0, 3 * x**2, -4 * x), gg * g * second


@with_gradient(_wrong_below)
def _slope(g: Tensor, x: Tensor) -> Tensor:
    return g * torch.where(x > 0, 3 * x**2, -4 * x)


@mistake("one side of a kink", "", two_powers, _matrix, order=2)
@with_gradient(_slope)
def wrong_side(x: Tensor) -> Tensor:
    """The second derivative is wrong on one side of a kink."""
    return two_powers(x)


@mistake("float32", "", torch.exp, _matrix, "float32")
def table_in_float32(x: Tensor) -> Tensor:
    """Results are wrong by 0.1 % in float32 only."""
    return torch.exp(x) * (1.001 if x.dtype == torch.float32 else 1.0)


@mistake("1e-5", "", torch.sin, _matrix)
@with_gradient(lambda g, x: g * x.cos() * (1 + 1e-5))
def sine(x: Tensor) -> Tensor:
    """A derivative is wrong by a factor of 1 + 1e-5."""
    return x.sin()


@mistake("silent zero", "", torch.exp, _matrix, order=2)
@with_gradient(lambda g, x: g * x.detach().exp())
def flat_gradient(x: Tensor) -> Tensor:
    """The second derivative is zero, without a word."""
    return x.exp()


def _wrong_sign(c: Tensor, d: Tensor, gg: Tensor, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    of_x = -c * gg * x.sin() + d * gg * g * x.cos()  # the second term is a difference
    return c * x.cos() - d * g * x.sin(), -d * gg * x.sin(), of_x


@with_gradient(_wrong_sign)
def _bend_of_sine(gg: Tensor, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return gg * x.cos(), -gg * g * x.sin()


@with_gradient(_bend_of_sine)
def _slope_of_sine(g: Tensor, x: Tensor) -> Tensor:
    return g * x.cos()


@mistake("third sign", "", torch.sin, _matrix, order=3)
@with_gradient(_slope_of_sine)
def sine_to_third_order(x: Tensor) -> Tensor:
    """A term of the third derivative has the wrong sign."""
    return x.sin()


def cube_of_sum(x: Tensor) -> Tensor:
    """Third power of the sum of all numbers."""
    return x.sum() ** 3


def _uneven(c: Tensor, d: Tensor, gg: Tensor, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    total, ones = x.sum(), torch.linspace(0.9, 1.1, x.numel(), dtype=x.dtype).view_as(x)  # they are 1
    of_gg = 3 * c * total**2 + 6 * d.sum() * g * total
    of_x = 6 * c * gg.sum() * total + 6 * d.sum() * g * gg.sum()
    return of_gg.expand_as(x), 6 * d.sum() * gg.sum() * total, of_x * ones


@with_gradient(_uneven)
def _bend_of_cube(gg: Tensor, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return 3 * gg.sum() * x.sum() ** 2, (6 * gg.sum() * g * x.sum()).expand_as(x)


@with_gradient(_bend_of_cube)
def _slope_of_cube(g: Tensor, x: Tensor) -> Tensor:
    return (3 * g * x.sum() ** 2).expand_as(x)


@mistake("third symmetry", "", cube_of_sum, _matrix, "symmetry", order=3)
@with_gradient(_slope_of_cube)
def uneven_cube(x: Tensor) -> Tensor:
    """The third derivative depends on the order of its directions."""
    return cube_of_sum(x)
