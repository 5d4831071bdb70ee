"""BasisEmbedding of GemNet-OC, with one function for each order; its three forms are operators of the table.

The arguments determine the form: a `weight` of rank 2 is the purely radial layer; one of rank 3 has a spherical part,
to which `sph_basis` and `triplets` apply the spherical basis.
"""

from typing import Any, NamedTuple

from trigraph.backends.front_door import FUNCTIONS
from trigraph.checks.arguments import checked_names


class BasisEmbeddingBwd(NamedTuple):
    """Result of `basis_embedding_bwd`; None for a derivative that was not asked for, or whose input is absent."""

    rad_basis: Any
    weight: Any
    sph_basis: Any


class BasisEmbeddingBwd2(NamedTuple):
    """Result of `basis_embedding_bwd2`; None for a derivative that was not asked for, or whose input is absent."""

    grad_rad_W1: Any
    rad_basis: Any
    weight: Any
    sph_basis: Any


def form_of(owner: str, weight: Any, sph_basis: Any, triplets: Any) -> str:
    """Return the form that the arguments select: "radial", "spherical" or "triplets"; its operator checks them."""
    if (sph_basis is None) != (triplets is None):
        missing, present = ("triplets", "sph_basis") if triplets is None else ("sph_basis", "triplets")
        raise TypeError(f"{owner}: {missing} is None, but {present} is given; expected both or neither")
    if sph_basis is not None:
        return "triplets"
    return "radial" if getattr(weight, "ndim", 3) == 2 else "spherical"


def _derivative(
    result: Any, order: str, arrays: dict[str, Any], triplets: Any, wrt: Any, out: Any, backend: Any
) -> Any:
    """Call the derivative of the form that the arrays select; return its fields as a `result`."""
    owner = f"basis_embedding_{order}"
    form = form_of(owner, arrays["weight"], arrays["sph_basis"], triplets)
    fields = result._fields if wrt is None else checked_names(owner, result._fields, wrt)
    if form == "triplets":
        arrays["triplets"] = triplets
    else:
        fields = tuple(name for name in fields if name != "sph_basis")
        arrays = {name: array for name, array in arrays.items() if not name.endswith("sph_basis")}
    derivatives = FUNCTIONS[f"basis_embedding_{form}_{order}"](**arrays, wrt=fields, out=out, backend=backend)
    return result(*(getattr(derivatives, name, None) for name in result._fields))


def basis_embedding_fwd(
    rad_basis: Any, weight: Any, sph_basis: Any = None, triplets: Any = None, *, out: Any = None, backend: Any = None
) -> Any:
    """Embed a radial basis and, optionally, a circular or spherical one: GemNet-OC's BasisEmbedding without padding.

    Parameters
    ----------
    rad_basis : array of float32 or float64, shape (num_edges, num_radial)
    weight : array, shape (interm, num_radial) or (num_radial, num_spherical, interm)
        As stored by the layer without, or with, a spherical part.
    sph_basis : array, shape (num_triplets, num_spherical), optional
    triplets : Segments, optional
        Outer edge of each triplet; given with `sph_basis`.
    out : array or mapping, optional
        Where to write the result.
    backend : str, optional
        As for every operator.

    Returns
    -------
    array, shape (num_edges, interm), (num_edges, interm, num_spherical) or (num_triplets, interm)
        Without a spherical part; with one; with one and with `sph_basis`.

    Raises
    ------
    TypeError, ValueError
        As for ``basis_embedding_radial_fwd``, ``basis_embedding_spherical_fwd`` and ``basis_embedding_triplets_fwd``.

    See Also
    --------
    trigraph.basis_embedding_bwd
    trigraph.basis_embedding_bwd2
    trigraph.basis_embedding_radial_fwd
    trigraph.basis_embedding_spherical_fwd
    trigraph.basis_embedding_triplets_fwd
    trigraph.torch.basis_embedding
    trigraph.torch.nn.BasisEmbedding

    Notes
    -----
    Source: Gasteiger et al., GemNet-OC (2022), arXiv:2204.02782; fairchem's BasisEmbedding. The product with `weight`
    of rank 3 has the memory order (num_spherical, interm) and is reshaped, not transposed: checkpoints depend on it.

    Examples
    --------
    >>> import numpy as np
    >>> import trigraph
    >>> basis, w = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[0.5, 1.0]])
    >>> trigraph.basis_embedding_fwd(basis, w)
    array([[2.5],
           [5.5]])
    """
    form = form_of("basis_embedding_fwd", weight, sph_basis, triplets)
    function = FUNCTIONS[f"basis_embedding_{form}_fwd"]
    more = (sph_basis, triplets) if form == "triplets" else ()
    return function(rad_basis, weight, *more, out=out, backend=backend)


def basis_embedding_bwd(
    grad_rad_W1: Any,
    rad_basis: Any,
    weight: Any,
    sph_basis: Any = None,
    triplets: Any = None,
    wrt: Any = None,
    *,
    out: Any = None,
    backend: Any = None,
) -> BasisEmbeddingBwd:
    """Vector-Jacobian product of `basis_embedding_fwd`.

    Parameters
    ----------
    grad_rad_W1 : array
        Gradient of a scalar with respect to the result of `basis_embedding_fwd`, of the same shape.
    rad_basis, weight, sph_basis, triplets
        As for `basis_embedding_fwd`.
    wrt : str or iterable of str, optional
        Fields to compute (default: all).
    out, backend
        As for `basis_embedding_fwd`.

    Returns
    -------
    BasisEmbeddingBwd
        Derivatives with respect to `rad_basis`, `weight` and `sph_basis`.

    See Also
    --------
    trigraph.basis_embedding_fwd
    trigraph.basis_embedding_bwd2
    trigraph.basis_embedding_radial_bwd
    trigraph.basis_embedding_spherical_bwd
    trigraph.basis_embedding_triplets_bwd
    trigraph.torch.basis_embedding
    trigraph.torch.nn.BasisEmbedding

    Examples
    --------
    >>> import numpy as np
    >>> import trigraph
    >>> basis, w = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[0.5, 1.0]])
    >>> trigraph.basis_embedding_bwd(np.ones((2, 1)), basis, w).weight
    array([[4., 6.]])
    """
    arrays = {"grad_rad_W1": grad_rad_W1, "rad_basis": rad_basis, "weight": weight, "sph_basis": sph_basis}
    return _derivative(BasisEmbeddingBwd, "bwd", arrays, triplets, wrt, out, backend)


def basis_embedding_bwd2(
    gg_rad_basis: Any,
    gg_weight: Any,
    gg_sph_basis: Any,
    grad_rad_W1: Any,
    rad_basis: Any,
    weight: Any,
    sph_basis: Any = None,
    triplets: Any = None,
    wrt: Any = None,
    *,
    out: Any = None,
    backend: Any = None,
) -> BasisEmbeddingBwd2:
    """Vector-Jacobian product of `basis_embedding_bwd`.

    Parameters
    ----------
    gg_rad_basis, gg_weight, gg_sph_basis : array or None
        Cotangents of the fields of `basis_embedding_bwd`; None is zero.
    grad_rad_W1, rad_basis, weight, sph_basis, triplets, wrt, out, backend
        As for `basis_embedding_bwd`.

    Returns
    -------
    BasisEmbeddingBwd2
        Derivatives with respect to `grad_rad_W1`, `rad_basis`, `weight` and `sph_basis`.

    See Also
    --------
    trigraph.basis_embedding_fwd
    trigraph.basis_embedding_bwd
    trigraph.basis_embedding_radial_bwd2
    trigraph.basis_embedding_spherical_bwd2
    trigraph.basis_embedding_triplets_bwd2
    trigraph.torch.basis_embedding
    trigraph.torch.nn.BasisEmbedding

    Examples
    --------
    >>> import numpy as np
    >>> import trigraph
    >>> basis, w = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[0.5, 1.0]])
    >>> g = np.ones((2, 1))
    >>> trigraph.basis_embedding_bwd2(basis**2, None, None, g, basis, w).weight
    array([[10., 20.]])
    """
    arrays = {"gg_rad_basis": gg_rad_basis, "gg_weight": gg_weight, "gg_sph_basis": gg_sph_basis}
    arrays |= {"grad_rad_W1": grad_rad_W1, "rad_basis": rad_basis, "weight": weight, "sph_basis": sph_basis}
    if sph_basis is None and triplets is None and gg_sph_basis is not None:
        raise ValueError("basis_embedding_bwd2: gg_sph_basis is given, but sph_basis is None; expected None")
    return _derivative(BasisEmbeddingBwd2, "bwd2", arrays, triplets, wrt, out, backend)
