"""Functions of ``pylibcugraphops.operators``: they write into their first arguments, and return nothing.

Outputs that are None are not computed. Arrays are those of NumPy or CuPy, or tensors, of float32 or float64, all of one
kind and dtype; the arguments, shapes and order are the original's.
"""

import enum
from dataclasses import dataclass
from typing import Any

from trigraph.compat.pylibcugraphops.covered import stand_in
from trigraph.compat.pylibcugraphops.graphs import Graph
from trigraph.compat.pylibcugraphops.inplace import write
from trigraph.graphs import CSC

__all__ = [
    "AggOp",
    "agg_weighted_n2n_bwd",
    "agg_weighted_n2n_fwd",
    "mha_gat_n2n_bwd",
    "mha_gat_n2n_bwd_fp32_fp32_fp32_fp32",
    "mha_gat_n2n_fwd",
    "mha_params",
]


# Names of trigraph's arguments and fields, and the original's names of them.
_ATTENTION = {
    "src_embedding": "src_node_embedding",
    "dst_embedding": "dst_node_embedding",
    "attention_weights": "attention_weights",
    "graph": "graph",
}
_AGGREGATION = {"embedding": "input_embedding", "edge_weight": "edge_weight", "graph": "graph"}
_AGGREGATED = {n: n for n in ("output_embedding", "node_degree", "output_extrema_location")}


class AggOp(enum.Enum):
    """Aggregations of the weighted operators."""

    Sum = "sum"
    Mean = "mean"
    Min = "min"
    Max = "max"


@dataclass
class mha_params:
    """Settings of multi-head attention.

    Parameters
    ----------
    num_heads : int
    activation : {'linear', 'ReLU', 'LeakyReLU', 'ELU', 'sigmoid', 'tanh'}
        Of the scores.
    negative_slope : float
        Of LeakyReLU.
    concat_heads : bool
        Whether heads are concatenated, or averaged.
    """

    num_heads: int = 1
    activation: str = "LeakyReLU"
    negative_slope: float = 0.2
    concat_heads: bool = True


def _csc(caller: str, graph: Any) -> CSC:
    if not isinstance(graph, Graph):
        raise TypeError(f"{caller}: graph is a {type(graph).__name__}; expected a graph of make_csc or of a CSC class")
    return graph.csc


def _attributes(caller: str, params: Any) -> dict[str, Any]:
    if not isinstance(params, mha_params):
        raise TypeError(f"{caller}: params is a {type(params).__name__}; expected mha_params")
    return vars(params)


def _aggregation(caller: str, operation: Any) -> str:
    if not isinstance(operation, AggOp):
        raise TypeError(f"{caller}: aggregation_operation is a {type(operation).__name__}; expected an AggOp")
    return str(operation.value)


def mha_gat_n2n_fwd(
    output_embedding: Any,
    softmax_scores: Any,
    src_node_embedding: Any,
    dst_node_embedding: Any,
    attention_weights: Any,
    graph: Graph,
    params: mha_params,
    stream_id: int = 0,
) -> None:
    """Multi-head attention from source to destination nodes; arrays as of `trigraph.mha_gat_n2n_fwd`."""
    name, parameters = "mha_gat_n2n_fwd", dict(locals())
    parameters["graph"] = _csc(name, graph)
    outputs = {"output_embedding": "output_embedding", "softmax_scores": "softmax_scores"}
    attributes = _attributes(name, params) | {"return_softmax_scores": True}
    write(name, outputs, _ATTENTION, parameters, stream_id, **attributes)


def mha_gat_n2n_bwd(
    grad_src_node_embedding: Any,
    grad_dst_node_embedding: Any,
    grad_attention_weights: Any,
    grad_softmax_scores: Any,
    grad_output_embedding: Any,
    src_node_embedding: Any,
    dst_node_embedding: Any,
    attention_weights: Any,
    softmax_scores: Any,
    graph: Graph,
    params: mha_params,
    grad_attention_weights_workspace: Any = None,
    stream_id: int = 0,
) -> None:
    """Vector-Jacobian product of :func:`mha_gat_n2n_fwd`; arrays as of `trigraph.mha_gat_n2n_bwd`.

    `grad_softmax_scores` and `grad_attention_weights_workspace` are work spaces of the original, and left as they are.
    """
    name, parameters = "mha_gat_n2n_bwd", dict(locals())
    parameters["graph"] = _csc(name, graph)
    outputs = {
        "src_embedding": "grad_src_node_embedding",
        "dst_embedding": "grad_dst_node_embedding",
        "attention_weights": "grad_attention_weights",
    }
    arguments = {n: n for n in ("grad_output_embedding", "softmax_scores")} | _ATTENTION
    write(name, outputs, arguments, parameters, stream_id, **_attributes(name, params))


mha_gat_n2n_bwd_fp32_fp32_fp32_fp32 = mha_gat_n2n_bwd


def agg_weighted_n2n_fwd(
    output_embedding: Any,
    input_embedding: Any,
    edge_weight: Any,
    graph: Graph,
    aggregation_operation: AggOp = AggOp.Sum,
    output_extrema_location: Any = None,
    node_degree: Any = None,
    stream_id: int = 0,
) -> None:
    """Weighted aggregation over the edges into a node; arrays as of `trigraph.agg_weighted_n2n_fwd`."""
    name, parameters = "agg_weighted_n2n_fwd", dict(locals())
    parameters["graph"] = _csc(name, graph)
    write(name, _AGGREGATED, _AGGREGATION, parameters, stream_id, op=_aggregation(name, aggregation_operation))


def agg_weighted_n2n_bwd(
    grad_input: Any,
    grad_edge_weight: Any,
    grad_output: Any,
    edge_weight: Any,
    input_embedding: Any,
    graph: Graph,
    aggregation_operation: AggOp = AggOp.Sum,
    output_embedding: Any = None,
    output_extrema_location: Any = None,
    node_degree: Any = None,
    stream_id: int = 0,
) -> None:
    """Vector-Jacobian product of :func:`agg_weighted_n2n_fwd`; arrays as of `trigraph.agg_weighted_n2n_bwd`.

    What the forward has returned (`output_embedding`, `output_extrema_location`, `node_degree`) is computed again where
    it is None.
    """
    name, parameters = "agg_weighted_n2n_bwd", dict(locals())
    parameters["graph"] = _csc(name, graph)
    outputs = {"embedding": "grad_input", "edge_weight": "grad_edge_weight"}
    arguments = {"grad_output_embedding": "grad_output", **_AGGREGATION, **_AGGREGATED}
    write(name, outputs, arguments, parameters, stream_id, op=_aggregation(name, aggregation_operation))


def __getattr__(name: str) -> Any:
    return stand_in("pylibcugraphops.operators", name)
