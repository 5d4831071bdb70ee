"""Weighted aggregation in NumPy.

A CSC position p is an in-edge of i from j with edge row e. Its message is m_p = w_e x_j (w = 1 without weights). The
result is the sum, mean, minimum or maximum of the messages, for every feature. mean = sum / node_degree, where
node_degree is the sum of the incoming weights or the number of in-edges. A destination without in-edges gets zeros.
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


def gather_position_weights(edge_weight, embedding, graph):
    """Return the weight of every position, as a column."""
    if edge_weight is None:
        return np.ones((graph.num_positions, 1), embedding.dtype)
    return edge_weight[graph.edge_ids][:, None]


def compute_degrees(w, graph, mean_by):
    """Return node_degree, the sum of the incoming weights or the number of in-edges."""
    if mean_by == "weight":
        return scatter_sum(find_position_destinations(graph), w, graph.num_dst_nodes)[:, 0]
    return np.diff(graph.offsets).astype(w.dtype)


def divide_by_degree(sums, degree, graph):
    """Divide sums by the degree, by IEEE rules if the degree is 0; zero for a destination without in-edges."""
    has_edges = np.diff(graph.offsets)[:, None] > 0
    return np.divide(sums, degree[:, None], out=np.zeros(sums.shape, np.result_type(sums, degree)), where=has_edges)


def find_extrema(messages, graph, op):
    """Return the position of the first smallest or largest message, or of the first NaN; -1 without in-edges."""
    pick = np.argmin if op == "min" else np.argmax
    location = np.full((graph.num_dst_nodes, messages.shape[1]), -1, graph.offsets.dtype)
    for i, (start, stop) in enumerate(zip(graph.offsets[:-1], graph.offsets[1:], strict=True)):
        if stop > start:
            location[i] = start + pick(messages[start:stop], axis=0)
    return location


def mark_extreme_positions(location, graph):
    """Return, for every position and feature, whether the position holds the extremum of its destination."""
    return location[find_position_destinations(graph)] == np.arange(graph.num_positions)[:, None]


def agg_weighted_n2n_fwd(embedding, edge_weight, graph, op="sum", mean_by="weight"):
    """Return out_i, the sum, mean, min or max of w_e x_j."""
    i, n = find_position_destinations(graph), graph.num_dst_nodes
    w = gather_position_weights(edge_weight, embedding, graph)
    messages = w * embedding[graph.indices]
    degree = location = None
    if op in ("min", "max"):
        # messages.real would contain products of two imaginary parts, which would decide between equal messages.
        location = find_extrema(w.real * embedding.real[graph.indices], graph, op)
        out = scatter_sum(i, zero_where_false(mark_extreme_positions(location, graph), messages), n)
    else:
        out = scatter_sum(i, messages, n)
    if op == "mean":
        degree = compute_degrees(w, graph, mean_by)
        out = divide_by_degree(out, degree, graph)
    return result_type("agg_weighted_n2n_fwd")(out, degree, location)


def agg_weighted_n2n_bwd(
    grad_output_embedding,
    embedding,
    edge_weight,
    graph,
    op="sum",
    mean_by="weight",
    output_embedding=None,
    node_degree=None,
    output_extrema_location=None,
    wrt=None,
):
    """Return the gradients x_j = sum over out-edges of w g_i and w_e = g_i.x_j; min and max use extrema only.

    For the mean, h_i = g_i / degree_i replaces g_i. For the mean by weight, x_j - out_i also replaces x_j in w_e.
    """
    i = find_position_destinations(graph)
    w, x, h = gather_position_weights(edge_weight, embedding, graph), embedding[graph.indices], grad_output_embedding[i]
    forward = agg_weighted_n2n_fwd(embedding, edge_weight, graph, op, mean_by)
    contributes = np.ones_like(x, bool)
    if op == "mean":
        h = h / (forward.node_degree if node_degree is None else node_degree)[i, None]
    if op in ("min", "max"):
        location = forward.output_extrema_location if output_extrema_location is None else output_extrema_location
        contributes = mark_extreme_positions(location, graph)

    def grad_edge_weight():
        if edge_weight is None:
            return None
        out = 0
        if op == "mean" and mean_by == "weight":
            out = (forward.output_embedding if output_embedding is None else output_embedding)[i]
        return scatter_sum(graph.edge_ids, zero_where_false(contributes, h * (x - out)).sum(1), graph.num_edges)

    return evaluate_fields(
        "agg_weighted_n2n_bwd",
        wrt,
        embedding=lambda: scatter_sum(graph.indices, zero_where_false(contributes, w * h), graph.num_src_nodes),
        edge_weight=grad_edge_weight,
    )


def agg_weighted_n2n_bwd2(
    gg_embedding,
    gg_edge_weight,
    grad_output_embedding,
    embedding,
    edge_weight,
    graph,
    op="sum",
    mean_by="weight",
    wrt=None,
):
    """Return the gradient of sum g out_dot. Names ending in _dot are derivatives along the cotangents gg_.

    Messages are bilinear: out_dot = sum w_dot x + w x_dot over the same positions, divided by the same degree. For the
    mean by weight, with rho = sum w_dot / degree, eta = x - out and h = g / degree: out_dot = sum (w x_dot + w_dot eta)
    / degree; the cotangent of x is sum (w_dot - rho w) h; the cotangent of w is h . (x_dot - out_dot - rho eta).
    """
    i, n = find_position_destinations(graph), graph.num_dst_nodes
    w, x, h = gather_position_weights(edge_weight, embedding, graph), embedding[graph.indices], grad_output_embedding[i]
    x_dot = zero_if_none(gg_embedding, embedding)[graph.indices]
    w_dot = np.zeros_like(w) if gg_edge_weight is None else gather_position_weights(gg_edge_weight, embedding, graph)
    forward = agg_weighted_n2n_fwd(embedding, edge_weight, graph, op, mean_by)
    contributes = np.ones_like(x, bool)
    weighted = edge_weight is not None
    centred = weighted and op == "mean" and mean_by == "weight"
    # Factors of w_dot in out_dot, and of h in the cotangents of w and x. Masks select, because 0 * inf would be NaN.
    eta, of_weight, of_embedding = x, x_dot, w_dot
    if op in ("min", "max"):
        contributes = mark_extreme_positions(forward.output_extrema_location, graph)
    if op == "mean":
        h = h / forward.node_degree[i, None]
    if centred:
        eta = x - forward.output_embedding[i]
    out_dot = scatter_sum(i, zero_where_false(contributes, w * x_dot + w_dot * eta if weighted else w * x_dot), n)
    if op == "mean":
        out_dot = divide_by_degree(out_dot, forward.node_degree, graph)
    if centred:
        rho = divide_by_degree(scatter_sum(i, w_dot, n), forward.node_degree, graph)[i]
        of_weight, of_embedding = x_dot - out_dot[i] - rho * eta, w_dot - w * rho

    def grad_edge_weight():
        if edge_weight is None:
            return None
        return scatter_sum(graph.edge_ids, zero_where_false(contributes, h * of_weight).sum(1), graph.num_edges)

    return evaluate_fields(
        "agg_weighted_n2n_bwd2",
        wrt,
        grad_output_embedding=lambda: out_dot,
        embedding=lambda: scatter_sum(
            graph.indices, zero_where_false(weighted & contributes, of_embedding * h), graph.num_src_nodes
        ),
        edge_weight=grad_edge_weight,
    )


def agg_weighted_n2n_kinks(embedding, edge_weight, graph, op="sum", mean_by="weight"):
    """Return each message's gap to the extremum, (num_positions, dim), which is zero where min or max is not smooth.

    The gap is 1 for the extremum itself and for a message that is the same function (same source and row). For sum and
    mean, which are smooth, the result is one column of ones.
    """
    if op not in ("min", "max"):
        return np.ones((len(graph.indices), 1))
    i = find_position_destinations(graph)
    messages = gather_position_weights(edge_weight, embedding, graph) * embedding[graph.indices]
    winner = find_extrema(messages, graph, op)[i]
    is_same_message = graph.indices[:, None] == graph.indices[winner]
    if edge_weight is not None:
        is_same_message &= graph.edge_ids[:, None] == graph.edge_ids[winner]
    return np.where(is_same_message, np.ones((), messages.dtype), messages - np.take_along_axis(messages, winner, 0))
