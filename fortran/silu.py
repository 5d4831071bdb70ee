"""Second and third derivatives of SiLU by the fast path, for the activations of torch's layers."""

import numpy as np

from trigraph.fortran.levels import fast_module
from trigraph.fortran.threads import threads_for

OPERATIONS = 40  # for each number: an exponential and some thirty other operations


def fill_silu_derivatives(order: int, *arrays: np.ndarray) -> None:
    """Compute derivatives of x sigmoid(x) of second or third order, with exact formulas.

    Parameters
    ----------
    order : int
        2 or 3.
    *arrays : ndarray, float32 or float64, all of one length and dtype
        In second order ``gg``, ``grad``, ``x``, and the results, which are overwritten: the gradients of ``sum(gg *
        grad * f'(x))`` with respect to ``grad`` and ``x``. In third order ``ggg_grad`` and ``ggg_x``, the cotangents of
        these two results, come first; the results are the gradients for ``gg``, ``grad`` and ``x``.

    Raises
    ------
    MemoryError
        If the system refuses threads.
    """
    x = arrays[-1]
    if not len(x):  # f2py rejects empty arrays
        return
    name = f"silu_bwd{order}_f{8 * x.itemsize}"
    if getattr(fast_module(), name)(threads_for(OPERATIONS * len(x)), *arrays) != 0:
        raise MemoryError("silu: the system refused threads")
