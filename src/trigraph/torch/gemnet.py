"""BasisEmbedding of GemNet-OC as one function of tensors; its three forms are operators of the table."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from trigraph.panels.gemnet import form_of
from trigraph.torch.functions import FUNCTIONS


def basis_embedding(
    rad_basis: Tensor,
    weight: Tensor,
    sph_basis: Tensor | None = None,
    triplets: Any = None,
    *,
    out: Any = None,
    panel: str | None = None,
) -> Tensor:
    """Embed a radial, and a circular or spherical, basis: GemNet-OC's BasisEmbedding, ragged.

    Parameters
    ----------
    rad_basis : Tensor of float32 or float64, shape (num_edges, num_radial)
    weight : Tensor, shape (interm, num_radial) or (num_radial, num_spherical, interm)
        As the layer stores it: without, or with a spherical part.
    sph_basis : Tensor, shape (num_triplets, num_spherical), optional
    triplets : Segments or Tensor, optional
        Outer edge of each triplet; given with `sph_basis`.
    out : Tensor, optional
        Where to write.
    panel : str, optional
        As of every operator.

    Returns
    -------
    Tensor, shape (num_edges, interm), (num_edges, interm, num_spherical) or (num_triplets, interm)
        Without a spherical part; with one; with one and `sph_basis`.

    Raises
    ------
    TypeError, ValueError
        As ``basis_embedding_radial``, ``basis_embedding_spherical`` and ``basis_embedding_triplets``.

    Notes
    -----
    Source: as of `trigraph.basis_embedding_fwd`.

    Examples
    --------
    >>> import torch
    >>> basis_embedding(torch.ones(5, 4), torch.ones(2, 4)).shape
    torch.Size([5, 2])
    """
    form = form_of("basis_embedding", weight, sph_basis, triplets)
    more = (sph_basis, triplets) if form == "triplets" else ()
    embedded: Tensor = FUNCTIONS[f"basis_embedding_{form}"](rad_basis, weight, *more, out=out, panel=panel)
    return embedded
