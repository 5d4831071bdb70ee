"""Every operator in plain array operations, which torch and JAX differentiate where compiled derivatives are missing.

Each function takes `FrameworkFunctions`, the arrays of a call by name (including the graph's arrays, named as in the
Fortran interface; absent arrays are omitted), and sizes and attributes. The function returns the outputs by name, which
agree with the operators up to rounding and have derivatives of any order. At a kink, all derivatives belong to the same
side as the compiled first and second derivatives.
"""

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from trigraph.graphs.base import FEW_PARALLEL
from trigraph.pyref.dimenet import bessel_zeros
from trigraph.table import DEFINITIONS

Values = Mapping[str, Any]
NUM_SERIES_TERMS = 24  # terms of the power series of j_l up to x = l + 1; the last term is below 1e-20 times the first


class FrameworkFunctions(NamedTuple):
    """Functions that differ between torch and JAX; all others have the same name in both modules (`xp`)."""

    xp: Any
    scatter: Callable[[Any, Any, int], Any]  # (rows, index, num): sums of the rows that share an index
    groups: Callable[[Any, int], Any]  # (index, num): the groups of rows that share an index, for `outer` and `times`
    outer: Callable[[Any, Any, Any], Any]  # (a, b, groups): for each group, the sum of the outer products of its rows
    times: Callable[[Any, Any, Any], Any]  # (a, matrices, groups): each row times the matrix of its group
    extremum: Callable[[Any, Any, int, str], Any]  # (rows, index, num, "min" or "max"); arbitrary for empty groups
    constant: Callable[[Any], Any]  # the same values, with zero derivatives
    polynomial: Callable[[np.ndarray, Any], Any]  # (coefficients from the highest degree, variable)
    harmonics: Callable[[Any, int], Any]  # (unit vectors, degree): `harmonics`, possibly with custom derivatives
    softmax: Callable[[Any, Any, int], Any]  # (logits, index, num): `softmax`, possibly with custom derivatives
    bessel: Callable[[int, Any], Any]  # (l, x): `spherical_bessel`, possibly with custom derivatives
    wide: Callable[[Any], Any]  # the same values in the widest dtype available
    array: Callable[[np.ndarray, Any], Any]  # (a, b): array a, possibly from NumPy, converted to b's dtype and device


def gno_kernel(lib: FrameworkFunctions, v: Values, s: Values) -> Values:
    """Kernel = V a + b_v, a = relu(z), z = U xi + b_u."""
    params, d, f = v["params"], v["coords"].shape[1], s["f_in"] * s["f_out"]
    hidden = (params.shape[0] - f) // (d + 1 + f)
    at = hidden * (d + 1)
    U, b_u, V, b_v = params[: hidden * d].reshape(d, hidden), params[hidden * d : at], params[at:-f], params[-f:]
    z = v["coords"] @ U + b_u
    return {"kernel": lib.xp.where(z <= 0, 0.0, z) @ V.reshape(hidden, f) + b_v}


def gno_aggregate(lib: FrameworkFunctions, v: Values, s: Values) -> Values:
    """message_i = sum over e into i of K_e h_src(e)."""
    K = v["kernel"][v["edge_ids"]].reshape(v["edge_ids"].shape[0], s["f_in"], s["f_out"])
    products = lib.xp.einsum("pfo,pf->po", K, v["features"][v["indices"]])
    return {"message": lib.scatter(products, v["destinations"], s["num_dst_nodes"])}


def gno_message(lib: FrameworkFunctions, v: Values, s: Values) -> Values:
    """Compute the kernel of every row of coordinates, then aggregate."""
    return gno_aggregate(lib, {**v, **gno_kernel(lib, v, s)}, s)


@cache
def _compute_bessel_zeros_and_norms(num_spherical: int, num_radial: int) -> tuple[np.ndarray, np.ndarray]:
    from scipy.special import spherical_jn  # imported late because the import is slow

    zeros = bessel_zeros(num_spherical, num_radial)
    return zeros, math.sqrt(2) / np.abs(spherical_jn(np.arange(1, num_spherical + 1)[:, None], zeros))


def spherical_bessel(lib: FrameworkFunctions, l: int, x: Any) -> Any:  # noqa: E741
    """Compute j_l by its power series for x < l + 1, and by the recurrence from sin and cos for larger x."""
    xp, low = lib.xp, x < l + 1
    near, far = xp.where(low, x, 1.0), xp.where(low, l + 2.0, x)
    factors = [-0.5 / (k * (2 * l + 2 * k + 1)) for k in range(1, NUM_SERIES_TERMS)]
    terms = np.cumprod([1 / math.prod(range(1, 2 * l + 2, 2)), *factors])[::-1]
    series = near**l * lib.polynomial(terms, near * near)
    j = [xp.sin(far) / far, xp.sin(far) / far**2 - xp.cos(far) / far]
    for n in range(1, l):
        j.append((2 * n + 1) / far * j[n] - j[n - 1])
    return xp.where(low, series, j[l])


def radial_basis(lib: FrameworkFunctions, v: Values, s: Values) -> Values:
    """rbf_k = env sin(freq_k x), sbf_lk = env N_lk j_l(z_lk x)."""
    xp, dist, q = lib.xp, v["dist"].reshape(-1), s["envelope_exponent"] + 1
    inside = ~(dist >= 1)[:, None]  # beyond the cutoff, all results are zero
    x = xp.where(inside, xp.where(dist <= 0, math.nan, dist)[:, None], 0.5)
    a, b, c = (q + 1) * (q + 2) // 2, q * (q + 2), q * (q + 1) // 2
    env = 1 / x - a * x ** (q - 1) + b * x**q - c * x ** (q + 1)
    wide, columns = lib.wide(x), []
    zeros_and_norms = zip(*_compute_bessel_zeros_and_norms(s["num_spherical"], v["freq"].shape[0]), strict=True)
    for l, (z, norm) in enumerate(zeros_and_norms):  # noqa: E741
        bessel = lib.array(norm, wide) * lib.bessel(l, lib.array(z, wide) * wide)
        columns.append(xp.where(inside, env * lib.array(bessel, x), 0.0))
    return {"rbf": xp.where(inside, env * xp.sin(v["freq"] * x), 0.0), "sbf_rad": xp.concatenate(columns, 1)}


def spherical_harmonics(lib: FrameworkFunctions, unit: Any, degree: int) -> Any:
    """Return harmonics S_l of unit vectors, (num_edges, degree^2), with P_l(u_e.u_f) = S_l(u_e).S_l(u_f).

    The 2l+1 columns of degree l are N_lm q_lm(z) times the real and the imaginary part of (x + i y)^m, for m from 0 to
    l and from 1 to l. All m of one degree are computed at once.
    """
    xp, z = lib.xp, unit[:, 2:]
    one = xp.ones_like(z)
    zero = 0 * one
    x, y = unit[:, :1], unit[:, 1:2]
    plane = [xp.concatenate([one, zero], 1)]  # real and imaginary part of each power
    for _ in range(1, degree):
        re_im = plane[-1]
        plane.append(x * re_im + y * xp.concatenate([-re_im[:, 1:], re_im[:, :1]], 1))
    re, im = (xp.concatenate([power[:, k : k + 1] for power in plane], 1) for k in (0, 1))
    q, columns = [one], [one]
    for l in range(1, degree):  # noqa: E741
        m = np.arange(l)
        above = z * q[l - 1] * lib.array((2 * l - 1) / (l - m), z)
        if l > 1:
            below = q[l - 2] * lib.array((l + m[:-1] - 1) / (l - m[:-1]), z)
            above = xp.concatenate([above[:, :-1] - below, above[:, -1:]], 1)
        q.append(xp.concatenate([above, math.prod(range(1, 2 * l, 2)) * one], 1))
        sizes = [math.sqrt((2 - (m == 0)) * math.factorial(l - m) / math.factorial(l + m)) for m in range(l + 1)]
        rows = q[l] * lib.array(np.array(sizes), z)
        columns += [rows * re[:, : l + 1], rows[:, 1:] * im[:, 1 : l + 1]]
    return xp.concatenate(columns, 1)


@cache
def build_harmonics_gradient_matrices(degree: int) -> np.ndarray:
    """Return G, (3, degree^2, degree^2), with d S / d u_k = S G_k for S as homogeneous polynomials of degree l.

    T_lm = (x + i y)^m q_lm / (l+m)! has dT_lm/dz = T_(l-1)m, (d/dx - i d/dy) T_lm = T_(l-1)(m-1) and (d/dx + i d/dy)
    T_lm = -T_(l-1)(m+1), with T_l(-m) = (-1)^m conj(T_lm) (Hobson, The theory of spherical and ellipsoidal harmonics).
    """
    gradient = np.zeros((3, degree**2, degree**2))

    def compute_harmonic_norm(l: int, m: int) -> float:  # noqa: E741
        return math.sqrt((2 - (m == 0)) * math.factorial(l - m) * math.factorial(l + m))

    def add_gradient_entry(k: int, l: int, m: int, part: int, to: int, other: int, factor: float) -> None:  # noqa: E741
        if abs(to) <= l - 1 and not (to == 0 and other):
            column, row = (n * n + j + (n if i else 0) for n, j, i in ((l, m, part), (l - 1, to, other)))
            gradient[k, row, column] += factor * compute_harmonic_norm(l, m) / compute_harmonic_norm(l - 1, to)

    for l in range(1, degree):  # noqa: E741
        for m in range(l + 1):
            for part in range(2 if m else 1):  # real and imaginary part
                add_gradient_entry(2, l, m, part, m, part, 1.0)
                if m == 0:
                    add_gradient_entry(0, l, 0, 0, 1, 0, -1.0)
                    add_gradient_entry(1, l, 0, 0, 1, 1, -1.0)
                    continue
                for to, sign in ((m - 1, 1.0), (m + 1, -1.0)):
                    add_gradient_entry(0, l, m, part, to, part, 0.5 * sign)
                    add_gradient_entry(1, l, m, part, to, 1 - part, 0.5 * (1.0 if part else -1.0))
    return gradient


def agg_edge_to_edge(lib: FrameworkFunctions, v: Values, s: Values) -> Values:
    """Sum over triplets by the addition theorem: sums of harmonics at each node, minus the edges left out."""
    xp, vec, degrees, number = lib.xp, v["vec"], s["num_spherical"], s["num_spherical"] * s["num_radial"]
    num_edges, nodes, embedding = vec.shape[0], s["num_nodes"], v["embedding"]
    if s["exclude"] == "node":
        number_left, first = v["reverse_stop"] - v["reverse_start"], v["reverse_start"]
    elif s["exclude"] == "edge":
        number_left, first = 1 * (v["reverse_edge"] >= 0), v["reverse_edge"]
    if s["exclude"] is not None:
        # An edge f without triplets is in no sum, so its derivatives are exactly 0. The number of edges that leave out
        # f equals the number of edges that f leaves out.
        degree = lib.scatter(xp.ones_like(v["src"]), v["src"], nodes)[v["dst"]]
        embedding = xp.where((degree > number_left)[:, None], embedding, 0.0)
    W1 = v["weights"][:number].reshape(degrees, s["num_radial"], v["weights"].shape[1])
    r = v["sbf_rad"].reshape(num_edges, degrees, s["num_radial"])
    norms = lib.array(np.sqrt((2 * np.arange(degrees) + 1) / (4 * math.pi)), vec)[:, None, None]
    K = xp.einsum("lnm,cm->lnc", norms * W1, v["weights"][number:])
    feature = xp.einsum("eln,lnc->lec", r, K) * embedding
    # Vectors are divided by powers of two, so that no square overflows or underflows.
    largest = xp.amax(abs(lib.constant(vec)), 1)[:, None]
    scaled = vec * xp.ldexp(xp.ones_like(largest), -xp.frexp(largest)[1])
    unit = scaled / xp.sqrt((scaled * scaled).sum(1))[:, None]
    all_S = lib.harmonics(unit, degrees)
    S = [all_S[:, l * l : (l + 1) ** 2] for l in range(degrees)]  # noqa: E741
    features_by_degree = list(feature)

    def sum_outer_products(groups: Any) -> Any:
        """Return Z of each group of edges, the sum of S_lm x q_l, shape (groups, S*S, C)."""
        return xp.concatenate([lib.outer(*pair, groups) for pair in zip(S, features_by_degree, strict=True)], 1)

    out = lib.times(all_S, sum_outer_products(lib.groups(v["dst"], nodes)), lib.groups(v["src"], nodes))
    if s["exclude"] is None:
        return {"out": out}
    max_parallel = s.get("max_parallel_edges", FEW_PARALLEL + 1) if s["exclude"] == "node" else 1
    if max_parallel > FEW_PARALLEL:
        # Parallel edges form a group, which is contiguous in the order by destination.
        order = v["dst_edge_index"]
        src, dst = v["src"][order], v["dst"][order]
        begins = xp.concatenate([src[:1] == src[:1], (dst[1:] != dst[:-1]) | (src[1:] != src[:-1])])
        in_order = begins.cumsum(0) - 1
        group_sums = sum_outer_products(lib.groups(in_order[xp.argsort(order)], num_edges))
        excluded_edge = xp.where(number_left > 0, first, 0)
        left_out = lib.times(all_S, group_sums, lib.groups(in_order[excluded_edge], num_edges))
        out = out - xp.where((number_left > 0)[:, None], left_out, 0.0)
    else:  # subtract one edge f after another: the sum over l of P_l(u_e.u_f) x_f q_l
        for k in range(max_parallel):
            is_present = number_left > k
            excluded_edge = xp.where(is_present, first + k, 0)
            excluded_edge = v["dst_edge_index"][excluded_edge] if s["exclude"] == "node" else excluded_edge
            terms, products = feature[:, excluded_edge], all_S * all_S[excluded_edge]
            cosines = [products[:, l * l : (l + 1) ** 2].sum(1)[:, None] for l in range(degrees)]  # noqa: E741
            left_out = sum(P * x for P, x in zip(cosines, list(terms), strict=True))
            out = out - xp.where(is_present[:, None], left_out, 0.0)
    # If every in-edge is left out, the sum is exactly 0.
    degree = v["dst_offsets"][v["src"] + 1] - v["dst_offsets"][v["src"]]
    return {"out": xp.where((degree > number_left)[:, None], out, 0.0)}


def _activate(lib: FrameworkFunctions, score: Any, activation: str, slope: float) -> Any:
    where, negative = lib.xp.where, score <= 0
    if activation == "ELU":
        return where(negative, lib.xp.expm1(where(negative, score, 0.0)), score)
    if activation == "sigmoid":
        power = lib.xp.exp(where(negative, score, -score))
        return where(negative, power, 1.0) / (1 + power)
    if activation == "tanh":
        return lib.xp.tanh(score)
    return score if activation == "linear" else where(negative, slope * score if "Leaky" in activation else 0.0, score)


def softmax_by_destination(lib: FrameworkFunctions, logit: Any, i: Any, n: int) -> Any:
    """Return the softmax of the logits over the in-edges of each destination."""
    powers = lib.xp.exp(logit - lib.extremum(lib.constant(logit), i, n, "max")[i])
    return powers / lib.scatter(powers, i, n)[i]


def mha_gat_n2n(lib: FrameworkFunctions, v: Values, s: Values) -> Values:
    """out_i = sum alpha x_j, with alpha the softmax of the logits over the in-edges of i."""
    i, n, heads = v["destinations"], s["num_dst_nodes"], s["num_heads"]
    rows = {"src_embedding": v["indices"], "dst_embedding": i, "edge_embedding": v["edge_ids"]}
    x = {name: v[name].reshape(v[name].shape[0], heads, v[name].shape[1] // heads) for name in rows if name in v}
    weights = v["attention_weights"].reshape(len(x), heads, x["src_embedding"].shape[2])
    score = sum((a * x[name]).sum(2)[rows[name]] for name, a in zip(x, weights, strict=True))
    logit = _activate(lib, score, s["activation"], s["negative_slope"])
    alpha = lib.softmax(logit, i, n)
    out = lib.scatter(alpha[:, :, None] * x["src_embedding"][v["indices"]], i, n)
    return {"output_embedding": out.reshape(n, heads * out.shape[2]) if s["concat_heads"] else out.sum(1) / heads}


def agg_weighted_n2n(lib: FrameworkFunctions, v: Values, s: Values) -> Values:
    """out_i = sum, mean, min or max of w_e x_j."""
    xp, i, n, x = lib.xp, v["destinations"], s["num_dst_nodes"], v["embedding"][v["indices"]]
    w = v["edge_weight"][v["edge_ids"]][:, None] if "edge_weight" in v else None
    messages, has_edges = x if w is None else w * x, (v["offsets"][1:] > v["offsets"][:-1])[:, None]
    if s["op"] in ("sum", "mean"):
        out = lib.scatter(messages, i, n)
        if s["op"] == "mean":
            divisor = xp.ones_like(x[:, :1]) if w is None or s["mean_by"] == "count" else w
            out = out / xp.where(has_edges, lib.scatter(divisor, i, n), 1.0)
        return {"output_embedding": out}
    extreme_values = lib.extremum(
        lib.constant(messages), i, n, s["op"]
    )  # the first edge with the extremum or NaN is selected
    position = xp.ones_like(i).cumsum(0)[:, None] - 1
    candidate_position = xp.where((messages == extreme_values[i]) | xp.isnan(messages), position, i.shape[0])
    is_first = position == lib.extremum(candidate_position, i, n, "min")[i]
    return {"output_embedding": lib.scatter(xp.where(is_first, messages, 0.0), i, n)}


def basis_embedding_radial(lib: FrameworkFunctions, v: Values, s: Values) -> Values:
    """rad_W1[e,c] = sum_r rad_basis[e,r] weight[c,r]."""
    return {"rad_W1": v["rad_basis"] @ v["weight"].T}


def basis_embedding_spherical(lib: FrameworkFunctions, v: Values, s: Values) -> Values:
    """Return the rows of rad_basis @ weight, reshaped to (interm, num_spherical)."""
    num_radial, num_spherical, interm = v["weight"].shape
    product = v["rad_basis"] @ v["weight"].reshape(num_radial, num_spherical * interm)
    return {"rad_W1": product.reshape(product.shape[0], interm, num_spherical)}


def basis_embedding_triplets(lib: FrameworkFunctions, v: Values, s: Values) -> Values:
    """rad_W1[t,c] = sum_s R_t[c,s] sph_basis[t,s], R_t = basis_embedding_spherical of the triplet's edge."""
    R = basis_embedding_spherical(lib, v, s)["rad_W1"]
    return {"rad_W1": lib.xp.einsum("tcs,ts->tc", R[v["triplet_edge"]], v["sph_basis"])}


def interaction_bilinear(lib: FrameworkFunctions, v: Values, s: Values) -> Values:
    """B_e[s,n] = sum sph[t,s] m[t,n]; P[c,n] = sum_s rad_W1[e,c,s] B_e[s,n], over atoms; m_ca = weight vec(P)."""
    m = v["m"][v["input_of_triplet"]] if "input_of_triplet" in v else v["m"]
    B = lib.scatter(v["sph"][:, :, None] * m[:, None], v["triplet_edge"], v["rad_W1"].shape[0])
    P = lib.xp.einsum("ecs,esn->ecn", v["rad_W1"], B)
    if "atom_of_edge" in v:
        P = lib.scatter(P, v["atom_of_edge"], s["num_outputs"])
    return {"m_ca": P.reshape(P.shape[0], P.shape[1] * P.shape[2]) @ v["weight"].T}


PLAIN: dict[str, Callable[[FrameworkFunctions, Values, Values], Values]] = {
    spec.name: globals()[spec.name] for spec in DEFINITIONS
}
