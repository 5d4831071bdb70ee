"""Stable counting sorts of index arrays, on the host by libtrigraph, which writes what becomes read-only arrays."""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from trigraph.arrays import LARGEST_C_INT, LIBRARIES, check_memory, check_range, frozen, get_array_module, is_ascending

WRONG_INDEX, NO_MEMORY = -1, -2  # of graphs.c
# The arrays of a block begin at multiples of so many bytes, as those of malloc do.
ALIGNMENT = 16

# Fewer edges are sorted by one thread, and do not decide how many there are: that is asked when it is first needed.
LARGE = 2**17

# A separate function pointer, because argtypes set on `ctypes.pythonapi` apply to the whole process.
_bytes_of_size = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)


class Order(NamedTuple):
    """Positions in a stable order by key: those of key k are ``positions[offsets[k]:offsets[k+1]]``.

    `most` is the largest number of positions of a key, `rises` says whether the keys never decrease.
    """

    offsets: Any
    positions: Any
    most: int
    rises: bool


@cache  # depends on the name and the dtype, which are its key, and the installed library, which does not change
def _function(name: str, dtype: np.dtype, integers: int, arrays: int) -> Any:
    """Return a function of libtrigraph for indices of a type."""
    function = ctypes.CDLL(LIBRARIES["libtrigraph"]())[f"trigraph_{name}_i{8 * dtype.itemsize}"]
    function.argtypes = [ctypes.c_int] * integers + [ctypes.c_void_p] * (arrays + 1)
    return function


def counts_fit(*numbers: int) -> bool:
    """Whether libtrigraph, whose sizes are C's int, can count so many."""
    return max(numbers) <= LARGEST_C_INT


def fill_arrays(
    name: str, integers: Sequence[int], given: Sequence[Any], lengths: Sequence[int]
) -> tuple[int, list[int], list[np.ndarray]]:
    """Call a function of libtrigraph; return its status, its facts and the read-only arrays that it has written.

    `given` are contiguous arrays of one dtype that nobody writes to, None for one that is absent, the first never;
    results have the same dtype. They lie in one bytes object, which is filled before anything else knows it.
    """
    dtype = given[0].dtype
    starts, size = [], 0
    for length in lengths:
        starts.append(size)
        size += -(-length * dtype.itemsize // ALIGNMENT) * ALIGNMENT
    try:
        memory = _bytes_of_size(None, size)
    except MemoryError:
        raise MemoryError(f"the system has no {size} bytes for the arrays of a graph") from None
    arrays = [np.ndarray(n, dtype, memory, start) for n, start in zip(lengths, starts, strict=True)]
    first, facts = arrays[0].ctypes.data, (ctypes.c_int * 3)()
    inputs = [None if a is None else a.ctypes.data for a in given]
    function = _function(name, dtype, len(integers) + 1, len(given) + len(lengths))
    num_threads = 1 if max(integers) < LARGE else LIBRARIES["num_threads"]()
    status = function(num_threads, *integers, *inputs, *[first + start for start in starts], facts)
    if status == NO_MEMORY:
        raise MemoryError(f"the system has no memory to sort {max(integers)} edges or nodes of a graph")
    return status, facts[:], arrays


def order_by(caller: str, name: str, keys: Any, bound_name: str, num_keys: int) -> Order:
    """Sort positions by their keys, in linear time on the host, after a check that these are in 0..num_keys-1.

    Names are for the messages of errors. `keys` is an array that nobody writes to.
    """
    xp, dtype = get_array_module(keys), keys.dtype
    if xp is np:
        check_memory(caller, bound_name, num_keys, 2 * dtype.itemsize)  # offsets and a copy of them
        if counts_fit(keys.size, num_keys):
            sizes, lengths = (keys.size, num_keys, 0, -1), (num_keys + 1, keys.size, 0)
            status, facts, (offsets, positions, _) = fill_arrays("sort", sizes, (keys, None), lengths)
            if status == WRONG_INDEX:
                check_range(caller, name, keys, num_keys, bound_name)
            assert status == 0
            return Order(offsets, positions, facts[1], bool(facts[2]))
    check_range(caller, name, keys, num_keys, bound_name)
    rises = is_ascending(keys)
    counts = xp.bincount(keys, minlength=max(num_keys, 1))[:num_keys]
    offsets = xp.concatenate([xp.zeros(1, dtype), xp.cumsum(counts).astype(dtype)])
    positions = xp.arange(keys.size, dtype=dtype) if rises else xp.argsort(keys, kind="stable").astype(dtype)
    return Order(frozen(offsets), frozen(positions), int(counts.max()) if num_keys else 0, rises)


def order_by_destination(
    src: np.ndarray, dst: np.ndarray, num_src: int, num_dst: int, loops: int = -1
) -> tuple[Order, np.ndarray]:
    """Return edges of the host in order by destination, and the source of each; nodes are checked.

    With `loops` >= 0, edges of a node to itself are left out first, and one of each of so many nodes is added.
    """
    check_memory("CSC", "num_dst_nodes", num_dst, 2 * dst.dtype.itemsize)
    most, sizes = dst.size + max(loops, 0), (dst.size, num_dst, num_src, loops)
    status, (total, degree, rises), arrays = fill_arrays("sort", sizes, (dst, src), (num_dst + 1, most, most))
    if status == WRONG_INDEX:
        check_range("CSC", "src", src, num_src, "num_src_nodes")
        check_range("CSC", "dst", dst, num_dst, "num_dst_nodes")
    assert status == 0
    offsets, edges, indices = arrays
    return Order(offsets, edges[:total], degree, bool(rises)), indices[:total]
