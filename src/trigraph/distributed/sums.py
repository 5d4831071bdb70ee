"""Global sums in an order that does not depend on the number of ranks: chunks of fixed size are added as a binary tree.

``tree(n)`` adds the sums of n consecutive chunks: it splits them at the largest power of two below n, sums each side in
the same way, and adds the two results. Each rank adds the siblings that it has and sends the remaining sums, at most
two arrays per level of the tree.
"""

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
from mpi4py import MPI

Sums: TypeAlias = list[tuple[int, int, Any]]  # first chunk, number of chunks, sum of the chunks (a tuple of arrays)


def add_local_subtrees(parts: Iterable[Any], first: int) -> Sums:
    """Add as much of the tree as one rank can; `parts` are tuples of arrays, one per chunk from `first` on."""
    pending: Sums = []
    for at, part in enumerate(parts, first):
        pending.append((at, 1, tuple(map(_copy_to_host, part))))
        while len(pending) > 1:
            (left, size, left_sum), (_, other_size, other) = pending[-2:]
            if size != other_size or left % (2 * size):
                break
            pending[-2:] = [(left, 2 * size, _add_tuples(left_sum, other))]
    return pending


def sum_all_chunks(comm: MPI.Comm, parts: Sums, number: int) -> Any:
    """Return the sum of all `number` chunks on every rank, bitwise equal for any number of ranks."""
    sums = {(at, size): value for nodes in comm.allgather(parts) for at, size, value in nodes}
    return _sum_tree(sums, 0, number)


def _sum_tree(sums: dict[tuple[int, int], Any], first: int, number: int) -> Any:
    if (first, number) in sums:
        return sums[first, number]
    half = 1 << ((number - 1).bit_length() - 1)
    return _add_tuples(_sum_tree(sums, first, half), _sum_tree(sums, first + half, number - half))


def _copy_to_host(array: Any) -> Any:
    return array if isinstance(array, np.ndarray) else array.get()


def _add_tuples(left: Any, right: Any) -> Any:
    return tuple(np.asarray(a + b) for a, b in zip(left, right, strict=True))
