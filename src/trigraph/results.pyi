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
