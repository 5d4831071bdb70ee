"""Fixtures of all tests."""

import os

import pytest

# Threads of OpenMP that wait sleep, in place of turning in a loop: with as many test processes as processors, each of
# several threads, they would take each other's time, and small calls several times as long.
os.environ["OMP_WAIT_POLICY"] = "passive"

from trigraph import get_num_threads, set_num_threads


@pytest.fixture(autouse=True)
def _same_threads():
    """Leave the number of threads as it was."""
    before = get_num_threads()
    yield
    set_num_threads(before)
