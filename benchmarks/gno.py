"""Workloads of the graph neural operator, and what users run without trigraph: NumPy, torch, PyTorch Geometric.

The peers form the kernel of every edge, (num_edges, f_in*f_out), and then aggregate. Each is written as fast as it was
found to go: scipy's sparse product for the sums over edges (20 times as fast as ``np.add.reduceat``), a product with
the mask instead of boolean assignment (10 times; it lets a NaN through, which trigraph's mask does not), the bias as
one more column of the weights.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from trigraph.benchmarks.calls import Call
from trigraph.benchmarks.peers import compiled, edge_index, leaves, torch_peers
from trigraph.benchmarks.workloads import Case, Peer, Step, Target, Workload
from trigraph.checks.gno import GnoParams, pack_gno_params, unpack_gno_params

__all__ = ["SIZES", "WORKLOADS"]

SIZES = {
    "num_edges": 60_000,
    "num_positions": 60_000,
    "num_src_nodes": 2_000,
    "num_dst_nodes": 2_000,
    "d": 3,
    "hidden": 64,
    "f_in": 32,
    "f_out": 32,
}
SWEEP = (1_000, 3_000, 10_000, 30_000, 100_000)


def _params(case: Case) -> GnoParams:
    """Blocks of the parameters, each contiguous in the order a layer of torch has."""
    blocks = unpack_gno_params(case["params"], case.sizes["d"], case.sizes["f_in"], case.sizes["f_out"])
    return GnoParams(*(np.ascontiguousarray(b) for b in blocks))


def matmul_coords(case: Case, library: str) -> Call:
    """Gradient with respect to coordinates by matrix products over all edges at once."""
    xp = importlib.import_module(library)
    U, b_u, V, _ = (xp.asarray(block) for block in _params(case))
    g, x = xp.asarray(case["grad_kernel"]), xp.asarray(case["coords"])

    def call() -> dict[str, Any]:
        z = x @ U.T
        z += b_u
        s = g @ V
        s *= z > 0
        return {"gno_kernel_bwd.coords": s @ U}

    return call


def numpy_message(case: Case) -> Call:
    """Kernel, then aggregation, then all three gradients; the kernel's memory is used again for its gradient."""
    U, b_u, V, b_v = _params(case)
    h, x, g, graph = case["features"], case["coords"], case["grad_message"], case.graph
    f_in, f_out = case.sizes["f_in"], case.sizes["f_out"]
    edges, dtype, src = graph.num_positions, h.dtype, graph.indices
    dst = np.repeat(np.arange(graph.num_dst_nodes), np.diff(graph.offsets))
    one = np.ones(edges, dtype)
    into = sparse.csr_matrix((one, np.arange(edges), graph.offsets), shape=(graph.num_dst_nodes, edges))
    out_of = sparse.csr_matrix((one, (src, np.arange(edges))), shape=(graph.num_src_nodes, edges))
    V_b = np.concatenate([V, b_v[:, None]], axis=1)

    def call() -> dict[str, Any]:
        a_1 = np.empty((edges, len(U) + 1), dtype)
        a, a_1[:, -1] = a_1[:, :-1], 1
        np.matmul(x, U.T, out=a)
        a += b_u
        mask = a > 0
        a *= mask
        kernel = (a_1 @ V_b.T).reshape(edges, f_in, f_out)
        h_e, g_e = h[src], g[dst]
        message = into @ np.matmul(h_e[:, None, :], kernel)[:, 0]
        features = out_of @ np.matmul(kernel, g_e[:, :, None])[:, :, 0]
        outer = np.einsum("ef,eo->efo", h_e, g_e, out=kernel).reshape(edges, -1)
        s = outer @ V
        s *= mask
        dV_b = outer.T @ a_1
        grads = GnoParams(s.T @ x, s.sum(0), dV_b[:, :-1], dV_b[:, -1])
        return {
            "gno_message_fwd.message": message,
            "gno_message_bwd.features": features,
            "gno_message_bwd.coords": s @ U,
            "gno_message_bwd.params": lambda: pack_gno_params(*grads),
        }

    return call


def _torch_network(case: Case, device: str, form: str) -> tuple[Any, dict[str, Any], list[Any]]:
    """Message function of features and coords, tensors of the case, parameters of the kernel's network."""
    import torch

    f_in, f_out = case.sizes["f_in"], case.sizes["f_out"]
    edges, nodes = edge_index(case, device), case.graph.num_dst_nodes
    tensors = leaves(case, device)
    U, b_u, V, b_v = _params(case)
    network = torch.nn.Sequential(
        torch.nn.Linear(U.shape[1], U.shape[0]), torch.nn.ReLU(), torch.nn.Linear(V.shape[1], V.shape[0])
    ).to(device=device, dtype=tensors["features"].dtype)
    parameters = list(network.parameters())
    if form.startswith("pyg"):
        from torch_geometric.nn import NNConv

        convolution = NNConv(f_in, f_out, network, aggr="add", root_weight=False, bias=False).to(device)
    with torch.no_grad():  # after NNConv, which draws the network's parameters anew
        for parameter, block in zip(parameters, (U, b_u, V, b_v), strict=True):
            parameter.copy_(torch.tensor(block))
    if form.startswith("pyg"):
        convolve = compiled(convolution, form)
        return lambda h, x: convolve(h, edges, x), tensors, parameters

    def message(h: Any, x: Any) -> Any:
        kernel = network(x).view(-1, f_in, f_out)
        messages = torch.bmm(h.index_select(0, edges[0]).unsqueeze(1), kernel).squeeze(1)
        return h.new_zeros(nodes, f_out).index_add(0, edges[1], messages)

    return compiled(message, form), tensors, parameters


def _packed(blocks: list[Any]) -> Any:
    return pack_gno_params(*(b.detach().cpu().numpy() for b in blocks))


def torch_message(case: Case, device: str, form: str) -> Call:
    """Forward, then autograd's backward to features, coords and parameters."""
    import torch

    message, t, parameters = _torch_network(case, device, form)
    h, x, g = t["features"], t["coords"], t["grad_message"].detach()

    def call() -> dict[str, Any]:
        out = message(h, x)
        features, coords, *blocks = torch.autograd.grad(out, [h, x, *parameters], g)
        return {
            "gno_message_fwd.message": out,
            "gno_message_bwd.features": features,
            "gno_message_bwd.coords": coords,
            "gno_message_bwd.params": lambda: _packed(blocks),
        }

    return call


def torch_force_training(case: Case, device: str, form: str) -> Call:
    """Forward, backward to coords that keeps its graph, and the backward of that."""
    import torch

    message, t, parameters = _torch_network(case, device, form)
    h, x, g, c = t["features"], t["coords"], t["grad_message"], t["gg_coords"].detach()

    def call() -> dict[str, Any]:
        out = message(h, x)
        (coords,) = torch.autograd.grad(out, x, g, create_graph=True)
        # Nothing here depends on the output layer's bias: its gradient is zero, not missing.
        wanted = [g, h, *parameters]
        second = torch.autograd.grad(coords, wanted, c, allow_unused=True, materialize_grads=True)
        grad_message, features, *blocks = second
        return {
            "gno_message_fwd.message": out,
            "gno_message_bwd.coords": coords,
            "gno_message_bwd2.grad_message": grad_message,
            "gno_message_bwd2.features": features,
            "gno_message_bwd2.params": lambda: _packed(blocks),
        }

    return call


ABOUT = {
    "torch": "plain torch, autograd",
    "pyg": "PyTorch Geometric NNConv, autograd",
    "torch-compile": "torch.compile, autograd",
    "pyg-compile": "NNConv, torch.compile, autograd",
}
EAGER = {form: ABOUT[form] for form in ("torch", "pyg")}


def _coords_workload(width: int) -> Workload:
    edges = 20_000
    return Workload(
        name=f"gno-coords-{width}",
        family="gno",
        summary=f"kernel's gradient with respect to coordinates, f_in = f_out = {width}",
        steps=(Step("gno_kernel_bwd", ("coords",), operations="2*num_edges*hidden*(2*d+f_in*f_out)"),),
        sizes={"num_edges": edges, "d": 3, "hidden": 64, "f_in": width, "f_out": width},
        peers={
            "numpy": Peer(partial(matmul_coords, library="numpy"), "matrix products over all edges, BLAS"),
            "cupy": Peer(partial(matmul_coords, library="cupy"), "matrix products, cuBLAS", ("cupy",), "cupy"),
        },
        panels=("fortran", "fortran-reference", "gpu"),
        targets=(Target("numpy", time=1.0),),
        sweep=SWEEP,
    )


WORKLOADS = (
    _coords_workload(16),
    _coords_workload(32),
    Workload(
        name="gno-message",
        family="gno",
        summary="message forward and backward to features, coordinates and parameters",
        steps=(Step("gno_message_fwd"), Step("gno_message_bwd")),
        sizes=SIZES,
        peers={
            "numpy": Peer(numpy_message, "kernel, then aggregation: BLAS, batched matmul, scipy.sparse sums"),
            **torch_peers(torch_message, ABOUT),
        },
        targets=(Target("numpy", time=10, memory=30), Target("pyg", time=10, memory=30)),
        sweep=SWEEP,
    ),
    Workload(
        name="gno-force-training",
        family="gno",
        summary="message forward, backward to coordinates (forces), and the backward of that (bwd2)",
        steps=(
            Step("gno_message_fwd"),
            Step(
                "gno_message_bwd",
                ("coords",),
                operations="2*num_positions*hidden*(2*d+f_in)+2*num_dst_nodes*(hidden+1)*f_in*f_out",
            ),
            Step(
                "gno_message_bwd2",
                ("grad_message", "features", "params"),
                zero=("gg_features", "gg_params"),
                operations="2*num_positions*hidden*(3*d+3*f_in)+6*num_dst_nodes*(hidden+1)*f_in*f_out",
            ),
        ),
        sizes=SIZES,
        # torch.compile is missing here: it has no double backward.
        peers=torch_peers(torch_force_training, EAGER),
        sweep=SWEEP,
    ),
)
