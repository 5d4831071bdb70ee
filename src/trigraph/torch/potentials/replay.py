"""A function of tensors that keep their memory, repeated by a CUDA graph on a device."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def is_captured(device: torch.device) -> bool:
    """Return whether calls on a device are captured in CUDA graphs."""
    return device.type == "cuda"


class Replay:
    """A function without arguments, of tensors whose memory stays; on the CPU each call is one of the function.

    On a device the first call is one of the function, on a stream of its own: kernels are compiled, and libraries take
    their workspaces. The second captures it in a CUDA graph, which each call from then on repeats. Results are the same
    tensors in each call then.

    A graph depends on everything that the function reads, as it was when the graph was captured, other than the values
    of tensors. Its owner keeps the tensors, and makes another one after any other change.
    """

    def __init__(self, owner: str, function: Callable[[], tuple[Tensor | None, ...]], device: torch.device, pool: Any):
        self.owner, self.function, self.device, self.pool = owner, function, device, pool
        self.called = False
        self.graph: Any = None
        self.results: tuple[Tensor | None, ...] = ()

    def __call__(self) -> tuple[Tensor | None, ...]:
        """Return the function's results."""
        if not is_captured(self.device):
            return self.function()
        with torch.cuda.device(self.device):
            if torch.cuda.is_current_stream_capturing():
                raise RuntimeError(
                    f"{self.owner}: called while a CUDA graph is captured; expected a call outside, or the model"
                )
            if not self.called:
                return self._call_beside()
            if self.graph is None:
                self.graph = self._capture()
            self.graph.replay()
            return self.results

    def _call_beside(self) -> tuple[Tensor | None, ...]:
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

    def _capture(self) -> Any:
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
