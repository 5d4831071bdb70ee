"""Build the test kernels on the host: primitives, storage, tensor, and faults (faulty and correct versions)."""

import os
import re
import shutil
from datetime import date
from pathlib import Path

import pytest

from trigraph import environment
from trigraph.gpu.host.build import build_host_library, kernel_parameters
from trigraph.gpu.instances import FLOATS, STORAGE, expand_instances

HERE = Path(__file__).resolve().parent

FAULTS = kernel_parameters((HERE / "faults.cu").read_text())
INSTANCES = {
    "primitives": (
        *expand_instances("reverse_in_dynamic_memory", FLOATS),
        *expand_instances("copy_scalars"),
        *expand_instances("scale", FLOATS),
    ),
    "faults": tuple(name for kernel in FAULTS for name in expand_instances(kernel, ("true", "false"))),
    "storage": expand_instances("round_to_storage", STORAGE),
    "tensor": ("multiply_on_tensor_cores",),
}


def skip_unless_available(available, what):
    """Skip a test if a tool is not available; on CI, where every tool is installed, fail instead."""
    if not available:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{what} is missing")
        pytest.skip(f"{what} is missing")


def require_compiler():
    """Skip a test, or fail on CI, if there is no C++ compiler."""
    skip_unless_available(shutil.which(os.environ.get("CXX", "g++").split()[0]), "a C++ compiler")


def find_selection_number():
    """Return a number that selects the cases of `make test-all` that `make test` runs.

    The number changes with every commit or, outside a repository, every day.
    """
    commit = environment._run_git(HERE, "rev-parse", "HEAD")
    return int(commit, 16) if commit else date.today().toordinal()


def build_test_library(family, variant="fast", extra_flags=()):
    """Build a library of the test kernels; return its path."""
    require_compiler()
    source = HERE / f"{family}.cu"
    return build_host_library(family, variant, source=source, instances=INSTANCES[family], extra_flags=extra_flags)


def find_kernel_line(source, kernel):
    """Return the number of the line that defines a kernel."""
    lines = (HERE / source).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if re.search(rf"\bvoid {kernel}\(", line))
