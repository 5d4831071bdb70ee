"""Second and third derivatives of SiLU, computed by the fast path for the activations in layers of `trigraph.torch`."""

import numpy as np

from trigraph.fortran.levels import fast_module
from trigraph.fortran.threads import choose_num_threads

OPERATIONS = 40  # floating-point operations per element, including an exponential


def fill_silu_derivatives(order: int, *arrays: np.ndarray) -> None:
    """Compute the second or third derivatives of SiLU, f(x) = x sigmoid(x).

    Parameters
    ----------
    order : int
        Order of the derivatives, 2 or 3.
    *arrays : ndarray, float32 or float64, all of the same length and dtype
        For order 2: ``gg``, ``grad``, ``x`` and two results, which are overwritten with the gradients of the sum of
        ``gg * grad * f'(x)`` with respect to ``grad`` and ``x``. For order 3: ``ggg_grad`` and ``ggg_x``, which are the
        cotangents of these two results, then ``gg``, ``grad``, ``x`` and the gradients of ``gg``, ``grad`` and ``x``.

    Raises
    ------
    MemoryError
        If the system cannot create threads.
    """
    x = arrays[-1]
    if not len(x):  # f2py rejects empty arrays
        return
    name = f"silu_bwd{order}_f{8 * x.itemsize}"
    if getattr(fast_module(), name)(choose_num_threads(OPERATIONS * len(x)), *arrays) != 0:
        raise MemoryError("silu: the system refused threads")
