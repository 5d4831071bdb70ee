"""Builds the test kernels of this folder: primitives, patterns, and faults (wrong ones beside their right twins)."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from trigraph.gpu.host.build import host_build, kernel_parameters, sanitizer_environment
from trigraph.gpu.instances import FLOATS, INDICES, expand
from trigraph.gpu.launcher import HostLibrary, using_host_library

HERE = Path(__file__).resolve().parent

PRIMITIVES = (
    *expand("geometry"),
    *expand("shuffles", ("int", "long long", *FLOATS)),
    *expand("votes", ("int", "long long", *FLOATS)),
    *expand("two_groups"),
    *expand("atomics", ("int", "unsigned int", "unsigned long long")),
    *expand("subtraction"),
    *expand("float_functions"),
    *expand("double_functions"),
    *expand("integer_functions"),
    *expand("vectors"),
    *expand("cached", FLOATS),
    *expand("static_memory", FLOATS, ("16",)),
    *expand("dynamic_memory", FLOATS),
    *expand("block_sum", FLOATS),
    *expand("own_collective"),
    *expand("scalars"),
    *expand("no_arguments"),
    *expand("scale", FLOATS),
)
FAULTS = tuple(
    name for kernel in kernel_parameters((HERE / "faults.cu").read_text()) for name in expand(kernel, ("true", "false"))
)
PATTERNS = (
    "matrix_product",
    "double_buffer",
    "scan",
    *expand("segment_sums", INDICES),
    "cut_buffer",
    "two_roles",
    "histogram",
    "tree_in_global",
)
INSTANCES = {"primitives": PRIMITIVES, "faults": FAULTS, "patterns": PATTERNS}


def require(available, what):
    """Skip a test for want of a tool; on CI, where every tool is installed, fail."""
    if not available:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{what} is missing")
        pytest.skip(f"{what} is missing")


def library(family, variant="fast", extra_flags=()):
    """Return the path of a build of the test kernels."""
    require(shutil.which(os.environ.get("CXX", "g++").split()[0]), "a C++ compiler")
    return host_build(
        family, variant, source=HERE / f"{family}.cu", instances=INSTANCES[family], extra_flags=extra_flags
    )


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


def line_of(source, kernel):
    """Return the number of the line that names a kernel."""
    lines = (HERE / source).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if re.search(rf"\bvoid {kernel}\(", line))
