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
    GnoAggregateBwd,
    GnoAggregateBwd2,
    GnoKernelBwd,
    GnoKernelBwd2,
    GnoMessageBwd,
    GnoMessageBwd2,
)
from trigraph.segments import Segments as Segments

__version__: str
__all__ = [
    "CSC",
    "OPERATORS",
    "PANELS",
    "EdgeGraph",
    "Segments",
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
