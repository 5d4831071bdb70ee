"""Repeated execution of a function of tensors at fixed addresses; on CUDA devices, as a CUDA graph."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def uses_cuda_graph(device: torch.device) -> bool:
    """Return whether `Replay` captures a CUDA graph on this device."""
    return device.type == "cuda"


class Replay:
    """Function without arguments that reads tensors at fixed addresses. On the CPU, each call executes the function.

    On a CUDA device, the first call executes the function on a separate stream, so that kernels are compiled and
    libraries allocate their workspaces. The second call captures the function in a CUDA graph. The second and all later
    calls replay the graph, and return the same tensors.

    Replays see new values of the tensors, but everything else as it was during capture. The owner must keep the tensors
    alive, and must create a new `Replay` after any other change.
    """

    def __init__(self, owner: str, function: Callable[[], tuple[Tensor | None, ...]], device: torch.device, pool: Any):
        self.owner, self.function, self.device, self.pool = owner, function, device, pool
        self.called = False
        self.graph: Any = None
        self.results: tuple[Tensor | None, ...] = ()

    def __call__(self) -> tuple[Tensor | None, ...]:
        """Execute the function or replay its graph, and return the results."""
        if not uses_cuda_graph(self.device):
            return self.function()
        with torch.cuda.device(self.device):
            if torch.cuda.is_current_stream_capturing():
                raise RuntimeError(
                    f"{self.owner}: called while a CUDA graph is captured; expected no capture, or the original model"
                )
            if not self.called:
                return self._call_on_side_stream()
            if self.graph is None:
                self.graph = self._capture_cuda_graph()
            self.graph.replay()
            return self.results

    def _call_on_side_stream(self) -> tuple[Tensor | None, ...]:
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            results = self.function()
        current.wait_stream(side)
        for tensor in results:
            if tensor is not None:
                tensor.record_stream(current)
        self.called = True
        return results

    def _capture_cuda_graph(self) -> Any:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self.pool):
                self.results = self.function()
        except Exception as error:
            raise RuntimeError(
                f"{self.owner}: cannot be captured in a CUDA graph; expected operations that neither wait for the "
                f"device nor have sizes that depend on values, unlike item(), bool(tensor) and nonzero(): {error}"
            ) from error
        return graph
