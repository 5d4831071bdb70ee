"""A stand-in for torch with CUDA: CPU tensors that claim to be on a CUDA device.

It records the streams passed to record_stream, and the sizes of allocations.
"""

import sys
from types import SimpleNamespace
from typing import NamedTuple
from unittest import mock

import cupy_stand_in
import torch

from trigraph.torch import arrays, graphs

DEVICE = torch.device("cuda", 0)


class Stream(NamedTuple):
    """A stand-in for torch.cuda.Stream, identified by its handle."""

    cuda_stream: int = 0


def _replace_device_by_cpu(function):
    """Wrap a torch function so that it uses the CPU instead of the device."""

    def call_on_cpu(*args, **kwargs):
        args = ["cpu" if isinstance(a, (torch.device, str)) else a for a in args]
        kwargs.pop("pin_memory", None)
        return function(*args, **{n: "cpu" if n == "device" and v is not None else v for n, v in kwargs.items()})

    return call_on_cpu


def install_torch_and_cupy(monkeypatch, cache):
    """Install the stand-ins for CuPy and torch; return the module cupy, and torch's current stream and records.

    `recorded_streams` lists the address and stream of each record_stream call, and `allocation_sizes`
    lists the size of each allocation.
    """
    torch.compiler.reset()  # import torch's compiler, which lists torch functions, before they are replaced
    cupy = cupy_stand_in.install_cupy(monkeypatch, cache)
    state = SimpleNamespace(stream=Stream(), recorded_streams=[], allocation_sizes=[])
    arrays._make_cupy_stream.cache_clear()
    for name, value in (("is_cuda", True), ("is_cpu", False), ("device", DEVICE)):
        monkeypatch.setattr(torch.Tensor, name, property(lambda self, value=value: value), raising=False)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda t, s: state.recorded_streams.append((t.data_ptr(), s)))
    for name in ("arange", "zeros", "full", "as_tensor", "tensor"):
        monkeypatch.setattr(torch, name, _replace_device_by_cpu(getattr(torch, name)))
    empty, from_dlpack = _replace_device_by_cpu(torch.empty), torch.utils.dlpack.from_dlpack
    monkeypatch.setattr(
        torch, "empty", lambda *size, **kw: (state.allocation_sizes.append(size), empty(*size, **kw))[1]
    )
    monkeypatch.setattr(torch.Tensor, "to", _replace_device_by_cpu(torch.Tensor.to))
    monkeypatch.setattr(torch.Tensor, "cpu", torch.Tensor.clone)

    def view_as_tensor(array):
        return torch.from_numpy(array.array) if type(array) is cupy_stand_in.ndarray else from_dlpack(array)

    def use_stream(chosen):
        return mock.patch.object(state, "stream", chosen or state.stream)

    monkeypatch.setattr(torch.utils.dlpack, "from_dlpack", view_as_tensor)
    for name in ("is_initialized", "is_available", "is_bf16_supported"):
        monkeypatch.setattr(torch.cuda, name, lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: state.stream)
    monkeypatch.setattr(torch.cuda, "stream", use_stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: cupy_stand_in.state.capturing)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    for name in ("base", "csc"):
        monkeypatch.setattr(sys.modules[f"trigraph.graphs.{name}"], "GRAPH_HOOKS", [graphs._cache_graph_tensors])
    return cupy, state
