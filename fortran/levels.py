"""Which build of the fast path runs: there is one for each level of the processor's instruction set.

On x86-64 the levels are v2 (vectors of 16 bytes), v3 (32 bytes, AVX2) and v4 (64 bytes, AVX-512); elsewhere there is
one build, ``base``. A wheel has all levels. A build from source has the highest level of its processor, unless meson's
option ``cpu_levels`` names others, as for a cluster whose nodes differ. v3 and v4 give equal bits; v2, which has no
fused multiply-add, rounds differently.

On aarch64 ``base`` is NEON, with fused multiply-adds. There is no level for SVE: the length of its vectors is not known
when it is compiled, but the kernels' tiles, of which the order of sums follows, are of vectors of a known length.
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

# The C interface: beside the extension modules, which lie elsewhere than this file in an editable install.
_REFERENCE = importlib.util.find_spec("trigraph.fortran._reference")
LIBRARY = Path(str(_REFERENCE and _REFERENCE.origin)).with_name(
    "libtrigraph" + (".dylib" if sys.platform == "darwin" else ".so")
)

# Called when another build is chosen or the number of threads changes: `trigraph.jax` tells its handler.
FOLLOWERS: list[Callable[[], object]] = []

# The build in use. It depends on the last `set_cpu_level`, and before the first one on `TRIGRAPH_CPU_LEVEL` as it was
# when an operator first ran. There is one for the process; what is remembered of calls is the same for every build.
_chosen: ModuleType | None = None


@cache  # depends on the processor and the installed files, which a process does not see change; there is no key
def available() -> tuple[str, ...]:
    """Return the levels that are built and that this processor can run, the highest last."""
    highest = importlib.import_module("trigraph.fortran._reference").cpu_level()
    levels = [f"v{level}" for level in range(2, highest + 1)] or ["base"]
    return tuple(level for level in levels if importlib.util.find_spec(f"trigraph.fortran._fast_{level}"))


def _share_openmp() -> None:
    """Let the fast path run on PyTorch's OpenMP library where PyTorch is installed, imported or not.

    Two libraries in one process each keep threads that wait in a loop for their next work, and take the processors from
    the other's: alternating calls of 0.1 ms took 4 ms. The symbols of a library that is loaded globally come first, as
    they do once torch itself is imported.
    """
    spec = importlib.util.find_spec("torch") if sys.platform == "linux" else None
    if spec is None or spec.origin is None:
        return
    for path in sorted(Path(spec.origin).parent.glob("lib/libgomp*.so*")):
        with contextlib.suppress(OSError):  # of another kind of system: torch will say so
            ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)


def _join_threads() -> None:
    """End OpenMP's threads that wait for this thread's next work; the next call starts new ones.

    A child process has the forking thread alone. OpenMP would believe there that the others still wait, and hang in the
    first operation of the child that is divided among them, be it one of torch, which shares the library. The function
    is looked up as the linker binds the fast path: what was loaded globally comes first (`_share_openmp`). A build
    without OpenMP has none, and needs none.
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

    ImportError if there is none, ValueError if `TRIGRAPH_CPU_LEVEL` in the environment names one that cannot run here.
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
    """Return the level of the fast path in use: the highest of the processor unless another was chosen.

    Raises
    ------
    ImportError, ValueError
        As for a call of an operator: no build is there, or `TRIGRAPH_CPU_LEVEL` names one that cannot run here.

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
        ``"v2"``, ``"v3"`` or ``"v4"`` on x86-64, at most that of the processor.

    Raises
    ------
    TypeError, ValueError
        If it is not a string, or cannot run here.

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
    """Return in which language `trigraph.torch` computes on the CPU, and why if it is Python.

    Torch's stable interface, which the operators in C++ call, is promised from 2.9 on.
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
    """Let sums over blocks of nodes or edges take two blocks at a time, as they take many thousands for a large graph.

    This is for verification: small graphs then go through several waves, and a last wave that is not full, as large
    ones do. No operator may run in another thread meanwhile.
    """
    module = fast_module()
    module.limit_blocks(2, 1)
    try:
        yield
    finally:
        module.limit_blocks(0, 0)
