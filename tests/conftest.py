"""Fixtures shared by all tests."""

import ctypes
import os

import pytest
from signals import default_signal_handlers  # noqa: F401

# Operators use one thread by default, because the tests run in one process per processor. Waiting threads sleep
# instead of spinning.
os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}

import trigraph
from trigraph import set_num_threads
from trigraph.fortran import levels
from trigraph.fortran.threads import restore_num_threads


@pytest.fixture(autouse=True)
def _set_and_restore_num_threads(request):
    """Restore the number of threads after each test; tests marked `threads` use two threads, even for small arrays."""
    with restore_num_threads():
        if request.node.get_closest_marker("threads"):
            set_num_threads(2)
        yield


@pytest.fixture(scope="module")
def fortran_library():
    """Load the library `libtrigraph`, or a mutated one."""
    trigraph.set_cpu_level(trigraph.get_cpu_level())
    return ctypes.CDLL(os.environ.get("WRONG_LIBRARY", str(levels.LIBRARY)))
