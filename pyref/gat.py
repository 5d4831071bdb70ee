"""Graph attention in NumPy.

Per head and position (an in-edge of i from j), with attention weights a_s, a_d, a_e for source, destination and edge:
raw = a_s.x_j + a_d.x_i + a_e.f_e, pre = act(raw), post = softmax of pre over the in-edges of i;
out_i = sum post x_j, with the heads concatenated or averaged. The features of a position are stacked: x[0] = x_j,
x[1] = x_i and, with edge features, x[2] = f_e, so that raw = sum_k a[k].x[k].
"""

import numpy as np

from trigraph.pyref.common import destinations, masked, results, scatter, zero_if_none
from trigraph.table import result_type


def split_heads(rows, num_heads):
    """Rows as (n, num_heads, dim_head)."""
    return rows.reshape(len(rows), num_heads, rows.shape[1] // num_heads)


def gather(src_embedding, dst_embedding, edge_embedding, graph, num_heads):
    """x[k, p, h, :]: the features of the source (k = 0), destination (1) and edge (2) of position p."""
    x = [src_embedding[graph.indices], dst_embedding[destinations(graph)]]
    if edge_embedding is not None:
        x.append(edge_embedding[graph.edge_ids])
    return np.stack([split_heads(rows, num_heads) for rows in x])


def split_weights(attention_weights, x):
    """a[k, h, :]: the attention weights that multiply x[k]."""
    return attention_weights.reshape(len(x), x.shape[2], x.shape[3])


def score(a, x):
    """sum_k a[k].x[k] of every position and head."""
    return np.einsum("khd,kphd->ph", a, x)


def sigmoid(raw):
    """1 / (1 + exp(-raw)) without overflow; scipy's is 0 in float32 where the result is subnormal."""
    e = np.exp(-abs(raw))
    return np.where(raw <= 0, e, 1) / (1 + e)


def act(raw, activation, negative_slope):
    """Activation of the scores. Masks select instead of multiplying, so that a NaN stays a NaN."""
    positive = ~(raw <= 0)
    if activation == "ReLU":
        return masked(positive, raw)
    if activation == "LeakyReLU":
        return np.where(positive, raw, negative_slope * raw)
    if activation == "ELU":
        return np.where(positive, raw, np.expm1(np.minimum(raw, 0)))
    if activation == "sigmoid":
        return sigmoid(raw)
    return np.tanh(raw) if activation == "tanh" else raw


def act_slope(raw, t, activation, negative_slope):
    """act'(raw) t. At raw = 0 it takes the value of the negative side."""
    positive = ~(raw <= 0)
    if activation == "ReLU":
        return masked(positive, t)
    if activation == "LeakyReLU":
        return np.where(positive, t, negative_slope * t)
    if activation == "ELU":
        return np.where(positive, t, np.exp(np.minimum(raw, 0)) * t)
    if activation == "sigmoid":
        return sigmoid(raw) * (1 - sigmoid(raw)) * t
    return (1 - np.tanh(raw) ** 2) * t if activation == "tanh" else t


def act_curvature(raw, t, activation):
    """act''(raw) t."""
    if activation == "ELU":
        return masked(raw <= 0, np.exp(np.minimum(raw, 0)) * t)
    if activation == "sigmoid":
        return sigmoid(raw) * (1 - sigmoid(raw)) * (1 - 2 * sigmoid(raw)) * t
    return -2 * np.tanh(raw) * (1 - np.tanh(raw) ** 2) * t if activation == "tanh" else np.zeros_like(t)


def softmax(pre, i, num_dst_nodes):
    """Softmax over the positions of each destination."""
    peak = np.full((num_dst_nodes, pre.shape[1]), -np.inf, pre.dtype)
    np.maximum.at(peak, i, pre)
    e = np.exp(pre - peak[i])
    return e / scatter(i, e, num_dst_nodes)[i]


def mean(post, t, i, num_dst_nodes):
    """Mean of t over the positions of each destination, weighted by post and repeated for each position."""
    return scatter(i, post * t, num_dst_nodes)[i]


def join_heads(out, concat_heads):
    """Concatenate the heads, or average them."""
    return out.reshape(len(out), out.shape[1] * out.shape[2]) if concat_heads else out.sum(1) / out.shape[1]


def join_heads_vjp(grad_output_embedding, num_heads, concat_heads):
    """Gradient with respect to the output of every head."""
    if concat_heads:
        return split_heads(grad_output_embedding, num_heads)
    return np.repeat(grad_output_embedding[:, None] / num_heads, num_heads, axis=1)


def embedding_gradients(rows, graph):
    """Gradients of the source, destination and edge embedding (None without one) from the gradient of x."""

    def joined(k, index, num):
        return scatter(index, join_heads(rows[k], True), num)

    return {
        "src_embedding": lambda: joined(0, graph.indices, graph.num_src_nodes),
        "dst_embedding": lambda: joined(1, destinations(graph), graph.num_dst_nodes),
        "edge_embedding": lambda: joined(2, graph.edge_ids, graph.num_edges) if len(rows) == 3 else None,
    }


def mha_gat_n2n_fwd(
    src_embedding,
    dst_embedding,
    attention_weights,
    graph,
    num_heads,
    concat_heads=True,
    activation="LeakyReLU",
    negative_slope=0.2,
    edge_embedding=None,
    return_softmax_scores=False,
):
    """out_i = sum post x_j."""
    i, n = destinations(graph), graph.num_dst_nodes
    x = gather(src_embedding, dst_embedding, edge_embedding, graph, num_heads)
    pre = act(score(split_weights(attention_weights, x), x), activation, negative_slope)
    post = softmax(pre, i, n)
    out = scatter(i, post[:, :, None] * x[0], n)
    scores = np.ascontiguousarray([pre.T, post.T]) if return_softmax_scores else None
    return result_type("mha_gat_n2n_fwd")(join_heads(out, concat_heads), scores)


def mha_gat_n2n_bwd(
    grad_output_embedding,
    src_embedding,
    dst_embedding,
    attention_weights,
    graph,
    num_heads,
    concat_heads=True,
    activation="LeakyReLU",
    negative_slope=0.2,
    edge_embedding=None,
    softmax_scores=None,
    wrt=None,
):
    """With dpost = g.x_j, dpre = post (dpost - sum post dpost), draw = act' dpre: x[k] gets a[k] draw, x_j post g."""
    i, n = destinations(graph), graph.num_dst_nodes
    x = gather(src_embedding, dst_embedding, edge_embedding, graph, num_heads)
    a = split_weights(attention_weights, x)
    raw = score(a, x)
    post = softmax(act(raw, activation, negative_slope), i, n) if softmax_scores is None else softmax_scores[1].T
    g = join_heads_vjp(grad_output_embedding, num_heads, concat_heads)[i]
    dpost = (g * x[0]).sum(2)
    dpre = post * (dpost - mean(post, dpost, i, n))
    draw = act_slope(raw, dpre, activation, negative_slope)
    rows = a[:, None] * draw[:, :, None]
    rows[0] += post[:, :, None] * g
    fields = embedding_gradients(rows, graph)
    return results(
        "mha_gat_n2n_bwd", wrt, attention_weights=lambda: np.einsum("ph,kphd->khd", draw, x).reshape(-1), **fields
    )


def mha_gat_n2n_bwd2(
    gg_src_embedding,
    gg_dst_embedding,
    gg_attention_weights,
    gg_edge_embedding,
    grad_output_embedding,
    src_embedding,
    dst_embedding,
    attention_weights,
    graph,
    num_heads,
    concat_heads=True,
    activation="LeakyReLU",
    negative_slope=0.2,
    edge_embedding=None,
    wrt=None,
):
    """Gradient of sum g outdot. Names ending in dot are derivatives along the cotangents gg_.

    postdot = post c with c = predot - sum post predot, and outdot_i = sum postdot x_j + post xdot_j. With u = g.x_j
    and its mean U = sum post u, the cotangent of predot is post (u - U), and that of post is g.xdot_j + c (u - U), up
    to a constant for each destination, which the derivative of the softmax cancels.
    """
    i, n = destinations(graph), graph.num_dst_nodes
    x = gather(src_embedding, dst_embedding, edge_embedding, graph, num_heads)
    gg = zero_if_none(gg_src_embedding, src_embedding), zero_if_none(gg_dst_embedding, dst_embedding)
    gg_edge = None if edge_embedding is None else zero_if_none(gg_edge_embedding, edge_embedding)
    xdot = gather(*gg, gg_edge, graph, num_heads)
    a = split_weights(attention_weights, x)
    adot = split_weights(zero_if_none(gg_attention_weights, attention_weights), x)
    raw, rawdot = score(a, x), score(adot, x) + score(a, xdot)
    post = softmax(act(raw, activation, negative_slope), i, n)
    predot = act_slope(raw, rawdot, activation, negative_slope)
    c = predot - mean(post, predot, i, n)
    postdot = post * c
    g = join_heads_vjp(grad_output_embedding, num_heads, concat_heads)[i]
    u, v = (g * x[0]).sum(2), (g * xdot[0]).sum(2)
    deviation = u - mean(post, u, i, n)
    dpredot = post * deviation
    dpost = v + c * deviation
    dpre = post * (dpost - mean(post, dpost, i, n))
    drawdot = act_slope(raw, dpredot, activation, negative_slope)
    draw = act_slope(raw, dpre, activation, negative_slope) + act_curvature(raw, rawdot * dpredot, activation)
    rows = a[:, None] * draw[:, :, None] + adot[:, None] * drawdot[:, :, None]
    rows[0] += postdot[:, :, None] * g

    def out_grad():
        outdot = scatter(i, postdot[:, :, None] * x[0] + post[:, :, None] * xdot[0], n)
        return join_heads(outdot, concat_heads)

    def out_weights():
        return (np.einsum("ph,kphd->khd", draw, x) + np.einsum("ph,kphd->khd", drawdot, xdot)).reshape(-1)

    fields = embedding_gradients(rows, graph)
    return results("mha_gat_n2n_bwd2", wrt, grad_output_embedding=out_grad, attention_weights=out_weights, **fields)


def mha_gat_n2n_kinks(
    src_embedding,
    dst_embedding,
    attention_weights,
    graph,
    num_heads,
    concat_heads=True,
    activation="LeakyReLU",
    negative_slope=0.2,
    edge_embedding=None,
):
    """Where graph attention is not smooth: raw = 0, (num_positions, num_heads); ELU's second derivative jumps there.

    Scores are linear in the embeddings: each row is multiplied by the attention weights once, then gathered.
    """
    if activation not in ("ReLU", "LeakyReLU", "ELU"):
        return np.ones((len(graph.indices), num_heads))
    rows = {0: (src_embedding, graph.indices), 1: (dst_embedding, destinations(graph))}
    if edge_embedding is not None:
        rows[2] = (edge_embedding, graph.edge_ids)
    a = attention_weights.reshape(len(rows), num_heads, -1)
    return sum(np.einsum("hd,nhd->nh", a[k], split_heads(x, num_heads))[index] for k, (x, index) in rows.items())
