"""How many OpenMP threads the fast path uses."""

from __future__ import annotations

import os

from trigraph.graphs import count

__all__ = ["get_num_threads", "set_num_threads"]


def _default() -> int:
    """Return OMP_NUM_THREADS (its first level) when it is a positive number, else the processors of this process."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if first.isdigit() and int(first) > 0:
        return int(first)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_num_threads = _default()
_forked = False


def get_num_threads() -> int:
    """Return the number of threads of the fast CPU path."""
    return _num_threads


def set_num_threads(num_threads: int) -> None:
    """Set the number of threads of the fast CPU path; results do not depend on it, to the bit.

    Parameters
    ----------
    num_threads : int
        At least 1.

    Raises
    ------
    TypeError, ValueError
        If it is not an integer, or below 1.
    RuntimeError
        If it is above 1 in a forked process: OpenMP would wait forever for threads that only the parent has.
    """
    global _num_threads
    value = count("set_num_threads", "num_threads", num_threads, minimum=1)
    if value > 1 and _forked:
        raise RuntimeError(
            f"set_num_threads: num_threads is {value}; expected 1 in a forked process, which OpenMP's threads do not "
            "survive (start processes by spawn or forkserver for more)"
        )
    _num_threads = value


def _after_fork() -> None:
    """OpenMP's thread team does not survive a fork: a forked child runs on one thread, which starts no team."""
    global _num_threads, _forked
    _num_threads, _forked = 1, True


os.register_at_fork(after_in_child=_after_fork)
