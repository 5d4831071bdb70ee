"""Memory of results, used again once they are gone.

The system hands out large pieces of memory as pages that it clears at their first touch, one after another, and takes
them back with the array: in a loop over one operator that may cost as much as the operator. So large results lie in
blocks that are kept here, as CuPy's memory pool keeps a device's: at most `KEPT` bytes, beyond which arrays are NumPy's
own. A block belongs to one result as long as anything refers to that result or to a view of it.
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
LEAST = 2**18  # bytes: below, the C library keeps memory itself
SLACK = 1.25  # largest ratio of a block to the result in it, so that edges that come and go find their block again
HUGE = 2**22  # bytes from which large pages are asked for, as NumPy does


class _Lease:
    """What a result is a view of; once it is gone, so are the result and all its views."""

    __slots__ = ("__array_interface__", "__weakref__", "memory")

    def __init__(self, memory: mmap.mmap, address: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.memory = memory
        self.__array_interface__ = {"data": (address, False), "shape": shape, "typestr": dtype.str, "version": 3}


class _Block(NamedTuple):
    """Memory, its size in bytes and its address, and the lease that has it or had it last."""

    memory: mmap.mmap
    size: int
    address: int
    lease: Callable[[], _Lease | None]


@dataclass
class Blocks:
    """Blocks of at most `kept` bytes together.

    There is no lock, which a forked process could find held by a thread that it does not have, and which a signal
    handler or finaliser could wait for in the very thread that holds it. The list is changed by single operations that
    the interpreter does not interrupt: whoever removes a block from it has that block, and whoever comes too late looks
    for another. A block outside the list belongs to one call, and goes back to the system if that call fails.
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
        """Return the blocks that nothing refers to. A copy of the list is looked at: others may change it meanwhile."""
        return [b for b in list(self.blocks) if b.lease() is None]

    def _take(self, block: _Block) -> bool:
        """Remove a block; whether it was still there."""
        try:
            self.blocks.remove(block)
        except ValueError:
            return False
        return True

    def _find(self, size: int) -> _Block | None:
        """Take out the smallest free block that fits."""
        most = SLACK * size
        while True:
            found = None
            for block in list(self.blocks):
                if size <= block.size <= most and (found is None or block.size < found.size) and block.lease() is None:
                    found = block
            if found is None or self._take(found):
                return found

    def _make(self, size: int) -> _Block | None:
        """Make a block, in the place of free ones if need be; None if those in use leave no room for it."""
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
            with contextlib.suppress(OSError):  # a system without large pages
                memory.madvise(mmap.MADV_HUGEPAGE)
        return _Block(memory, size, np.frombuffer(memory, np.uint8).__array_interface__["data"][0], lambda: None)


def _map(size: int) -> mmap.mmap:
    """Private memory, lest a forked process share its results with its parent."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


# Memory, not what is in it: a block is found by its size, and given out if no array or view refers to it any more.
_blocks = Blocks(KEPT)


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an array with anything in it, in memory of a result that is gone if some fits.

    It is contiguous and does not own its memory; at least `LEAST` bytes begin a page. MemoryError if the system refuses
    the memory, that of free blocks included, which are given back first.
    """
    return _blocks.empty(shape, np.dtype(dtype))
