"""Choose between builds of the fast path, one for each level of the processor's instruction set.

On x86-64, the levels are v2 (vectors of 16 bytes), v3 (32 bytes, AVX2) and v4 (64 bytes, AVX-512). Other processors
have one build, ``base``. A wheel contains all levels. A build from source contains the highest level of its machine,
unless meson's option ``cpu_levels`` selects others, for example for a heterogeneous cluster. Results of v3 and v4
are bitwise identical; v2 has no fused multiply-add and rounds differently.

On aarch64, ``base`` uses NEON with fused multiply-adds. There is no level for SVE, whose vector length is unknown at
compile time, because the shapes of tiles, which determine the order of sums, depend on the vector length.
"""

import contextlib
import ctypes
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

ENVIRONMENT = "TRIGRAPH_CPU_LEVEL"
TORCH_ENVIRONMENT = "TRIGRAPH_TORCH_CPP"
LEVELS = ("base", "v2", "v3", "v4")
EQUAL_BITS = ("v3", "v4")

# The C library is next to the extension modules, which in an editable install are not in the folder of this file.
_REFERENCE = importlib.util.find_spec("trigraph.fortran._reference")
LIBRARY = Path(str(_REFERENCE and _REFERENCE.origin)).with_name(
    "libtrigraph" + (".dylib" if sys.platform == "darwin" else ".so")
)

# Functions to call when the build or the number of threads changes; they update the settings of libtrigraph.
SETTINGS_CALLBACKS: list[Callable[[], object]] = []

# The build in use, chosen by the last `set_cpu_level` or else by `TRIGRAPH_CPU_LEVEL` when an operator is first called.
# No other cached value depends on the build.
_chosen: ModuleType | None = None


@cache  # safe to cache, because the processor and the installed files do not change during a process
def list_runnable_levels() -> tuple[str, ...]:
    """Return the installed levels that this processor supports, in ascending order."""
    highest = importlib.import_module("trigraph.fortran._reference").cpu_level()
    levels = [f"v{level}" for level in range(2, highest + 1)] or ["base"]
    return tuple(level for level in levels if importlib.util.find_spec(f"trigraph.fortran._fast_{level}"))


def _load_torch_openmp() -> None:
    """Make the fast path use PyTorch's OpenMP library if PyTorch is installed, even if it is not imported.

    With two OpenMP libraries in a process, the waiting threads of one library occupy the processors that the other
    needs: alternating calls of 0.1 ms took 4 ms. Symbols of a library loaded globally take precedence, as they do
    after an import of torch.
    """
    spec = importlib.util.find_spec("torch") if sys.platform == "linux" else None
    if spec is None or spec.origin is None:
        return
    for path in sorted(Path(spec.origin).parent.glob("lib/libgomp*.so*")):
        with contextlib.suppress(OSError):  # ignored here, because importing torch will raise the error
            ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)


def _end_openmp_threads() -> None:
    """End the OpenMP threads that are waiting for work from this thread; the next call starts new threads.

    Only the forking thread exists in a forked child. OpenMP in the child would assume that the other threads still
    exist, and hang in the first parallel operation, even one of torch, which shares the library. The function is looked
    up in the same order as the symbols of the fast path: globally loaded libraries first (see `_load_torch_openmp`). A
    build without OpenMP neither contains nor needs this function.
    """
    if _chosen is not None:
        hard = 2  # value of omp_pause_hard in OpenMP 5.0
        for file in (None, _chosen.__file__):
            with contextlib.suppress(AttributeError):
                ctypes.CDLL(file).omp_pause_resource_all(hard)
                return


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_end_openmp_threads)


def _load_fast_module(level: str, origin: str) -> ModuleType:
    if level not in list_runnable_levels():
        raise ValueError(
            f"{origin} is {level!r}; expected one of {', '.join(list_runnable_levels())}, which this processor can run"
        )
    _load_torch_openmp()
    return importlib.import_module(f"trigraph.fortran._fast_{level}")


def fast_module() -> ModuleType:
    """Return the build of the fast path that is in use.

    Raises ImportError if there is no build, and ValueError if `TRIGRAPH_CPU_LEVEL` is not a level that can run here.
    """
    global _chosen
    if _chosen is None:
        if not list_runnable_levels():
            built = ", ".join(level for level in LEVELS if importlib.util.find_spec(f"trigraph.fortran._fast_{level}"))
            raise ImportError(
                f"trigraph.fortran: no build of the fast path is installed that this processor can run; built are "
                f"{built or 'none'}. Build from source on this machine, or with -Csetup-args=-Dcpu_levels=v2,v3,v4"
            )
        _chosen = _load_fast_module(os.environ.get(ENVIRONMENT) or list_runnable_levels()[-1], ENVIRONMENT)
    return _chosen


def get_cpu_level() -> str:
    """Return the level of the fast path in use: the processor's highest level, unless another level was chosen.

    Raises
    ------
    ImportError
        If there is no build of the fast path.
    ValueError
        If `TRIGRAPH_CPU_LEVEL` names a level that cannot run here.

    See Also
    --------
    trigraph.set_cpu_level
    """
    return fast_module().__name__.rpartition("_fast_")[2]


def set_cpu_level(level: str) -> None:
    """Choose the build of the fast path for all following calls; `TRIGRAPH_CPU_LEVEL` sets the initial choice.

    Parameters
    ----------
    level : str
        ``"v2"``, ``"v3"`` or ``"v4"`` on x86-64, up to the level of the processor.

    Raises
    ------
    TypeError, ValueError
        If `level` is not a string, or names a level that cannot run here.

    See Also
    --------
    trigraph.get_cpu_level
    """
    global _chosen
    if not isinstance(level, str):
        raise TypeError(f"set_cpu_level: level is a {type(level).__name__}; expected a string")
    _chosen = _load_fast_module(level, "set_cpu_level: level")
    for follow in SETTINGS_CALLBACKS:
        follow()


def find_torch_operator_language() -> tuple[str, str]:
    """Return the language of `trigraph.torch`'s CPU operators ("C++" or "Python"), and the reason if it is Python.

    The C++ operators call torch's stable interface, which exists since torch 2.9.
    """
    from importlib.metadata import version as version_of  # not at the top, because this import is slow

    version = version_of("torch") if importlib.util.find_spec("torch") else ""
    if os.environ.get(TORCH_ENVIRONMENT) == "0":
        reason = f"{TORCH_ENVIRONMENT} is 0"
    elif not LIBRARY.with_name("libtrigraph_torch.so").exists():
        reason = "they were not built"
    elif tuple(map(int, (version or "0.0").split(".")[:2])) < (2, 9):
        reason = f"torch is {version or 'not installed'}; they need 2.9"
    else:
        return "C++", ""
    return "Python", reason


@contextmanager
def small_blocks() -> Iterator[None]:
    """Return a context in which sums over blocks of nodes or edges process two blocks per wave instead of thousands.

    Verification uses this context so that small graphs, like large ones, need several waves, the last of them
    incomplete. No operator may run in another thread at the same time.
    """
    module = fast_module()
    module.limit_blocks(2, 1)
    try:
        yield
    finally:
        module.limit_blocks(0, 0)
