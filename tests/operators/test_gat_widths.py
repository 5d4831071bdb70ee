"""Graph attention for many numbers and widths of heads, which decide how rows are cut into vectors and lanes."""

import numpy as np
import pytest
from small_graphs import random_graph

import trigraph

# The accuracy rule allows either side about 20 eps of the sum of |terms|, which is up to five times the largest value.
TOLERANCE = {dtype: 200 * np.finfo(dtype).eps for dtype in (np.float32, np.float64)}
GRAPH = random_graph(3)[3]


def results(panel, dtype, heads, width, concat):
    """Return all fields of the three orders, and of the first derivative with the scores given back."""
    rng = np.random.default_rng(heads * 100 + width)
    d = heads * width
    src, src_dot = rng.standard_normal((2, GRAPH.num_src_nodes, d)).astype(dtype)
    dst, dst_dot = rng.standard_normal((2, GRAPH.num_dst_nodes, d)).astype(dtype)
    edge, edge_dot = rng.standard_normal((2, GRAPH.num_edges, d)).astype(dtype)
    weights, weights_dot = (rng.standard_normal((2, 3 * d)) / np.sqrt(d)).astype(dtype)
    g = rng.standard_normal((GRAPH.num_dst_nodes, d if concat else width)).astype(dtype)
    options = {"concat_heads": concat, "activation": "tanh", "edge_embedding": edge, "panel": panel}
    fwd = trigraph.mha_gat_n2n_fwd(src, dst, weights, GRAPH, heads, **options)
    inputs = (g, src, dst, weights, GRAPH, heads)
    bwd = trigraph.mha_gat_n2n_bwd(*inputs, **options)
    given = trigraph.mha_gat_n2n_bwd(*inputs, softmax_scores=fwd.softmax_scores, **options)
    bwd2 = trigraph.mha_gat_n2n_bwd2(src_dot, dst_dot, weights_dot, edge_dot, *inputs, **options)
    return [field for found in (fwd, bwd, given, bwd2) for field in found]


@pytest.mark.parametrize("panel", ["fortran", "gpu-host"])
@pytest.mark.parametrize("concat", [True, False])
@pytest.mark.parametrize("width", [1, 3, 4, 8, 12, 16, 24, 32])
@pytest.mark.parametrize("heads", [1, 3, 4, 5, 8, 9])
def test_panels_agree(heads, width, concat, panel):
    expected = results("pyref", np.float64, heads, width, concat)
    for dtype, tolerance in TOLERANCE.items():
        reference = expected if dtype == np.float64 else results("pyref", dtype, heads, width, concat)
        for got, right in zip(results(panel, dtype, heads, width, concat), reference, strict=True):
            assert got.shape == right.shape
            error = np.abs(got - right).max() / np.abs(right).max()
            assert error <= tolerance, (dtype, error)
