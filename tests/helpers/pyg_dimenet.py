"""PyTorch Geometric's DimeNet++ without pyg-lib and torch_sparse, and with exact zeros of the Bessel functions."""

import numpy as np
import torch
from scipy import special

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

# Rounding of PyG's closed forms of the basis: they lose z^-l x^-l of the digits, 1e4 for the sizes of the tests.
TOLERANCE = 2**-53 * 1e5


def radius_graph(pos, r, batch, max_num_neighbors):
    near = torch.cdist(pos.detach(), pos.detach(), compute_mode="donot_use_mm_for_euclid_dist")
    batch = torch.zeros(len(pos)) if batch is None else batch
    near = near.masked_fill((batch[:, None] != batch) | torch.eye(len(pos), dtype=bool), torch.inf)
    keep = (near < r) & (near.argsort(1).argsort(1) < max_num_neighbors)
    return torch.stack(keep.nonzero(as_tuple=True)[::-1])


def triplets(edge_index, num_nodes):
    j, i = edge_index
    ji, kj = ((i[None] == j[:, None]) & (j[None] != i[:, None])).nonzero(as_tuple=True)
    return i, j, i[ji], j[ji], j[kj], kj, ji


def exact_zeros(n, k):
    """Zeros of the spherical Bessel functions: those of one order lie between those of the one before."""
    zeros = [np.pi * np.arange(1, k + n)]
    for order in range(1, n):
        low, high = zeros[-1][:-1].copy(), zeros[-1][1:].copy()
        sign = np.sign(special.spherical_jn(order, low))
        for _ in range(80):
            middle = (low + high) / 2
            left = np.sign(special.spherical_jn(order, middle)) == sign
            low, high = np.where(left, middle, low), np.where(left, high, middle)
        zeros.append((low + high) / 2)
    return np.stack([z[:k] for z in zeros])


def patch(monkeypatch, peer):
    """Give PyG's module what a plain installation lacks, and zeros that are more than float32 numbers."""
    monkeypatch.setattr(peer, "radius_graph", radius_graph)
    monkeypatch.setattr(peer, "triplets", triplets)
    monkeypatch.setattr("torch_geometric.nn.models.dimenet_utils.Jn_zeros", exact_zeros)
