"""Stable counting sorts of index arrays. On the host, libtrigraph sorts and the results are read-only arrays."""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from trigraph.arrays import (
    LARGEST_C_INT,
    LIBRARIES,
    check_memory,
    check_range,
    copy_read_only,
    get_array_module,
    is_ascending,
)

WRONG_INDEX, NO_MEMORY = -1, -2  # status codes of graphs.c
# Alignment in bytes of the arrays in a block of memory, the same as for malloc.
ALIGNMENT = 16

# Fewer edges are sorted by one thread, without a query of the number of threads, because a query fixes this number.
MIN_PARALLEL_SIZE = 2**17

# A separate function pointer, because argtypes set on `ctypes.pythonapi` apply to the whole process.
_bytes_of_size = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)


class KeyOrder(NamedTuple):
    """Positions in a stable order by key; key k has the positions ``positions[offsets[k]:offsets[k+1]]``.

    `most` is the largest number of positions of a key. `is_sorted` says whether the keys never decrease.
    """

    offsets: Any
    positions: Any
    most: int
    is_sorted: bool


@cache  # caching is safe, because the installed library does not change
def _find_library_function(name: str, dtype: np.dtype, integers: int, arrays: int) -> Any:
    """Return a function of libtrigraph for indices of type `dtype`."""
    function = ctypes.CDLL(LIBRARIES["libtrigraph"]())[f"trigraph_{name}_i{8 * dtype.itemsize}"]
    function.argtypes = [ctypes.c_int] * integers + [ctypes.c_void_p] * (arrays + 1)
    return function


def counts_fit_c_int(*numbers: int) -> bool:
    """Return whether all numbers fit into a C int, the type of sizes in libtrigraph."""
    return max(numbers) <= LARGEST_C_INT


def call_library_function(
    name: str, integers: Sequence[int], given: Sequence[Any], lengths: Sequence[int]
) -> tuple[int, list[int], list[np.ndarray]]:
    """Call a function of libtrigraph; return its status, three integer results and the read-only arrays that it wrote.

    `given` holds contiguous arrays of one dtype that no other code writes to; all but the first may be None. The
    results have the same dtype and share one bytes object, which is filled before other code can access it.
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
    first, integer_results = arrays[0].ctypes.data, (ctypes.c_int * 3)()
    inputs = [None if a is None else a.ctypes.data for a in given]
    function = _find_library_function(name, dtype, len(integers) + 1, len(given) + len(lengths))
    num_threads = 1 if max(integers) < MIN_PARALLEL_SIZE else LIBRARIES["num_threads"]()
    status = function(num_threads, *integers, *inputs, *[first + start for start in starts], integer_results)
    if status == NO_MEMORY:
        raise MemoryError(f"the system has no memory to sort {max(integers)} edges or nodes of a graph")
    return status, integer_results[:], arrays


def sort_positions_by_key(caller: str, name: str, keys: Any, bound_name: str, num_keys: int) -> KeyOrder:
    """Check that keys are in 0..num_keys-1 and sort positions by key, in linear time on the host.

    Error messages use `caller`, `name` and `bound_name`. No other code may write to `keys`.
    """
    xp, dtype = get_array_module(keys), keys.dtype
    if xp is np:
        check_memory(caller, bound_name, num_keys, 2 * dtype.itemsize)  # memory for the offsets and their copy
        if counts_fit_c_int(keys.size, num_keys):
            sizes, lengths = (keys.size, num_keys, 0, -1), (num_keys + 1, keys.size, 0)
            status, facts, (offsets, positions, _) = call_library_function("sort", sizes, (keys, None), lengths)
            if status == WRONG_INDEX:
                check_range(caller, name, keys, num_keys, bound_name)
            assert status == 0
            return KeyOrder(offsets, positions, facts[1], bool(facts[2]))
    check_range(caller, name, keys, num_keys, bound_name)
    rises = is_ascending(keys)
    counts = xp.bincount(keys, minlength=max(num_keys, 1))[:num_keys]
    offsets = xp.concatenate([xp.zeros(1, dtype), xp.cumsum(counts).astype(dtype)])
    positions = xp.arange(keys.size, dtype=dtype) if rises else xp.argsort(keys, kind="stable").astype(dtype)
    return KeyOrder(copy_read_only(offsets), copy_read_only(positions), int(counts.max()) if num_keys else 0, rises)


def sort_edges_by_destination(
    src: np.ndarray, dst: np.ndarray, num_src: int, num_dst: int, loops: int = -1
) -> tuple[KeyOrder, np.ndarray]:
    """Check the nodes of edges on the host, and return the order by destination and the source of each edge.

    If `loops` >= 0, self-loops are removed first, and a self-loop is added to each of the first `loops` nodes.
    """
    check_memory("CSC", "num_dst_nodes", num_dst, 2 * dst.dtype.itemsize)
    most, sizes = dst.size + max(loops, 0), (dst.size, num_dst, num_src, loops)
    status, (total, degree, rises), arrays = call_library_function("sort", sizes, (dst, src), (num_dst + 1, most, most))
    if status == WRONG_INDEX:
        check_range("CSC", "src", src, num_src, "num_src_nodes")
        check_range("CSC", "dst", dst, num_dst, "num_dst_nodes")
    assert status == 0
    offsets, edges, indices = arrays
    return KeyOrder(offsets, edges[:total], degree, bool(rises)), indices[:total]
