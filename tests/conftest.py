"""Fixtures for all tests."""

import os

import pytest
from signals import unignored_signals  # noqa: F401

# Calls use one thread unless a test requests more, because there is one test process for each processor. Waiting
# threads sleep instead of spinning.
os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}

from trigraph import set_num_threads
from trigraph.fortran.threads import restore_num_threads


@pytest.fixture(autouse=True)
def _restore_num_threads(request):
    """Restore the number of threads after each test; a test marked `threads` uses two threads even for small calls."""
    with restore_num_threads():
        if request.node.get_closest_marker("threads"):
            set_num_threads(2)
        yield
