"""Workloads of DimeNet++'s angular message passing, and their peer, which sums over lists of triplets.

The peer stores the basis, projection and message of every triplet, like PyTorch Geometric's InteractionPPBlock, and
uses the same basis functions (angles by atan2, formulas from sympy). The list of triplets is built before the timing.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from trigraph.benchmarks.workloads import Step, Workload, WorkloadInputs, make_pyg_peers

SIZES = {
    "num_edges": 30_000,
    "num_nodes": 600,
    "num_radial": 6,
    "num_spherical": 7,
    "envelope_exponent": 5,
    "n_emb": 64,
    "n_mid": 8,
}
RADIAL = ("num_edges", "num_radial", "num_spherical", "envelope_exponent")
ANGULAR = ("num_edges", "num_nodes", "num_radial", "num_spherical", "n_emb", "n_mid")


@cache
def _make_pyg_spherical_basis(num_spherical: int, num_radial: int, envelope_exponent: int) -> Any:
    """Return PyTorch Geometric's spherical basis, which sympy derives in about ten seconds."""
    from torch_geometric.nn.models.dimenet import SphericalBasisLayer

    return SphericalBasisLayer(num_spherical, num_radial, 1.0, envelope_exponent)


def _make_pyg_radial_forward(case: WorkloadInputs, device: str) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Return the radial basis as a function of distances and frequencies, by PyTorch Geometric's formulas."""
    import torch

    layer = _make_pyg_spherical_basis(*(case.sizes[n] for n in ("num_spherical", "num_radial", "envelope_exponent")))

    def compute_radial_basis(dist: Any, freq: Any) -> tuple[Any, Any]:
        x = dist.unsqueeze(-1)
        bessels = torch.stack([f(dist) for f in layer.bessel_funcs], dim=1)
        return layer.envelope(x) * (freq * x).sin(), layer.envelope(x) * bessels

    return compute_radial_basis


def _make_pyg_aggregate_forward(case: WorkloadInputs, device: str) -> Callable[[Any, Any, Any, Any], Any]:
    """Return the aggregation over the list of triplets, as a function of vec, sbf_rad, embedding and weights."""
    import torch

    outer, inner = (torch.as_tensor(np.array(a), device=device) for a in case.graph.triplets("node"))
    num_spherical, num_radial = case.sizes["num_spherical"], case.sizes["num_radial"]
    functions = _make_pyg_spherical_basis(num_spherical, 1, 5).sph_funcs

    def aggregate_triplets(vec: Any, sbf_rad: Any, embedding: Any, weights: Any) -> Any:
        first, second = vec[outer], vec[inner]
        angle = torch.atan2(torch.cross(first, second, dim=1).norm(dim=-1), (first * second).sum(dim=-1))
        harmonics = torch.stack([f(angle) for f in functions], dim=1)
        basis = sbf_rad[inner].view(-1, num_spherical, num_radial) * harmonics.unsqueeze(-1)
        W1, W2 = weights[: num_spherical * num_radial], weights[num_spherical * num_radial :]
        q = (basis.view(-1, num_spherical * num_radial) @ W1) @ W2.T
        return torch.zeros_like(embedding).index_add(0, outer, embedding[inner] * q)

    return aggregate_triplets


# Operations of sums over harmonics and of products with both weights.
HARMONICS, PROJECTION = "num_spherical**2*n_emb", "n_mid*(num_spherical*num_radial+num_spherical*n_emb)"
FORWARD = Step("agg_edge_to_edge_fwd", operations=f"2*num_edges*(2*{HARMONICS}+{PROJECTION})")
BACKWARD = Step(
    "agg_edge_to_edge_bwd",
    ("sbf_rad", "embedding", "weights"),
    operations=f"2*num_edges*(2*{HARMONICS}+3*{PROJECTION})",
)


def _make_aggregation_workload(name: str, summary: str, *steps: Step) -> Workload:
    sizes = {n: SIZES[n] for n in ANGULAR}
    peers = make_pyg_peers(_make_pyg_aggregate_forward, "basis functions, sums in torch")
    return Workload(f"dimenet-{name}", "dimenet", summary, steps, sizes, peers)


WORKLOADS = (
    Workload(
        name="dimenet-radial",
        family="dimenet",
        summary="radial basis and its gradients with respect to distances and frequencies",
        steps=(Step("radial_basis_fwd"), Step("radial_basis_bwd")),
        sizes={n: SIZES[n] for n in RADIAL},
        peers=make_pyg_peers(_make_pyg_radial_forward, "basis functions"),
    ),
    _make_aggregation_workload("aggregate", "sum over triplets", FORWARD),
    _make_aggregation_workload(
        "aggregate-backward",
        "sum over triplets and its gradients with respect to sbf_rad, embedding and weights",
        FORWARD,
        BACKWARD,
    ),
    _make_aggregation_workload(
        "force-training",
        "sum over triplets, its gradient with respect to vectors (forces), and the gradient's derivative (bwd2)",
        FORWARD,
        Step("agg_edge_to_edge_bwd", ("vec", "sbf_rad", "embedding")),
        Step("agg_edge_to_edge_bwd2", ("grad_out", "sbf_rad", "embedding", "weights"), zero=("gg_weights",)),
    ),
)
