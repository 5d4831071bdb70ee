"""Fixtures: the test kernels in each build, each order of threads, and a Python under AddressSanitizer."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from host_kernels import library, require

from trigraph.gpu.host.build import sanitizer_environment
from trigraph.gpu.launcher import HostLibrary, using_host_library


@pytest.fixture(scope="session", params=["fast", "race", "ucontext"])
def primitives(request):
    """Each build that runs inside of this process; asan has a process of its own."""
    flags = ("-DCUDA_HOST_UCONTEXT",) if request.param == "ucontext" else ()
    variant = "fast" if request.param == "ucontext" else request.param
    return HostLibrary(library("primitives", variant, flags))


@pytest.fixture(params=["forward", "reverse", "random"])
def order(request):
    return request.param


@pytest.fixture
def with_primitives(primitives, order):
    with using_host_library(primitives, order, seed=3):
        yield primitives


@pytest.fixture(scope="session")
def faults_fast():
    return HostLibrary(library("faults"))


@pytest.fixture(scope="session")
def faults_race():
    return HostLibrary(library("faults", "race"))


@pytest.fixture(scope="session")
def run_asan():
    """Run Python code under AddressSanitizer; returns (exit status, output, report)."""
    require(shutil.which("g++"), "g++ with libasan")
    environment = sanitizer_environment()
    require(Path(environment["LD_PRELOAD"]).is_file(), "libasan")

    def run(code):
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        return done.returncode, done.stdout, done.stderr

    return run
