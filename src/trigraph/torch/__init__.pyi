"""Written by ``python -m trigraph.stubs --write`` from the operator table; do not edit."""

from collections.abc import Mapping
from typing import Literal, NamedTuple, SupportsIndex, TypeAlias

from torch import Tensor

from trigraph import CSC, EdgeGraph, Segments
from trigraph.torch import nn as nn

__all__ = [
    "agg_edge_to_edge",
    "agg_weighted_n2n",
    "basis_embedding_radial",
    "basis_embedding_spherical",
    "basis_embedding_triplets",
    "gno_aggregate",
    "gno_kernel",
    "gno_message",
    "interaction_bilinear",
    "mha_gat_n2n",
    "nn",
    "radial_basis",
]

_Panel: TypeAlias = Literal["fortran", "fortran-reference", "pyref", "gpu", "gpu-host"]

def gno_kernel(
    coords: Tensor,
    params: Tensor,
    f_in: SupportsIndex,
    f_out: SupportsIndex,
    *,
    out: Tensor | Mapping[str, Tensor] | None = None,
    panel: _Panel | None = None,
) -> Tensor:
    """Per-edge kernel of a graph neural operator: a two-layer network of the edge's coordinates.

    Parameters
    ----------
    coords, params, f_in, f_out
        As of `trigraph.gno_kernel_fwd`, tensors of the CPU or of a CUDA device in place of arrays.
    out : tensor or mapping from field to tensor, optional
        Where to write; nothing is recorded for differentiation then.
    panel : str, optional
        As of `trigraph.gno_kernel_fwd`; derivatives are computed there, too.

    Returns
    -------
    tensor
        As of `trigraph.gno_kernel_fwd`, differentiable twice in every floating input.

    Raises
    ------
    TypeError, ValueError
        As `trigraph.gno_kernel_fwd`.
    RuntimeError
        Where a third derivative is asked for.

    Notes
    -----
    Source: athena's GNO layer (kernel of Li et al., 2020, arXiv:2003.03485, with one hidden layer), packed as
    there.
    """

def gno_aggregate(
    features: Tensor,
    kernel: Tensor,
    graph: CSC,
    f_in: SupportsIndex,
    f_out: SupportsIndex,
    *,
    out: Tensor | Mapping[str, Tensor] | None = None,
    panel: _Panel | None = None,
) -> Tensor:
    """Sum over in-edges of the edge's kernel matrix times the source's features.

    Parameters
    ----------
    features, kernel, graph, f_in, f_out
        As of `trigraph.gno_aggregate_fwd`, tensors of the CPU or of a CUDA device in place of arrays.
    out : tensor or mapping from field to tensor, optional
        Where to write; nothing is recorded for differentiation then.
    panel : str, optional
        As of `trigraph.gno_aggregate_fwd`; derivatives are computed there, too.

    Returns
    -------
    tensor
        As of `trigraph.gno_aggregate_fwd`, differentiable twice in every floating input.

    Raises
    ------
    TypeError, ValueError
        As `trigraph.gno_aggregate_fwd`.
    RuntimeError
        Where a third derivative is asked for.

    Notes
    -----
    Source: athena's GNO layer (kernel of Li et al., 2020, arXiv:2003.03485, with one hidden layer), packed as
    there.
    """

def gno_message(
    features: Tensor,
    coords: Tensor,
    params: Tensor,
    graph: CSC,
    f_in: SupportsIndex,
    f_out: SupportsIndex,
    *,
    out: Tensor | Mapping[str, Tensor] | None = None,
    panel: _Panel | None = None,
) -> Tensor:
    """Kernel and aggregation in one: the (num_edges, f_out*f_in) kernel is never stored.

    Parameters
    ----------
    features, coords, params, graph, f_in, f_out
        As of `trigraph.gno_message_fwd`, tensors of the CPU or of a CUDA device in place of arrays.
    out : tensor or mapping from field to tensor, optional
        Where to write; nothing is recorded for differentiation then.
    panel : str, optional
        As of `trigraph.gno_message_fwd`; derivatives are computed there, too.

    Returns
    -------
    tensor
        As of `trigraph.gno_message_fwd`, differentiable twice in every floating input.

    Raises
    ------
    TypeError, ValueError
        As `trigraph.gno_message_fwd`.
    RuntimeError
        Where a third derivative is asked for.

    Notes
    -----
    Source: athena's GNO layer (kernel of Li et al., 2020, arXiv:2003.03485, with one hidden layer), packed as
    there.
    """

class _RadialBasis(NamedTuple):
    rbf: Tensor
    sbf_rad: Tensor

def radial_basis(
    dist: Tensor,
    freq: Tensor,
    n_spherical: SupportsIndex = 7,
    envelope_exponent: SupportsIndex = 5,
    *,
    out: Tensor | Mapping[str, Tensor] | None = None,
    panel: _Panel | None = None,
) -> _RadialBasis:
    """Radial basis of DimeNet++: sines for the edges, spherical Bessel functions for the triplets.

    Parameters
    ----------
    dist, freq, n_spherical, envelope_exponent
        As of `trigraph.radial_basis_fwd`, tensors of the CPU or of a CUDA device in place of arrays.
    out : tensor or mapping from field to tensor, optional
        Where to write; nothing is recorded for differentiation then.
    panel : str, optional
        As of `trigraph.radial_basis_fwd`; derivatives are computed there, too.

    Returns
    -------
    NamedTuple of tensors
        As of `trigraph.radial_basis_fwd`, differentiable twice in every floating input.

    Raises
    ------
    TypeError, ValueError
        As `trigraph.radial_basis_fwd`.
    RuntimeError
        Where a third derivative is asked for.

    Notes
    -----
    Source: Gasteiger et al., DimeNet++ (2020), arXiv:2011.14115; triplet sum as in pylibcugraphops.dimenet.
    """

def agg_edge_to_edge(
    vec: Tensor,
    rbf: Tensor,
    embedding: Tensor,
    weights: Tensor,
    graph: EdgeGraph,
    n_spherical: SupportsIndex = 7,
    n_radial: SupportsIndex = 6,
    exclude: Literal[None, "node", "edge"] = "node",
    *,
    out: Tensor | Mapping[str, Tensor] | None = None,
    panel: _Panel | None = None,
) -> Tensor:
    """Edge-to-edge aggregation of DimeNet++: triplets k -> j -> i weighted by a basis in their angle.

    Parameters
    ----------
    vec, rbf, embedding, weights, graph, n_spherical, n_radial, exclude
        As of `trigraph.agg_edge_to_edge_fwd`, tensors of the CPU or of a CUDA device in place of arrays.
    out : tensor or mapping from field to tensor, optional
        Where to write; nothing is recorded for differentiation then.
    panel : str, optional
        As of `trigraph.agg_edge_to_edge_fwd`; derivatives are computed there, too.

    Returns
    -------
    tensor
        As of `trigraph.agg_edge_to_edge_fwd`, differentiable twice in every floating input.

    Raises
    ------
    TypeError, ValueError
        As `trigraph.agg_edge_to_edge_fwd`.
    RuntimeError
        Where a third derivative is asked for.

    Notes
    -----
    Source: Gasteiger et al., DimeNet++ (2020), arXiv:2011.14115; triplet sum as in pylibcugraphops.dimenet.
    """

class _MhaGatN2n(NamedTuple):
    output_embedding: Tensor
    softmax_scores: Tensor

def mha_gat_n2n(
    src_embedding: Tensor,
    dst_embedding: Tensor,
    attention_weights: Tensor,
    graph: CSC,
    num_heads: SupportsIndex,
    concat_heads: Literal[False, True] = True,
    activation: Literal["linear", "ReLU", "LeakyReLU", "ELU", "sigmoid", "tanh"] = "LeakyReLU",
    negative_slope: float = 0.2,
    edge_embedding: Tensor | None = None,
    *,
    out: Tensor | Mapping[str, Tensor] | None = None,
    panel: _Panel | None = None,
) -> _MhaGatN2n:
    """Multi-head graph attention from source to destination nodes.

    Parameters
    ----------
    src_embedding, dst_embedding, attention_weights, graph, num_heads, concat_heads, activation, negative_slope,
    edge_embedding
        As of `trigraph.mha_gat_n2n_fwd`, tensors of the CPU or of a CUDA device in place of arrays.
    out : tensor or mapping from field to tensor, optional
        Where to write; nothing is recorded for differentiation then.
    panel : str, optional
        As of `trigraph.mha_gat_n2n_fwd`; derivatives are computed there, too.

    Returns
    -------
    NamedTuple of tensors
        As of `trigraph.mha_gat_n2n_fwd`, differentiable twice in every floating input.
        Constants: softmax_scores.

    Raises
    ------
    TypeError, ValueError
        As `trigraph.mha_gat_n2n_fwd`.
    RuntimeError
        Where a third derivative is asked for.

    Notes
    -----
    Source: Velickovic et al. (2018), arXiv:1710.10903; parameters as in pylibcugraphops' mha_gat_n2n.
    """

class _AggWeightedN2n(NamedTuple):
    output_embedding: Tensor
    node_degree: Tensor | None
    output_extrema_location: Tensor | None

def agg_weighted_n2n(
    embedding: Tensor,
    edge_weight: Tensor | None,
    graph: CSC,
    op: Literal["sum", "mean", "min", "max"] = "sum",
    mean_by: Literal["weight", "count"] = "weight",
    *,
    out: Tensor | Mapping[str, Tensor] | None = None,
    panel: _Panel | None = None,
) -> _AggWeightedN2n:
    """Sum, mean, minimum or maximum over in-edges of the edge's weight times the source's embedding.

    Parameters
    ----------
    embedding, edge_weight, graph, op, mean_by
        As of `trigraph.agg_weighted_n2n_fwd`, tensors of the CPU or of a CUDA device in place of arrays.
    out : tensor or mapping from field to tensor, optional
        Where to write; nothing is recorded for differentiation then.
    panel : str, optional
        As of `trigraph.agg_weighted_n2n_fwd`; derivatives are computed there, too.

    Returns
    -------
    NamedTuple of tensors
        As of `trigraph.agg_weighted_n2n_fwd`, differentiable twice in every floating input.
        Constants: node_degree, output_extrema_location.

    Raises
    ------
    TypeError, ValueError
        As `trigraph.agg_weighted_n2n_fwd`.
    RuntimeError
        Where a third derivative is asked for.

    Notes
    -----
    Source: Weighted sum, mean, minimum and maximum over in-edges, as in pylibcugraphops' agg_weighted_n2n.
    """

def basis_embedding_radial(
    rad_basis: Tensor,
    weight: Tensor,
    *,
    out: Tensor | Mapping[str, Tensor] | None = None,
    panel: _Panel | None = None,
) -> Tensor:
    """Radial basis times a weight: BasisEmbedding without a spherical part.

    Parameters
    ----------
    rad_basis, weight
        As of `trigraph.basis_embedding_radial_fwd`, tensors of the CPU or of a CUDA device in place of arrays.
    out : tensor or mapping from field to tensor, optional
        Where to write; nothing is recorded for differentiation then.
    panel : str, optional
        As of `trigraph.basis_embedding_radial_fwd`; derivatives are computed there, too.

    Returns
    -------
    tensor
        As of `trigraph.basis_embedding_radial_fwd`, differentiable twice in every floating input.

    Raises
    ------
    TypeError, ValueError
        As `trigraph.basis_embedding_radial_fwd`.
    RuntimeError
        Where a third derivative is asked for.

    Notes
    -----
    Source: Gasteiger et al., GemNet-OC (2022), arXiv:2204.02782; weights and results of fairchem's BasisEmbedding
    and EfficientInteractionBilinear, ragged instead of padded.
    """

def basis_embedding_spherical(
    rad_basis: Tensor,
    weight: Tensor,
    *,
    out: Tensor | Mapping[str, Tensor] | None = None,
    panel: _Panel | None = None,
) -> Tensor:
    """Radial basis times a weight for each spherical function: BasisEmbedding's first factor.

    Parameters
    ----------
    rad_basis, weight
        As of `trigraph.basis_embedding_spherical_fwd`, tensors of the CPU or of a CUDA device in place of arrays.
    out : tensor or mapping from field to tensor, optional
        Where to write; nothing is recorded for differentiation then.
    panel : str, optional
        As of `trigraph.basis_embedding_spherical_fwd`; derivatives are computed there, too.

    Returns
    -------
    tensor
        As of `trigraph.basis_embedding_spherical_fwd`, differentiable twice in every floating input.

    Raises
    ------
    TypeError, ValueError
        As `trigraph.basis_embedding_spherical_fwd`.
    RuntimeError
        Where a third derivative is asked for.

    Notes
    -----
    Source: Gasteiger et al., GemNet-OC (2022), arXiv:2204.02782; weights and results of fairchem's BasisEmbedding
    and EfficientInteractionBilinear, ragged instead of padded.
    """

def basis_embedding_triplets(
    rad_basis: Tensor,
    weight: Tensor,
    sph_basis: Tensor,
    triplets: Segments | Tensor,
    *,
    out: Tensor | Mapping[str, Tensor] | None = None,
    panel: _Panel | None = None,
) -> Tensor:
    """Embedded radial and spherical basis of each triplet: BasisEmbedding with a spherical basis.

    Parameters
    ----------
    rad_basis, weight, sph_basis, triplets
        As of `trigraph.basis_embedding_triplets_fwd`, tensors of the CPU or of a CUDA device in place of arrays.
    out : tensor or mapping from field to tensor, optional
        Where to write; nothing is recorded for differentiation then.
    panel : str, optional
        As of `trigraph.basis_embedding_triplets_fwd`; derivatives are computed there, too.

    Returns
    -------
    tensor
        As of `trigraph.basis_embedding_triplets_fwd`, differentiable twice in every floating input.

    Raises
    ------
    TypeError, ValueError
        As `trigraph.basis_embedding_triplets_fwd`.
    RuntimeError
        Where a third derivative is asked for.

    Notes
    -----
    Source: Gasteiger et al., GemNet-OC (2022), arXiv:2204.02782; weights and results of fairchem's BasisEmbedding
    and EfficientInteractionBilinear, ragged instead of padded.
    """

def interaction_bilinear(
    rad_W1: Tensor,
    sph: Tensor,
    m: Tensor,
    weight: Tensor,
    triplets: Segments | Tensor,
    atoms: Segments | None = None,
    idx_in: Segments | Tensor | None = None,
    *,
    out: Tensor | Mapping[str, Tensor] | None = None,
    panel: _Panel | None = None,
) -> Tensor:
    """Efficient bilinear interaction of GemNet-OC: triplets (or quadruplets) to edges, and on to atoms.

    Parameters
    ----------
    rad_W1, sph, m, weight, triplets, atoms, idx_in
        As of `trigraph.interaction_bilinear_fwd`, tensors of the CPU or of a CUDA device in place of arrays.
    out : tensor or mapping from field to tensor, optional
        Where to write; nothing is recorded for differentiation then.
    panel : str, optional
        As of `trigraph.interaction_bilinear_fwd`; derivatives are computed there, too.

    Returns
    -------
    tensor
        As of `trigraph.interaction_bilinear_fwd`, differentiable twice in every floating input.

    Raises
    ------
    TypeError, ValueError
        As `trigraph.interaction_bilinear_fwd`.
    RuntimeError
        Where a third derivative is asked for.

    Notes
    -----
    Source: Gasteiger et al., GemNet-OC (2022), arXiv:2204.02782; weights and results of fairchem's BasisEmbedding
    and EfficientInteractionBilinear, ragged instead of padded.
    """
