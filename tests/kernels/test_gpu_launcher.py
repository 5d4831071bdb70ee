"""Tests of the kernel launcher: argument checks, compilation, the cache, errors, and calls to a stand-in for CuPy."""

import gc
import importlib.util
import shutil
import subprocess
import sys
import threading
import time
import types
import weakref
from pathlib import Path
from typing import NamedTuple

import cupy_stand_in
import numpy as np
import pytest
from cupy_stand_in import asarray
from expect_error import expect_error
from host_kernels import HERE, build_test_library
from host_kernels import INSTANCES as OWN
from programs import run_command

from trigraph import gpu
from trigraph.backends import explain_unavailable
from trigraph.gpu import cache, launcher
from trigraph.gpu.instances import INSTANCES
from trigraph.gpu.launcher import HostLibrary, select_runtime, using_host_library

FLOAT32, FLOAT64 = np.dtype("f4"), np.dtype("f8")


def test_source_parameters_equal_compiled_ones():
    """The parameters read from the source agree with those reported by the compiler, for every kernel instance."""
    for family in INSTANCES:
        compiled = launcher.list_kernel_parameters(HostLibrary(launcher.find_installed_library(family))._library)
        assert {name: tuple(texts) for name, texts in launcher._read_kernel_parameters()[family].items()} == compiled


def test_missing_libraries_are_reported(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert explain_unavailable.__wrapped__("gpu-host").startswith(
        "not built (trigraph.gpu._host_gno is not installed: `pip "
    )


@pytest.fixture
def host_runtime():
    with using_host_library(build_test_library("primitives")):
        yield select_runtime(np.empty(0))


@pytest.fixture
def requested_compilations():
    """Return a list to which each compilation adds its options, file name, instance names and source."""
    return []


@pytest.fixture
def device_runtime(host_runtime, monkeypatch, tmp_path, requested_compilations):
    """A device's launcher, with the kernels of primitives.cu."""
    cupy = cupy_stand_in.install_cupy(monkeypatch, tmp_path / "cache")

    def record_and_compile(source, options, filename, name_expressions):
        requested_compilations.append((options, filename, name_expressions, source))
        return cupy_stand_in.compile_using_nvrtc(source, options, filename, name_expressions)

    cupy.cuda.compiler.compile_using_nvrtc = record_and_compile
    for file in ("primitives.cu", "parts_table.cuh"):
        shutil.copy(HERE / file, tmp_path)
    described = launcher.list_kernel_parameters(host_runtime.library("primitives")._library)
    monkeypatch.setattr(cache, "KERNELS", tmp_path)
    monkeypatch.setattr(launcher, "_read_kernel_parameters", lambda: {"primitives": described})
    monkeypatch.setitem(INSTANCES, "primitives", OWN["primitives"])
    return select_runtime(asarray(np.empty(0)))


@pytest.fixture(params=["host_runtime", "device_runtime"])
def any_runtime(request):
    return request.getfixturevalue(request.param)


def make_float32_ones(size=32):
    return np.ones(size, np.float32)


def make_float64_ones():
    return np.ones(32)


def launch_scale(place, x=None, y=None, factor=None, n=None, dtype=FLOAT32, grid=(1,), block=(32,), **more):
    """Launch y = factor * x (by default 2 times ones), and return y as a NumPy array."""
    x, y = (make_float32_ones() if a is None else a for a in (x, y))
    factor, n = np.float32(2) if factor is None else factor, np.size(x) if n is None else n
    if place.name == "gpu":
        x, y = (asarray(a) if isinstance(a, np.ndarray) else a for a in (x, y))
    place.launch("primitives", "scale", (dtype,), grid, block, y=y, x=x, n=n, factor=factor, **more)
    return y if place.name == "gpu-host" else y.get()


BIG_ENDIAN = np.ones(32, ">f4")


def test_launch_accepts_right_arguments(any_runtime):
    assert (launch_scale(any_runtime) == 2).all()
    assert (any_runtime.name, any_runtime.xp) in (("gpu-host", np), ("gpu", sys.modules.get("cupy")))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"x": make_float64_ones()}, TypeError, r"scale<float>: argument x must be a float32 array .* float64"),
        ({"y": BIG_ENDIAN}, TypeError, r"argument y must be a float32 array .* got a (numpy|cupy).ndarray of >f4"),
        ({"x": np.float32(1)}, TypeError, r"argument x .* for const float\*, got a float32 scalar"),
        ({"factor": 2.0}, TypeError, r"argument factor must be a float32 scalar for float, got a float"),
        ({"n": np.int32(32)}, TypeError, r"argument n .* got a int32 scalar"),
        ({"n": make_float32_ones()}, TypeError, r"argument n .* got a numpy.ndarray of float32"),
        ({"x": np.ones((4, 8), FLOAT32).T}, ValueError, r"argument x must be C-contiguous, got strides \(4, 32\)"),
        ({"dtype": np.dtype("i2")}, TypeError, "instantiated for float32, float64, .* int64, not for int16"),
        ({"dtype": np.dtype("i4")}, ValueError, r"scale<int> is not among the instances"),
    ],
)
def test_wrong_launch_arguments_are_refused(any_runtime, arguments, error, message):
    with pytest.raises(error, match=message):
        launch_scale(any_runtime, **arguments)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.frombuffer(b"x" * 128, FLOAT32), r"argument y is written .* read-only"),
        (np.frombuffer(bytearray(129), np.uint8)[1:].view(FLOAT32), "aligned"),
    ],
)
def test_read_only_and_unaligned_arrays_are_refused(host_runtime, y, message):
    with pytest.raises(ValueError, match=message):
        launch_scale(host_runtime, y=y)


def test_array_of_another_device_is_refused(device_runtime):
    with device_runtime.xp.cuda.Device(1):
        x = asarray(make_float32_ones())
    with pytest.raises(ValueError, match="argument x is on device 1, but device 0 is current"):
        launch_scale(device_runtime, x, n=np.int64(32))


def launch_with_struct(place, out=None, given=None, **more):
    """Launch `copy_scalars`, a kernel whose second parameter is a struct."""
    out = place.xp.zeros(6) if out is None else out
    given = STRUCT._replace(wide=2**53 - 1) if given is None else given
    numbers = {"x": np.float32(0.1), "y": np.float64(0.1)}
    place.launch("primitives", "copy_scalars", (), (1,), (1,), out=out, given=given, **numbers, **more)
    return [float(value) for value in out]


class MixedStruct(NamedTuple):
    """The members of the struct `MixedStruct` in primitives.cu."""

    flag: np.bool_
    i: int
    wide: int
    nothing: object


class ReorderedStruct(NamedTuple):
    """The members of the struct `MixedStruct` in another order."""

    i: int
    flag: np.bool_
    wide: int
    nothing: object


STRUCT = MixedStruct(np.bool_(True), -7, 5, None)
REORDERED = ReorderedStruct(-7, np.bool_(True), 5, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"z": np.float64(1)}, "takes the arguments out, given, x, y; unknown: z"),
        ({"given": tuple(STRUCT)}, "given must be a NamedTuple of flag, i, wide, nothing, got a tuple"),
        ({"given": REORDERED}, "given must be a NamedTuple of flag, .*, got a .*ReorderedStruct"),
        ({"given": STRUCT._replace(wide=np.int32(5))}, r"given.wide must be a int64 .* got a int32 scalar"),
        ({"out": STRUCT}, r"argument out must be a float64 array .* got a .*MixedStruct"),
    ],
)
def test_wrong_argument_and_member_names_raise_type_error(any_runtime, arguments, message):
    """Invalid names, members and types are reported; arguments may be passed in any order."""
    with pytest.raises(TypeError, match=message):
        launch_with_struct(any_runtime, **arguments)
    message = "scale<float>: takes the arguments x, y, factor, n; missing: factor, x; unknown: v"
    with pytest.raises(TypeError, match=message):
        any_runtime.launch("primitives", "scale", (FLOAT32,), (1,), (1,), v=None, y=None, n=1)


def test_an_integer_takes_the_type_of_its_parameter(any_runtime):
    assert launch_with_struct(any_runtime) == [1, -7, 2**53 - 1, 1, float(np.float32(0.1)), 0.1]
    with pytest.raises(OverflowError):
        launch_with_struct(any_runtime, given=STRUCT._replace(i=2**31))


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        ({"block": (2048,)}, "more than a device grants"),
        ({"block": (0,)}, "no threads"),
        ({"grid": (1, 70000)}, "more than a device grants"),
        ({"shared_mem": 300000}, "dynamic shared memory"),
    ],
)
def test_invalid_launch_sizes_are_refused(host_runtime, launch, message):
    with pytest.raises(ValueError, match=message):
        launch_scale(host_runtime, **launch)


@pytest.mark.parametrize("grid", [(0,), (3, 0)])
def test_empty_grid_launches_nothing(any_runtime, requested_compilations, grid):
    assert (launch_scale(any_runtime, grid=grid) == 1).all()
    assert not requested_compilations


def test_using_host_library_restores_the_library(host_runtime):
    other = HostLibrary(build_test_library("faults"))
    with using_host_library(other, "reverse"):
        host_runtime.launch("faults", "deadlock", (True,), (1,), (64,), y=make_float32_ones(64))
    with pytest.raises(ImportError):
        host_runtime.launch("faults", "deadlock", (True,), (1,), (64,), y=make_float32_ones(64))
    before = host_runtime.library("primitives")
    with using_host_library(before.path) as another:
        assert host_runtime.library("primitives") is another
    assert host_runtime.library("primitives") is before


def test_structs_are_passed_by_value(host_runtime):
    """A struct becomes an array of rank 0 whose dtype has the same member offsets as in C++."""
    signature, names = launcher.list_kernel_parameters(host_runtime.library("primitives")._library)["copy_scalars"]
    assert signature == "double*,{bool,int,long long,const double*},float,double"
    assert names == "out,given.flag,given.i,given.wide,given.nothing,x,y"
    ((first, end, dtype),) = launcher._list_struct_layouts(signature)
    assert (first, end, dtype.itemsize) == (1, 5, 24)
    assert [dtype.fields[name][1] for name in dtype.names] == [0, 4, 8, 16]
    array = types.SimpleNamespace(data=types.SimpleNamespace(ptr=9))
    value = launcher._pack_struct(dtype, [np.bool_(True), np.int32(-7), np.int64(2**40), array])
    assert (value.shape, value.item()) == ((), (True, -7, 2**40, 9))


def get_cached_kernel(device, kernel="scale"):
    """Return the compiled kernel from the cache of a device's launcher."""
    return device._functions[0, "primitives", kernel, FLOAT32][0]


def test_kernel_is_compiled_once_per_dtype(device_runtime, requested_compilations):
    assert select_runtime(asarray(make_float32_ones())) is device_runtime
    launch_scale(device_runtime)
    kernel = get_cached_kernel(device_runtime)
    assert (launch_scale(device_runtime, factor=np.float32(3)) == 3).all()
    assert get_cached_kernel(device_runtime) is kernel
    ((options, filename, names, source),) = requested_compilations
    assert (options, filename, names) == (cache.OPTIONS, "primitives.cu", ("scale<float>",))
    assert "thirds[4]" in source
    assert "#include" not in source
    launch_scale(device_runtime, make_float64_ones(), make_float64_ones(), np.float64(2), dtype=FLOAT64)
    assert [names for _, _, names, _ in requested_compilations] == [("scale<float>",), ("scale<double>",)]


def test_new_runtime_uses_the_disk_cache(device_runtime, requested_compilations, monkeypatch, tmp_path):
    launch_scale(device_runtime)
    assert (launch_scale(launcher.DeviceRuntime()) == 2).all()
    assert len(requested_compilations) == 1
    monkeypatch.setattr(cupy_stand_in.DeviceStandIn, "compute_capability", "80")
    launch_scale(launcher.DeviceRuntime())
    assert len(requested_compilations) == 2
    (tmp_path / "parts_table.cuh").write_text("__constant__ const int thirds[4] = {0, 3, 6, 10};")
    launch_scale(launcher.DeviceRuntime())
    assert len(requested_compilations) == 3


def test_kernels_of_a_call_are_compiled_ahead(device_runtime, requested_compilations, monkeypatch):
    """The first launch compiles all kernels of its call, using threads; `gpu.compile` compiles those of an operator."""
    monkeypatch.setattr(launcher, "COMPILE_AHEAD", True)
    begun, kernels = threading.Event(), cache.list_related_instances("weighted", "sum_long_row_parts<float, int>")
    real = device_runtime.xp.cuda.compiler.compile_using_nvrtc

    def compile_slowly(*args, **kwargs):
        begun.set()
        time.sleep(0.01)
        return real(*args, **kwargs)

    device_runtime.xp.cuda.compiler.compile_using_nvrtc = compile_slowly
    monkeypatch.setattr(cache, "KERNELS", Path(launcher.__file__).parent / "kernels")
    device_runtime.get_or_compile_function("weighted", "sum_long_row_parts<float, int>")
    assert begun.is_set()
    for name in kernels:
        assert device_runtime.cache.get_or_compile("weighted", name).read_text() == f"weighted\n{name}"
    compiled = sorted(name for _, _, (name,), _ in requested_compilations)
    assert compiled == sorted(["sum_long_row_parts<float, int>", *kernels])
    assert gpu.compile("agg_weighted_n2n", index=np.int32, progress=False) == 0
    assert gpu.compile("agg_weighted_n2n", np.float64) == len(requested_compilations) - len(kernels) - 1
    later = [name for _, _, (name,), _ in requested_compilations[len(kernels) + 1 :]]
    assert {kind for name in later for kind in cache.parse_types_and_degrees(name)[0]} == {"double", "long long"}


def flip_first_byte(code):
    return bytes([code[0] ^ 1]) + code[1:]


@pytest.mark.parametrize(
    "damage", [lambda code: b"", lambda code: code[:-1], flip_first_byte], ids=["empty", "cut", "flipped"]
)
@pytest.mark.parametrize("renamed", [False, True])
def test_a_damaged_file_is_compiled_again(device_runtime, requested_compilations, tmp_path, damage, renamed):
    """A cached file that is empty, truncated, changed or renamed is compiled again; no other file remains."""
    launch_scale(device_runtime)
    (file,) = (tmp_path / "cache").rglob("*.cubin")
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    if renamed:
        file.rename(file.with_name("function.cubin"))
    assert device_runtime.cache.find_compiled_file("primitives", "scale<float>") is None
    assert (launch_scale(launcher.DeviceRuntime()) == 2).all()
    assert len(requested_compilations) == 2
    assert sorted(file.parent.iterdir()) == [file, file.parent / "lock"]
    assert file.read_bytes() == whole
    launch_scale(launcher.DeviceRuntime())
    assert len(requested_compilations) == 2


def test_full_disk_leaves_no_partial_file(device_runtime, requested_compilations, tmp_path, monkeypatch):
    """If the disk is full, no partial file is left, and a temporary folder is used instead."""
    write, full = Path.write_bytes, tmp_path / "cache"

    def write_until_disk_full(path, code):
        write(path, code[:3] if full in path.parents else code)
        if full in path.parents:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", write_until_disk_full)
    assert (launch_scale(device_runtime) == 2).all()
    assert [file.name for file in full.rglob("*") if file.is_file()] == ["lock"]


@pytest.mark.parametrize("why", ["in memory", "read-only"])
def test_temporary_folder_replaces_the_cache(device_runtime, requested_compilations, monkeypatch, tmp_path, why):
    """A temporary folder is used if CuPy's cache is in memory or its folder is not writable."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / ("file" if why == "read-only" else "kept")))
    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", str(int(why == "in memory")))
    assert (launch_scale(device_runtime) == 2).all()
    assert not (tmp_path / "kept").exists()
    assert len(requested_compilations) == 1


def test_lock_makes_processes_compile_one_by_one(tmp_path):
    with cache._lock_folder(tmp_path):
        child = subprocess.Popen([sys.executable, "-c", LOCK_PROGRAM, str(tmp_path)])
        while not (tmp_path / "ready").exists():
            assert child.poll() is None
        time.sleep(0.3)
        assert not (tmp_path / "entered").exists()
    assert child.wait(60) == 0
    assert (tmp_path / "entered").exists()


LOCK_PROGRAM = """
import sys
from pathlib import Path
from trigraph.gpu.cache import _lock_folder

(Path(sys.argv[1]) / "ready").touch()
with _lock_folder(Path(sys.argv[1])):
    (Path(sys.argv[1]) / "entered").touch()
"""


def test_launch_raises_limit_of_shared_memory(device_runtime):
    for shared_mem, asked in ((48 * 1024, 48 * 1024), (60000, 60000), (50000, 60000)):
        device_runtime.launch(
            "primitives",
            "reverse_in_dynamic_memory",
            (FLOAT32,),
            (1,),
            (32,),
            out=asarray(make_float32_ones()),
            shared_mem=shared_mem,
        )
        assert get_cached_kernel(device_runtime, "reverse_in_dynamic_memory").max_dynamic_shared_size_bytes == asked


@pytest.mark.parametrize(
    ("owner", "method"), [(cupy_stand_in.CompiledKernel, "__call__"), (cupy_stand_in.RawModule, "get_function")]
)
def test_launcher_keeps_no_array_after_memory_error(device_runtime, monkeypatch, owner, method):
    """After a MemoryError, the launcher keeps no array of the failed call alive, and the next call works."""

    class OutOfMemoryError(MemoryError):
        """A subclass of MemoryError, as in CuPy."""

    def refuse_memory(*_, **__):
        raise OutOfMemoryError("Out of memory allocating 512 bytes")

    workspace = asarray(make_float32_ones())
    kept = weakref.ref(workspace)
    with monkeypatch.context() as refusing:
        refusing.setattr(owner, method, refuse_memory)
        with pytest.raises(OutOfMemoryError, match="512 bytes"):
            launch_scale(device_runtime, workspace, n=np.int64(32))
    del workspace
    gc.collect()
    assert kept() is None
    assert (launch_scale(device_runtime) == 2).all()


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is installed")
def test_compile_without_cupy_names_package_to_install():
    with expect_error("ImportError: CuPy is not installed: pip install 'trigraph[cuda12]' 'cupy-cuda12x[ctk]', or ..."):
        gpu.compile("agg_weighted_n2n")


INTERRUPT_PROGRAM = """
import signal, threading, time
from trigraph.locks import ForkSafeLock
lock, end, interruptions = ForkSafeLock(), time.monotonic() + 1, 0
signal.signal(signal.SIGALRM, signal.default_int_handler)
while time.monotonic() < end:
    try:
        signal.setitimer(signal.ITIMER_REAL, 2e-5)
        while True:
            lock.call_while_held(int)
    except KeyboardInterrupt:
        interruptions += 1
assert interruptions > 100
other = threading.Thread(target=lock.call_while_held, args=(int,), daemon=True)
other.start()
other.join(10)
assert not other.is_alive()
"""


def test_interrupted_calls_release_the_lock():
    """In Python 3.14, `with lock:` fails to release the lock after almost every second interruption."""
    run_command(sys.executable, "-c", INTERRUPT_PROGRAM)
