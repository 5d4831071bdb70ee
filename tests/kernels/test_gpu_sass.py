"""Instructions of the innermost loops that NVRTC generates: shares of multiply-adds, and loads. No device is needed.

At least half of the loops, those that run most often, reach half of the peak.
"""

import importlib.metadata
import importlib.util
import re
import subprocess
from collections import Counter
from functools import cache

import pytest
from host_kernels import require

from trigraph.gpu.budgets import KERNELS, OPTIONS
from trigraph.gpu.sources import expand_includes

FORWARD = "dimenet_out_edges<float, int, 0, 7>"
BACKWARD = ("dimenet_out_edges<float, int, 1, 7>", "dimenet_in_edges<float, int, false, 7>")
# Loops that gather rows of columns, 16 bytes a lane.
GATHER = {
    "weighted": (
        "weighted_sum<float, int, true, false>",
        "weighted_to_sources<float, int, true>",
        "weighted_dots<float, int, true, false>",
    ),
    "gat": (
        "gat_forward<float, int, true, true>",
        "gat_backward<float, int, true, false>",
        "gat_to_rows<float, int, true, false>",
    ),
}
TILES = ("gno_moments<float, int, 4, 3>", "gno_to_source<float, int, 2, 3>", "gno_first_layer<float, int, 2, 4>")
# Where a warp adds the triplets of an edge, for 64 columns and for 32.
TRIPLETS = ("gemnet_products<float, int, 8, 2>", "gemnet_products<float, int, 16, 1>")
INSTANCES = {**GATHER, "dimenet": (FORWARD, *BACKWARD), "gno": TILES, "gemnet": TRIPLETS}


def disassembler():
    """Return the path of nvdisasm; without it there is nothing to test."""
    try:
        files = importlib.metadata.files("nvidia-cuda-nvdisasm") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    paths = [str(file.locate()) for file in files if file.name == "nvdisasm"]
    require(paths, "nvidia-cuda-nvdisasm")
    return paths[0]


@pytest.fixture(scope="module")
def listing(tmp_path_factory):
    """A function of a family: instance -> its lines, labels that end with a colon and instructions with a semicolon."""
    installed = all(importlib.util.find_spec(name) for name in ("cuda", "cuda.core", "cuda.bindings"))
    require(installed, "cuda-core with nvidia-cuda-nvrtc and nvidia-cuda-runtime")
    from cuda.core import Program, ProgramOptions

    command, directory = disassembler(), tmp_path_factory.mktemp("sass")

    @cache
    def lines_of(family):
        cubin = directory / f"{family}.cubin"
        text = expand_includes(KERNELS / f"{family}.cu", KERNELS.parent, {})
        code = Program(text, "c++", ProgramOptions(arch="sm_90", **OPTIONS)).compile("cubin", INSTANCES[family])
        cubin.write_bytes(code.code)
        shown = subprocess.run([command, "-c", str(cubin)], capture_output=True, text=True, check=True).stdout
        sections = dict(re.findall(r"\.section\s+\.text\.(\S+?),(.*?)(?=\.section|\Z)", shown, re.DOTALL))
        line = re.compile(r"^\s*(?:/\*[0-9a-f]+\*/\s+(.*?;)|(\.L_x_\d+:))", re.MULTILINE)
        return {
            name: [instruction or label for instruction, label in line.findall(sections[bytes(symbol).decode()])]
            for name, symbol in code.symbol_mapping.items()
        }

    return lines_of


def operations_of(lines):
    """Return the instructions without operands and conditions: ``["FFMA", "LDG.E.128", ...]``."""
    operation = re.compile(r"^(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")
    return [match[1] for line in lines if (match := operation.match(line))]


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
def test_a_lane_has_four_rows_in_flight(listing, family):
    counts = {name: loads_in_flight(operations_of(lines)) for name, lines in listing(family).items()}
    assert min(counts.values()) >= 4, counts


def innermost_loops(lines):
    """Return the instructions of each loop that has no loop inside, by name: ``["FFMA", "LDS", ...]``.

    A jump back from beyond the end of the kernel, where shuffles of single lanes are, makes no loop.
    """
    labels = {line[:-1]: i for i, line in enumerate(lines) if line.endswith(":")}
    ends = {i: re.search(r"\bBRA\b.*`\((\.L_x_\d+)\)", line) for i, line in enumerate(lines)}
    spans = [(labels[end[1]], i) for i, end in ends.items() if end and labels.get(end[1], i) < i]
    inner = [s for s in spans if not any(s != t and s[0] <= t[0] and t[1] <= s[1] for t in spans)]
    loops = [[name.split(".")[0] for name in operations_of(lines[a : b + 1])] for a, b in inner]
    return [loop for loop in loops if "EXIT" not in loop]


def counts_of(listing, name, least, family="dimenet"):
    """Return the counts of instructions of the loops with at least so many products."""
    counts = [Counter(loop) for loop in innermost_loops(listing(family)[name])]
    return [c for c in counts if c["FFMA"] >= least]


@pytest.mark.parametrize("name", TILES)
def test_gno_tiles(listing, name):
    (c,) = counts_of(listing, name, 32, "gno")
    assert c["FFMA"] >= max(0.75 * c.total(), 8 * c["LDS"]), c


@pytest.mark.parametrize("name", TRIPLETS)
def test_triplets_of_gemnet(listing, name):
    """No thread waits for other warps, and four rows of m are loaded together, 64 products for each column's four."""
    assert not any(operation.startswith("BAR") for operation in operations_of(listing("gemnet")[name]))
    counts = counts_of(listing, name, 64, "gemnet")
    loop = min((c for c in counts if c["LDG"]), key=Counter.total)
    assert loop["LDG"] in (4, 8), loop
    assert loop["FFMA"] == 64 >= 0.5 * loop.total(), loop


@pytest.mark.slow
def test_dimenet_forward(listing):
    """W1 and W2, the state by each warp where no edges are parallel, and what is left out."""
    counts = counts_of(listing, FORWARD, 28)
    assert len(counts) >= 8
    for c in counts:
        assert 16 * c.total() <= 45 * c["FFMA"], c
        assert 10 * c["LDS"] <= 3 * c["FFMA"], c
        assert not c["LDL"] + c["STL"], c
    # Half of the loops are those that run most.
    usual = sorted(c["FFMA"] / c.total() for c in counts)[len(counts) // 2 :]
    assert min(usual) >= 0.5, usual


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKWARD)
def test_dimenet_backward(listing, name):
    for c in counts_of(listing, name, 28):
        assert 16 * c.total() <= 60 * c["FFMA"], c
        assert 2 * c["LDS"] <= c["FFMA"], c
