"""Interface to the CUDA device or, in a rehearsal, to the CPU, so that checks use the same code for both."""

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
    """Current CUDA device."""

    backend: Any = "gpu"
    rehearsal = False
    #: Maximum number of parts that run concurrently if they are not timed. Each needs its own context on the device.
    jobs = max(1, min(8, (os.cpu_count() or 1) // 2))

    @property
    def xp(self) -> Any:
        """CuPy."""
        import cupy

        return cupy

    def move_to_device(self, value: Any) -> Any:
        """Return the arguments with NumPy arrays, including those in graphs, moved to this device."""
        return {n: self.move_to_device(v) for n, v in value.items()} if isinstance(value, dict) else to_device(value)

    def copy_to_host(self, value: Any) -> Any:
        """Return arrays, or dicts of arrays, as NumPy arrays; return None unchanged."""
        if isinstance(value, dict):
            return {name: self.copy_to_host(v) for name, v in value.items()}
        return None if value is None else np.asarray(self.xp.asnumpy(value))

    def shrink_in_rehearsal(self, full: int, small: int) -> int:
        """Return `full` for a device, or `small` for a rehearsal."""
        return small if self.rehearsal else full

    def synchronize(self) -> None:
        """Wait until the device has finished all submitted work."""
        self.xp.cuda.Device().synchronize()

    def measure_free_bytes(self) -> int:
        """Return the free memory in bytes."""
        self.xp.get_default_memory_pool().free_all_blocks()
        return int(self.xp.cuda.runtime.memGetInfo()[0])

    def measure_seconds(self, call: Call, number: int = 1) -> float:
        """Return the seconds of one call, measured between two events on the current stream."""
        cuda = self.xp.cuda
        start, stop = cuda.Event(), cuda.Event()
        start.record()
        for _ in range(number):
            call()
        stop.record()
        stop.synchronize()
        return float(cuda.get_elapsed_time(start, stop)) / 1000 / number

    def make_stream(self) -> Any:
        """Return a new non-blocking stream; ``with`` makes it the thread's current stream."""
        return self.xp.cuda.Stream(non_blocking=True)

    def capture_call(self, call: Call) -> tuple[Any, Call]:
        """Capture a call in a CUDA graph; return the results, and a function that replays the graph and waits.

        The workspace comes from a separate memory pool, which exists as long as the function.
        """
        cuda = self.xp.cuda
        self.synchronize()  # needed because the new stream does not wait for pending writes to arguments
        pool, stream = cuda.MemoryPool(), cuda.Stream(non_blocking=True)
        with stream, cuda.using_allocator(pool.malloc):
            call()  # compiles and loads the kernels, which is impossible during capture, and fills the pool
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
    def fill_uninitialized(self) -> Iterator[None]:
        """Fill uninitialised arrays with NaN, or with -1 if they contain integers."""
        xp, empty = self.xp, self.xp.empty

        def create_filled(shape: Any, dtype: Any = float, *rest: Any, **options: Any) -> Any:
            array = empty(shape, dtype, *rest, **options)
            array.fill(-1 if np.dtype(dtype).kind in "iu" else np.nan)
            return array

        def create_filled_like(prototype: Any, dtype: Any = None, *rest: Any, **options: Any) -> Any:
            return create_filled(options.pop("shape", None) or prototype.shape, dtype or prototype.dtype)

        with mock.patch.object(xp, "empty", create_filled), mock.patch.object(xp, "empty_like", create_filled_like):
            yield

    def collect_properties(self) -> dict[str, Any]:
        """Return the properties of the device, and the versions of driver, CUDA and CuPy."""
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
        """Return the device's architecture, such as ``"sm_90"``."""
        return f"sm_{self.xp.cuda.Device().compute_capability}"


class Rehearsal(Device):
    """CPU instead of a device (gpu-host, NumPy, tiny sizes), to test the command without a device."""

    backend = "gpu-host"
    rehearsal = True
    jobs = 2
    xp: Any = np

    def move_to_device(self, value: Any) -> Any:
        """Return the argument unchanged."""
        return value

    copy_to_host = move_to_device

    def synchronize(self) -> None:
        """Do nothing, because the CPU does not run asynchronously."""

    def measure_free_bytes(self) -> int:
        """Return the memory in bytes that a rehearsal may use."""
        return 1 << 28

    def measure_seconds(self, call: Call, number: int = 1) -> float:
        """Return the seconds of one call on the CPU, which are unrelated to a device's."""
        begun = time.perf_counter()
        for _ in range(number):
            call()
        return (time.perf_counter() - begun) / number

    def make_stream(self) -> Any:
        """Return a context that does nothing."""
        return contextlib.nullcontext(self)

    def capture_call(self, call: Call) -> tuple[Any, Call]:
        """Return the results of a call, and a function that overwrites them with the results of another call."""
        results = call()

        def replay() -> None:
            for array, value in zip(results.values(), call().values(), strict=True):
                if array is not None:
                    array[...] = value

        return results, replay

    def collect_properties(self) -> dict[str, Any]:
        """Return properties that describe the rehearsal."""
        return {"device": {"name": "rehearsal on gpu-host, not a device", "multiProcessorCount": 1}}


def make_device(name: str) -> Device:
    """Return the device for the backend ``"gpu"``, or the CPU for ``"gpu-host"``."""
    return Rehearsal() if name == "gpu-host" else Device()
