"""Assignment of nodes to ranks by consecutive blocks of equal size or by recursive bisection of space."""

from typing import Any

import numpy as np

__all__ = ["bisection", "blocks"]


def blocks(number: int, parts: int) -> np.ndarray:
    """Divide the nodes 0, 1, ... into consecutive blocks whose sizes differ by at most one.

    Parameters
    ----------
    number : int
        Number of nodes.
    parts : int

    Returns
    -------
    int64 array, shape (number,)
        Part of each node.

    Examples
    --------
    >>> from trigraph.distributed.owners import blocks
    >>> blocks(5, 2)
    array([0, 0, 0, 1, 1])
    """
    return np.arange(number) * parts // max(number, 1)


def bisection(positions: Any, parts: int) -> np.ndarray:
    """Divide nodes by recursive bisection: each cut crosses the longest extent and balances the number of nodes.

    Parameters
    ----------
    positions : array, shape (number, dimensions)
        Positions of the nodes, in any unit of length.
    parts : int
        Number of parts, not necessarily a power of two; each side of a cut gets nodes in proportion to its parts.

    Returns
    -------
    int64 array, shape (number,)
        Part of each node.

    Examples
    --------
    >>> from trigraph.distributed.owners import bisection
    >>> bisection([[0.0, 0.0], [3.0, 1.0], [1.0, 0.0], [2.0, 1.0]], 2)
    array([0, 1, 0, 1])
    """
    positions = np.asarray(positions, np.float64)
    owners = np.zeros(len(positions), np.int64)
    waiting = [(np.arange(len(positions)), 0, parts)]
    while waiting:
        nodes, first, number = waiting.pop()
        if number == 1 or nodes.size == 0:
            owners[nodes] = first
            continue
        axis = int(np.ptp(positions[nodes], axis=0).argmax())
        order = nodes[np.argsort(positions[nodes, axis], kind="stable")]
        left = number // 2
        at = nodes.size * left // number
        waiting += [(np.sort(order[:at]), first, left), (np.sort(order[at:]), first + left, number - left)]
    return owners
