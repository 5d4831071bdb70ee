"""Activations by name, and a SiLU whose derivatives need few passes over memory."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from trigraph.graphs import shown

Activation = Callable[[Tensor], Tensor]
_silu_backward = torch.ops.aten.silu_backward.default


class _SiLU(torch.autograd.Function):
    """x sigmoid(x). Its derivative is one operation; torch uses several if the derivative is itself differentiated."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.nn.functional.silu(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _derivative(grad, *ctx.saved_tensors)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Any:
        return _derivative(tangent, *ctx.saved_tensors)


class _SiLUDerivative(torch.autograd.Function):
    """grad s (1 + x (1 - s)) with s = sigmoid(x)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(grad: Tensor, x: Tensor) -> Tensor:
        return _silu_backward(grad, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad_grad: Tensor) -> Any:
        grad, x = ctx.saved_tensors
        return _derivative(grad_grad, x), _curved(grad_grad * grad, x)

    @staticmethod
    def jvp(ctx: Any, tangent_grad: Tensor, tangent: Tensor) -> Any:
        grad, x = ctx.saved_tensors
        return _derivative(tangent_grad, x) + _curved(tangent * grad, x)


def _derivative(grad: Tensor, x: Tensor) -> Tensor:
    return _SiLUDerivative.apply(grad, x)  # type: ignore[no-untyped-call]


def _curved(factor: Tensor, x: Tensor) -> Tensor:
    """Return the factor times SiLU's second derivative, s (1 - s) (2 + x (1 - 2 s)) with s = sigmoid(x)."""
    s = torch.sigmoid(x)
    return torch.ops.aten.sigmoid_backward.default(factor * torch.addcmul(x + 2.0, x, s, value=-2.0), s)


def silu(x: Tensor) -> Tensor:
    """Return x sigmoid(x) elementwise, differentiable any number of times."""
    # A traced program would record `silu_backward`, which has no derivative, and a compiler fuses torch's operations.
    if torch.compiler.is_compiling() or get_proxy_mode() is not None:
        return torch.nn.functional.silu(x)
    return _SiLU.apply(x)  # type: ignore[no-untyped-call]


class SiLU(torch.nn.Module):
    """x sigmoid(x), differentiable any number of times."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the activation of each element."""
        return silu(x)


def activation(owner: str, act: str | Activation) -> Activation:
    """Return a callable unchanged, or the activation of torch.nn with this name; "swish" is SiLU."""
    if not isinstance(act, str):
        if not callable(act):
            raise TypeError(f"{owner}: act is a {type(act).__name__}; expected a callable or the name of an activation")
        return act
    known = {name.lower(): getattr(torch.nn, name) for name in torch.nn.modules.activation.__all__}
    known |= {"silu": SiLU, "swish": SiLU}
    plain = act.lower().replace("_", "").replace("-", "")
    if plain not in known:
        raise ValueError(f"{owner}: act is {shown(act)}; expected a callable or one of {', '.join(sorted(known))}")
    return known[plain]()
