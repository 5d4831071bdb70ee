"""Workloads of weighted aggregation, and their peers: sparse products, and sums over gathered rows."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from trigraph.benchmarks.programs import Call, Contender
from trigraph.benchmarks.workloads import (
    Step,
    Workload,
    WorkloadInputs,
    make_edge_index,
    make_pyg_peers,
    make_torch_peers,
)

SIZES = {
    "num_src_nodes": 100_000,
    "num_dst_nodes": 100_000,
    "num_positions": 1_600_000,
    "num_edges": 1_600_000,
    "dim": 64,
}
OUT = "agg_weighted_n2n_fwd.output_embedding"


def _make_sparse_matrix(case: WorkloadInputs) -> csr_matrix:
    """Return the sparse matrix of the weighted sum; weight k belongs to position k."""
    offsets, indices = (a.astype(np.int32) for a in (case.graph.offsets, case.graph.indices))
    shape = case.graph.num_dst_nodes, case.graph.num_src_nodes
    return csr_matrix((case["edge_weight"], indices, offsets), shape=shape)


def make_scipy_product_call(case: WorkloadInputs) -> Call:
    """Return a call that multiplies by a ``scipy.sparse`` matrix."""
    matrix, x = _make_sparse_matrix(case), case["embedding"]
    return lambda: {OUT: matrix @ x}


def make_sparse_convolution_call(case: WorkloadInputs, device: str) -> Call:
    """Return a call that applies SimpleConv to a torch sparse matrix, and so uses torch's sparse product."""
    import torch
    from torch_geometric.nn import SimpleConv

    matrix = _make_sparse_matrix(case)
    offsets, indices, weights = (torch.tensor(a, device=device) for a in (matrix.indptr, matrix.indices, matrix.data))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that support for sparse matrices is in beta
        torch_matrix = torch.sparse_csr_tensor(offsets, indices, weights, matrix.shape)
    x, convolve = torch.tensor(case["embedding"], device=device), SimpleConv(aggr="sum")
    return lambda: {OUT: convolve((x, None), torch_matrix)}


def _make_pyg_sum_forward(case: WorkloadInputs, device: str) -> Callable[[Any, Any], Any]:
    """Return a function that sums embeddings times weights over the list of edges."""
    from torch_geometric.nn import SimpleConv

    edges, size = make_edge_index(case, device), (case.graph.num_src_nodes, case.graph.num_dst_nodes)
    convolve = SimpleConv(aggr="sum")
    return lambda x, weight: convolve((x, None), edges, weight, size)


PRODUCTS = {
    "scipy": Contender(make_scipy_product_call, "scipy.sparse.csr_matrix @ dense"),
    **make_torch_peers(
        "pyg-sparse", make_sparse_convolution_call, "PyTorch Geometric SimpleConv of torch.sparse_csr_tensor"
    ),
}
GATHERS = make_pyg_peers(_make_pyg_sum_forward, "SimpleConv")
FORWARD = Step("agg_weighted_n2n_fwd")
UNIFORM = Workload(
    name="weighted-sum",
    family="weighted",
    summary="weighted sum over in-edges",
    steps=(FORWARD,),
    sizes=SIZES,
    peers=PRODUCTS,
)
WORKLOADS = (
    UNIFORM,
    UNIFORM.with_power_law_graph(),
    Workload(
        name="weighted-sum-backward",
        family="weighted",
        summary="weighted sum and its gradients with respect to embedding and weights",
        steps=(FORWARD, Step("agg_weighted_n2n_bwd")),
        sizes=SIZES,
        peers=GATHERS,
    ),
)
