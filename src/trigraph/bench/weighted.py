"""Workloads of weighted aggregation, and what users run without trigraph: sparse products, gather and scatter.

A weighted sum is a sparse matrix times a dense one: ``torch-sparse`` (MKL on the host, cuSPARSE), SciPy and CuPy are
given the matrix ready made, with 32-bit indices, which MKL would otherwise make at every call. Gradients with respect
to weights they have none that is of use; ``pyg`` is PyTorch Geometric's SimpleConv, ``torch`` the same without it.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from trigraph.bench.workloads import Call, Case, Peer, Step, Target, Workload

__all__ = ["SIZES", "WORKLOADS"]

SIZES = {
    "num_src_nodes": 100_000,
    "num_dst_nodes": 100_000,
    "num_positions": 1_600_000,
    "num_edges": 1_600_000,
    "dim": 64,
}
SWEEP = (10_000, 30_000, 100_000, 300_000, 1_000_000)
OUT = "agg_weighted_n2n_fwd.output_embedding"


def _csr(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, int]]:
    """Weights, sources and offsets of the matrix, and its shape; row k of the weights belongs to position k."""
    offsets, indices = (a.astype(np.int32) for a in (case.graph.offsets, case.graph.indices))
    return case["edge_weight"], indices, offsets, (case.graph.num_dst_nodes, case.graph.num_src_nodes)


def sparse_product(case: Case, library: str) -> Call:
    """Multiply with the sparse matrix of ``scipy.sparse`` or ``cupyx.scipy.sparse``."""
    xp = importlib.import_module("cupy" if library.startswith("cupyx") else "numpy")
    weight, indices, offsets, shape = _csr(case)
    arrays = tuple(xp.asarray(a) for a in (weight, indices, offsets))
    matrix = importlib.import_module(library).csr_matrix(arrays, shape=shape)
    x = xp.asarray(case["embedding"])
    return lambda: {OUT: matrix @ x}


def torch_sparse(case: Case, device: str) -> Call:
    """Multiply with torch's sparse matrix."""
    import torch

    weight, indices, offsets, shape = _csr(case)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that its support is in beta
        rows, columns, values = (torch.tensor(a, device=device) for a in (offsets, indices, weight))
        matrix = torch.sparse_csr_tensor(rows, columns, values, shape)
    x = torch.tensor(case["embedding"], device=device)
    return lambda: {OUT: matrix @ x}


def _aggregation(case: Case, device: str, form: str) -> Callable[[Any, Any], Any]:
    """Weighted sum of embedding and weights over the list of edges."""
    import torch

    graph = case.graph
    dst = np.repeat(np.arange(graph.num_dst_nodes), np.diff(graph.offsets))
    edge_index = torch.as_tensor(np.stack([graph.indices, dst]), device=device)
    if form == "pyg":
        from torch_geometric.nn import SimpleConv

        convolution, size = SimpleConv(aggr="sum"), (graph.num_src_nodes, graph.num_dst_nodes)
        return lambda x, weight: convolution((x, None), edge_index, weight, size)

    def aggregate(x: Any, weight: Any) -> Any:
        messages = x.index_select(0, edge_index[0]) * weight.unsqueeze(1)
        return x.new_zeros(graph.num_dst_nodes, x.shape[1]).index_add(0, edge_index[1], messages)

    return torch.compile(aggregate) if form == "compiled" else aggregate


def torch_backward(case: Case, device: str, form: str) -> Call:
    """Forward, then autograd's backward to embedding and weights."""
    import torch

    aggregate = _aggregation(case, device, form)
    x, weight = (torch.tensor(case[n], device=device, requires_grad=True) for n in ("embedding", "edge_weight"))
    g = torch.tensor(case["grad_output_embedding"], device=device)

    def call() -> dict[str, Any]:
        out = aggregate(x, weight)
        embedding, edge_weight = torch.autograd.grad(out, (x, weight), g)
        return {OUT: out, "agg_weighted_n2n_bwd.embedding": embedding, "agg_weighted_n2n_bwd.edge_weight": edge_weight}

    return call


PRODUCTS = {
    "torch-sparse": Peer(partial(torch_sparse, device="cpu"), "torch.sparse_csr_tensor @ dense", ("torch",)),
    "scipy": Peer(partial(sparse_product, library="scipy.sparse"), "scipy.sparse.csr_matrix @ dense"),
    "torch-sparse-cuda": Peer(
        partial(torch_sparse, device="cuda"), "torch.sparse_csr_tensor @ dense, cuSPARSE", ("torch",), "torch"
    ),
    "cupy": Peer(
        partial(sparse_product, library="cupyx.scipy.sparse"), "cupyx's csr_matrix @ dense, cuSPARSE", ("cupy",), "cupy"
    ),
}
PYG = ("torch", "torch_geometric")
GATHERS = {
    "torch": Peer(partial(torch_backward, device="cpu", form="torch"), "index_select, index_add, autograd", PYG[:1]),
    "pyg": Peer(partial(torch_backward, device="cpu", form="pyg"), "PyTorch Geometric SimpleConv, autograd", PYG),
    "torch-cuda": Peer(
        partial(torch_backward, device="cuda", form="torch"), "index_select, index_add, autograd", PYG[:1], "torch"
    ),
    "pyg-cuda": Peer(
        partial(torch_backward, device="cuda", form="pyg"), "PyTorch Geometric SimpleConv, autograd", PYG, "torch"
    ),
    "torch-compile-cuda": Peer(
        partial(torch_backward, device="cuda", form="compiled"), "torch.compile, autograd", PYG[:1], "torch"
    ),
}
FORWARD = Step("agg_weighted_n2n_fwd")
SCALING = Target("fortran", scaling=0.85)

WORKLOADS = (
    Workload(
        name="weighted-sum",
        family="weighted",
        summary="weighted sum over in-edges, forward",
        steps=(FORWARD,),
        sizes=SIZES,
        peers=PRODUCTS,
        targets=(Target("torch-sparse", time=1.0), Target("scipy", time=1.5), SCALING),
        sweep=SWEEP,
    ),
    Workload(
        name="weighted-sum-power-law",
        family="weighted",
        summary="the same on a graph whose degrees follow a power law",
        steps=(FORWARD,),
        sizes=SIZES,
        peers=PRODUCTS,
        targets=(SCALING,),
        layout="power law",
    ),
    Workload(
        name="weighted-sum-backward",
        family="weighted",
        summary="weighted sum, forward and backward to embedding and weights",
        steps=(FORWARD, Step("agg_weighted_n2n_bwd")),
        sizes=SIZES,
        peers=GATHERS,
        targets=(Target("pyg", time=12), Target("torch", time=12), Target("fortran", lean=1.0)),
        sweep=SWEEP,
    ),
)
