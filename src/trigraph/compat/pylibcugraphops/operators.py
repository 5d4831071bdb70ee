"""Functions of ``pylibcugraphops.operators``: they write into their first arguments, and return nothing.

Outputs that are None are not computed. Arrays are those of NumPy or CuPy, or tensors, of float32 or float64, all of one
kind and dtype; the arguments, shapes and order are the original's. ``grad_softmax_scores`` and
``grad_attention_weights_workspace`` are work spaces of the original, and left as they are. What the forward has
returned is computed again where it is None.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from trigraph.compat.pylibcugraphops.graphs import Graph
from trigraph.compat.pylibcugraphops.in_place import in_place


class AggOp(enum.Enum):
    """Aggregations of the weighted operators."""

    Sum = "sum"
    Mean = "mean"
    Min = "min"
    Max = "max"


@dataclass
class mha_params:
    """Settings of multi-head attention, as the attributes of `trigraph.mha_gat_n2n_fwd`."""

    num_heads: int = 1
    activation: str = "LeakyReLU"
    negative_slope: float = 0.2
    concat_heads: bool = True


KINDS = {
    "graph": (Graph, "a graph of make_csc or of a CSC class"),
    "params": (mha_params, "mha_params"),
    "aggregation_operation": (AggOp, "an AggOp"),
}


def _settings(caller: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the graph and the attributes of a call."""
    for name, (kind, expected) in KINDS.items():
        if not isinstance(given.get(name), kind) and name in given:
            raise TypeError(f"{caller}: {name} is a {type(given[name]).__name__}; expected {expected}")
    if "params" not in given:
        return {"graph": given["graph"].csc, "op": given["aggregation_operation"].value}
    more = {"return_softmax_scores": given["softmax_scores"] is not None} if caller.endswith("fwd") else {}
    return {"graph": given["graph"].csc, **vars(given["params"]), **more}


_ATTENTION = (
    "src_node_embedding<src_embedding dst_node_embedding<dst_embedding attention_weights<attention_weights {} graph "
    "params {} stream_id"
)
_AGGREGATED = "output_extrema_location{0}output_extrema_location node_degree{0}node_degree stream_id"
_MADE = partial(in_place, __name__, settings=_settings)
_AFTER_FORWARD = {"aggregation_operation": AggOp.Sum, "output_extrema_location": None, "node_degree": None}

mha_gat_n2n_fwd = _MADE(
    "mha_gat_n2n_fwd",
    "output_embedding>output_embedding softmax_scores>softmax_scores " + _ATTENTION.format("", ""),
    defaults={"stream_id": 0},
)
mha_gat_n2n_bwd = mha_gat_n2n_bwd_fp32_fp32_fp32_fp32 = _MADE(
    "mha_gat_n2n_bwd",
    "grad_src_node_embedding>src_embedding grad_dst_node_embedding>dst_embedding "
    "grad_attention_weights>attention_weights grad_softmax_scores grad_output_embedding<grad_output_embedding "
    + _ATTENTION.format("softmax_scores<softmax_scores", "grad_attention_weights_workspace"),
    defaults={"grad_attention_weights_workspace": None, "stream_id": 0},
)
agg_weighted_n2n_fwd = _MADE(
    "agg_weighted_n2n_fwd",
    "output_embedding>output_embedding input_embedding<embedding edge_weight<edge_weight graph aggregation_operation "
    + _AGGREGATED.format(">"),
    defaults={**_AFTER_FORWARD, "stream_id": 0},
)
agg_weighted_n2n_bwd = _MADE(
    "agg_weighted_n2n_bwd",
    "grad_input>embedding grad_edge_weight>edge_weight grad_output<grad_output_embedding edge_weight<edge_weight "
    "input_embedding<embedding graph aggregation_operation output_embedding<output_embedding "
    + _AGGREGATED.format("<"),
    defaults={**_AFTER_FORWARD, "output_embedding": None, "stream_id": 0},
)
