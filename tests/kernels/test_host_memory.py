"""Memory that the system refuses to a launch is a MemoryError that says how much; then all goes on."""

import subprocess
import sys

import pytest
from host_kernels import library

# Runs a kernel whose threads wait, so that each needs a stack, under limits of the address space that rise from what is
# in use now, and says what becomes of each.
CHILD = """
import re, resource, sys
import numpy as np
from trigraph.gpu.launcher import runtime, using_host_library

x, sums = np.ones(1024, np.float32), np.zeros(1, np.float32)
place = runtime(x)

def used():
    return int(re.search(r"VmSize:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024

def run(limit, shared):
    sums[0] = 0
    if limit:
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    try:
        place.launch("primitives", "block_sum", (np.dtype("f4"),), (1,), (1024,), (x, sums, np.int32(1024)), shared)
        return "right" if sums[0] == 1024 else "wrong"
    except MemoryError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

with using_host_library(sys.argv[1], sys.argv[2]):
    start = used()
    for more in (0, 1 << 20, 5 << 20, 100 << 20, 1100 << 20):
        print(run(start + more, 0))
    print(run(0, 0))
"""


@pytest.mark.parametrize("order", ["forward", "random"])
def test_falling_limit(order):
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(library("primitives")), order], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    *limited, most, unlimited = done.stdout.splitlines()
    assert (most, unlimited) == ("right", "right")
    for said in limited:
        assert said == "block_sum<float>: the system refused 1048576 bytes for the stack of a thread"
