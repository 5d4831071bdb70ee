"""Activation functions by name, and a SiLU whose derivatives need few passes over memory."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from trigraph.arrays import format_value
from trigraph.fortran.silu import fill_silu_derivatives
from trigraph.torch.arrays import has_storage, use_torch_stream_and_allocator, view_tensor_as_array
from trigraph.torch.library import has_tangents
from trigraph.torch.signatures import ElementwiseFunction, allow_nesting, skip_default_argument_search

Activation = Callable[[Tensor], Tensor]
_silu_backward = torch.ops.aten.silu_backward.default
_softplus_backward = torch.ops.aten.softplus_backward.default


class _SiLU(ElementwiseFunction):
    """x sigmoid(x) with a differentiable derivative that is a single operation; torch's takes several."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.nn.functional.silu(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        if torch.is_grad_enabled() or has_tangents((grad, x)):
            return _SiLUBackward.apply(grad, x)  # type: ignore[no-untyped-call]
        return _silu_backward(grad, x)

    @staticmethod
    @allow_nesting
    def jvp(ctx: Any, saved: Any, tangent: Tensor) -> Any:
        return _SiLUBackward.apply(tangent, *saved)  # type: ignore[no-untyped-call]


class _SiLUBackward(ElementwiseFunction):
    """Compute grad f'(x), where f is SiLU."""

    @staticmethod
    def forward(grad: Tensor, x: Tensor) -> Tensor:
        return _silu_backward(grad, x)

    @staticmethod
    def backward(ctx: Any, gg: Tensor) -> Any:
        return _SiLUDoubleBackward.apply(gg, *ctx.saved_tensors)  # type: ignore[no-untyped-call]

    @staticmethod
    @allow_nesting
    def jvp(ctx: Any, saved: Any, tangent_grad: Tensor, tangent: Tensor) -> Any:
        grad, x = saved
        return _SiLUBackward.apply(tangent_grad, x) + _SiLUDoubleBackward.apply(tangent, grad, x)[1]  # type: ignore[no-untyped-call]


class _SiLUDoubleBackward(ElementwiseFunction):
    """Compute gg f'(x) and gg grad f''(x), the gradients of grad f'(x) for the cotangent `gg`; f is SiLU."""

    @staticmethod
    def forward(gg: Tensor, grad: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        if _kernel_supports(gg, grad, x):
            return _launch_silu_kernel(2, gg, grad, x)
        # With s = sigmoid(x), f'' = (1 - s) (2 f' - f), and 1 - s is the derivative of softplus with beta = -1, which
        # torch sets to 1 below the threshold x = -40, where s is less than the rounding error of 1.
        first = _silu_backward(gg, x)
        half = torch.addcmul(first, gg, torch.nn.functional.silu(x), value=-0.5)
        return first, torch.addcmul(x.new_zeros(()), grad, _softplus_backward(half, x, -1.0, 40.0), value=2.0)

    @staticmethod
    def backward(ctx: Any, ggg_grad: Tensor, ggg_x: Tensor) -> Any:
        gg, grad, x = ctx.saved_tensors
        tensors = ggg_grad, ggg_x, gg, grad, x
        # The kernel is not differentiable: use it only if gradients are disabled and no tensor has a tangent.
        if not torch.is_grad_enabled() and not has_tangents(tensors) and _kernel_supports(*tensors):
            return _launch_silu_kernel(3, *tensors)
        first, second, third = _compute_silu_derivatives(x)
        return (
            ggg_grad * first + ggg_x * grad * second,
            ggg_x * gg * second,
            gg * (ggg_grad * second + ggg_x * grad * third),
        )

    @staticmethod
    @allow_nesting
    def jvp(ctx: Any, saved: Any, tangent_gg: Tensor, tangent_grad: Tensor, tangent: Tensor) -> Any:
        gg, grad, x = saved
        first, second, third = _compute_silu_derivatives(x)
        along = (tangent_gg * grad + gg * tangent_grad) * second + gg * grad * third * tangent
        return tangent_gg * first + gg * second * tangent, along

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], gg: Tensor, *tensors: Tensor) -> Any:
        """If only `gg` is batched, multiply the results for ``gg=1`` by `gg`; else apply `ElementwiseFunction.vmap`."""
        if in_dims[1:] != (None, None):
            return super().vmap(info, in_dims, gg, *tensors)
        gg = gg.movedim(in_dims[0], 0)  # type: ignore[arg-type]
        first, second = cls.apply(torch.ones_like(tensors[0]), *tensors)  # type: ignore[no-untyped-call]
        return (gg * first, gg * second), (0, 0)


for _function in (_SiLU, _SiLUBackward, _SiLUDoubleBackward):
    skip_default_argument_search(_function)


def _compute_silu_derivatives(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first three derivatives of SiLU, computed by torch operations and differentiable to any order."""
    s, one_minus_s = torch.sigmoid(x), torch.sigmoid(-x)
    p = s * one_minus_s
    return s + x * p, p * (2 + x * (one_minus_s - s)), p * (3 * (one_minus_s - s) + x * (1 - 6 * p))


def _kernel_supports(*tensors: Tensor) -> bool:
    """Return whether the SiLU kernels support the tensors, which requires equal devices, shapes and dtypes."""
    x = tensors[-1]
    alike = (x.dtype, x.shape, x.device)
    return (
        x.dtype in (torch.float32, torch.float64)
        and (x.is_cpu or x.is_cuda)
        and all(type(t) is Tensor and (t.dtype, t.shape, t.device) == alike and has_storage(t) for t in tensors)
    )


def _launch_silu_kernel(order: int, *arguments: Tensor) -> tuple[Tensor, ...]:
    given = [t.detach().contiguous() for t in arguments]
    results = [torch.empty_like(t) for t in given[-order:]]
    with use_torch_stream_and_allocator(given[-1]):
        arrays = [view_tensor_as_array(t.view(-1)) for t in (*given, *results)]
        if given[-1].is_cuda:
            from trigraph.gpu.silu import fill_silu_derivatives as fill_on_device

            fill_on_device(order, *arrays)
        else:
            fill_silu_derivatives(order, *arrays)
    return tuple(results)


_thread_state = threading.local()  # `once`: whether SiLU is differentiated at most once in this thread


@contextlib.contextmanager
def use_torch_silu() -> Iterator[None]:
    """Use torch's SiLU, which has the same values, a faster first derivative and slower higher derivatives."""
    before, _thread_state.once = getattr(_thread_state, "once", False), True
    try:
        yield
    finally:
        _thread_state.once = before


def silu(x: Tensor) -> Tensor:
    """Return x sigmoid(x) elementwise, differentiable to any order."""
    # Do not trace `_SiLU`: its `silu_backward` has no derivative, and compilers fuse torch's own operations.
    if torch.compiler.is_compiling() or get_proxy_mode() is not None:
        return torch.nn.functional.silu(x)
    if getattr(_thread_state, "once", False) or not (torch.is_grad_enabled() or has_tangents((x,))):
        return torch.nn.functional.silu(x)
    return _SiLU.apply(x)  # type: ignore[no-untyped-call]


class SiLU(torch.nn.Module):
    """Activation x sigmoid(x), differentiable to any order."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation to each element."""
        return silu(x)


def find_activation(owner: str, act: str | Activation) -> Activation:
    """Return the torch.nn activation named `act` ("swish" means SiLU); return a callable unchanged."""
    if not isinstance(act, str):
        if not callable(act):
            raise TypeError(f"{owner}: act is a {type(act).__name__}; expected a callable or the name of an activation")
        return act
    classes = {name.lower(): getattr(torch.nn, name) for name in torch.nn.modules.activation.__all__}
    classes |= {"silu": SiLU, "swish": SiLU}
    plain = act.lower().replace("_", "").replace("-", "")
    if plain not in classes:
        raise ValueError(
            f"{owner}: act is {format_value(act)}; expected a callable or one of {', '.join(sorted(classes))}"
        )
    return classes[plain]()
