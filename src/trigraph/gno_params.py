"""Packed parameters of the graph neural operator, in the order that athena uses."""

from typing import Any, NamedTuple

from trigraph.arrays import name_library, require_count, suggest_array_conversion
from trigraph.graphs.neighbors import FLOATS


class GnoParams(NamedTuple):
    """Parameters of the kernel network: U (H, d), b_u (H,), V (F, H), b_v (F,), with F = f_in*f_out, f_out fastest."""

    U: Any
    b_u: Any
    V: Any
    b_v: Any


def pack_gno_params(U: Any, b_u: Any, V: Any, b_v: Any) -> Any:
    """Pack the parameters of a GNO kernel into one vector: U | b_u | V | b_v, each block column-major.

    Parameters
    ----------
    U : array, shape (hidden, d)
    b_u : array, shape (hidden,)
    V : array, shape (f_in*f_out, hidden)
        Row ``o + f_out*f`` belongs to output feature o and input feature f.
    b_v : array, shape (f_in*f_out,)

    Returns
    -------
    array, shape (hidden*(d + 1 + F) + F,)

    Raises
    ------
    TypeError, ValueError
        If the arrays differ in type or dtype, or their shapes do not match.

    See Also
    --------
    trigraph.unpack_gno_params
    trigraph.gno_message_fwd

    Examples
    --------
    >>> import numpy as np
    >>> import trigraph
    >>> U, b_u = np.array([[0.5, -0.5]]), np.array([1.0])
    >>> trigraph.pack_gno_params(U, b_u, np.array([[2.0]]), np.array([3.0]))
    array([ 0.5, -0.5,  1. ,  2. ,  3. ])
    """
    arrays = {"U": (U, 2), "b_u": (b_u, 1), "V": (V, 2), "b_v": (b_v, 1)}
    library = name_library(U)
    for name, (value, rank) in arrays.items():
        if name_library(value) is None:
            type_name = type(value).__name__
            raise TypeError(
                f"pack_gno_params: {name} is a {type_name}; expected an ndarray{suggest_array_conversion(name, value)}"
            )
        if name_library(value) != library:
            raise TypeError(
                f"pack_gno_params: {name} is a {name_library(value)}.ndarray; expected {library}.ndarray, as U is"
            )
        if value.dtype not in FLOATS or value.dtype != U.dtype:
            raise TypeError(f"pack_gno_params: {name} has dtype {value.dtype}; expected float32 or float64, as for U")
        if value.ndim != rank:
            raise ValueError(f"pack_gno_params: {name} has shape {value.shape}; expected rank {rank}")
    hidden, f = U.shape[0], V.shape[0]
    for name, value, expected in (("b_u", b_u, (hidden,)), ("V", V, (f, hidden)), ("b_v", b_v, (f,))):
        if value.shape != expected:
            raise ValueError(f"pack_gno_params: {name} has shape {value.shape}; expected {expected}")
    xp = __import__(library or "numpy")
    return xp.concatenate([U.T.reshape(-1), b_u, V.T.reshape(-1), b_v])


def unpack_gno_params(params: Any, d: int, f_in: int, f_out: int) -> GnoParams:
    """Return views of the blocks of packed parameters.

    Parameters
    ----------
    params : array, shape (hidden*(d + 1 + F) + F,)
    d, f_in, f_out : int

    Returns
    -------
    GnoParams
        Views; writing to a view changes `params`.

    Raises
    ------
    TypeError, ValueError
        If `params` is not a one-dimensional array, a size is not an int >= 1, or hidden = (len(params) - F)/(d + 1 + F)
        is not an integer >= 1.

    See Also
    --------
    trigraph.pack_gno_params
    trigraph.gno_message_fwd

    Examples
    --------
    >>> import numpy as np
    >>> import trigraph
    >>> params = np.array([0.5, -0.5, 1.0, 2.0, 3.0])
    >>> trigraph.unpack_gno_params(params, d=2, f_in=1, f_out=1).U
    array([[ 0.5, -0.5]])
    """
    if name_library(params) is None:
        raise TypeError(
            f"unpack_gno_params: params is a {type(params).__name__}; expected an ndarray"
            f"{suggest_array_conversion('params', params)}"
        )
    if params.ndim != 1:
        raise ValueError(f"unpack_gno_params: params has shape {params.shape}; expected rank 1")
    d, f_in, f_out = (
        require_count("unpack_gno_params", name, value, minimum=1)
        for name, value in (("d", d), ("f_in", f_in), ("f_out", f_out))
    )
    f = f_in * f_out
    hidden, rest = divmod(params.size - f, d + 1 + f)
    if rest or hidden < 1:
        raise ValueError(
            f"unpack_gno_params: params has shape {params.shape}; expected (hidden*(d+1+f_out*f_in)+f_out*f_in,) with "
            f"a whole hidden >= 1 for d = {d}, f_in = {f_in}, f_out = {f_out}"
        )
    bu, v, bv = hidden * d, hidden * (d + 1), hidden * (d + 1 + f)
    return GnoParams(params[:bu].reshape(d, hidden).T, params[bu:v], params[v:bv].reshape(hidden, f).T, params[bv:])
