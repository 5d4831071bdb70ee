"""Tests of DimeNet++ kernels with weights larger than one tile, which `trigraph verify` does not cover."""

import numpy as np
import pytest
from table_calls import OPERATORS, assert_accurate, compute_fields, draw_operator_arguments

from trigraph.graphs.edge_graph import EdgeGraph

NODES = 7


@pytest.mark.parametrize(("dtype", "index"), [(np.float32, np.int32), (np.float64, np.int64)])
def test_weights_wider_than_a_tile_are_accurate(dtype, index):
    graph = EdgeGraph(*(a.astype(index) for a in np.nonzero(~np.eye(NODES, dtype=bool))), NODES)
    sizes = {"n_mid": 20, "num_radial": 13, "num_spherical": 5, "n_emb": 70}
    for op in (OPERATORS[f"agg_edge_to_edge_{order}"] for order in ("fwd", "bwd", "bwd2")):
        values = draw_operator_arguments(op, dtype, graph=graph, setting={"exclude": "edge"}, **sizes)
        assert_accurate(op, values, compute_fields(op, values, backend="gpu-host"), chunked=True)
