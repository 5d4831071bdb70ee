"""What NVRTC made of the loops that matter, counted in machine code: a device is not needed, and no time is claimed."""

import importlib.util

import pytest
from host_kernels import require
from sass import listing

# Loops that gather rows of columns, 16 bytes a lane.
GATHER = {
    "weighted": ("weighted_sum<float, int, true, false>", "weighted_to_sources<float, int, true>"),
    "gat": ("gat_aggregate<float, int, true, false, true>", "gat_to_rows<float, int, true>"),
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    found = all(importlib.util.find_spec(name) for name in ("cuda", "cuda.core", "cuda.bindings"))
    require(found, "cuda-core with nvidia-cuda-nvrtc and nvidia-cuda-runtime")
    return tmp_path_factory.mktemp("sass")


def loads_in_flight(operations):
    """Return how many 16-byte loads there are, at most, before a product waits for one of them."""
    most = now = 0
    for operation in operations:
        if operation.startswith(("FFMA", "FMUL")):
            now = 0
        elif operation.startswith("LDG") and ".128" in operation:
            now += 1
            most = max(most, now)
    return most


@pytest.mark.parametrize("family", GATHER)
def test_a_lane_has_four_rows_in_flight(family, directory):
    found = listing(family, GATHER[family], directory)
    counts = {name: loads_in_flight(found[name]) for name in GATHER[family]}
    assert min(counts.values()) >= 4, counts
