"""Memory pool for results.

The system provides large pieces of memory as pages that it clears one by one at their first use, and takes them back
when the array is freed. In a loop over one operator, this may cost as much as the operator. Therefore large results
lie in blocks that are kept here, as in CuPy's memory pool: at most `KEPT` bytes; further arrays are ordinary NumPy
arrays. A block belongs to one result as long as anything refers to that result or to a view of it.
"""

import contextlib
import math
import mmap
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

KEPT = 2**28
LEAST = 2**18  # bytes; the C library itself keeps smaller pieces of memory
SLACK = 1.25  # largest ratio of block size to result size, so that a varying number of edges can reuse a block
HUGE = 2**22  # bytes from which large pages are requested, like NumPy


class _Lease:
    """Base object of a result. It is freed when the result and all its views are gone."""

    __slots__ = ("__array_interface__", "__weakref__", "memory")

    def __init__(self, memory: mmap.mmap, address: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.memory = memory
        self.__array_interface__ = {"data": (address, False), "shape": shape, "typestr": dtype.str, "version": 3}


class _Block(NamedTuple):
    """Memory, its size in bytes, its address, and a reference to the lease that uses it or used it last."""

    memory: mmap.mmap
    size: int
    address: int
    lease: Callable[[], _Lease | None]


@dataclass
class Blocks:
    """Pool of blocks of at most `kept` bytes in total.

    There is no lock: a forked process could find it held by a thread that does not exist there, and a signal handler or
    finaliser could wait for it in the thread that holds it. Instead, the list is changed only by single operations that
    the interpreter does not interrupt. Whoever removes a block from the list owns it; others look for another block. A
    block outside the list belongs to one call, and is returned to the system if that call fails.
    """

    kept: int
    blocks: list[_Block] = field(default_factory=list)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return an uninitialised array, like `numpy.empty`."""
        size = math.prod(shape) * dtype.itemsize
        if not LEAST <= size <= self.kept:
            return np.empty(shape, dtype)
        block = self._find(size) or self._make(size)
        if block is None:
            return np.empty(shape, dtype)
        memory, length, address, _ = block
        lease = _Lease(memory, address, shape, dtype)
        self.blocks.append(_Block(memory, length, address, weakref.ref(lease)))
        return np.asarray(lease)

    def _free(self) -> list[_Block]:
        """Return the blocks that no result uses. Iterates over a copy, because other threads may change the list."""
        return [b for b in list(self.blocks) if b.lease() is None]

    def _take(self, block: _Block) -> bool:
        """Remove a block from the list; return whether it was still there."""
        try:
            self.blocks.remove(block)
        except ValueError:
            return False
        return True

    def _find(self, size: int) -> _Block | None:
        """Remove and return the smallest free block that fits, or None."""
        most = SLACK * size
        while True:
            found = None
            for block in list(self.blocks):
                if size <= block.size <= most and (found is None or block.size < found.size) and block.lease() is None:
                    found = block
            if found is None or self._take(found):
                return found

    def _make(self, size: int) -> _Block | None:
        """Make a block, dropping free blocks if necessary; return None if the blocks in use leave no room."""
        total = sum([b.size for b in list(self.blocks)]) + size
        for block in self._free():
            if total <= self.kept:
                break
            if self._take(block):
                total -= block.size
        if total > self.kept:
            return None
        try:
            memory = _map(size)
        except OSError:
            for block in self._free():
                self._take(block)
            try:
                memory = _map(size)
            except OSError as error:
                raise MemoryError(f"the system has no {size} bytes for a result: {error.strerror}") from None
        if size >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # the system may have no large pages
                memory.madvise(mmap.MADV_HUGEPAGE)
        return _Block(memory, size, np.frombuffer(memory, np.uint8).__array_interface__["data"][0], lambda: None)


def _map(size: int) -> mmap.mmap:
    """Return private memory, so that a forked process does not share its results with its parent."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


# Keeps memory, not contents. The key is the size; a block is reused only if no array or view refers to it any more.
_blocks = Blocks(KEPT)


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an uninitialised array, in the memory of an earlier result if possible.

    The array is contiguous and does not own its memory; an array of at least `LEAST` bytes begins at a page. Raise
    MemoryError if the system refuses the memory even after all free blocks have been returned to it.
    """
    return _blocks.empty(shape, np.dtype(dtype))
