"""Workloads of the graph neural operator, and their peers in NumPy and PyTorch Geometric."""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse

from trigraph.benchmarks.programs import Call, Contender
from trigraph.benchmarks.workloads import Step, Workload, WorkloadInputs, make_edge_index, make_pyg_peers
from trigraph.gno_params import GnoParams, pack_gno_params, unpack_gno_params

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


def _split_params(case: WorkloadInputs) -> GnoParams:
    """Return the parameter blocks as contiguous arrays in the layout of torch's linear layers."""
    blocks = unpack_gno_params(case["params"], case.sizes["d"], case.sizes["f_in"], case.sizes["f_out"])
    return GnoParams(*(np.ascontiguousarray(b) for b in blocks))


def make_coords_gradient_call(case: WorkloadInputs) -> Call:
    """Return a call that computes the gradient of the coordinates by matrix products over all edges."""
    U, b_u, V, _ = _split_params(case)
    g, x = case["grad_kernel"], case["coords"]

    def compute_coords_gradient() -> dict[str, Any]:
        z = x @ U.T
        z += b_u
        s = g @ V
        s *= z > 0
        return {"gno_kernel_bwd.coords": s @ U}

    return compute_coords_gradient


def make_numpy_message_call(case: WorkloadInputs) -> Call:
    """Return a call that computes the message and all gradients; the kernel's gradient reuses its memory."""
    U, b_u, V, b_v = _split_params(case)
    h, x, g, graph = case["features"], case["coords"], case["grad_message"], case.graph
    f_in, f_out = case.sizes["f_in"], case.sizes["f_out"]
    edges, dtype, src = graph.num_positions, h.dtype, graph.indices
    dst = np.repeat(np.arange(graph.num_dst_nodes), np.diff(graph.offsets))
    one = np.ones(edges, dtype)
    into = sparse.csr_matrix((one, np.arange(edges), graph.offsets), shape=(graph.num_dst_nodes, edges))
    out_of = sparse.csr_matrix((one, (src, np.arange(edges))), shape=(graph.num_src_nodes, edges))
    V_b = np.concatenate([V, b_v[:, None]], axis=1)

    def compute_message_and_gradients() -> dict[str, Any]:
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

    return compute_message_and_gradients


def _make_pyg_message_forward(case: WorkloadInputs, device: str) -> Callable[[Any, Any, Any], Any]:
    """Return the message as a function of features, coordinates and packed parameters."""
    import torch
    from torch.func import functional_call
    from torch_geometric.nn import NNConv

    d, hidden, f_in, f_out = (case.sizes[n] for n in ("d", "hidden", "f_in", "f_out"))
    edges, width = make_edge_index(case, device), f_in * f_out
    network = torch.nn.Sequential(torch.nn.Linear(d, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, width))
    convolution = NNConv(f_in, f_out, network.to(device), aggr="add", root_weight=False, bias=False)
    names = [name for name, _ in convolution.named_parameters()]

    def compute_message(h: Any, x: Any, params: Any) -> Any:
        U, b_u, V, b_v = params.split((d * hidden, hidden, hidden * width, width))
        U, V = (block.view(-1, rows).T.contiguous() for block, rows in ((U, hidden), (V, width)))
        return functional_call(convolution, dict(zip(names, (U, b_u, V, b_v), strict=True)), (h, edges, x))

    return compute_message


PYG = make_pyg_peers(_make_pyg_message_forward, "NNConv")


def _make_coords_gradient_workload(width: int) -> Workload:
    return Workload(
        name=f"gno-coords-{width}",
        family="gno",
        summary=f"gradient of the kernel in the coordinates, f_in = f_out = {width}",
        steps=(Step("gno_kernel_bwd", ("coords",)),),
        sizes={"num_edges": 20_000, "d": 3, "hidden": 64, "f_in": width, "f_out": width},
        peers={"numpy": Contender(make_coords_gradient_call, "matrix products over all edges, BLAS")},
    )


WORKLOADS = (
    _make_coords_gradient_workload(16),
    _make_coords_gradient_workload(32),
    Workload(
        name="gno-message",
        family="gno",
        summary="message and its gradients with respect to features, coordinates and parameters",
        steps=(Step("gno_message_fwd"), Step("gno_message_bwd")),
        sizes=SIZES,
        peers={
            "numpy": Contender(make_numpy_message_call, "BLAS, batched products, and sums by scipy.sparse"),
            **PYG,
        },
    ),
    Workload(
        name="gno-force-training",
        family="gno",
        summary="message, its gradient with respect to coordinates (forces), and the gradient's derivative (bwd2)",
        steps=(
            Step("gno_message_fwd"),
            Step("gno_message_bwd", ("coords",)),
            Step("gno_message_bwd2", ("grad_message", "features", "params"), zero=("gg_features", "gg_params")),
        ),
        sizes=SIZES,
        peers=PYG,
    ),
)
