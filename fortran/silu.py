"""Derivatives of SiLU of second and third order by the fast path, for the activations of torch's layers."""

import numpy as np

from trigraph.fortran.levels import fast_module
from trigraph.fortran.threads import threads_for

OPERATIONS = 40  # for each number: an exponential and some thirty others


def fill_silu_derivatives(order: int, *arrays: np.ndarray) -> None:
    """Compute derivatives of x sigmoid(x) of second or third order, with exact formulas.

    Parameters
    ----------
    order : int
        2 or 3.
    *arrays : ndarray, float32 or float64, all of one length and dtype
        In second order ``gg``, ``grad``, ``x``, and the results, which are overwritten: the gradients of ``grad`` and
        ``x`` in the sum of ``gg * grad * f'(x)``. In third order before them ``ggg_grad`` and ``ggg_x``, cotangents of
        these two results; the results are the gradients of ``gg``, ``grad`` and ``x``.

    Raises
    ------
    MemoryError
        If the system refuses threads.
    """
    x = arrays[-1]
    if not len(x):  # which f2py rejects
        return
    name = f"silu_bwd{order}_f{8 * x.itemsize}"
    if getattr(fast_module(), name)(threads_for(OPERATIONS * len(x)), *arrays) != 0:
        raise MemoryError("silu: the system refused threads")
