"""Functions of ``pylibcugraphops.dimenet``: they write into their first arguments, and return nothing.

Outputs that are None are not computed. Edges are sorted by the first row of `coo_idx`, their source; the vector of an
edge is position of its source minus that of its destination. There are 7 spherical and 6 radial functions.
"""

import enum
from collections.abc import Mapping
from functools import partial
from typing import Any

from trigraph.arrays import array_kind, as_array, count
from trigraph.compat.pylibcugraphops.in_place import in_place
from trigraph.graphs import EdgeGraph

ARRAYS = ("src_offsets", "dst_offsets", "dst_edge_index")


class MMAOp(enum.Enum):
    """Precision of the original's matrix products; trigraph's have that of the arrays, whatever is asked for."""

    HighPrecision = 0
    LowPrecision = 1


def edge_graph(caller: str, given: Mapping[str, Any]) -> EdgeGraph:
    """Return the graph of (2, num_edges) indices `coo_idx`, sorted by their first row; `ARRAYS` must be its own."""
    index, operation = as_array(given["coo_idx"]), given["mma_operation"]
    if not isinstance(operation, MMAOp):
        raise TypeError(f"{caller}: mma_operation is a {type(operation).__name__}; expected an MMAOp")
    arrays = {name: as_array(given[name]) for name in ARRAYS if name in given}
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


def _settings(caller: str, given: Mapping[str, Any]) -> dict[str, Any]:
    return {"graph": edge_graph(caller, given)}


_MADE = partial(in_place, __name__, settings=_settings, defaults={"cuda_stream": 0})
_FROM_DESTINATIONS = "input_weights<weights coo_idx dst_offsets dst_edge_index mma_operation cuda_stream"
_FROM_SOURCES = "input_weights<weights coo_idx src_offsets mma_operation cuda_stream"

agg_edge_to_edge_fwd = _MADE(
    "agg_edge_to_edge_fwd",
    "output_embedding>out input_vector<vec input_rbf<sbf_rad input_embedding<embedding " + _FROM_DESTINATIONS,
)
agg_edge_to_edge_bwd = _MADE(  # without the derivative with respect to the vectors, as the original
    "agg_edge_to_edge_bwd",
    "output_grad_rbf>sbf_rad output_grad_embedding>embedding output_grad_weights>weights input_vector<vec "
    "input_rbf<sbf_rad input_embedding<embedding input_grad_embedding<grad_out " + _FROM_SOURCES,
)
agg_edge_to_edge_bwd2_grad = _MADE(
    "agg_edge_to_edge_bwd2_grad",
    "output_grad_grad_embedding>grad_out input_vector<vec input_rbf<sbf_rad input_grad_grad_rbf<gg_sbf_rad "
    "input_embedding<embedding input_grad_grad_embedding<gg_embedding " + _FROM_DESTINATIONS,
)
agg_edge_to_edge_bwd2_main = _MADE(
    "agg_edge_to_edge_bwd2_main",
    "output_grad_rbf_grad_embedding>sbf_rad output_grad_embedding_grad_rbf>embedding output_grad_weights>weights "
    "input_vector<vec input_rbf<sbf_rad input_grad_grad_rbf<gg_sbf_rad input_embedding<embedding "
    "input_grad_grad_embedding<gg_embedding input_grad_embedding<grad_out " + _FROM_SOURCES,
)
