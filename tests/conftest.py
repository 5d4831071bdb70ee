"""Fixtures of all tests."""

import os

import pytest

# Threads of OpenMP that wait sleep, in place of turning in a loop: with as many test processes as processors, each of
# several threads, they would take each other's time, and small calls several times as long.
os.environ["OMP_WAIT_POLICY"] = "passive"

from trigraph import get_num_threads, set_num_threads
from trigraph.fortran.threads import kept_num_threads

# Files whose tests take longest, in this order: a process that begins one of them late ends long after the others.
LONGEST = (
    "test_verification.py",
    "test_gpu_sanitizers.py",
    "test_refused_memory.py",
    "test_verification_implementation.py",
    "test_gpu_nvrtc.py",
    "test_docs.py",
    "test_verification_complete.py",
    "test_bench.py",
    "test_physics.py",
    "test_gemnet_extremes.py",
    "test_cli.py",
    "test_threads.py",
    "test_soak.py",
)


def pytest_configure(config):
    """Keep the order of files: pytest-xdist would begin with those of most tests, which are the short ones."""
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items):
    """Begin with the longest files."""
    place = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))


@pytest.fixture(autouse=True)
def _same_threads():
    """Use all threads for every call, however small, and leave their number as it was."""
    with kept_num_threads():
        set_num_threads(get_num_threads())
        yield
