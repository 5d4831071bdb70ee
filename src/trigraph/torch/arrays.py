"""Tensors as arrays and arrays as tensors, without a copy: NumPy's on the CPU, CuPy's on a CUDA device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
import torch.utils.dlpack
from torch.autograd import forward_ad

R = TypeVar("R")


def array_of(value: Any, what: str = "a tensor") -> Any:
    """Return the array that views a tensor's memory, strides included; None is returned as it is.

    ValueError, which begins with `what`, if the storage does not hold the tensor any more.
    """
    if value is None:
        return None
    if value.numel():
        last = value.storage_offset() + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
        held, needed = value.untyped_storage().nbytes(), (last + 1) * value.element_size()
        if held < needed:
            raise ValueError(
                f"{what} has a storage of {held} bytes; expected at least {needed}: it was released or made smaller"
            )
    if value.dtype is torch.bfloat16:  # NumPy knows it by ml_dtypes alone
        import ml_dtypes

        return array_of(value.detach().view(torch.int16)).view(ml_dtypes.bfloat16)
    if value.is_cpu:
        return value.detach().numpy() if value.requires_grad else value.numpy()
    import cupy

    return cupy.from_dlpack(value.detach())


def has_storage(tensor: torch.Tensor) -> bool:
    """Whether a tensor has memory of its own: what a transform of torch.func has wrapped has none."""
    try:
        tensor.untyped_storage()
    except RuntimeError:
        return False
    return True


def is_batched(tensor: torch.Tensor) -> bool:
    """Whether torch.vmap has wrapped a tensor: what is beneath has one dimension more. Torch 2.6 does not show it."""
    unwrap = getattr(torch.func, "debug_unwrap", None)
    return unwrap is not None and unwrap(tensor, recurse=False).dim() > tensor.dim()


class _Found:
    """Holds a tensor; torch.func leaves an object as it is where it would copy a list."""

    tensor: torch.Tensor


class _Beneath(torch.autograd.Function):
    """Puts the tensor beneath the levels of torch.func into a `_Found`: they are gone where `forward` runs."""

    @staticmethod
    def forward(tensor: torch.Tensor, found: _Found) -> torch.Tensor:
        found.tensor = tensor.detach()
        return tensor.new_empty(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> None:
        return None

    @staticmethod
    def vmap(info: Any, in_dims: Any, tensor: torch.Tensor, found: _Found) -> Any:
        raise ValueError("a tensor is batched by torch.vmap; expected one that is the same for all entries")


def beneath(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor beneath the levels of torch.func, which wrap what is differentiated.

    ValueError if torch.vmap has made one tensor of many: that has no memory of one shape.
    """
    found = _Found()
    _Beneath.apply(forward_ad.unpack_dual(tensor).primal, found)  # type: ignore[no-untyped-call]
    return found.tensor


def in_plain_thread(function: Callable[..., R], *args: Any) -> R:
    """Call the function in a thread of its own, on this thread's CUDA stream, and return what it returns.

    Dispatch modes, transforms of torch.func, inference mode and default devices belong to a thread: what is made in
    a new one is an ordinary tensor, whatever is on here.
    """
    stream = torch.cuda.current_stream() if torch.cuda.is_initialized() else None

    def call() -> R:
        with torch.cuda.stream(stream):
            return function(*args)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def tensor_from(array: Any) -> torch.Tensor:
    """Return the tensor that views an array's memory."""
    if array.dtype.kind == "V":  # bfloat16
        return tensor_from(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else torch.utils.dlpack.from_dlpack(array)


@contextlib.contextmanager
def on_device(tensor: torch.Tensor) -> Iterator[None]:
    """Run CuPy on a CUDA tensor's device, on torch's current stream there, with memory from torch's allocator."""
    if not tensor.is_cuda:
        yield
        return
    import cupy

    device = tensor.device.index
    stream = torch.cuda.current_stream(device).cuda_stream

    def allocate(size: int, device: int) -> int:
        return int(torch.cuda.caching_allocator_alloc(size, device, stream)) if size else 0

    def free(pointer: int, device: int) -> None:
        if pointer:
            torch.cuda.caching_allocator_delete(pointer)

    allocator = cupy.cuda.PythonFunctionAllocator(allocate, free)
    with (
        cupy.cuda.Device(device),
        cupy.cuda.ExternalStream(stream, device),
        cupy.cuda.using_allocator(allocator.malloc),
    ):
        yield
