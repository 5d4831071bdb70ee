"""Time and memory on a CUDA device: events of the library that runs there, never the host's clock."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from trigraph.benchmarks.calls import Call, Unavailable


def require_device(clock: str) -> None:
    """Raise Unavailable unless the library of this clock sees a CUDA device."""
    if clock == "torch":
        import torch

        if not torch.cuda.is_available():
            raise Unavailable("torch sees no CUDA device")
        return
    import cupy

    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise Unavailable("cupy sees no CUDA device") from error


def timer(clock: str) -> Callable[[Call, int], float]:
    """Seconds of one call between two events on the current stream."""
    cuda: Any = importlib.import_module(f"{clock}.cuda")
    elapsed = cuda.Event.elapsed_time if clock == "torch" else cuda.get_elapsed_time

    def seconds(call: Call, number: int) -> float:
        start, stop = (cuda.Event(**({"enable_timing": True} if clock == "torch" else {})) for _ in range(2))
        start.record()
        for _ in range(number):
            call()
        stop.record()
        stop.synchronize()
        return float(elapsed(start, stop)) / 1000 / number

    return seconds


def peak_memory(clock: str) -> Callable[[Call], tuple[dict[str, Any], int]]:
    """Results of one run, and by how many bytes its device allocations grew at most."""

    def torch_peak(call: Call) -> tuple[dict[str, Any], int]:
        import torch

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        results = call()
        torch.cuda.synchronize()
        return results, torch.cuda.max_memory_allocated() - before

    def cupy_peak(call: Call) -> tuple[dict[str, Any], int]:
        import cupy

        class Tally(cupy.cuda.MemoryHook):  # type: ignore[misc]
            """Bytes taken from the pool and not yet given back."""

            name = "trigraph.benchmarks"
            live = peak = 0

            def malloc_postprocess(self, **taken: Any) -> None:
                self.live += taken["mem_size"]
                self.peak = max(self.peak, self.live)

            def free_postprocess(self, **given: Any) -> None:
                self.live -= given["mem_size"]

        tally = Tally()
        with tally:
            results = call()
        cupy.cuda.get_current_stream().synchronize()
        return results, tally.peak

    return torch_peak if clock == "torch" else cupy_peak
