"""Workloads of graph attention, and their peers, which compute the scores and messages of every edge.

All contenders start from transformed features, because the linear layer is the same matrix product for all.
``pyg`` is PyTorch Geometric's GATConv after its linear layer.
"""

from collections.abc import Callable
from typing import Any

from trigraph.benchmarks.workloads import Step, Workload, WorkloadInputs, make_edge_index, make_pyg_peers

SIZES = {
    "num_src_nodes": 20_000,
    "num_dst_nodes": 20_000,
    "num_positions": 400_000,
    "num_edges": 400_000,
    "dim_head": 16,
    "num_heads": 4,
}


def make_pyg_forward(case: WorkloadInputs, device: str) -> Callable[[Any, Any, Any], Any]:
    """Return GATConv without its linear layer, as a function of both embeddings and the attention weights."""
    from torch_geometric.nn import GATConv

    edges, heads = make_edge_index(case, device), (case.sizes["num_heads"], case.sizes["dim_head"])
    size = case.graph.num_src_nodes, case.graph.num_dst_nodes
    convolution = GATConv(1, heads[1], heads[0], add_self_loops=False, bias=False)

    def compute_attention(src_embedding: Any, dst_embedding: Any, attention_weights: Any) -> Any:
        src, dst = src_embedding.view(-1, *heads), dst_embedding.view(-1, *heads)
        src_weights, dst_weights = attention_weights.view(2, *heads)
        scores = (src * src_weights).sum(-1), (dst * dst_weights).sum(-1)
        alpha = convolution.edge_updater(edges, alpha=scores, edge_attr=None, size=size)
        return convolution.propagate(edges, x=(src, dst), alpha=alpha, size=size).flatten(1)

    return compute_attention


UNIFORM = Workload(
    name="gat",
    family="gat",
    summary="graph attention and its gradients with respect to embeddings and attention weights",
    steps=(Step("mha_gat_n2n_fwd"), Step("mha_gat_n2n_bwd")),
    sizes=SIZES,
    peers=make_pyg_peers(make_pyg_forward, "GATConv after its linear layer"),
    absent=("edge_embedding",),
)
WORKLOADS = (UNIFORM, UNIFORM.with_power_law_graph())
