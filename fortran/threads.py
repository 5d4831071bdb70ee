"""How many OpenMP threads the fast path uses."""

from __future__ import annotations

import operator
import os

__all__ = ["get_num_threads", "set_num_threads"]


def _default() -> int:
    """Return OMP_NUM_THREADS (its first level) when it is a positive number, else the processors of this process."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if first.isdigit() and int(first) > 0:
        return int(first)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_num_threads = _default()


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
    """
    global _num_threads
    value = operator.index(num_threads)
    if value < 1:
        raise ValueError(f"set_num_threads: num_threads is {value}; expected at least 1")
    _num_threads = value


# OpenMP's thread team does not survive a fork: a forked child runs on one thread, which starts no team.
os.register_at_fork(after_in_child=lambda: set_num_threads(1))
