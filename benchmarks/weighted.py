"""Workloads of weighted aggregation, and their peers: sparse products, and sums over gathered rows."""

import contextlib
import ctypes
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from trigraph.benchmarks.peers import list_edge_index, make_autograd_call, make_pyg_peers
from trigraph.benchmarks.programs import Call
from trigraph.benchmarks.workloads import Case, Peer, Step, Workload

SIZES = {
    "num_src_nodes": 100_000,
    "num_dst_nodes": 100_000,
    "num_positions": 1_600_000,
    "num_edges": 1_600_000,
    "dim": 64,
}
OUT = "agg_weighted_n2n_fwd.output_embedding"


def _make_csr(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, int]]:
    """Return the weights, sources, offsets and shape of the sparse matrix; weight k belongs to position k."""
    offsets, indices = (a.astype(np.int32) for a in (case.graph.offsets, case.graph.indices))
    return case["edge_weight"], indices, offsets, (case.graph.num_dst_nodes, case.graph.num_src_nodes)


def make_sparse_product(case: Case) -> Call:
    """Return a call that multiplies by a ``scipy.sparse`` matrix."""
    from scipy.sparse import csr_matrix

    weight, indices, offsets, shape = _make_csr(case)
    matrix, x = csr_matrix((weight, indices, offsets), shape=shape), case["embedding"]
    return lambda: {OUT: matrix @ x}


CSR_ALG2 = 6  # CUSPARSE_SPMM_CSR_ALG2 in cusparse.h, which some releases of CuPy do not define


def make_cusparse_product(case: Case) -> Call:
    """Return a call that multiplies by cuSPARSE with CSR_ALG2 and row-major dense matrices, prepared in advance.

    CuPy's own ``matrix @ dense`` creates descriptors in each call, and copies dense matrices in C order.
    """
    import cupy
    from cupy.cuda import device
    from cupy_backends.cuda.libs import cusparse as library

    *arrays, shape = _make_csr(case)
    weight, indices, offsets = map(cupy.asarray, arrays)
    x = cupy.asarray(case["embedding"])
    real, dim = (0 if x.dtype == np.float32 else 1), x.shape[1]  # real is CUDA_R_32F or CUDA_R_64F
    index, base = library.CUSPARSE_INDEX_32I, library.CUSPARSE_INDEX_BASE_ZERO
    pointers = (a.data.ptr for a in (offsets, indices, weight))
    matrix = library.createCsr(*shape, weight.size, *pointers, index, index, base, real)
    out = cupy.empty((shape[0], dim), x.dtype)
    dense = [library.createDnMat(*a.shape, dim, a.data.ptr, real, library.CUSPARSE_ORDER_ROW) for a in (x, out)]
    one, zero = (np.array(value, x.dtype) for value in (1, 0))
    plain, algorithm = library.CUSPARSE_OPERATION_NON_TRANSPOSE, CSR_ALG2
    handle = device.get_cusparse_handle()
    call = (handle, plain, plain, one.ctypes.data, matrix, dense[0], zero.ctypes.data, dense[1], real, algorithm)
    buffer = cupy.empty(max(library.spMM_bufferSize(*call), 1), np.int8)
    _preprocess_product(call, buffer.data.ptr)

    def multiply_with_cusparse() -> dict[str, Any]:
        library.spMM(*call, buffer.data.ptr)
        return {OUT: out}

    # The call must keep alive the objects that the descriptors point to.
    multiply_with_cusparse.held = (weight, indices, offsets, x, one, zero)  # type: ignore[attr-defined]
    return multiply_with_cusparse


def _preprocess_product(call: tuple[int, ...], buffer: int) -> None:
    """Let cuSPARSE analyse the matrix. CuPy loads the library but does not wrap this function, so ctypes calls it."""
    for name in ("libcusparse.so.12", "libcusparse.so.11"):
        with contextlib.suppress(OSError, AttributeError):
            function = ctypes.CDLL(name).cusparseSpMM_preprocess
            numbers = {1, 2, 8, 9}  # positions of arguments that are enumerations; all other arguments are pointers
            arguments = [ctypes.c_int(v) if k in numbers else ctypes.c_void_p(v) for k, v in enumerate(call)]
            status = function(*arguments, ctypes.c_void_p(buffer))
            if status:
                raise RuntimeError(f"cusparseSpMM_preprocess: status {status}")
            return


def make_sparse_convolution(case: Case, device: str) -> Call:
    """Return a call that applies SimpleConv to a torch sparse matrix, and so uses torch's sparse product."""
    import torch
    from torch_geometric.nn import SimpleConv

    weight, indices, offsets, shape = _make_csr(case)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that support for sparse matrices is in beta
        rows, columns, values = (torch.tensor(a, device=device) for a in (offsets, indices, weight))
        matrix = torch.sparse_csr_tensor(rows, columns, values, shape)
    x, convolve = torch.tensor(case["embedding"], device=device), SimpleConv(aggr="sum")
    return lambda: {OUT: convolve((x, None), matrix)}


def _make_edge_aggregate(case: Case, device: str) -> Callable[[Any, Any], Any]:
    """Return a function that sums embeddings times weights over the list of edges."""
    from torch_geometric.nn import SimpleConv

    edges, size = list_edge_index(case, device), (case.graph.num_src_nodes, case.graph.num_dst_nodes)
    convolve = SimpleConv(aggr="sum")
    return lambda x, weight: convolve((x, None), edges, weight, size)


PRODUCTS = {
    "scipy": Peer(make_sparse_product, "scipy.sparse.csr_matrix @ dense"),
    **make_pyg_peers(make_sparse_convolution, "PyTorch Geometric SimpleConv of torch.sparse_csr_tensor", "pyg-sparse"),
    "cusparse": Peer(
        make_cusparse_product,
        "cuSPARSE called directly: CSR_ALG2, preprocessed, cached descriptors",
        ("cupy",),
        device=True,
    ),
}
GATHERS = make_pyg_peers(
    partial(make_autograd_call, forward=_make_edge_aggregate), "PyTorch Geometric SimpleConv, autograd"
)
FORWARD = Step("agg_weighted_n2n_fwd")
UNIFORM = Workload(
    name="weighted-sum",
    family="weighted",
    summary="weighted sum over in-edges",
    steps=(FORWARD,),
    sizes=SIZES,
    peers=PRODUCTS,
)
WORKLOADS = (
    UNIFORM,
    UNIFORM.with_power_law_graph(),
    Workload(
        name="weighted-sum-backward",
        family="weighted",
        summary="weighted sum and its gradients with respect to embedding and weights",
        steps=(FORWARD, Step("agg_weighted_n2n_bwd")),
        sizes=SIZES,
        peers=GATHERS,
    ),
)
