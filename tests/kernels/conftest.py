"""Fixtures: the test kernels in each build, the thread orders, and the stand-in for CuPy."""

import cupy_stand_in
import pytest
from host_kernels import build_test_library

from trigraph.gpu.launcher import HostLibrary


@pytest.fixture(params=["forward", "reverse", "random"])
def thread_order(request):
    return request.param


@pytest.fixture(scope="session", params=[(), pytest.param(("-DCUDA_HOST_UCONTEXT",), marks=pytest.mark.slow)])
def fast_faults_library(request):
    """Return the library of faults.cu, also with ucontext fibers (used except on x86-64 and aarch64)."""
    return HostLibrary(build_test_library("faults", extra_flags=request.param))


@pytest.fixture(scope="session")
def race_faults_library():
    return HostLibrary(build_test_library("faults", "race"))


@pytest.fixture
def stand_in_cupy(monkeypatch, tmp_path):
    return cupy_stand_in.install_cupy(monkeypatch, tmp_path)
