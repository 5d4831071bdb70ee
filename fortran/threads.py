"""Number of OpenMP threads of the fast path."""

import contextlib
import ctypes
import functools
import os
import warnings
from collections.abc import Iterator

from trigraph.arrays import require_count
from trigraph.fortran.levels import LIBRARY, SETTINGS_CALLBACKS, fast_module, get_cpu_level

# Threads in excess of the processors only wait, and OpenMP ends the process if the system cannot create all threads.
# Sixteen threads are always allowed, so that programs for larger machines can be tested on small machines.
MOST = max(16, 4 * (os.cpu_count() or 1))

# A call with less work (floating-point operations plus elements written) uses one thread unless a number was set,
# because waking other threads would take longer than their share of the work. For consecutive calls on a 2-core EPYC,
# one thread is as fast as two at 0.3 to 2 million operations. The limit is within this range, because several threads
# may pay off for less work on machines with more cores. With torch operations between the calls, DimeNet++ forces of
# a water molecule take 0.85 times as long with this limit as with 2**18; a limit of 2**22 would reduce the time by
# another factor of 0.75. For benzene, the factors are 1.03 and 0.95.
LITTLE_WORK = 2**20


def list_available_processors() -> set[int]:
    """Return the processors that this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _choose_default_threads() -> int:
    """Return the first number in OMP_NUM_THREADS if it is at most `MOST`, otherwise the number of processors."""
    processors = len(list_available_processors())
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if not first.isdecimal() or not first.strip("0"):
        return processors
    if len(first) < 10 and int(first) <= MOST:
        return int(first)
    shown = first if len(first) < 20 else f"a number of {len(first)} digits"
    warnings.warn(
        f"OMP_NUM_THREADS is {shown}; trigraph runs at most {MOST} threads on this machine, and uses {processors}",
        RuntimeWarning,
        stacklevel=3,
    )
    return processors


# The number of threads last set, or else the default (OMP_NUM_THREADS or the number of processors), determined when
# first needed. A forked process does not use it (see `_is_forked`). Results do not depend on the number of threads.
_num_threads: int | None = None
_was_set = False
_process = os.getpid()


def _is_forked() -> bool:
    """Return whether this process was forked from the process that imported this module.

    This function compares process ids, because a hook that the interpreter runs after a fork would be too late: a
    finaliser may call an operator before the hook.
    """
    return os.getpid() != _process


def get_num_threads() -> int:
    """Return the number of threads of the fast CPU path.

    The default is OMP_NUM_THREADS, read when the number is first needed, or else the number of processors available to
    this process. A value of OMP_NUM_THREADS that is not a number is ignored, and so is a number that is too large, with
    a warning. MPI ranks on the same machine divide its processors when `trigraph.distributed` makes a partition. Until
    a number is set, small calls use one thread (see `set_num_threads`). In a forked process, the number is 1, because
    OpenMP threads do not survive a fork.

    See Also
    --------
    trigraph.set_num_threads
    """
    global _num_threads
    if _is_forked():
        return 1
    if _num_threads is None:
        _num_threads = _choose_default_threads()
    return _num_threads


def get_parallel_threshold() -> int:
    """Return the work (floating-point operations plus elements written) below which a call uses one thread."""
    return 0 if _was_set else LITTLE_WORK


def choose_num_threads(work: int) -> int:
    """Return the number of threads for a call, given its work (floating-point operations plus elements written)."""
    return 1 if work < get_parallel_threshold() else get_num_threads()


def _call_settings_callbacks() -> None:
    for follow in SETTINGS_CALLBACKS:
        follow()


@functools.cache  # so that the function runs only once
def synchronise_library_settings() -> None:
    """Make libtrigraph use the same build of the fast path and the same number of threads as calls from Python.

    Raises ImportError or ValueError if no build of the fast path can be used.
    """
    fast_module()  # also loads torch's OpenMP library, if there is one
    interface = ctypes.CDLL(str(LIBRARY))

    def copy_settings_to_library() -> None:
        interface.trigraph_set_cpu_level(get_cpu_level().encode())
        interface.trigraph_use_threads(get_num_threads(), ctypes.c_int64(get_parallel_threshold()))

    copy_settings_to_library()
    SETTINGS_CALLBACKS.append(copy_settings_to_library)


def limit_default_threads(number: int) -> None:
    """Limit the default number of threads to `number`, because other processes use the other processors."""
    global _num_threads
    if not (_was_set or _is_forked() or os.environ.get("OMP_NUM_THREADS")):
        _num_threads = min(number, get_num_threads())
        _call_settings_callbacks()


@contextlib.contextmanager
def restore_num_threads() -> Iterator[None]:
    """Return a context that finally restores the number of threads, or the state in which none was set.

    Only one Python thread may use it at a time, because the number is shared by the whole process.
    """
    global _num_threads, _was_set
    before = _num_threads, _was_set
    try:
        yield
    finally:
        _num_threads, _was_set = before
        _call_settings_callbacks()


def set_num_threads(num_threads: int) -> None:
    """Set the number of threads of the fast CPU path; results are bitwise identical for any number.

    Every following call uses this number. Until a number is set, a call uses one thread if its work (floating-point
    operations plus elements written) is below 2**20.

    Parameters
    ----------
    num_threads : int
        Number of threads, at least 1, and at most 16 or four times the number of processors, whichever is larger.

    Raises
    ------
    TypeError, ValueError
        If `num_threads` is not an integer or is out of range.
    RuntimeError
        If `num_threads` exceeds 1 in a forked process, where OpenMP would wait forever for threads of the parent.

    See Also
    --------
    trigraph.get_num_threads
    """
    global _num_threads, _was_set
    value = require_count("set_num_threads", "num_threads", num_threads, minimum=1, maximum=MOST)
    if value > 1 and _is_forked():
        raise RuntimeError(
            f"set_num_threads: num_threads is {value}; expected 1 in a forked process, which OpenMP's threads do not "
            "survive (start processes by spawn or forkserver for more)"
        )
    _num_threads, _was_set = value, True
    _call_settings_callbacks()
