"""A stand-in for CuPy that needs no device: it wraps NumPy arrays, runs kernels on the CPU, and is stricter.

It rejects three mistakes that CuPy may accept: an operation on arrays of a device that is not current, a read on one
stream while another stream still writes, and synchronisation while a stream is captured. The stand-in tests only the
code around the kernels (devices, streams, copies, launches).
"""

import ctypes
import itertools
import sys
import types
from pathlib import Path
from unittest import mock

import numpy as np

from trigraph.gpu import launcher
from trigraph.gpu.instances import INSTANCES
from trigraph.graphs import base, csc

LARGEST_GRID = (2**31 - 1, 65535, 65535)


class DeviceMisuse(AssertionError):
    """Raised for a mistake that would cause wrong results or an error on a device."""


class DeviceStandIn:
    """A CUDA device; a ``with`` statement makes it current."""

    compute_capability = "90"

    def __init__(self, number=None):
        self.id = state.device if number is None else number

    def __enter__(self):
        self._previous, state.device = state.device, self.id
        return self

    def __exit__(self, *_):
        state.device = self._previous


class Stream:
    """A stream whose work is treated as unfinished until it is synchronised; a ``with`` statement makes it current."""

    def __init__(self, ptr=None):
        self.ptr = next(state.clock) + 100 if ptr is None else ptr
        self.finished_before = 0  # time before which all work of this stream has finished

    @classmethod
    def from_external(cls, stream):
        version, ptr = stream.__cuda_stream__()
        assert version == 0
        return cls(ptr)

    def __enter__(self):
        self._previous, state.stream = state.stream, self
        return self

    def __exit__(self, *_):
        state.stream = self._previous

    def synchronize(self):
        if state.capturing:
            raise DeviceMisuse("a captured stream cannot be waited for")
        self.finished_before = next(state.clock)


class DeviceState:
    """The current device, stream and allocator, and the number of kernel launches."""

    def __init__(self):
        self.clock = itertools.count(1)
        self.device = 0
        self.stream = Stream(0)
        self.allocator = None
        self.capturing = False
        self.dry = False  # whether to count launches without executing them
        self.launches = 0  # kernel launches of trigraph and of CuPy


state = DeviceState()


class TrackedMemory:
    """Memory shared by an array and its views; records its device, and the time and stream of its last write.

    If another library has allocated the memory, `ptr` is its address, and `owner` keeps it alive.
    """

    def __init__(self, ptr=None, size=0, owner=None, device=None):
        self.ptr, self.owner = ptr, owner
        self.device = state.device if device is None else device
        self.record_write()
        if owner is not None:
            self.time = 0

    def record_write(self):
        self.stream, self.time = state.stream, next(state.clock)

    def check_use(self):
        if self.device != state.device:
            raise DeviceMisuse(f"an array on device {self.device} is used while device {state.device} is current")
        if self.stream.ptr != state.stream.ptr and self.time > self.stream.finished_before:
            raise DeviceMisuse("an array is used that another stream may still write")


class MemoryPointer:
    """A pointer to an offset in a block of memory."""

    def __init__(self, mem, offset):
        self.mem, self.ptr = mem, mem.ptr + offset


def using_allocator(allocator):
    return mock.patch.object(state, "allocator", allocator)


def _to_numpy(value):
    """Replace the stand-in's arrays, also in lists and tuples, by NumPy arrays."""
    if isinstance(value, ndarray):
        value.memory.check_use()
        return value.array
    if isinstance(value, (list, tuple)):
        return type(value)(map(_to_numpy, value))
    return value


def _to_device_array(value):
    """Copy NumPy results to memory from the current allocator; as in CuPy, scalars become arrays of rank 0."""
    if not isinstance(value, (np.ndarray, np.generic)):
        return value
    if state.allocator is None or value.size == 0:
        return ndarray(np.asarray(value))
    result = ndarray(value.shape, value.dtype, state.allocator(value.nbytes))
    result.array[...] = value
    result.memory.record_write()
    return result


class ndarray(np.lib.mixins.NDArrayOperatorsMixin):
    """An array on a device."""

    def __init__(self, array, memory=None, memptr=None, strides=None):
        if memptr is not None:  # the arguments are (shape, dtype, memptr, strides), as in CuPy
            buffer = (ctypes.c_char * sys.maxsize).from_address(memptr.ptr)
            array, memory = np.ndarray(array, memory, buffer, 0, strides), memptr.mem
        self.array = array
        self.memory = memory or TrackedMemory()

    shape, dtype, size, ndim, itemsize, nbytes, strides, flags = (
        property(lambda self, name=name: getattr(self.array, name))
        for name in ("shape", "dtype", "size", "ndim", "itemsize", "nbytes", "strides", "flags")
    )
    device = property(lambda self: DeviceStandIn(self.memory.device))
    data = property(
        lambda self: types.SimpleNamespace(ptr=self.array.ctypes.data, mem=self.memory, device_id=self.memory.device)
    )
    T = property(lambda self: ndarray(self.array.T, self.memory))

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        state.launches += 1
        return _to_device_array(getattr(ufunc, method)(*map(_to_numpy, inputs), **kwargs))

    def __array__(self, *_, **__):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def __getitem__(self, key):
        selected = self.array[_to_numpy(key)]
        shares = (
            isinstance(selected, np.ndarray) and selected.base is not None and np.shares_memory(selected, self.array)
        )
        return ndarray(selected, self.memory) if shares else ndarray(np.asarray(selected))

    def __setitem__(self, key, value):
        self.memory.check_use()
        self.array[_to_numpy(key)] = _to_numpy(value)
        self.memory.record_write()
        state.launches += 1

    def __len__(self):
        return len(self.array)

    def fill(self, value):
        self[...] = value

    def reshape(self, *shape):
        return ndarray(self.array.reshape(*shape), self.memory)

    def get(self, out=None):
        """Wait for the current stream, and return a NumPy array."""
        state.stream.synchronize()
        if out is None:
            return _to_numpy(self).copy()
        out[...] = _to_numpy(self)
        return out

    def __int__(self):
        return int(self.get())

    def __float__(self):
        return float(self.get())

    def __bool__(self):
        return bool(self.get())

    __index__ = __int__

    def __getattr__(self, name):
        if name not in ("astype", "copy", "sum", "min", "max", "argmax", "any", "all", "cumsum"):
            raise AttributeError(name)
        state.launches += 1
        return lambda *args, **kwargs: _to_device_array(getattr(_to_numpy(self), name)(*_to_numpy(args), **kwargs))


ndarray.__module__ = "cupy"


class CompiledKernel:
    """A kernel template instantiated for given types."""

    def __init__(self, family, name):
        self.family, self.name = family, name
        self.max_dynamic_shared_size_bytes = 48 * 1024

    def __call__(self, grid, block, args, shared_mem=0):
        args = [a for value in args for a in (value if isinstance(value, tuple) else (value,))]
        for wrong, text in (
            (shared_mem > self.max_dynamic_shared_size_bytes, f"{shared_mem} bytes of shared memory, too many"),
            (not isinstance(grid, tuple) or not isinstance(block, tuple), "extents that are not tuples"),
            (not all(isinstance(a, (ndarray, np.generic)) for a in args), "neither arrays nor NumPy scalars"),
            (any(n > limit for n, limit in zip(grid, LARGEST_GRID, strict=False)), "more than a device grants"),
        ):
            if wrong:
                raise DeviceMisuse(f"{self.name} is launched with {text}: grid {grid}, block {block}")
        library = launcher._HOST.library(self.family)
        parameters = library.parameter_layout(self.name).flat
        host_args = [
            None if p.is_pointer and not isinstance(a, ndarray) else _to_numpy(a)
            for a, p in zip(args, parameters, strict=True)
        ]
        state.launches += 1
        if not state.dry:
            library.launch(self.name, grid, block, host_args, shared_mem, "forward", 0)
        for value, parameter in zip(args, parameters, strict=True):
            if isinstance(value, ndarray) and not parameter.is_const:
                value.memory.record_write()


class RawModule:
    """A module loaded from a "compiled" file, which contains only the names of the family and the instance."""

    def __init__(self, *, path):
        self._family, self._name = Path(path).read_text().split("\n")

    def get_function(self, name):
        assert name == "function"
        return CompiledKernel(self._family, self._name)


def compile_using_nvrtc(source, options, filename, name_expressions):
    family, (name,) = Path(filename).stem, name_expressions
    assert name in INSTANCES[family]
    return f"{family}\n{name}".encode(), {name: "function"}


def simulate_capture():
    """Return a context manager that simulates a stream capture: any synchronisation raises an error."""
    return mock.patch.object(state, "capturing", True)


def asarray(value):
    """Copy a NumPy array to the device, and wait until the copy has finished."""
    array = ndarray(np.array(value))
    array.memory.time = 0
    return array


def asnumpy(value):
    """Return a NumPy array; a NumPy argument is returned unchanged."""
    return value.get() if isinstance(value, ndarray) else np.asarray(value)


def install_cupy(monkeypatch, cache):
    """Make ``import cupy`` find the stand-in; "compiled" kernels are written to the folder `cache`."""
    global state
    state = DeviceState()
    cupy = types.ModuleType("cupy")
    cupy.__version__ = "14.2.0"
    cupy.ndarray, cupy.RawModule, cupy.asarray, cupy.asnumpy = ndarray, RawModule, asarray, asnumpy
    cupy.cuda = types.SimpleNamespace(
        Device=DeviceStandIn,
        Stream=Stream,
        UnownedMemory=TrackedMemory,
        MemoryPointer=MemoryPointer,
        using_allocator=using_allocator,
        get_current_stream=lambda: state.stream,
        runtime=types.SimpleNamespace(getDevice=lambda: state.device),
        nvrtc=types.SimpleNamespace(getVersion=lambda: (13, 0)),
        compiler=types.SimpleNamespace(compile_using_nvrtc=compile_using_nvrtc),
    )
    cupy.may_share_memory = lambda a, b: np.may_share_memory(a.array, b.array)

    def make_array_function(name):
        def call_numpy(*args, **kwargs):
            state.launches += not name.startswith("empty")
            numpy_name = "zeros" if name == "empty" and state.dry else name  # uninitialised NaN would cause warnings
            arrays = {n: _to_numpy(value) for n, value in kwargs.items()}
            return _to_device_array(getattr(np, numpy_name)(*_to_numpy(args), **arrays))

        return call_numpy

    for name in (
        "arange", "argmax", "argsort", "array", "ascontiguousarray", "bincount", "concatenate", "cumsum", "empty",
        "empty_like", "flatnonzero", "hypot", "isfinite", "maximum", "minimum", "searchsorted", "stack", "take",
        "where", "zeros", "zeros_like",
    ):  # fmt: skip
        setattr(cupy, name, make_array_function(name))
    cupyx = types.ModuleType("cupyx")
    cupyx.empty_pinned = np.empty
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupyx", cupyx)
    monkeypatch.setenv("CUPY_CACHE_DIR", str(cache))
    monkeypatch.setattr(launcher, "_device", None)
    monkeypatch.setattr(launcher, "_pack_struct", lambda dtype, members: tuple(members))
    monkeypatch.setattr(launcher, "COMPILE_AHEAD", False)
    for module in (base, csc):  # a real torch, if imported, cannot view these arrays
        monkeypatch.setattr(module, "GRAPH_HOOKS", [])
    return cupy
