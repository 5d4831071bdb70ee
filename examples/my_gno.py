"""An implementation of an operator, which trigraph can verify.

Run in this folder

    trigraph verify --implementation my_gno:gno_kernel_bwd

and, to see the report of a mistake,

    trigraph verify --implementation my_gno:forgets_the_mask --operator gno_kernel_bwd

A function receives the operator's arguments by keyword as NumPy arrays, and returns the fields as a tuple or mapping.
"""

import numpy as np


def unpack_network(params, d, f_in, f_out):
    """Return U, b_u and V from params = U | b_u | V | b_v, each column-major."""
    f = f_in * f_out
    hidden = (params.size - f) // (d + 1 + f)
    U, b_u, V, _ = np.split(params, np.cumsum([hidden * d, hidden, f * hidden]))
    return U.reshape(hidden, d, order="F"), b_u, V.reshape(f, hidden, order="F")


def gno_kernel_bwd(grad_kernel, coords, params, f_in, f_out):
    """Return the vector-Jacobian product of kernel = V relu(U dx + b_u) + b_v, edge by edge."""
    U, b_u, V = unpack_network(params, coords.shape[1], f_in, f_out)
    grad_coords = np.zeros_like(coords)
    dU, db_u, dV = np.zeros_like(U), np.zeros_like(b_u), np.zeros_like(V)
    for e, (dx, g) in enumerate(zip(coords, grad_kernel, strict=True)):
        z = U @ dx + b_u
        a = np.where(z <= 0, 0, z)
        s = np.where(z <= 0, 0, V.T @ g)
        grad_coords[e] = U.T @ s
        dU += np.outer(s, dx)
        db_u += s
        dV += np.outer(g, a)
    blocks = (dU.ravel(order="F"), db_u, dV.ravel(order="F"), grad_kernel.sum(axis=0))
    return {"coords": grad_coords, "params": np.concatenate(blocks)}


def forgets_the_mask(grad_kernel, coords, params, f_in, f_out):
    """Return the fields of `gno_kernel_bwd` without the mask of relu: correct only if all hidden units are active."""
    fields = gno_kernel_bwd(grad_kernel, coords, params, f_in, f_out)
    U, _, V = unpack_network(params, coords.shape[1], f_in, f_out)
    return fields | {"coords": grad_kernel @ V @ U}
