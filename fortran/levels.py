"""Choose the build of the fast path: there is one for each level of the processor's instruction set.

On x86-64 the levels are v2 (vectors of 16 bytes), v3 (32 bytes, AVX2) and v4 (64 bytes, AVX-512); elsewhere there is
one build, ``base``. A wheel has all levels. A build from source has the highest level of its processor, unless meson's
option ``cpu_levels`` names others, for example for a cluster whose nodes differ. v3 and v4 give equal bits; v2, which
has no fused multiply-add, rounds differently.

On aarch64 ``base`` is NEON, with fused multiply-adds. There is no level for SVE, because the length of its vectors is
not known at compile time. The kernels' tiles, which determine the order of sums, consist of vectors of a known length.
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

# The C interface is next to the extension modules, which are not in this file's folder in an editable install.
_REFERENCE = importlib.util.find_spec("trigraph.fortran._reference")
LIBRARY = Path(str(_REFERENCE and _REFERENCE.origin)).with_name(
    "libtrigraph" + (".dylib" if sys.platform == "darwin" else ".so")
)

# Called when another build is chosen or the number of threads changes: `trigraph.jax` informs its handler.
FOLLOWERS: list[Callable[[], object]] = []

# The build in use. It depends on the last `set_cpu_level` or, before the first, on `TRIGRAPH_CPU_LEVEL` as it was when
# an operator first ran. There is one for the process; cached data of calls is the same for every build.
_chosen: ModuleType | None = None


@cache  # depends on the processor and the installed files, which do not change during a process; there is no key
def available() -> tuple[str, ...]:
    """Return the levels that are built and that this processor can run, the highest last."""
    highest = importlib.import_module("trigraph.fortran._reference").cpu_level()
    levels = [f"v{level}" for level in range(2, highest + 1)] or ["base"]
    return tuple(level for level in levels if importlib.util.find_spec(f"trigraph.fortran._fast_{level}"))


def _share_openmp() -> None:
    """Let the fast path use PyTorch's OpenMP library if PyTorch is installed, whether or not it is imported.

    Two OpenMP libraries in one process each keep threads that wait in a loop for their next work, and take the
    processors from each other: alternating calls of 0.1 ms took 4 ms. The symbols of a globally loaded library come
    first, as they do once torch itself is imported.
    """
    spec = importlib.util.find_spec("torch") if sys.platform == "linux" else None
    if spec is None or spec.origin is None:
        return
    for path in sorted(Path(spec.origin).parent.glob("lib/libgomp*.so*")):
        with contextlib.suppress(OSError):  # for another kind of system; torch will report it
            ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)


def _join_threads() -> None:
    """End OpenMP's threads that wait for this thread's next work; the next call starts new ones.

    A child process has only the forking thread. OpenMP would assume that the others still wait, and hang in the first
    operation of the child that is divided among them, including operations of torch, which shares the library. The
    function is looked up as the linker binds the fast path: globally loaded symbols come first (`_share_openmp`). A
    build without OpenMP has no such function, and needs none.
    """
    if _chosen is not None:
        hard = 2  # omp_pause_hard of OpenMP 5.0
        for file in (None, _chosen.__file__):
            with contextlib.suppress(AttributeError):
                ctypes.CDLL(file).omp_pause_resource_all(hard)
                return


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_join_threads)


def _load(level: str, origin: str) -> ModuleType:
    if level not in available():
        raise ValueError(
            f"{origin} is {level!r}; expected one of {', '.join(available())}, which this processor can run"
        )
    _share_openmp()
    return importlib.import_module(f"trigraph.fortran._fast_{level}")


def fast_module() -> ModuleType:
    """Return the build of the fast path that is in use.

    Raises ImportError if there is none, ValueError if `TRIGRAPH_CPU_LEVEL` names one that cannot run here.
    """
    global _chosen
    if _chosen is None:
        if not available():
            built = ", ".join(level for level in LEVELS if importlib.util.find_spec(f"trigraph.fortran._fast_{level}"))
            raise ImportError(
                f"trigraph.fortran: no build of the fast path is installed that this processor can run; built are "
                f"{built or 'none'}. Build from source on this machine, or with -Csetup-args=-Dcpu_levels=v2,v3,v4"
            )
        _chosen = _load(os.environ.get(ENVIRONMENT) or available()[-1], ENVIRONMENT)
    return _chosen


def get_cpu_level() -> str:
    """Return the level of the fast path in use: the highest of the processor unless another one was chosen.

    Raises
    ------
    ImportError, ValueError
        As for a call of an operator: there is no build, or `TRIGRAPH_CPU_LEVEL` names one that cannot run here.

    See Also
    --------
    trigraph.set_cpu_level
    """
    return fast_module().__name__.rpartition("_fast_")[2]


def set_cpu_level(level: str) -> None:
    """Choose the build of the fast path for all calls from now on, as `TRIGRAPH_CPU_LEVEL` does from the start.

    Parameters
    ----------
    level : str
        ``"v2"``, ``"v3"`` or ``"v4"`` on x86-64, at most the highest level of the processor.

    Raises
    ------
    TypeError, ValueError
        If the level is not a string, or cannot run here.

    See Also
    --------
    trigraph.get_cpu_level
    """
    global _chosen
    if not isinstance(level, str):
        raise TypeError(f"set_cpu_level: level is a {type(level).__name__}; expected a string")
    _chosen = _load(level, "set_cpu_level: level")
    for follow in FOLLOWERS:
        follow()


def torch_operators() -> tuple[str, str]:
    """Return the language in which `trigraph.torch` computes on the CPU, and the reason if it is Python.

    The C++ operators call torch's stable interface, which torch promises from 2.9 on.
    """
    from importlib.metadata import version as version_of  # slow to import

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
    """Let sums over blocks of nodes or edges use two blocks at a time, as large graphs use many thousands.

    This is for verification: small graphs then go through several waves, including an incomplete last wave, as large
    ones do. No operator may run in another thread meanwhile.
    """
    module = fast_module()
    module.limit_blocks(2, 1)
    try:
        yield
    finally:
        module.limit_blocks(0, 0)
