"""Functions of ``pylibcugraphops.dimenet``: they write into their first arguments, and return nothing.

Outputs that are None are not computed. Edges are sorted by the first row of `coo_idx`, their source; the vector of an
edge is position of its source minus that of its destination. There are 7 spherical and 6 radial functions.
"""

import enum
from typing import Any

from trigraph.compat.pylibcugraphops.covered import stand_in
from trigraph.compat.pylibcugraphops.inplace import write
from trigraph.graphs import EdgeGraph, array_kind, as_array, count

__all__ = [
    "MMAOp",
    "agg_edge_to_edge_bwd",
    "agg_edge_to_edge_bwd2_grad",
    "agg_edge_to_edge_bwd2_main",
    "agg_edge_to_edge_fwd",
    "edge_graph",
    "radial_basis_bwd",
    "radial_basis_fwd",
]


# Names of trigraph's arguments and fields, and the original's names of them.
_BASIS = {"dist": "input_vector", "freq": "input_w"}
_TRIPLETS = {
    "vec": "input_vector",
    "sbf_rad": "input_rbf",
    "embedding": "input_embedding",
    "weights": "input_weights",
    "graph": "coo_idx",
}
_SECOND = {"gg_sbf_rad": "input_grad_grad_rbf", "gg_embedding": "input_grad_grad_embedding", **_TRIPLETS}


class MMAOp(enum.Enum):
    """Precision of the original's matrix products; trigraph's have that of the arrays, whatever is asked for."""

    HighPrecision = 0
    LowPrecision = 1


def edge_graph(caller: str, coo_idx: Any, mma_operation: Any, **expected: Any) -> EdgeGraph:
    """Return the graph of (2, num_edges) indices sorted by their first row.

    `expected` are attributes of the graph as the caller has them (`src_offsets`, `dst_offsets`, `dst_edge_index`); the
    first has as many entries as there are nodes, and one more.
    """
    if not isinstance(mma_operation, MMAOp):
        raise TypeError(f"{caller}: mma_operation is a {type(mma_operation).__name__}; expected an MMAOp")
    index, arrays = as_array(coo_idx), {name: as_array(value) for name, value in expected.items()}
    for name, array in (("coo_idx", index), *arrays.items()):
        if array_kind(array) is None or array.dtype.kind != "i":
            raise TypeError(f"{caller}: {name} is a {type(array).__name__}; expected an array or tensor of integers")
    if index.ndim != 2 or len(index) != 2:
        raise ValueError(f"{caller}: coo_idx has shape {index.shape}; expected (2, num_edges)")
    offsets_name, offsets = next(iter(arrays.items()))
    try:
        graph = EdgeGraph(index[0], index[1], count(caller, f"size of {offsets_name}", offsets.size, 1) - 1)
    except (TypeError, ValueError) as error:
        message = str(error).replace("EdgeGraph: src", "EdgeGraph: coo_idx[0]").replace("dst", "coo_idx[1]")
        raise type(error)(message.replace("EdgeGraph:", f"{caller}:", 1)) from None
    for name, array in arrays.items():
        built = getattr(graph, name)
        if array.shape != built.shape or not (array == built).all():
            raise ValueError(f"{caller}: {name} is not that of the edges in coo_idx")
    return graph


def _column(caller: str, name: str, value: Any) -> Any:
    """Return the (num_edges,) view of a (num_edges, 1) array."""
    array = as_array(value)
    if array is None:
        return None
    if array_kind(array) is None:
        raise TypeError(f"{caller}: {name} is a {type(value).__name__}; expected an array or a tensor")
    if array.ndim != 2 or array.shape[1] != 1:
        raise ValueError(f"{caller}: {name} has shape {array.shape}; expected (num_edges, 1)")
    return array[:, 0]


def radial_basis_fwd(output_rbf: Any, output_sbf_rad: Any, input_vector: Any, input_w: Any) -> None:
    """Radial bases of the distances `input_vector` (num_edges, 1) over the cutoff, for the frequencies `input_w`."""
    name, parameters = "radial_basis_fwd", dict(locals())
    parameters["input_vector"] = _column(name, "input_vector", input_vector)
    write(name, {"rbf": "output_rbf", "sbf_rad": "output_sbf_rad"}, _BASIS, parameters, 0)


def radial_basis_bwd(
    output_grad_vector: Any,
    output_grad_w: Any,
    input_grad_rbf: Any,
    input_grad_sbf_rad: Any,
    input_vector: Any,
    input_w: Any,
) -> None:
    """Vector-Jacobian product of :func:`radial_basis_fwd`."""
    name, parameters = "radial_basis_bwd", dict(locals())
    for distances in ("output_grad_vector", "input_vector"):
        parameters[distances] = _column(name, distances, parameters[distances])
    arguments = {"grad_rbf": "input_grad_rbf", "grad_sbf_rad": "input_grad_sbf_rad", **_BASIS}
    write(name, {"dist": "output_grad_vector", "freq": "output_grad_w"}, arguments, parameters, 0)


def agg_edge_to_edge_fwd(
    output_embedding: Any,
    input_vector: Any,
    input_rbf: Any,
    input_embedding: Any,
    input_weights: Any,
    coo_idx: Any,
    dst_offsets: Any,
    dst_edge_index: Any,
    mma_operation: MMAOp,
    cuda_stream: int = 0,
) -> None:
    """Triplet sum of DimeNet++; arrays as of `trigraph.agg_edge_to_edge_fwd`."""
    name, parameters = "agg_edge_to_edge_fwd", dict(locals())
    parameters["coo_idx"] = edge_graph(
        name, coo_idx, mma_operation, dst_offsets=dst_offsets, dst_edge_index=dst_edge_index
    )
    write(name, {"out": "output_embedding"}, _TRIPLETS, parameters, cuda_stream)


def agg_edge_to_edge_bwd(
    output_grad_rbf: Any,
    output_grad_embedding: Any,
    output_grad_weights: Any,
    input_vector: Any,
    input_rbf: Any,
    input_embedding: Any,
    input_grad_embedding: Any,
    input_weights: Any,
    coo_idx: Any,
    src_offsets: Any,
    mma_operation: MMAOp,
    cuda_stream: int = 0,
) -> None:
    """Vector-Jacobian product of :func:`agg_edge_to_edge_fwd`, without that of the vectors, as the original."""
    name, parameters = "agg_edge_to_edge_bwd", dict(locals())
    parameters["coo_idx"] = edge_graph(name, coo_idx, mma_operation, src_offsets=src_offsets)
    outputs = {"sbf_rad": "output_grad_rbf", "embedding": "output_grad_embedding", "weights": "output_grad_weights"}
    write(name, outputs, {"grad_out": "input_grad_embedding", **_TRIPLETS}, parameters, cuda_stream)


def agg_edge_to_edge_bwd2_grad(
    output_grad_grad_embedding: Any,
    input_vector: Any,
    input_rbf: Any,
    input_grad_grad_rbf: Any,
    input_embedding: Any,
    input_grad_grad_embedding: Any,
    input_weights: Any,
    coo_idx: Any,
    dst_offsets: Any,
    dst_edge_index: Any,
    mma_operation: MMAOp,
    cuda_stream: int = 0,
) -> None:
    """Second order of the triplet sum with respect to its gradient; as `trigraph.agg_edge_to_edge_bwd2_grad`."""
    name, parameters = "agg_edge_to_edge_bwd2_grad", dict(locals())
    parameters["coo_idx"] = edge_graph(
        name, coo_idx, mma_operation, dst_offsets=dst_offsets, dst_edge_index=dst_edge_index
    )
    write(name, {"grad_out": "output_grad_grad_embedding"}, _SECOND, parameters, cuda_stream)


def agg_edge_to_edge_bwd2_main(
    output_grad_rbf_grad_embedding: Any,
    output_grad_embedding_grad_rbf: Any,
    output_grad_weights: Any,
    input_vector: Any,
    input_rbf: Any,
    input_grad_grad_rbf: Any,
    input_embedding: Any,
    input_grad_grad_embedding: Any,
    input_grad_embedding: Any,
    input_weights: Any,
    coo_idx: Any,
    src_offsets: Any,
    mma_operation: MMAOp,
    cuda_stream: int = 0,
) -> None:
    """Second order of the triplet sum with respect to its inputs; as `trigraph.agg_edge_to_edge_bwd2_main`."""
    name, parameters = "agg_edge_to_edge_bwd2_main", dict(locals())
    parameters["coo_idx"] = edge_graph(name, coo_idx, mma_operation, src_offsets=src_offsets)
    outputs = {
        "sbf_rad": "output_grad_rbf_grad_embedding",
        "embedding": "output_grad_embedding_grad_rbf",
        "weights": "output_grad_weights",
    }
    write(name, outputs, {"grad_out": "input_grad_embedding", **_SECOND}, parameters, cuda_stream)


def __getattr__(name: str) -> Any:
    return stand_in("pylibcugraphops.dimenet", name)
