"""Every operator once in jax.numpy: derivatives that the compiled operators do not have come from it.

Each function takes the arrays of a call by name (those of the graph too), sizes, and attributes, and returns the
outputs by name. They are differentiable to any order; values are those of the operators, but for rounding.
"""

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import spherical_jn

from trigraph.pyref.dimenet import bessel_zeros

Values = Mapping[str, Any]
SERIES = 24  # terms of the power series of j_l up to x = l + 1, of which the last is below 1e-20 of the first


def _sum(x: Any, segments: Any, number: int) -> Any:
    return jax.ops.segment_sum(x, segments, number)


def _kernel(v: Values, s: Values) -> Any:
    """Return hidden layer and weights of the kernel's network: a (num_edges, H), V (F, H), b_v (F,)."""
    h, d, f = s["hidden"], s["d"], s["f_in"] * s["f_out"]
    u, b, w, c = jnp.split(v["params"], np.cumsum([h * d, h, f * h]))
    z = v["coords"] @ u.reshape(d, h) + b
    return jnp.where(z <= 0, 0, z), w.reshape(h, f).T, c


def gno_kernel(v: Values, s: Values, a: Values) -> Values:
    """Two-layer network of the coordinates."""
    hidden, w, c = _kernel(v, s)
    return {"kernel": hidden @ w.T + c}


def gno_aggregate(v: Values, s: Values, a: Values) -> Values:
    """Sum of K_e h_src."""
    kernel = v["kernel"][v["edge_ids"]].reshape(-1, s["f_in"], s["f_out"])
    messages = jnp.einsum("pio,pi->po", kernel, v["features"][v["indices"]])
    return {"message": _sum(messages, v["destinations"], s["num_dst_nodes"])}


def gno_message(v: Values, s: Values, a: Values) -> Values:
    """Both in one."""
    return gno_aggregate({**v, **gno_kernel(v, s, a)}, s, a)


@cache  # of numbers alone
def _zeros(num_spherical: int, num_radial: int) -> tuple[np.ndarray, np.ndarray]:
    zeros = bessel_zeros(num_spherical, num_radial)
    return zeros, math.sqrt(2) / np.abs(spherical_jn(np.arange(1, num_spherical + 1)[:, None], zeros))


def _spherical_bessel(l: int, x: Any) -> Any:  # noqa: E741
    """j_l by its power series up to l + 1, by the recurrence from sin and cos above."""
    low = x < l + 1
    near, far = jnp.where(low, x, 1), jnp.where(low, l + 2, x)
    factors = [-0.5 / (k * (2 * l + 2 * k + 1)) for k in range(1, SERIES)]
    terms = np.cumprod([1 / math.prod(range(1, 2 * l + 2, 2)), *factors])[::-1]
    series = near**l * jnp.polyval(jnp.asarray(terms, x.dtype), near * near, unroll=1)
    j = [jnp.sin(far) / far, jnp.sin(far) / far**2 - jnp.cos(far) / far]
    for n in range(1, l):
        j.append((2 * n + 1) / far * j[n] - j[n - 1])
    return jnp.where(low, series, j[l])


def radial_basis(v: Values, s: Values, a: Values) -> Values:
    """Sines and spherical Bessel functions times the envelope."""
    inside, q = v["dist"] < 1, s["envelope_exponent"] + 1
    x = jnp.where(inside, v["dist"], 0.5)[:, None]
    b, c, d = -(q + 1) * (q + 2) / 2, q * (q + 2), -q * (q + 1) / 2
    envelope = jnp.where(inside[:, None], 1 / x + b * x ** (q - 1) + c * x**q + d * x ** (q + 1), 0)
    zeros, norms = _zeros(s["num_spherical"], s["num_radial"])
    radial = [
        envelope * n.astype(x.dtype) * _spherical_bessel(l, z.astype(x.dtype) * x)
        for l, (z, n) in enumerate(zip(zeros, norms, strict=True))  # noqa: E741
    ]
    return {"rbf": envelope * jnp.sin(v["freq"] * x), "sbf_rad": jnp.concatenate(radial, 1)}


def _harmonics(u: Any, degree: int) -> list[Any]:
    """Y_lm of unit vectors for each l, as polynomials, with P_l(u.w) = sum over m of Y_lm(u) Y_lm(w)."""
    x, y, z = u.T
    q: dict[tuple[int, int], Any] = {(0, 0): jnp.ones_like(z)}
    for m in range(degree):
        if m:
            q[m, m] = (2 * m - 1) * q[m - 1, m - 1]
        q[m + 1, m] = (2 * m + 1) * z * q[m, m]
        for l in range(m + 2, degree):  # noqa: E741
            q[l, m] = ((2 * l - 1) * z * q[l - 1, m] - (l + m - 1) * q[l - 2, m]) / (l - m)
    plane = [(jnp.ones_like(x), jnp.zeros_like(x))]
    for _ in range(degree):
        re, im = plane[-1]
        plane.append((x * re - y * im, x * im + y * re))
    found = []
    for l in range(degree):  # noqa: E741
        rows = [q[l, 0]]
        for m in range(1, l + 1):
            size = math.sqrt(2 * math.factorial(l - m) / math.factorial(l + m))
            rows += [size * q[l, m] * part for part in plane[m]]
        found.append(jnp.stack(rows, 1))
    return found


def agg_edge_to_edge(v: Values, s: Values, a: Values) -> Values:
    """Sum over triplets by the addition theorem: sums of harmonics at each node, less what is left out."""
    edges, vec, number = jnp.arange(s["num_edges"]), v["vec"], s["num_spherical"] * s["num_radial"]
    w1 = v["weights"][:number].reshape(s["num_spherical"], s["num_radial"], -1)
    radial = v["sbf_rad"].reshape(-1, s["num_spherical"], s["num_radial"])
    basis = jnp.einsum("eln,lnm,cm->elc", radial, w1, v["weights"][number:]) * v["embedding"][:, None]
    order = v["dst_edge_index"]
    if a["exclude"] == "node":  # the edges between the same two nodes together: groups in the order by destination
        src, dst = v["src"][order], v["dst"][order]
        begins = jnp.concatenate([jnp.ones(1, bool), (dst[1:] != dst[:-1]) | (src[1:] != src[:-1])])
        first = jax.lax.cummax(jnp.where(begins, edges, 0))
        group, other, leaves = edges.at[order].set(first), v["reverse_start"], v["reverse_stop"] > v["reverse_start"]
    elif a["exclude"] == "edge":
        group, other, leaves = edges, v["reverse_edge"], v["reverse_edge"] >= 0
    out = jnp.zeros_like(v["embedding"])
    for l, y in enumerate(_harmonics(vec / jnp.sqrt((vec * vec).sum(1, keepdims=True)), s["num_spherical"])):  # noqa: E741
        terms = math.sqrt((2 * l + 1) / (4 * math.pi)) * y[:, :, None] * basis[:, None, l]
        at = _sum(terms, v["dst"], s["num_nodes"])[v["src"]]
        if a["exclude"]:
            left = _sum(terms, group, s["num_edges"])[jnp.where(leaves, other, 0)]
            at = at - jnp.where(leaves[:, None, None], left, 0)
        out = out + jnp.einsum("em,emc->ec", y, at)
    return {"out": out}


ACTIVATIONS = {
    "linear": lambda z, slope: z,
    "ReLU": lambda z, slope: jnp.where(z <= 0, 0, z),
    "LeakyReLU": lambda z, slope: jnp.where(z > 0, z, slope * z),
    "ELU": lambda z, slope: jnp.where(z > 0, z, jnp.expm1(jnp.where(z > 0, 0, z))),
    "sigmoid": lambda z, slope: jax.nn.sigmoid(z),
    "tanh": lambda z, slope: jnp.tanh(z),
}


def mha_gat_n2n(v: Values, s: Values, a: Values) -> Values:
    """Attention by a softmax over the in-edges of each destination."""
    heads, dst, number = (s["num_heads"], s["dim_head"]), v["destinations"], s["num_dst_nodes"]
    weights = v["attention_weights"].reshape(-1, *heads)
    x = v["src_embedding"].reshape(-1, *heads)
    score = (x * weights[0]).sum(-1)[v["indices"]] + (v["dst_embedding"].reshape(-1, *heads) * weights[1]).sum(-1)[dst]
    if "edge_embedding" in v:
        score = score + (v["edge_embedding"].reshape(-1, *heads) * weights[2]).sum(-1)[v["edge_ids"]]
    logit = ACTIVATIONS[a["activation"]](score, a["negative_slope"])
    peak = jax.ops.segment_max(jax.lax.stop_gradient(logit), dst, number)
    powers = jnp.exp(logit - peak[dst])
    alpha = powers / _sum(powers, dst, number)[dst]
    out = _sum(alpha[:, :, None] * x[v["indices"]], dst, number)
    return {"output_embedding": out.reshape(number, -1) if a["concat_heads"] else out.mean(1)}


def agg_weighted_n2n(v: Values, s: Values, a: Values) -> Values:
    """Sum, mean, minimum or maximum of weighted embeddings."""
    dst, number = v["destinations"], s["num_dst_nodes"]
    weight = v["edge_weight"][v["edge_ids"]] if "edge_weight" in v else jnp.ones(len(dst), v["embedding"].dtype)
    terms = weight[:, None] * v["embedding"][v["indices"]]
    some = (v["offsets"][1:] > v["offsets"][:-1])[:, None]
    if a["op"] in ("sum", "mean"):
        by = weight if a["mean_by"] == "weight" else jnp.ones_like(weight)
        degree = _sum(by, dst, number)[:, None]
        total = _sum(terms, dst, number)
        return {"output_embedding": total / jnp.where(some, degree, 1) if a["op"] == "mean" else total}
    extremum = jax.ops.segment_max if a["op"] == "max" else jax.ops.segment_min
    best = (terms == extremum(terms, dst, number)[dst]) | jnp.isnan(terms)
    place = jax.ops.segment_min(jnp.where(best, jnp.arange(len(dst))[:, None], len(dst)), dst, number)
    chosen = jnp.take_along_axis(terms, jnp.where(some, place, 0), 0)
    return {"output_embedding": jnp.where(some, chosen, 0)}


def basis_embedding_radial(v: Values, s: Values, a: Values) -> Values:
    """Radial basis times weight."""
    return {"rad_W1": v["rad_basis"] @ v["weight"].T}


def basis_embedding_spherical(v: Values, s: Values, a: Values) -> Values:
    """Radial basis times weight for each spherical function, reshaped and not transposed."""
    product = v["rad_basis"] @ v["weight"].reshape(s["num_radial"], -1)
    return {"rad_W1": product.reshape(-1, s["interm"], s["num_spherical"])}


def basis_embedding_triplets(v: Values, s: Values, a: Values) -> Values:
    """Sum over spherical functions of that, times the spherical basis of each triplet."""
    of_edges = basis_embedding_spherical(v, s, a)["rad_W1"]
    return {"rad_W1": jnp.einsum("tis,ts->ti", of_edges[v["triplet_edge"]], v["sph_basis"])}


def interaction_bilinear(v: Values, s: Values, a: Values) -> Values:
    """Sum over the triplets of each edge, and over the edges of each atom."""
    m = v["m"][v["input_of_triplet"]] if "input_of_triplet" in v else v["m"]
    of_edges = _sum(v["sph"][:, :, None] * m[:, None], v["triplet_edge"], s["num_edges"])
    product = jnp.einsum("eis,esc->eic", v["rad_W1"], of_edges)
    if "atom_of_edge" in v:
        product = _sum(product, v["atom_of_edge"], s["num_outputs"])
    return {"m_ca": product.reshape(len(product), -1) @ v["weight"].T}


PLAIN = {
    f.__name__: f
    for f in (
        gno_kernel,
        gno_aggregate,
        gno_message,
        radial_basis,
        agg_edge_to_edge,
        mha_gat_n2n,
        agg_weighted_n2n,
        basis_embedding_radial,
        basis_embedding_spherical,
        basis_embedding_triplets,
        interaction_bilinear,
    )
}
