"""Written by ``python -m trigraph.stubs --write`` from the operator table; do not edit."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, SupportsIndex, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from trigraph.distributed import owners as owners
from trigraph.distributed.divide import partition as partition
from trigraph.distributed.divide import partition_pieces as partition_pieces
from trigraph.distributed.exchange import Halo as Halo
from trigraph.distributed.partition import Partition as Partition
from trigraph.results import (
    AggEdgeToEdgeBwd,
    AggEdgeToEdgeBwd2,
    AggEdgeToEdgeBwd2Main,
    AggWeightedN2nBwd,
    AggWeightedN2nBwd2,
    AggWeightedN2nFwd,
    BasisEmbeddingRadialBwd,
    BasisEmbeddingRadialBwd2,
    BasisEmbeddingSphericalBwd,
    BasisEmbeddingSphericalBwd2,
    BasisEmbeddingTripletsBwd,
    BasisEmbeddingTripletsBwd2,
    GnoAggregateBwd,
    GnoAggregateBwd2,
    GnoKernelBwd,
    GnoKernelBwd2,
    GnoMessageBwd,
    GnoMessageBwd2,
    InteractionBilinearBwd,
    InteractionBilinearBwd2,
    MhaGatN2nBwd,
    MhaGatN2nBwd2,
    MhaGatN2nFwd,
    RadialBasisBwd,
    RadialBasisBwd2,
    RadialBasisFwd,
)

_A = TypeVar("_A", NDArray[np.float32], NDArray[np.float64])
_Panel: TypeAlias = Literal["fortran", "fortran-reference", "pyref", "gpu", "gpu-host"]

_GnoKernelFwdField: TypeAlias = Literal["kernel"]

def gno_kernel_fwd(
    coords: _A,
    params: _A,
    f_in: SupportsIndex,
    f_out: SupportsIndex,
    *,
    partition: Partition,
    out: _A | Mapping[_GnoKernelFwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> _A:
    """Per-edge kernel of a graph neural operator: a two-layer network of the edge's coordinates.

    Parameters
    ----------
    coords, params, f_in, f_out, out, panel
        As of `trigraph.gno_kernel_fwd`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.
    partition : Partition
        Of the edges that the rows belong to.

    Returns
    -------
    array
        As `trigraph.gno_kernel_fwd`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.gno_kernel_fwd`; on all ranks where arguments differ or one has met an error.
    """

_GnoKernelBwdField: TypeAlias = Literal["coords", "params"]

def gno_kernel_bwd(
    grad_kernel: _A,
    coords: _A,
    params: _A,
    f_in: SupportsIndex,
    f_out: SupportsIndex,
    wrt: _GnoKernelBwdField | Iterable[_GnoKernelBwdField] | None = None,
    *,
    partition: Partition,
    out: _A | Mapping[_GnoKernelBwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> GnoKernelBwd[_A]:
    """Per-edge kernel of a graph neural operator: a two-layer network of the edge's coordinates.

    Parameters
    ----------
    grad_kernel, coords, params, f_in, f_out, wrt, out, panel
        As of `trigraph.gno_kernel_bwd`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.
    partition : Partition
        Of the edges that the rows belong to.

    Returns
    -------
    NamedTuple
        As `trigraph.gno_kernel_bwd`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.gno_kernel_bwd`; on all ranks where arguments differ or one has met an error.
    """

_GnoKernelBwd2Field: TypeAlias = Literal["grad_kernel", "coords", "params"]

def gno_kernel_bwd2(
    gg_coords: _A | None,
    gg_params: _A | None,
    grad_kernel: _A,
    coords: _A,
    params: _A,
    f_in: SupportsIndex,
    f_out: SupportsIndex,
    wrt: _GnoKernelBwd2Field | Iterable[_GnoKernelBwd2Field] | None = None,
    *,
    partition: Partition,
    out: _A | Mapping[_GnoKernelBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> GnoKernelBwd2[_A]:
    """Per-edge kernel of a graph neural operator: a two-layer network of the edge's coordinates.

    Parameters
    ----------
    gg_coords, gg_params, grad_kernel, coords, params, f_in, f_out, wrt, out, panel
        As of `trigraph.gno_kernel_bwd2`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.
    partition : Partition
        Of the edges that the rows belong to.

    Returns
    -------
    NamedTuple
        As `trigraph.gno_kernel_bwd2`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.gno_kernel_bwd2`; on all ranks where arguments differ or one has met an error.
    """

_GnoAggregateFwdField: TypeAlias = Literal["message"]

def gno_aggregate_fwd(
    features: _A,
    kernel: _A,
    graph: Partition,
    f_in: SupportsIndex,
    f_out: SupportsIndex,
    *,
    out: _A | Mapping[_GnoAggregateFwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> _A:
    """Sum over in-edges of the edge's kernel matrix times the source's features.

    Parameters
    ----------
    features, kernel, graph, f_in, f_out, out, panel
        As of `trigraph.gno_aggregate_fwd`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.

    Returns
    -------
    array
        As `trigraph.gno_aggregate_fwd`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.gno_aggregate_fwd`; on all ranks where arguments differ or one has met an error.
    """

_GnoAggregateBwdField: TypeAlias = Literal["features", "kernel"]

def gno_aggregate_bwd(
    grad_message: _A,
    features: _A,
    kernel: _A,
    graph: Partition,
    f_in: SupportsIndex,
    f_out: SupportsIndex,
    wrt: _GnoAggregateBwdField | Iterable[_GnoAggregateBwdField] | None = None,
    *,
    out: _A | Mapping[_GnoAggregateBwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> GnoAggregateBwd[_A]:
    """Sum over in-edges of the edge's kernel matrix times the source's features.

    Parameters
    ----------
    grad_message, features, kernel, graph, f_in, f_out, wrt, out, panel
        As of `trigraph.gno_aggregate_bwd`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.

    Returns
    -------
    NamedTuple
        As `trigraph.gno_aggregate_bwd`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.gno_aggregate_bwd`; on all ranks where arguments differ or one has met an error.
    """

_GnoAggregateBwd2Field: TypeAlias = Literal["grad_message", "features", "kernel"]

def gno_aggregate_bwd2(
    gg_features: _A | None,
    gg_kernel: _A | None,
    grad_message: _A,
    features: _A,
    kernel: _A,
    graph: Partition,
    f_in: SupportsIndex,
    f_out: SupportsIndex,
    wrt: _GnoAggregateBwd2Field | Iterable[_GnoAggregateBwd2Field] | None = None,
    *,
    out: _A | Mapping[_GnoAggregateBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> GnoAggregateBwd2[_A]:
    """Sum over in-edges of the edge's kernel matrix times the source's features.

    Parameters
    ----------
    gg_features, gg_kernel, grad_message, features, kernel, graph, f_in, f_out, wrt, out, panel
        As of `trigraph.gno_aggregate_bwd2`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.

    Returns
    -------
    NamedTuple
        As `trigraph.gno_aggregate_bwd2`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.gno_aggregate_bwd2`; on all ranks where arguments differ or one has met an error.
    """

_GnoMessageFwdField: TypeAlias = Literal["message"]

def gno_message_fwd(
    features: _A,
    coords: _A,
    params: _A,
    graph: Partition,
    f_in: SupportsIndex,
    f_out: SupportsIndex,
    *,
    out: _A | Mapping[_GnoMessageFwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> _A:
    """Kernel and aggregation in one: the (num_edges, f_out*f_in) kernel is never stored.

    Parameters
    ----------
    features, coords, params, graph, f_in, f_out, out, panel
        As of `trigraph.gno_message_fwd`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.

    Returns
    -------
    array
        As `trigraph.gno_message_fwd`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.gno_message_fwd`; on all ranks where arguments differ or one has met an error.
    """

_GnoMessageBwdField: TypeAlias = Literal["features", "coords", "params"]

def gno_message_bwd(
    grad_message: _A,
    features: _A,
    coords: _A,
    params: _A,
    graph: Partition,
    f_in: SupportsIndex,
    f_out: SupportsIndex,
    wrt: _GnoMessageBwdField | Iterable[_GnoMessageBwdField] | None = None,
    *,
    out: _A | Mapping[_GnoMessageBwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> GnoMessageBwd[_A]:
    """Kernel and aggregation in one: the (num_edges, f_out*f_in) kernel is never stored.

    Parameters
    ----------
    grad_message, features, coords, params, graph, f_in, f_out, wrt, out, panel
        As of `trigraph.gno_message_bwd`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.

    Returns
    -------
    NamedTuple
        As `trigraph.gno_message_bwd`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.gno_message_bwd`; on all ranks where arguments differ or one has met an error.
    """

_GnoMessageBwd2Field: TypeAlias = Literal["grad_message", "features", "coords", "params"]

def gno_message_bwd2(
    gg_features: _A | None,
    gg_coords: _A | None,
    gg_params: _A | None,
    grad_message: _A,
    features: _A,
    coords: _A,
    params: _A,
    graph: Partition,
    f_in: SupportsIndex,
    f_out: SupportsIndex,
    wrt: _GnoMessageBwd2Field | Iterable[_GnoMessageBwd2Field] | None = None,
    *,
    out: _A | Mapping[_GnoMessageBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> GnoMessageBwd2[_A]:
    """Kernel and aggregation in one: the (num_edges, f_out*f_in) kernel is never stored.

    Parameters
    ----------
    gg_features, gg_coords, gg_params, grad_message, features, coords, params, graph, f_in, f_out, wrt, out, panel
        As of `trigraph.gno_message_bwd2`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.

    Returns
    -------
    NamedTuple
        As `trigraph.gno_message_bwd2`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.gno_message_bwd2`; on all ranks where arguments differ or one has met an error.
    """

_RadialBasisFwdField: TypeAlias = Literal["rbf", "sbf_rad"]

def radial_basis_fwd(
    dist: _A,
    freq: _A,
    n_spherical: SupportsIndex = 7,
    envelope_exponent: SupportsIndex = 5,
    *,
    partition: Partition,
    out: _A | Mapping[_RadialBasisFwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> RadialBasisFwd[_A]:
    """Radial basis of DimeNet++: sines for the edges, spherical Bessel functions for the triplets.

    Parameters
    ----------
    dist, freq, n_spherical, envelope_exponent, out, panel
        As of `trigraph.radial_basis_fwd`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.
    partition : Partition
        Of the edges that the rows belong to.

    Returns
    -------
    NamedTuple
        As `trigraph.radial_basis_fwd`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.radial_basis_fwd`; on all ranks where arguments differ or one has met an error.
    """

_RadialBasisBwdField: TypeAlias = Literal["dist", "freq"]

def radial_basis_bwd(
    grad_rbf: _A,
    grad_sbf_rad: _A,
    dist: _A,
    freq: _A,
    n_spherical: SupportsIndex = 7,
    envelope_exponent: SupportsIndex = 5,
    wrt: _RadialBasisBwdField | Iterable[_RadialBasisBwdField] | None = None,
    *,
    partition: Partition,
    out: _A | Mapping[_RadialBasisBwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> RadialBasisBwd[_A]:
    """Radial basis of DimeNet++: sines for the edges, spherical Bessel functions for the triplets.

    Parameters
    ----------
    grad_rbf, grad_sbf_rad, dist, freq, n_spherical, envelope_exponent, wrt, out, panel
        As of `trigraph.radial_basis_bwd`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.
    partition : Partition
        Of the edges that the rows belong to.

    Returns
    -------
    NamedTuple
        As `trigraph.radial_basis_bwd`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.radial_basis_bwd`; on all ranks where arguments differ or one has met an error.
    """

_RadialBasisBwd2Field: TypeAlias = Literal["grad_rbf", "grad_sbf_rad", "dist", "freq"]

def radial_basis_bwd2(
    gg_dist: _A | None,
    gg_freq: _A | None,
    grad_rbf: _A,
    grad_sbf_rad: _A,
    dist: _A,
    freq: _A,
    n_spherical: SupportsIndex = 7,
    envelope_exponent: SupportsIndex = 5,
    wrt: _RadialBasisBwd2Field | Iterable[_RadialBasisBwd2Field] | None = None,
    *,
    partition: Partition,
    out: _A | Mapping[_RadialBasisBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> RadialBasisBwd2[_A]:
    """Radial basis of DimeNet++: sines for the edges, spherical Bessel functions for the triplets.

    Parameters
    ----------
    gg_dist, gg_freq, grad_rbf, grad_sbf_rad, dist, freq, n_spherical, envelope_exponent, wrt, out, panel
        As of `trigraph.radial_basis_bwd2`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.
    partition : Partition
        Of the edges that the rows belong to.

    Returns
    -------
    NamedTuple
        As `trigraph.radial_basis_bwd2`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.radial_basis_bwd2`; on all ranks where arguments differ or one has met an error.
    """

_AggEdgeToEdgeFwdField: TypeAlias = Literal["out"]

def agg_edge_to_edge_fwd(
    vec: _A,
    rbf: _A,
    embedding: _A,
    weights: _A,
    graph: Partition,
    n_spherical: SupportsIndex = 7,
    n_radial: SupportsIndex = 6,
    exclude: Literal[None, "node", "edge"] = "node",
    *,
    out: _A | Mapping[_AggEdgeToEdgeFwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> _A:
    """Edge-to-edge aggregation of DimeNet++: triplets k -> j -> i weighted by a basis in their angle.

    Parameters
    ----------
    vec, rbf, embedding, weights, graph, n_spherical, n_radial, exclude, out, panel
        As of `trigraph.agg_edge_to_edge_fwd`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.

    Returns
    -------
    array
        As `trigraph.agg_edge_to_edge_fwd`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.agg_edge_to_edge_fwd`; on all ranks where arguments differ or one has met an error.
    """

_AggEdgeToEdgeBwdField: TypeAlias = Literal["vec", "rbf", "embedding", "weights"]

def agg_edge_to_edge_bwd(
    grad_out: _A,
    vec: _A,
    rbf: _A,
    embedding: _A,
    weights: _A,
    graph: Partition,
    n_spherical: SupportsIndex = 7,
    n_radial: SupportsIndex = 6,
    exclude: Literal[None, "node", "edge"] = "node",
    wrt: _AggEdgeToEdgeBwdField | Iterable[_AggEdgeToEdgeBwdField] | None = None,
    *,
    out: _A | Mapping[_AggEdgeToEdgeBwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> AggEdgeToEdgeBwd[_A]:
    """Edge-to-edge aggregation of DimeNet++: triplets k -> j -> i weighted by a basis in their angle.

    Parameters
    ----------
    grad_out, vec, rbf, embedding, weights, graph, n_spherical, n_radial, exclude, wrt, out, panel
        As of `trigraph.agg_edge_to_edge_bwd`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.

    Returns
    -------
    NamedTuple
        As `trigraph.agg_edge_to_edge_bwd`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.agg_edge_to_edge_bwd`; on all ranks where arguments differ or one has met an error.
    """

_AggEdgeToEdgeBwd2Field: TypeAlias = Literal["grad_out", "vec", "rbf", "embedding", "weights"]

def agg_edge_to_edge_bwd2(
    gg_vec: _A | None,
    gg_rbf: _A | None,
    gg_embedding: _A | None,
    gg_weights: _A | None,
    grad_out: _A,
    vec: _A,
    rbf: _A,
    embedding: _A,
    weights: _A,
    graph: Partition,
    n_spherical: SupportsIndex = 7,
    n_radial: SupportsIndex = 6,
    exclude: Literal[None, "node", "edge"] = "node",
    wrt: _AggEdgeToEdgeBwd2Field | Iterable[_AggEdgeToEdgeBwd2Field] | None = None,
    *,
    out: _A | Mapping[_AggEdgeToEdgeBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> AggEdgeToEdgeBwd2[_A]:
    """Edge-to-edge aggregation of DimeNet++: triplets k -> j -> i weighted by a basis in their angle.

    Parameters
    ----------
    gg_vec, gg_rbf, gg_embedding, gg_weights, grad_out, vec, rbf, embedding, weights, graph, n_spherical, n_radial,
    exclude, wrt, out, panel
        As of `trigraph.agg_edge_to_edge_bwd2`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.

    Returns
    -------
    NamedTuple
        As `trigraph.agg_edge_to_edge_bwd2`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.agg_edge_to_edge_bwd2`; on all ranks where arguments differ or one has met an error.
    """

_MhaGatN2nFwdField: TypeAlias = Literal["output_embedding", "softmax_scores"]

def mha_gat_n2n_fwd(
    src_embedding: _A,
    dst_embedding: _A,
    attention_weights: _A,
    graph: Partition,
    num_heads: SupportsIndex,
    concat_heads: Literal[False, True] = True,
    activation: Literal["linear", "ReLU", "LeakyReLU", "ELU", "sigmoid", "tanh"] = "LeakyReLU",
    negative_slope: float = 0.2,
    edge_embedding: _A | None = None,
    *,
    out: _A | Mapping[_MhaGatN2nFwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> MhaGatN2nFwd[_A]:
    """Multi-head graph attention from source to destination nodes.

    Parameters
    ----------
    src_embedding, dst_embedding, attention_weights, graph, num_heads, concat_heads, activation, negative_slope,
    edge_embedding, out, panel
        As of `trigraph.mha_gat_n2n_fwd`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.

    Returns
    -------
    NamedTuple
        As `trigraph.mha_gat_n2n_fwd`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.mha_gat_n2n_fwd`; on all ranks where arguments differ or one has met an error.
    """

_MhaGatN2nBwdField: TypeAlias = Literal["src_embedding", "dst_embedding", "attention_weights", "edge_embedding"]

def mha_gat_n2n_bwd(
    grad_output_embedding: _A,
    src_embedding: _A,
    dst_embedding: _A,
    attention_weights: _A,
    graph: Partition,
    num_heads: SupportsIndex,
    concat_heads: Literal[False, True] = True,
    activation: Literal["linear", "ReLU", "LeakyReLU", "ELU", "sigmoid", "tanh"] = "LeakyReLU",
    negative_slope: float = 0.2,
    edge_embedding: _A | None = None,
    softmax_scores: _A | None = None,
    wrt: _MhaGatN2nBwdField | Iterable[_MhaGatN2nBwdField] | None = None,
    *,
    out: _A | Mapping[_MhaGatN2nBwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> MhaGatN2nBwd[_A]:
    """Multi-head graph attention from source to destination nodes.

    Parameters
    ----------
    grad_output_embedding, src_embedding, dst_embedding, attention_weights, graph, num_heads, concat_heads,
    activation, negative_slope, edge_embedding, softmax_scores, wrt, out, panel
        As of `trigraph.mha_gat_n2n_bwd`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.

    Returns
    -------
    NamedTuple
        As `trigraph.mha_gat_n2n_bwd`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.mha_gat_n2n_bwd`; on all ranks where arguments differ or one has met an error.
    """

_MhaGatN2nBwd2Field: TypeAlias = Literal[
    "grad_output_embedding", "src_embedding", "dst_embedding", "attention_weights", "edge_embedding"
]

def mha_gat_n2n_bwd2(
    gg_src_embedding: _A | None,
    gg_dst_embedding: _A | None,
    gg_attention_weights: _A | None,
    gg_edge_embedding: _A | None,
    grad_output_embedding: _A,
    src_embedding: _A,
    dst_embedding: _A,
    attention_weights: _A,
    graph: Partition,
    num_heads: SupportsIndex,
    concat_heads: Literal[False, True] = True,
    activation: Literal["linear", "ReLU", "LeakyReLU", "ELU", "sigmoid", "tanh"] = "LeakyReLU",
    negative_slope: float = 0.2,
    edge_embedding: _A | None = None,
    wrt: _MhaGatN2nBwd2Field | Iterable[_MhaGatN2nBwd2Field] | None = None,
    *,
    out: _A | Mapping[_MhaGatN2nBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> MhaGatN2nBwd2[_A]:
    """Multi-head graph attention from source to destination nodes.

    Parameters
    ----------
    gg_src_embedding, gg_dst_embedding, gg_attention_weights, gg_edge_embedding, grad_output_embedding,
    src_embedding, dst_embedding, attention_weights, graph, num_heads, concat_heads, activation, negative_slope,
    edge_embedding, wrt, out, panel
        As of `trigraph.mha_gat_n2n_bwd2`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.

    Returns
    -------
    NamedTuple
        As `trigraph.mha_gat_n2n_bwd2`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.mha_gat_n2n_bwd2`; on all ranks where arguments differ or one has met an error.
    """

_AggWeightedN2nFwdField: TypeAlias = Literal["output_embedding", "node_degree", "output_extrema_location"]

def agg_weighted_n2n_fwd(
    embedding: _A,
    edge_weight: _A | None,
    graph: Partition,
    op: Literal["sum", "mean", "min", "max"] = "sum",
    mean_by: Literal["weight", "count"] = "weight",
    *,
    out: _A | Mapping[_AggWeightedN2nFwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> AggWeightedN2nFwd[_A]:
    """Sum, mean, minimum or maximum over in-edges of the edge's weight times the source's embedding.

    Parameters
    ----------
    embedding, edge_weight, graph, op, mean_by, out, panel
        As of `trigraph.agg_weighted_n2n_fwd`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.

    Returns
    -------
    NamedTuple
        As `trigraph.agg_weighted_n2n_fwd`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.agg_weighted_n2n_fwd`; on all ranks where arguments differ or one has met an error.
    """

_AggWeightedN2nBwdField: TypeAlias = Literal["embedding", "edge_weight"]

def agg_weighted_n2n_bwd(
    grad_output_embedding: _A,
    embedding: _A,
    edge_weight: _A | None,
    graph: Partition,
    op: Literal["sum", "mean", "min", "max"] = "sum",
    mean_by: Literal["weight", "count"] = "weight",
    output_embedding: _A | None = None,
    node_degree: _A | None = None,
    output_extrema_location: NDArray[Any] | None = None,
    wrt: _AggWeightedN2nBwdField | Iterable[_AggWeightedN2nBwdField] | None = None,
    *,
    out: _A | Mapping[_AggWeightedN2nBwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> AggWeightedN2nBwd[_A]:
    """Sum, mean, minimum or maximum over in-edges of the edge's weight times the source's embedding.

    Parameters
    ----------
    grad_output_embedding, embedding, edge_weight, graph, op, mean_by, output_embedding, node_degree,
    output_extrema_location, wrt, out, panel
        As of `trigraph.agg_weighted_n2n_bwd`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.

    Returns
    -------
    NamedTuple
        As `trigraph.agg_weighted_n2n_bwd`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.agg_weighted_n2n_bwd`; on all ranks where arguments differ or one has met an error.
    """

_AggWeightedN2nBwd2Field: TypeAlias = Literal["grad_output_embedding", "embedding", "edge_weight"]

def agg_weighted_n2n_bwd2(
    gg_embedding: _A | None,
    gg_edge_weight: _A | None,
    grad_output_embedding: _A,
    embedding: _A,
    edge_weight: _A | None,
    graph: Partition,
    op: Literal["sum", "mean", "min", "max"] = "sum",
    mean_by: Literal["weight", "count"] = "weight",
    wrt: _AggWeightedN2nBwd2Field | Iterable[_AggWeightedN2nBwd2Field] | None = None,
    *,
    out: _A | Mapping[_AggWeightedN2nBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> AggWeightedN2nBwd2[_A]:
    """Sum, mean, minimum or maximum over in-edges of the edge's weight times the source's embedding.

    Parameters
    ----------
    gg_embedding, gg_edge_weight, grad_output_embedding, embedding, edge_weight, graph, op, mean_by, wrt, out, panel
        As of `trigraph.agg_weighted_n2n_bwd2`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.

    Returns
    -------
    NamedTuple
        As `trigraph.agg_weighted_n2n_bwd2`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.agg_weighted_n2n_bwd2`; on all ranks where arguments differ or one has met an error.
    """

_BasisEmbeddingRadialFwdField: TypeAlias = Literal["rad_W1"]

def basis_embedding_radial_fwd(
    rad_basis: _A,
    weight: _A,
    *,
    partition: Partition,
    out: _A | Mapping[_BasisEmbeddingRadialFwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> _A:
    """Radial basis times a weight: BasisEmbedding without a spherical part.

    Parameters
    ----------
    rad_basis, weight, out, panel
        As of `trigraph.basis_embedding_radial_fwd`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.
    partition : Partition
        Of the edges that the rows belong to.

    Returns
    -------
    array
        As `trigraph.basis_embedding_radial_fwd`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.basis_embedding_radial_fwd`; on all ranks where arguments differ or one has met an error.
    """

_BasisEmbeddingRadialBwdField: TypeAlias = Literal["rad_basis", "weight"]

def basis_embedding_radial_bwd(
    grad_rad_W1: _A,
    rad_basis: _A,
    weight: _A,
    wrt: _BasisEmbeddingRadialBwdField | Iterable[_BasisEmbeddingRadialBwdField] | None = None,
    *,
    partition: Partition,
    out: _A | Mapping[_BasisEmbeddingRadialBwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> BasisEmbeddingRadialBwd[_A]:
    """Radial basis times a weight: BasisEmbedding without a spherical part.

    Parameters
    ----------
    grad_rad_W1, rad_basis, weight, wrt, out, panel
        As of `trigraph.basis_embedding_radial_bwd`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.
    partition : Partition
        Of the edges that the rows belong to.

    Returns
    -------
    NamedTuple
        As `trigraph.basis_embedding_radial_bwd`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.basis_embedding_radial_bwd`; on all ranks where arguments differ or one has met an error.
    """

_BasisEmbeddingRadialBwd2Field: TypeAlias = Literal["grad_rad_W1", "rad_basis", "weight"]

def basis_embedding_radial_bwd2(
    gg_rad_basis: _A | None,
    gg_weight: _A | None,
    grad_rad_W1: _A,
    rad_basis: _A,
    weight: _A,
    wrt: _BasisEmbeddingRadialBwd2Field | Iterable[_BasisEmbeddingRadialBwd2Field] | None = None,
    *,
    partition: Partition,
    out: _A | Mapping[_BasisEmbeddingRadialBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> BasisEmbeddingRadialBwd2[_A]:
    """Radial basis times a weight: BasisEmbedding without a spherical part.

    Parameters
    ----------
    gg_rad_basis, gg_weight, grad_rad_W1, rad_basis, weight, wrt, out, panel
        As of `trigraph.basis_embedding_radial_bwd2`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.
    partition : Partition
        Of the edges that the rows belong to.

    Returns
    -------
    NamedTuple
        As `trigraph.basis_embedding_radial_bwd2`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.basis_embedding_radial_bwd2`; on all ranks where arguments differ or one has met an error.
    """

_BasisEmbeddingSphericalFwdField: TypeAlias = Literal["rad_W1"]

def basis_embedding_spherical_fwd(
    rad_basis: _A,
    weight: _A,
    *,
    partition: Partition,
    out: _A | Mapping[_BasisEmbeddingSphericalFwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> _A:
    """Radial basis times a weight for each spherical function: BasisEmbedding's first factor.

    Parameters
    ----------
    rad_basis, weight, out, panel
        As of `trigraph.basis_embedding_spherical_fwd`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.
    partition : Partition
        Of the edges that the rows belong to.

    Returns
    -------
    array
        As `trigraph.basis_embedding_spherical_fwd`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.basis_embedding_spherical_fwd`; on all ranks where arguments differ or one has met an error.
    """

_BasisEmbeddingSphericalBwdField: TypeAlias = Literal["rad_basis", "weight"]

def basis_embedding_spherical_bwd(
    grad_rad_W1: _A,
    rad_basis: _A,
    weight: _A,
    wrt: _BasisEmbeddingSphericalBwdField | Iterable[_BasisEmbeddingSphericalBwdField] | None = None,
    *,
    partition: Partition,
    out: _A | Mapping[_BasisEmbeddingSphericalBwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> BasisEmbeddingSphericalBwd[_A]:
    """Radial basis times a weight for each spherical function: BasisEmbedding's first factor.

    Parameters
    ----------
    grad_rad_W1, rad_basis, weight, wrt, out, panel
        As of `trigraph.basis_embedding_spherical_bwd`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.
    partition : Partition
        Of the edges that the rows belong to.

    Returns
    -------
    NamedTuple
        As `trigraph.basis_embedding_spherical_bwd`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.basis_embedding_spherical_bwd`; on all ranks where arguments differ or one has met an error.
    """

_BasisEmbeddingSphericalBwd2Field: TypeAlias = Literal["grad_rad_W1", "rad_basis", "weight"]

def basis_embedding_spherical_bwd2(
    gg_rad_basis: _A | None,
    gg_weight: _A | None,
    grad_rad_W1: _A,
    rad_basis: _A,
    weight: _A,
    wrt: _BasisEmbeddingSphericalBwd2Field | Iterable[_BasisEmbeddingSphericalBwd2Field] | None = None,
    *,
    partition: Partition,
    out: _A | Mapping[_BasisEmbeddingSphericalBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> BasisEmbeddingSphericalBwd2[_A]:
    """Radial basis times a weight for each spherical function: BasisEmbedding's first factor.

    Parameters
    ----------
    gg_rad_basis, gg_weight, grad_rad_W1, rad_basis, weight, wrt, out, panel
        As of `trigraph.basis_embedding_spherical_bwd2`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.
    partition : Partition
        Of the edges that the rows belong to.

    Returns
    -------
    NamedTuple
        As `trigraph.basis_embedding_spherical_bwd2`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.basis_embedding_spherical_bwd2`; on all ranks where arguments differ or one has met an error.
    """

_BasisEmbeddingTripletsFwdField: TypeAlias = Literal["rad_W1"]

def basis_embedding_triplets_fwd(
    rad_basis: _A,
    weight: _A,
    sph_basis: _A,
    triplets: Partition,
    *,
    out: _A | Mapping[_BasisEmbeddingTripletsFwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> _A:
    """Embedded radial and spherical basis of each triplet: BasisEmbedding with a spherical basis.

    Parameters
    ----------
    rad_basis, weight, sph_basis, triplets, out, panel
        As of `trigraph.basis_embedding_triplets_fwd`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.

    Returns
    -------
    array
        As `trigraph.basis_embedding_triplets_fwd`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.basis_embedding_triplets_fwd`; on all ranks where arguments differ or one has met an error.
    """

_BasisEmbeddingTripletsBwdField: TypeAlias = Literal["rad_basis", "weight", "sph_basis"]

def basis_embedding_triplets_bwd(
    grad_rad_W1: _A,
    rad_basis: _A,
    weight: _A,
    sph_basis: _A,
    triplets: Partition,
    wrt: _BasisEmbeddingTripletsBwdField | Iterable[_BasisEmbeddingTripletsBwdField] | None = None,
    *,
    out: _A | Mapping[_BasisEmbeddingTripletsBwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> BasisEmbeddingTripletsBwd[_A]:
    """Embedded radial and spherical basis of each triplet: BasisEmbedding with a spherical basis.

    Parameters
    ----------
    grad_rad_W1, rad_basis, weight, sph_basis, triplets, wrt, out, panel
        As of `trigraph.basis_embedding_triplets_bwd`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.

    Returns
    -------
    NamedTuple
        As `trigraph.basis_embedding_triplets_bwd`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.basis_embedding_triplets_bwd`; on all ranks where arguments differ or one has met an error.
    """

_BasisEmbeddingTripletsBwd2Field: TypeAlias = Literal["grad_rad_W1", "rad_basis", "weight", "sph_basis"]

def basis_embedding_triplets_bwd2(
    gg_rad_basis: _A | None,
    gg_weight: _A | None,
    gg_sph_basis: _A | None,
    grad_rad_W1: _A,
    rad_basis: _A,
    weight: _A,
    sph_basis: _A,
    triplets: Partition,
    wrt: _BasisEmbeddingTripletsBwd2Field | Iterable[_BasisEmbeddingTripletsBwd2Field] | None = None,
    *,
    out: _A | Mapping[_BasisEmbeddingTripletsBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> BasisEmbeddingTripletsBwd2[_A]:
    """Embedded radial and spherical basis of each triplet: BasisEmbedding with a spherical basis.

    Parameters
    ----------
    gg_rad_basis, gg_weight, gg_sph_basis, grad_rad_W1, rad_basis, weight, sph_basis, triplets, wrt, out, panel
        As of `trigraph.basis_embedding_triplets_bwd2`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.

    Returns
    -------
    NamedTuple
        As `trigraph.basis_embedding_triplets_bwd2`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.basis_embedding_triplets_bwd2`; on all ranks where arguments differ or one has met an error.
    """

_InteractionBilinearFwdField: TypeAlias = Literal["m_ca"]

def interaction_bilinear_fwd(
    rad_W1: _A,
    sph: _A,
    m: _A,
    weight: _A,
    triplets: Partition,
    atoms: Partition | None = None,
    idx_in: Partition | None = None,
    *,
    out: _A | Mapping[_InteractionBilinearFwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> _A:
    """Efficient bilinear interaction of GemNet-OC: triplets (or quadruplets) to edges, and on to atoms.

    Parameters
    ----------
    rad_W1, sph, m, weight, triplets, atoms, idx_in, out, panel
        As of `trigraph.interaction_bilinear_fwd`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.

    Returns
    -------
    array
        As `trigraph.interaction_bilinear_fwd`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.interaction_bilinear_fwd`; on all ranks where arguments differ or one has met an error.
    """

_InteractionBilinearBwdField: TypeAlias = Literal["rad_W1", "sph", "m", "weight"]

def interaction_bilinear_bwd(
    grad_m_ca: _A,
    rad_W1: _A,
    sph: _A,
    m: _A,
    weight: _A,
    triplets: Partition,
    atoms: Partition | None = None,
    idx_in: Partition | None = None,
    wrt: _InteractionBilinearBwdField | Iterable[_InteractionBilinearBwdField] | None = None,
    *,
    out: _A | Mapping[_InteractionBilinearBwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> InteractionBilinearBwd[_A]:
    """Efficient bilinear interaction of GemNet-OC: triplets (or quadruplets) to edges, and on to atoms.

    Parameters
    ----------
    grad_m_ca, rad_W1, sph, m, weight, triplets, atoms, idx_in, wrt, out, panel
        As of `trigraph.interaction_bilinear_bwd`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.

    Returns
    -------
    NamedTuple
        As `trigraph.interaction_bilinear_bwd`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.interaction_bilinear_bwd`; on all ranks where arguments differ or one has met an error.
    """

_InteractionBilinearBwd2Field: TypeAlias = Literal["grad_m_ca", "rad_W1", "sph", "m", "weight"]

def interaction_bilinear_bwd2(
    gg_rad_W1: _A | None,
    gg_sph: _A | None,
    gg_m: _A | None,
    gg_weight: _A | None,
    grad_m_ca: _A,
    rad_W1: _A,
    sph: _A,
    m: _A,
    weight: _A,
    triplets: Partition,
    atoms: Partition | None = None,
    idx_in: Partition | None = None,
    wrt: _InteractionBilinearBwd2Field | Iterable[_InteractionBilinearBwd2Field] | None = None,
    *,
    out: _A | Mapping[_InteractionBilinearBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> InteractionBilinearBwd2[_A]:
    """Efficient bilinear interaction of GemNet-OC: triplets (or quadruplets) to edges, and on to atoms.

    Parameters
    ----------
    gg_rad_W1, gg_sph, gg_m, gg_weight, grad_m_ca, rad_W1, sph, m, weight, triplets, atoms, idx_in, wrt, out, panel
        As of `trigraph.interaction_bilinear_bwd2`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.

    Returns
    -------
    NamedTuple
        As `trigraph.interaction_bilinear_bwd2`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.interaction_bilinear_bwd2`; on all ranks where arguments differ or one has met an error.
    """

_AggEdgeToEdgeBwd2GradField: TypeAlias = Literal["grad_out"]

def agg_edge_to_edge_bwd2_grad(
    gg_rbf: _A | None,
    gg_embedding: _A | None,
    vec: _A,
    rbf: _A,
    embedding: _A,
    weights: _A,
    graph: Partition,
    n_spherical: SupportsIndex = 7,
    n_radial: SupportsIndex = 6,
    exclude: Literal[None, "node", "edge"] = "node",
    *,
    out: _A | Mapping[_AggEdgeToEdgeBwd2GradField, _A] | None = None,
    panel: _Panel | None = None,
) -> _A:
    """Edge-to-edge aggregation of DimeNet++: triplets k -> j -> i weighted by a basis in their angle.

    Parameters
    ----------
    gg_rbf, gg_embedding, vec, rbf, embedding, weights, graph, n_spherical, n_radial, exclude, out, panel
        As of `trigraph.agg_edge_to_edge_bwd2_grad`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.

    Returns
    -------
    array
        As `trigraph.agg_edge_to_edge_bwd2_grad`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.agg_edge_to_edge_bwd2_grad`; on all ranks where arguments differ or one has met an error.
    """

_AggEdgeToEdgeBwd2MainField: TypeAlias = Literal["rbf", "embedding", "weights"]

def agg_edge_to_edge_bwd2_main(
    gg_rbf: _A | None,
    gg_embedding: _A | None,
    grad_out: _A,
    vec: _A,
    rbf: _A,
    embedding: _A,
    weights: _A,
    graph: Partition,
    n_spherical: SupportsIndex = 7,
    n_radial: SupportsIndex = 6,
    exclude: Literal[None, "node", "edge"] = "node",
    wrt: _AggEdgeToEdgeBwd2MainField | Iterable[_AggEdgeToEdgeBwd2MainField] | None = None,
    *,
    out: _A | Mapping[_AggEdgeToEdgeBwd2MainField, _A] | None = None,
    panel: _Panel | None = None,
) -> AggEdgeToEdgeBwd2Main[_A]:
    """Edge-to-edge aggregation of DimeNet++: triplets k -> j -> i weighted by a basis in their angle.

    Parameters
    ----------
    gg_rbf, gg_embedding, grad_out, vec, rbf, embedding, weights, graph, n_spherical, n_radial, exclude, wrt, out,
    panel
        As of `trigraph.agg_edge_to_edge_bwd2_main`; all ranks have to call it. Arrays with rows have
        those that this rank owns, `out` too; all else is the same everywhere. A Partition is the graph.

    Returns
    -------
    NamedTuple
        As `trigraph.agg_edge_to_edge_bwd2_main`: the rows that this rank owns; sums over all rows on every rank.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `trigraph.agg_edge_to_edge_bwd2_main`; on all ranks where arguments differ or one has met an error.
    """
