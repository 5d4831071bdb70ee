"""Tensors as arrays and arrays as tensors, without a copy: NumPy's on the CPU, CuPy's on a CUDA device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.utils.dlpack
from torch._C import _functorch

__all__ = ["array_of", "beneath", "on_device", "tensor_from"]


def array_of(value: Any) -> Any:
    """Return the array that views a tensor's memory, strides included; None is returned as it is."""
    if value is None:
        return None
    if value.dtype is torch.bfloat16:  # NumPy knows it by ml_dtypes alone
        import ml_dtypes

        return array_of(value.detach().view(torch.int16)).view(ml_dtypes.bfloat16)
    if value.is_cpu:
        return value.detach().numpy() if value.requires_grad else value.numpy()
    import cupy

    return cupy.from_dlpack(value.detach())


def beneath(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor beneath the levels of torch.func, which wrap what is differentiated.

    Raises
    ------
    ValueError
        If torch.vmap has made one tensor of many: that has no memory of one shape.
    """
    while _functorch.is_functorch_wrapped_tensor(tensor):
        if _functorch.is_batchedtensor(tensor):
            raise ValueError("a tensor is batched by torch.vmap; expected one that is the same for all entries")
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


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
