"""Written by ``python -m trigraph.stubs --write`` from the operator table; do not edit."""

from typing import Generic, NamedTuple, TypeVar

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

class AggEdgeToEdgeBwd2Main(NamedTuple, Generic[_A]):
    """What `agg_edge_to_edge_bwd2_main` returns."""

    rbf: _A | None
    embedding: _A | None
    weights: _A | None
