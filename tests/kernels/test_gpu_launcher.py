"""The launcher: argument checks, refusals, threads, fork, and what it asks of CuPy, for which there is a stand-in."""

import gc
import os
import shutil
import subprocess
import sys
import threading
import weakref

import cupy_stand_in
import numpy as np
import pytest
from cupy_stand_in import asarray
from host_kernels import HERE, library
from host_kernels import INSTANCES as OWN

from trigraph.gpu import launcher
from trigraph.gpu.instances import INSTANCES
from trigraph.gpu.launcher import HostLibrary, runtime, using_host_library

F4, F8 = np.dtype("f4"), np.dtype("f8")


@pytest.fixture
def host():
    with using_host_library(library("primitives")):
        yield runtime(np.empty(0))


@pytest.fixture
def compiled():
    """Instances that NVRTC was asked for: options, file name, names and source."""
    return []


@pytest.fixture
def device(host, monkeypatch, tmp_path, compiled):
    """The launcher of a device whose kernels are those of primitives.cu, in a folder of their own."""
    cupy = cupy_stand_in.install(monkeypatch, tmp_path / "cache")

    def compile_using_nvrtc(source, options, filename, name_expressions):
        compiled.append((options, filename, name_expressions, source))
        return cupy_stand_in.compile_using_nvrtc(source, options, filename, name_expressions)

    cupy.cuda.compiler.compile_using_nvrtc = compile_using_nvrtc
    for file in ("primitives.cu", "parts.cuh", "parts_table.cuh"):
        shutil.copy(HERE / file, tmp_path)
    described = launcher.describe(host.library("primitives")._library)
    monkeypatch.setattr(launcher, "KERNELS", tmp_path)
    monkeypatch.setattr(launcher, "_described", lambda: {"primitives": described})
    monkeypatch.setitem(INSTANCES, "primitives", OWN["primitives"])
    return runtime(asarray(np.empty(0)))


@pytest.fixture(params=["host", "device"])
def place(request):
    return request.getfixturevalue(request.param)


def floats(size=32):
    return np.ones(size, np.float32)


def scale(place, x=None, y=None, factor=None, n=None, dtype=F4, grid=(1,), block=(32,), **more):
    """Launch y = factor x, by default two times ones, and return y as a NumPy array."""
    x, y = (floats() if a is None else a for a in (x, y))
    factor, n = np.float32(2) if factor is None else factor, np.int64(np.size(x)) if n is None else n
    if place.name == "gpu":
        x, y = (asarray(a) if isinstance(a, np.ndarray) else a for a in (x, y))
    place.launch("primitives", "scale", (dtype,), grid, block, (x, y, factor, n), **more)
    return y if place.name == "gpu-host" else y.get()


def test_right_arguments(place):
    assert (scale(place) == 2).all()
    assert (place.name, place.xp) in (("gpu-host", np), ("gpu", sys.modules.get("cupy")))


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"x": floats().astype(F8)}, TypeError, r"scale<float>: argument 0 \(x\) must be a float32 array .* float64"),
        (
            {"y": floats().astype(">f4")},
            TypeError,
            r"argument 1 \(y\) must be a float32 array .* got a (numpy|cupy).ndarray of >f4",
        ),
        ({"y": [1.0]}, TypeError, r"argument 1 \(y\) must be a float32 array for float\*, got a list"),
        ({"x": np.float32(1)}, TypeError, r"argument 0 \(x\) .* for const float\*, got a float32 scalar"),
        ({"factor": 2.0}, TypeError, r"argument 2 \(factor\) must be a float32 scalar for float, got a float"),
        ({"factor": np.float64(2)}, TypeError, r"argument 2 \(factor\) .* got a float64 scalar"),
        ({"n": 32}, TypeError, r"argument 3 \(n\) must be a int64 scalar for long long, got a int"),
        ({"n": np.int32(32)}, TypeError, r"argument 3 \(n\) .* got a int32 scalar"),
        ({"n": floats()}, TypeError, r"argument 3 \(n\) .* got a numpy.ndarray of float32"),
        ({"x": np.ones((4, 8), F4).T}, ValueError, r"argument 0 \(x\) must be C-contiguous, got strides \(4, 32\)"),
        ({"dtype": np.dtype("i2")}, TypeError, "instantiated for float32, float64, .* int64, not for int16"),
        ({"dtype": np.dtype("f2")}, ValueError, r"scale<float16> is not among the instances"),
        ({"dtype": np.dtype("i4")}, ValueError, r"scale<int> is not among the instances"),
    ],
)
def test_wrong_arguments(place, arguments, error, says):
    with pytest.raises(error, match=says):
        scale(place, **arguments)


@pytest.mark.parametrize(
    ("y", "says"),
    [
        (np.frombuffer(b"x" * 128, F4), r"argument 1 \(y\) is written .* read-only"),
        (np.frombuffer(bytearray(129), np.uint8)[1:].view(F4), "aligned"),
    ],
)
def test_memory_of_the_host(host, y, says):
    with pytest.raises(ValueError, match=says):
        scale(host, y=y)


def test_array_of_another_device(device):
    with device.xp.cuda.Device(1):
        x = asarray(floats())
    with pytest.raises(ValueError, match="argument 0 is on device 1, but device 0 is current"):
        scale(device, x, n=np.int64(32))


def test_number_of_arguments(place):
    with pytest.raises(TypeError, match="takes 4 arguments, got 1"):
        place.launch("primitives", "scale", (F4,), (1,), (1,), (place.xp.zeros(32, F4),))


def test_name_of_family(host):
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
def test_refused_launches(host, launch, says):
    with pytest.raises(ValueError, match=says):
        scale(host, **launch)


@pytest.mark.parametrize("grid", [(0,), (3, 0)])
def test_empty_grid_launches_nothing(place, compiled, grid):
    assert (scale(place, grid=grid) == 1).all()
    assert not compiled


def test_place():
    with pytest.raises(TypeError, match=r"numpy.ndarray or a cupy.ndarray, got builtins.list"):
        runtime([1.0])


def test_instances_need_no_numpy():
    code = "import runpy, sys; runpy.run_path(sys.argv[1]); assert 'numpy' not in sys.modules"
    source = launcher.KERNELS.parent / "instances.py"
    subprocess.run([sys.executable, "-S", "-c", code, str(source)], check=True)


def test_the_library_is_restored(host):
    other = HostLibrary(library("faults"))
    with using_host_library(other, "reverse"):
        host.launch("faults", "deadlock", (True,), (1,), (64,), (floats(64),))
    with pytest.raises(ImportError):
        host.launch("faults", "deadlock", (True,), (1,), (64,), (floats(64),))
    before = host.library("primitives")
    with using_host_library(before.path) as another:
        assert host.library("primitives") is another
    assert host.library("primitives") is before


def test_unknown_order():
    with (
        pytest.raises(ValueError, match="order must be one of forward, reverse, random, got 'sideways'"),
        using_host_library(library("faults"), "sideways"),
    ):
        pass


def busy(place, rounds):
    y = np.zeros((4, 256), np.float32)
    place.launch("faults", "busy", (True,), (4,), (256,), (y, np.int32(rounds)))
    assert (y == np.arange(4)[:, None]).all()


@pytest.fixture
def with_faults(faults_fast):
    with using_host_library(faults_fast):
        yield


@pytest.mark.usefixtures("with_faults")
def test_fork_in_the_middle_of_a_launch():
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


def function(device, kernel="scale"):
    """What the launcher of a device has kept of a kernel."""
    return device._functions[0, "primitives", kernel, F4]


def test_compiles_once_and_launches(device, compiled):
    assert runtime(asarray(floats())) is device
    scale(device)
    kernel = function(device)
    assert (scale(device, factor=np.float32(3)) == 3).all()
    assert function(device) is kernel
    ((options, filename, names, source),) = compiled
    assert (options, filename, names) == (launcher.OPTIONS, "primitives.cu", ("scale<float>",))
    assert "thirds[4]" in source
    assert "#include" not in source
    scale(device, floats().astype(F8), floats().astype(F8), np.float64(2), dtype=F8)
    assert [names for _, _, names, _ in compiled] == [("scale<float>",), ("scale<double>",)]


def test_the_next_process_finds_what_was_compiled(device, compiled, monkeypatch, tmp_path):
    scale(device)
    assert (scale(launcher.DeviceRuntime()) == 2).all()
    assert len(compiled) == 1
    monkeypatch.setattr(cupy_stand_in.Device, "compute_capability", "80")
    scale(launcher.DeviceRuntime())
    assert len(compiled) == 2
    (tmp_path / "parts_table.cuh").write_text("__constant__ const int thirds[4] = {0, 3, 6, 10};")
    scale(launcher.DeviceRuntime())
    assert len(compiled) == 3


def test_a_second_launch_looks_nothing_up(device, monkeypatch):
    """It costs less than 10 us of Python; what took most of it was the name of the instance."""
    scale(device)
    cupy_stand_in.state.dry = True  # the emulator does look up
    for name in ("instance_name", "_kind", "_check_arguments"):
        monkeypatch.setattr(launcher, name, None)
    before = cupy_stand_in.state.launches
    scale(device)
    assert cupy_stand_in.state.launches == before + 1


def test_asks_for_more_shared_memory(device):
    for shared_mem, asked in ((48 * 1024, 48 * 1024), (60000, 60000), (50000, 60000)):
        args = (asarray(floats()),)
        device.launch("primitives", "dynamic_memory", (F4,), (1,), (32,), args, shared_mem)
        assert function(device, "dynamic_memory").max_dynamic_shared_size_bytes == asked


@pytest.mark.parametrize(
    ("owner", "method"), [(cupy_stand_in.Kernel, "__call__"), (cupy_stand_in.RawModule, "get_function")]
)
def test_refused_memory_passes_through(device, monkeypatch, owner, method):
    """The launcher keeps no array of a call that failed, so that the pool gets them back, and works on."""

    class OutOfMemoryError(MemoryError):
        """As CuPy's."""

    def refuse(*_, **__):
        raise OutOfMemoryError("Out of memory allocating 512 bytes")

    workspace = asarray(floats())
    kept = weakref.ref(workspace)
    with monkeypatch.context() as refusing:
        refusing.setattr(owner, method, refuse)
        with pytest.raises(OutOfMemoryError, match="512 bytes"):
            scale(device, workspace, n=np.int64(32))
    del workspace
    gc.collect()
    assert kept() is None
    assert (scale(device) == 2).all()
