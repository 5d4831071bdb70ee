"""GNO where sums are long and memory is short: hubs of equal terms, bits of a node alone, levels, refused memory."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import trigraph
from trigraph.fortran import levels
from trigraph.table import OPERATORS
from trigraph.verification.judged import ask

GNO = [op for op in OPERATORS.values() if op.family == "gno"]
TERMS = 100_000


def graph(num_positions, num_edges):
    """All positions from one node into another, each with a row of its own or all with the same."""
    none = np.zeros(num_positions, np.int64)
    rows = none if num_edges == 1 else np.arange(num_positions)
    return trigraph.CSC.from_coo(none, none, 1, 1, rows, num_edges)


def values(op, dtype, num_positions, num_edges, *, d=3, hidden=5, f_in=4, f_out=2, seed=1):
    """Positive arguments, alike for all edges and nodes."""
    num_params = hidden * (d + 1) + f_out * f_in * (hidden + 1)
    widths = {"coords": d, "features": f_in, "kernel": f_out * f_in, "message": f_out}
    rng = np.random.default_rng(seed)
    found = {"f_in": f_in, "f_out": f_out}
    if op.graph is not None:
        found["graph"] = graph(num_positions, num_edges)
    for a in op.arguments:
        name = a.name.removeprefix("gg_").removeprefix("grad_")
        if name == "params":
            found[a.name] = rng.uniform(0.5, 1.5, num_params).astype(dtype)
        else:
            row = rng.uniform(0.5, 1.5, widths[name]).astype(dtype)
            found[a.name] = np.repeat(row[None], num_edges if name in ("coords", "kernel") else 1, axis=0)
    return found


@pytest.mark.parametrize("shared", [False, True], ids=["rows", "one row"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("op", [pytest.param(op, id=op.name) for op in GNO])
def test_equal_positive_terms(op, dtype, shared):
    """Within 8 eps of n times the judge's result for one edge: roundings that all go the same way must not add up."""
    if shared and op.graph is None:
        pytest.skip("without a graph, rows are edges")
    num_edges = 1 if shared else TERMS
    result = getattr(trigraph, op.name)(**values(op, dtype, TERMS, num_edges))
    fields = {op.fields[0].name: result} if op.single else result._asdict()
    for name, triple in ask(op, values(op, dtype, 1, 1)).items():
        high, low, scale = triple.astype(np.longdouble)
        of_edges = op.graph is None or not shared
        times = 1 if of_edges and name in ("coords", "kernel", "grad_kernel") else TERMS
        error = np.abs(fields[name] - times * (high + low))
        assert np.all(error <= 8 * np.finfo(dtype).eps * times * scale), f"{op.name}.{name}"


@pytest.mark.parametrize(
    "degrees",
    [
        pytest.param([1_950] + [1] * 1_950, id="hub first"),
        pytest.param([1] * 1_000 + [1_950] + [1] * 950, id="hub between"),
        pytest.param(([256] + [1] * 47) * 20, id="hub in every block"),
        pytest.param([64] + [1] * 47, id="one block"),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("op", [pytest.param(op, id=op.name) for op in GNO if op.name.startswith("gno_message_bwd")])
def test_equal_terms_at_nodes_of_unequal_degrees(op, dtype, degrees):
    """The gradient of the parameters, a sum over nodes: within 8 eps of the terms' number times the judge's for one."""
    degrees = np.array(degrees)
    total = degrees.sum()
    dst = np.repeat(np.arange(len(degrees)), degrees)
    csc = trigraph.CSC.from_coo(dst * 0, dst, 1, len(degrees))
    for seed in range(12):
        one = values(op, dtype, 1, 1, d=2, hidden=2, f_in=2, f_out=2, seed=seed)
        rows = {"coords": total, "message": len(degrees)}
        many = dict(one) | {"graph": csc}
        for a in op.arguments:
            number = rows.get(a.name.removeprefix("gg_").removeprefix("grad_"))
            many |= {a.name: np.repeat(one[a.name], number, axis=0)} if number else {}
        high, low, scale = ask(op, one)["params"].astype(np.longdouble)
        error = np.abs(getattr(trigraph, op.name)(**many, wrt=("params",)).params - total * (high + low))
        assert np.all(error <= 8 * np.finfo(dtype).eps * total * scale)


def test_bits_of_a_node_by_itself():
    """What is summed over a node's edges has the same bits whatever other nodes are in the call."""
    rng = np.random.default_rng(2)
    degrees = np.array([3, 70, 0, 33, 31, 300, 1, 64, 5, 128, 129, 40])
    dst = np.repeat(np.arange(len(degrees)), degrees)
    src = rng.integers(0, 9, len(dst))
    features, coords = rng.standard_normal((9, 4)), rng.standard_normal((len(dst), 3))
    params, kernel = rng.standard_normal(7 * 4 + 8 * 8), rng.standard_normal((len(dst), 8))
    whole = trigraph.CSC.from_coo(src, dst, 9, len(degrees))
    sizes = {"f_in": 4, "f_out": 2}
    message = trigraph.gno_message_fwd(features, coords, params, whole, **sizes)
    aggregate = trigraph.gno_aggregate_fwd(features, kernel, whole, **sizes)
    for node in range(len(degrees)):
        own = dst == node
        alone = trigraph.CSC.from_coo(src[own], dst[own] * 0, 9, 1)
        assert np.array_equal(message[node], trigraph.gno_message_fwd(features, coords[own], params, alone, **sizes)[0])
        found = trigraph.gno_aggregate_fwd(features, kernel[own], alone, **sizes)[0]
        assert np.array_equal(aggregate[node], found)


@pytest.mark.skipif(not set(levels.EQUAL_BITS) <= set(levels.available()), reason="the processor lacks a level")
@pytest.mark.parametrize("widths", [(3, 17, 5, 7), (2, 8, 1, 1), (3, 64, 32, 16)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equal_bits_on_v3_and_v4(dtype, widths):
    d, hidden, f_in, f_out = widths
    rng = np.random.default_rng(3)
    csc = trigraph.CSC.from_coo(rng.integers(0, 30, 900), rng.integers(0, 8, 900), 30, 8)
    shapes = {"features": (30, f_in), "coords": (900, d), "kernel": (900, f_out * f_in), "message": (8, f_out)}
    shapes["params"] = (hidden * (d + 1) + f_out * f_in * (hidden + 1),)
    before = trigraph.get_cpu_level()
    for op in GNO:
        arguments = {"f_in": f_in, "f_out": f_out} | ({"graph": csc} if op.graph else {})
        for a in op.arguments:
            shape = shapes[a.name.removeprefix("gg_").removeprefix("grad_")]
            arguments[a.name] = rng.standard_normal(shape).astype(dtype)
        found = []
        try:
            for level in levels.EQUAL_BITS:
                trigraph.set_cpu_level(level)
                found.append(getattr(trigraph, op.name)(**arguments))
        finally:
            trigraph.set_cpu_level(before)
        for one, other in zip(*([r] if op.single else r for r in found), strict=True):
            assert one.tobytes() == other.tobytes(), op.name


@pytest.mark.parametrize("panel", ["fortran", "fortran.reference"])
def test_refused_memory(panel):
    """Under a falling limit a call raises MemoryError and leaves its outputs alone, or is right; it never ends."""
    code = f"""
        import importlib, resource, sys
        import numpy as np
        import trigraph
        sys.path.insert(0, {os.path.dirname(__file__)!r})
        from test_gno_hubs import GNO, values
        panel = importlib.import_module("trigraph.{panel}")
        trigraph.set_num_threads(2)
        fast = {panel == "fortran"}
        for op in GNO:
            edges = 3000 if fast else 2
            arguments = values(op, np.float64, edges, edges, hidden=40 if fast else 4000, f_in=16, f_out=16)
            if op.graph is not None:
                arguments["graph"].prepare()
            right = getattr(panel, op.name)(**arguments)
            names = [f.name for f in op.fields]
            right = dict(zip(names, [right] if op.single else right))
            out = {{n: np.empty_like(a) for n, a in right.items()}}
            refused = passed = 0
            for room in range(2**24, -1, -(2**19)):
                for a in out.values():
                    a[...] = 77
                used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_AS, (used + room, resource.RLIM_INFINITY))
                try:
                    getattr(panel, op.name)(**arguments, out=out)
                    passed += 1
                    expected = right
                except MemoryError as error:
                    refused += 1
                    assert op.name in str(error), error
                    expected = dict.fromkeys(names, 77)
                finally:
                    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                for name in names:
                    assert np.array_equal(out[name], np.broadcast_to(expected[name], out[name].shape)), (room, name)
            assert passed > 0
            assert refused > 0 or not fast, op.name
        print("complete")
    """
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "4096", "MALLOC_TOP_PAD_": "0", "MALLOC_TRIM_THRESHOLD_": "0"}
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert (found.returncode, found.stdout) == (0, "complete\n"), found.stderr
