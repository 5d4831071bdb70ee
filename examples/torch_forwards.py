"""Forward functions of operators in PyTorch; trigraph verifies them and autograd's derivatives of them.

For example, run ``trigraph verify --implementation torch_forwards:gatconv --operator mha_gat_n2n --framework torch``.
"""

import torch
from torch_geometric.nn import GATConv


def list_sources_destinations_rows(graph):
    """Return the source, destination and edge row of each position of a graph, as tensors."""
    offsets, indices, edge_ids = (torch.tensor(a).long() for a in (graph.offsets, graph.indices, graph.edge_ids))
    return indices, torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.diff()), edge_ids


def gatconv(
    src_embedding,
    dst_embedding,
    attention_weights,
    graph,
    num_heads,
    concat_heads,
    activation,
    negative_slope,
    edge_embedding,
):
    """Return the output of PyTorch Geometric's GATConv for embeddings that are already transformed linearly."""
    if activation != "LeakyReLU":
        raise NotImplementedError(activation)
    width = src_embedding.shape[1]
    conv = GATConv(
        width,
        width // num_heads,
        num_heads,
        concat_heads,
        negative_slope,
        add_self_loops=False,
        edge_dim=None if edge_embedding is None else width,
        bias=False,
    )
    conv.lin = torch.nn.Identity()
    names = ["att_src", "att_dst"]
    if edge_embedding is not None:
        names.append("att_edge")
        conv.lin_edge = torch.nn.Identity()
    attention = attention_weights.view(len(names), 1, num_heads, width // num_heads)
    src, dst, rows = list_sources_destinations_rows(graph)
    edges = None if edge_embedding is None else edge_embedding[rows]
    inputs = ((src_embedding, dst_embedding), torch.stack([src, dst]), edges)
    return torch.func.functional_call(conv, dict(zip(names, attention, strict=True)), inputs)


def weighted_sum(embedding, edge_weight, graph, op, mean_by):
    """Return the weighted sum of source rows over the in-edges of each node."""
    if op != "sum":
        raise NotImplementedError(op)
    src, dst, rows = list_sources_destinations_rows(graph)
    messages = embedding[src]
    if edge_weight is not None:
        messages = edge_weight[rows][:, None] * messages
    return embedding.new_zeros(graph.num_dst_nodes, embedding.shape[1]).index_add(0, dst, messages)


def forgets_the_weights(embedding, edge_weight, graph, op, mean_by):
    """Sum like `weighted_sum`, but hide the weights from autograd."""
    detached = None if edge_weight is None else edge_weight.detach()
    return weighted_sum(embedding, detached, graph, op, mean_by)
