"""Written by ``python -m trigraph.stubs --write`` from the operator table; do not edit."""

from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

_A = TypeVar("_A", NDArray[np.float32], NDArray[np.float64])

class GnoKernelBwd(NamedTuple, Generic[_A]):
    """What `gno_kernel_bwd` returns."""

    coords: _A | None
    params: _A | None

class GnoKernelBwd2(NamedTuple, Generic[_A]):
    """What `gno_kernel_bwd2` returns."""

    grad_kernel: _A | None
    coords: _A | None
    params: _A | None

class GnoAggregateBwd(NamedTuple, Generic[_A]):
    """What `gno_aggregate_bwd` returns."""

    features: _A | None
    kernel: _A | None

class GnoAggregateBwd2(NamedTuple, Generic[_A]):
    """What `gno_aggregate_bwd2` returns."""

    grad_message: _A | None
    features: _A | None
    kernel: _A | None

class GnoMessageBwd(NamedTuple, Generic[_A]):
    """What `gno_message_bwd` returns."""

    features: _A | None
    coords: _A | None
    params: _A | None

class GnoMessageBwd2(NamedTuple, Generic[_A]):
    """What `gno_message_bwd2` returns."""

    grad_message: _A | None
    features: _A | None
    coords: _A | None
    params: _A | None

class RadialBasisFwd(NamedTuple, Generic[_A]):
    """What `radial_basis_fwd` returns."""

    rbf: _A
    sbf_rad: _A

class RadialBasisBwd(NamedTuple, Generic[_A]):
    """What `radial_basis_bwd` returns."""

    dist: _A | None
    freq: _A | None

class RadialBasisBwd2(NamedTuple, Generic[_A]):
    """What `radial_basis_bwd2` returns."""

    grad_rbf: _A | None
    grad_sbf_rad: _A | None
    dist: _A | None
    freq: _A | None

class AggEdgeToEdgeBwd(NamedTuple, Generic[_A]):
    """What `agg_edge_to_edge_bwd` returns."""

    vec: _A | None
    rbf: _A | None
    embedding: _A | None
    weights: _A | None

class AggEdgeToEdgeBwd2(NamedTuple, Generic[_A]):
    """What `agg_edge_to_edge_bwd2` returns."""

    grad_out: _A | None
    vec: _A | None
    rbf: _A | None
    embedding: _A | None
    weights: _A | None

class MhaGatN2nFwd(NamedTuple, Generic[_A]):
    """What `mha_gat_n2n_fwd` returns."""

    output_embedding: _A
    softmax_scores: _A

class MhaGatN2nBwd(NamedTuple, Generic[_A]):
    """What `mha_gat_n2n_bwd` returns."""

    src_embedding: _A | None
    dst_embedding: _A | None
    attention_weights: _A | None
    edge_embedding: _A | None

class MhaGatN2nBwd2(NamedTuple, Generic[_A]):
    """What `mha_gat_n2n_bwd2` returns."""

    grad_output_embedding: _A | None
    src_embedding: _A | None
    dst_embedding: _A | None
    attention_weights: _A | None
    edge_embedding: _A | None

class AggWeightedN2nFwd(NamedTuple, Generic[_A]):
    """What `agg_weighted_n2n_fwd` returns."""

    output_embedding: _A
    node_degree: _A | None
    output_extrema_location: NDArray[Any] | None

class AggWeightedN2nBwd(NamedTuple, Generic[_A]):
    """What `agg_weighted_n2n_bwd` returns."""

    embedding: _A | None
    edge_weight: _A | None

class AggWeightedN2nBwd2(NamedTuple, Generic[_A]):
    """What `agg_weighted_n2n_bwd2` returns."""

    grad_output_embedding: _A | None
    embedding: _A | None
    edge_weight: _A | None

class BasisEmbeddingRadialBwd(NamedTuple, Generic[_A]):
    """What `basis_embedding_radial_bwd` returns."""

    rad_basis: _A | None
    weight: _A | None

class BasisEmbeddingRadialBwd2(NamedTuple, Generic[_A]):
    """What `basis_embedding_radial_bwd2` returns."""

    grad_rad_W1: _A | None
    rad_basis: _A | None
    weight: _A | None

class BasisEmbeddingSphericalBwd(NamedTuple, Generic[_A]):
    """What `basis_embedding_spherical_bwd` returns."""

    rad_basis: _A | None
    weight: _A | None

class BasisEmbeddingSphericalBwd2(NamedTuple, Generic[_A]):
    """What `basis_embedding_spherical_bwd2` returns."""

    grad_rad_W1: _A | None
    rad_basis: _A | None
    weight: _A | None

class BasisEmbeddingTripletsBwd(NamedTuple, Generic[_A]):
    """What `basis_embedding_triplets_bwd` returns."""

    rad_basis: _A | None
    weight: _A | None
    sph_basis: _A | None

class BasisEmbeddingTripletsBwd2(NamedTuple, Generic[_A]):
    """What `basis_embedding_triplets_bwd2` returns."""

    grad_rad_W1: _A | None
    rad_basis: _A | None
    weight: _A | None
    sph_basis: _A | None

class InteractionBilinearBwd(NamedTuple, Generic[_A]):
    """What `interaction_bilinear_bwd` returns."""

    rad_W1: _A | None
    sph: _A | None
    m: _A | None
    weight: _A | None

class InteractionBilinearBwd2(NamedTuple, Generic[_A]):
    """What `interaction_bilinear_bwd2` returns."""

    grad_m_ca: _A | None
    rad_W1: _A | None
    sph: _A | None
    m: _A | None
    weight: _A | None

class AggEdgeToEdgeBwd2Main(NamedTuple, Generic[_A]):
    """What `agg_edge_to_edge_bwd2_main` returns."""

    rbf: _A | None
    embedding: _A | None
    weights: _A | None
