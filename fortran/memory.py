"""Memory pool for results.

The system clears the pages of a large allocation at their first use, and reclaims them when the array is freed. If an
operator is called in a loop, this may take as long as the operator itself. Large results therefore use blocks from a
pool, similar to CuPy's memory pool, which retains at most `KEPT` bytes; further results are ordinary NumPy arrays. A
block belongs to one result until no reference to the result or to a view of it remains.
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
LEAST = 2**18  # size in bytes of the smallest block; the C library reuses smaller allocations itself
LARGEST_RATIO = 1.25  # largest ratio of block size to result size; allows reuse when the number of edges varies
HUGE = 2**22  # size in bytes from which large pages are requested, as in NumPy


class _Lease:
    """Base object of a result, which is freed when the result and all its views are deleted."""

    __slots__ = ("__array_interface__", "__weakref__", "memory")

    def __init__(self, memory: mmap.mmap, address: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.memory = memory
        self.__array_interface__ = {"data": (address, False), "shape": shape, "typestr": dtype.str, "version": 3}


class _MemoryBlock(NamedTuple):
    """Memory, its size in bytes, its address, and a weak reference to the current or last lease."""

    memory: mmap.mmap
    size: int
    address: int
    lease: Callable[[], _Lease | None]


@dataclass
class BlockPool:
    """Pool of blocks of at most `kept` bytes in total.

        There is no lock: in a forked process, the lock might be held by a thread that no longer exists, and a signal
    handler or finaliser might wait for a lock held by its own thread. Instead, the list is changed only by operations
    that are atomic in the interpreter. A thread that removes a block from the list owns the block; other threads look
    for another one. A block outside the list belongs to one call, and is returned to the system if the call fails.
    """

    kept: int
    blocks: list[_MemoryBlock] = field(default_factory=list)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return an uninitialised array, like `numpy.empty`."""
        size = math.prod(shape) * dtype.itemsize
        if not LEAST <= size <= self.kept:
            return np.empty(shape, dtype)
        block = self._take_free_block(size) or self._allocate_block(size)
        if block is None:
            return np.empty(shape, dtype)
        memory, length, address, _ = block
        lease = _Lease(memory, address, shape, dtype)
        self.blocks.append(_MemoryBlock(memory, length, address, weakref.ref(lease)))
        return np.asarray(lease)

    def _list_free_blocks(self) -> list[_MemoryBlock]:
        """Return the blocks that no result uses. The list is copied because other threads may change it."""
        return [b for b in list(self.blocks) if b.lease() is None]

    def _remove_block(self, block: _MemoryBlock) -> bool:
        """Remove a block from the list; return whether it was still there."""
        try:
            self.blocks.remove(block)
        except ValueError:
            return False
        return True

    def _take_free_block(self, size: int) -> _MemoryBlock | None:
        """Remove and return the smallest free block that fits, or None."""
        most = LARGEST_RATIO * size
        while True:
            found = None
            for block in list(self.blocks):
                if size <= block.size <= most and (found is None or block.size < found.size) and block.lease() is None:
                    found = block
            if found is None or self._remove_block(found):
                return found

    def _allocate_block(self, size: int) -> _MemoryBlock | None:
        """Allocate a block, freeing unused blocks if necessary; return None if the blocks in use exhaust the pool."""
        total = sum([b.size for b in list(self.blocks)]) + size
        for block in self._list_free_blocks():
            if total <= self.kept:
                break
            if self._remove_block(block):
                total -= block.size
        if total > self.kept:
            return None
        try:
            memory = _map_private_memory(size)
        except OSError:
            for block in self._list_free_blocks():
                self._remove_block(block)
            try:
                memory = _map_private_memory(size)
            except OSError as error:
                raise MemoryError(f"the system has no {size} bytes for a result: {error.strerror}") from None
        if size >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # ignored, because the system may not support large pages
                memory.madvise(mmap.MADV_HUGEPAGE)
        return _MemoryBlock(memory, size, np.frombuffer(memory, np.uint8).__array_interface__["data"][0], lambda: None)


def _map_private_memory(size: int) -> mmap.mmap:
    """Map private memory, so that a forked process does not share results with its parent."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


# Cached memory, but no cached values: a block is selected by size, and reused only if no array or view refers to it.
_blocks = BlockPool(KEPT)


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an uninitialised array, reusing the memory of an earlier result if possible.

    The array is contiguous. An array of at least `LEAST` bytes is page-aligned. Raises MemoryError if the system
    refuses the memory even after all free blocks have been returned.
    """
    return _blocks.empty(shape, np.dtype(dtype))
