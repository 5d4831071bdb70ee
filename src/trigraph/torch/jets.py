"""Arithmetic with jets f + f_1 e + f_2 d + f_12 e d, where e^2 = d^2 = 0, for derivatives along two directions at once.

The plain forms (`trigraph.plain`) accept jets instead of tensors. For inputs x + a e + c d, the parts of a result F are
F(x), J a, J c and the second derivative along a and c, where J is the Jacobian. Zero parts are None, and cost no time.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, reduce
from itertools import product
from operator import or_
from typing import Any

import torch
from torch import Tensor

from trigraph.torch.signatures import ElementwiseFunction, allow_nesting

PARTS = range(4)  # indices of f, f_1, f_2, f_12; bit 0 is set if e is a factor, bit 1 if d is a factor


class Jet:
    """Tensor and its first and mixed second derivatives along two directions, all of the same shape."""

    def __init__(self, parts: Iterable[Tensor | None]) -> None:
        self.parts = tuple(parts)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the value f, such as its shape."""
        return getattr(self.parts[0], name)

    def __getitem__(self, at: Any) -> "Jet":
        dim = int(isinstance(at, tuple) and at[0] == slice(None))
        index = at[1] if dim else at
        if isinstance(index, Tensor) and index.dtype == torch.int64:  # index_select has a faster derivative
            return apply_linear(lambda t: t.index_select(dim, index), self)
        return apply_linear(lambda t: t[at], self)

    def __iter__(self) -> Iterator["Jet"]:
        rows = [None if t is None else t.unbind() for t in self.parts]
        return (Jet(None if t is None else t[i] for t in rows) for i in range(self.shape[0]))

    def reshape(self, *shape: int) -> "Jet":
        """Reshape each part, like `torch.Tensor.reshape`."""
        return apply_linear(lambda t: t.reshape(*shape), self)

    def sum(self, axis: int) -> "Jet":
        """Sum each part over an axis, like `torch.Tensor.sum`."""
        return apply_linear(lambda t: t.sum(axis), self)

    def __neg__(self) -> "Jet":
        return apply_linear(torch.neg, self)

    def __add__(self, other: Any) -> "Jet":
        other = to_jet(other)
        pairs = zip(self.parts, other.parts, strict=True)
        shape = torch.broadcast_shapes(self.shape, getattr(other.parts[0], "shape", ()))
        parts = [a if b is None else b if a is None else a + b for a, b in pairs]
        return Jet([None if t is None else t.expand(shape) for t in parts])

    def __sub__(self, other: Any) -> "Jet":
        return self + -other

    def __rsub__(self, other: Any) -> "Jet":
        return -self + other

    def __mul__(self, other: Any) -> "Jet":
        if isinstance(other, Jet):
            return apply_multilinear(torch.mul, self, other)
        return apply_linear(lambda t: t * other, self)

    def __matmul__(self, other: Any) -> "Jet":
        return apply_multilinear(torch.matmul, self, other)

    def __truediv__(self, other: Any) -> "Jet":
        if isinstance(other, Jet):
            return self * (1 / other)
        return apply_linear(lambda t: t / other, self)

    def __rtruediv__(self, other: Any) -> "Jet":
        inverse = extend_elementwise(torch.reciprocal, lambda y, x: -y * y, lambda y, x: 2 * y**3)(self)
        return other * inverse

    def __pow__(self, n: int) -> "Jet":
        return extend_elementwise(
            lambda x: x**n, lambda y, x: n * x ** (n - 1), lambda y, x: n * (n - 1) * x ** (n - 2)
        )(self)

    def __eq__(self, other: Any) -> Tensor:  # type: ignore[override]
        return self.parts[0] == other

    def __le__(self, other: Any) -> Tensor:
        return self.parts[0] <= other

    def __ge__(self, other: Any) -> Tensor:
        return self.parts[0] >= other

    def __lt__(self, other: Any) -> Tensor:
        return self.parts[0] < other

    __hash__ = None  # type: ignore[assignment]
    __radd__, __rmul__ = __add__, __mul__


def to_jet(value: Any) -> Jet:
    """Convert a tensor or number to a constant jet; return a jet unchanged."""
    return value if isinstance(value, Jet) else Jet((value, None, None, None))


def apply_linear(function: Callable[[Tensor], Tensor], x: Jet) -> Jet:
    """Apply a linear function to each part of a jet."""
    return Jet([None if t is None else function(t) for t in x.parts])


def extend_join(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """Extend `torch.stack` or `torch.concatenate` from tensors to jets."""

    def join_tensors_or_jets(arguments: Sequence[Any], axis: int = 0) -> Any:
        if not any(isinstance(a, Jet) for a in arguments):
            return function(arguments, axis)
        jets = [to_jet(a).parts for a in arguments]
        zeros = [torch.zeros_like(p[0]) for p in jets]  # type: ignore[arg-type]
        parts = [[p[k] for p in jets] for k in PARTS]
        return Jet(
            None
            if all(t is None for t in part)
            else function([z if t is None else t for t, z in zip(part, zeros, strict=True)], axis)
            for part in parts
        )

    return join_tensors_or_jets


def apply_multilinear(function: Callable[..., Tensor], *arguments: Any) -> Any:
    """Apply a multilinear function to tensors or, by the product rule, to jets."""
    if not any(isinstance(a, Jet) for a in arguments):
        return function(*arguments)
    sums: list[Tensor | None] = [None, None, None, None]
    jets = [to_jet(a).parts for a in arguments]
    for part_indices in product(PARTS, repeat=len(jets)):
        if sum(part_indices) != (total := reduce(or_, part_indices)) or any(
            p[k] is None for p, k in zip(jets, part_indices, strict=True)
        ):
            continue
        term = function(*(p[k] for p, k in zip(jets, part_indices, strict=True)))
        add_to_part(sums, total, term)
    return Jet(sums)


def add_to_part(sums: list[Tensor | None], k: int, term: Tensor) -> None:
    """Add a term to part `k` of a jet, where None means zero."""
    before = sums[k]
    sums[k] = term if before is None else before + term


def extend_elementwise(function: Callable[..., Tensor], *derivatives: Callable[..., Tensor]) -> Callable[[Any], Any]:
    """Extend an elementwise function from tensors to jets.

    `derivatives` are the function's first two derivatives, as functions of its value and its argument.
    """

    def apply_to_tensor_or_jet(x: Any) -> Any:
        if not isinstance(x, Jet):
            return function(x)
        x0, *rest = x.parts
        y = function(x0)
        if all(t is None for t in rest):
            return to_jet(y)
        first, second = derivatives[0](y, x0), rest[:2]
        parts = [None if t is None else first * t for t in rest]
        if second[0] is not None and second[1] is not None:
            curved = derivatives[1](y, x0) * second[0] * second[1]
            parts[2] = curved if parts[2] is None else parts[2] + curved
        return Jet([y, *parts])

    return apply_to_tensor_or_jet


def where(condition: Tensor, a: Any, b: Any) -> Any:
    """Extend `torch.where` from tensors and numbers to jets."""
    if not (isinstance(a, Jet) or isinstance(b, Jet)):
        return torch.where(condition, a, b)
    pairs = zip(to_jet(a).parts, to_jet(b).parts, strict=True)
    return Jet(
        None if s is t is None else torch.where(condition, 0.0 if s is None else s, 0.0 if t is None else t)
        for s, t in pairs
    )


class _Expm1(ElementwiseFunction):
    """expm1 with an accurate derivative. Torch computes it as expm1(x) + 1, which cancels if expm1(x) is near -1."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.expm1(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * torch.exp(ctx.saved_tensors[0])

    @staticmethod
    @allow_nesting
    def jvp(ctx: Any, saved: Any, x_dot: Tensor) -> Tensor:
        return x_dot * torch.exp(saved[0])


class JetFunctions:
    """Torch functions for tensors and jets. Functions not defined in this class ignore the derivatives of jets."""

    where, stack, concatenate = map(staticmethod, (where, extend_join(torch.stack), extend_join(torch.concatenate)))
    sin = staticmethod(extend_elementwise(torch.sin, lambda y, x: torch.cos(x), lambda y, x: -y))
    cos = staticmethod(extend_elementwise(torch.cos, lambda y, x: -torch.sin(x), lambda y, x: -y))
    exp = staticmethod(extend_elementwise(torch.exp, lambda y, x: y, lambda y, x: y))
    expm1 = staticmethod(extend_elementwise(_Expm1.apply, lambda y, x: torch.exp(x), lambda y, x: torch.exp(x)))
    tanh = staticmethod(extend_elementwise(torch.tanh, lambda y, x: 1 - y * y, lambda y, x: -2 * y * (1 - y * y)))
    sqrt = staticmethod(extend_elementwise(torch.sqrt, lambda y, x: 0.5 / y, lambda y, x: -0.25 / (x * y)))

    @staticmethod
    def einsum(equation: str, *operands: Any) -> Any:
        """Extend `torch.einsum` to jets."""
        return apply_multilinear(partial(torch.einsum, equation), *operands)

    def __getattr__(self, name: str) -> Any:
        function = getattr(torch, name)
        return lambda *arguments: function(*(a.parts[0] if isinstance(a, Jet) else a for a in arguments))


def extend_linear(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """Extend a function that is linear in its first argument from tensors to jets."""
    return lambda rows, *rest: (
        apply_linear(lambda t: function(t, *rest), rows) if isinstance(rows, Jet) else function(rows, *rest)
    )
