"""Tests of `gno_message` on tensor cores in gpu-host; `trigraph verify` uses ordinary kernels by default."""

import numpy as np
import pytest
from table_calls import OPERATORS, assert_accurate, compute_fields, draw_operator_arguments

from trigraph.gpu.instances import set_tensor_cores
from trigraph.graphs import CSC


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_gno_message_on_tensor_cores_is_accurate(index):
    """Results in all orders are accurate, for full and partial tiles and for zero to 40 edges per node."""
    rng = np.random.default_rng(0)
    offsets = np.cumsum([0, 0, 1, 15, 16, 17, 40, 3]).astype(index)
    graph = CSC(offsets, rng.integers(0, 5, offsets[-1]).astype(index), 5)
    sizes = {"num_edges": int(offsets[-1]), "d": 3, "hidden": 20, "f_in": 36, "f_out": 35}
    for op in (OPERATORS[f"gno_message_{order}"] for order in ("fwd", "bwd", "bwd2")):
        values = draw_operator_arguments(op, np.float32, graph=graph, **sizes)
        results = []
        for tensor in (True, False):
            with set_tensor_cores(tensor):
                results.append(compute_fields(op, values, backend="gpu-host"))
            assert_accurate(op, values, results[-1], chunked=True)
        assert any(results[0][n].tobytes() != results[1][n].tobytes() for n in results[0]), op.name
