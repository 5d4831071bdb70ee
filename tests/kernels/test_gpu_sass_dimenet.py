"""The loops of DimeNet++ in machine code: how much of them is products, and how often they read shared memory.

Each of a multiprocessor's four parts issues one instruction at a time, a product or another one: the share of products
is the share of the arithmetic peak that a loop can come to. No time is claimed.
"""

import importlib.util
import re
import subprocess
from collections import Counter

import pytest
from host_kernels import require
from sass import disassembler

from trigraph.gpu.compile import KERNELS, OPTIONS
from trigraph.gpu.sources import expand_includes

FORWARD = "dimenet_out_edges<float, int, 0, 7>"
BACKWARD = ("dimenet_out_edges<float, int, 1, 7>", "dimenet_in_edges<float, int, false, 7>")


@pytest.fixture(scope="module")
def listing(tmp_path_factory):
    """Instance -> its lines: labels end with a colon, instructions with a semicolon."""
    found = all(importlib.util.find_spec(name) for name in ("cuda", "cuda.core", "cuda.bindings"))
    require(found, "cuda-core with nvidia-cuda-nvrtc and nvidia-cuda-runtime")
    from cuda.core import Program, ProgramOptions

    command, cubin = disassembler(), tmp_path_factory.mktemp("sass") / "dimenet.cubin"
    text = expand_includes(KERNELS / "dimenet.cu", KERNELS.parent, {})
    code = Program(text, "c++", ProgramOptions(arch="sm_90", **OPTIONS)).compile("cubin", (FORWARD, *BACKWARD))
    cubin.write_bytes(code.code)
    shown = subprocess.run([command, "-c", str(cubin)], capture_output=True, text=True, check=True).stdout
    sections = dict(re.findall(r"\.section\s+\.text\.(\S+?),(.*?)(?=\.section|\Z)", shown, re.DOTALL))
    line = re.compile(r"^\s*(?:/\*[0-9a-f]+\*/\s+(.*?;)|(\.L_x_\d+:))", re.MULTILINE)
    return {
        name: [instruction or label for instruction, label in line.findall(sections[bytes(symbol).decode()])]
        for name, symbol in code.symbol_mapping.items()
    }


def innermost_loops(lines):
    """Return the instructions of each loop that has no loop inside, by name: ``["FFMA", "LDS", ...]``.

    A jump back from beyond the end of the kernel, where shuffles of single lanes are, makes no loop.
    """
    labels = {line[:-1]: i for i, line in enumerate(lines) if line.endswith(":")}
    ends = {i: re.search(r"\bBRA\b.*`\((\.L_x_\d+)\)", line) for i, line in enumerate(lines)}
    spans = [(labels[end[1]], i) for i, end in ends.items() if end and labels.get(end[1], i) < i]
    inner = [s for s in spans if not any(s != t and s[0] <= t[0] and t[1] <= s[1] for t in spans)]
    operation = re.compile(r"^(?:@!?U?P\w+\s+)?([A-Z]\w*)")
    loops = [[match[1] for line in lines[a : b + 1] if (match := operation.match(line))] for a, b in inner]
    return [loop for loop in loops if "EXIT" not in loop]


def counts_of(listing, name, least):
    """Return the counts of instructions of the loops with at least so many products."""
    counts = [Counter(loop) for loop in innermost_loops(listing[name])]
    return [c for c in counts if c["FFMA"] >= least]


def test_forward(listing):
    """W1 and W2, the state by each warp with and without parallel edges, and what is left out."""
    counts = counts_of(listing, FORWARD, 28)
    assert len(counts) >= 10
    for c in counts:
        assert 16 * c.total() <= 45 * c["FFMA"], c
        assert 10 * c["LDS"] <= 3 * c["FFMA"], c
        assert not c["LDL"] + c["STL"], c
    # Loops for graphs without parallel edges have the larger shares; it is these that run, so half of the loops count.
    usual = sorted(c["FFMA"] / c.total() for c in counts)[len(counts) // 2 :]
    assert min(usual) >= 0.5, usual


@pytest.mark.parametrize("name", BACKWARD)
def test_backward(listing, name):
    for c in counts_of(listing, name, 28):
        assert 16 * c.total() <= 60 * c["FFMA"], c
        assert 2 * c["LDS"] <= c["FFMA"], c


def test_most_of_the_forward_is_products(listing):
    """The sums over rows of harmonics are not loops: 49 rows of two channels for eight edges at once."""
    operations = Counter(re.sub(r"^@!?U?P\w+\s+", "", line).split()[0].split(".")[0] for line in listing[FORWARD])
    assert operations["FFMA"] >= 49 * 2 * 8
    assert not operations["DFMA"] + operations["DMUL"]
