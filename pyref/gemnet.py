"""GemNet-OC's efficient bilinear layer in NumPy.

Basis embedding: R = rad_basis @ weight for each intermediate channel c and spherical function s, returned as rad_W1;
with a spherical basis, rad_W1[t,c] = sum_s R[edge(t),c,s] sph_basis[t,s]. Interaction, with R = rad_W1: B_e[s,n] = sum
over t of e of sph[t,s] m[t,n]; P_e[c,n] = sum_s R_e[c,s] B_e[s,n], summed over the edges of each atom if atoms are
given; m_ca = weight vec(P).

Every operator is linear in each of its inputs. Its second order is therefore a sum over pairs of inputs, in which one
input is replaced by its cotangent and the other is differentiated.
"""

import numpy as np

from trigraph.pyref.common import evaluate_fields, scatter_sum, zero_if_none


def compute_bwd2_by_polarisation(name, wrt, fwd, bwd, grad, factors, cotangents, **graph):
    """Return the bwd2 fields of an operator f that is linear in each factor x_n; `grad` maps the gradient's name to g.

    g: sum_n f(x_n := gg_n); x_k: sum over n /= k of the gradient with respect to x_k at x_n := gg_n.
    """
    ((output, g),) = grad.items()
    factors_with_cotangent = {n: {**factors, n: zero_if_none(gg, factors[n])} for n, gg in cotangents.items()}

    def differentiate_by_factor(k):
        return sum(getattr(bwd(g, **x, **graph, wrt=k), k) for n, x in factors_with_cotangent.items() if n != k)

    fields = {output: lambda: sum(fwd(**x, **graph) for x in factors_with_cotangent.values())}
    return evaluate_fields(name, wrt, **fields, **{k: lambda k=k: differentiate_by_factor(k) for k in factors})


def basis_embedding_radial_fwd(rad_basis, weight):
    """Return rad_W1[e,c] = sum_r rad_basis[e,r] weight[c,r]."""
    return rad_basis @ weight.T


def basis_embedding_radial_bwd(grad_rad_W1, rad_basis, weight, wrt=None):
    """Return the gradients rad_basis = g weight and weight = g^T rad_basis."""
    return evaluate_fields(
        "basis_embedding_radial_bwd",
        wrt,
        rad_basis=lambda: grad_rad_W1 @ weight,
        weight=lambda: grad_rad_W1.T @ rad_basis,
    )


def basis_embedding_radial_bwd2(gg_rad_basis, gg_weight, grad_rad_W1, rad_basis, weight, wrt=None):
    """Differentiate the bilinear form by polarisation."""
    return compute_bwd2_by_polarisation(
        "basis_embedding_radial_bwd2",
        wrt,
        basis_embedding_radial_fwd,
        basis_embedding_radial_bwd,
        {"grad_rad_W1": grad_rad_W1},
        {"rad_basis": rad_basis, "weight": weight},
        {"rad_basis": gg_rad_basis, "weight": gg_weight},
    )


def reshape_to_matrix(weight):
    """Return the weight as a matrix (num_radial, num_spherical*interm), with interm fastest."""
    num_radial, num_spherical, interm = weight.shape
    return weight.reshape(num_radial, num_spherical * interm)


def basis_embedding_spherical_fwd(rad_basis, weight):
    """Return the rows of rad_basis @ weight, reshaped to (interm, num_spherical).

    A row has the memory order (num_spherical, interm). Checkpoints require a reshape instead of a transpose.
    """
    _, num_spherical, interm = weight.shape
    return (rad_basis @ reshape_to_matrix(weight)).reshape(len(rad_basis), interm, num_spherical)


def basis_embedding_spherical_bwd(grad_rad_W1, rad_basis, weight, wrt=None):
    """Return gradients: rad_basis = g weight^T; weight = rad_basis^T g; g is reshaped to rows of the product."""
    num_edges, interm, num_spherical = grad_rad_W1.shape
    g = grad_rad_W1.reshape(num_edges, interm * num_spherical)
    return evaluate_fields(
        "basis_embedding_spherical_bwd",
        wrt,
        rad_basis=lambda: g @ reshape_to_matrix(weight).T,
        weight=lambda: (rad_basis.T @ g).reshape(weight.shape),
    )


def basis_embedding_spherical_bwd2(gg_rad_basis, gg_weight, grad_rad_W1, rad_basis, weight, wrt=None):
    """Differentiate the bilinear form by polarisation."""
    return compute_bwd2_by_polarisation(
        "basis_embedding_spherical_bwd2",
        wrt,
        basis_embedding_spherical_fwd,
        basis_embedding_spherical_bwd,
        {"grad_rad_W1": grad_rad_W1},
        {"rad_basis": rad_basis, "weight": weight},
        {"rad_basis": gg_rad_basis, "weight": gg_weight},
    )


def basis_embedding_triplets_fwd(rad_basis, weight, sph_basis, triplets):
    """Return rad_W1[t,c] = sum_s R_t[c,s] sph_basis[t,s], with basis_embedding_spherical R_t of the triplet's edge."""
    R_t = basis_embedding_spherical_fwd(rad_basis[triplets.index], weight)
    return np.einsum("tcs,ts->tc", R_t, sph_basis)


def basis_embedding_triplets_bwd(grad_rad_W1, rad_basis, weight, sph_basis, triplets, wrt=None):
    """Return gradients: sph_basis[t] = R_t^T g[t]; rad_basis, weight from the gradient g[t] sph_basis[t]^T of R_t."""
    rad_t = rad_basis[triplets.index]

    def compute_factor_gradient(factor):
        grad_R_t = np.einsum("tc,ts->tcs", grad_rad_W1, sph_basis)
        return getattr(basis_embedding_spherical_bwd(grad_R_t, rad_t, weight, wrt=factor), factor)

    return evaluate_fields(
        "basis_embedding_triplets_bwd",
        wrt,
        rad_basis=lambda: scatter_sum(triplets.index, compute_factor_gradient("rad_basis"), triplets.num_segments),
        weight=lambda: compute_factor_gradient("weight"),
        sph_basis=lambda: np.einsum("tc,tcs->ts", grad_rad_W1, basis_embedding_spherical_fwd(rad_t, weight)),
    )


def basis_embedding_triplets_bwd2(
    gg_rad_basis, gg_weight, gg_sph_basis, grad_rad_W1, rad_basis, weight, sph_basis, triplets, wrt=None
):
    """Differentiate the trilinear form by polarisation."""
    return compute_bwd2_by_polarisation(
        "basis_embedding_triplets_bwd2",
        wrt,
        basis_embedding_triplets_fwd,
        basis_embedding_triplets_bwd,
        {"grad_rad_W1": grad_rad_W1},
        {"rad_basis": rad_basis, "weight": weight, "sph_basis": sph_basis},
        {"rad_basis": gg_rad_basis, "weight": gg_weight, "sph_basis": gg_sph_basis},
        triplets=triplets,
    )


def zero_unselected_rows(rows, x):
    """Return x in the selected rows and zero in all other rows, even if x is NaN there."""
    return np.where(rows.reshape(-1, *[1] * (x.ndim - 1)), x, np.zeros((), x.dtype))


def mask_edges_with_triplets(triplets):
    """Return a mask of edges with triplets. Sums of other edges are empty, so a NaN in their rows has no effect."""
    return np.diff(triplets.offsets) > 0


def mask_outputs_with_triplets(triplets, atoms):
    """Return a mask of outputs with triplets."""
    edges = mask_edges_with_triplets(triplets)
    return edges if atoms is None else scatter_sum(atoms.index, edges, atoms.num_segments)


def sum_triplets(sph, m, triplets, idx_in):
    """Return B_e[s,n] = sum over t of e of sph[t,s] m[t,n]."""
    m_t = m if idx_in is None else m[idx_in.index]
    return scatter_sum(triplets.index, np.einsum("ts,tn->tsn", sph, m_t), triplets.num_segments)


def sum_edges(rad_W1, B, triplets, atoms):
    """Return vec(P), n fastest: P[c,n] = sum_s rad_W1[e,c,s] B_e[s,n] of each edge, or summed over an atom's edges."""
    P = zero_unselected_rows(mask_edges_with_triplets(triplets), np.einsum("ecs,esn->ecn", rad_W1, B))
    P = P if atoms is None else scatter_sum(atoms.index, P, atoms.num_segments)
    num_outputs, interm, emb_in = P.shape
    return P.reshape(num_outputs, interm * emb_in)


def interaction_bilinear_fwd(rad_W1, sph, m, weight, triplets, atoms=None, idx_in=None):
    """Return m_ca = weight vec(P)."""
    B = sum_triplets(sph, m, triplets, idx_in)
    P = sum_edges(rad_W1, B, triplets, atoms)
    return zero_unselected_rows(mask_outputs_with_triplets(triplets, atoms), P @ weight.T)


def interaction_bilinear_bwd(grad_m_ca, rad_W1, sph, m, weight, triplets, atoms=None, idx_in=None, wrt=None):
    """Compute Q_e = weight^T g of the edge's output and G_e[s,n] = sum_c rad_W1[e,c,s] Q_e[c,n], the gradients of P, B.

    The gradients are rad_W1 = Q_e B_e^T, sph[t,s] = sum_n G_e[s,n] m[t,n], m[t,n] = sum_s G_e[s,n] sph[t,s] and
    weight = g vec(P)^T.
    """
    _, interm, _ = rad_W1.shape
    g = zero_unselected_rows(mask_outputs_with_triplets(triplets, atoms), grad_m_ca)
    Q = (g @ weight).reshape(len(g), interm, m.shape[1])
    Q_e = Q if atoms is None else Q[atoms.index]

    def grad_rad_W1():
        product = np.einsum("ecn,esn->ecs", Q_e, sum_triplets(sph, m, triplets, idx_in))
        return zero_unselected_rows(mask_edges_with_triplets(triplets), product)

    def gather_B_gradients():
        return np.einsum("ecs,ecn->esn", rad_W1, Q_e)[triplets.index]

    def grad_sph():
        return np.einsum("tsn,tn->ts", gather_B_gradients(), m if idx_in is None else m[idx_in.index])

    def grad_m():
        grad_m_t = np.einsum("tsn,ts->tn", gather_B_gradients(), sph)
        return grad_m_t if idx_in is None else scatter_sum(idx_in.index, grad_m_t, idx_in.num_segments)

    def grad_weight():
        return g.T @ sum_edges(rad_W1, sum_triplets(sph, m, triplets, idx_in), triplets, atoms)

    return evaluate_fields(
        "interaction_bilinear_bwd", wrt, rad_W1=grad_rad_W1, sph=grad_sph, m=grad_m, weight=grad_weight
    )


def interaction_bilinear_bwd2(
    gg_rad_W1, gg_sph, gg_m, gg_weight, grad_m_ca, rad_W1, sph, m, weight, triplets, atoms=None, idx_in=None, wrt=None
):
    """Differentiate the form, which is linear in each of its four factors, by polarisation."""
    return compute_bwd2_by_polarisation(
        "interaction_bilinear_bwd2",
        wrt,
        interaction_bilinear_fwd,
        interaction_bilinear_bwd,
        {"grad_m_ca": grad_m_ca},
        {"rad_W1": rad_W1, "sph": sph, "m": m, "weight": weight},
        {"rad_W1": gg_rad_W1, "sph": gg_sph, "m": gg_m, "weight": gg_weight},
        triplets=triplets,
        atoms=atoms,
        idx_in=idx_in,
    )
