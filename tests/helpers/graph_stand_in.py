"""A stand-in for torch's CUDA graphs on the CPU: a replay repeats recorded operations on the same memory.

As on a device, a replay reads the memory used during the capture, even if an input has since moved. Operations that
make the host wait for the device, or whose output shapes depend on values, raise errors during a capture.
"""

import contextlib
from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trigraph.torch.layers import activations
from trigraph.torch.potentials import captured, replay, training_step

SYNCHRONISING = ("_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "unique", "masked_select", "bincount")


def waits_for_device(func, args):
    """Return whether an operation would make the host wait for the device."""
    name = func._schema.name.partition("::")[2].split(".")[0]
    by_mask = name == "index" and any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1])
    repeats = name == "repeat_interleave" and len(args) == 1
    return name.startswith(SYNCHRONISING[-3:]) or name in SYNCHRONISING or by_mask or repeats


class OperationCounter(TorchDispatchMode):
    """Counts torch operations, except views, allocations and detach."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        package, name = func.name().split("::")
        self.count += package == "aten" and not func.is_view and not name.startswith(("empty", "detach"))
        return func(*args, **(kwargs or {}))


class OperationRecorder(TorchDispatchMode):
    """Records operations with their arguments and results, and the values they overwrite."""

    def __init__(self):
        super().__init__()
        self.calls, self.before = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if waits_for_device(func, args):
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        named = {**dict(zip((a.name for a in func._schema.arguments), args, strict=False)), **(kwargs or {})}
        for argument in func._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                values = named.get(argument.name)
                values = values if argument.type.kind() == "ListType" else [values]
                self.before += [(value, value.clone()) for value in values if value is not None]
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out


class CUDAGraph:
    """A stand-in for a CUDA graph: the operations recorded during one capture."""

    def __init__(self):
        self.calls, self.replays = [], 0
        state.graphs.append(self)

    def replay(self):
        self.replays += 1
        with torch.no_grad():
            for func, args, kwargs, out in self.calls:
                result_lists = [r if isinstance(r, (tuple, list)) else (r,) for r in (func(*args, **kwargs), out)]
                for new, old in zip(*result_lists, strict=True):
                    if isinstance(old, torch.Tensor) and (old.data_ptr() != new.data_ptr() or not old.numel()):
                        old.detach().copy_(new)


state = SimpleNamespace(graphs=[], capturing=False)


@contextlib.contextmanager
def capture_graph(cuda_graph, pool=None):
    state.capturing = True
    try:
        with OperationRecorder() as recorder:
            yield
        cuda_graph.calls = recorder.calls
        for tensor, value in reversed(recorder.before):  # undo the operations: a capture executes nothing
            tensor.detach().copy_(value)
    finally:
        state.capturing = False


def install_cuda_graphs(monkeypatch):
    """Replace torch's CUDA graphs by the stand-in, which captures CPU tensors; return the list of captured graphs."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    replacements = {
        "CUDAGraph": CUDAGraph,
        "graph": capture_graph,
        "Stream": lambda: stream,
        "current_stream": lambda: stream,
        "stream": contextlib.nullcontext,
        "device": contextlib.nullcontext,
        "graph_pool_handle": lambda: (0, 1),
        "Event": lambda: SimpleNamespace(record=lambda: None, synchronize=lambda: None),
        "is_current_stream_capturing": lambda: state.capturing,
    }
    for name, value in replacements.items():
        monkeypatch.setattr(torch.cuda, name, value)
    for module in (replay, captured, training_step):
        monkeypatch.setattr(module, "uses_cuda_graph", lambda device: True)
    # trigraph's CPU activation kernels are not torch operations, so the recorder would miss them.
    monkeypatch.setattr(activations, "_kernel_supports", lambda *tensors: False)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    state.graphs.clear()
    return state.graphs
