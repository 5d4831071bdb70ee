"""Functions shared by all families of the NumPy implementation."""

import numpy as np

from trigraph.table import result_type


def evaluate_fields(name, wrt, **fields):
    """Evaluate the requested fields; each field is passed as a function without arguments."""
    asked = fields if wrt is None else (wrt,) if isinstance(wrt, str) else wrt
    return result_type(name)(**{f: compute() if f in asked else None for f, compute in fields.items()})


def zero_if_none(x, like):
    """Return a cotangent, or zeros for None."""
    return np.zeros_like(like) if x is None else x


def scatter_sum(index, rows, num):
    """Sum the rows that share an index, in order of appearance."""
    out = np.zeros((num, *rows.shape[1:]), rows.dtype)
    np.add.at(out, index, rows)
    return out


def ldexp(x, n):
    """Return x 2^n without rounding, for real or complex x."""
    if not np.iscomplexobj(x):
        return np.ldexp(x, n)
    y = x.copy()
    y.real, y.imag = np.ldexp(x.real, n), np.ldexp(x.imag, n)
    return y


def zero_where_false(mask, x):
    """Return x where the mask is true, otherwise 0. A product with the mask would keep a masked NaN."""
    return np.where(mask, x, np.zeros((), x.dtype))


def find_position_destinations(graph):
    """Return the destination of every CSC position."""
    return np.repeat(np.arange(graph.num_dst_nodes), np.diff(graph.offsets))
