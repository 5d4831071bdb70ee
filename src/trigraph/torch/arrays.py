"""Conversion between tensors and arrays (NumPy on the CPU, CuPy on a CUDA device) without a copy."""

import contextlib
import ctypes
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np
import torch
import torch.utils.dlpack
from torch.autograd import forward_ad

from trigraph.arrays import import_cupy

R = TypeVar("R")

LEGACY = 1  # handle of CUDA's legacy default stream; CuPy would take torch's handle 0 for its own default stream
CHUNK, SMALL = 1 << 20, 1 << 16  # sizes in bytes of a shared allocation and of the largest array in one
ALIGNMENT = 512  # alignment of allocations in bytes, as in torch and CuPy

_thread_state = (
    threading.local()
)  # `device`: index of the device whose torch stream is CuPy's current stream in this thread
# Tensors whose memory CuPy arrays use. The key is the tensor's address, which is unique while the tensor exists.
_tensors_by_address: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()


def view_tensor_as_array(value: Any, what: str = "a tensor") -> Any:
    """Return an array with the memory and strides of a tensor, or None if `value` is None.

    Raise ValueError with a message that starts with `what` if the storage is too small for the tensor.
    """
    if value is None:
        return None
    held, needed, offset = value.untyped_storage().nbytes(), value.nbytes, value.storage_offset()
    dense = value.is_contiguous()
    if needed and not (offset == 0 and dense):
        last = offset + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
        needed = (last + 1) * value.element_size()
    if held < needed:
        raise ValueError(
            f"{what} has a storage of {held} bytes; expected at least {needed}: it was released or made smaller"
        )
    if value.is_neg():
        return view_tensor_as_array(value.resolve_neg())
    if not value.is_cpu:
        return _view_tensor_as_cupy(value.detach() if value.requires_grad else value)
    pointer = value.data_ptr()
    if needed and not pointer:  # such as the result of `torch._efficientzerotensor`, which allocates no memory
        return view_tensor_as_array(value.clone())
    # `Tensor.numpy` would make the storage non-resizable, but frameworks that shard parameters resize the storage.
    memory = BorrowedMemory.at_address(pointer, value)
    shape, dtype = value.shape, convert_to_numpy_dtype(value.dtype)
    if dense:
        return np.ndarray(shape, dtype, memory)
    return np.ndarray(shape, dtype, memory, strides=[n * dtype.itemsize for n in value.stride()])


class BorrowedMemory(ctypes.Array):  # type: ignore[type-arg]
    """Memory at an address; it keeps its owner alive and has no length of its own, so arrays on it must set theirs."""

    __slots__ = ("owner",)
    _type_, _length_ = ctypes.c_char, sys.maxsize

    @classmethod
    def at_address(cls, address: int, owner: Any) -> Any:
        """Return the memory of `owner` that starts at an address."""
        memory: Any = cls.from_address(address)
        memory.owner = owner
        return memory


@functools.cache  # safe to cache, because the result depends only on the dtype
def convert_to_numpy_dtype(dtype: torch.dtype) -> np.dtype:
    """Return the NumPy dtype that matches a torch dtype; for bfloat16, use the dtype from ml_dtypes."""
    if dtype is torch.bfloat16:
        try:
            import ml_dtypes
        except ImportError as error:
            raise ImportError("bfloat16 needs ml_dtypes: pip install 'trigraph[torch]'") from error
        bfloat16: type[np.generic] = ml_dtypes.bfloat16
        return np.dtype(bfloat16)
    return np.dtype(str(dtype).removeprefix("torch."))


def _view_tensor_as_cupy(value: torch.Tensor) -> Any:
    """Return a CuPy view of a tensor; CuPy's current stream waits for torch's, unless torch's is current.

    DLPack is not used: it lacks bfloat16 and, under CUPY_CUDA_PER_THREAD_DEFAULT_STREAM, torch's default stream.
    """
    cupy = import_cupy()

    device = value.device.index
    if getattr(_thread_state, "device", None) != device:
        with cupy.cuda.Device(device):
            cupy_stream, torch_stream = cupy.cuda.get_current_stream(), _get_torch_stream_for_cupy(device)
            if (cupy_stream.ptr or LEGACY) != torch_stream.ptr:
                cupy_stream.wait_event(torch_stream.record())
    memory = cupy.cuda.UnownedMemory(value.data_ptr(), value.nbytes, value, device)
    strides = tuple(n * value.element_size() for n in value.stride())
    pointer = cupy.cuda.MemoryPointer(memory, 0)
    return cupy.ndarray(tuple(value.shape), convert_to_numpy_dtype(value.dtype), pointer, strides)


def has_storage(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has a storage, which wrapper tensors of torch.func lack."""
    try:
        tensor.untyped_storage()
    except RuntimeError:
        return False
    return True


def is_batched_by_vmap(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a torch.vmap wrapper, which hides the batch dimension. Always False in torch 2.6."""
    unwrap = getattr(torch.func, "debug_unwrap", None)
    return unwrap is not None and unwrap(tensor, recurse=False).dim() > tensor.dim()


class _TensorHolder:
    """Mutable holder of a tensor. torch.func would copy a list that it passes to a function, but not this object."""

    tensor: torch.Tensor


class _InnermostTensorRecorder(torch.autograd.Function):
    """Store a tensor in a `_TensorHolder`; torch removes torch.func's wrappers before it calls `forward`."""

    @staticmethod
    def forward(tensor: torch.Tensor, holder: _TensorHolder) -> torch.Tensor:
        holder.tensor = tensor.detach()
        return tensor.new_empty(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> None:
        return None

    @staticmethod
    def vmap(info: Any, in_dims: Any, tensor: torch.Tensor, holder: _TensorHolder) -> Any:
        raise ValueError("a tensor is batched by torch.vmap; expected one that is the same for all entries")


def unwrap_func_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor inside torch.func's wrappers; raise ValueError if torch.vmap has batched the tensor."""
    holder = _TensorHolder()
    _InnermostTensorRecorder.apply(forward_ad.unpack_dual(tensor).primal, holder)  # type: ignore[no-untyped-call]
    return holder.tensor


def call_in_new_thread(function: Callable[..., R], *args: Any) -> R:
    """Call a function in a new thread, on the caller's CUDA stream, and return its result.

    Dispatch modes, transforms of torch.func, inference mode and default devices are thread-local. Tensors created in a
    new thread are therefore ordinary tensors.
    """
    stream = torch.cuda.current_stream() if torch.cuda.is_initialized() else None
    outcome: Future[R] = Future()

    def call_and_store() -> None:
        try:
            with torch.cuda.stream(stream):
                outcome.set_result(function(*args))
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(
        target=call_and_store
    )  # starting a thread takes half as long as starting a pool with one thread
    thread.start()
    thread.join()
    return outcome.result()


def view_tensor_unless_batched(value: torch.Tensor, what: str) -> Any:
    """Return an array that views the memory of a dense tensor, or the tensor itself if torch.vmap has batched it.

    Raise ValueError, with a message that begins with `what`, if the storage of the tensor was released.
    """
    value = value.resolve_neg()  # makes a copy if torch's negative bit is set
    try:
        return view_tensor_as_array(value, what)
    except RuntimeError:  # the tensor is a torch.func wrapper, or torch.func would wrap the result
        pass
    try:
        value = unwrap_func_tensor(value)
    except ValueError:  # the memory of a batched tensor has one more dimension than the tensor
        return value
    return call_in_new_thread(view_tensor_as_array, value, what)


def view_array_as_tensor(array: Any) -> torch.Tensor:
    """Return a tensor that views an array's memory; if torch allocated that memory, the tensor shares its storage."""
    if isinstance(array, np.ndarray):
        if array.dtype.kind == "V":  # as for ml_dtypes.bfloat16
            return view_array_as_tensor(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)
    owner = _tensors_by_address.get(array.data.mem.ptr) if array.flags.c_contiguous else None
    if owner is None:
        return torch.utils.dlpack.from_dlpack(array)
    begin = array.data.ptr - owner.data_ptr()
    return owner[begin : begin + array.nbytes].view(getattr(torch, array.dtype.name)).view(array.shape)


class _StreamHandle:
    """Stream with the ``__cuda_stream__`` protocol, which torch's own streams support since version 2.9."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


@functools.lru_cache(maxsize=256)  # one stream per device and handle
def _make_cupy_stream(device: int, handle: int) -> Any:
    return import_cupy().cuda.Stream.from_external(_StreamHandle(handle))


def _get_torch_stream_for_cupy(device: int) -> Any:
    """Return torch's current stream on a device as a CuPy stream."""
    return _make_cupy_stream(device, torch.cuda.current_stream(device).cuda_stream or LEGACY)


class _TorchAllocator:
    """CuPy allocator that gets its memory from torch. With `shares`, small arrays share allocations to save time."""

    def __init__(self, cuda: Any, device: torch.device, shares: bool) -> None:
        self.cuda, self.device, self.shares = cuda, device, shares
        self.chunk: Any = None
        self.used = 0

    def __call__(self, size: int) -> Any:
        """Return a CuPy pointer to `size` bytes."""
        if not self.shares or size > SMALL:
            return self.cuda.MemoryPointer(self._allocate_memory(size), 0)
        size = -(-size // ALIGNMENT) * ALIGNMENT
        if self.chunk is None or self.used + size > CHUNK:
            self.chunk, self.used = self._allocate_memory(CHUNK), 0
        self.used += size
        return self.cuda.MemoryPointer(self.chunk, self.used - size)

    def _allocate_memory(self, size: int) -> Any:
        tensor = torch.empty(size, dtype=torch.uint8, device=self.device)
        if size:
            _tensors_by_address[tensor.data_ptr()] = tensor
        return self.cuda.UnownedMemory(tensor.data_ptr(), size, tensor, self.device.index)


@contextlib.contextmanager
def use_torch_stream_and_allocator(tensor: torch.Tensor, shares: bool = False) -> Iterator[None]:
    """Make CuPy use a CUDA tensor's device, torch's current stream and torch's allocator; do nothing for a CPU tensor.

    With `shares`, small arrays share allocations, each freed with its last array; use it only for temporary arrays.
    """
    if not tensor.is_cuda:
        yield
        return
    cupy = import_cupy()

    device, previous_device = tensor.device.index, getattr(_thread_state, "device", None)
    with (
        cupy.cuda.Device(device),
        _get_torch_stream_for_cupy(device),
        cupy.cuda.using_allocator(_TorchAllocator(cupy.cuda, tensor.device, shares)),
    ):
        _thread_state.device = device
        try:
            yield
        finally:
            _thread_state.device = previous_device
