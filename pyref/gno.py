"""Graph neural operator in NumPy.

Per edge z = U dx + b_u, a = relu(z) with relu'(0) = 0, kernel = V a + b_v; per destination
message_i = sum over e into i of K_e h_src(e). The mask of relu is ``not (z <= 0)``. It selects instead of multiplying,
so that a NaN reaches only the values that depend on it.
"""

import numpy as np

from trigraph.checks.gno import pack_gno_params, unpack_gno_params
from trigraph.graphs import CSC
from trigraph.pyref.common import destinations, masked, results, scatter, zero_if_none


def hidden_layer(coords, U, b_u):
    """Return mask and a = relu(z) of every edge, each (num_edges, H)."""
    z = coords @ U.T + b_u
    mask = ~(z <= 0)
    return mask, masked(mask, z)


def gno_kernel_fwd(coords, params, f_in, f_out):
    """Kernel = V a + b_v."""
    U, b_u, V, b_v = unpack_gno_params(params, coords.shape[1], f_in, f_out)
    _, a = hidden_layer(coords, U, b_u)
    return a @ V.T + b_v


def gno_kernel_bwd(grad_kernel, coords, params, f_in, f_out, wrt=None):
    """With s = mask (V^T g): coords = U^T s; dU = sum s dx^T, db_u = sum s, dV = sum g a^T, db_v = sum g."""
    U, b_u, V, _ = unpack_gno_params(params, coords.shape[1], f_in, f_out)
    g = grad_kernel
    mask, a = hidden_layer(coords, U, b_u)
    s = masked(mask, g @ V)
    return results(
        "gno_kernel_bwd",
        wrt,
        coords=lambda: s @ U,
        params=lambda: pack_gno_params(s.T @ coords, s.sum(0), g.T @ a, g.sum(0)),
    )


def gno_kernel_bwd2(gg_coords, gg_params, grad_kernel, coords, params, f_in, f_out, wrt=None):
    """With (Ugg, bgg_u, Vgg, bgg_v) = gg_params: t = mask (U gg_coords + Ugg dx + bgg_u), sgg = mask (Vgg^T g)."""
    U, b_u, V, b_v = unpack_gno_params(params, coords.shape[1], f_in, f_out)
    c = zero_if_none(gg_coords, coords)
    Ugg, bgg_u, Vgg, bgg_v = unpack_gno_params(zero_if_none(gg_params, params), coords.shape[1], f_in, f_out)
    g = grad_kernel
    mask, a = hidden_layer(coords, U, b_u)
    s, sgg = masked(mask, g @ V), masked(mask, g @ Vgg)
    t = masked(mask, c @ U.T + coords @ Ugg.T + bgg_u)
    return results(
        "gno_kernel_bwd2",
        wrt,
        grad_kernel=lambda: t @ V.T + a @ Vgg.T + bgg_v,
        coords=lambda: s @ Ugg + sgg @ U,
        params=lambda: pack_gno_params(s.T @ c + sgg.T @ coords, sgg.sum(0), g.T @ t, np.zeros_like(b_v)),
    )


def gno_kernel_kinks(coords, params, f_in, f_out):
    """Where gno_kernel is not smooth: z = 0."""
    U, b_u, _, _ = unpack_gno_params(params, coords.shape[1], f_in, f_out)
    return coords @ U.T + b_u


def matrices(kernel, f_in, f_out):
    """K[e, f, o]: f_out is the fast index."""
    return kernel.reshape(len(kernel), f_in, f_out)


def gno_aggregate_fwd(features, kernel, graph, f_in, f_out):
    """message_i = sum over e into i of K_e h_src(e)."""
    K = matrices(kernel, f_in, f_out)[graph.edge_ids]
    return scatter(destinations(graph), np.einsum("pfo,pf->po", K, features[graph.indices]), graph.num_dst_nodes)


def gno_aggregate_bwd(grad_message, features, kernel, graph, f_in, f_out, wrt=None):
    """features_j = sum over e out of j of K_e^T g_dst(e); kernel_e = g_dst(e) h_src(e)^T."""
    K = matrices(kernel, f_in, f_out)[graph.edge_ids]
    g, h = grad_message[destinations(graph)], features[graph.indices]

    def grad_kernel():
        outer = np.einsum("po,pf->pfo", g, h).reshape(len(g), f_in * f_out)
        return scatter(graph.edge_ids, outer, graph.num_edges)

    return results(
        "gno_aggregate_bwd",
        wrt,
        features=lambda: scatter(graph.indices, np.einsum("pfo,po->pf", K, g), graph.num_src_nodes),
        kernel=grad_kernel,
    )


def gno_aggregate_bwd2(gg_features, gg_kernel, grad_message, features, kernel, graph, f_in, f_out, wrt=None):
    """Polarisation of the bilinear form: each factor in turn replaced by its cotangent."""
    hgg, Kgg = zero_if_none(gg_features, features), zero_if_none(gg_kernel, kernel)
    args = (graph, f_in, f_out)
    return results(
        "gno_aggregate_bwd2",
        wrt,
        grad_message=lambda: gno_aggregate_fwd(hgg, kernel, *args) + gno_aggregate_fwd(features, Kgg, *args),
        features=lambda: gno_aggregate_bwd(grad_message, features, Kgg, *args, wrt="features").features,
        kernel=lambda: gno_aggregate_bwd(grad_message, hgg, kernel, *args, wrt="kernel").kernel,
    )


def by_position(graph):
    """Return the graph with one edge row for each position, so that a NaN in an unused edge row has no effect."""
    return CSC(graph.offsets, graph.indices, graph.num_src_nodes)


def gno_message_fwd(features, coords, params, graph, f_in, f_out):
    """Kernel of every position, then its aggregation."""
    kernel = gno_kernel_fwd(coords[graph.edge_ids], params, f_in, f_out)
    return gno_aggregate_fwd(features, kernel, by_position(graph), f_in, f_out)


def gno_message_bwd(grad_message, features, coords, params, graph, f_in, f_out, wrt=None):
    """Chain rule: the kernel's gradient is g h^T, which gno_kernel_bwd takes to coords and params."""
    dx = coords[graph.edge_ids]
    kernel = gno_kernel_fwd(dx, params, f_in, f_out)
    outer = gno_aggregate_bwd(grad_message, features, kernel, by_position(graph), f_in, f_out)
    back = gno_kernel_bwd(outer.kernel, dx, params, f_in, f_out)
    return results(
        "gno_message_bwd",
        wrt,
        features=lambda: outer.features,
        coords=lambda: scatter(graph.edge_ids, back.coords, graph.num_edges),
        params=lambda: back.params,
    )


def gno_message_bwd2(
    gg_features, gg_coords, gg_params, grad_message, features, coords, params, graph, f_in, f_out, wrt=None
):
    """With Kgg the grad_kernel of gno_kernel_bwd2 at g h^T: sums of gno_aggregate, and gno_kernel_bwd at g gg_h^T."""
    hgg = zero_if_none(gg_features, features)
    dx, c = coords[graph.edge_ids], zero_if_none(gg_coords, coords)[graph.edge_ids]
    args = (by_position(graph), f_in, f_out)
    kernel = gno_kernel_fwd(dx, params, f_in, f_out)
    g_h = gno_aggregate_bwd(grad_message, features, kernel, *args, wrt="kernel").kernel
    g_hgg = gno_aggregate_bwd(grad_message, hgg, kernel, *args, wrt="kernel").kernel
    second = gno_kernel_bwd2(c, gg_params, g_h, dx, params, f_in, f_out)
    first = gno_kernel_bwd(g_hgg, dx, params, f_in, f_out)
    Kgg = second.grad_kernel
    return results(
        "gno_message_bwd2",
        wrt,
        grad_message=lambda: gno_aggregate_fwd(hgg, kernel, *args) + gno_aggregate_fwd(features, Kgg, *args),
        features=lambda: gno_aggregate_bwd(grad_message, features, Kgg, *args, wrt="features").features,
        coords=lambda: scatter(graph.edge_ids, second.coords + first.coords, graph.num_edges),
        params=lambda: second.params + first.params,
    )


def gno_message_kinks(features, coords, params, graph, f_in, f_out):
    """Where gno_message is not smooth: where its kernel is not."""
    return gno_kernel_kinks(coords, params, f_in, f_out)
