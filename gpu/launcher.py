"""One interface for kernel launches on a device and on the CPU.

A backend function obtains the runtime of its arrays from :func:`select_runtime` and uses it to launch kernels. The same
code runs on a device and on the CPU::

    place = select_runtime(coords)
    kernel = place.xp.empty((num_edges, hidden), coords.dtype)
    place.launch("gno", "multiply", (a.dtype, 64), (blocks,), (128,), left=a, right=b, num_rows=len(a), ..., out=kernel)

Arguments are passed by parameter name, so that two arguments cannot be swapped by mistake. A struct is passed as a
NamedTuple whose fields are named like its members.

On a device, NVRTC compiles each kernel instance at its first use, and a disk cache stores the result. Launches use the
caller's current stream and do not synchronize. On the CPU (``gpu-host``), the same source, built by ``gpu/host``, runs
in the calling thread.
"""

import contextlib
import ctypes
import functools
import importlib.resources
import importlib.util
import json
import math
import os
import re
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trigraph.gpu.cache import KernelCache, parse_function_name
from trigraph.gpu.instances import C_TYPES, format_instance_name
from trigraph.locks import ForkSafeLock

Types = Sequence[Any]  # template arguments of a kernel
Extents = Sequence[int]

ORDERS = ("forward", "reverse", "random")

COMPILE_AHEAD = True  # whether the first launch starts compiling all kernels that the call needs

_NULL = np.uintp(0)  # every version of CuPy passes this as a null pointer
_STATIC_LIMIT = 48 * 1024  # bytes of shared memory per block without an opt-in
_DTYPES = {c_type: name for name, c_type in C_TYPES.items()} | {"bool": "bool"}


def _find_dtype(c_type: str) -> np.dtype[Any]:
    """Return the dtype of a C++ type; for bfloat16, the dtype of ml_dtypes or, without that package, a placeholder."""
    if c_type != "bfloat16":
        return np.dtype(_DTYPES[c_type])
    if importlib.util.find_spec("ml_dtypes") is None:
        return np.dtype("V2")
    bfloat16: type[np.generic] = importlib.import_module("ml_dtypes").bfloat16
    return np.dtype(bfloat16)


class KernelError(RuntimeError):
    """The CPU version of a kernel found undefined behaviour (deadlock, absent lane, race, ...)."""


#: Exceptions raised by launches on the CPU, by the status that ``cuda_host_launch`` returns.
_ERRORS: dict[int, type[Exception]] = {1: ValueError, 2: KernelError, 3: MemoryError}

# Launches must not overlap, because the threads and shared arrays of a library are global.
_HOST_LOCK = ForkSafeLock()
_DEVICE_LOCK = ForkSafeLock()


class Runtime(ABC):
    """Interface to the device or the CPU on which kernels run."""

    #: ``"gpu"`` or ``"gpu-host"``.
    name: str
    #: The array library, ``cupy`` or ``numpy``.
    xp: Any

    def launch(
        self,
        family: str,
        kernel: str,
        types: Types,
        grid: Extents,
        block: Extents,
        /,
        *,
        shared_mem: int = 0,
        **arguments: Any,
    ) -> None:
        """Launch one kernel: a ``__global__`` function of ``kernels/<family>.cu``.

        Template arguments are dtypes or integers. Grid and block have one to three extents; a grid
        with an extent of 0, for empty input, launches nothing. Arguments, which are named like the kernel's parameters,
        are C-contiguous arrays of this runtime, ``None`` for a null pointer, NumPy scalars of the parameter's type,
        Python integers, or, for a struct, a NamedTuple of its members in order.

        Raises TypeError or ValueError if an argument is missing or unknown, its type differs from the parameter's type,
        an array is not contiguous, or the kernel has no such instance; KernelError, on the CPU, if the kernel contains
        an error; and MemoryError (on a device, CuPy's ``OutOfMemoryError``) if memory runs out. Results are then
        incomplete, but the next call works.
        """
        if math.prod(grid) > 0:
            self._launch(family, kernel, types, grid, block, arguments, shared_mem)

    @abstractmethod
    def _launch(
        self,
        family: str,
        kernel: str,
        types: Types,
        grid: Extents,
        block: Extents,
        arguments: Mapping[str, Any],
        shared_mem: int,
    ) -> None: ...


def select_runtime(array: Any) -> Runtime:
    """Return the runtime of an array: the CPU for NumPy arrays, the device for CuPy arrays."""
    if isinstance(array, np.ndarray):
        return _HOST
    if type(array).__module__.partition(".")[0] == "cupy":
        return _get_device_runtime()
    kind = f"{type(array).__module__}.{type(array).__qualname__}"
    raise TypeError(f"expected a numpy.ndarray or a cupy.ndarray, got {kind}")


def instance_name(kernel: str, types: Types) -> str:
    """Return the C++ name expression of a kernel, such as ``gno_contract<float, int>`` for float32 and int32."""
    return format_instance_name(kernel, tuple(map(_format_template_argument, types)))


def _format_template_argument(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    name = np.dtype(value).name
    if name not in C_TYPES:
        raise TypeError(f"kernels are instantiated for {', '.join(C_TYPES)}, not for {name}")
    return C_TYPES[name]


# ---- the CPU ---------------------------------------------------------------------------------------------------------


class _LaunchArgument(ctypes.Structure):
    _fields_ = (("bits", ctypes.c_uint64), ("bytes", ctypes.c_uint64), ("element_bytes", ctypes.c_uint64))


def _look_up_instance(instances: Mapping[str, Any], family: str, name: str) -> Any:
    """Return the entry of an instance. Raises ValueError for an unknown name."""
    if name not in instances:
        raise ValueError(f"{family}: {name} is not among the instances of gpu/instances.py")
    return instances[name]


class _KernelParameter(NamedTuple):
    name: str
    c_type: str
    dtype: np.dtype[Any]
    is_pointer: bool
    is_const: bool


def _parse_parameters(signature: str, names: str) -> tuple[_KernelParameter, ...]:
    """Parse types and names of parameters, such as ``"const float*,{int,double}"`` and ``"coords,sizes.n,sizes.x"``."""
    types = re.sub("[{}]", "", signature).split(",") if signature else []
    return tuple(
        _KernelParameter(
            name=name,
            c_type=c_type,
            dtype=_find_dtype(c_type.removeprefix("const ").removesuffix("*")),
            is_pointer=c_type.endswith("*"),
            is_const=c_type.startswith("const "),
        )
        for c_type, name in zip(types, names.split(",") if names else [], strict=True)
    )


class ParameterLayout:
    """The parameters of a kernel instance, accepted by name and passed in order."""

    def __init__(self, kernel: str, signature: str, names: str) -> None:
        self.kernel, self.flat = kernel, _parse_parameters(signature, names)
        # For each parameter, the names of its members in order; empty unless it is a struct.
        self._members: dict[str, tuple[str, ...]] = {}
        for parameter in self.flat:
            name, _, member = parameter.name.partition(".")
            self._members[name] = (*self._members.get(name, ()), member) if member else ()
        # Scalar type to which Python integers are converted, for each integer parameter; None for other parameters.
        self._integers = [None if p.is_pointer or p.dtype.kind != "i" else p.dtype.type for p in self.flat]

    def order_arguments(self, arguments: Mapping[str, Any]) -> list[Any]:
        """Return the arguments in parameter order, with structs flattened. Raises TypeError for a wrong name."""
        if arguments.keys() != self._members.keys():
            missing, unknown = self._members.keys() - arguments.keys(), arguments.keys() - self._members.keys()
            sets = (("missing", missing), ("unknown", unknown))
            what = "; ".join(f"{label}: {', '.join(sorted(names))}" for label, names in sets if names)
            raise TypeError(f"{self.kernel}: takes the arguments {', '.join(self._members)}; {what}")
        values: list[Any] = []
        for name, members in self._members.items():
            value = arguments[name]
            if not members:
                values.append(value)
            elif getattr(value, "_fields", None) == members:
                values.extend(value)
            else:
                text = f"must be a NamedTuple of {', '.join(members)}, got {_describe_type(value)}"
                raise TypeError(f"{self.kernel}: argument {name} {text}")
        pairs = zip(self._integers, values, strict=True)
        return [value if kind is None or type(value) not in (int, bool) else kind(value) for kind, value in pairs]


def _list_struct_layouts(signature: str) -> list[tuple[int, int, np.dtype[Any]]]:
    """Return the argument range and dtype of each struct, starting with the last."""
    structs, first = [], 0
    for parameter in re.findall(r"\{.*?\}|[^,]+", signature):
        types = parameter.strip("{}").split(",")
        if parameter.startswith("{"):
            members = [("", np.uintp if c_type.endswith("*") else _find_dtype(c_type)) for c_type in types]
            structs.append((first, first + len(types), np.dtype(members, align=True)))
        first += len(types)
    return structs[::-1]


def _pack_struct(dtype: np.dtype[Any], members: Sequence[Any]) -> Any:
    """Pack the members of a struct (arrays as addresses) into a 0-d array, which CuPy passes by value."""
    return np.array(tuple(getattr(member.data, "ptr", member) for member in members), dtype)


def _load_library(path: Path) -> ctypes.CDLL:
    """Load a library. Raises MemoryError if the dynamic linker fails to allocate memory."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        if not re.search("failed to map segment|[Cc]annot allocate memory", str(error)):
            raise
        raise MemoryError(f"the system refused the {path.stat().st_size} bytes of a library: {error}") from error


def list_kernel_parameters(library: ctypes.CDLL) -> dict[str, tuple[str, str]]:
    """Return the comma-separated types and names of the parameters of each instance in a library of ``gpu/host``."""
    texts = [getattr(library, f"cuda_host_kernel_{what}") for what in ("name", "signature", "parameters")]
    for text in texts:
        text.restype = ctypes.c_char_p
    kernels = ([text(i).decode() for text in texts] for i in range(library.cuda_host_num_kernels()))
    return {name: (types, names) for name, types, names in kernels}


class HostLibrary:
    """A shared library, built by ``gpu/host``, that contains the kernels of one family for the CPU."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._library = _load_library(self.path)
        self._library.cuda_host_family.restype = ctypes.c_char_p
        self.family: str = self._library.cuda_host_family().decode()
        described = list_kernel_parameters(self._library).items()
        self._kernels = {name: (i, ParameterLayout(name, *texts)) for i, (name, texts) in enumerate(described)}

    def parameter_layout(self, name: str) -> ParameterLayout:
        """Return the parameters of the kernel instance called `name`."""
        layout: ParameterLayout = _look_up_instance(self._kernels, self.family, name)[1]
        return layout

    def launch(
        self, name: str, grid: Extents, block: Extents, values: Sequence[Any], shared_mem: int, order: str, seed: int
    ) -> None:
        """Run a kernel instance with values from `ParameterLayout.order_arguments`; see `Runtime.launch`."""
        number, layout = _look_up_instance(self._kernels, self.family, name)
        _check_argument_types(layout, values, np.ndarray)
        pairs = zip(layout.flat, values, strict=True)
        packed = (_LaunchArgument * len(values))(
            *(_pack_argument(name, parameter, value) for parameter, value in pairs)
        )
        triples = [(ctypes.c_uint * 3)(*(*extents, 1, 1)[:3]) for extents in (grid, block)]
        message = ctypes.create_string_buffer(4096)
        arguments = (
            ctypes.c_int(number),
            *triples,
            ctypes.c_size_t(shared_mem),
            packed,
            ctypes.c_int(ORDERS.index(order)),
            ctypes.c_ulonglong(seed),
            message,
            ctypes.c_size_t(len(message)),
        )
        status = _HOST_LOCK.call_while_held(lambda: self._library.cuda_host_launch(*arguments))
        if status == 0:
            return
        text = f"{name}: {self._replace_addresses_by_lines(message.value.decode(errors='replace'))}"
        raise _ERRORS[status](text)

    def _replace_addresses_by_lines(self, message: str) -> str:
        """Replace code addresses (``{0x1234}``) in a message of the race build by source lines."""

        def find_source_line(match: re.Match[str]) -> str:
            addr2line = shutil.which("addr2line")
            if addr2line is None:
                return match[0]
            command = [addr2line, "-s", "-i", "-e", str(self.path), match[1]]
            places = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split("\n")
            ours = [place.split(" ")[0] for place in places if place and not place.startswith("cuda_host.h")]
            return ours[0] if ours else match[0]

        return re.sub(r"\{(0x[0-9a-f]+)\}", find_source_line, message)


def _check_argument_types(layout: ParameterLayout, values: Sequence[Any], array: type[Any]) -> None:
    """Check that ordered arguments match the types of the parameters; `array` is the array class."""
    for parameter, value in zip(layout.flat, values, strict=True):
        if parameter.is_pointer and value is None:
            continue
        expected, form = (array, "array") if parameter.is_pointer else (np.generic, "scalar")
        what = f"{layout.kernel}: argument {parameter.name}"
        if not isinstance(value, expected) or value.dtype != parameter.dtype:
            raise TypeError(
                f"{what} must be a {parameter.dtype} {form} for {parameter.c_type}, got {_describe_type(value)}"
            )
        if parameter.is_pointer and not value.flags.c_contiguous:
            raise ValueError(f"{what} must be C-contiguous, got strides {value.strides} for shape {value.shape}")


def _pack_argument(kernel: str, parameter: _KernelParameter, value: Any) -> _LaunchArgument:
    """Convert an argument for the library. Raises ValueError for a misaligned array or a read-only output."""
    what = f"{kernel}: argument {parameter.name}"
    if value is None:
        return _LaunchArgument(0, 0, 1)
    if not parameter.is_pointer:
        return _LaunchArgument(int.from_bytes(value.tobytes(), "little"), 0, 0)
    if not value.flags.aligned:
        raise ValueError(f"{what} must be aligned to {value.itemsize} bytes, got address {value.ctypes.data:#x}")
    if not (parameter.is_const or value.flags.writeable):
        raise ValueError(f"{what} is written by the kernel, but the array is read-only")
    return _LaunchArgument(value.ctypes.data, value.nbytes, value.itemsize)


def _describe_type(value: Any) -> str:
    if isinstance(value, np.generic):
        return f"a {value.dtype} scalar"
    name = f"{type(value).__module__.partition('.')[0]}.{type(value).__qualname__}".removeprefix("builtins.")
    return f"a {name} of {value.dtype}" if hasattr(value, "dtype") else f"a {name}"


def find_installed_library(family: str) -> str:
    """Return the path of the CPU library of a family. Raises ImportError if this build does not contain it."""
    module = f"trigraph.gpu._host_{family}"
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        how = "`pip install . -Csetup-args=-Dgpu_host=true` builds the backend gpu-host, and so does `make verify`"
        raise ImportError(f"{module} is not installed: {how}")
    return spec.origin


class HostRuntime(Runtime):
    """Runs kernels on the CPU."""

    name = "gpu-host"
    xp = np

    def __init__(self) -> None:
        self.libraries: dict[str, HostLibrary] = {}  # by family; the method `library` adds installed libraries
        self.order = "forward"
        self.seed = 0

    def library(self, family: str) -> HostLibrary:
        """Return the library of a kernel family: the installed one unless it has been replaced."""
        if family not in self.libraries:
            self.libraries[family] = HostLibrary(find_installed_library(family))
        return self.libraries[family]

    def _launch(
        self,
        family: str,
        kernel: str,
        types: Types,
        grid: Extents,
        block: Extents,
        arguments: Mapping[str, Any],
        shared_mem: int,
    ) -> None:
        """Run a kernel synchronously."""
        name, library = instance_name(kernel, types), self.library(family)
        values = library.parameter_layout(name).order_arguments(arguments)
        library.launch(name, grid, block, values, shared_mem, self.order, self.seed)


@contextlib.contextmanager
def using_host_library(
    path: str | os.PathLike[str] | HostLibrary, order: str = "forward", seed: int = 0
) -> Iterator[HostLibrary]:
    """Return a context that runs the kernels of a family from another build (asan, race) or in another order.

    The build replaces the library of its family. `order` is ``"forward"``, ``"reverse"`` or ``"random"`` (with a seed);
    it applies to blocks and runnable threads, and does not change the results of a correct kernel. The replacement
    affects the whole process and is meant for tests.
    """
    if order not in ORDERS:
        raise ValueError(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
    library = path if isinstance(path, HostLibrary) else HostLibrary(path)
    before = _HOST.libraries, _HOST.order, _HOST.seed
    _HOST.libraries, _HOST.order, _HOST.seed = {**_HOST.libraries, library.family: library}, order, seed
    try:
        yield library
    finally:
        _HOST.libraries, _HOST.order, _HOST.seed = before


_HOST = HostRuntime()


# ---- the device ------------------------------------------------------------------------------------------------------


@functools.cache  # safe to cache, because the installed file does not change
def _read_kernel_parameters() -> dict[str, dict[str, tuple[str, str]]]:
    """Return the parameters of every instance, as recorded by the build; see `trigraph.gpu.host.parameters`."""
    file = importlib.resources.files("trigraph.gpu") / "parameters.json"
    return json.loads(file.read_text(encoding="utf-8"))


class DeviceRuntime(Runtime):
    """Launches kernels on the current CUDA device and stream."""

    name = "gpu"

    def __init__(self) -> None:
        import cupy

        self.xp = cupy
        self.cache = KernelCache(cupy)
        # Compiled functions with their layouts and structs, keyed by device, kernel and template arguments. The
        # installed sources do not change, so the key need not include them. A function is valid as long as its device's
        # context exists.
        self._functions: dict[tuple[Any, ...], Any] = {}

    def _launch(
        self,
        family: str,
        kernel: str,
        types: Types,
        grid: Extents,
        block: Extents,
        arguments: Mapping[str, Any],
        shared_mem: int,
    ) -> None:
        """Launch a kernel asynchronously on the current stream.

        Argument names are checked at every launch. Types are checked only at the first launch of an instance, because
        the check takes as long as a launch; the host runtime, which runs the same Python code, checks every launch.
        """
        key = (self.xp.cuda.runtime.getDevice(), family, kernel, *types)
        entry = self._functions.get(key)
        if entry is None:
            name = instance_name(kernel, types)
            described = _look_up_instance(_read_kernel_parameters()[family], family, name)
            layout = ParameterLayout(name, *described)
            args = layout.order_arguments(arguments)
            _check_argument_types(layout, args, self.xp.ndarray)
            for parameter, value in zip(layout.flat, args, strict=True):
                if isinstance(value, self.xp.ndarray) and value.device.id != key[0]:
                    text = f"is on device {value.device.id}, but device {key[0]} is current"
                    raise ValueError(f"{name}: argument {parameter.name} {text}")
            function = _DEVICE_LOCK.call_while_held(lambda: self.get_or_compile_function(family, name))
            entry = self._functions[key] = function, layout, _list_struct_layouts(described[0])
        function, layout, structs = entry
        if shared_mem > _STATIC_LIMIT and function.max_dynamic_shared_size_bytes < shared_mem:
            function.max_dynamic_shared_size_bytes = shared_mem
        # CuPy does not convert None to a null pointer.
        values = [_NULL if value is None else value for value in layout.order_arguments(arguments)]
        for first, end, dtype in structs:
            values[first:end] = [_pack_struct(dtype, values[first:end])]
        function(tuple(grid), tuple(block), tuple(values), shared_mem=shared_mem)

    def get_or_compile_function(self, family: str, name: str) -> Any:
        """Return the compiled instance for the current device, and start compiling related instances."""
        if COMPILE_AHEAD and self.cache.find_compiled_file(family, name) is None:
            self.cache.start_compiling_related(family, name)
        path = self.cache.get_or_compile(family, name)
        return self.xp.RawModule(path=str(path)).get_function(parse_function_name(path))


_device: DeviceRuntime | None = None  # one per process, because it depends only on CuPy


def _get_device_runtime() -> DeviceRuntime:
    def get_or_create_runtime() -> DeviceRuntime:
        global _device
        if _device is None:
            _device = DeviceRuntime()
        return _device

    runtime: DeviceRuntime = _DEVICE_LOCK.call_while_held(get_or_create_runtime)
    return runtime
