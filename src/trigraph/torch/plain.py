"""Every operator in torch's own operations, which differentiate to any order.

Third and higher derivatives are those of these functions; `trigraph.torch` computes the first two with its operators.
Each function takes the arrays of the operator by name, and its graphs and attributes in `others`. It returns a tuple of
the outputs. The formulas and names are those of `trigraph.pyref`: rows are gathered, and summed by `scatter`. At a kink
the derivatives are those of the side that the first two orders take.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from scipy.special import spherical_jn
from torch import Tensor

from trigraph.pyref.dimenet import bessel_zeros
from trigraph.table import GRAPH_PARTS
from trigraph.torch.graphs import tensors

Values = Mapping[str, Any]


def parts(graph: Any) -> dict[str, Tensor]:
    """Return the index tensors of a graph by name."""
    return dict(zip(GRAPH_PARTS[type(graph).__name__].arrays, tensors(graph, False), strict=False))


def scatter(index: Tensor, rows: Tensor, num: int) -> Tensor:
    """Return the sums of the rows that share an index."""
    return rows.new_zeros(num, *rows.shape[1:]).index_add(0, index, rows)


def repeated(offsets: Tensor, size: int) -> Tensor:
    """Return the row of each position of a CSR array."""
    rows = torch.arange(len(offsets) - 1, device=offsets.device)
    return torch.repeat_interleave(rows, offsets.diff(), output_size=size)


def gno_kernel(values: Values, others: Values) -> tuple[Tensor, ...]:
    """Kernel = V relu(U dx + b_u) + b_v."""
    coords, params, f = values["coords"], values["params"], others["f_in"] * others["f_out"]
    d = coords.shape[1]
    hidden = (len(params) - f) // (d + 1 + f)
    U, b_u, V, b_v = params.split([hidden * d, hidden, hidden * f, f])
    z = coords @ U.view(d, hidden) + b_u
    return (torch.where(z <= 0, 0.0, z) @ V.view(hidden, f) + b_v,)


def _message(features: Tensor, kernel: Tensor, others: Values) -> tuple[Tensor, ...]:
    """message_i = sum over p into i of K_p h_src(p); `kernel` has a row for each position."""
    part = parts(others["graph"])
    h = features.index_select(0, part["indices"])
    products = torch.einsum("pfo,pf->po", kernel.unflatten(1, (others["f_in"], others["f_out"])), h)
    return (scatter(repeated(part["offsets"], len(h)), products, others["graph"].num_dst_nodes),)


def gno_aggregate(values: Values, others: Values) -> tuple[Tensor, ...]:
    """message_i = sum over e into i of K_e h_src(e)."""
    rows = parts(others["graph"])["edge_ids"]
    return _message(values["features"], values["kernel"].index_select(0, rows), others)


def gno_message(values: Values, others: Values) -> tuple[Tensor, ...]:
    """Kernel of every position, then its aggregation."""
    rows = parts(others["graph"])["edge_ids"]
    (kernel,) = gno_kernel({**values, "coords": values["coords"].index_select(0, rows)}, others)
    return _message(values["features"], kernel, others)


@torch.library.custom_op("trigraph::spherical_bessel", mutates_args=())
def _spherical_bessel(degree: int, x: Tensor) -> Tensor:
    return torch.from_numpy(np.asarray(spherical_jn(degree, x.detach().cpu().numpy()))).to(x)


@_spherical_bessel.register_fake
def _(degree: int, x: Tensor) -> Tensor:
    return torch.empty_like(x)


class _SphericalBessel(torch.autograd.Function):
    """Spherical Bessel function j_l of one degree, by SciPy on the host; j_l' = j_(l-1) - (l+1)/x j_l, j_0' = -j_1."""

    @staticmethod
    def forward(degree: int, x: Tensor) -> Tensor:
        found: Tensor = _spherical_bessel(degree, x)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.degree = inputs[0]
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[None, Tensor]:
        (x,), degree, j = ctx.saved_tensors, ctx.degree, _SphericalBessel.apply
        if degree == 0:
            return None, -cotangent * j(1, x)
        return None, cotangent * (j(degree - 1, x) - (degree + 1) / x * j(degree, x))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], degree: int, x: Tensor) -> tuple[Tensor, int | None]:
        return _SphericalBessel.apply(degree, x), in_dims[1]


def radial_basis(values: Values, others: Values) -> tuple[Tensor, ...]:
    """rbf_k = env sin(freq_k x), sbf_lk = env N_lk j_l(z_lk x)."""
    dist, freq = values["dist"].flatten(), values["freq"]
    inside = ~(dist >= 1)[:, None]
    x = torch.where(inside, torch.where(dist <= 0, math.nan, dist)[:, None], 0.5)  # beyond the cutoff all is zero
    q = others["envelope_exponent"] + 1
    a, b, c = (q + 1) * (q + 2) // 2, q * (q + 2), q * (q + 1) // 2
    env = 1 / x - a * x ** (q - 1) + b * x**q - c * x ** (q + 1)
    zeros = bessel_zeros(others["num_spherical"], len(freq))
    columns = [torch.where(inside, env * torch.sin(x * freq), 0.0)]
    for degree, row in enumerate(zeros):
        norm = math.sqrt(2) / np.abs(spherical_jn(degree + 1, row))
        y = x.double() * torch.as_tensor(row, device=x.device)
        radial = (torch.as_tensor(norm, device=x.device) * _SphericalBessel.apply(degree, y)).to(x.dtype)
        columns.append(torch.where(inside, env * radial, 0.0))
    return columns[0], torch.cat(columns[1:], 1)


def triplets(graph: Any, exclude: str | None) -> tuple[Tensor, Tensor]:
    """Return the edges e = (j->i) and f = (k->j) of every triplet that is not left out."""
    part = parts(graph)
    src, offsets = part["src"].long(), part["dst_offsets"].long()
    degree = offsets.diff()[src]
    e = torch.repeat_interleave(torch.arange(len(src), device=src.device), degree)
    within = torch.arange(len(e), device=src.device) - (degree.cumsum(0) - degree)[e]
    f = part["dst_edge_index"].long()[offsets[src][e] + within]
    if exclude is None:
        return e, f
    kept = src[f] != part["dst"][e] if exclude == "node" else f != part["reverse_edge"][e]
    return e[kept], f[kept]


def agg_edge_to_edge(values: Values, others: Values) -> tuple[Tensor, ...]:
    """out_c(e) = sum over f of embedding_c(f) q_c."""
    graph, S, R = others["graph"], others["num_spherical"], others["num_radial"]
    e, f = triplets(graph, others["exclude"])
    vec, weights = values["vec"], values["weights"]
    # Vectors are divided by powers of two, so that no square overflows or vanishes. The gradient of torch.ldexp itself
    # is zero where the exponent is negative.
    largest = vec.detach().abs().amax(1, keepdim=True)
    w = vec * torch.ldexp(torch.ones_like(largest), -torch.frexp(largest).exponent)
    u = w / w.square().sum(1, keepdim=True).sqrt()
    cosine = (u[e] * u[f]).sum(1)
    P = [torch.ones_like(cosine), cosine]
    for degree in range(1, S - 1):
        P.append(((2 * degree + 1) * cosine * P[degree] - degree * P[degree - 1]) / (degree + 1))
    r = values["sbf_rad"][f].unflatten(1, (S, R))
    W1, W2 = weights[: S * R].unflatten(0, (S, R)), weights[S * R :]
    Y = [math.sqrt((2 * degree + 1) / (4 * math.pi)) * P[degree] for degree in range(S)]
    p = sum(Y[degree][:, None] * (r[:, degree] @ W1[degree]) for degree in range(S))
    return (scatter(e, values["embedding"][f] * (p @ W2.T), graph.num_edges),)


def act(score: Tensor, activation: str, slope: float) -> Tensor:
    """Return the activation of attention scores; at 0 its derivatives are those of the negative side."""
    if activation == "ReLU":
        return torch.where(score <= 0, 0.0, score)
    if activation == "LeakyReLU":
        return torch.where(score <= 0, slope * score, score)
    if activation == "ELU":
        return torch.where(score <= 0, torch.expm1(torch.where(score <= 0, score, 0.0)), score)
    return {"sigmoid": torch.sigmoid, "tanh": torch.tanh, "linear": lambda t: t}[activation](score)


def mha_gat_n2n(values: Values, others: Values) -> tuple[Tensor, ...]:
    """out_i = sum alpha x_j, with alpha the softmax of act(score) over the in-edges of i."""
    graph, heads, weights = others["graph"], others["num_heads"], values["attention_weights"]
    part = parts(graph)
    i = repeated(part["offsets"], len(part["indices"]))
    rows = {"src_embedding": part["indices"], "dst_embedding": i, "edge_embedding": part["edge_ids"]}
    given = {n: index for n, index in rows.items() if values[n] is not None}
    # Half-precision numbers are computed with in the dtype of the weights.
    x = [values[n].to(weights.dtype).unflatten(1, (heads, -1)) for n in given]
    a = weights.view(len(x), heads, -1)
    score = sum((ak * xk).sum(2).index_select(0, index) for ak, xk, index in zip(a, x, given.values(), strict=True))
    logit = act(score, others["activation"], others["negative_slope"])
    n, fixed = graph.num_dst_nodes, logit.detach()
    peak = fixed.new_zeros(n, heads).scatter_reduce(0, i[:, None].expand_as(logit), fixed, "amax", include_self=False)
    powers = torch.exp(logit - peak[i])
    alpha = powers / scatter(i, powers, n)[i]
    out = scatter(i, alpha[:, :, None] * x[0].index_select(0, part["indices"]), n)
    out = out.flatten(1) if others["concat_heads"] else out.sum(1) / heads
    return (out.to(values["src_embedding"].dtype),)


def extrema(messages: Tensor, i: Tensor, n: int, reduction: str) -> Tensor:
    """Return the first position of each extremum, or of a NaN; the number of positions without in-edges."""
    each = i[:, None].expand_as(messages)
    most = messages.new_zeros(n, messages.shape[1]).scatter_reduce(0, each, messages, reduction, include_self=False)
    count = len(messages)
    place = torch.arange(count, device=messages.device)[:, None]
    place = torch.where((messages == most[i]) | messages.isnan(), place, count)
    return place.new_full(most.shape, count).scatter_reduce(0, each, place, "amin")


def agg_weighted_n2n(values: Values, others: Values) -> tuple[Tensor, ...]:
    """out_i = sum, mean, min or max of w_e x_j."""
    graph, op, x, weight = others["graph"], others["op"], values["embedding"], values["edge_weight"]
    part, n = parts(graph), graph.num_dst_nodes
    i = repeated(part["offsets"], len(part["indices"]))
    messages = x.index_select(0, part["indices"])
    w = None if weight is None else weight.index_select(0, part["edge_ids"])[:, None]
    messages = messages if w is None else w * messages
    if op in ("min", "max"):
        location = extrema(messages.detach(), i, n, f"a{op}")
        return (torch.where(location == len(messages), 0.0, messages.gather(0, location.clamp(max=len(messages) - 1))),)
    out = scatter(i, messages, n)
    if op == "mean":
        counts = part["offsets"].diff().to(x.dtype)[:, None]
        degree = counts if w is None or others["mean_by"] == "count" else scatter(i, w, n)
        out = torch.where(counts > 0, out / torch.where(counts > 0, degree, 1.0), 0.0)
    return (out,)


def basis_embedding_radial(values: Values, others: Values) -> tuple[Tensor, ...]:
    """rad_W1[e,i] = sum_r rad_basis[e,r] weight[i,r]."""
    return (values["rad_basis"] @ values["weight"].T,)


def basis_embedding_spherical(values: Values, others: Values) -> tuple[Tensor, ...]:
    """Rows of rad_basis @ weight, whose memory is reshaped to (interm, num_spherical)."""
    _, num_spherical, interm = values["weight"].shape
    return ((values["rad_basis"] @ values["weight"].flatten(1)).unflatten(1, (interm, num_spherical)),)


def basis_embedding_triplets(values: Values, others: Values) -> tuple[Tensor, ...]:
    """rad_W1[t,i] = sum_s A_t[i,s] sph_basis[t,s], A_t = basis_embedding_spherical of the triplet's edge."""
    (A,) = basis_embedding_spherical(values, others)
    A_t = A.index_select(0, parts(others["triplets"])["index"])
    return (torch.einsum("tis,ts->ti", A_t, values["sph_basis"]),)


def interaction_bilinear(values: Values, others: Values) -> tuple[Tensor, ...]:
    """B_e[s,c] = sum sph[t,s] m[t,c]; P[i,c] = sum_s rad_W1[e,i,s] B_e[s,c], over atoms; m_ca = weight vec(P)."""
    atoms, idx_in = others["atoms"], others["idx_in"]
    edge = parts(others["triplets"])["index"]
    m_t = values["m"] if idx_in is None else values["m"].index_select(0, parts(idx_in)["index"])
    B = scatter(edge, values["sph"][:, :, None] * m_t[:, None], others["triplets"].num_segments)
    P = torch.einsum("eis,esc->eic", values["rad_W1"], B)
    P = P if atoms is None else scatter(parts(atoms)["index"], P, atoms.num_segments)
    return (P.flatten(1) @ values["weight"].T,)


def second(
    names: Sequence[str], outputs: Sequence[str], values: Values, others: Values, forward: Callable[..., Any]
) -> tuple[dict[str, Tensor], Callable[..., tuple[Tensor, ...]]]:
    """Return the arrays that bwd2 depends on, by name, and bwd2 as a function of them, in the same order.

    Its results are the gradients of `outputs`, then of the inputs `names`.
    """
    given = {
        **{f"gg_{n}": torch.zeros_like(values[n]) if values[f"gg_{n}"] is None else values[f"gg_{n}"] for n in names},
        **{f"grad_{n}": values[f"grad_{n}"] for n in outputs},
        **{n: values[n] for n in names},
    }

    def function(*arrays: Tensor) -> tuple[Tensor, ...]:
        along, x = arrays[: len(names)], arrays[len(names) + len(outputs) :]

        def computed(*inputs: Tensor) -> tuple[Tensor, ...]:
            found: tuple[Tensor, ...] = forward({**values, **dict(zip(names, inputs, strict=True))}, others)
            return found

        def bwd(grads: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return tuple(torch.func.vjp(computed, *inputs)[1](grads))

        by_grads, by_inputs = torch.func.vjp(bwd, arrays[len(names) : len(names) + len(outputs)], x)[1](along)
        return (*by_grads, *by_inputs)

    return given, function


PLAIN: dict[str, Callable[[Values, Values], tuple[Tensor, ...]]] = {
    function.__name__: function
    for function in (
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
