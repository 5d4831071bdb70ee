"""Fixtures of all tests."""

import os

import pytest
from signals import unignored_signals  # noqa: F401

# Calls use one thread, unless a test asks for several, since there are as many test processes as processors. Waiting
# threads sleep instead of spinning.
os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}

from trigraph import set_num_threads
from trigraph.fortran.threads import restore_num_threads


@pytest.fixture(autouse=True)
def _restore_num_threads(request):
    """Restore the number of threads; a test marked `threads` uses two for every call, however small."""
    with restore_num_threads():
        if request.node.get_closest_marker("threads"):
            set_num_threads(2)
        yield
