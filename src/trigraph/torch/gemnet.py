"""BasisEmbedding of GemNet-OC as one function of tensors, over the three operators of its forms."""

from typing import Any

from torch import Tensor

from trigraph.families.gemnet import form_of
from trigraph.torch.functions import FUNCTIONS


def basis_embedding(
    rad_basis: Tensor,
    weight: Tensor,
    sph_basis: Tensor | None = None,
    triplets: Any = None,
    *,
    out: Any = None,
    backend: str | None = None,
) -> Tensor:
    """Embed a radial basis and a circular or spherical basis: GemNet-OC's BasisEmbedding, ragged.

    Parameters
    ----------
    rad_basis, weight, sph_basis : Tensor of float32 or float64
        With the shapes of `trigraph.basis_embedding_fwd`.
    triplets : Segments or Tensor, optional
        Outer edge of each triplet; requires `sph_basis`.
    out : Tensor, optional
        Receives the result.
    backend : str, optional
        As for every operator.

    Returns
    -------
    Tensor
        With the shape of `trigraph.basis_embedding_fwd`.

    Raises
    ------
    TypeError, ValueError, MemoryError, ImportError, RuntimeError
        As for ``basis_embedding_radial``, ``basis_embedding_spherical`` and ``basis_embedding_triplets``.

    See Also
    --------
    trigraph.basis_embedding_fwd
    trigraph.torch.nn.BasisEmbedding

    Examples
    --------
    >>> import torch
    >>> from trigraph.torch import basis_embedding
    >>> basis_embedding(torch.ones(5, 4), torch.ones(2, 4)).shape
    torch.Size([5, 2])
    """
    form = form_of("basis_embedding", weight, sph_basis, triplets)
    more = (sph_basis, triplets) if form == "triplets" else ()
    return FUNCTIONS[f"basis_embedding_{form}"](rad_basis, weight, *more, out=out, backend=backend)
