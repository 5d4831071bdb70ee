"""Memory of results, used again once they are gone.

The system hands out large pieces of memory as pages that it clears at their first touch, one after another, and takes
them back with the array: in a loop over one operator that may cost as much as the operator. So large results lie in
blocks that are kept here, as CuPy's memory pool keeps a device's: at most `KEPT` bytes, beyond which arrays are NumPy's
own. A block belongs to one result as long as anything refers to that result or to a view of it.
"""

from __future__ import annotations

import math
import mmap
import threading
import weakref
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["KEPT", "LEAST", "Blocks", "empty"]

KEPT = 2**28
LEAST = 2**18  # bytes: below, the C library keeps memory itself
SLACK = 1.25  # largest ratio of a block to the result in it, so that edges that come and go find their block again
HUGE = 2**22  # bytes from which large pages are asked for, as NumPy does


class _Lease:
    """What a result is a view of; once it is gone, so are the result and all its views."""

    __slots__ = ("__array_interface__", "__weakref__", "memory")

    def __init__(self, memory: mmap.mmap, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.memory = memory
        address = np.frombuffer(memory, np.uint8).__array_interface__["data"]
        self.__array_interface__ = {"data": address, "shape": shape, "typestr": dtype.str, "version": 3}


@dataclass
class Blocks:
    """Blocks of at most `kept` bytes together, each with the lease that has it or had it last."""

    kept: int
    blocks: list[tuple[mmap.mmap, weakref.ref[_Lease]]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return an array with anything in it, as `numpy.empty` does."""
        size = math.prod(shape) * dtype.itemsize
        if not LEAST <= size <= self.kept:
            return np.empty(shape, dtype)
        with self.lock:
            memory = self._find(size)
            if memory is None:
                return np.empty(shape, dtype)
            lease = _Lease(memory, shape, dtype)
            self.blocks.append((memory, weakref.ref(lease)))
        return np.asarray(lease)

    def _find(self, size: int) -> mmap.mmap | None:
        """Take out the smallest free block that fits, or make one, in the place of free ones if need be."""
        free = [b for b in self.blocks if b[1]() is None]
        fitting = [b for b in free if size <= len(b[0]) <= SLACK * size]
        if fitting:
            best = min(fitting, key=lambda b: len(b[0]))
            self.blocks.remove(best)
            return best[0]
        total = sum(len(b[0]) for b in self.blocks)
        while free and total + size > self.kept:
            total -= len(free[0][0])
            self.blocks.remove(free.pop(0))
        if total + size > self.kept:
            return None
        # Private, lest a forked process share its results with its parent.
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if size >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        return memory


_blocks = Blocks(KEPT)


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an array with anything in it, in memory of a result that is gone if some fits.

    Parameters
    ----------
    shape : tuple of int
    dtype : dtype

    Returns
    -------
    ndarray
        Contiguous; it does not own its memory. At least `LEAST` bytes begin a page.
    """
    return _blocks.empty(shape, np.dtype(dtype))
