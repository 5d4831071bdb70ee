"""What the sanitizer tests of kernel families share: builds, a library that counts, and workspace full of NaN."""

import importlib.util
import os
import shutil
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest

from trigraph.gpu.host.build import host_build, sanitizer_environment
from trigraph.gpu.launcher import HostLibrary, using_host_library

# The package's own library runs in every order, and has to give the same bits in each. What the slow builds report
# depends on accesses and on the barriers between them, not on the order: each of them runs in one.
ORDERS = ("forward", "reverse", "random")


class Recorder(HostLibrary):
    """A library that remembers what was launched."""

    def __init__(self, path):
        super().__init__(path)
        self.launched = set()

    def launch(self, name, *args):
        self.launched.add(name)
        super().launch(name, *args)


def nan_filled(shape, dtype=float):
    """Workspace that nobody has written."""
    return np.full(shape, -1 if np.dtype(dtype).kind == "i" else np.nan, dtype)


def check(path, order, instances, run):
    """Run all cases with every kernel; sanitizers speak up by themselves, and every order gives the same bits."""
    library = Recorder(path)
    with using_host_library(library, order, seed=5), mock.patch.object(np, "empty", nan_filled):
        fields = run()
    assert library.launched == set(instances)
    first = _BITS.setdefault(path, fields)
    assert fields.keys() == first.keys()
    for what, array in fields.items():
        assert array.tobytes() == first[what].tobytes(), f"{what}: other bits {order}"


_BITS = {}


def installed(family):
    """Return the path of the package's library."""
    return importlib.util.find_spec(f"trigraph.gpu._host_{family}").origin


def build(family, variant, instances):
    """Return the path of a library; without a compiler there is nothing to test."""
    if shutil.which(os.environ.get("CXX", "g++").split()[0]) is None:
        if os.environ.get("CI") == "true":
            pytest.fail("a C++ compiler is missing")
        pytest.skip("a C++ compiler is missing")
    return str(host_build(family, variant, instances=instances))


def run_program(file, library):
    """Run a test file as a program with AddressSanitizer, which has to be the first thing a process loads."""
    done = subprocess.run(
        [sys.executable, file, library],
        env=sanitizer_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "all right\n"), done.stderr
