"""Activations by name, and a SiLU whose derivatives need few passes over memory."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from trigraph.graphs import shown
from trigraph.torch.library import Untouched

Activation = Callable[[Tensor], Tensor]
_silu_backward = torch.ops.aten.silu_backward.default
_softplus_backward = torch.ops.aten.softplus_backward.default
TWICE = "SiLU: forward mode twice over reverse mode; expected once, such as jacfwd(jacrev(jacrev(f)))"


class _SiLU(torch.autograd.Function):
    """x sigmoid(x). Its derivative is one operation; torch uses several if the derivative is itself differentiated."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.nn.functional.silu(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs, output)
        ctx.save_for_forward(*inputs, output)  # the same tensors: the rule that torch generates for vmap requires it

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _derivative(grad, *ctx.saved_tensors)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Any:
        return _derivative(tangent, *ctx.saved_tensors)


class _SiLUDerivative(torch.autograd.Function):
    """grad s (1 + x (1 - s)) with s = sigmoid(x), a function of `grad` and `x`; `y` is x s."""

    generate_vmap_rule = True

    @staticmethod
    def forward(grad: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return _silu_backward(grad, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad_grad: Tensor) -> Any:
        grad, x, y = ctx.saved_tensors
        first = _derivative(grad_grad, x, y)
        return first, _second(grad, grad_grad, first, x, y), None

    @staticmethod
    def jvp(ctx: Any, tangent_grad: Tensor, tangent: Tensor, _: Any) -> Any:
        grad, x, y = (Untouched.apply(t, TWICE) for t in ctx.saved_tensors)  # type: ignore[no-untyped-call]
        along = _derivative(tangent, x, y)
        return _derivative(tangent_grad, x, y) + _second(grad, tangent, along, x, y)


def _derivative(grad: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return _SiLUDerivative.apply(grad, x, y)  # type: ignore[no-untyped-call]


def _second(grad: Tensor, grad_grad: Tensor, first: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return grad grad_grad f'' of SiLU f in three passes, where `first` is grad_grad f' and `y` is f.

    f'' = (1 - s) (2 f' - f) with s = sigmoid(x), and 1 - s is the derivative of softplus with beta = -1, which is 1
    beyond its threshold, x < -40, where s is less than any rounding of 1.
    """
    half = torch.addcmul(first, grad_grad, y, value=-0.5)
    return torch.addcmul(x.new_zeros(()), grad, _softplus_backward(half, x, -1.0, 40.0), value=2.0)


def silu(x: Tensor) -> Tensor:
    """Return x sigmoid(x) elementwise, differentiable any number of times."""
    # A traced program would record `silu_backward`, which has no derivative, and a compiler fuses torch's operations.
    if torch.compiler.is_compiling() or get_proxy_mode() is not None:
        return torch.nn.functional.silu(x)
    if forward_ad.unpack_dual(x).tangent is not None:  # which torch's operation supports at any depth
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
    classes = {name.lower(): getattr(torch.nn, name) for name in torch.nn.modules.activation.__all__}
    classes |= {"silu": SiLU, "swish": SiLU}
    plain = act.lower().replace("_", "").replace("-", "")
    if plain not in classes:
        raise ValueError(f"{owner}: act is {shown(act)}; expected a callable or one of {', '.join(sorted(classes))}")
    return classes[plain]()
