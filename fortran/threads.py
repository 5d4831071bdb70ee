"""The number of OpenMP threads of the fast path."""

import contextlib
import ctypes
import functools
import os
import warnings
from collections.abc import Iterator

from trigraph.arrays import count
from trigraph.fortran.levels import FOLLOWERS, LIBRARY, fast_module, get_cpu_level

# More threads than processors only wait for each other. The system refuses far more threads, and OpenMP then ends the
# process. Sixteen are always allowed, so that a program for a larger machine can be tried on a small one.
MOST = max(16, 4 * (os.cpu_count() or 1))

# A call with less work, in floating operations plus numbers written, uses one thread unless a number was set: waking
# the other threads would take longer than their part of the work. On a 2-core EPYC, in successive calls, one thread
# takes as long as two at 0.3 to 2 million operations. The limit is within that range, since more cores than two may
# gain from less work. With torch's operations between the calls, the forces of a water molecule by DimeNet++ took 0.85
# of the time with a limit of 2**18, and 0.75 of the time with a limit of 2**22; the forces of benzene took 1.03 and
# 0.95.
LITTLE_WORK = 2**20


def available_processors() -> set[int]:
    """Return the numbers of the processors that this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _default() -> int:
    """Return OMP_NUM_THREADS (its first level) if it is a number that this machine can run, else our processors."""
    processors = len(available_processors())
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


# The number set last, or else from OMP_NUM_THREADS and the processors when the number was first needed. A forked
# process, whose process number differs from `_process`, does not use it. Results do not depend on it.
_num_threads: int | None = None
_was_set = False
_process = os.getpid()


def _is_forked() -> bool:
    """Return whether this process was forked from the one that imported this module.

    This uses the process number, not a function that the interpreter calls after a fork: a finaliser may run an
    operator before that.
    """
    return os.getpid() != _process


def get_num_threads() -> int:
    """Return the number of threads of the fast CPU path.

    Until it is set, it is OMP_NUM_THREADS when the number is first needed, or else the number of processors of this
    process; a value that is not a number, or too large, is ignored, the latter with a warning. MPI ranks that share a
    machine divide its processors when `trigraph.distributed` makes a partition. Small calls use one thread until it is
    set (see `set_num_threads`). In a forked process the number is 1, since OpenMP's team of threads does not survive a
    fork, and one thread needs no team.

    See Also
    --------
    trigraph.set_num_threads
    """
    global _num_threads
    if _is_forked():
        return 1
    if _num_threads is None:
        _num_threads = _default()
    return _num_threads


def least_work() -> int:
    """Return the floating operations plus numbers written below which a call uses one thread."""
    return 0 if _was_set else LITTLE_WORK


def threads_for(work: int) -> int:
    """Return the number of threads for a call with this number of floating operations plus numbers written."""
    return 1 if work < least_work() else get_num_threads()


def _tell_followers() -> None:
    for follow in FOLLOWERS:
        follow()


@functools.cache  # once, without arguments
def lead_library() -> None:
    """Let calls of libtrigraph use the same build of the fast path and number of threads as Python's calls.

    Raises ImportError or ValueError if there is no build of the fast path.
    """
    fast_module()  # also loads torch's OpenMP library, if there is one
    interface = ctypes.CDLL(str(LIBRARY))

    def follow() -> None:
        interface.trigraph_set_cpu_level(get_cpu_level().encode())
        interface.trigraph_use_threads(get_num_threads(), ctypes.c_int64(least_work()))

    follow()
    FOLLOWERS.append(follow)


def share_processors(number: int) -> None:
    """Use at most this many threads unless the user has chosen a number; other processes use the other processors."""
    global _num_threads
    if not (_was_set or _is_forked() or os.environ.get("OMP_NUM_THREADS")):
        _num_threads = min(number, get_num_threads())
        _tell_followers()


@contextlib.contextmanager
def restore_num_threads() -> Iterator[None]:
    """Restore, on leaving, the previous number of threads, or that none was set.

    Use it in one Python thread at a time: the number belongs to the process.
    """
    global _num_threads, _was_set
    before = _num_threads, _was_set
    try:
        yield
    finally:
        _num_threads, _was_set = before
        _tell_followers()


def set_num_threads(num_threads: int) -> None:
    """Set the number of threads of the fast CPU path; the bits of results do not depend on it.

    From then on every call uses this number. Before that, a call uses one thread if it takes less than 2**20 floating
    operations plus numbers written.

    Parameters
    ----------
    num_threads : int
        At least 1, at most four for each processor of the machine, or 16 if that is more.

    Raises
    ------
    TypeError, ValueError
        If it is not an integer, or out of range.
    RuntimeError
        If it is above 1 in a forked process: OpenMP would wait forever for threads that only the parent has.

    See Also
    --------
    trigraph.get_num_threads
    """
    global _num_threads, _was_set
    value = count("set_num_threads", "num_threads", num_threads, minimum=1, maximum=MOST)
    if value > 1 and _is_forked():
        raise RuntimeError(
            f"set_num_threads: num_threads is {value}; expected 1 in a forked process, which OpenMP's threads do not "
            "survive (start processes by spawn or forkserver for more)"
        )
    _num_threads, _was_set = value, True
    _tell_followers()
