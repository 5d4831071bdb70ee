"""Every kernel of the GNO family under the race build, AddressSanitizer and three orders of blocks and threads.

Run as a program with the path of a library, it does the work of one build in a process of its own: AddressSanitizer has
to be the first thing a process loads.
"""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

import trigraph.gpu as gpu
import trigraph.pyref as pyref
from trigraph import CSC
from trigraph.gpu import sums
from trigraph.gpu.host.build import host_build, sanitizer_environment
from trigraph.gpu.instances import INSTANCES
from trigraph.gpu.launcher import HostLibrary, using_host_library

# Each kernel in float32 with int32 and in float64 with int64: half the instances, half the time of the compiler.
ARGUMENTS = {("float",), ("double",), ("int",), ("long long",), ("float", "int"), ("double", "long long")}
SUBSET = tuple(i for i in INSTANCES["gno"] if tuple(i[i.index("<") + 1 : -1].split(", ")) in ARGUMENTS)

# float, index, in-degrees, d, H, f_in, f_out: a node with many in-edges and isolated ones; more than one block; widths
# beyond one tile in each direction; widths of one.
CASES = {
    "hub": (np.float32, np.int32, [3, 0, 300, 128, 0, 1], 3, 5, 3, 2),
    "many": (np.float64, np.int64, [1, 0, 2] * 90, 1, 2, 2, 1),
    "wide": (np.float32, np.int32, [3, 0, 20], 2, 34, 35, 2),
    "tall": (np.float64, np.int64, [3, 0, 2], 1, 2, 1, 131),
    "narrow": (np.float64, np.int64, [1], 1, 1, 1, 1),
}


def make(name):
    """Graph and arguments by name; half the rows are shared by several positions, some are not used."""
    real, index, degrees, d, hidden, f_in, f_out = CASES[name]
    rng = np.random.default_rng(3)
    offsets, width = np.cumsum([0, *degrees]).astype(index), f_in * f_out
    positions, sources = int(offsets[-1]), len(degrees) + 2
    rows = rng.integers(0, positions // 2 + 1, positions)
    rows[rng.random(positions) < 0.4] = 0
    graph = CSC(
        offsets, rng.integers(0, sources, positions).astype(index), sources, rows.astype(index), positions // 2 + 3
    )
    shapes = {
        "features": (sources, f_in),
        "coords": (graph.num_edges, d),
        "params": (hidden * (d + 1 + width) + width,),
        "kernel": (graph.num_edges, width),
        "message": (graph.num_dst_nodes, f_out),
    }
    values = {key: rng.standard_normal(shape).astype(real) for key, shape in shapes.items()}
    values |= {f"gg_{key}": rng.standard_normal(shape).astype(real) for key, shape in shapes.items()}
    return graph, values, (f_in, f_out)


def results(panel, name):
    """Every field of every operator."""
    graph, v, widths = make(name)
    x, p, h, k = v["coords"], v["params"], v["features"], v["kernel"]
    gx, gp, gh, gk, g = v["gg_coords"], v["gg_params"], v["gg_features"], v["gg_kernel"], v["message"]
    return {
        "kernel_fwd": (panel.gno_kernel_fwd(x, p, *widths),),
        "kernel_bwd": panel.gno_kernel_bwd(k, x, p, *widths),
        "kernel_bwd2": panel.gno_kernel_bwd2(gx, gp, k, x, p, *widths),
        "aggregate_fwd": (panel.gno_aggregate_fwd(h, k, graph, *widths),),
        "aggregate_bwd": panel.gno_aggregate_bwd(g, h, k, graph, *widths),
        "aggregate_bwd2": panel.gno_aggregate_bwd2(gh, gk, g, h, k, graph, *widths),
        "message_fwd": (panel.gno_message_fwd(h, x, p, graph, *widths),),
        "message_bwd": panel.gno_message_bwd(g, h, x, p, graph, *widths),
        "message_bwd2": panel.gno_message_bwd2(gh, gx, gp, g, h, x, p, graph, *widths),
        "message_bwd2 of coords": panel.gno_message_bwd2(None, gx, None, g, h, x, p, graph, *widths),
        "message_bwd2 of features": panel.gno_message_bwd2(gh, None, None, g, h, x, p, graph, *widths),
    }


class Recorder(HostLibrary):
    """A library that remembers what was launched."""

    def __init__(self, path):
        super().__init__(path)
        self.launched = set()

    def launch(self, name, *args):
        self.launched.add(name)
        super().launch(name, *args)


def check(path, order):
    """Run all cases with every kernel; sanitizers speak up by themselves, and results must be right in every order."""
    library = Recorder(path)
    workspace, sums.WORKSPACE = sums.WORKSPACE, 1  # blocks as small as they get
    try:
        with using_host_library(library, order, seed=5):
            for name in CASES:
                got, expected = results(gpu, name), results(pyref, name)
                for operator, fields in expected.items():
                    for mine, right in zip(got[operator], fields, strict=True):
                        error = np.abs(mine - right).max(initial=0)
                        bound = 200 * np.finfo(right.dtype).eps * np.abs(right).max(initial=0)
                        assert error <= bound, f"{name}: {operator}: {error} > {bound}"
    finally:
        sums.WORKSPACE = workspace
    assert library.launched == set(SUBSET)


def build(variant):
    if shutil.which(os.environ.get("CXX", "g++").split()[0]) is None:
        if os.environ.get("CI") == "true":
            pytest.fail("a C++ compiler is missing")
        pytest.skip("a C++ compiler is missing")
    return str(host_build("gno", variant, instances=SUBSET))


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_race(order):
    check(build("race"), order)


def test_asan():
    command = [sys.executable, __file__, build("asan")]
    done = subprocess.run(
        command, env=sanitizer_environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout) == (0, "all right\n"), done.stderr


if __name__ == "__main__":
    for each in ("forward", "reverse", "random"):
        check(sys.argv[1], each)
    print("all right")
