"""Tests of `gno_message` on tensor cores in gpu-host; `trigraph verify` uses ordinary kernels by default."""

import numpy as np
import pytest

from trigraph.backends import FUNCTIONS
from trigraph.gpu.instances import set_tensor_cores
from trigraph.graphs import CSC
from trigraph.table import DEFINITIONS
from trigraph.verification import cases, tolerances
from trigraph.verification.accuracy import compute_field_error
from trigraph.verification.judged import JudgedCase, list_main_operators

DEFINITION = next(d for d in DEFINITIONS if d.name == "gno_message")


def call_operator(op, case, tensor):
    """Return the results of an operator on gpu-host, with or without tensor cores."""
    with set_tensor_cores(tensor):
        result = FUNCTIONS[op.name](**case.arguments(op), backend="gpu-host")
    return (result,) if op.single else result


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_gno_message(index):
    """Results in all orders are accurate, for full and partial tiles and for zero to 40 edges per node."""
    rng = np.random.default_rng(0)
    degrees = np.array([0, 1, 15, 16, 17, 40, 3])
    offsets = np.concatenate(([0], np.cumsum(degrees))).astype(index)
    num_edges = int(offsets[-1])
    graph = CSC(offsets, rng.integers(0, 5, num_edges).astype(index), 5)
    sizes = {"num_src_nodes": 5, "num_dst_nodes": len(degrees), "num_positions": num_edges, "num_edges": num_edges}
    sizes |= {"d": 3, "hidden": 20, "f_in": 36, "f_out": 35}
    case = cases.assemble_case(DEFINITION, {"graph": graph}, sizes, {}, "float32", rng)
    judged = JudgedCase(case)
    tolerance = tolerances.accuracy_tolerance(True, judged.terms, case.equal_terms)
    for op in list_main_operators(DEFINITION):
        results = call_operator(op, case, True)
        for field, array in zip(op.fields, results, strict=True):
            error = compute_field_error(array, field, judged.result(op)[field.name], case.dtype)
            assert error <= tolerance, f"{op.name}: {field.name}"
        ordinary = call_operator(op, case, False)
        assert any(a.tobytes() != b.tobytes() for a, b in zip(results, ordinary, strict=True)), op.name
