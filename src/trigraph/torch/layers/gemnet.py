"""The efficient layers of GemNet-OC, with the parameters and results of fairchem's layers.

fairchem stores ragged lists as padded arrays: member `inner` of row `outer` is in slot ``[outer, inner]``, empty slots
are zero, and the longest row determines the width. These layers support padded arrays and, with ``padded=False``, the
ragged lists themselves, which need less memory and yield the same sums.
"""

from typing import Any

import torch

from trigraph.arrays import MOST, check_memory, check_range, require_count, view_tensor_memory
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


def _check_shape(owner: str, name: str, value: Any, symbols: str, *shape: int | None) -> None:
    """Raise unless a value is a tensor of the given shape; None matches any size. Errors show `symbols`."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{owner}: {name} is a {type(value).__name__}; expected a torch.Tensor")
    pairs = [*zip(shape, value.shape, strict=False)]
    if value.dim() != len(shape) or not all(n in (None, m) for n, m in pairs):
        numbers = f" = {tuple(m if n is None else n for n, m in pairs)}" if value.dim() == len(shape) else ""
        raise ValueError(f"{owner}: {name} has shape {tuple(value.shape)}; expected ({symbols}){numbers}")


def _get_or_build_segments(
    owner: str, name: str, index: Any, num_members: tuple[str, int], num_segments: int
) -> Segments:
    """Return prepared segments unchanged, or build the segments of an index tensor."""
    segments = index if isinstance(index, Segments) else _build_segments(owner, name, index, num_segments)
    if (segments.num_members, segments.num_segments) != (num_members[1], num_segments):
        raise ValueError(
            f"{owner}: {name} has {segments.num_members} values below {segments.num_segments}; expected "
            f"{num_members[0]} = {num_members[1]} below {num_segments}"
        )
    return segments


@exclude_from_compilation
def _build_segments(owner: str, name: str, index: Any, num_segments: int) -> Segments:
    try:
        return Segments(index, num_segments)
    except (TypeError, ValueError, MemoryError) as error:
        raise type(error)(f"{owner}: {name}: {error}") from None


@exclude_from_compilation
def _find_slots(owner: str, name: str, outer: Segments, inner: Any) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return the row of each member of a padded array, the number of its slot, and the width of the array.

    `inner`, called `name` in errors, is the number of each member within its row.
    """
    if not isinstance(inner, torch.Tensor) or inner.dtype not in (torch.int32, torch.int64):
        came = f"of {inner.dtype}" if isinstance(inner, torch.Tensor) else f"a {type(inner).__name__}"
        raise TypeError(f"{owner}: {name} is {came}; expected a torch.Tensor of int32 or int64")
    _check_shape(owner, name, inner, "num_members", outer.num_members)
    rows, width = list_graph_tensors(outer, False)[0].long(), int(inner.max()) + 1 if inner.numel() else 0
    most = min(width, MOST // max(outer.num_segments, 1))
    check_range(owner, name, view_tensor_memory(inner, f"{owner}: {name}"), most, "Kmax")
    slots: torch.Tensor = rows * width + inner
    # Ascending slots, which are usual for triplets, are distinct.
    if not (slots.diff() > 0).all() and len(slots.unique()) < len(slots):
        raise ValueError(f"{owner}: {name} is equal for two members of a row; expected different numbers in each row")
    return rows, slots, width


@exclude_from_compilation
def _pad_members(
    prefix: str, members: torch.Tensor, num_members: str, outer: Any, inner: Any, num_rows: int
) -> torch.Tensor:
    """Return an array of shape (num_rows, width, ...) with each member in ``[outer, inner]`` and zeros elsewhere."""
    owner, name = "BasisEmbedding", f"{prefix}_inner"
    by_row = _get_or_build_segments(owner, f"{prefix}_outer", outer, (num_members, len(members)), num_rows)
    _, slots, width = _find_slots(owner, name, by_row, inner)
    if members.is_cpu:
        each = members.dtype.itemsize * members.shape[1:].numel()
        check_memory(owner, f"{num_rows} * (max({name}) + 1)", num_rows * width, each)
    padded = members.new_zeros(num_rows * width, *members.shape[1:])
    return padded.index_copy_(0, slots, members).view(num_rows, width, *members.shape[1:])


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
            As for `trigraph.torch.basis_embedding`, or if an index is out of range, two members have the same slot, the
            arguments cannot be combined, or there is not enough memory for padding.
        """
        owner = "BasisEmbedding"
        _check_shape(owner, "rad_basis", rad_basis, "num_edges, num_radial", None, self.num_radial)
        if sph_basis is not None:
            _check_shape(owner, "sph_basis", sph_basis, "num_triplets, num_spherical", None, self.num_spherical)
            if sph_basis.dtype != rad_basis.dtype and not torch.is_autocast_enabled(rad_basis.device.type):
                expected = f"expected {rad_basis.dtype}, as for rad_basis"
                raise TypeError(f"{owner}: sph_basis has dtype {sph_basis.dtype}; {expected}")
        elif idx_sph_inner is not None:
            raise ValueError(f"{owner}: idx_sph_inner is given, but sph_basis is None; expected both or none")
        if sph_basis is not None and idx_sph_inner is None:
            if self.num_spherical is None:
                raise ValueError(
                    f"{owner}: num_spherical is None; expected an int for a sph_basis without idx_sph_inner"
                )
            if idx_rad_inner is not None:
                raise ValueError(f"{owner}: idx_rad_inner and sph_basis are given; expected idx_sph_inner, too")
            members = ("num_triplets", len(sph_basis))
            triplets = _get_or_build_segments(owner, "idx_sph_outer", idx_sph_outer, members, len(rad_basis))
            return basis_embedding(rad_basis, self.weight, sph_basis, triplets)
        rad_W1 = basis_embedding(rad_basis, self.weight)
        if self.padded and idx_rad_inner is not None:
            number = require_count(owner, "num_atoms", num_atoms)
            rad_W1 = _pad_members("idx_rad", rad_W1, "num_edges", idx_rad_outer, idx_rad_inner, number)
            rad_W1 = rad_W1.transpose(1, 2).flatten(2)
        if sph_basis is None:
            return rad_W1
        if self.padded:
            sph = _pad_members("idx_sph", sph_basis, "num_triplets", idx_sph_outer, idx_sph_inner, len(rad_basis))
            sph_basis = sph.transpose(1, 2)
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
        TypeError, ValueError, MemoryError
            As for `trigraph.torch.interaction_bilinear`, or if an index or the shape of a padded basis is wrong.
        """
        sizes, of_edges = (self.emb_size_interm, self.emb_size_in), (idx_agg_outer, idx_agg_inner)
        of_atoms = (idx_agg2_outer, idx_agg2_inner)
        return _compute_bilinear(self.weight, sizes, basis, m, of_edges, of_atoms, agg2_out_size)


def _compute_bilinear(
    weight: torch.Tensor,
    sizes: tuple[int, int],
    basis: Any,
    m: torch.Tensor,
    of_edges: tuple[Any, Any],
    of_atoms: tuple[Any, Any] = (None, None),
    num_atoms: Any = None,
) -> torch.Tensor:
    """Compute `EfficientInteractionBilinear`; `sizes` is (interm, emb_in), and index pairs are (outer, inner)."""
    owner, (interm, emb_in) = "EfficientInteractionBilinear", sizes
    if not isinstance(basis, (tuple, list)) or len(basis) != 2:
        raise TypeError(f"{owner}: basis is a {type(basis).__name__}; expected a tuple of two tensors")
    (rad_W1, sph), atoms = basis, None
    _check_shape(owner, "rad_W1", rad_W1, "num_edges, interm, num_spherical", None, interm, None)
    _check_shape(owner, "m", m, "num_triplets, emb_size_in", None, emb_in)
    if not isinstance(sph, torch.Tensor) or sph.dim() != 3:
        _check_shape(owner, "sph", sph, "num_edges, num_spherical, Kmax) or (num_triplets, num_spherical", None, None)
    padded, num_spherical = sph.dim() == 3, sph.shape[1]
    edges = ("num_edges", len(sph if padded else rad_W1))
    triplets = _get_or_build_segments(owner, "idx_agg_outer", of_edges[0], ("num_triplets", len(m)), edges[1])
    if of_atoms[0] is not None:  # torch.compile does not support `require_count`
        number = num_atoms if type(num_atoms) is int else require_count(owner, "agg2_out_size", num_atoms)
        atoms = _get_or_build_segments(owner, "idx_agg2_outer", of_atoms[0], edges, number)
    if padded and atoms is not None:
        rows, _, width = _find_slots(owner, "idx_agg2_inner", atoms, of_atoms[1])
        shape = atoms.num_segments, interm, width * num_spherical
        _check_shape(owner, "rad_W1", rad_W1, "agg2_out_size, interm, Kmax2*num_spherical", *shape)
        rad_W1 = rad_W1.unflatten(2, (width, num_spherical))[rows, :, of_atoms[1]]
    if padded:
        rows, _, width = _find_slots(owner, "idx_agg_inner", triplets, of_edges[1])
        _check_shape(owner, "sph", sph, "num_edges, num_spherical, Kmax", edges[1], num_spherical, width)
        sph = sph[rows, :, of_edges[1]]
    _check_shape(owner, "rad_W1", rad_W1, "num_edges, interm, num_spherical", edges[1], interm, num_spherical)
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
        emb_in, interm, _ = self.weight.shape
        weight = self.weight.permute(2, 1, 0).flatten(1)
        return _compute_bilinear(weight, (interm, emb_in), basis, m, (id_reduce, id_ragged_idx))


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
        owner, (source, target) = "PairInteraction", edge_index
        x_ba = self.down_projection(h)[source]
        if isinstance(rad_basis, torch.Tensor) and rad_basis.dim() == 3:
            by_atom = _get_or_build_segments(owner, "edge_index[1]", target, ("num_edges", len(source)), len(h))
            rows, _, width = _find_slots(owner, "target_neighbor_idx", by_atom, target_neighbor_idx)
            _check_shape(owner, "rad_basis", rad_basis, "num_atoms, emb_size_rbf, Kmax2", len(h), None, width)
            rad_basis = rad_basis[rows, :, target_neighbor_idx]
        _check_shape(owner, "rad_basis", rad_basis, "num_edges, emb_size_rbf", len(source), None)
        weight: torch.Tensor = self.bilinear.get_submodule("linear").weight  # type: ignore[assignment]
        sizes = (weight.shape[1] // x_ba.shape[1], x_ba.shape[1])
        basis = (rad_basis[:, :, None], x_ba.new_ones(len(x_ba), 1))
        each = torch.arange(len(x_ba), device=x_ba.device)
        x = _compute_bilinear(weight, sizes, basis, x_ba, (each, None), (target, None), len(h))
        return self.up_projection(self.scale_rbf_sum(x, ref=x_ba))
