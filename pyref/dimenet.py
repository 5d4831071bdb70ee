"""DimeNet++ in NumPy: radial basis, and the direct sum over triplets k -> j -> i.

Radial basis: x = distance / cutoff, q = envelope_exponent + 1,
env(x) = 1/x - (q+1)(q+2)/2 x^(q-1) + q(q+2) x^q - q(q+1)/2 x^(q+1) for x < 1, else 0; rbf_k = env sin(freq_k x);
sbf_lk = env N_lk j_l(z_lk x). Aggregation, for edge e = (j->i) and every edge f = (k->j) into its source, with unit
vectors u, r = sbf_rad, x = embedding and Y_l = sqrt((2l+1)/4pi) P_l(u_e.u_f): b_m = sum_{l,n} r_f[l,n] Y_l W1_ln,m,
called basis; w_c = sum_m W2_c,m b_m; out_c(e) = sum over f of x_c(f) w_c.
"""

from functools import cache
from itertools import pairwise

import numpy as np
from scipy.optimize import brentq
from scipy.special import spherical_jn

from trigraph.pyref.common import evaluate_fields, ldexp, scatter_sum, zero_if_none
from trigraph.table import result_type


@cache
def bessel_zeros(num_spherical, num_radial):
    """Return z_lk, the k-th positive zero of j_l, which lies between two neighbouring zeros of j_(l-1)."""
    zeros = np.pi * np.arange(1, num_radial + num_spherical)
    table = [zeros[:num_radial]]
    for l in range(1, num_spherical):
        brackets = pairwise(zeros)
        zeros = np.array([brentq(lambda x, l=l: spherical_jn(l, x), a, b, xtol=1e-15, rtol=1e-15) for a, b in brackets])
        table.append(zeros[:num_radial])
    return np.array(table)


def mask_inside_cutoff(dist):
    """Return a column that is true for edges inside the cutoff: `not (x >= 1)`, so that NaN counts as inside."""
    return ~(dist.real >= 1)[:, None]


def zero_outside_cutoff(inside, *terms):
    """Return the terms inside the cutoff, and zero beyond it, even for terms that are NaN."""
    return [np.where(inside, f, np.zeros((), f.dtype)) for f in terms]


def envelope_derivatives(x, envelope_exponent):
    """Return the envelope and its first two derivatives inside the cutoff; NaN for x <= 0."""
    x = np.where(x.real <= 0, np.nan, x).astype(x.dtype)
    q = envelope_exponent + 1
    a, b, c = (q + 1) * (q + 2) // 2, q * (q + 2), q * (q + 1) // 2
    env = 1 / x - a * x ** (q - 1) + b * x**q - c * x ** (q + 1)
    d_env = -1 / x**2 - a * (q - 1) * x ** (q - 2) + b * q * x ** (q - 1) - c * (q + 1) * x**q
    d2_env = 2 / x**3 - a * (q - 1) * (q - 2) * x ** (q - 3)
    d2_env += b * q * (q - 1) * x ** (q - 2) - c * (q + 1) * q * x ** (q - 1)
    return env, d_env, d2_env


def product_derivatives(env, f):
    """Return env * f and its first two derivatives, given env and f with their derivatives."""
    return env[0] * f[0], env[1] * f[0] + env[0] * f[1], env[2] * f[0] + 2 * env[1] * f[1] + env[0] * f[2]


def sine_basis_derivatives(dist, freq, envelope_exponent):
    """Return rbf and its first two derivatives with respect to x, each (num_edges, R)."""
    x = dist[:, None]
    s, c = np.sin(x * freq), np.cos(x * freq)
    return zero_outside_cutoff(
        mask_inside_cutoff(dist),
        *product_derivatives(envelope_derivatives(x, envelope_exponent), (s, freq * c, -(freq**2) * s)),
    )


def spherical_bessel(l, y):
    """Return j_l(y). SciPy's function takes real y; an imaginary part is a direction and is multiplied by j_l'."""
    j = spherical_jn(l, y.real)
    if np.iscomplexobj(y):
        j = j + 1j * y.imag * (l / y.real * j - spherical_jn(l + 1, y.real))
    return j


def bessel_basis_derivatives(dist, num_spherical, num_radial, envelope_exponent):
    """Return sbf_rad and its first two derivatives with respect to x, each (num_edges, S*R)."""
    x = dist[:, None]
    l = np.repeat(np.arange(num_spherical), num_radial)
    zeros = bessel_zeros(num_spherical, num_radial).reshape(-1)
    norm = np.sqrt(2) / np.abs(spherical_jn(l + 1, zeros))
    y = x.astype(np.result_type(x, np.float64)) * zeros
    j, above = spherical_bessel(l, y), spherical_bessel(l + 1, y)
    d_j = l / y * j - above
    d2_j = ((l * l - l) / y**2 - 1) * j + 2 / y * above
    # Special functions are evaluated in float64 and, for float32, rounded.
    f = [(norm * zeros**n * f).astype(x.dtype) for n, f in enumerate((j, d_j, d2_j))]
    return zero_outside_cutoff(
        mask_inside_cutoff(dist), *product_derivatives(envelope_derivatives(x, envelope_exponent), f)
    )


def radial_basis_fwd(dist, freq, num_spherical=7, envelope_exponent=5):
    """Return rbf = env(x) sin(freq x) and sbf_rad = env(x) N j_l(z x), with zeros z of j_l and norms N."""
    rbf = sine_basis_derivatives(dist, freq, envelope_exponent)[0]
    return result_type("radial_basis_fwd")(
        rbf, bessel_basis_derivatives(dist, num_spherical, len(freq), envelope_exponent)[0]
    )


def radial_basis_bwd(grad_rbf, grad_sbf_rad, dist, freq, num_spherical=7, envelope_exponent=5, wrt=None):
    """Return gradients: dist = sum grad_rbf rbf' + sum grad_sbf_rad sbf_rad'; freq = sum grad_rbf env x cos(freq x)."""
    x, inside = dist[:, None], mask_inside_cutoff(dist)
    env = envelope_derivatives(x, envelope_exponent)

    def grad_dist():
        d_rbf = sine_basis_derivatives(dist, freq, envelope_exponent)[1]
        d_sbf = bessel_basis_derivatives(dist, num_spherical, len(freq), envelope_exponent)[1]
        by_rbf, by_sbf = zero_outside_cutoff(inside, grad_rbf * d_rbf, grad_sbf_rad * d_sbf)
        return by_rbf.sum(1) + by_sbf.sum(1)

    return evaluate_fields(
        "radial_basis_bwd",
        wrt,
        dist=grad_dist,
        freq=lambda: zero_outside_cutoff(inside, grad_rbf * env[0] * x * np.cos(x * freq))[0].sum(0),
    )


def radial_basis_bwd2(
    gg_dist, gg_freq, grad_rbf, grad_sbf_rad, dist, freq, num_spherical=7, envelope_exponent=5, wrt=None
):
    """Differentiate sum gg_dist dist + sum gg_freq freq, where dist and freq are the results of radial_basis_bwd."""
    x, inside = dist[:, None], mask_inside_cutoff(dist)
    x_dot, freq_dot = zero_if_none(gg_dist, dist)[:, None], zero_if_none(gg_freq, freq)
    env = envelope_derivatives(x, envelope_exponent)
    s, c = np.sin(x * freq), np.cos(x * freq)
    _, d_rbf, d2_rbf = sine_basis_derivatives(dist, freq, envelope_exponent)
    _, d_sbf, d2_sbf = bessel_basis_derivatives(dist, num_spherical, len(freq), envelope_exponent)
    by_freq, by_freq_freq = env[0] * x * c, -env[0] * x**2 * s
    mixed = env[1] * x * c + env[0] * c - env[0] * freq * x * s

    def grad_dist():
        by_rbf, by_sbf = zero_outside_cutoff(
            inside, grad_rbf * (x_dot * d2_rbf + freq_dot * mixed), grad_sbf_rad * x_dot * d2_sbf
        )
        return by_rbf.sum(1) + by_sbf.sum(1)

    return evaluate_fields(
        "radial_basis_bwd2",
        wrt,
        grad_rbf=lambda: zero_outside_cutoff(inside, x_dot * d_rbf + freq_dot * by_freq)[0],
        grad_sbf_rad=lambda: zero_outside_cutoff(inside, x_dot * d_sbf)[0],
        dist=grad_dist,
        freq=lambda: zero_outside_cutoff(inside, grad_rbf * (x_dot * mixed + freq_dot * by_freq_freq))[0].sum(0),
    )


def radial_basis_kinks(dist, freq, num_spherical=7, envelope_exponent=5):
    """Return x - 1, which is zero where radial_basis is not smooth: the envelope's third derivative jumps there."""
    return dist[:, None] - 1


def list_triplet_edges(graph, exclude):
    """Return the edges e = (j->i) and f = (k->j) of every triplet that is not left out."""
    degree = np.diff(graph.dst_offsets)[graph.src]
    e = np.repeat(np.arange(graph.num_edges), degree)
    offset_in_row = np.arange(len(e)) - np.repeat(np.cumsum(degree) - degree, degree)
    f = graph.dst_edge_index[graph.dst_offsets[graph.src][e] + offset_in_row]
    if exclude == "node":
        keep = graph.src[f] != graph.dst[e]
    elif exclude == "edge":
        keep = f != graph.reverse_edge[e]
    else:
        keep = np.ones(len(e), bool)
    return e[keep], f[keep]


def angular_basis_derivatives(cosine, num_spherical):
    """Return Y_l = sqrt((2l+1)/4pi) P_l and its first two derivatives in the cosine, each (num_triplets, S)."""
    P = np.zeros((3, len(cosine), num_spherical), cosine.dtype)
    P[0, :, 0] = 1
    if num_spherical > 1:
        P[0, :, 1] = cosine
        P[1, :, 1] = 1
    for l in range(1, num_spherical - 1):
        P[0, :, l + 1] = ((2 * l + 1) * cosine * P[0, :, l] - l * P[0, :, l - 1]) / (l + 1)
        P[1:, :, l + 1] = P[1:, :, l - 1] + (2 * l + 1) * P[:2, :, l]
    return P * np.sqrt((2 * np.arange(num_spherical) + 1) / (4 * np.pi)).astype(cosine.dtype)


def dot(a, b):
    """Return the scalar product over the last axis, which is kept."""
    return (a * b).sum(-1, keepdims=True)


def find_units_and_lengths(vec):
    """Return v/|v|, length and n with |v| = 2^n length; n, the largest component's exponent, avoids overflow."""
    _, n = np.frexp(np.abs(vec).max(-1, keepdims=True))
    scaled = ldexp(vec, -n)
    length = np.sqrt(dot(scaled, scaled))
    return scaled / length, length, n


def split_weights(weights, num_spherical, num_radial):
    """Return W1 as (S, R, M), and W2 as (C, M)."""
    first = num_spherical * num_radial
    return weights[:first].reshape(num_spherical, num_radial, -1), weights[first:]


def join_weights(W1, W2):
    """Invert `split_weights`. The result is in C order, which einsum does not guarantee."""
    return np.ascontiguousarray(np.concatenate([W1.reshape(-1, W2.shape[1]), W2]))


def project_basis(r, Y, W1):
    """Return basis_m = sum_{l,n} r_ln Y_l W1_ln,m of every triplet."""
    return np.einsum("tln,tl,lnm->tm", r, Y, W1, optimize=True)


def agg_edge_to_edge_fwd(vec, sbf_rad, embedding, weights, graph, num_spherical=7, num_radial=6, exclude="node"):
    """Return out_c(e) = sum over f of x_c(f) w_c."""
    e, f = list_triplet_edges(graph, exclude)
    W1, W2 = split_weights(weights, num_spherical, num_radial)
    unit = find_units_and_lengths(vec)[0]
    Y = angular_basis_derivatives(dot(unit[e], unit[f])[:, 0], num_spherical)[0]
    basis = project_basis(sbf_rad.reshape(-1, num_spherical, num_radial)[f], Y, W1)
    return scatter_sum(e, embedding[f] * (basis @ W2.T), graph.num_edges)


def agg_edge_to_edge_bwd(
    grad_out, vec, sbf_rad, embedding, weights, graph, num_spherical=7, num_radial=6, exclude="node", wrt=None
):
    """Apply the chain rule through out, w, basis, Y, the cosine and u = vec/|vec|."""
    e, f = list_triplet_edges(graph, exclude)
    W1, W2 = split_weights(weights, num_spherical, num_radial)
    unit, length, n = find_units_and_lengths(vec)
    Y, d_Y, _ = angular_basis_derivatives(dot(unit[e], unit[f])[:, 0], num_spherical)
    r = sbf_rad.reshape(-1, num_spherical, num_radial)[f]
    basis = project_basis(r, Y, W1)
    grad_w = grad_out[e] * embedding[f]
    grad_basis = grad_w @ W2
    grad_rY = np.einsum("lnm,tm->tln", W1, grad_basis)

    def grad_vec():
        grad_cosine = ((r * grad_rY).sum(-1) * d_Y)[:, 1:].sum(-1, keepdims=True)  # Y_0 is constant
        at_e, at_f = grad_cosine * unit[f], grad_cosine * unit[e]
        grad_unit = scatter_sum(e, at_e, graph.num_edges) + scatter_sum(f, at_f, graph.num_edges)
        return ldexp((grad_unit - unit * dot(unit, grad_unit)) / length, -n)

    def grad_weights():
        return join_weights(np.einsum("tln,tl,tm->lnm", r, Y, grad_basis, optimize=True), grad_w.T @ basis)

    return evaluate_fields(
        "agg_edge_to_edge_bwd",
        wrt,
        vec=grad_vec,
        sbf_rad=lambda: scatter_sum(f, Y[:, :, None] * grad_rY, graph.num_edges).reshape(sbf_rad.shape),
        embedding=lambda: scatter_sum(f, grad_out[e] * (basis @ W2.T), graph.num_edges),
        weights=grad_weights,
    )


def agg_edge_to_edge_bwd2_grad(
    gg_sbf_rad, gg_embedding, vec, sbf_rad, embedding, weights, graph, num_spherical=7, num_radial=6, exclude="node"
):
    """Return fwd(sbf_rad := gg_sbf_rad) + fwd(embedding := gg_embedding)."""
    shared_arguments = (weights, graph, num_spherical, num_radial, exclude)
    return agg_edge_to_edge_fwd(
        vec, zero_if_none(gg_sbf_rad, sbf_rad), embedding, *shared_arguments
    ) + agg_edge_to_edge_fwd(vec, sbf_rad, zero_if_none(gg_embedding, embedding), *shared_arguments)


def agg_edge_to_edge_bwd2_main(
    gg_sbf_rad,
    gg_embedding,
    grad_out,
    vec,
    sbf_rad,
    embedding,
    weights,
    graph,
    num_spherical=7,
    num_radial=6,
    exclude="node",
    wrt=None,
):
    """Return sbf_rad: bwd_sbf_rad(embedding := gg); embedding: bwd_embedding(sbf_rad := gg); weights: their sum."""
    shared_arguments = (weights, graph, num_spherical, num_radial, exclude)
    by_sbf_rad = agg_edge_to_edge_bwd(grad_out, vec, zero_if_none(gg_sbf_rad, sbf_rad), embedding, *shared_arguments)
    by_embedding = agg_edge_to_edge_bwd(
        grad_out, vec, sbf_rad, zero_if_none(gg_embedding, embedding), *shared_arguments
    )
    return evaluate_fields(
        "agg_edge_to_edge_bwd2_main",
        wrt,
        sbf_rad=lambda: by_embedding.sbf_rad,
        embedding=lambda: by_sbf_rad.embedding,
        weights=lambda: by_sbf_rad.weights + by_embedding.weights,
    )


def unit_and_tangent(vec, vec_dot):
    """Return u = v/|v| and its derivative along v_dot, (v_dot - u (u.v_dot)) / |v|."""
    unit, length, n = find_units_and_lengths(vec)
    scaled_dot = ldexp(vec_dot, -n)
    return unit, (scaled_dot - unit * dot(unit, scaled_dot)) / length


def unit_and_tangent_vjp(vec, vec_dot, grad_unit, grad_unit_dot):
    """Return the cotangent of v, given the cotangents of u and of its derivative."""
    unit, length, n = find_units_and_lengths(vec)
    _, unit_dot = unit_and_tangent(vec, vec_dot)
    scaled_dot = ldexp(vec_dot, -n)
    grad_t = grad_unit - (dot(unit, scaled_dot) * grad_unit_dot + dot(grad_unit_dot, unit) * scaled_dot) / length
    grad_length = -(dot(grad_unit_dot, unit_dot) + dot(grad_t, unit)) / length
    return ldexp(grad_t / length + grad_length * unit, -n)


def agg_edge_to_edge_bwd2(
    gg_vec,
    gg_sbf_rad,
    gg_embedding,
    gg_weights,
    grad_out,
    vec,
    sbf_rad,
    embedding,
    weights,
    graph,
    num_spherical=7,
    num_radial=6,
    exclude="node",
    wrt=None,
):
    """Return the gradient of sum grad_out out_dot. Names ending in _dot are derivatives along the cotangents gg_."""
    e, f = list_triplet_edges(graph, exclude)
    vec_dot, x_dot = zero_if_none(gg_vec, vec), zero_if_none(gg_embedding, embedding)[f]
    r_dot = zero_if_none(gg_sbf_rad, sbf_rad).reshape(-1, num_spherical, num_radial)[f]
    W1, W2 = split_weights(weights, num_spherical, num_radial)
    W1_dot, W2_dot = split_weights(zero_if_none(gg_weights, weights), num_spherical, num_radial)
    unit, unit_dot = unit_and_tangent(vec, vec_dot)
    cosine_dot = dot(unit_dot[e], unit[f]) + dot(unit[e], unit_dot[f])
    Y, d_Y, d2_Y = angular_basis_derivatives(dot(unit[e], unit[f])[:, 0], num_spherical)
    Y_dot = d_Y * cosine_dot
    Y_dot[:, 0] = 0  # Y_0 is constant, even if cosine_dot is NaN
    r, x, g = sbf_rad.reshape(-1, num_spherical, num_radial)[f], embedding[f], grad_out[e]
    basis = project_basis(r, Y, W1)
    basis_dot = (
        project_basis(r_dot, Y, W1) + project_basis(r[:, 1:], Y_dot[:, 1:], W1[1:]) + project_basis(r, Y, W1_dot)
    )
    w, w_dot = basis @ W2.T, basis @ W2_dot.T + basis_dot @ W2.T
    grad_w, grad_w_dot = g * x_dot, g * x
    grad_basis, grad_basis_dot = grad_w @ W2 + grad_w_dot @ W2_dot, grad_w_dot @ W2
    grad_rY = np.einsum("lnm,tm->tln", W1, grad_basis) + np.einsum("lnm,tm->tln", W1_dot, grad_basis_dot)
    grad_rY_dot = np.einsum("lnm,tm->tln", W1, grad_basis_dot)

    def grad_vec():
        grad_Y, grad_Y_dot = (r * grad_rY + r_dot * grad_rY_dot).sum(-1), (r * grad_rY_dot).sum(-1)
        grad_cosine = (d_Y * grad_Y + d2_Y * cosine_dot * grad_Y_dot)[:, 1:].sum(-1, keepdims=True)
        grad_cosine_dot = (d_Y * grad_Y_dot)[:, 1:].sum(-1, keepdims=True)
        n = graph.num_edges
        at_e = grad_cosine * unit[f] + grad_cosine_dot * unit_dot[f]
        at_f = grad_cosine * unit[e] + grad_cosine_dot * unit_dot[e]
        grad_unit = scatter_sum(e, at_e, n) + scatter_sum(f, at_f, n)
        grad_unit_dot = scatter_sum(e, grad_cosine_dot * unit[f], n) + scatter_sum(f, grad_cosine_dot * unit[e], n)
        return unit_and_tangent_vjp(vec, vec_dot, grad_unit, grad_unit_dot)

    def grad_weights():
        first = np.einsum("tln,tl,tm->lnm", r, Y, grad_basis, optimize=True)
        first += np.einsum("tln,tm->lnm", r_dot * Y[:, :, None] + r * Y_dot[:, :, None], grad_basis_dot, optimize=True)
        return join_weights(first, grad_w.T @ basis + grad_w_dot.T @ basis_dot)

    return evaluate_fields(
        "agg_edge_to_edge_bwd2",
        wrt,
        grad_out=lambda: scatter_sum(e, x_dot * w + x * w_dot, graph.num_edges),
        vec=grad_vec,
        sbf_rad=lambda: scatter_sum(
            f, Y[:, :, None] * grad_rY + Y_dot[:, :, None] * grad_rY_dot, graph.num_edges
        ).reshape(sbf_rad.shape),
        embedding=lambda: scatter_sum(f, g * w_dot, graph.num_edges),
        weights=grad_weights,
    )
