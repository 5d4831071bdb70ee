"""Run PyTorch Geometric's DimeNet++ without pyg-lib and torch_sparse, and with Bessel zeros in float64."""

import torch

from trigraph.pyref.dimenet import bessel_zeros

SIZES = {
    "hidden_channels": 12,
    "out_channels": 1,
    "num_blocks": 2,
    "int_emb_size": 8,
    "basis_emb_size": 4,
    "out_emb_channels": 10,
    "num_spherical": 4,
    "num_radial": 3,
    "cutoff": 3.5,
    "output_initializer": "glorot_orthogonal",
}

# Cancellation in PyG's closed-form basis amplifies rounding errors by (z x)^-l (z: Bessel zero, x: scaled distance),
# which reaches 1e4 for the sizes used here.
TOLERANCE = 2**-53 * 1e5


def radius_graph(pos, r, batch, max_num_neighbors):
    near = torch.cdist(pos.detach(), pos.detach(), compute_mode="donot_use_mm_for_euclid_dist")
    batch = torch.zeros(len(pos)) if batch is None else batch
    near = near.masked_fill((batch[:, None] != batch) | torch.eye(len(pos), dtype=bool), torch.inf)
    keep = (near < r) & (near.argsort(1).argsort(1) < max_num_neighbors)
    return torch.stack(keep.nonzero(as_tuple=True)[::-1])


def list_triplets(edge_index, num_nodes):
    j, i = edge_index
    ji, kj = ((i[None] == j[:, None]) & (j[None] != i[:, None])).nonzero(as_tuple=True)
    return i, j, i[ji], j[ji], j[kj], kj, ji


def patch_pyg_dimenet(monkeypatch, peer):
    """Replace functions that a plain PyG installation lacks, and use Bessel zeros that are exact in float64."""
    monkeypatch.setattr(peer, "radius_graph", radius_graph)
    monkeypatch.setattr(peer, "triplets", list_triplets)
    monkeypatch.setattr("torch_geometric.nn.models.dimenet_utils.Jn_zeros", bessel_zeros)
