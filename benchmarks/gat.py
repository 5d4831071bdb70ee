"""Workloads of graph attention, and what users run without trigraph: scores and messages of every edge.

All start from transformed features, since the linear layer is the same matrix product for all. ``pyg`` is PyTorch
Geometric's GATConv after its linear layer, ``torch`` the same by torch's scatters.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from trigraph.benchmarks.peers import by_autograd, compiled, edge_index, torch_peers
from trigraph.benchmarks.workloads import Case, Step, Workload

SIZES = {
    "num_src_nodes": 20_000,
    "num_dst_nodes": 20_000,
    "num_positions": 400_000,
    "num_edges": 400_000,
    "dim_head": 16,
    "num_heads": 4,
}
SLOPE = 0.2
ABOUT = {
    "torch": "plain torch, autograd",
    "pyg": "PyTorch Geometric GATConv after its linear layer, autograd",
    "torch-compile": "torch.compile, autograd",
    "pyg-compile": "the same through torch.compile",
}
GRADIENTS = ("src_embedding", "dst_embedding", "attention_weights")
Attention = Callable[[Any, Any, Any, Any], Any]


def _pyg_attention(case: Case, edges: Any) -> Attention:
    """GATConv without its linear layer: from embeddings (nodes, heads, width) and scores of nodes to the output."""
    from torch_geometric.nn import GATConv

    heads, size = case.sizes["num_heads"], (case.graph.num_src_nodes, case.graph.num_dst_nodes)
    convolution = GATConv(1, case.sizes["dim_head"], heads, negative_slope=SLOPE, add_self_loops=False, bias=False)

    def attend(src: Any, dst: Any, src_score: Any, dst_score: Any) -> Any:
        alpha = convolution.edge_updater(edges, alpha=(src_score, dst_score), edge_attr=None, size=size)
        return convolution.propagate(edges, x=(src, dst), alpha=alpha, size=size)

    return attend


def _torch_attention(case: Case, edges: Any) -> Attention:
    from torch.nn.functional import leaky_relu

    source, target = edges
    nodes = case.graph.num_dst_nodes

    def attend(src: Any, dst: Any, src_score: Any, dst_score: Any) -> Any:
        score = leaky_relu(src_score[source] + dst_score[target], SLOPE)
        zeros, each = score.new_zeros(nodes, score.shape[1]), target.unsqueeze(1).expand_as(score)
        largest = zeros.scatter_reduce(0, each, score.detach(), "amax", include_self=False)
        powers = (score - largest[target]).exp()
        share = powers / zeros.index_add(0, target, powers)[target]
        return src.new_zeros(nodes, *src.shape[1:]).index_add(0, target, src[source] * share.unsqueeze(2))

    return attend


def forward(case: Case, device: str, form: str) -> Callable[[Any, Any, Any], Any]:
    """Return attention as a function of both embeddings and the attention weights, all tensors."""
    graph, heads = case.graph, (case.sizes["num_heads"], case.sizes["dim_head"])
    if form == "trigraph":
        from trigraph.torch import mha_gat_n2n

        return lambda src_embedding, dst_embedding, attention_weights: (
            mha_gat_n2n(
                src_embedding, dst_embedding, attention_weights, graph, heads[0], negative_slope=SLOPE
            ).output_embedding
        )
    attend = (_pyg_attention if form.startswith("pyg") else _torch_attention)(case, edge_index(case, device))

    def function(src_embedding: Any, dst_embedding: Any, attention_weights: Any) -> Any:
        src, dst = src_embedding.view(-1, *heads), dst_embedding.view(-1, *heads)
        src_weights, dst_weights = attention_weights.view(2, *heads)
        return attend(src, dst, (src * src_weights).sum(-1), (dst * dst_weights).sum(-1)).flatten(1)

    return compiled(function, form)


STEPS = (Step("mha_gat_n2n_fwd"), Step("mha_gat_n2n_bwd"))
UNIFORM = Workload(
    name="gat",
    family="gat",
    summary="graph attention, forward and backward to embeddings and attention weights",
    steps=STEPS,
    sizes=SIZES,
    peers=torch_peers(partial(by_autograd, forward=forward), ABOUT),
    settings={"edge_embedding": None, "negative_slope": SLOPE},
)
WORKLOADS = (UNIFORM, UNIFORM.on_power_law())
