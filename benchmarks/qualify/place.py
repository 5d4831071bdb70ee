"""Where a qualification runs: on the CUDA device, or in a rehearsal on the CPU, by the same lines of Python."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np

from trigraph.graphs import to_device

Call = Callable[[], Any]
PROPERTIES = (
    "name",
    "major",
    "minor",
    "multiProcessorCount",
    "totalGlobalMem",
    "l2CacheSize",
    "clockRate",
    "memoryClockRate",
    "memoryBusWidth",
    "sharedMemPerMultiprocessor",
    "regsPerMultiprocessor",
    "ECCEnabled",
)


class Device:
    """The current CUDA device."""

    backend: Any = "gpu"
    rehearsal = False
    #: Parts that may run at once, where they are not timed; each has a context of its own on the device.
    jobs = max(1, min(8, (os.cpu_count() or 1) // 2))

    @property
    def xp(self) -> Any:
        """CuPy."""
        import cupy

        return cupy

    def moved(self, value: Any) -> Any:
        """Return arguments with arrays of this place instead of NumPy's, graphs too."""
        return {n: self.moved(v) for n, v in value.items()} if isinstance(value, dict) else to_device(value)

    def hosted(self, value: Any) -> Any:
        """Return arrays, and dicts of them, as NumPy has them; None is None."""
        if isinstance(value, dict):
            return {name: self.hosted(v) for name, v in value.items()}
        return None if value is None else np.asarray(self.xp.asnumpy(value))

    def size(self, full: int, small: int) -> int:
        """Return a size: that of a device, or of a rehearsal."""
        return small if self.rehearsal else full

    def synchronize(self) -> None:
        """Wait for all that the device has been given."""
        self.xp.cuda.Device().synchronize()

    def free_bytes(self) -> int:
        """Return how much memory is free."""
        self.xp.get_default_memory_pool().free_all_blocks()
        return int(self.xp.cuda.runtime.memGetInfo()[0])

    def seconds(self, call: Call, number: int = 1) -> float:
        """Return the seconds of one call, between two events on the current stream."""
        cuda = self.xp.cuda
        start, stop = cuda.Event(), cuda.Event()
        start.record()
        for _ in range(number):
            call()
        stop.record()
        stop.synchronize()
        return float(cuda.get_elapsed_time(start, stop)) / 1000 / number

    def stream(self) -> Any:
        """Return a new stream that waits for no other; ``with`` makes it this thread's current one."""
        return self.xp.cuda.Stream(non_blocking=True)

    def captured(self, call: Call) -> tuple[Any, Call]:
        """Capture a call in a CUDA graph; return its results, and a function that replays it and waits.

        The workspace comes from a pool that is nobody else's and lives as long as the function.
        """
        cuda = self.xp.cuda
        self.synchronize()  # the new stream waits for nobody, and the arguments may still be written
        pool, stream = cuda.MemoryPool(), cuda.Stream(non_blocking=True)
        with stream, cuda.using_allocator(pool.malloc):
            call()  # compiles and loads the kernels, which a capture cannot, and brings memory to the pool
            stream.synchronize()
            stream.begin_capture()
            try:
                results = call()
            finally:
                graph = stream.end_capture()
            stream.synchronize()

        def replay(pool: Any = pool) -> None:
            self.synchronize()
            graph.launch(stream=stream)
            stream.synchronize()

        return results, replay

    @contextlib.contextmanager
    def poisoned(self) -> Iterator[None]:
        """Let memory that nobody has written hold NaN, and -1 in integers."""
        xp, empty = self.xp, self.xp.empty

        def filled(shape: Any, dtype: Any = float, *rest: Any, **options: Any) -> Any:
            array = empty(shape, dtype, *rest, **options)
            array.fill(-1 if np.dtype(dtype).kind in "iu" else np.nan)
            return array

        def filled_like(prototype: Any, dtype: Any = None, *rest: Any, **options: Any) -> Any:
            return filled(options.pop("shape", None) or prototype.shape, dtype or prototype.dtype)

        with mock.patch.object(xp, "empty", filled), mock.patch.object(xp, "empty_like", filled_like):
            yield

    def properties(self) -> dict[str, Any]:
        """Return what the device says of itself, and the versions around it."""
        cuda = self.xp.cuda
        values = cuda.runtime.getDeviceProperties(cuda.runtime.getDevice())
        return {
            "device": {name: values[name] for name in PROPERTIES if name in values},
            "driver": cuda.runtime.driverGetVersion(),
            "runtime": cuda.runtime.runtimeGetVersion(),
            "nvrtc": ".".join(map(str, cuda.nvrtc.getVersion())),
            "cupy": self.xp.__version__,
        }

    def architecture(self) -> str:
        """Return ``"sm_90"`` and the like."""
        return f"sm_{self.xp.cuda.Device().compute_capability}"


class Rehearsal(Device):
    """The CPU in place of a device: gpu-host, NumPy, tiny sizes. It is evidence for the command, not for a device."""

    backend = "gpu-host"
    rehearsal = True
    jobs = 2
    xp: Any = np

    def moved(self, value: Any) -> Any:
        """Return the argument."""
        return value

    hosted = moved

    def synchronize(self) -> None:
        """Wait for nothing."""

    def free_bytes(self) -> int:
        """Return how much memory a rehearsal may take."""
        return 1 << 28

    def seconds(self, call: Call, number: int = 1) -> float:
        """Return the seconds of one call by the CPU's clock, which stand for nothing."""
        begun = time.perf_counter()
        for _ in range(number):
            call()
        return (time.perf_counter() - begun) / number

    def stream(self) -> Any:
        """Return something that ``with`` takes."""
        return contextlib.nullcontext(self)

    def captured(self, call: Call) -> tuple[Any, Call]:
        """Return the results of a call, and a function that writes those of another one over them."""
        results = call()

        def replay() -> None:
            for array, value in zip(results.values(), call().values(), strict=True):
                if array is not None:
                    array[...] = value

        return results, replay

    def properties(self) -> dict[str, Any]:
        """Return what stands for a device."""
        return {"device": {"name": "rehearsal on gpu-host, not a device", "multiProcessorCount": 1}}


def place(name: str) -> Device:
    """Return the place of a name, ``"gpu"`` or ``"gpu-host"``."""
    return Rehearsal() if name == "gpu-host" else Device()
