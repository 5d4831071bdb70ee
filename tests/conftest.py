"""Fixtures of all tests."""

import pytest

from trigraph import get_num_threads, set_num_threads


@pytest.fixture(autouse=True)
def _same_threads():
    """Leave the number of threads as it was."""
    before = get_num_threads()
    yield
    set_num_threads(before)
