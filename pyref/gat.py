"""Graph attention in NumPy.

For each head and position (an in-edge of i from j), with attention weights a_s, a_d, a_e for source, destination and
edge: score = a_s.x_j + a_d.x_i + a_e.f_e, logit = act(score), alpha = softmax of logit over the in-edges of i;
out_i = sum alpha x_j, with the heads concatenated or averaged. The features of a position are stacked: x[0] = x_j,
x[1] = x_i and, with edge features, x[2] = f_e, so that score = sum_k a[k].x[k].
"""

import numpy as np

from trigraph.pyref.common import (
    evaluate_fields,
    find_position_destinations,
    scatter_sum,
    zero_if_none,
    zero_where_false,
)
from trigraph.table import result_type


def split_heads(rows, num_heads):
    """Return rows as (n, num_heads, dim_head)."""
    return rows.reshape(len(rows), num_heads, rows.shape[1] // num_heads)


def gather_position_features(src_embedding, dst_embedding, edge_embedding, graph, num_heads):
    """Return x[k, p, h, :], the features of the source (k = 0), destination (1) and edge (2) of position p."""
    x = [src_embedding[graph.indices], dst_embedding[find_position_destinations(graph)]]
    if edge_embedding is not None:
        x.append(edge_embedding[graph.edge_ids])
    return np.stack([split_heads(rows, num_heads) for rows in x])


def split_weights(attention_weights, x):
    """Return a[k, h, :], the attention weights that multiply x[k]."""
    return attention_weights.reshape(len(x), x.shape[2], x.shape[3])


def compute_scores(a, x):
    """Return sum_k a[k].x[k] of every position and head."""
    score = np.einsum("khd,kphd->ph", a, x)
    if np.iscomplexobj(score):  # remove products of imaginary parts, which could change the sign of a score of 0
        score.real = np.einsum("khd,kphd->ph", a.real, x.real)
    return score


def sigmoid(score):
    """Return 1 / (1 + exp(-score)) without overflow; SciPy's expit is 0 in float32 if the result is subnormal."""
    negative = score.real <= 0
    e = np.exp(np.where(negative, score, -score))
    return np.where(negative, e, 1) / (1 + e)


def activate(score, activation, negative_slope):
    """Return the activation of the scores. Masks select instead of multiplying, so that a NaN stays a NaN."""
    positive = ~(score.real <= 0)
    if activation == "ReLU":
        return zero_where_false(positive, score)
    if activation == "LeakyReLU":
        return np.where(positive, score, negative_slope * score)
    if activation == "ELU":
        return np.where(positive, score, np.expm1(zero_where_false(~positive, score)))
    if activation == "sigmoid":
        return sigmoid(score)
    return np.tanh(score) if activation == "tanh" else score


def multiply_by_slope(score, t, activation, negative_slope):
    """Return act'(score) t, at score = 0 with the derivative of the negative side."""
    positive = ~(score.real <= 0)
    if activation == "ReLU":
        return zero_where_false(positive, t)
    if activation == "LeakyReLU":
        return np.where(positive, t, negative_slope * t)
    if activation == "ELU":
        return np.where(positive, t, np.exp(zero_where_false(~positive, score)) * t)
    if activation == "sigmoid":
        return sigmoid(score) * (1 - sigmoid(score)) * t
    return (1 - np.tanh(score) ** 2) * t if activation == "tanh" else t


def multiply_by_curvature(score, t, activation):
    """Return act''(score) t."""
    if activation == "ELU":
        return zero_where_false(score.real <= 0, np.exp(zero_where_false(score.real <= 0, score)) * t)
    if activation == "sigmoid":
        return sigmoid(score) * (1 - sigmoid(score)) * (1 - 2 * sigmoid(score)) * t
    return -2 * np.tanh(score) * (1 - np.tanh(score) ** 2) * t if activation == "tanh" else np.zeros_like(t)


def softmax_by_destination(logit, i, num_dst_nodes):
    """Return the softmax over the positions of each destination."""
    peak = np.full((num_dst_nodes, logit.shape[1]), -np.inf, logit.real.dtype)
    np.maximum.at(peak, i, logit.real)
    e = np.exp(logit - peak[i])
    return e / scatter_sum(i, e, num_dst_nodes)[i]


def weighted_mean_by_destination(alpha, t, i, num_dst_nodes):
    """Return the mean of t over the positions of each destination, weighted by alpha, repeated for each position."""
    return scatter_sum(i, alpha * t, num_dst_nodes)[i]


def join_heads(out, concat_heads):
    """Concatenate the heads, or average them."""
    return out.reshape(len(out), out.shape[1] * out.shape[2]) if concat_heads else out.sum(1) / out.shape[1]


def join_heads_vjp(grad_output_embedding, num_heads, concat_heads):
    """Return the gradient with respect to the output of every head."""
    if concat_heads:
        return split_heads(grad_output_embedding, num_heads)
    return np.repeat(grad_output_embedding[:, None] / num_heads, num_heads, axis=1)


def make_embedding_gradient_functions(rows, graph):
    """Return the gradients of the source, destination and edge embedding (or None) from the gradient of x."""

    def sum_embedding_gradient(k, index, num):
        return scatter_sum(index, join_heads(rows[k], True), num)

    return {
        "src_embedding": lambda: sum_embedding_gradient(0, graph.indices, graph.num_src_nodes),
        "dst_embedding": lambda: sum_embedding_gradient(1, find_position_destinations(graph), graph.num_dst_nodes),
        "edge_embedding": lambda: (
            sum_embedding_gradient(2, graph.edge_ids, graph.num_edges) if len(rows) == 3 else None
        ),
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
    """Return out_i = sum alpha x_j."""
    i, n = find_position_destinations(graph), graph.num_dst_nodes
    x = gather_position_features(src_embedding, dst_embedding, edge_embedding, graph, num_heads)
    logit = activate(compute_scores(split_weights(attention_weights, x), x), activation, negative_slope)
    alpha = softmax_by_destination(logit, i, n)
    out = scatter_sum(i, alpha[:, :, None] * x[0], n)
    softmax_scores = np.ascontiguousarray([logit.T, alpha.T]) if return_softmax_scores else None
    return result_type("mha_gat_n2n_fwd")(join_heads(out, concat_heads), softmax_scores)


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
    """Compute grad_score = act' grad_logit, with grad_logit = alpha (u - sum alpha u) and u = g.x_j.

    The gradient of x[k] is a[k] grad_score; x_j also gets alpha g.
    """
    i, n = find_position_destinations(graph), graph.num_dst_nodes
    x = gather_position_features(src_embedding, dst_embedding, edge_embedding, graph, num_heads)
    a = split_weights(attention_weights, x)
    score = compute_scores(a, x)
    alpha = (
        softmax_by_destination(activate(score, activation, negative_slope), i, n)
        if softmax_scores is None
        else softmax_scores[1].T
    )
    g = join_heads_vjp(grad_output_embedding, num_heads, concat_heads)[i]
    u = (g * x[0]).sum(2)
    grad_logit = alpha * (u - weighted_mean_by_destination(alpha, u, i, n))
    grad_score = multiply_by_slope(score, grad_logit, activation, negative_slope)
    rows = a[:, None] * grad_score[:, :, None]
    rows[0] += alpha[:, :, None] * g
    fields = make_embedding_gradient_functions(rows, graph)
    return evaluate_fields(
        "mha_gat_n2n_bwd", wrt, attention_weights=lambda: np.einsum("ph,kphd->khd", grad_score, x).reshape(-1), **fields
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
    """Return the gradient of sum g out_dot. Names ending in _dot are derivatives along the cotangents gg_.

    alpha_dot = alpha gamma with gamma = logit_dot - sum alpha logit_dot, and out_dot_i = sum alpha_dot x_j + alpha
    x_dot_j. With u = g.x_j and delta = u - sum alpha u, the cotangent of logit_dot is alpha delta. The cotangent of
    alpha is t = g.x_dot_j + gamma delta, up to a constant per destination that the derivative of the softmax cancels.
    """
    i, n = find_position_destinations(graph), graph.num_dst_nodes
    x = gather_position_features(src_embedding, dst_embedding, edge_embedding, graph, num_heads)
    gg = zero_if_none(gg_src_embedding, src_embedding), zero_if_none(gg_dst_embedding, dst_embedding)
    gg_edge = None if edge_embedding is None else zero_if_none(gg_edge_embedding, edge_embedding)
    x_dot = gather_position_features(*gg, gg_edge, graph, num_heads)
    a = split_weights(attention_weights, x)
    a_dot = split_weights(zero_if_none(gg_attention_weights, attention_weights), x)
    score, score_dot = compute_scores(a, x), compute_scores(a_dot, x) + compute_scores(a, x_dot)
    alpha = softmax_by_destination(activate(score, activation, negative_slope), i, n)
    logit_dot = multiply_by_slope(score, score_dot, activation, negative_slope)
    gamma = logit_dot - weighted_mean_by_destination(alpha, logit_dot, i, n)
    alpha_dot = alpha * gamma
    g = join_heads_vjp(grad_output_embedding, num_heads, concat_heads)[i]
    u = (g * x[0]).sum(2)
    delta = u - weighted_mean_by_destination(alpha, u, i, n)
    t = (g * x_dot[0]).sum(2) + gamma * delta
    grad_logit_dot = alpha * delta
    grad_logit = alpha * (t - weighted_mean_by_destination(alpha, t, i, n))
    grad_score_dot = multiply_by_slope(score, grad_logit_dot, activation, negative_slope)
    grad_score = multiply_by_slope(score, grad_logit, activation, negative_slope)
    grad_score = grad_score + multiply_by_curvature(score, score_dot * grad_logit_dot, activation)
    rows = a[:, None] * grad_score[:, :, None] + a_dot[:, None] * grad_score_dot[:, :, None]
    rows[0] += alpha_dot[:, :, None] * g

    def compute_output_tangent():
        out_dot = scatter_sum(i, alpha_dot[:, :, None] * x[0] + alpha[:, :, None] * x_dot[0], n)
        return join_heads(out_dot, concat_heads)

    def grad_attention_weights():
        weights = np.einsum("ph,kphd->khd", grad_score, x) + np.einsum("ph,kphd->khd", grad_score_dot, x_dot)
        return weights.reshape(-1)

    fields = make_embedding_gradient_functions(rows, graph)
    return evaluate_fields(
        "mha_gat_n2n_bwd2",
        wrt,
        grad_output_embedding=compute_output_tangent,
        attention_weights=grad_attention_weights,
        **fields,
    )


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
    """Return the scores (num_positions, num_heads), which are zero where graph attention, or ELU's slope, has a kink.

    Scores are linear in the embeddings, so each row is multiplied by the attention weights once, then gathered.
    """
    if activation not in ("ReLU", "LeakyReLU", "ELU"):
        return np.ones((len(graph.indices), num_heads))
    rows = {0: (src_embedding, graph.indices), 1: (dst_embedding, find_position_destinations(graph))}
    if edge_embedding is not None:
        rows[2] = (edge_embedding, graph.edge_ids)
    a = attention_weights.reshape(len(rows), num_heads, -1)
    return sum(np.einsum("hd,nhd->nh", a[k], split_heads(x, num_heads))[index] for k, (x, index) in rows.items())
