"""Every operator on gpu-host under limits of the address space: MemoryError or the right result, never death.

Slow: test_refused_memory tries the same with smaller graphs and more limits.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from table_calls import OPERATORS

CHILD = """
import re, resource, sys
import numpy as np
sys.path.insert(0, sys.argv[1])
import trigraph.gpu
from table_calls import FUNCTIONS, OPERATORS, draw, fields

def used():
    return int(re.search(r"VmSize:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024

def run(op, values, more):
    resource.setrlimit(resource.RLIMIT_AS, (used() + more, resource.RLIM_INFINITY))
    try:
        return fields(op, FUNCTIONS[op.name](**values, panel="gpu-host"))
    except MemoryError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

sizes = {"num_positions": 9000, "num_edges": 6000, "num_src_nodes": 900, "num_dst_nodes": 900, "num_triplets": 9000}
for name in sys.argv[2:]:
    op = OPERATORS[name]
    few = {s: n for s, n in sizes.items() if s in op.definition.symbols or op.graph and s in op.graph.sizes}
    values = draw(op, **few)
    limited = [run(op, values, more) for more in (0, 1 << 20, 16 << 20, 200 << 20)]
    whole = run(op, values, 4 << 30)
    for result in limited:
        if isinstance(result, str):
            assert result, name
            print(name, "refused", result)
        else:
            for field, array in whole.items():
                assert array is None or result[field].tobytes() == array.tobytes(), (name, field)
    assert not isinstance(whole, str), whole
    print(name, "right")
"""
FAMILIES = ("gno", "mha_gat", "agg_weighted", "basis", "interaction")


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_falling_limit(family):
    names = [name for name in OPERATORS if name.startswith(family)]
    here = str(Path(__file__).parents[1] / "helpers")
    done = subprocess.run([sys.executable, "-c", CHILD, here, *names], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines if line.endswith(" right")] == names
    refused = [line for line in lines if " refused " in line]
    assert refused
    assert all("bytes" in line or "Unable to allocate" in line for line in refused)
