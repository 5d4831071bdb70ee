"""Fixtures: the test kernels in each build and each order of threads, and the stand-in for CuPy."""

import cupy_stand_in
import pytest
from host_kernels import library

from trigraph.gpu.launcher import HostLibrary, using_host_library


@pytest.fixture(scope="session", params=["fast", "race", pytest.param("ucontext", marks=pytest.mark.slow)])
def primitives(request):
    """Each build that runs inside of this process; fibers by ucontext are those of other processors than x86-64."""
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


@pytest.fixture
def cupy(monkeypatch, tmp_path):
    return cupy_stand_in.install(monkeypatch, tmp_path)
