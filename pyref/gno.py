"""Graph neural operator in NumPy.

For each edge: z = U xi + b_u, a = relu(z) with relu'(0) = 0, kernel = V a + b_v. For each destination:
message_i = sum over e into i of K_e h_src(e). The mask of relu is ``not (z <= 0)``. The mask selects instead of
multiplying, so that a NaN reaches only the results that depend on it.
"""

import numpy as np

from trigraph.gno_params import unpack_gno_params
from trigraph.graphs import CSC
from trigraph.pyref.common import (
    evaluate_fields,
    find_position_destinations,
    scatter_sum,
    zero_if_none,
    zero_where_false,
)


def pack_params(U, b_u, V, b_v):
    """Return one vector of parameters from the blocks, with column-major matrices."""
    return np.concatenate([U.T.reshape(-1), b_u, V.T.reshape(-1), b_v])


def compute_mask_and_activations(xi, U, b_u):
    """Return mask and a = relu(z) of every edge, each (num_edges, H)."""
    z = xi @ U.T + b_u
    mask = ~(xi.real @ U.real.T + b_u.real <= 0)  # not z.real, which contains products of imaginary parts
    return mask, zero_where_false(mask, z)


def gno_kernel_fwd(coords, params, f_in, f_out):
    """Return the kernel V a + b_v."""
    U, b_u, V, b_v = unpack_gno_params(params, coords.shape[1], f_in, f_out)
    _, a = compute_mask_and_activations(coords, U, b_u)
    return a @ V.T + b_v


def gno_kernel_bwd(grad_kernel, coords, params, f_in, f_out, wrt=None):
    """Return gradients, s = mask (V^T g): coords = U^T s; U = sum s xi^T; b_u = sum s; V = sum g a^T; b_v = sum g."""
    U, b_u, V, _ = unpack_gno_params(params, coords.shape[1], f_in, f_out)
    g, xi = grad_kernel, coords
    mask, a = compute_mask_and_activations(xi, U, b_u)
    s = zero_where_false(mask, g @ V)
    return evaluate_fields(
        "gno_kernel_bwd",
        wrt,
        coords=lambda: s @ U,
        params=lambda: pack_params(s.T @ xi, s.sum(0), g.T @ a, g.sum(0)),
    )


def gno_kernel_bwd2(gg_coords, gg_params, grad_kernel, coords, params, f_in, f_out, wrt=None):
    """Differentiate bwd with a_dot = mask (U xi_dot + U_dot xi + b_u_dot) and s_dot = mask (V_dot^T g)."""
    U, b_u, V, b_v = unpack_gno_params(params, coords.shape[1], f_in, f_out)
    xi, xi_dot = coords, zero_if_none(gg_coords, coords)
    U_dot, b_u_dot, V_dot, b_v_dot = unpack_gno_params(zero_if_none(gg_params, params), coords.shape[1], f_in, f_out)
    g = grad_kernel
    mask, a = compute_mask_and_activations(xi, U, b_u)
    s, s_dot = zero_where_false(mask, g @ V), zero_where_false(mask, g @ V_dot)
    a_dot = zero_where_false(mask, xi_dot @ U.T + xi @ U_dot.T + b_u_dot)
    return evaluate_fields(
        "gno_kernel_bwd2",
        wrt,
        grad_kernel=lambda: a_dot @ V.T + a @ V_dot.T + b_v_dot,
        coords=lambda: s @ U_dot + s_dot @ U,
        params=lambda: pack_params(s.T @ xi_dot + s_dot.T @ xi, s_dot.sum(0), g.T @ a_dot, np.zeros_like(b_v)),
    )


def gno_kernel_kinks(coords, params, f_in, f_out):
    """Return z, which is zero where gno_kernel is not smooth."""
    U, b_u, _, _ = unpack_gno_params(params, coords.shape[1], f_in, f_out)
    return coords @ U.T + b_u


def reshape_kernel_to_matrices(kernel, f_in, f_out):
    """Return K[e, f, o], with f_out as the fastest index."""
    return kernel.reshape(len(kernel), f_in, f_out)


def gno_aggregate_fwd(features, kernel, graph, f_in, f_out):
    """Return message_i = sum over e into i of K_e h_src(e)."""
    K = reshape_kernel_to_matrices(kernel, f_in, f_out)[graph.edge_ids]
    return scatter_sum(
        find_position_destinations(graph), np.einsum("pfo,pf->po", K, features[graph.indices]), graph.num_dst_nodes
    )


def gno_aggregate_bwd(grad_message, features, kernel, graph, f_in, f_out, wrt=None):
    """Return the gradients features_j = sum over e out of j of K_e^T g_dst(e) and kernel_e = g_dst(e) h_src(e)^T."""
    K = reshape_kernel_to_matrices(kernel, f_in, f_out)[graph.edge_ids]
    g, h = grad_message[find_position_destinations(graph)], features[graph.indices]

    def grad_kernel():
        outer = np.einsum("po,pf->pfo", g, h).reshape(len(g), f_in * f_out)
        return scatter_sum(graph.edge_ids, outer, graph.num_edges)

    return evaluate_fields(
        "gno_aggregate_bwd",
        wrt,
        features=lambda: scatter_sum(graph.indices, np.einsum("pfo,po->pf", K, g), graph.num_src_nodes),
        kernel=grad_kernel,
    )


def gno_aggregate_bwd2(gg_features, gg_kernel, grad_message, features, kernel, graph, f_in, f_out, wrt=None):
    """Polarise the bilinear form: replace each factor in turn by its cotangent."""
    h_dot, K_dot = zero_if_none(gg_features, features), zero_if_none(gg_kernel, kernel)
    args = (graph, f_in, f_out)
    return evaluate_fields(
        "gno_aggregate_bwd2",
        wrt,
        grad_message=lambda: gno_aggregate_fwd(h_dot, kernel, *args) + gno_aggregate_fwd(features, K_dot, *args),
        features=lambda: gno_aggregate_bwd(grad_message, features, K_dot, *args, wrt="features").features,
        kernel=lambda: gno_aggregate_bwd(grad_message, h_dot, kernel, *args, wrt="kernel").kernel,
    )


def copy_with_row_per_position(graph):
    """Return the graph with one edge row for each position, so that a NaN in an unused edge row has no effect."""
    return CSC(graph.offsets, graph.indices, graph.num_src_nodes)


def gno_message_fwd(features, coords, params, graph, f_in, f_out):
    """Compute the kernel of every position, then aggregate."""
    kernel = gno_kernel_fwd(coords[graph.edge_ids], params, f_in, f_out)
    return gno_aggregate_fwd(features, kernel, copy_with_row_per_position(graph), f_in, f_out)


def gno_message_bwd(grad_message, features, coords, params, graph, f_in, f_out, wrt=None):
    """Apply the chain rule: gno_kernel_bwd gets the kernel's gradient g h^T and returns coords and params."""
    xi = coords[graph.edge_ids]
    kernel = gno_kernel_fwd(xi, params, f_in, f_out)
    aggregate_gradients = gno_aggregate_bwd(
        grad_message, features, kernel, copy_with_row_per_position(graph), f_in, f_out
    )
    kernel_gradients = gno_kernel_bwd(aggregate_gradients.kernel, xi, params, f_in, f_out)
    return evaluate_fields(
        "gno_message_bwd",
        wrt,
        features=lambda: aggregate_gradients.features,
        coords=lambda: scatter_sum(graph.edge_ids, kernel_gradients.coords, graph.num_edges),
        params=lambda: kernel_gradients.params,
    )


def gno_message_bwd2(
    gg_features, gg_coords, gg_params, grad_message, features, coords, params, graph, f_in, f_out, wrt=None
):
    """Combine K_dot from gno_kernel_bwd2 at g h^T, sums of gno_aggregate, and gno_kernel_bwd at g h_dot^T."""
    h_dot = zero_if_none(gg_features, features)
    xi, xi_dot = coords[graph.edge_ids], zero_if_none(gg_coords, coords)[graph.edge_ids]
    args = (copy_with_row_per_position(graph), f_in, f_out)
    kernel = gno_kernel_fwd(xi, params, f_in, f_out)
    g_h = gno_aggregate_bwd(grad_message, features, kernel, *args, wrt="kernel").kernel
    g_h_dot = gno_aggregate_bwd(grad_message, h_dot, kernel, *args, wrt="kernel").kernel
    second_order = gno_kernel_bwd2(xi_dot, gg_params, g_h, xi, params, f_in, f_out)
    first_order = gno_kernel_bwd(g_h_dot, xi, params, f_in, f_out)
    K_dot = second_order.grad_kernel
    return evaluate_fields(
        "gno_message_bwd2",
        wrt,
        grad_message=lambda: gno_aggregate_fwd(h_dot, kernel, *args) + gno_aggregate_fwd(features, K_dot, *args),
        features=lambda: gno_aggregate_bwd(grad_message, features, K_dot, *args, wrt="features").features,
        coords=lambda: scatter_sum(graph.edge_ids, second_order.coords + first_order.coords, graph.num_edges),
        params=lambda: second_order.params + first_order.params,
    )


def gno_message_kinks(features, coords, params, graph, f_in, f_out):
    """Return z, which is zero where the kernel, and with it gno_message, is not smooth."""
    return gno_kernel_kinks(coords, params, f_in, f_out)
