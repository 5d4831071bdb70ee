"""Compilation of kernels: NVRTC compiles each instance separately, and a cache on disk stores the result.

Threads concurrently compile all instances that a call may launch. If several processes share a cache, one process
compiles an instance while the others wait for the result.
"""

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

from trigraph.arrays import import_cupy
from trigraph.gpu.instances import (
    C_TYPES,
    INSTANCES,
    is_enabled,
    list_related_instances,
    parse_types_and_degrees,
    rank_for_compilation,
)
from trigraph.gpu.sources import expand_includes
from trigraph.table import DEFINITIONS

KERNELS = Path(__file__).resolve().parent / "kernels"

# Compiler options for every kernel on a device.
OPTIONS = ("--std=c++17", "--ftz=false")

MAX_THREADS = 8


class KernelCache:
    """Cache of compiled instances for the devices of this machine."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        # Source text of each family, with includes expanded. It remains valid because installed files do not change.
        self._sources: dict[str, str] = {}

    @functools.cached_property
    def _temporary_folder(self) -> Path:
        """Temporary folder of this process, for use if the cache is disabled or not writable."""
        folder = tempfile.mkdtemp(prefix="trigraph-")
        weakref.finalize(self, shutil.rmtree, folder, True)
        return Path(folder)

    def _get_cache_folder(self) -> Path:
        """Return the folder of the cache, next to CuPy's cache."""
        if os.environ.get("CUPY_CACHE_IN_MEMORY", "0") == "1":
            return self._temporary_folder
        return Path(os.environ.get("CUPY_CACHE_DIR") or os.path.expanduser("~/.cupy/kernel_cache")) / "trigraph"

    def _get_instance_folder(self, family: str, name: str) -> Path:
        """Return the folder of an instance for the current device.

        The name of the folder is a hash of everything that determines the code: source, name of the instance, options,
        compiler, CuPy (which adds options) and device architecture.
        """
        if family not in self._sources:
            self._sources[family] = expand_includes(KERNELS / f"{family}.cu", KERNELS.parent, {})
        cuda = self._cupy.cuda
        made_by = self._cupy.__version__, cuda.nvrtc.getVersion(), cuda.Device().compute_capability, OPTIONS
        return (
            self._get_cache_folder()
            / hashlib.sha256(repr((*made_by, name, self._sources[family])).encode()).hexdigest()
        )

    def find_compiled_file(self, family: str, name: str) -> Path | None:
        """Return the file of an instance, or None if the instance is not compiled yet."""
        return _find_intact_file(self._get_instance_folder(family, name))

    def get_or_compile(self, family: str, name: str) -> Path:
        """Return the file of an instance, compiling the instance first if necessary."""
        path, folder = self.find_compiled_file(family, name), self._get_instance_folder(family, name)
        if path is not None:
            return path
        try:
            return self._compile(family, name, folder)
        except OSError:  # raised, for example, if the home directory is not writable
            return self._compile(family, name, self._temporary_folder / folder.name)

    def _compile(self, family: str, name: str, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        with _lock_folder(folder):
            path = _find_intact_file(folder)
            if path is None:
                # Call NVRTC directly, because RawModule(code=...) would append -ftz=true to the options.
                code, symbols = self._cupy.cuda.compiler.compile_using_nvrtc(
                    self._sources[family], OPTIONS, filename=f"{family}.cu", name_expressions=(name,)
                )
                path = folder / f"{symbols[name]}.{_compute_digest(code)}.cubin"
                with tempfile.TemporaryDirectory(dir=folder) as temporary_folder:
                    file = Path(temporary_folder, "code")
                    file.write_bytes(code)
                    file.replace(path)  # an atomic operation, so that no other process sees an incomplete file
                for other in set(folder.glob("*.cubin")) - {path}:  # delete damaged files of this instance
                    other.unlink(missing_ok=True)
        return path

    def start_compiling_related(self, family: str, name: str) -> None:
        """Start threads that compile all other instances launched by calls that use this instance."""
        absent = [
            other for other in list_related_instances(family, name) if self.find_compiled_file(family, other) is None
        ]
        device = self._cupy.cuda.Device()

        def compile_absent() -> None:
            # When Python exits, it waits for the current compilation, but no other compilation starts.
            while absent and threading.main_thread().is_alive():
                with contextlib.suppress(Exception), device:  # the launch of the instance will raise the error again
                    self.get_or_compile(family, absent.pop(0))

        for _ in range(min(len(absent), _choose_num_compile_threads())):
            threading.Thread(target=compile_absent).start()


def parse_function_name(file: Path) -> str:
    """Return the name of the function in a file of the cache."""
    return file.name.partition(".")[0]


def _compute_digest(code: bytes) -> str:
    return hashlib.sha256(code).hexdigest()[:32]


def _find_intact_file(folder: Path) -> Path | None:
    """Return a file whose content matches the digest in its name; crashes and full disks leave truncated files."""
    for file in folder.glob("*.cubin"):
        with contextlib.suppress(OSError):  # skip files that were removed or cannot be read
            if file.name.split(".")[1] == _compute_digest(file.read_bytes()):
                return file
    return None


def _choose_num_compile_threads() -> int:
    return min(MAX_THREADS, os.cpu_count() or 1)


@contextlib.contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Hold a lock on `folder` that excludes all other threads and processes."""
    with (folder / "lock").open("w") as file:
        with contextlib.suppress(OSError):  # without a lock, several processes may compile the instance
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def compile(
    operators: str | Iterable[str] | None = None,
    dtype: Any = np.float32,
    index: Any = np.int64,
    progress: bool = True,
) -> int:
    """Compile kernels for the current device before the first calls, and cache them next to CuPy's kernels.

    Parameters
    ----------
    operators : str or iterable of str, optional
        Names of operators without the suffix of their order, such as ``"mha_gat_n2n"``. All kernels of their families
        are compiled (default: all families).
    dtype : float32, float64, float16 or bfloat16
        Dtype of the arrays. Half precision requires operators that support it.
    index : int32 or int64
        Dtype of the graphs.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    int
        Number of kernels that were compiled.

    Raises
    ------
    ImportError
        If CuPy is not installed.
    TypeError, ValueError
        If an operator, the dtype or the index type is not supported.
    """
    cupy = import_cupy()
    wanted, cache, device = _select_instances(operators, dtype, index), KernelCache(cupy), cupy.cuda.Device()
    absent = [pair for pair in wanted if cache.find_compiled_file(*pair) is None]

    def compile_instance(pair: tuple[str, str]) -> None:
        with device:
            cache.get_or_compile(*pair)

    with ThreadPoolExecutor(_choose_num_compile_threads()) as pool:
        for number, future in enumerate(as_completed([pool.submit(compile_instance, pair) for pair in absent]), 1):
            future.result()
            if progress and sys.stderr.isatty():
                end = "\n" if number == len(absent) else ""
                print(f"\rCompiling kernels: {number} of {len(absent)}", end=end, file=sys.stderr, flush=True)
    return len(absent)


def _select_instances(operators: str | Iterable[str] | None, dtype: Any, index: Any) -> Sequence[tuple[str, str]]:
    """Return (family, name) of each instance that the operators need, slowest to compile first."""
    families = {d.name: d.family for d in DEFINITIONS}
    names = families if operators is None else (operators,) if isinstance(operators, str) else tuple(operators)
    for name in names:
        if name not in families:
            raise ValueError(f"compile: operators has {name!r}; expected some of {', '.join(families)}")
    types = set()
    for label, value, kinds in (("dtype", dtype, "fV"), ("index", index, "i")):
        resolved = np.dtype(value)
        if resolved.name not in C_TYPES or resolved.kind not in kinds:
            raise TypeError(f"compile: {label} is {resolved}; expected one of {', '.join(C_TYPES)} that suits {label}")
        types |= {C_TYPES[resolved.name], "float"} if resolved.itemsize == 2 else {C_TYPES[resolved.name]}
    chosen = dict.fromkeys(families[name] for name in names)
    pairs = [
        (family, name)
        for family in chosen
        for name in INSTANCES[family]
        if parse_types_and_degrees(name)[0] <= types and is_enabled(name)
    ]
    return sorted(pairs, key=lambda pair: rank_for_compilation(pair[1]))
