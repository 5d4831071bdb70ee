"""The padded interface of GemNet-OC's efficient layers (``BasisEmbedding`` and its bilinear, fairchem-core 1.10.0).

The original keeps lists of lists as dense arrays: member number `inner` of row `outer` lies in slot ``[outer, inner]``,
slots nobody fills are zero, and there are as many as the longest row needs. Arguments and results have the shapes of
the original's ``forward``, the layer's weight comes first; the sums are trigraph's and run over the lists.

Where the original fails on empty lists, results are zeros and there are no slots.
"""

from dataclasses import dataclass
from typing import Any

from trigraph.backends import FUNCTIONS
from trigraph.graphs import MOST, advice, array_kind, check_memory, check_range, count, index_array, namespace_of
from trigraph.graphs.segments import Segments

__all__ = ["basis_embedding", "interaction_bilinear"]


@dataclass(frozen=True)
class _Slots:
    """Where the members of lists lie in a padded array of `num_rows` rows with `width` slots."""

    outer: Any
    inner: Any
    num_rows: int
    width: int

    def pad(self, members: Any) -> Any:
        """Return (num_rows, width, ...): every member in its slot, zero elsewhere."""
        padded = namespace_of(members).zeros((self.num_rows, self.width, *members.shape[1:]), members.dtype)
        padded[self.outer, self.inner] = members
        return padded


def _index(owner: str, name: str, value: Any, members: tuple[str, int], data: Any) -> Any:
    """Check an index array with one value for each member (symbol and number), of the kind of `data`."""
    index = index_array(owner, name, value)
    if array_kind(index) != array_kind(data):
        raise TypeError(f"{owner}: {name} is a {array_kind(index)}.ndarray; expected a {array_kind(data)}.ndarray")
    if len(index) != members[1]:
        raise ValueError(f"{owner}: {name} has shape {index.shape}; expected ({members[0]},) = ({members[1]},)")
    return index


def _slots(
    owner: str, prefix: str, lists: tuple[Any, Any], members: tuple[str, int], rows: tuple[str, int], data: Any
) -> _Slots:
    """Check a pair of lists ``<prefix>_outer``, ``<prefix>_inner``; `members` and `rows` are symbol and number."""
    outer_name, inner_name = f"{prefix}_outer", f"{prefix}_inner"
    outer = _index(owner, outer_name, lists[0], members, data)
    inner = _index(owner, inner_name, lists[1], members, data)
    check_range(owner, outer_name, outer, rows[1], rows[0])
    if len(inner) == 0:
        return _Slots(outer, inner, rows[1], 0)
    check_range(owner, inner_name, inner, MOST // rows[1], "Kmax")
    xp, width = namespace_of(inner), int(inner.max()) + 1
    if array_kind(data) == "numpy":
        check_memory(owner, f"{rows[0]} * (max({inner_name}) + 1)", rows[1] * width, data.dtype.itemsize)
    slot = outer.astype(xp.int64) * width + inner
    order = xp.argsort(slot, kind="stable")
    again = order[1:][slot[order[1:]] == slot[order[:-1]]]
    if len(again):
        at = int(again.min())
        raise ValueError(
            f"{owner}: {outer_name}[{at}], {inner_name}[{at}] are {int(outer[at])}, {int(inner[at])}, a slot that an "
            "earlier member has; expected one of its own for each"
        )
    return _Slots(outer, inner, rows[1], width)


def _check_rank(owner: str, name: str, value: Any, *expected: str) -> None:
    """Raise unless `value` is an array with one of the shapes, given in symbols."""
    if array_kind(value) is None:
        raise TypeError(
            f"{owner}: {name} is a {type(value).__name__}; expected an ndarray of float32 or float64"
            f"{advice(name, value)}"
        )
    if value.ndim not in [len(shape.split(", ")) for shape in expected]:
        raise ValueError(f"{owner}: {name} has shape {value.shape}; expected ({') or ('.join(expected)})")


def _check_shape(owner: str, name: str, value: Any, symbols: str, shape: tuple[int, ...]) -> None:
    if value.shape != shape:
        raise ValueError(f"{owner}: {name} has shape {value.shape}; expected ({symbols}) = {shape}")


def basis_embedding(
    weight: Any,
    rad_basis: Any,
    sph_basis: Any = None,
    idx_rad_outer: Any = None,
    idx_rad_inner: Any = None,
    idx_sph_outer: Any = None,
    idx_sph_inner: Any = None,
    num_atoms: Any = None,
    *,
    backend: str | None = None,
) -> Any:
    """Embed a radial, circular or spherical basis, as ``BasisEmbedding(...)(rad_basis, ...)`` does.

    Parameters
    ----------
    weight : array of float32 or float64
        The layer's weight: (interm, num_radial) for a radial basis, (num_radial, num_spherical, interm) for another.
    rad_basis, sph_basis, idx_rad_outer, idx_rad_inner, idx_sph_outer, idx_sph_inner, num_atoms
        As of the `forward` of `trigraph.torch.nn.BasisEmbedding`, arrays in place of tensors.
    backend : str, optional
        As everywhere in trigraph.

    Returns
    -------
    array or tuple of two arrays
        As there, padded.

    Examples
    --------
    >>> import numpy as np
    >>> from trigraph.compat.gemnet import basis_embedding
    >>> basis_embedding(np.array([[0.5, 1.0]]), np.array([[1.0, 2.0], [3.0, 4.0]]))
    array([[2.5],
           [5.5]])
    """
    owner = "basis_embedding"
    _check_basis(weight, rad_basis, sph_basis, idx_rad_inner, idx_sph_inner)
    edges, triplets = ("num_edges", len(rad_basis)), ("num_triplets", 0 if sph_basis is None else len(sph_basis))
    if sph_basis is not None and idx_sph_inner is None:
        outer = _index(owner, "idx_sph_outer", idx_sph_outer, triplets, rad_basis)
        check_range(owner, "idx_sph_outer", outer, edges[1], edges[0])
        form = FUNCTIONS["basis_embedding_triplets_fwd"]
        return form(rad_basis, weight, sph_basis, Segments(outer, edges[1]), backend=backend)
    by_atom = by_edge = None
    if idx_rad_inner is not None:
        atoms = ("num_atoms", count(owner, "num_atoms", num_atoms, maximum=MOST))
        by_atom = _slots(owner, "idx_rad", (idx_rad_outer, idx_rad_inner), edges, atoms, rad_basis)
    if sph_basis is not None:
        by_edge = _slots(owner, "idx_sph", (idx_sph_outer, idx_sph_inner), triplets, edges, rad_basis)
    form = FUNCTIONS["basis_embedding_radial_fwd" if weight.ndim == 2 else "basis_embedding_spherical_fwd"]
    rad_W1 = form(rad_basis, weight, backend=backend)
    if by_atom is not None:
        rad_W1 = _by_atom(rad_W1, by_atom)
    return rad_W1 if by_edge is None else (rad_W1, by_edge.pad(sph_basis).transpose(0, 2, 1))


def _check_basis(weight: Any, rad_basis: Any, sph_basis: Any, idx_rad_inner: Any, idx_sph_inner: Any) -> None:
    """Raise unless ranks and what is given fit, and `sph_basis` fits the arrays of the operator it may not reach."""
    owner, spherical = "basis_embedding", "num_radial, num_spherical, interm"
    _check_rank(owner, "weight", weight, "interm, num_radial", spherical)
    _check_rank(owner, "rad_basis", rad_basis, "num_edges, num_radial")
    if sph_basis is None:
        if idx_sph_inner is not None:
            raise ValueError(f"{owner}: idx_sph_inner is given, but sph_basis is None; expected both or none")
        return
    _check_rank(owner, "sph_basis", sph_basis, "num_triplets, num_spherical")
    if array_kind(sph_basis) != array_kind(rad_basis):
        sph_kind, rad_kind = array_kind(sph_basis), array_kind(rad_basis)
        raise TypeError(f"{owner}: sph_basis is a {sph_kind}.ndarray; expected {rad_kind}.ndarray, as rad_basis is")
    if sph_basis.dtype != rad_basis.dtype:
        raise TypeError(
            f"{owner}: sph_basis has dtype {sph_basis.dtype}; expected {rad_basis.dtype}, the dtype of rad_basis"
        )
    if weight.ndim == 3:
        _check_shape(owner, "sph_basis", sph_basis, "num_triplets, num_spherical", (len(sph_basis), weight.shape[1]))
    if idx_sph_inner is None and weight.ndim == 2:
        expected = f"expected ({spherical}) for a sph_basis without idx_sph_inner"
        raise ValueError(f"{owner}: weight has shape {weight.shape}; {expected}")
    if idx_sph_inner is None and idx_rad_inner is not None:
        raise ValueError(f"{owner}: idx_rad_inner and sph_basis are given; expected idx_sph_inner, too")


def _by_atom(rad_W1: Any, slots: _Slots) -> Any:
    """Return (num_atoms, interm, Kmax2) or (num_atoms, interm, Kmax2*num_spherical) of an embedding by edge."""
    width = slots.width * (rad_W1.shape[2] if rad_W1.ndim == 3 else 1)
    return slots.pad(rad_W1).swapaxes(1, 2).reshape(slots.num_rows, rad_W1.shape[1], width)


def interaction_bilinear(
    weight: Any,
    basis: tuple[Any, Any],
    m: Any,
    idx_agg_outer: Any,
    idx_agg_inner: Any,
    idx_agg2_outer: Any = None,
    idx_agg2_inner: Any = None,
    agg2_out_size: Any = None,
    *,
    backend: str | None = None,
) -> Any:
    """Sum triplets or quadruplets into edges or atoms, as ``EfficientInteractionBilinear(...)(basis, ...)`` does.

    Parameters
    ----------
    weight : array of float32 or float64, shape (emb_out, interm*emb_in)
        The layer's ``bilinear.linear.weight``.
    basis : tuple of two arrays
        What :func:`basis_embedding` returns.
    m, idx_agg_outer, idx_agg_inner, idx_agg2_outer, idx_agg2_inner, agg2_out_size
        As of the `forward` of `trigraph.torch.nn.EfficientInteractionBilinear`, arrays in place of tensors.
    backend : str, optional
        As everywhere in trigraph.

    Returns
    -------
    array, shape (num_edges, emb_out) or (agg2_out_size, emb_out)

    Examples
    --------
    >>> import numpy as np
    >>> from trigraph.compat.gemnet import interaction_bilinear
    >>> basis = np.ones((1, 2, 2)), np.ones((1, 2, 3))  # one edge of three triplets
    >>> weight, m, edge = np.ones((1, 2)), np.ones((3, 1)), np.zeros(3, int)
    >>> interaction_bilinear(weight, basis, m, edge, np.arange(3))
    array([[12.]])
    """
    owner = "interaction_bilinear"
    if not isinstance(basis, (tuple, list)) or len(basis) != 2:
        raise TypeError(f"{owner}: basis is a {type(basis).__name__}; expected a tuple of two arrays, rad_W1 and sph")
    rad_W1, sph = basis
    _check_rank(owner, "rad_W1", rad_W1, "num_edges, interm, num_spherical", "num_atoms, interm, Kmax2*num_spherical")
    _check_rank(owner, "sph", sph, "num_edges, num_spherical, Kmax")
    _check_rank(owner, "m", m, "num_triplets, emb_in")
    edges, num_spherical = ("num_edges", sph.shape[0]), sph.shape[1]
    slots = _slots(owner, "idx_agg", (idx_agg_outer, idx_agg_inner), ("num_triplets", len(m)), edges, sph)
    _check_shape(owner, "sph", sph, "num_edges, num_spherical, Kmax", (edges[1], num_spherical, slots.width))
    atoms, interm = None, rad_W1.shape[1]
    if idx_agg2_outer is None:
        _check_shape(owner, "rad_W1", rad_W1, "num_edges, interm, num_spherical", (edges[1], interm, num_spherical))
    else:
        size = ("agg2_out_size", count(owner, "agg2_out_size", agg2_out_size, maximum=MOST))
        slots2 = _slots(owner, "idx_agg2", (idx_agg2_outer, idx_agg2_inner), edges, size, sph)
        shape = (size[1], interm, slots2.width * num_spherical)
        _check_shape(owner, "rad_W1", rad_W1, "agg2_out_size, interm, Kmax2*num_spherical", shape)
        rad_W1 = rad_W1.reshape(size[1], interm, slots2.width, num_spherical)[slots2.outer, :, slots2.inner]
        atoms = Segments(slots2.outer, size[1])
    return FUNCTIONS["interaction_bilinear_fwd"](
        rad_W1, sph[slots.outer, :, slots.inner], m, weight, Segments(slots.outer, edges[1]), atoms, backend=backend
    )
