"""The efficient layers of GemNet-OC, with the parameters and results of fairchem's layers.

fairchem stores ragged lists as padded arrays: member `inner` of row `outer` is in slot ``[outer, inner]``, empty slots
are zero, and the longest row determines the width. These layers support padded arrays and, with ``padded=False``, the
ragged lists themselves, which need less memory and yield the same sums.
"""

from typing import Any

import torch

from trigraph.arrays import check_memory
from trigraph.graphs.segments import Segments
from trigraph.torch.functions import FUNCTIONS, basis_embedding
from trigraph.torch.graphs import exclude_from_compilation, list_graph_tensors
from trigraph.torch.layers.arguments import refuse_torchscript

Index = torch.Tensor | Segments


def _init_he_orthogonal(weight: torch.Tensor) -> None:
    """Fill with an orthogonal matrix, standardized over the dimensions to be summed to variance 1 / (their size)."""
    torch.nn.init.orthogonal_(weight)
    summed = (0, 1) if weight.dim() == 3 else (1,)
    terms = weight[..., 0].numel() if weight.dim() == 3 else weight.shape[1]
    with torch.no_grad():
        var, mean = torch.var_mean(weight, dim=summed, correction=int(terms > 1), keepdim=True)
        weight.copy_((weight - mean) / (terms * (var + 1e-6)).sqrt())


_build_segments = exclude_from_compilation(Segments)


def _get_or_build_segments(index: Any, num_segments: Any) -> Segments:
    """Return prepared segments unchanged, or build the segments of an index tensor."""
    segments = index if isinstance(index, Segments) else _build_segments(index, num_segments)
    if segments.num_segments != num_segments:
        raise ValueError(f"Segments: num_segments is {segments.num_segments}; expected {num_segments}")
    return segments


def _number_slots(owner: str, name: str, rows: torch.Tensor, inner: Any, width: int) -> torch.Tensor:
    """Return the number ``outer * width + inner`` of each member's slot, which no other member may have."""
    slots: torch.Tensor = rows.long() * width + inner
    # Ascending slots, which are usual for triplets, are distinct.
    distinct = (slots.diff() > 0).all() or len(slots.unique()) == len(slots)
    if not distinct or ((inner < 0) | (inner >= width)).any():
        wrong = f"{name}_inner is equal for two members with the same {name}_outer, or not in [0, {width})"
        raise ValueError(f"{owner}: {wrong}; expected 0, 1, 2, ... for the members of each row")
    return slots


@exclude_from_compilation
def _pad_members(name: str, members: torch.Tensor, outer: Any, inner: Any, num_rows: Any) -> torch.Tensor:
    """Return an array of shape (num_rows, width, ...) with each member in ``[outer, inner]`` and zeros elsewhere."""
    rows: torch.Tensor = list_graph_tensors(_get_or_build_segments(outer, num_rows), False)[0]
    owner, width = "BasisEmbedding", int(inner.max()) + 1 if inner.numel() else 0
    if members.is_cpu:
        each = members.dtype.itemsize * members.shape[1:].numel()
        check_memory(owner, f"{num_rows} * (max({name}_inner) + 1)", num_rows * width, each)
    slots = _number_slots(owner, name, rows, inner, width)
    padded = members.new_zeros(num_rows * width, *members.shape[1:])
    return padded.index_copy_(0, slots, members).view(num_rows, width, *members.shape[1:])


@exclude_from_compilation
def _select_members(name: str, padded: torch.Tensor, outer: Segments, inner: torch.Tensor | None) -> torch.Tensor:
    """Return the members in the slots ``[outer, :, inner]`` of a padded array."""
    owner = "EfficientInteractionBilinear"
    if inner is None:
        raise TypeError(f"{owner}: {name}_inner is None; expected a torch.Tensor for a padded basis")
    if len(padded) != outer.num_segments:
        raise ValueError(f"{owner}: a padded basis has {len(padded)} rows; expected {outer.num_segments}")
    rows: torch.Tensor = list_graph_tensors(outer, False)[0]
    _number_slots(owner, name, rows, inner, padded.shape[2])
    return padded[rows, :, inner]


class BasisEmbedding(torch.nn.Module):
    """Embed a radial basis and a circular or spherical basis, like fairchem's layer of this name.

    Parameters
    ----------
    num_radial : int
    emb_size_interm : int
    num_spherical : int, optional
        Number of circular or spherical functions (default: the layer is purely radial).
    padded : bool, optional
        Pad the results as fairchem does. Otherwise, rad_W1 has a row for each edge and sph is `sph_basis`. Programs
        compiled with ``fullgraph=True`` require ``padded=False``. `EfficientInteractionBilinear` accepts either form.

    Attributes
    ----------
    weight : Parameter, shape (emb_size_interm, num_radial) or (num_radial, num_spherical, emb_size_interm)

    Notes
    -----
    Source: Gasteiger et al., GemNet-OC (2022), arXiv:2204.02782; weights and results of fairchem-core 1.10.0.

    Examples
    --------
    >>> import torch
    >>> from trigraph.torch.nn import BasisEmbedding
    >>> layer = BasisEmbedding(4, 2)
    >>> layer(torch.ones(5, 4)).shape
    torch.Size([5, 2])
    """

    def __init__(
        self, num_radial: int, emb_size_interm: int, num_spherical: int | None = None, padded: bool = True
    ) -> None:
        super().__init__()
        self.num_radial, self.num_spherical, self.padded = num_radial, num_spherical, padded
        shape = (emb_size_interm, num_radial) if num_spherical is None else (num_radial, num_spherical, emb_size_interm)
        self.weight = torch.nn.Parameter(torch.empty(shape))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialize the weight."""
        _init_he_orthogonal(self.weight)

    __prepare_scriptable__ = refuse_torchscript

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"weight={tuple(self.weight.shape)}, padded={self.padded}"

    def forward(
        self,
        rad_basis: torch.Tensor,
        sph_basis: torch.Tensor | None = None,
        idx_rad_outer: Index | None = None,
        idx_rad_inner: torch.Tensor | None = None,
        idx_sph_outer: Index | None = None,
        idx_sph_inner: torch.Tensor | None = None,
        num_atoms: int | None = None,
    ) -> Any:
        """Return the embedded basis.

        Parameters
        ----------
        rad_basis : tensor, shape (num_edges, num_radial)
        sph_basis : tensor, shape (num_triplets, num_spherical), optional
            Circular or spherical basis of each triplet or quadruplet.
        idx_rad_outer, idx_rad_inner : tensor of int32 or int64, shape (num_edges,), optional
            Atom of each edge, and number of each edge within its atom. With `idx_rad_inner`, rad_W1 is padded by atom.
        idx_sph_outer : tensor of int32 or int64, shape (num_triplets,), or Segments
            Edge of each triplet; required with `sph_basis`.
        idx_sph_inner : tensor of int32 or int64, shape (num_triplets,), optional
            Number of each triplet within its edge. If omitted, the layer multiplies the two bases for each triplet.
        num_atoms : int
            Number of atoms; required with `idx_rad_inner`.

        Returns
        -------
        tensor or tuple of two tensors
            Without `sph_basis`: rad_W1, (num_edges, interm), or (num_atoms, interm, Kmax2) if padded by atom. With
            `sph_basis` but no `idx_sph_inner`: (num_triplets, interm). With both: rad_W1, (num_edges, interm,
            num_spherical) or (num_atoms, interm, Kmax2*num_spherical) with num_spherical fastest, and sph, (num_edges,
            num_spherical, Kmax). Kmax2 is the largest number of edges per atom, Kmax the largest number of triplets per
            edge. Without padding: (num_edges, interm, num_spherical) and (num_triplets, num_spherical).

        Raises
        ------
        TypeError, ValueError, MemoryError
            As for `trigraph.torch.basis_embedding` and `trigraph.Segments`, or if two members have the same slot, the
            arguments cannot be combined, or there is not enough memory for padding.
        """
        if sph_basis is not None and idx_sph_inner is None:
            if idx_rad_inner is not None:
                raise ValueError("BasisEmbedding: idx_rad_inner and sph_basis are given; expected idx_sph_inner, too")
            triplets = _get_or_build_segments(idx_sph_outer, len(rad_basis))
            return basis_embedding(rad_basis, self.weight, sph_basis, triplets)
        rad_W1 = basis_embedding(rad_basis, self.weight)
        if self.padded and idx_rad_inner is not None:
            rad_W1 = _pad_members("idx_rad", rad_W1, idx_rad_outer, idx_rad_inner, num_atoms).transpose(1, 2).flatten(2)
        if sph_basis is None:
            return rad_W1
        if self.padded:
            sph_basis = _pad_members("idx_sph", sph_basis, idx_sph_outer, idx_sph_inner, len(rad_basis))
            sph_basis = sph_basis.transpose(1, 2)
        return rad_W1, sph_basis


class EfficientInteractionBilinear(torch.nn.Module):
    """Sum triplets or quadruplets for each edge or atom, like fairchem's layer of this name.

    Parameters
    ----------
    emb_size_in, emb_size_interm, emb_size_out : int

    Attributes
    ----------
    bilinear.linear.weight : Parameter, shape (emb_size_out, emb_size_interm*emb_size_in)

    Notes
    -----
    Source: Gasteiger et al., GemNet-OC (2022), arXiv:2204.02782; weights and results of fairchem-core 1.10.0.

    Examples
    --------
    >>> import torch
    >>> from trigraph.torch.nn import BasisEmbedding, EfficientInteractionBilinear
    >>> embed = BasisEmbedding(4, 2, 3, padded=False)
    >>> interact = EfficientInteractionBilinear(6, 2, 7)
    >>> edge, number = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 0])
    >>> rad, sph = torch.ones(2, 4), torch.ones(3, 3)
    >>> basis = embed(rad, sph, idx_sph_outer=edge, idx_sph_inner=number)
    >>> interact(basis, torch.ones(3, 6), edge).shape
    torch.Size([2, 7])
    """

    def __init__(self, emb_size_in: int, emb_size_interm: int, emb_size_out: int) -> None:
        super().__init__()
        self.emb_size_in, self.emb_size_interm, self.emb_size_out = emb_size_in, emb_size_interm, emb_size_out
        linear = torch.nn.Linear(emb_size_in * emb_size_interm, emb_size_out, bias=False)
        self.bilinear = torch.nn.ModuleDict({"linear": linear})
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialize the weight."""
        _init_he_orthogonal(self.weight)

    @property
    def weight(self) -> torch.Tensor:
        """Weight of the bilinear layer, with emb_size_in as the fastest-varying axis."""
        return self.bilinear.get_submodule("linear").weight  # type: ignore[return-value]

    __prepare_scriptable__ = refuse_torchscript

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"{self.emb_size_in}, {self.emb_size_interm}, {self.emb_size_out}"

    def forward(
        self,
        basis: tuple[torch.Tensor, torch.Tensor],
        m: torch.Tensor,
        idx_agg_outer: Index,
        idx_agg_inner: torch.Tensor | None = None,
        idx_agg2_outer: Index | None = None,
        idx_agg2_inner: torch.Tensor | None = None,
        agg2_out_size: int | None = None,
    ) -> torch.Tensor:
        """Return the embedding of each edge, or of each atom.

        Parameters
        ----------
        basis : tuple of two tensors
            Result of :class:`BasisEmbedding`, with or without padding.
        m : tensor, shape (num_triplets, emb_size_in)
            Embedding of the input of each triplet.
        idx_agg_outer, idx_agg_inner : tensor of int32 or int64, shape (num_triplets,)
            Edge of each triplet (or Segments) and, only for a padded basis, number of each triplet within its edge.
        idx_agg2_outer, idx_agg2_inner : tensor of int32 or int64, shape (num_edges,), optional
            Atom of each edge (or Segments) and, only for a padded basis, number of each edge within its atom.
        agg2_out_size : int
            Number of atoms; required with `idx_agg2_outer`.

        Returns
        -------
        tensor, shape (num_edges, emb_size_out) or (agg2_out_size, emb_size_out)

        Raises
        ------
        TypeError, ValueError, IndexError, MemoryError
            As for `trigraph.torch.interaction_bilinear` and `trigraph.Segments`, or if the numbers of members or the
            shape of a padded basis are wrong.
        """
        of_edges, of_atoms = (idx_agg_outer, idx_agg_inner), (idx_agg2_outer, idx_agg2_inner)
        return _compute_bilinear(self.weight, basis, m, of_edges, of_atoms, agg2_out_size)


def _compute_bilinear(
    weight: torch.Tensor,
    basis: Any,
    m: torch.Tensor,
    of_edges: Any,
    of_atoms: Any = (None, None),
    num_atoms: Any = None,
) -> torch.Tensor:
    """Compute `EfficientInteractionBilinear`, whose indices are given as pairs (outer, inner)."""
    (rad_W1, sph), (edge, number_in_edge), (atom, number_in_atom) = basis, of_edges, of_atoms
    padded = sph.dim() == 3
    triplets = _get_or_build_segments(edge, len(sph if padded else rad_W1))
    atoms = None if atom is None else _get_or_build_segments(atom, num_atoms)
    if padded and atoms is not None:
        rad_W1 = _select_members("idx_agg2", rad_W1.unflatten(2, (-1, sph.shape[1])), atoms, number_in_atom)
    if padded:
        sph = _select_members("idx_agg", sph, triplets, number_in_edge)
    return FUNCTIONS["interaction_bilinear"](rad_W1, sph, m, weight, triplets, atoms)


class MatterGenBilinear(torch.nn.Module):
    """``EfficientInteractionBilinear`` of MatterGen 1.0 and of fairchem's GemNet-dT, on which MatterGen is based.

    `trigraph.torch.convert` changes the layers of both packages to this class. The original layers raise if an edge has
    no triplets. Without edges, MatterGen's layer returns shape (0, 0).
    """

    weight: torch.nn.Parameter  # shape (emb_size, emb_size_interm, units_out)

    __prepare_scriptable__ = refuse_torchscript

    def forward(
        self, basis: tuple[torch.Tensor, torch.Tensor], m: torch.Tensor, id_reduce: Index, id_ragged_idx: torch.Tensor
    ) -> torch.Tensor:
        """Return the embedding of each edge, shape (num_edges, units_out).

        `basis` consists of a radial part (num_edges, emb_size_interm, num_spherical) and a padded spherical part
        (num_edges, num_spherical, Kmax). `id_reduce` is each triplet's edge, `id_ragged_idx` its number in the edge.
        """
        weight = self.weight.permute(2, 1, 0).flatten(1)
        return _compute_bilinear(weight, basis, m, (id_reduce, id_ragged_idx))


class PairInteraction(torch.nn.Module):
    """``PairInteraction`` of fairchem-core 1.10; `trigraph.torch.convert` changes fairchem's layers to this class.

    The original layer raises if there are no edges. The sums equal the result of `EfficientInteractionBilinear` for
    atoms, with one triplet for each edge and a spherical basis equal to 1.
    """

    down_projection: torch.nn.Module
    bilinear: torch.nn.Module
    scale_rbf_sum: torch.nn.Module
    up_projection: torch.nn.Module

    __prepare_scriptable__ = refuse_torchscript

    def forward(
        self, h: torch.Tensor, rad_basis: torch.Tensor, edge_index: torch.Tensor, target_neighbor_idx: torch.Tensor
    ) -> torch.Tensor:
        """Return the neighbours' contribution to the embedding of each atom, with the shape of `h`.

        `rad_basis` is the result of a radial `BasisEmbedding`: (num_atoms, emb_size_rbf, Kmax2) if padded by atom, else
        (num_edges, emb_size_rbf). For a padded basis, `target_neighbor_idx` numbers the edges of each target.
        """
        source, target = edge_index
        x_ba = self.down_projection(h)[source]
        rad_W1 = rad_basis[target, :, target_neighbor_idx] if rad_basis.dim() == 3 else rad_basis
        basis = rad_W1[:, :, None], x_ba.new_ones(len(x_ba), 1)
        weight: torch.Tensor = self.bilinear.get_submodule("linear").weight  # type: ignore[assignment]
        each = torch.arange(len(x_ba), device=x_ba.device)
        x = _compute_bilinear(weight, basis, x_ba, (each, None), (target, None), len(h))
        return self.up_projection(self.scale_rbf_sum(x, ref=x_ba))
