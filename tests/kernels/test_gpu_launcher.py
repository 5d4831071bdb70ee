"""The launcher: argument checks, refusals, threads, fork, and what it asks of CuPy."""

import gc
import os
import subprocess
import sys
import threading
import types
import weakref
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from host_kernels import library

from trigraph.gpu import launcher
from trigraph.gpu.instances import INSTANCES, expand
from trigraph.gpu.launcher import HostLibrary, KernelError, instance_name, runtime, using_host_library

F4, F8 = np.dtype("f4"), np.dtype("f8")


@pytest.fixture
def host():
    with using_host_library(library("primitives")):
        yield runtime(np.empty(0))


def scale(host, x, y, factor=None, n=None, dtype=F4, grid=(1,), block=(32,), **more):
    factor = np.float32(2) if factor is None else factor
    n = np.int64(np.size(x)) if n is None else n
    host.launch("primitives", "scale", (dtype,), grid, block, (x, y, factor, n), **more)


def floats(size=32):
    return np.ones(size, np.float32)


class TestArguments:
    def test_right(self, host):
        y = floats()
        scale(host, floats(), y)
        assert (y == 2).all()
        assert host.name == "gpu-host"
        assert host.xp is np

    @pytest.mark.parametrize(
        ("arguments", "error", "says"),
        [
            (
                {"x": floats().astype(F8)},
                TypeError,
                r"scale<float>: argument 0 \(x\) must be a float32 array .* float64",
            ),
            (
                {"y": floats().astype(">f4")},
                TypeError,
                r"argument 1 \(y\) must be a float32 array .* got a numpy.ndarray of >f4",
            ),
            ({"y": [1.0]}, TypeError, r"argument 1 \(y\) must be a float32 array for float\*, got a list"),
            ({"x": np.float32(1)}, TypeError, r"argument 0 \(x\) .* for const float\*, got a float32 scalar"),
            ({"factor": 2.0}, TypeError, r"argument 2 \(factor\) must be a float32 scalar for float, got a float"),
            ({"factor": np.float64(2)}, TypeError, r"argument 2 \(factor\) .* got a float64 scalar"),
            ({"n": 32}, TypeError, r"argument 3 \(n\) must be a int64 scalar for long long, got a int"),
            ({"n": np.int32(32)}, TypeError, r"argument 3 \(n\) .* got a int32 scalar"),
            ({"n": floats()}, TypeError, r"argument 3 \(n\) .* got a numpy.ndarray of float32"),
            ({"x": floats(64)[::2]}, ValueError, r"argument 0 \(x\) must be C-contiguous, got strides \(8,\)"),
            ({"x": np.ones((4, 8), F4).T}, ValueError, r"argument 0 \(x\) must be C-contiguous"),
            ({"y": np.frombuffer(b"x" * 128, F4)}, ValueError, r"argument 1 \(y\) is written .* read-only"),
            ({"y": np.frombuffer(bytearray(129), np.uint8)[1:].view(F4)}, ValueError, "aligned"),
            ({"dtype": np.dtype("i2")}, TypeError, "instantiated for float32, float64, .* int64, not for int16"),
            ({"dtype": np.dtype("f2")}, ValueError, r"scale<float16> is not among the instances"),
            ({"dtype": np.dtype("i4")}, ValueError, r"scale<int> is not among the instances"),
        ],
    )
    def test_wrong(self, host, arguments, error, says):
        y = floats()
        with pytest.raises(error, match=says):
            scale(host, **{"x": floats(), "y": y, **arguments})
        assert (y == 1).all()

    def test_number_of_arguments(self, host):
        with pytest.raises(TypeError, match="takes 4 arguments, got 1"):
            host.launch("primitives", "scale", (F4,), (1,), (1,), (floats(),))

    def test_read_only_input(self, host):
        x = floats()
        x.flags.writeable = False
        scale(host, x, floats())

    def test_name_of_family(self, host):
        with pytest.raises(ImportError, match=r"trigraph.gpu._host_nothing is not installed"):
            host.launch("nothing", "scale", (F4,), (1,), (1,), ())

    @pytest.mark.parametrize(
        ("launch", "says"),
        [
            ({"block": (2048,)}, "more than a device grants"),
            ({"block": (1, 1, 128)}, "more than a device grants"),
            ({"block": (0,)}, "no threads"),
            ({"grid": (1, 70000)}, "more than a device grants"),
            ({"shared_mem": 300000}, "dynamic shared memory"),
        ],
    )
    def test_refused(self, host, launch, says):
        with pytest.raises(ValueError, match=says):
            scale(host, floats(), floats(), **launch)

    def test_empty_grid_launches_nothing(self, host):
        y = floats()
        scale(host, floats(), y, grid=(0,))
        scale(host, floats(), y, grid=(3, 0))
        assert (y == 1).all()

    def test_place(self):
        with pytest.raises(TypeError, match=r"numpy.ndarray or a cupy.ndarray, got builtins.list"):
            runtime([1.0])

    def test_instance_name(self):
        assert instance_name("k", ()) == "k"
        assert instance_name("k", (F4, np.int64)) == "k<float, long long>"
        assert instance_name("k", (F8, 16, True)) == "k<double, 16, true>"
        assert expand("k") == ("k",)
        assert expand("k", ("float", "double"), ("int",)) == ("k<float, int>", "k<double, int>")


def test_instances_need_no_numpy():
    code = "import runpy, sys; runpy.run_path(sys.argv[1]); assert 'numpy' not in sys.modules"
    source = launcher.KERNELS.parent / "instances.py"
    subprocess.run([sys.executable, "-S", "-c", code, str(source)], check=True)


class TestUsing:
    def test_restores(self, host):
        other = HostLibrary(library("faults"))
        with using_host_library(other, "reverse"):
            host.launch("faults", "deadlock", (True,), (1,), (64,), (floats(64),))
        with pytest.raises(ImportError):
            host.launch("faults", "deadlock", (True,), (1,), (64,), (floats(64),))
        scale(host, floats(), floats())

    def test_order(self):
        with (
            pytest.raises(ValueError, match="order must be one of forward, reverse, random, got 'sideways'"),
            using_host_library(library("faults"), "sideways"),
        ):
            pass

    def test_other_extents_after_another(self, host):
        for threads in (1, 1024, 33, 7, 512):
            x, sums = np.ones(1024, F4), np.zeros(1, F4)
            y = np.zeros(threads, F4)
            scale(host, np.ones(threads, F4), y, block=(threads,))
            assert (y == 2).all()
            host.launch("primitives", "block_sum", (F4,), (1,), (1024,), (x, sums, np.int32(1024)))
            assert sums[0] == 1024


def busy(place, rounds):
    y = np.zeros((4, 256), np.float32)
    place.launch("faults", "busy", (True,), (4,), (256,), (y, np.int32(rounds)))
    assert (y == np.arange(4)[:, None]).all()


class TestConcurrency:
    @pytest.fixture(autouse=True)
    def faults(self, faults_fast):
        with using_host_library(faults_fast):
            yield

    def test_threads(self):
        place, failures = runtime(np.empty(0)), []

        def work():
            try:
                for _ in range(10):
                    busy(place, 20)
                    with pytest.raises(KernelError):
                        place.launch("faults", "deadlock", (False,), (1,), (64,), (floats(64),))
            except BaseException as failure:
                failures.append(failure)

        workers = [threading.Thread(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert not failures

    def test_fork_in_the_middle_of_a_launch(self):
        place, done = runtime(np.empty(0)), threading.Event()

        def launch_until_done():
            while not done.is_set():
                busy(place, 20)

        background = threading.Thread(target=launch_until_done, daemon=True)
        background.start()
        for _ in range(5):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    busy(place, 20)
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitpid(child, 0)[1] == 0
        assert background.is_alive()  # else this tested nothing
        done.set()
        background.join()
        busy(place, 20)


THREE = np.int32(3)


class FakeKernel:
    def __init__(self, name):
        self.name = name
        self.max_dynamic_shared_size_bytes = 48 * 1024
        self.calls = []

    def __call__(self, grid, block, args, shared_mem=0):
        self.calls.append((grid, block, args, shared_mem))


class FakeModule:
    made: ClassVar = []

    def __init__(self, *, path):
        self.path = Path(path)
        self.code = self.path.read_bytes()
        FakeModule.made.append(self)

    def get_function(self, name):
        return FakeKernel(name)


class FakeArray:
    def __init__(self, contiguous=True, device=0, dtype=F4):
        self.dtype = np.dtype(dtype)
        self.flags = types.SimpleNamespace(c_contiguous=contiguous)
        self.device = types.SimpleNamespace(id=device)
        self.strides, self.shape = (8,), (4,)


FakeArray.__module__ = "cupy"


class TestDevice:
    """No GPU here: a stand-in with the interface of CuPy 13 and 14 records what is asked of it."""

    @pytest.fixture
    def compiled(self):
        """Instances that NVRTC was asked for: options, file name, names and source."""
        return []

    @pytest.fixture
    def device(self, monkeypatch, tmp_path, compiled):
        def compile_using_nvrtc(source, options, filename, name_expressions):
            compiled.append((options, filename, name_expressions, source))
            return b"code of " + name_expressions[0].encode(), {name: "_Z3" + name for name in name_expressions}

        cuda = types.SimpleNamespace(
            runtime=types.SimpleNamespace(getDevice=lambda: 0),
            Device=lambda: types.SimpleNamespace(compute_capability="90"),
            nvrtc=types.SimpleNamespace(getVersion=lambda: (13, 0)),
            compiler=types.SimpleNamespace(compile_using_nvrtc=compile_using_nvrtc),
        )
        cupy = types.SimpleNamespace(ndarray=FakeArray, RawModule=FakeModule, cuda=cuda, __version__="14.2.0")
        (tmp_path / "toy.cu").write_text('#include "toy.cuh"\n')
        (tmp_path / "toy.cuh").write_text("template <class T> __global__ void toy(T* x) {}\n")
        monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        monkeypatch.setattr(launcher, "_device", None)
        monkeypatch.setattr(launcher, "KERNELS", tmp_path)
        monkeypatch.setitem(INSTANCES, "toy", expand("toy", ("float", "double")))
        monkeypatch.setattr(launcher, "_device_parameters", self.parameters)
        FakeModule.made.clear()
        return runtime(FakeArray())

    @staticmethod
    def parameters(family, name):
        """What the build wrote of an instance."""
        if name not in INSTANCES["toy"]:
            raise ValueError(f"toy: {name} is not among the instances of gpu/instances.py")
        real = name.removeprefix("toy<").removesuffix(">")
        return launcher._parameters(f"{real}*,int,const {real}*", "x,n,y")

    def launch(self, device, x=None, n=THREE, *more, dtype=F4, grid=(3,), shared_mem=0):
        args = (x, n, *(more or (None,)))
        device.launch("toy", "toy", (dtype,), grid, [64], args, shared_mem)
        return device._functions.get((0, "toy", "toy", dtype))

    def test_compiles_once_and_launches(self, device, compiled):
        x = FakeArray()
        assert runtime(x) is device
        assert device.name == "gpu"
        kernel = self.launch(device, x, np.int32(3))
        assert self.launch(device, x, np.int32(4)) is kernel
        ((options, filename, names, source),) = compiled
        assert (options, filename, names) == (launcher.OPTIONS, "toy.cu", ("toy<float>",))
        assert "void toy(T* x)" in source
        assert "#include" not in source
        (module,) = FakeModule.made
        assert module.code == b"code of toy<float>"
        assert kernel.name == "_Z3toy<float>"
        (grid, block, args, shared_mem), _ = kernel.calls
        assert (grid, block, shared_mem) == ((3,), (64,), 0)
        assert args == (x, 3, 0)
        assert [type(value) for value in args[1:]] == [np.int32, np.uintp]
        self.launch(device, FakeArray(dtype=F8), dtype=F8)
        assert [names for _, _, names, _ in compiled] == [("toy<float>",), ("toy<double>",)]

    def test_the_next_process_finds_what_was_compiled(self, device, compiled, monkeypatch, tmp_path):
        self.launch(device, FakeArray())
        next_process = launcher.DeviceRuntime()
        self.launch(next_process, FakeArray())
        assert len(compiled) == 1
        assert FakeModule.made[0].path == FakeModule.made[1].path
        monkeypatch.setattr(device.xp.cuda, "Device", lambda: types.SimpleNamespace(compute_capability="80"))
        self.launch(launcher.DeviceRuntime(), FakeArray())
        (tmp_path / "toy.cuh").write_text("template <class T> __global__ void toy(T* x) { *x = T(0); }\n")
        self.launch(launcher.DeviceRuntime(), FakeArray())
        assert len(compiled) == 3

    def test_a_second_launch_looks_nothing_up(self, device, monkeypatch):
        """It costs less than 10 us of Python; what took most of it was the name of the instance."""
        self.launch(device, FakeArray())
        for name in ("instance_name", "_kind", "_check_arguments"):
            monkeypatch.setattr(launcher, name, None)
        kernel = self.launch(device, FakeArray())
        assert len(kernel.calls) == 2

    def test_asks_for_more_shared_memory(self, device):
        assert self.launch(device, shared_mem=48 * 1024).max_dynamic_shared_size_bytes == 48 * 1024
        assert self.launch(device, shared_mem=60000).max_dynamic_shared_size_bytes == 60000
        assert self.launch(device, shared_mem=50000).max_dynamic_shared_size_bytes == 60000

    def test_empty_grid_launches_nothing(self, device):
        assert self.launch(device, grid=(0,)) is None

    @pytest.mark.parametrize(("owner", "method"), [(FakeKernel, "__call__"), (FakeModule, "get_function")])
    def test_refused_memory_passes_through(self, device, monkeypatch, owner, method):
        """The launcher keeps no array of a call that failed, so that the pool gets them back, and works on."""

        class OutOfMemoryError(MemoryError):
            """As CuPy's."""

        def refuse(*_, **__):
            raise OutOfMemoryError("Out of memory allocating 512 bytes")

        workspace = FakeArray()
        kept = weakref.ref(workspace)
        with monkeypatch.context() as refusing:
            refusing.setattr(owner, method, refuse)
            with pytest.raises(OutOfMemoryError, match="512 bytes"):
                self.launch(device, workspace)
        del workspace
        gc.collect()
        assert kept() is None
        self.launch(device, FakeArray())
        assert len(device._functions[0, "toy", "toy", F4].calls) == 1

    @pytest.mark.parametrize(
        ("args", "error", "says"),
        [
            ((3,), TypeError, r"argument 0 \(x\) must be a float32 array for float\*, got a int"),
            ((np.ones(3),), TypeError, "got a numpy.ndarray of float64"),
            (
                (FakeArray(dtype=F8),),
                TypeError,
                r"argument 0 \(x\) must be a float32 array .* got a cupy.FakeArray of float64",
            ),
            ((FakeArray(contiguous=False),), ValueError, r"argument 0 \(x\) must be C-contiguous"),
            ((FakeArray(device=1),), ValueError, "argument 0 is on device 1, but device 0 is current"),
            ((None, 3), TypeError, r"argument 1 \(n\) must be a int32 scalar for int, got a int"),
            ((None, np.int64(3)), TypeError, r"argument 1 \(n\) .* got a int64 scalar"),
            ((None, None), TypeError, r"argument 1 \(n\) .* got a NoneType"),
            ((None, np.int32(3), None, None), TypeError, "toy<float>: takes 3 arguments, got 4"),
        ],
    )
    def test_wrong(self, device, args, error, says):
        with pytest.raises(error, match=says):
            self.launch(device, *args)

    def test_unknown_instance(self, device):
        with pytest.raises(ValueError, match="toy<int> is not among the instances"):
            self.launch(device, dtype=np.int32)
