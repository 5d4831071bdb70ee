"""Written by ``python -m trigraph.stubs --write`` from the operator table; do not edit."""

from collections.abc import Iterable, Mapping
from typing import Literal, SupportsIndex, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from trigraph.edge_graph import EdgeGraph as EdgeGraph
from trigraph.fortran.threads import get_num_threads as get_num_threads
from trigraph.fortran.threads import set_num_threads as set_num_threads
from trigraph.gno import pack_gno_params as pack_gno_params
from trigraph.gno import unpack_gno_params as unpack_gno_params
from trigraph.graphs import CSC as CSC
from trigraph.operators import OPERATORS as OPERATORS
from trigraph.panels import PANELS as PANELS
from trigraph.results import (
    AggEdgeToEdgeBwd,
    AggEdgeToEdgeBwd2,
    AggEdgeToEdgeBwd2Main,
    GnoAggregateBwd,
    GnoAggregateBwd2,
    GnoKernelBwd,
    GnoKernelBwd2,
    GnoMessageBwd,
    GnoMessageBwd2,
    RadialBasisBwd,
    RadialBasisBwd2,
    RadialBasisFwd,
)
from trigraph.segments import Segments as Segments

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
    "pack_gno_params",
    "radial_basis_bwd",
    "radial_basis_bwd2",
    "radial_basis_fwd",
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
    Source: athena's GNO layer (kernel of Li et al., 2020, arXiv:2003.03485, with one hidden layer), packed as there.
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
    NamedTuple
        coords (num_edges, d): Derivative in coords.
        params (hidden*(d+1+f_out*f_in)+f_out*f_in): Derivative in params.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Source: athena's GNO layer (kernel of Li et al., 2020, arXiv:2003.03485, with one hidden layer), packed as there.
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
    out: _A | Mapping[_GnoKernelBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> GnoKernelBwd2[_A]:
    """Vector-Jacobian product of `gno_kernel_bwd`.

        with t = mask (U c + Udd dx + bdd), s' = mask (Vdd^T g): grad_kernel = V t + Vdd a + bdd_v; coords = Udd^T s
        + U^T s'; params: V: sum g t^T, U: sum s c^T + sum s' dx^T, b_u: sum s', b_v: 0

    Parameters
    ----------
    gg_coords : array of float32 or float64, shape (num_edges, d), or None
        Cotangent of gno_kernel_bwd's coords; None is zero.
    gg_params : array of float32 or float64, shape (hidden*(d+1+f_out*f_in)+f_out*f_in), or None
        Cotangent of gno_kernel_bwd's params; None is zero.
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
    NamedTuple
        grad_kernel (num_edges, f_out*f_in): Derivative in grad_kernel.
        coords (num_edges, d): Derivative in coords.
        params (hidden*(d+1+f_out*f_in)+f_out*f_in): Derivative in params.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Source: athena's GNO layer (kernel of Li et al., 2020, arXiv:2003.03485, with one hidden layer), packed as there.
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

        message_i = sum over e into i of K_e h_src(e), K_e = kernel[e] as (f_out, f_in) column-major

    Parameters
    ----------
    features : array of float32 or float64, shape (num_src_nodes, f_in)
        h of each source node.
    kernel : array of float32 or float64, shape (num_edges, f_out*f_in)
        Column-major (f_out, f_in) matrix of each edge row.
    graph : CSC
        Whose rows the edge arrays have.
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
    Source: athena's GNO layer (kernel of Li et al., 2020, arXiv:2003.03485, with one hidden layer), packed as there.
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
        Whose rows the edge arrays have.
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
    NamedTuple
        features (num_src_nodes, f_in): Derivative in features.
        kernel (num_edges, f_out*f_in): Derivative in kernel.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Source: athena's GNO layer (kernel of Li et al., 2020, arXiv:2003.03485, with one hidden layer), packed as there.
    """

_GnoAggregateBwd2Field: TypeAlias = Literal["grad_message", "features", "kernel"]

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

        bilinear, by polarisation: grad_message = fwd(gg_features, kernel) + fwd(features, gg_kernel); features =
        sum gg_K_e^T g_dst(e); kernel_e = g_dst(e) gg_h_src(e)^T

    Parameters
    ----------
    gg_features : array of float32 or float64, shape (num_src_nodes, f_in), or None
        Cotangent of gno_aggregate_bwd's features; None is zero.
    gg_kernel : array of float32 or float64, shape (num_edges, f_out*f_in), or None
        Cotangent of gno_aggregate_bwd's kernel; None is zero.
    grad_message : array of float32 or float64, shape (num_dst_nodes, f_out)
        Gradient of a scalar in message.
    features : array of float32 or float64, shape (num_src_nodes, f_in)
        h of each source node.
    kernel : array of float32 or float64, shape (num_edges, f_out*f_in)
        Column-major (f_out, f_in) matrix of each edge row.
    graph : CSC
        Whose rows the edge arrays have.
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
    NamedTuple
        grad_message (num_dst_nodes, f_out): Derivative in grad_message.
        features (num_src_nodes, f_in): Derivative in features.
        kernel (num_edges, f_out*f_in): Derivative in kernel.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Source: athena's GNO layer (kernel of Li et al., 2020, arXiv:2003.03485, with one hidden layer), packed as there.
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
        Whose rows the edge arrays have.
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
    Source: athena's GNO layer (kernel of Li et al., 2020, arXiv:2003.03485, with one hidden layer), packed as there.
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
        Whose rows the edge arrays have.
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
    NamedTuple
        features (num_src_nodes, f_in): Derivative in features.
        coords (num_edges, d): Derivative in coords.
        params (hidden*(d+1+f_out*f_in)+f_out*f_in): Derivative in params.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Source: athena's GNO layer (kernel of Li et al., 2020, arXiv:2003.03485, with one hidden layer), packed as there.
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
    graph: CSC,
    f_in: SupportsIndex,
    f_out: SupportsIndex,
    wrt: _GnoMessageBwd2Field | Iterable[_GnoMessageBwd2Field] | None = None,
    *,
    out: _A | Mapping[_GnoMessageBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> GnoMessageBwd2[_A]:
    """Vector-Jacobian product of `gno_message_bwd`.

        with Kdd the grad_kernel of gno_kernel_bwd2 at g h^T: grad_message = fwd(gg_h, K) + fwd(h, Kdd); features =
        gno_aggregate_bwd(g; Kdd).features; coords, params = gno_kernel_bwd2 at g h^T + gno_kernel_bwd at g gg_h^T

    Parameters
    ----------
    gg_features : array of float32 or float64, shape (num_src_nodes, f_in), or None
        Cotangent of gno_message_bwd's features; None is zero.
    gg_coords : array of float32 or float64, shape (num_edges, d), or None
        Cotangent of gno_message_bwd's coords; None is zero.
    gg_params : array of float32 or float64, shape (hidden*(d+1+f_out*f_in)+f_out*f_in), or None
        Cotangent of gno_message_bwd's params; None is zero.
    grad_message : array of float32 or float64, shape (num_dst_nodes, f_out)
        Gradient of a scalar in message.
    features : array of float32 or float64, shape (num_src_nodes, f_in)
        h of each source node.
    coords : array of float32 or float64, shape (num_edges, d)
        dx of each edge, in the caller's length unit.
    params : array of float32 or float64, shape (hidden*(d+1+f_out*f_in)+f_out*f_in)
        U (H,d) | b_u (H) | V (F,H) | b_v (F), F = f_in*f_out, each block column-major.
    graph : CSC
        Whose rows the edge arrays have.
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
    NamedTuple
        grad_message (num_dst_nodes, f_out): Derivative in grad_message.
        features (num_src_nodes, f_in): Derivative in features.
        coords (num_edges, d): Derivative in coords.
        params (hidden*(d+1+f_out*f_in)+f_out*f_in): Derivative in params.

    Raises
    ------
    TypeError
        Wrong kind of array, dtype or argument.
    ValueError
        Wrong shape, size, field, overlap or panel.

    Notes
    -----
    Source: athena's GNO layer (kernel of Li et al., 2020, arXiv:2003.03485, with one hidden layer), packed as there.
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

        x = dist; q = envelope_exponent + 1; env = 1/x - (q+1)(q+2)/2 x^(q-1) + q(q+2) x^q - q(q+1)/2 x^(q+1) for x
        < 1, else 0; rbf[k] = env sin(freq_k x); sbf_rad[l*R+k] = env N_lk j_l(z_lk x)

    Parameters
    ----------
    dist : array of float32 or float64, shape (num_edges)
        Distance over cutoff of each edge, > 0.
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
    NamedTuple
        rbf (num_edges, n_radial): Radial basis of each edge.
        sbf_rad (num_edges, n_spherical*n_radial): Radial part of the spherical basis of each edge.

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

        dist = sum grad_rbf drbf/dx + sum grad_sbf_rad dsbf_rad/dx; freq_k = sum grad_rbf env x cos(freq_k x)

    Parameters
    ----------
    grad_rbf : array of float32 or float64, shape (num_edges, n_radial)
        Gradient of a scalar in rbf.
    grad_sbf_rad : array of float32 or float64, shape (num_edges, n_spherical*n_radial)
        Gradient of a scalar in sbf_rad.
    dist : array of float32 or float64, shape (num_edges)
        Distance over cutoff of each edge, > 0.
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
    NamedTuple
        dist (num_edges): Derivative in dist.
        freq (n_radial): Derivative in freq.

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
    out: _A | Mapping[_RadialBasisBwd2Field, _A] | None = None,
    panel: _Panel | None = None,
) -> RadialBasisBwd2[_A]:
    """Vector-Jacobian product of `radial_basis_bwd`.

        derivatives of sum gg_dist dist + sum gg_freq freq, j_l'' by the Bessel equation

    Parameters
    ----------
    gg_dist : array of float32 or float64, shape (num_edges), or None
        Cotangent of radial_basis_bwd's dist; None is zero.
    gg_freq : array of float32 or float64, shape (n_radial), or None
        Cotangent of radial_basis_bwd's freq; None is zero.
    grad_rbf : array of float32 or float64, shape (num_edges, n_radial)
        Gradient of a scalar in rbf.
    grad_sbf_rad : array of float32 or float64, shape (num_edges, n_spherical*n_radial)
        Gradient of a scalar in sbf_rad.
    dist : array of float32 or float64, shape (num_edges)
        Distance over cutoff of each edge, > 0.
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
    NamedTuple
        grad_rbf (num_edges, n_radial): Derivative in grad_rbf.
        grad_sbf_rad (num_edges, n_spherical*n_radial): Derivative in grad_sbf_rad.
        dist (num_edges): Derivative in dist.
        freq (n_radial): Derivative in freq.

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

        Y_l = sqrt((2l+1)/4pi) P_l(u_e.u_e'); q[c] = sum_m W2[c,m] sum_{l,n} rbf[e',l*R+n] Y_l W1[l*R+n,m]; out[e,c]
        = sum over e' into src(e) of embedding[e',c] q[c]

    Parameters
    ----------
    vec : array of float32 or float64, shape (num_edges, 3)
        Vector of each edge, not zero; only its direction matters.
    rbf : array of float32 or float64, shape (num_edges, n_spherical*n_radial)
        Radial part of the spherical basis of each edge.
    embedding : array of float32 or float64, shape (num_edges, n_emb)
        Embedding of each edge.
    weights : array of float32 or float64, shape (n_spherical*n_radial+n_emb, n_mid)
        Rows of W1 (S*R, M), then of W2 (C, M).
    graph : EdgeGraph
        Whose rows the edge arrays have.
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

        the gradient of sum grad_out out, vec included (through u = vec/norm(vec))

    Parameters
    ----------
    grad_out : array of float32 or float64, shape (num_edges, n_emb)
        Gradient of a scalar in out.
    vec : array of float32 or float64, shape (num_edges, 3)
        Vector of each edge, not zero; only its direction matters.
    rbf : array of float32 or float64, shape (num_edges, n_spherical*n_radial)
        Radial part of the spherical basis of each edge.
    embedding : array of float32 or float64, shape (num_edges, n_emb)
        Embedding of each edge.
    weights : array of float32 or float64, shape (n_spherical*n_radial+n_emb, n_mid)
        Rows of W1 (S*R, M), then of W2 (C, M).
    graph : EdgeGraph
        Whose rows the edge arrays have.
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
    NamedTuple
        vec (num_edges, 3): Derivative in vec.
        rbf (num_edges, n_spherical*n_radial): Derivative in rbf.
        embedding (num_edges, n_emb): Derivative in embedding.
        weights (n_spherical*n_radial+n_emb, n_mid): Derivative in weights.

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

        the gradient of the derivative of sum grad_out out along (gg_vec, gg_rbf, gg_embedding, gg_weights)

    Parameters
    ----------
    gg_vec : array of float32 or float64, shape (num_edges, 3), or None
        Cotangent of agg_edge_to_edge_bwd's vec; None is zero.
    gg_rbf : array of float32 or float64, shape (num_edges, n_spherical*n_radial), or None
        Cotangent of agg_edge_to_edge_bwd's rbf; None is zero.
    gg_embedding : array of float32 or float64, shape (num_edges, n_emb), or None
        Cotangent of agg_edge_to_edge_bwd's embedding; None is zero.
    gg_weights : array of float32 or float64, shape (n_spherical*n_radial+n_emb, n_mid), or None
        Cotangent of agg_edge_to_edge_bwd's weights; None is zero.
    grad_out : array of float32 or float64, shape (num_edges, n_emb)
        Gradient of a scalar in out.
    vec : array of float32 or float64, shape (num_edges, 3)
        Vector of each edge, not zero; only its direction matters.
    rbf : array of float32 or float64, shape (num_edges, n_spherical*n_radial)
        Radial part of the spherical basis of each edge.
    embedding : array of float32 or float64, shape (num_edges, n_emb)
        Embedding of each edge.
    weights : array of float32 or float64, shape (n_spherical*n_radial+n_emb, n_mid)
        Rows of W1 (S*R, M), then of W2 (C, M).
    graph : EdgeGraph
        Whose rows the edge arrays have.
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
    NamedTuple
        grad_out (num_edges, n_emb): Derivative in grad_out.
        vec (num_edges, 3): Derivative in vec.
        rbf (num_edges, n_spherical*n_radial): Derivative in rbf.
        embedding (num_edges, n_emb): Derivative in embedding.
        weights (n_spherical*n_radial+n_emb, n_mid): Derivative in weights.

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

_AggEdgeToEdgeBwd2GradField: TypeAlias = Literal["grad_out"]

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

        fwd(rbf := gg_rbf) + fwd(embedding := gg_embedding), vec constant

    Parameters
    ----------
    gg_rbf : array of float32 or float64, shape (num_edges, n_spherical*n_radial), or None
        Cotangent of agg_edge_to_edge_bwd's rbf; None is zero.
    gg_embedding : array of float32 or float64, shape (num_edges, n_emb), or None
        Cotangent of agg_edge_to_edge_bwd's embedding; None is zero.
    vec : array of float32 or float64, shape (num_edges, 3)
        Vector of each edge, not zero; only its direction matters.
    rbf : array of float32 or float64, shape (num_edges, n_spherical*n_radial)
        Radial part of the spherical basis of each edge.
    embedding : array of float32 or float64, shape (num_edges, n_emb)
        Embedding of each edge.
    weights : array of float32 or float64, shape (n_spherical*n_radial+n_emb, n_mid)
        Rows of W1 (S*R, M), then of W2 (C, M).
    graph : EdgeGraph
        Whose rows the edge arrays have.
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

        rbf: bwd_rbf(embedding := gg_embedding); embedding: bwd_embedding(rbf := gg_rbf); weights: bwd_weights(rbf
        := gg_rbf) + bwd_weights(embedding := gg_embedding), vec constant

    Parameters
    ----------
    gg_rbf : array of float32 or float64, shape (num_edges, n_spherical*n_radial), or None
        Cotangent of agg_edge_to_edge_bwd's rbf; None is zero.
    gg_embedding : array of float32 or float64, shape (num_edges, n_emb), or None
        Cotangent of agg_edge_to_edge_bwd's embedding; None is zero.
    grad_out : array of float32 or float64, shape (num_edges, n_emb)
        Gradient of a scalar in out.
    vec : array of float32 or float64, shape (num_edges, 3)
        Vector of each edge, not zero; only its direction matters.
    rbf : array of float32 or float64, shape (num_edges, n_spherical*n_radial)
        Radial part of the spherical basis of each edge.
    embedding : array of float32 or float64, shape (num_edges, n_emb)
        Embedding of each edge.
    weights : array of float32 or float64, shape (n_spherical*n_radial+n_emb, n_mid)
        Rows of W1 (S*R, M), then of W2 (C, M).
    graph : EdgeGraph
        Whose rows the edge arrays have.
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
    NamedTuple
        rbf (num_edges, n_spherical*n_radial): Derivative in rbf.
        embedding (num_edges, n_emb): Derivative in embedding.
        weights (n_spherical*n_radial+n_emb, n_mid): Derivative in weights.

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
