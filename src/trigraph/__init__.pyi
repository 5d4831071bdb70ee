"""Written by ``python -m trigraph.stubs --write`` from the operator table; do not edit."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, SupportsIndex, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from trigraph import ase as ase
from trigraph import compat as compat
from trigraph import fortran as fortran
from trigraph import gpu as gpu
from trigraph import pyref as pyref
from trigraph import results as results
from trigraph import torch as torch
from trigraph import verification as verification
from trigraph.checks.gno import pack_gno_params as pack_gno_params
from trigraph.checks.gno import unpack_gno_params as unpack_gno_params
from trigraph.fortran.levels import get_cpu_level as get_cpu_level
from trigraph.fortran.levels import set_cpu_level as set_cpu_level
from trigraph.fortran.threads import get_num_threads as get_num_threads
from trigraph.fortran.threads import set_num_threads as set_num_threads
from trigraph.graphs import CSC as CSC
from trigraph.graphs.edge_graph import EdgeGraph as EdgeGraph
from trigraph.graphs.segments import Segments as Segments
from trigraph.panels import PANELS as PANELS
from trigraph.panels.gemnet import basis_embedding_bwd as basis_embedding_bwd
from trigraph.panels.gemnet import basis_embedding_bwd2 as basis_embedding_bwd2
from trigraph.panels.gemnet import basis_embedding_fwd as basis_embedding_fwd
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
from trigraph.table import OPERATORS as OPERATORS

__version__: str
__all__ = [
    "CSC",
    "OPERATORS",
    "PANELS",
    "EdgeGraph",
    "Segments",
    "agg_edge_to_edge_bwd",
    "agg_edge_to_edge_bwd2",
    "agg_edge_to_edge_bwd2_grad",
    "agg_edge_to_edge_bwd2_main",
    "agg_edge_to_edge_fwd",
    "agg_weighted_n2n_bwd",
    "agg_weighted_n2n_bwd2",
    "agg_weighted_n2n_fwd",
    "basis_embedding_bwd",
    "basis_embedding_bwd2",
    "basis_embedding_fwd",
    "basis_embedding_radial_bwd",
    "basis_embedding_radial_bwd2",
    "basis_embedding_radial_fwd",
    "basis_embedding_spherical_bwd",
    "basis_embedding_spherical_bwd2",
    "basis_embedding_spherical_fwd",
    "basis_embedding_triplets_bwd",
    "basis_embedding_triplets_bwd2",
    "basis_embedding_triplets_fwd",
    "get_cpu_level",
    "get_num_threads",
    "gno_aggregate_bwd",
    "gno_aggregate_bwd2",
    "gno_aggregate_fwd",
    "gno_kernel_bwd",
    "gno_kernel_bwd2",
    "gno_kernel_fwd",
    "gno_message_bwd",
    "gno_message_bwd2",
    "gno_message_fwd",
    "interaction_bilinear_bwd",
    "interaction_bilinear_bwd2",
    "interaction_bilinear_fwd",
    "mha_gat_n2n_bwd",
    "mha_gat_n2n_bwd2",
    "mha_gat_n2n_fwd",
    "pack_gno_params",
    "radial_basis_bwd",
    "radial_basis_bwd2",
    "radial_basis_fwd",
    "set_cpu_level",
    "set_num_threads",
    "unpack_gno_params",
]

_A = TypeVar("_A", NDArray[np.float32], NDArray[np.float64])
_Panel: TypeAlias = Literal["fortran", "fortran-reference", "pyref", "gpu", "gpu-host"]

_GnoKernelFwdField: TypeAlias = Literal["kernel"]

def gno_kernel_fwd(
    coords: _A,
    params: _A,
    f_in: SupportsIndex,
    f_out: SupportsIndex,
    *,
    out: _A | Mapping[_GnoKernelFwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> _A:
    """Per-edge kernel of a graph neural operator: a two-layer network of the edge's coordinates.

    Formula::

        kernel = V relu(U dx + b_u) + b_v

    Parameters
    ----------
    coords : array of float32 or float64, shape (num_edges, d)
        dx of each edge, in the caller's length unit.
    params : array of float32 or float64, shape (hidden*(d+1+f_out*f_in)+f_out*f_in)
        U (H,d) | b_u (H) | V (F,H) | b_v (F), F = f_in*f_out, each block column-major.
    f_in : int
        Features per source node.
    f_out : int
        Features per destination node; the fast index of the kernel.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    kernel : array, shape (num_edges, f_out*f_in)
        Column-major (f_out, f_in) matrix of each edge.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Source: athena's GNO layer (kernel of Li et al., 2020, arXiv:2003.03485, with one hidden layer), packed as
    there.
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
    out: _A | Mapping[_GnoKernelBwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> GnoKernelBwd[_A]:
    """Vector-Jacobian product of `gno_kernel_fwd`.

    Formula::

        s = mask (V^T g); coords = U^T s; params: dU = sum s dx^T, db_u = sum s, dV = sum g a^T, db_v = sum g

    Parameters
    ----------
    grad_kernel : array of float32 or float64, shape (num_edges, f_out*f_in)
        Gradient of a scalar in kernel.
    coords : array of float32 or float64, shape (num_edges, d)
        dx of each edge, in the caller's length unit.
    params : array of float32 or float64, shape (hidden*(d+1+f_out*f_in)+f_out*f_in)
        U (H,d) | b_u (H) | V (F,H) | b_v (F), F = f_in*f_out, each block column-major.
    f_in : int
        Features per source node.
    f_out : int
        Features per destination node; the fast index of the kernel.
    wrt : str or iterable of str, optional
        Fields to compute (default: all); the others are None and cost nothing.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    coords : array, shape (num_edges, d)
        Derivative in coords.
    params : array, shape (hidden*(d+1+f_out*f_in)+f_out*f_in)
        Derivative in params.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Fields are those of a NamedTuple, in this order.
    Source: athena's GNO layer (kernel of Li et al., 2020, arXiv:2003.03485, with one hidden layer), packed as
    there.
    """

_GnoKernelBwd2Field: TypeAlias = Literal["grad_kernel", "coords", "params"]

@overload
def gno_kernel_bwd2(
    *,
    gg_coords: _A | None = None,
    gg_params: _A | None = None,
    grad_kernel: _A,
    coords: _A,
    params: _A,
    f_in: SupportsIndex,
    f_out: SupportsIndex,
    wrt: _GnoKernelBwd2Field | Iterable[_GnoKernelBwd2Field] | None = None,
    out: _A | Mapping[_GnoKernelBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> GnoKernelBwd2[_A]: ...
@overload
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
    out: _A | Mapping[_GnoKernelBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> GnoKernelBwd2[_A]:
    """Vector-Jacobian product of `gno_kernel_bwd`.

    Formula::

        with t = mask (U c + Udd dx + bdd), s' = mask (Vdd^T g): grad_kernel = V t + Vdd a + bdd_v; coords = Udd^T s
        + U^T s'; params: V: sum g t^T, U: sum s c^T + sum s' dx^T, b_u: sum s', b_v: 0

    Parameters
    ----------
    gg_coords : array of float32 or float64, shape (num_edges, d), or None
        Cotangent of gno_kernel_bwd's coords; None is zero. May be left out where what follows comes by keyword.
    gg_params : array of float32 or float64, shape (hidden*(d+1+f_out*f_in)+f_out*f_in), or None
        Cotangent of gno_kernel_bwd's params; None is zero. May be left out where what follows comes by keyword.
    grad_kernel : array of float32 or float64, shape (num_edges, f_out*f_in)
        Gradient of a scalar in kernel.
    coords : array of float32 or float64, shape (num_edges, d)
        dx of each edge, in the caller's length unit.
    params : array of float32 or float64, shape (hidden*(d+1+f_out*f_in)+f_out*f_in)
        U (H,d) | b_u (H) | V (F,H) | b_v (F), F = f_in*f_out, each block column-major.
    f_in : int
        Features per source node.
    f_out : int
        Features per destination node; the fast index of the kernel.
    wrt : str or iterable of str, optional
        Fields to compute (default: all); the others are None and cost nothing.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    grad_kernel : array, shape (num_edges, f_out*f_in)
        Derivative in grad_kernel.
    coords : array, shape (num_edges, d)
        Derivative in coords.
    params : array, shape (hidden*(d+1+f_out*f_in)+f_out*f_in)
        Derivative in params.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Fields are those of a NamedTuple, in this order.
    Source: athena's GNO layer (kernel of Li et al., 2020, arXiv:2003.03485, with one hidden layer), packed as
    there.
    """

_GnoAggregateFwdField: TypeAlias = Literal["message"]

def gno_aggregate_fwd(
    features: _A,
    kernel: _A,
    graph: CSC,
    f_in: SupportsIndex,
    f_out: SupportsIndex,
    *,
    out: _A | Mapping[_GnoAggregateFwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> _A:
    """Sum over in-edges of the edge's kernel matrix times the source's features.

    Formula::

        message_i = sum over e into i of K_e h_src(e), K_e = kernel[e] as (f_out, f_in) column-major

    Parameters
    ----------
    features : array of float32 or float64, shape (num_src_nodes, f_in)
        h of each source node.
    kernel : array of float32 or float64, shape (num_edges, f_out*f_in)
        Column-major (f_out, f_in) matrix of each edge row.
    graph : CSC
        The graph; edge arrays have its rows.
    f_in : int
        Features per source node.
    f_out : int
        Features per destination node; the fast index of the kernel.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    message : array, shape (num_dst_nodes, f_out)
        Sum of messages at each destination.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Source: athena's GNO layer (kernel of Li et al., 2020, arXiv:2003.03485, with one hidden layer), packed as
    there.
    """

_GnoAggregateBwdField: TypeAlias = Literal["features", "kernel"]

def gno_aggregate_bwd(
    grad_message: _A,
    features: _A,
    kernel: _A,
    graph: CSC,
    f_in: SupportsIndex,
    f_out: SupportsIndex,
    wrt: _GnoAggregateBwdField | Iterable[_GnoAggregateBwdField] | None = None,
    *,
    out: _A | Mapping[_GnoAggregateBwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> GnoAggregateBwd[_A]:
    """Vector-Jacobian product of `gno_aggregate_fwd`.

    Formula::

        features_j = sum over e out of j of K_e^T g_dst(e); kernel_e = g_dst(e) h_src(e)^T

    Parameters
    ----------
    grad_message : array of float32 or float64, shape (num_dst_nodes, f_out)
        Gradient of a scalar in message.
    features : array of float32 or float64, shape (num_src_nodes, f_in)
        h of each source node.
    kernel : array of float32 or float64, shape (num_edges, f_out*f_in)
        Column-major (f_out, f_in) matrix of each edge row.
    graph : CSC
        The graph; edge arrays have its rows.
    f_in : int
        Features per source node.
    f_out : int
        Features per destination node; the fast index of the kernel.
    wrt : str or iterable of str, optional
        Fields to compute (default: all); the others are None and cost nothing.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    features : array, shape (num_src_nodes, f_in)
        Derivative in features.
    kernel : array, shape (num_edges, f_out*f_in)
        Derivative in kernel.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Fields are those of a NamedTuple, in this order.
    Source: athena's GNO layer (kernel of Li et al., 2020, arXiv:2003.03485, with one hidden layer), packed as
    there.
    """

_GnoAggregateBwd2Field: TypeAlias = Literal["grad_message", "features", "kernel"]

@overload
def gno_aggregate_bwd2(
    *,
    gg_features: _A | None = None,
    gg_kernel: _A | None = None,
    grad_message: _A,
    features: _A,
    kernel: _A,
    graph: CSC,
    f_in: SupportsIndex,
    f_out: SupportsIndex,
    wrt: _GnoAggregateBwd2Field | Iterable[_GnoAggregateBwd2Field] | None = None,
    out: _A | Mapping[_GnoAggregateBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> GnoAggregateBwd2[_A]: ...
@overload
def gno_aggregate_bwd2(
    gg_features: _A | None,
    gg_kernel: _A | None,
    grad_message: _A,
    features: _A,
    kernel: _A,
    graph: CSC,
    f_in: SupportsIndex,
    f_out: SupportsIndex,
    wrt: _GnoAggregateBwd2Field | Iterable[_GnoAggregateBwd2Field] | None = None,
    *,
    out: _A | Mapping[_GnoAggregateBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> GnoAggregateBwd2[_A]:
    """Vector-Jacobian product of `gno_aggregate_bwd`.

    Formula::

        bilinear, by polarisation: grad_message = fwd(gg_features, kernel) + fwd(features, gg_kernel); features =
        sum gg_K_e^T g_dst(e); kernel_e = g_dst(e) gg_h_src(e)^T

    Parameters
    ----------
    gg_features : array of float32 or float64, shape (num_src_nodes, f_in), or None
        Cotangent of gno_aggregate_bwd's features; None is zero. May be left out where what follows comes by
        keyword.
    gg_kernel : array of float32 or float64, shape (num_edges, f_out*f_in), or None
        Cotangent of gno_aggregate_bwd's kernel; None is zero. May be left out where what follows comes by keyword.
    grad_message : array of float32 or float64, shape (num_dst_nodes, f_out)
        Gradient of a scalar in message.
    features : array of float32 or float64, shape (num_src_nodes, f_in)
        h of each source node.
    kernel : array of float32 or float64, shape (num_edges, f_out*f_in)
        Column-major (f_out, f_in) matrix of each edge row.
    graph : CSC
        The graph; edge arrays have its rows.
    f_in : int
        Features per source node.
    f_out : int
        Features per destination node; the fast index of the kernel.
    wrt : str or iterable of str, optional
        Fields to compute (default: all); the others are None and cost nothing.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    grad_message : array, shape (num_dst_nodes, f_out)
        Derivative in grad_message.
    features : array, shape (num_src_nodes, f_in)
        Derivative in features.
    kernel : array, shape (num_edges, f_out*f_in)
        Derivative in kernel.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Fields are those of a NamedTuple, in this order.
    Source: athena's GNO layer (kernel of Li et al., 2020, arXiv:2003.03485, with one hidden layer), packed as
    there.
    """

_GnoMessageFwdField: TypeAlias = Literal["message"]

def gno_message_fwd(
    features: _A,
    coords: _A,
    params: _A,
    graph: CSC,
    f_in: SupportsIndex,
    f_out: SupportsIndex,
    *,
    out: _A | Mapping[_GnoMessageFwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> _A:
    """Kernel and aggregation in one: the (num_edges, f_out*f_in) kernel is never stored.

    Formula::

        message = gno_aggregate_fwd(features, gno_kernel_fwd(coords, params))

    Parameters
    ----------
    features : array of float32 or float64, shape (num_src_nodes, f_in)
        h of each source node.
    coords : array of float32 or float64, shape (num_edges, d)
        dx of each edge, in the caller's length unit.
    params : array of float32 or float64, shape (hidden*(d+1+f_out*f_in)+f_out*f_in)
        U (H,d) | b_u (H) | V (F,H) | b_v (F), F = f_in*f_out, each block column-major.
    graph : CSC
        The graph; edge arrays have its rows.
    f_in : int
        Features per source node.
    f_out : int
        Features per destination node; the fast index of the kernel.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    message : array, shape (num_dst_nodes, f_out)
        Sum of messages at each destination.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Source: athena's GNO layer (kernel of Li et al., 2020, arXiv:2003.03485, with one hidden layer), packed as
    there.
    """

_GnoMessageBwdField: TypeAlias = Literal["features", "coords", "params"]

def gno_message_bwd(
    grad_message: _A,
    features: _A,
    coords: _A,
    params: _A,
    graph: CSC,
    f_in: SupportsIndex,
    f_out: SupportsIndex,
    wrt: _GnoMessageBwdField | Iterable[_GnoMessageBwdField] | None = None,
    *,
    out: _A | Mapping[_GnoMessageBwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> GnoMessageBwd[_A]:
    """Vector-Jacobian product of `gno_message_fwd`.

    Formula::

        features = gno_aggregate_bwd(g).features; coords, params = gno_kernel_bwd(g_dst(e) h_src(e)^T)

    Parameters
    ----------
    grad_message : array of float32 or float64, shape (num_dst_nodes, f_out)
        Gradient of a scalar in message.
    features : array of float32 or float64, shape (num_src_nodes, f_in)
        h of each source node.
    coords : array of float32 or float64, shape (num_edges, d)
        dx of each edge, in the caller's length unit.
    params : array of float32 or float64, shape (hidden*(d+1+f_out*f_in)+f_out*f_in)
        U (H,d) | b_u (H) | V (F,H) | b_v (F), F = f_in*f_out, each block column-major.
    graph : CSC
        The graph; edge arrays have its rows.
    f_in : int
        Features per source node.
    f_out : int
        Features per destination node; the fast index of the kernel.
    wrt : str or iterable of str, optional
        Fields to compute (default: all); the others are None and cost nothing.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    features : array, shape (num_src_nodes, f_in)
        Derivative in features.
    coords : array, shape (num_edges, d)
        Derivative in coords.
    params : array, shape (hidden*(d+1+f_out*f_in)+f_out*f_in)
        Derivative in params.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Fields are those of a NamedTuple, in this order.
    Source: athena's GNO layer (kernel of Li et al., 2020, arXiv:2003.03485, with one hidden layer), packed as
    there.
    """

_GnoMessageBwd2Field: TypeAlias = Literal["grad_message", "features", "coords", "params"]

@overload
def gno_message_bwd2(
    *,
    gg_features: _A | None = None,
    gg_coords: _A | None = None,
    gg_params: _A | None = None,
    grad_message: _A,
    features: _A,
    coords: _A,
    params: _A,
    graph: CSC,
    f_in: SupportsIndex,
    f_out: SupportsIndex,
    wrt: _GnoMessageBwd2Field | Iterable[_GnoMessageBwd2Field] | None = None,
    out: _A | Mapping[_GnoMessageBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> GnoMessageBwd2[_A]: ...
@overload
def gno_message_bwd2(
    gg_features: _A | None,
    gg_coords: _A | None,
    gg_params: _A | None,
    grad_message: _A,
    features: _A,
    coords: _A,
    params: _A,
    graph: CSC,
    f_in: SupportsIndex,
    f_out: SupportsIndex,
    wrt: _GnoMessageBwd2Field | Iterable[_GnoMessageBwd2Field] | None = None,
    *,
    out: _A | Mapping[_GnoMessageBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> GnoMessageBwd2[_A]:
    """Vector-Jacobian product of `gno_message_bwd`.

    Formula::

        with Kdd the grad_kernel of gno_kernel_bwd2 at g h^T: grad_message = fwd(gg_h, K) + fwd(h, Kdd); features =
        gno_aggregate_bwd(g; Kdd).features; coords, params = gno_kernel_bwd2 at g h^T + gno_kernel_bwd at g gg_h^T

    Parameters
    ----------
    gg_features : array of float32 or float64, shape (num_src_nodes, f_in), or None
        Cotangent of gno_message_bwd's features; None is zero. May be left out where what follows comes by keyword.
    gg_coords : array of float32 or float64, shape (num_edges, d), or None
        Cotangent of gno_message_bwd's coords; None is zero. May be left out where what follows comes by keyword.
    gg_params : array of float32 or float64, shape (hidden*(d+1+f_out*f_in)+f_out*f_in), or None
        Cotangent of gno_message_bwd's params; None is zero. May be left out where what follows comes by keyword.
    grad_message : array of float32 or float64, shape (num_dst_nodes, f_out)
        Gradient of a scalar in message.
    features : array of float32 or float64, shape (num_src_nodes, f_in)
        h of each source node.
    coords : array of float32 or float64, shape (num_edges, d)
        dx of each edge, in the caller's length unit.
    params : array of float32 or float64, shape (hidden*(d+1+f_out*f_in)+f_out*f_in)
        U (H,d) | b_u (H) | V (F,H) | b_v (F), F = f_in*f_out, each block column-major.
    graph : CSC
        The graph; edge arrays have its rows.
    f_in : int
        Features per source node.
    f_out : int
        Features per destination node; the fast index of the kernel.
    wrt : str or iterable of str, optional
        Fields to compute (default: all); the others are None and cost nothing.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    grad_message : array, shape (num_dst_nodes, f_out)
        Derivative in grad_message.
    features : array, shape (num_src_nodes, f_in)
        Derivative in features.
    coords : array, shape (num_edges, d)
        Derivative in coords.
    params : array, shape (hidden*(d+1+f_out*f_in)+f_out*f_in)
        Derivative in params.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Fields are those of a NamedTuple, in this order.
    Source: athena's GNO layer (kernel of Li et al., 2020, arXiv:2003.03485, with one hidden layer), packed as
    there.
    """

_RadialBasisFwdField: TypeAlias = Literal["rbf", "sbf_rad"]

def radial_basis_fwd(
    dist: _A,
    freq: _A,
    n_spherical: SupportsIndex = 7,
    envelope_exponent: SupportsIndex = 5,
    *,
    out: _A | Mapping[_RadialBasisFwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> RadialBasisFwd[_A]:
    """Radial basis of DimeNet++: sines for the edges, spherical Bessel functions for the triplets.

    Formula::

        x = dist; q = envelope_exponent + 1; env = 1/x - (q+1)(q+2)/2 x^(q-1) + q(q+2) x^q - q(q+1)/2 x^(q+1) for x
        < 1, else 0; rbf[k] = env sin(freq_k x); sbf_rad[l*R+k] = env N_lk j_l(z_lk x)

    Parameters
    ----------
    dist : array of float32 or float64, shape (num_edges)
        Distance over cutoff of each edge, > 0: others raise in NumPy arrays; on a device, or where a panel is
        called directly, the edge's results and the gradient of freq are NaN.
    freq : array of float32 or float64, shape (n_radial)
        Frequencies of the sines; R = len(freq).
    n_spherical : int, default 7
        Spherical basis functions S.
    envelope_exponent : int, default 5
        Exponent p of the smooth cutoff.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    rbf : array, shape (num_edges, n_radial)
        Radial basis of each edge.
    sbf_rad : array, shape (num_edges, n_spherical*n_radial)
        Radial part of the spherical basis of each edge.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Fields are those of a NamedTuple, in this order.
    Source: Gasteiger et al., DimeNet++ (2020), arXiv:2011.14115; triplet sum as in pylibcugraphops.dimenet.
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
    out: _A | Mapping[_RadialBasisBwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> RadialBasisBwd[_A]:
    """Vector-Jacobian product of `radial_basis_fwd`.

    Formula::

        dist = sum grad_rbf drbf/dx + sum grad_sbf_rad dsbf_rad/dx; freq_k = sum grad_rbf env x cos(freq_k x)

    Parameters
    ----------
    grad_rbf : array of float32 or float64, shape (num_edges, n_radial)
        Gradient of a scalar in rbf.
    grad_sbf_rad : array of float32 or float64, shape (num_edges, n_spherical*n_radial)
        Gradient of a scalar in sbf_rad.
    dist : array of float32 or float64, shape (num_edges)
        Distance over cutoff of each edge, > 0: others raise in NumPy arrays; on a device, or where a panel is
        called directly, the edge's results and the gradient of freq are NaN.
    freq : array of float32 or float64, shape (n_radial)
        Frequencies of the sines; R = len(freq).
    n_spherical : int, default 7
        Spherical basis functions S.
    envelope_exponent : int, default 5
        Exponent p of the smooth cutoff.
    wrt : str or iterable of str, optional
        Fields to compute (default: all); the others are None and cost nothing.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    dist : array, shape (num_edges)
        Derivative in dist.
    freq : array, shape (n_radial)
        Derivative in freq.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Fields are those of a NamedTuple, in this order.
    Source: Gasteiger et al., DimeNet++ (2020), arXiv:2011.14115; triplet sum as in pylibcugraphops.dimenet.
    """

_RadialBasisBwd2Field: TypeAlias = Literal["grad_rbf", "grad_sbf_rad", "dist", "freq"]

@overload
def radial_basis_bwd2(
    *,
    gg_dist: _A | None = None,
    gg_freq: _A | None = None,
    grad_rbf: _A,
    grad_sbf_rad: _A,
    dist: _A,
    freq: _A,
    n_spherical: SupportsIndex = 7,
    envelope_exponent: SupportsIndex = 5,
    wrt: _RadialBasisBwd2Field | Iterable[_RadialBasisBwd2Field] | None = None,
    out: _A | Mapping[_RadialBasisBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> RadialBasisBwd2[_A]: ...
@overload
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
    out: _A | Mapping[_RadialBasisBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> RadialBasisBwd2[_A]:
    """Vector-Jacobian product of `radial_basis_bwd`.

    Formula::

        derivatives of sum gg_dist dist + sum gg_freq freq, j_l'' by the Bessel equation

    Parameters
    ----------
    gg_dist : array of float32 or float64, shape (num_edges), or None
        Cotangent of radial_basis_bwd's dist; None is zero. May be left out where what follows comes by keyword.
    gg_freq : array of float32 or float64, shape (n_radial), or None
        Cotangent of radial_basis_bwd's freq; None is zero. May be left out where what follows comes by keyword.
    grad_rbf : array of float32 or float64, shape (num_edges, n_radial)
        Gradient of a scalar in rbf.
    grad_sbf_rad : array of float32 or float64, shape (num_edges, n_spherical*n_radial)
        Gradient of a scalar in sbf_rad.
    dist : array of float32 or float64, shape (num_edges)
        Distance over cutoff of each edge, > 0: others raise in NumPy arrays; on a device, or where a panel is
        called directly, the edge's results and the gradient of freq are NaN.
    freq : array of float32 or float64, shape (n_radial)
        Frequencies of the sines; R = len(freq).
    n_spherical : int, default 7
        Spherical basis functions S.
    envelope_exponent : int, default 5
        Exponent p of the smooth cutoff.
    wrt : str or iterable of str, optional
        Fields to compute (default: all); the others are None and cost nothing.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    grad_rbf : array, shape (num_edges, n_radial)
        Derivative in grad_rbf.
    grad_sbf_rad : array, shape (num_edges, n_spherical*n_radial)
        Derivative in grad_sbf_rad.
    dist : array, shape (num_edges)
        Derivative in dist.
    freq : array, shape (n_radial)
        Derivative in freq.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Fields are those of a NamedTuple, in this order.
    Source: Gasteiger et al., DimeNet++ (2020), arXiv:2011.14115; triplet sum as in pylibcugraphops.dimenet.
    """

_AggEdgeToEdgeFwdField: TypeAlias = Literal["out"]

def agg_edge_to_edge_fwd(
    vec: _A,
    rbf: _A,
    embedding: _A,
    weights: _A,
    graph: EdgeGraph,
    n_spherical: SupportsIndex = 7,
    n_radial: SupportsIndex = 6,
    exclude: Literal[None, "node", "edge"] = "node",
    *,
    out: _A | Mapping[_AggEdgeToEdgeFwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> _A:
    """Edge-to-edge aggregation of DimeNet++: triplets k -> j -> i weighted by a basis in their angle.

    Formula::

        Y_l = sqrt((2l+1)/4pi) P_l(u_e.u_e'); q[c] = sum_m W2[c,m] sum_{l,n} rbf[e',l*R+n] Y_l W1[l*R+n,m]; out[e,c]
        = sum over e' into src(e) of embedding[e',c] q[c]

    Parameters
    ----------
    vec : array of float32 or float64, shape (num_edges, 3)
        Vector of each edge, not zero; only its direction matters. Its gradient is of size 1/norm(vec).
    rbf : array of float32 or float64, shape (num_edges, n_spherical*n_radial)
        Radial part of the spherical basis of each edge.
    embedding : array of float32 or float64, shape (num_edges, n_emb)
        Embedding of each edge.
    weights : array of float32 or float64, shape (n_spherical*n_radial+n_emb, n_mid)
        Rows of W1 (S*R, M), then of W2 (C, M).
    graph : EdgeGraph
        The graph; edge arrays have its rows.
    n_spherical : int, default 7
        Spherical basis functions S.
    n_radial : int, default 6
        Radial basis functions R.
    exclude : {None, 'node', 'edge'}, default 'node'
        Left out: every e' = (k->j) with k == i (node), only the very reverse edge (edge), nothing (None).
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    out : array, shape (num_edges, n_emb)
        Aggregated embedding of each edge.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Source: Gasteiger et al., DimeNet++ (2020), arXiv:2011.14115; triplet sum as in pylibcugraphops.dimenet.
    """

_AggEdgeToEdgeBwdField: TypeAlias = Literal["vec", "rbf", "embedding", "weights"]

def agg_edge_to_edge_bwd(
    grad_out: _A,
    vec: _A,
    rbf: _A,
    embedding: _A,
    weights: _A,
    graph: EdgeGraph,
    n_spherical: SupportsIndex = 7,
    n_radial: SupportsIndex = 6,
    exclude: Literal[None, "node", "edge"] = "node",
    wrt: _AggEdgeToEdgeBwdField | Iterable[_AggEdgeToEdgeBwdField] | None = None,
    *,
    out: _A | Mapping[_AggEdgeToEdgeBwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> AggEdgeToEdgeBwd[_A]:
    """Vector-Jacobian product of `agg_edge_to_edge_fwd`.

    Formula::

        the gradient of sum grad_out out, vec included (through u = vec/norm(vec))

    Parameters
    ----------
    grad_out : array of float32 or float64, shape (num_edges, n_emb)
        Gradient of a scalar in out.
    vec : array of float32 or float64, shape (num_edges, 3)
        Vector of each edge, not zero; only its direction matters. Its gradient is of size 1/norm(vec).
    rbf : array of float32 or float64, shape (num_edges, n_spherical*n_radial)
        Radial part of the spherical basis of each edge.
    embedding : array of float32 or float64, shape (num_edges, n_emb)
        Embedding of each edge.
    weights : array of float32 or float64, shape (n_spherical*n_radial+n_emb, n_mid)
        Rows of W1 (S*R, M), then of W2 (C, M).
    graph : EdgeGraph
        The graph; edge arrays have its rows.
    n_spherical : int, default 7
        Spherical basis functions S.
    n_radial : int, default 6
        Radial basis functions R.
    exclude : {None, 'node', 'edge'}, default 'node'
        Left out: every e' = (k->j) with k == i (node), only the very reverse edge (edge), nothing (None).
    wrt : str or iterable of str, optional
        Fields to compute (default: all); the others are None and cost nothing.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    vec : array, shape (num_edges, 3)
        Derivative in vec.
    rbf : array, shape (num_edges, n_spherical*n_radial)
        Derivative in rbf.
    embedding : array, shape (num_edges, n_emb)
        Derivative in embedding.
    weights : array, shape (n_spherical*n_radial+n_emb, n_mid)
        Derivative in weights.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Fields are those of a NamedTuple, in this order.
    Source: Gasteiger et al., DimeNet++ (2020), arXiv:2011.14115; triplet sum as in pylibcugraphops.dimenet.
    """

_AggEdgeToEdgeBwd2Field: TypeAlias = Literal["grad_out", "vec", "rbf", "embedding", "weights"]

@overload
def agg_edge_to_edge_bwd2(
    *,
    gg_vec: _A | None = None,
    gg_rbf: _A | None = None,
    gg_embedding: _A | None = None,
    gg_weights: _A | None = None,
    grad_out: _A,
    vec: _A,
    rbf: _A,
    embedding: _A,
    weights: _A,
    graph: EdgeGraph,
    n_spherical: SupportsIndex = 7,
    n_radial: SupportsIndex = 6,
    exclude: Literal[None, "node", "edge"] = "node",
    wrt: _AggEdgeToEdgeBwd2Field | Iterable[_AggEdgeToEdgeBwd2Field] | None = None,
    out: _A | Mapping[_AggEdgeToEdgeBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> AggEdgeToEdgeBwd2[_A]: ...
@overload
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
    graph: EdgeGraph,
    n_spherical: SupportsIndex = 7,
    n_radial: SupportsIndex = 6,
    exclude: Literal[None, "node", "edge"] = "node",
    wrt: _AggEdgeToEdgeBwd2Field | Iterable[_AggEdgeToEdgeBwd2Field] | None = None,
    *,
    out: _A | Mapping[_AggEdgeToEdgeBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> AggEdgeToEdgeBwd2[_A]:
    """Vector-Jacobian product of `agg_edge_to_edge_bwd`.

    Formula::

        the gradient of the derivative of sum grad_out out along (gg_vec, gg_rbf, gg_embedding, gg_weights)

    Parameters
    ----------
    gg_vec : array of float32 or float64, shape (num_edges, 3), or None
        Cotangent of agg_edge_to_edge_bwd's vec; None is zero. May be left out where what follows comes by keyword.
    gg_rbf : array of float32 or float64, shape (num_edges, n_spherical*n_radial), or None
        Cotangent of agg_edge_to_edge_bwd's rbf; None is zero. May be left out where what follows comes by keyword.
    gg_embedding : array of float32 or float64, shape (num_edges, n_emb), or None
        Cotangent of agg_edge_to_edge_bwd's embedding; None is zero. May be left out where what follows comes by
        keyword.
    gg_weights : array of float32 or float64, shape (n_spherical*n_radial+n_emb, n_mid), or None
        Cotangent of agg_edge_to_edge_bwd's weights; None is zero. May be left out where what follows comes by
        keyword.
    grad_out : array of float32 or float64, shape (num_edges, n_emb)
        Gradient of a scalar in out.
    vec : array of float32 or float64, shape (num_edges, 3)
        Vector of each edge, not zero; only its direction matters. Its gradient is of size 1/norm(vec).
    rbf : array of float32 or float64, shape (num_edges, n_spherical*n_radial)
        Radial part of the spherical basis of each edge.
    embedding : array of float32 or float64, shape (num_edges, n_emb)
        Embedding of each edge.
    weights : array of float32 or float64, shape (n_spherical*n_radial+n_emb, n_mid)
        Rows of W1 (S*R, M), then of W2 (C, M).
    graph : EdgeGraph
        The graph; edge arrays have its rows.
    n_spherical : int, default 7
        Spherical basis functions S.
    n_radial : int, default 6
        Radial basis functions R.
    exclude : {None, 'node', 'edge'}, default 'node'
        Left out: every e' = (k->j) with k == i (node), only the very reverse edge (edge), nothing (None).
    wrt : str or iterable of str, optional
        Fields to compute (default: all); the others are None and cost nothing.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    grad_out : array, shape (num_edges, n_emb)
        Derivative in grad_out.
    vec : array, shape (num_edges, 3)
        Derivative in vec.
    rbf : array, shape (num_edges, n_spherical*n_radial)
        Derivative in rbf.
    embedding : array, shape (num_edges, n_emb)
        Derivative in embedding.
    weights : array, shape (n_spherical*n_radial+n_emb, n_mid)
        Derivative in weights.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Fields are those of a NamedTuple, in this order.
    Source: Gasteiger et al., DimeNet++ (2020), arXiv:2011.14115; triplet sum as in pylibcugraphops.dimenet.
    """

_MhaGatN2nFwdField: TypeAlias = Literal["output_embedding", "softmax_scores"]

def mha_gat_n2n_fwd(
    src_embedding: _A,
    dst_embedding: _A,
    attention_weights: _A,
    graph: CSC,
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

    Formula::

        raw = a_s.x_src + a_d.x_dst (+ a_e.f_e) per head, a = attention_weights; pre = activation(raw); post =
        softmax of pre over the in-edges of a destination; output_i = sum post x_src, heads concatenated or
        averaged; softmax_scores = (pre, post)

    Parameters
    ----------
    src_embedding : array of float32 or float64, shape (num_src_nodes, num_heads*dim_head)
        Embedding of each source node, heads one after the other. The gpu panels take float16 and bfloat16, too.
    dst_embedding : array of float32 or float64, shape (num_dst_nodes, num_heads*dim_head)
        Embedding of each destination node. The gpu panels take float16 and bfloat16, too.
    attention_weights : array of float32 or float64, shape (num_heads*dim_head*(2+has_edge_embedding))
        Weights of the source's half, of the destination's, and of the edge's where there is one.
    graph : CSC
        The graph; edge arrays have its rows.
    num_heads : int
        Attention heads.
    concat_heads : {False, True}, default True
        Concatenate the heads (True), or average them.
    activation : {'linear', 'ReLU', 'LeakyReLU', 'ELU', 'sigmoid', 'tanh'}, default 'LeakyReLU'
        Activation function of the scores.
    negative_slope : float, default 0.2
        Slope of LeakyReLU below zero.
    edge_embedding : array of float32 or float64, shape (num_edges, num_heads*dim_head), or None
        Embedding of each edge row, or None. The gpu panels take float16 and bfloat16, too.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    output_embedding : array, shape (num_dst_nodes, dim_head*(1+concat_heads*(num_heads-1)))
        Heads concatenated, or their mean.
    softmax_scores : array, shape (2, num_heads, num_positions)
        Scores before and after the softmax, by CSC position.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Fields are those of a NamedTuple, in this order.
    Source: Velickovic et al. (2018), arXiv:1710.10903; parameters as in pylibcugraphops' mha_gat_n2n.
    """

_MhaGatN2nBwdField: TypeAlias = Literal["src_embedding", "dst_embedding", "attention_weights", "edge_embedding"]

def mha_gat_n2n_bwd(
    grad_output_embedding: _A,
    src_embedding: _A,
    dst_embedding: _A,
    attention_weights: _A,
    graph: CSC,
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
    """Vector-Jacobian product of `mha_gat_n2n_fwd`.

    Formula::

        dpost = g.x_src; dpre = post (dpost - sum post dpost); draw = dpre activation'(raw); src: sum post g + a_s
        sum draw; dst: a_d sum draw; edge: a_e draw; weights: sum draw x; activation'(0) is the negative side's
        value

    Parameters
    ----------
    grad_output_embedding : array of float32 or float64, shape (num_dst_nodes, dim_head*(1+concat_heads*(num_heads-1)))
        Gradient of a scalar in output_embedding. The gpu panels take float16 and bfloat16, too.
    src_embedding : array of float32 or float64, shape (num_src_nodes, num_heads*dim_head)
        Embedding of each source node, heads one after the other. The gpu panels take float16 and bfloat16, too.
    dst_embedding : array of float32 or float64, shape (num_dst_nodes, num_heads*dim_head)
        Embedding of each destination node. The gpu panels take float16 and bfloat16, too.
    attention_weights : array of float32 or float64, shape (num_heads*dim_head*(2+has_edge_embedding))
        Weights of the source's half, of the destination's, and of the edge's where there is one.
    graph : CSC
        The graph; edge arrays have its rows.
    num_heads : int
        Attention heads.
    concat_heads : {False, True}, default True
        Concatenate the heads (True), or average them.
    activation : {'linear', 'ReLU', 'LeakyReLU', 'ELU', 'sigmoid', 'tanh'}, default 'LeakyReLU'
        Activation function of the scores.
    negative_slope : float, default 0.2
        Slope of LeakyReLU below zero.
    edge_embedding : array of float32 or float64, shape (num_edges, num_heads*dim_head), or None
        Embedding of each edge row, or None. The gpu panels take float16 and bfloat16, too.
    softmax_scores : array of float32 or float64, shape (2, num_heads, num_positions), or None
        As mha_gat_n2n_fwd returned it; None: computed again.
    wrt : str or iterable of str, optional
        Fields to compute (default: all); the others are None and cost nothing.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    src_embedding : array, shape (num_src_nodes, num_heads*dim_head)
        Derivative in src_embedding.
    dst_embedding : array, shape (num_dst_nodes, num_heads*dim_head)
        Derivative in dst_embedding.
    attention_weights : array, shape (num_heads*dim_head*(2+has_edge_embedding))
        Derivative in attention_weights.
    edge_embedding : array, shape (num_edges, num_heads*dim_head)
        Derivative in edge_embedding.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Fields are those of a NamedTuple, in this order.
    Source: Velickovic et al. (2018), arXiv:1710.10903; parameters as in pylibcugraphops' mha_gat_n2n.
    """

_MhaGatN2nBwd2Field: TypeAlias = Literal[
    "grad_output_embedding", "src_embedding", "dst_embedding", "attention_weights", "edge_embedding"
]

@overload
def mha_gat_n2n_bwd2(
    *,
    gg_src_embedding: _A | None = None,
    gg_dst_embedding: _A | None = None,
    gg_attention_weights: _A | None = None,
    gg_edge_embedding: _A | None = None,
    grad_output_embedding: _A,
    src_embedding: _A,
    dst_embedding: _A,
    attention_weights: _A,
    graph: CSC,
    num_heads: SupportsIndex,
    concat_heads: Literal[False, True] = True,
    activation: Literal["linear", "ReLU", "LeakyReLU", "ELU", "sigmoid", "tanh"] = "LeakyReLU",
    negative_slope: float = 0.2,
    edge_embedding: _A | None = None,
    wrt: _MhaGatN2nBwd2Field | Iterable[_MhaGatN2nBwd2Field] | None = None,
    out: _A | Mapping[_MhaGatN2nBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> MhaGatN2nBwd2[_A]: ...
@overload
def mha_gat_n2n_bwd2(
    gg_src_embedding: _A | None,
    gg_dst_embedding: _A | None,
    gg_attention_weights: _A | None,
    gg_edge_embedding: _A | None,
    grad_output_embedding: _A,
    src_embedding: _A,
    dst_embedding: _A,
    attention_weights: _A,
    graph: CSC,
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
    """Vector-Jacobian product of `mha_gat_n2n_bwd`.

    Formula::

        the gradient of the derivative of sum grad_output output along (gg_src, gg_dst, gg_weights, gg_edge);
        activation''(0), which is 1 on ELU's negative side and 0 on the other, is the negative side's value too

    Parameters
    ----------
    gg_src_embedding : array of float32 or float64, shape (num_src_nodes, num_heads*dim_head), or None
        Cotangent of mha_gat_n2n_bwd's src_embedding; None is zero. May be left out where what follows comes by
        keyword. The gpu panels take float16 and bfloat16, too.
    gg_dst_embedding : array of float32 or float64, shape (num_dst_nodes, num_heads*dim_head), or None
        Cotangent of mha_gat_n2n_bwd's dst_embedding; None is zero. May be left out where what follows comes by
        keyword. The gpu panels take float16 and bfloat16, too.
    gg_attention_weights : array of float32 or float64, shape (num_heads*dim_head*(2+has_edge_embedding)), or None
        Cotangent of mha_gat_n2n_bwd's attention_weights; None is zero. May be left out where what follows comes by
        keyword.
    gg_edge_embedding : array of float32 or float64, shape (num_edges, num_heads*dim_head), or None
        Cotangent of mha_gat_n2n_bwd's edge_embedding; None is zero. May be left out where what follows comes by
        keyword. The gpu panels take float16 and bfloat16, too.
    grad_output_embedding : array of float32 or float64, shape (num_dst_nodes, dim_head*(1+concat_heads*(num_heads-1)))
        Gradient of a scalar in output_embedding. The gpu panels take float16 and bfloat16, too.
    src_embedding : array of float32 or float64, shape (num_src_nodes, num_heads*dim_head)
        Embedding of each source node, heads one after the other. The gpu panels take float16 and bfloat16, too.
    dst_embedding : array of float32 or float64, shape (num_dst_nodes, num_heads*dim_head)
        Embedding of each destination node. The gpu panels take float16 and bfloat16, too.
    attention_weights : array of float32 or float64, shape (num_heads*dim_head*(2+has_edge_embedding))
        Weights of the source's half, of the destination's, and of the edge's where there is one.
    graph : CSC
        The graph; edge arrays have its rows.
    num_heads : int
        Attention heads.
    concat_heads : {False, True}, default True
        Concatenate the heads (True), or average them.
    activation : {'linear', 'ReLU', 'LeakyReLU', 'ELU', 'sigmoid', 'tanh'}, default 'LeakyReLU'
        Activation function of the scores.
    negative_slope : float, default 0.2
        Slope of LeakyReLU below zero.
    edge_embedding : array of float32 or float64, shape (num_edges, num_heads*dim_head), or None
        Embedding of each edge row, or None. The gpu panels take float16 and bfloat16, too.
    wrt : str or iterable of str, optional
        Fields to compute (default: all); the others are None and cost nothing.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    grad_output_embedding : array, shape (num_dst_nodes, dim_head*(1+concat_heads*(num_heads-1)))
        Derivative in grad_output_embedding.
    src_embedding : array, shape (num_src_nodes, num_heads*dim_head)
        Derivative in src_embedding.
    dst_embedding : array, shape (num_dst_nodes, num_heads*dim_head)
        Derivative in dst_embedding.
    attention_weights : array, shape (num_heads*dim_head*(2+has_edge_embedding))
        Derivative in attention_weights.
    edge_embedding : array, shape (num_edges, num_heads*dim_head)
        Derivative in edge_embedding.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Fields are those of a NamedTuple, in this order.
    Source: Velickovic et al. (2018), arXiv:1710.10903; parameters as in pylibcugraphops' mha_gat_n2n.
    """

_AggWeightedN2nFwdField: TypeAlias = Literal["output_embedding", "node_degree", "output_extrema_location"]

@overload
def agg_weighted_n2n_fwd(
    embedding: _A,
    *,
    edge_weight: _A | None = None,
    graph: CSC,
    op: Literal["sum", "mean", "min", "max"] = "sum",
    mean_by: Literal["weight", "count"] = "weight",
    out: _A | Mapping[_AggWeightedN2nFwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> AggWeightedN2nFwd[_A]: ...
@overload
def agg_weighted_n2n_fwd(
    embedding: _A,
    edge_weight: _A | None,
    graph: CSC,
    op: Literal["sum", "mean", "min", "max"] = "sum",
    mean_by: Literal["weight", "count"] = "weight",
    *,
    out: _A | Mapping[_AggWeightedN2nFwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> AggWeightedN2nFwd[_A]:
    """Sum, mean, minimum or maximum over in-edges of the edge's weight times the source's embedding.

    Formula::

        message_e = w_e x_src(e); output_i = sum, minimum or maximum over e into i, or sum / node_degree with
        node_degree = sum w_e (mean_by='weight') or the number of edges; location = CSC position of the extremum

    Parameters
    ----------
    embedding : array of float32 or float64, shape (num_src_nodes, dim)
        Embedding of each source node.
    edge_weight : array of float32 or float64, shape (num_edges), or None
        Weight of each edge row; None: ones. May be left out where what follows comes by keyword.
    graph : CSC
        The graph; edge arrays have its rows.
    op : {'sum', 'mean', 'min', 'max'}, default 'sum'
        Aggregation.
    mean_by : {'weight', 'count'}, default 'weight'
        What the mean divides by: sum of weights, or number of edges.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    output_embedding : array, shape (num_dst_nodes, dim)
        Aggregated embedding; 0 without in-edges.
    node_degree : array, shape (num_dst_nodes)
        Denominator of the mean; None for the others.
    output_extrema_location : array, shape (num_dst_nodes, dim)
        CSC position of the extremum, the lowest on ties, the first NaN before all; -1 without in-edges; None for
        sum and mean.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Fields are those of a NamedTuple, in this order.
    Source: Weighted sum, mean, minimum and maximum over in-edges, as in pylibcugraphops' agg_weighted_n2n.
    """

_AggWeightedN2nBwdField: TypeAlias = Literal["embedding", "edge_weight"]

@overload
def agg_weighted_n2n_bwd(
    grad_output_embedding: _A,
    embedding: _A,
    *,
    edge_weight: _A | None = None,
    graph: CSC,
    op: Literal["sum", "mean", "min", "max"] = "sum",
    mean_by: Literal["weight", "count"] = "weight",
    output_embedding: _A | None = None,
    node_degree: _A | None = None,
    output_extrema_location: NDArray[Any] | None = None,
    wrt: _AggWeightedN2nBwdField | Iterable[_AggWeightedN2nBwdField] | None = None,
    out: _A | Mapping[_AggWeightedN2nBwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> AggWeightedN2nBwd[_A]: ...
@overload
def agg_weighted_n2n_bwd(
    grad_output_embedding: _A,
    embedding: _A,
    edge_weight: _A | None,
    graph: CSC,
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
    """Vector-Jacobian product of `agg_weighted_n2n_fwd`.

    Formula::

        sum: x_j = sum w_e g_dst(e), w_e = g_dst(e).x_src(e); mean: g / node_degree, and by weight w_e =
        g_dst(e).(x_src(e) - output_dst(e)) / node_degree; min, max: of the edges at the locations alone

    Parameters
    ----------
    grad_output_embedding : array of float32 or float64, shape (num_dst_nodes, dim)
        Gradient of a scalar in output_embedding.
    embedding : array of float32 or float64, shape (num_src_nodes, dim)
        Embedding of each source node.
    edge_weight : array of float32 or float64, shape (num_edges), or None
        Weight of each edge row; None: ones. May be left out where what follows comes by keyword.
    graph : CSC
        The graph; edge arrays have its rows.
    op : {'sum', 'mean', 'min', 'max'}, default 'sum'
        Aggregation.
    mean_by : {'weight', 'count'}, default 'weight'
        What the mean divides by: sum of weights, or number of edges.
    output_embedding : array of float32 or float64, shape (num_dst_nodes, dim), or None
        As agg_weighted_n2n_fwd returned it; None: computed again.
    node_degree : array of float32 or float64, shape (num_dst_nodes), or None
        As agg_weighted_n2n_fwd returned it; None: computed again.
    output_extrema_location : array of the graph's integers, shape (num_dst_nodes, dim), or None
        As agg_weighted_n2n_fwd returned it; None: computed again.
    wrt : str or iterable of str, optional
        Fields to compute (default: all); the others are None and cost nothing.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    embedding : array, shape (num_src_nodes, dim)
        Derivative in embedding.
    edge_weight : array, shape (num_edges)
        Derivative in edge_weight.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Fields are those of a NamedTuple, in this order.
    Source: Weighted sum, mean, minimum and maximum over in-edges, as in pylibcugraphops' agg_weighted_n2n.
    """

_AggWeightedN2nBwd2Field: TypeAlias = Literal["grad_output_embedding", "embedding", "edge_weight"]

@overload
def agg_weighted_n2n_bwd2(
    *,
    gg_embedding: _A | None = None,
    gg_edge_weight: _A | None = None,
    grad_output_embedding: _A,
    embedding: _A,
    edge_weight: _A | None = None,
    graph: CSC,
    op: Literal["sum", "mean", "min", "max"] = "sum",
    mean_by: Literal["weight", "count"] = "weight",
    wrt: _AggWeightedN2nBwd2Field | Iterable[_AggWeightedN2nBwd2Field] | None = None,
    out: _A | Mapping[_AggWeightedN2nBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> AggWeightedN2nBwd2[_A]: ...
@overload
def agg_weighted_n2n_bwd2(
    gg_embedding: _A | None,
    gg_edge_weight: _A | None,
    grad_output_embedding: _A,
    embedding: _A,
    edge_weight: _A | None,
    graph: CSC,
    op: Literal["sum", "mean", "min", "max"] = "sum",
    mean_by: Literal["weight", "count"] = "weight",
    wrt: _AggWeightedN2nBwd2Field | Iterable[_AggWeightedN2nBwd2Field] | None = None,
    *,
    out: _A | Mapping[_AggWeightedN2nBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> AggWeightedN2nBwd2[_A]:
    """Vector-Jacobian product of `agg_weighted_n2n_bwd`.

    Formula::

        the gradient of the derivative of sum grad_output output along (gg_embedding, gg_edge_weight)

    Parameters
    ----------
    gg_embedding : array of float32 or float64, shape (num_src_nodes, dim), or None
        Cotangent of agg_weighted_n2n_bwd's embedding; None is zero. May be left out where what follows comes by
        keyword.
    gg_edge_weight : array of float32 or float64, shape (num_edges), or None
        Cotangent of agg_weighted_n2n_bwd's edge_weight; None is zero. May be left out where what follows comes by
        keyword.
    grad_output_embedding : array of float32 or float64, shape (num_dst_nodes, dim)
        Gradient of a scalar in output_embedding.
    embedding : array of float32 or float64, shape (num_src_nodes, dim)
        Embedding of each source node.
    edge_weight : array of float32 or float64, shape (num_edges), or None
        Weight of each edge row; None: ones. May be left out where what follows comes by keyword.
    graph : CSC
        The graph; edge arrays have its rows.
    op : {'sum', 'mean', 'min', 'max'}, default 'sum'
        Aggregation.
    mean_by : {'weight', 'count'}, default 'weight'
        What the mean divides by: sum of weights, or number of edges.
    wrt : str or iterable of str, optional
        Fields to compute (default: all); the others are None and cost nothing.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    grad_output_embedding : array, shape (num_dst_nodes, dim)
        Derivative in grad_output_embedding.
    embedding : array, shape (num_src_nodes, dim)
        Derivative in embedding.
    edge_weight : array, shape (num_edges)
        Derivative in edge_weight.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Fields are those of a NamedTuple, in this order.
    Source: Weighted sum, mean, minimum and maximum over in-edges, as in pylibcugraphops' agg_weighted_n2n.
    """

_BasisEmbeddingRadialFwdField: TypeAlias = Literal["rad_W1"]

def basis_embedding_radial_fwd(
    rad_basis: _A,
    weight: _A,
    *,
    out: _A | Mapping[_BasisEmbeddingRadialFwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> _A:
    """Radial basis times a weight: BasisEmbedding without a spherical part.

    Formula::

        rad_W1 = rad_basis weight^T

    Parameters
    ----------
    rad_basis : array of float32 or float64, shape (num_edges, num_radial)
        Radial basis of each edge.
    weight : array of float32 or float64, shape (interm, num_radial)
        Weight of BasisEmbedding.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    rad_W1 : array, shape (num_edges, interm)
        Embedded basis of each edge.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Source: Gasteiger et al., GemNet-OC (2022), arXiv:2204.02782; weights and results of fairchem's BasisEmbedding
    and EfficientInteractionBilinear, ragged instead of padded.
    """

_BasisEmbeddingRadialBwdField: TypeAlias = Literal["rad_basis", "weight"]

def basis_embedding_radial_bwd(
    grad_rad_W1: _A,
    rad_basis: _A,
    weight: _A,
    wrt: _BasisEmbeddingRadialBwdField | Iterable[_BasisEmbeddingRadialBwdField] | None = None,
    *,
    out: _A | Mapping[_BasisEmbeddingRadialBwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> BasisEmbeddingRadialBwd[_A]:
    """Vector-Jacobian product of `basis_embedding_radial_fwd`.

    Formula::

        rad_basis = g weight; weight = g^T rad_basis

    Parameters
    ----------
    grad_rad_W1 : array of float32 or float64, shape (num_edges, interm)
        Gradient of a scalar in rad_W1.
    rad_basis : array of float32 or float64, shape (num_edges, num_radial)
        Radial basis of each edge.
    weight : array of float32 or float64, shape (interm, num_radial)
        Weight of BasisEmbedding.
    wrt : str or iterable of str, optional
        Fields to compute (default: all); the others are None and cost nothing.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    rad_basis : array, shape (num_edges, num_radial)
        Derivative in rad_basis.
    weight : array, shape (interm, num_radial)
        Derivative in weight.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Fields are those of a NamedTuple, in this order.
    Source: Gasteiger et al., GemNet-OC (2022), arXiv:2204.02782; weights and results of fairchem's BasisEmbedding
    and EfficientInteractionBilinear, ragged instead of padded.
    """

_BasisEmbeddingRadialBwd2Field: TypeAlias = Literal["grad_rad_W1", "rad_basis", "weight"]

@overload
def basis_embedding_radial_bwd2(
    *,
    gg_rad_basis: _A | None = None,
    gg_weight: _A | None = None,
    grad_rad_W1: _A,
    rad_basis: _A,
    weight: _A,
    wrt: _BasisEmbeddingRadialBwd2Field | Iterable[_BasisEmbeddingRadialBwd2Field] | None = None,
    out: _A | Mapping[_BasisEmbeddingRadialBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> BasisEmbeddingRadialBwd2[_A]: ...
@overload
def basis_embedding_radial_bwd2(
    gg_rad_basis: _A | None,
    gg_weight: _A | None,
    grad_rad_W1: _A,
    rad_basis: _A,
    weight: _A,
    wrt: _BasisEmbeddingRadialBwd2Field | Iterable[_BasisEmbeddingRadialBwd2Field] | None = None,
    *,
    out: _A | Mapping[_BasisEmbeddingRadialBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> BasisEmbeddingRadialBwd2[_A]:
    """Vector-Jacobian product of `basis_embedding_radial_bwd`.

    Formula::

        bilinear, by polarisation: grad_rad_W1 = gg_rad_basis weight^T + rad_basis gg_weight^T; rad_basis = g
        gg_weight; weight = g^T gg_rad_basis

    Parameters
    ----------
    gg_rad_basis : array of float32 or float64, shape (num_edges, num_radial), or None
        Cotangent of basis_embedding_radial_bwd's rad_basis; None is zero. May be left out where what follows comes
        by keyword.
    gg_weight : array of float32 or float64, shape (interm, num_radial), or None
        Cotangent of basis_embedding_radial_bwd's weight; None is zero. May be left out where what follows comes by
        keyword.
    grad_rad_W1 : array of float32 or float64, shape (num_edges, interm)
        Gradient of a scalar in rad_W1.
    rad_basis : array of float32 or float64, shape (num_edges, num_radial)
        Radial basis of each edge.
    weight : array of float32 or float64, shape (interm, num_radial)
        Weight of BasisEmbedding.
    wrt : str or iterable of str, optional
        Fields to compute (default: all); the others are None and cost nothing.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    grad_rad_W1 : array, shape (num_edges, interm)
        Derivative in grad_rad_W1.
    rad_basis : array, shape (num_edges, num_radial)
        Derivative in rad_basis.
    weight : array, shape (interm, num_radial)
        Derivative in weight.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Fields are those of a NamedTuple, in this order.
    Source: Gasteiger et al., GemNet-OC (2022), arXiv:2204.02782; weights and results of fairchem's BasisEmbedding
    and EfficientInteractionBilinear, ragged instead of padded.
    """

_BasisEmbeddingSphericalFwdField: TypeAlias = Literal["rad_W1"]

def basis_embedding_spherical_fwd(
    rad_basis: _A,
    weight: _A,
    *,
    out: _A | Mapping[_BasisEmbeddingSphericalFwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> _A:
    """Radial basis times a weight for each spherical function: BasisEmbedding's first factor.

    Formula::

        rad_W1 = (rad_basis weight.reshape(num_radial, S*interm)).reshape(num_edges, interm, S): a reshape of memory
        in the order (S, interm), not a transpose

    Parameters
    ----------
    rad_basis : array of float32 or float64, shape (num_edges, num_radial)
        Radial basis of each edge.
    weight : array of float32 or float64, shape (num_radial, num_spherical, interm)
        Weight of BasisEmbedding.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    rad_W1 : array, shape (num_edges, interm, num_spherical)
        Embedded radial basis of each edge.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Source: Gasteiger et al., GemNet-OC (2022), arXiv:2204.02782; weights and results of fairchem's BasisEmbedding
    and EfficientInteractionBilinear, ragged instead of padded.
    """

_BasisEmbeddingSphericalBwdField: TypeAlias = Literal["rad_basis", "weight"]

def basis_embedding_spherical_bwd(
    grad_rad_W1: _A,
    rad_basis: _A,
    weight: _A,
    wrt: _BasisEmbeddingSphericalBwdField | Iterable[_BasisEmbeddingSphericalBwdField] | None = None,
    *,
    out: _A | Mapping[_BasisEmbeddingSphericalBwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> BasisEmbeddingSphericalBwd[_A]:
    """Vector-Jacobian product of `basis_embedding_spherical_fwd`.

    Formula::

        the same product backwards, through the same reshape

    Parameters
    ----------
    grad_rad_W1 : array of float32 or float64, shape (num_edges, interm, num_spherical)
        Gradient of a scalar in rad_W1.
    rad_basis : array of float32 or float64, shape (num_edges, num_radial)
        Radial basis of each edge.
    weight : array of float32 or float64, shape (num_radial, num_spherical, interm)
        Weight of BasisEmbedding.
    wrt : str or iterable of str, optional
        Fields to compute (default: all); the others are None and cost nothing.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    rad_basis : array, shape (num_edges, num_radial)
        Derivative in rad_basis.
    weight : array, shape (num_radial, num_spherical, interm)
        Derivative in weight.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Fields are those of a NamedTuple, in this order.
    Source: Gasteiger et al., GemNet-OC (2022), arXiv:2204.02782; weights and results of fairchem's BasisEmbedding
    and EfficientInteractionBilinear, ragged instead of padded.
    """

_BasisEmbeddingSphericalBwd2Field: TypeAlias = Literal["grad_rad_W1", "rad_basis", "weight"]

@overload
def basis_embedding_spherical_bwd2(
    *,
    gg_rad_basis: _A | None = None,
    gg_weight: _A | None = None,
    grad_rad_W1: _A,
    rad_basis: _A,
    weight: _A,
    wrt: _BasisEmbeddingSphericalBwd2Field | Iterable[_BasisEmbeddingSphericalBwd2Field] | None = None,
    out: _A | Mapping[_BasisEmbeddingSphericalBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> BasisEmbeddingSphericalBwd2[_A]: ...
@overload
def basis_embedding_spherical_bwd2(
    gg_rad_basis: _A | None,
    gg_weight: _A | None,
    grad_rad_W1: _A,
    rad_basis: _A,
    weight: _A,
    wrt: _BasisEmbeddingSphericalBwd2Field | Iterable[_BasisEmbeddingSphericalBwd2Field] | None = None,
    *,
    out: _A | Mapping[_BasisEmbeddingSphericalBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> BasisEmbeddingSphericalBwd2[_A]:
    """Vector-Jacobian product of `basis_embedding_spherical_bwd`.

    Formula::

        bilinear, by polarisation

    Parameters
    ----------
    gg_rad_basis : array of float32 or float64, shape (num_edges, num_radial), or None
        Cotangent of basis_embedding_spherical_bwd's rad_basis; None is zero. May be left out where what follows
        comes by keyword.
    gg_weight : array of float32 or float64, shape (num_radial, num_spherical, interm), or None
        Cotangent of basis_embedding_spherical_bwd's weight; None is zero. May be left out where what follows comes
        by keyword.
    grad_rad_W1 : array of float32 or float64, shape (num_edges, interm, num_spherical)
        Gradient of a scalar in rad_W1.
    rad_basis : array of float32 or float64, shape (num_edges, num_radial)
        Radial basis of each edge.
    weight : array of float32 or float64, shape (num_radial, num_spherical, interm)
        Weight of BasisEmbedding.
    wrt : str or iterable of str, optional
        Fields to compute (default: all); the others are None and cost nothing.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    grad_rad_W1 : array, shape (num_edges, interm, num_spherical)
        Derivative in grad_rad_W1.
    rad_basis : array, shape (num_edges, num_radial)
        Derivative in rad_basis.
    weight : array, shape (num_radial, num_spherical, interm)
        Derivative in weight.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Fields are those of a NamedTuple, in this order.
    Source: Gasteiger et al., GemNet-OC (2022), arXiv:2204.02782; weights and results of fairchem's BasisEmbedding
    and EfficientInteractionBilinear, ragged instead of padded.
    """

_BasisEmbeddingTripletsFwdField: TypeAlias = Literal["rad_W1"]

def basis_embedding_triplets_fwd(
    rad_basis: _A,
    weight: _A,
    sph_basis: _A,
    triplets: Segments | NDArray[Any],
    *,
    out: _A | Mapping[_BasisEmbeddingTripletsFwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> _A:
    """Embedded radial and spherical basis of each triplet: BasisEmbedding with a spherical basis.

    Formula::

        rad_W1[t,i] = sum_s basis_embedding_spherical[edge(t),i,s] sph_basis[t,s]

    Parameters
    ----------
    rad_basis : array of float32 or float64, shape (num_edges, num_radial)
        Radial basis of each edge.
    weight : array of float32 or float64, shape (num_radial, num_spherical, interm)
        Weight of BasisEmbedding.
    sph_basis : array of float32 or float64, shape (num_triplets, num_spherical)
        Circular or spherical basis of each triplet.
    triplets : Segments
        Outer edge of each triplet; or the index array.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    rad_W1 : array, shape (num_triplets, interm)
        Embedded basis of each triplet.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Source: Gasteiger et al., GemNet-OC (2022), arXiv:2204.02782; weights and results of fairchem's BasisEmbedding
    and EfficientInteractionBilinear, ragged instead of padded.
    """

_BasisEmbeddingTripletsBwdField: TypeAlias = Literal["rad_basis", "weight", "sph_basis"]

def basis_embedding_triplets_bwd(
    grad_rad_W1: _A,
    rad_basis: _A,
    weight: _A,
    sph_basis: _A,
    triplets: Segments | NDArray[Any],
    wrt: _BasisEmbeddingTripletsBwdField | Iterable[_BasisEmbeddingTripletsBwdField] | None = None,
    *,
    out: _A | Mapping[_BasisEmbeddingTripletsBwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> BasisEmbeddingTripletsBwd[_A]:
    """Vector-Jacobian product of `basis_embedding_triplets_fwd`.

    Formula::

        sph_basis[t,s] = sum_i g[t,i] rad_W1[edge(t),i,s]; rad_basis and weight from the gradient of rad_W1, sum
        over t of e of g[t,i] sph_basis[t,s]

    Parameters
    ----------
    grad_rad_W1 : array of float32 or float64, shape (num_triplets, interm)
        Gradient of a scalar in rad_W1.
    rad_basis : array of float32 or float64, shape (num_edges, num_radial)
        Radial basis of each edge.
    weight : array of float32 or float64, shape (num_radial, num_spherical, interm)
        Weight of BasisEmbedding.
    sph_basis : array of float32 or float64, shape (num_triplets, num_spherical)
        Circular or spherical basis of each triplet.
    triplets : Segments
        Outer edge of each triplet; or the index array.
    wrt : str or iterable of str, optional
        Fields to compute (default: all); the others are None and cost nothing.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    rad_basis : array, shape (num_edges, num_radial)
        Derivative in rad_basis.
    weight : array, shape (num_radial, num_spherical, interm)
        Derivative in weight.
    sph_basis : array, shape (num_triplets, num_spherical)
        Derivative in sph_basis.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Fields are those of a NamedTuple, in this order.
    Source: Gasteiger et al., GemNet-OC (2022), arXiv:2204.02782; weights and results of fairchem's BasisEmbedding
    and EfficientInteractionBilinear, ragged instead of padded.
    """

_BasisEmbeddingTripletsBwd2Field: TypeAlias = Literal["grad_rad_W1", "rad_basis", "weight", "sph_basis"]

@overload
def basis_embedding_triplets_bwd2(
    *,
    gg_rad_basis: _A | None = None,
    gg_weight: _A | None = None,
    gg_sph_basis: _A | None = None,
    grad_rad_W1: _A,
    rad_basis: _A,
    weight: _A,
    sph_basis: _A,
    triplets: Segments | NDArray[Any],
    wrt: _BasisEmbeddingTripletsBwd2Field | Iterable[_BasisEmbeddingTripletsBwd2Field] | None = None,
    out: _A | Mapping[_BasisEmbeddingTripletsBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> BasisEmbeddingTripletsBwd2[_A]: ...
@overload
def basis_embedding_triplets_bwd2(
    gg_rad_basis: _A | None,
    gg_weight: _A | None,
    gg_sph_basis: _A | None,
    grad_rad_W1: _A,
    rad_basis: _A,
    weight: _A,
    sph_basis: _A,
    triplets: Segments | NDArray[Any],
    wrt: _BasisEmbeddingTripletsBwd2Field | Iterable[_BasisEmbeddingTripletsBwd2Field] | None = None,
    *,
    out: _A | Mapping[_BasisEmbeddingTripletsBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> BasisEmbeddingTripletsBwd2[_A]:
    """Vector-Jacobian product of `basis_embedding_triplets_bwd`.

    Formula::

        trilinear, by polarisation

    Parameters
    ----------
    gg_rad_basis : array of float32 or float64, shape (num_edges, num_radial), or None
        Cotangent of basis_embedding_triplets_bwd's rad_basis; None is zero. May be left out where what follows
        comes by keyword.
    gg_weight : array of float32 or float64, shape (num_radial, num_spherical, interm), or None
        Cotangent of basis_embedding_triplets_bwd's weight; None is zero. May be left out where what follows comes
        by keyword.
    gg_sph_basis : array of float32 or float64, shape (num_triplets, num_spherical), or None
        Cotangent of basis_embedding_triplets_bwd's sph_basis; None is zero. May be left out where what follows
        comes by keyword.
    grad_rad_W1 : array of float32 or float64, shape (num_triplets, interm)
        Gradient of a scalar in rad_W1.
    rad_basis : array of float32 or float64, shape (num_edges, num_radial)
        Radial basis of each edge.
    weight : array of float32 or float64, shape (num_radial, num_spherical, interm)
        Weight of BasisEmbedding.
    sph_basis : array of float32 or float64, shape (num_triplets, num_spherical)
        Circular or spherical basis of each triplet.
    triplets : Segments
        Outer edge of each triplet; or the index array.
    wrt : str or iterable of str, optional
        Fields to compute (default: all); the others are None and cost nothing.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    grad_rad_W1 : array, shape (num_triplets, interm)
        Derivative in grad_rad_W1.
    rad_basis : array, shape (num_edges, num_radial)
        Derivative in rad_basis.
    weight : array, shape (num_radial, num_spherical, interm)
        Derivative in weight.
    sph_basis : array, shape (num_triplets, num_spherical)
        Derivative in sph_basis.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Fields are those of a NamedTuple, in this order.
    Source: Gasteiger et al., GemNet-OC (2022), arXiv:2204.02782; weights and results of fairchem's BasisEmbedding
    and EfficientInteractionBilinear, ragged instead of padded.
    """

_InteractionBilinearFwdField: TypeAlias = Literal["m_ca"]

def interaction_bilinear_fwd(
    rad_W1: _A,
    sph: _A,
    m: _A,
    weight: _A,
    triplets: Segments | NDArray[Any],
    atoms: Segments | None = None,
    idx_in: Segments | NDArray[Any] | None = None,
    *,
    out: _A | Mapping[_InteractionBilinearFwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> _A:
    """Efficient bilinear interaction of GemNet-OC: triplets (or quadruplets) to edges, and on to atoms.

    Formula::

        B_e[s,c] = sum over t of e of sph[t,s] m[t,c]; P[i,c] = sum_s rad_W1[e,i,s] B_e[s,c], summed over the atom's
        edges where atoms are given; m_ca = weight vec(P), emb_in fast

    Parameters
    ----------
    rad_W1 : array of float32 or float64, shape (num_edges, interm, num_spherical)
        Embedded radial basis of each edge.
    sph : array of float32 or float64, shape (num_triplets, num_spherical)
        Circular or spherical basis of each triplet.
    m : array of float32 or float64, shape (num_inputs, emb_in)
        Embedding of each triplet, or of each row idx_in names.
    weight : array of float32 or float64, shape (emb_out, interm*emb_in)
        Weight of the bilinear layer, emb_in fast.
    triplets : Segments
        Outer edge of each triplet; or the index array.
    atoms : Segments, or None
        Atom of each edge: edges of an atom are summed (None: they are not).
    idx_in : Segments, or None
        Row of m for each triplet (None: its own); or the index array.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    m_ca : array, shape (num_outputs, emb_out)
        Embedding of each edge, or atom.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Source: Gasteiger et al., GemNet-OC (2022), arXiv:2204.02782; weights and results of fairchem's BasisEmbedding
    and EfficientInteractionBilinear, ragged instead of padded.
    """

_InteractionBilinearBwdField: TypeAlias = Literal["rad_W1", "sph", "m", "weight"]

def interaction_bilinear_bwd(
    grad_m_ca: _A,
    rad_W1: _A,
    sph: _A,
    m: _A,
    weight: _A,
    triplets: Segments | NDArray[Any],
    atoms: Segments | None = None,
    idx_in: Segments | NDArray[Any] | None = None,
    wrt: _InteractionBilinearBwdField | Iterable[_InteractionBilinearBwdField] | None = None,
    *,
    out: _A | Mapping[_InteractionBilinearBwdField, _A] | None = None,
    panel: _Panel | None = None,
) -> InteractionBilinearBwd[_A]:
    """Vector-Jacobian product of `interaction_bilinear_fwd`.

    Formula::

        the gradient of sum grad_m_ca m_ca

    Parameters
    ----------
    grad_m_ca : array of float32 or float64, shape (num_outputs, emb_out)
        Gradient of a scalar in m_ca.
    rad_W1 : array of float32 or float64, shape (num_edges, interm, num_spherical)
        Embedded radial basis of each edge.
    sph : array of float32 or float64, shape (num_triplets, num_spherical)
        Circular or spherical basis of each triplet.
    m : array of float32 or float64, shape (num_inputs, emb_in)
        Embedding of each triplet, or of each row idx_in names.
    weight : array of float32 or float64, shape (emb_out, interm*emb_in)
        Weight of the bilinear layer, emb_in fast.
    triplets : Segments
        Outer edge of each triplet; or the index array.
    atoms : Segments, or None
        Atom of each edge: edges of an atom are summed (None: they are not).
    idx_in : Segments, or None
        Row of m for each triplet (None: its own); or the index array.
    wrt : str or iterable of str, optional
        Fields to compute (default: all); the others are None and cost nothing.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    rad_W1 : array, shape (num_edges, interm, num_spherical)
        Derivative in rad_W1.
    sph : array, shape (num_triplets, num_spherical)
        Derivative in sph.
    m : array, shape (num_inputs, emb_in)
        Derivative in m.
    weight : array, shape (emb_out, interm*emb_in)
        Derivative in weight.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Fields are those of a NamedTuple, in this order.
    Source: Gasteiger et al., GemNet-OC (2022), arXiv:2204.02782; weights and results of fairchem's BasisEmbedding
    and EfficientInteractionBilinear, ragged instead of padded.
    """

_InteractionBilinearBwd2Field: TypeAlias = Literal["grad_m_ca", "rad_W1", "sph", "m", "weight"]

@overload
def interaction_bilinear_bwd2(
    *,
    gg_rad_W1: _A | None = None,
    gg_sph: _A | None = None,
    gg_m: _A | None = None,
    gg_weight: _A | None = None,
    grad_m_ca: _A,
    rad_W1: _A,
    sph: _A,
    m: _A,
    weight: _A,
    triplets: Segments | NDArray[Any],
    atoms: Segments | None = None,
    idx_in: Segments | NDArray[Any] | None = None,
    wrt: _InteractionBilinearBwd2Field | Iterable[_InteractionBilinearBwd2Field] | None = None,
    out: _A | Mapping[_InteractionBilinearBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> InteractionBilinearBwd2[_A]: ...
@overload
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
    triplets: Segments | NDArray[Any],
    atoms: Segments | None = None,
    idx_in: Segments | NDArray[Any] | None = None,
    wrt: _InteractionBilinearBwd2Field | Iterable[_InteractionBilinearBwd2Field] | None = None,
    *,
    out: _A | Mapping[_InteractionBilinearBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> InteractionBilinearBwd2[_A]:
    """Vector-Jacobian product of `interaction_bilinear_bwd`.

    Formula::

        multilinear, by polarisation

    Parameters
    ----------
    gg_rad_W1 : array of float32 or float64, shape (num_edges, interm, num_spherical), or None
        Cotangent of interaction_bilinear_bwd's rad_W1; None is zero. May be left out where what follows comes by
        keyword.
    gg_sph : array of float32 or float64, shape (num_triplets, num_spherical), or None
        Cotangent of interaction_bilinear_bwd's sph; None is zero. May be left out where what follows comes by
        keyword.
    gg_m : array of float32 or float64, shape (num_inputs, emb_in), or None
        Cotangent of interaction_bilinear_bwd's m; None is zero. May be left out where what follows comes by
        keyword.
    gg_weight : array of float32 or float64, shape (emb_out, interm*emb_in), or None
        Cotangent of interaction_bilinear_bwd's weight; None is zero. May be left out where what follows comes by
        keyword.
    grad_m_ca : array of float32 or float64, shape (num_outputs, emb_out)
        Gradient of a scalar in m_ca.
    rad_W1 : array of float32 or float64, shape (num_edges, interm, num_spherical)
        Embedded radial basis of each edge.
    sph : array of float32 or float64, shape (num_triplets, num_spherical)
        Circular or spherical basis of each triplet.
    m : array of float32 or float64, shape (num_inputs, emb_in)
        Embedding of each triplet, or of each row idx_in names.
    weight : array of float32 or float64, shape (emb_out, interm*emb_in)
        Weight of the bilinear layer, emb_in fast.
    triplets : Segments
        Outer edge of each triplet; or the index array.
    atoms : Segments, or None
        Atom of each edge: edges of an atom are summed (None: they are not).
    idx_in : Segments, or None
        Row of m for each triplet (None: its own); or the index array.
    wrt : str or iterable of str, optional
        Fields to compute (default: all); the others are None and cost nothing.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    grad_m_ca : array, shape (num_outputs, emb_out)
        Derivative in grad_m_ca.
    rad_W1 : array, shape (num_edges, interm, num_spherical)
        Derivative in rad_W1.
    sph : array, shape (num_triplets, num_spherical)
        Derivative in sph.
    m : array, shape (num_inputs, emb_in)
        Derivative in m.
    weight : array, shape (emb_out, interm*emb_in)
        Derivative in weight.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Fields are those of a NamedTuple, in this order.
    Source: Gasteiger et al., GemNet-OC (2022), arXiv:2204.02782; weights and results of fairchem's BasisEmbedding
    and EfficientInteractionBilinear, ragged instead of padded.
    """

_AggEdgeToEdgeBwd2GradField: TypeAlias = Literal["grad_out"]

@overload
def agg_edge_to_edge_bwd2_grad(
    *,
    gg_rbf: _A | None = None,
    gg_embedding: _A | None = None,
    vec: _A,
    rbf: _A,
    embedding: _A,
    weights: _A,
    graph: EdgeGraph,
    n_spherical: SupportsIndex = 7,
    n_radial: SupportsIndex = 6,
    exclude: Literal[None, "node", "edge"] = "node",
    out: _A | Mapping[_AggEdgeToEdgeBwd2GradField, _A] | None = None,
    panel: _Panel | None = None,
) -> _A: ...
@overload
def agg_edge_to_edge_bwd2_grad(
    gg_rbf: _A | None,
    gg_embedding: _A | None,
    vec: _A,
    rbf: _A,
    embedding: _A,
    weights: _A,
    graph: EdgeGraph,
    n_spherical: SupportsIndex = 7,
    n_radial: SupportsIndex = 6,
    exclude: Literal[None, "node", "edge"] = "node",
    *,
    out: _A | Mapping[_AggEdgeToEdgeBwd2GradField, _A] | None = None,
    panel: _Panel | None = None,
) -> _A:
    """Part of the vector-Jacobian product of `agg_edge_to_edge_bwd`.

    Formula::

        fwd(rbf := gg_rbf) + fwd(embedding := gg_embedding), vec constant

    Parameters
    ----------
    gg_rbf : array of float32 or float64, shape (num_edges, n_spherical*n_radial), or None
        Cotangent of agg_edge_to_edge_bwd's rbf; None is zero. May be left out where what follows comes by keyword.
    gg_embedding : array of float32 or float64, shape (num_edges, n_emb), or None
        Cotangent of agg_edge_to_edge_bwd's embedding; None is zero. May be left out where what follows comes by
        keyword.
    vec : array of float32 or float64, shape (num_edges, 3)
        Vector of each edge, not zero; only its direction matters. Its gradient is of size 1/norm(vec).
    rbf : array of float32 or float64, shape (num_edges, n_spherical*n_radial)
        Radial part of the spherical basis of each edge.
    embedding : array of float32 or float64, shape (num_edges, n_emb)
        Embedding of each edge.
    weights : array of float32 or float64, shape (n_spherical*n_radial+n_emb, n_mid)
        Rows of W1 (S*R, M), then of W2 (C, M).
    graph : EdgeGraph
        The graph; edge arrays have its rows.
    n_spherical : int, default 7
        Spherical basis functions S.
    n_radial : int, default 6
        Radial basis functions R.
    exclude : {None, 'node', 'edge'}, default 'node'
        Left out: every e' = (k->j) with k == i (node), only the very reverse edge (edge), nothing (None).
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    grad_out : array, shape (num_edges, n_emb)
        Derivative in grad_out.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Source: Gasteiger et al., DimeNet++ (2020), arXiv:2011.14115; triplet sum as in pylibcugraphops.dimenet.
    """

_AggEdgeToEdgeBwd2MainField: TypeAlias = Literal["rbf", "embedding", "weights"]

@overload
def agg_edge_to_edge_bwd2_main(
    *,
    gg_rbf: _A | None = None,
    gg_embedding: _A | None = None,
    grad_out: _A,
    vec: _A,
    rbf: _A,
    embedding: _A,
    weights: _A,
    graph: EdgeGraph,
    n_spherical: SupportsIndex = 7,
    n_radial: SupportsIndex = 6,
    exclude: Literal[None, "node", "edge"] = "node",
    wrt: _AggEdgeToEdgeBwd2MainField | Iterable[_AggEdgeToEdgeBwd2MainField] | None = None,
    out: _A | Mapping[_AggEdgeToEdgeBwd2MainField, _A] | None = None,
    panel: _Panel | None = None,
) -> AggEdgeToEdgeBwd2Main[_A]: ...
@overload
def agg_edge_to_edge_bwd2_main(
    gg_rbf: _A | None,
    gg_embedding: _A | None,
    grad_out: _A,
    vec: _A,
    rbf: _A,
    embedding: _A,
    weights: _A,
    graph: EdgeGraph,
    n_spherical: SupportsIndex = 7,
    n_radial: SupportsIndex = 6,
    exclude: Literal[None, "node", "edge"] = "node",
    wrt: _AggEdgeToEdgeBwd2MainField | Iterable[_AggEdgeToEdgeBwd2MainField] | None = None,
    *,
    out: _A | Mapping[_AggEdgeToEdgeBwd2MainField, _A] | None = None,
    panel: _Panel | None = None,
) -> AggEdgeToEdgeBwd2Main[_A]:
    """Part of the vector-Jacobian product of `agg_edge_to_edge_bwd`.

    Formula::

        rbf: bwd_rbf(embedding := gg_embedding); embedding: bwd_embedding(rbf := gg_rbf); weights: bwd_weights(rbf
        := gg_rbf) + bwd_weights(embedding := gg_embedding), vec constant

    Parameters
    ----------
    gg_rbf : array of float32 or float64, shape (num_edges, n_spherical*n_radial), or None
        Cotangent of agg_edge_to_edge_bwd's rbf; None is zero. May be left out where what follows comes by keyword.
    gg_embedding : array of float32 or float64, shape (num_edges, n_emb), or None
        Cotangent of agg_edge_to_edge_bwd's embedding; None is zero. May be left out where what follows comes by
        keyword.
    grad_out : array of float32 or float64, shape (num_edges, n_emb)
        Gradient of a scalar in out.
    vec : array of float32 or float64, shape (num_edges, 3)
        Vector of each edge, not zero; only its direction matters. Its gradient is of size 1/norm(vec).
    rbf : array of float32 or float64, shape (num_edges, n_spherical*n_radial)
        Radial part of the spherical basis of each edge.
    embedding : array of float32 or float64, shape (num_edges, n_emb)
        Embedding of each edge.
    weights : array of float32 or float64, shape (n_spherical*n_radial+n_emb, n_mid)
        Rows of W1 (S*R, M), then of W2 (C, M).
    graph : EdgeGraph
        The graph; edge arrays have its rows.
    n_spherical : int, default 7
        Spherical basis functions S.
    n_radial : int, default 6
        Radial basis functions R.
    exclude : {None, 'node', 'edge'}, default 'node'
        Left out: every e' = (k->j) with k == i (node), only the very reverse edge (edge), nothing (None).
    wrt : str or iterable of str, optional
        Fields to compute (default: all); the others are None and cost nothing.
    out : array or mapping from field to array, optional
        Where to write: same dtype, C-contiguous, clear of the inputs.
    panel : {"fortran", "fortran-reference", "pyref", "gpu", "gpu-host"}, optional
        Default: the fast path of fortran for NumPy arrays, gpu for device arrays.

    Returns
    -------
    rbf : array, shape (num_edges, n_spherical*n_radial)
        Derivative in rbf.
    embedding : array, shape (num_edges, n_emb)
        Derivative in embedding.
    weights : array, shape (n_spherical*n_radial+n_emb, n_mid)
        Derivative in weights.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Fields are those of a NamedTuple, in this order.
    Source: Gasteiger et al., DimeNet++ (2020), arXiv:2011.14115; triplet sum as in pylibcugraphops.dimenet.
    """
