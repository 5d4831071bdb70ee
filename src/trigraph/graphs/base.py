"""Base class of graph objects, which are immutable and have all arrays on one device."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import numpy as np

from trigraph.arrays import (
    LIBRARIES,
    find_device,
    get_array_module,
    import_cupy,
    is_tensor,
    name_library,
    wait_until_written,
)
from trigraph.table.constants import PART_SIZE

G = TypeVar("G", bound="ImmutableGraph")
P = ParamSpec("P")
R = TypeVar("R")


def enter_device(*values: Any) -> contextlib.AbstractContextManager[Any]:
    """Return a context that makes the device of the first device array, tensor or graph object the current device.

    For a tensor, the context also uses torch's stream and allocator.
    """
    context: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    for value in values:
        if name_library(value) == "cupy":
            context = value.device
        elif is_tensor(value) and value.device.type == "cuda":
            context = LIBRARIES["torch"]().use_torch_stream_and_allocator(value)
        elif (
            isinstance(value, ImmutableGraph) and getattr(value, "kind", "") == "cupy"
        ):  # a new object has no `kind` yet
            import cupy

            context = cupy.cuda.Device(int(value.device.removeprefix("cuda:")))
        else:
            continue
        break
    return context


def on_argument_device(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function run on the device of its arguments instead of the current device; see `enter_device`."""

    @functools.wraps(function)
    def run_on_argument_device(*args: P.args, **kwargs: P.kwargs) -> R:
        with enter_device(*args, *kwargs.values()):
            return function(*args, **kwargs)

    return run_on_argument_device


class LongRows(NamedTuple):
    """Rows of a CSR array with more than PART_SIZE positions, split into parts of at most PART_SIZE positions.

    `rows`, of shape (3, number of long rows), holds each row, its first part and the end of its parts. `parts`, of
    shape (2, number of parts), holds the row and the first position of each part.
    """

    rows: Any
    parts: Any


def find_long_rows(offsets: Any) -> LongRows | None:
    """Return the long rows of a CSR array, or None if there are none; synchronizes for a device array."""
    xp, dtype = get_array_module(offsets), offsets.dtype
    sizes = offsets[1:] - offsets[:-1]
    rows = xp.flatnonzero(sizes > PART_SIZE)
    if rows.size == 0:
        return None
    ends = xp.cumsum((sizes[rows] - 1) // PART_SIZE + 1)
    firsts = xp.concatenate([ends[:1] * 0, ends[:-1]])
    part_numbers = xp.arange(int(ends[-1]))
    row_of_part = xp.searchsorted(ends, part_numbers, side="right")
    begins = offsets[rows[row_of_part]] + (part_numbers - firsts[row_of_part]) * PART_SIZE
    return LongRows(xp.stack([rows, firsts, ends]).astype(dtype), xp.stack([rows[row_of_part], begins]).astype(dtype))


FEW_PARALLEL = 4  # `trigraph.plain` processes up to this many parallel edges one after another
SAFE_VALUES = {"edges_in_order": 0, "is_sorted": 0, "max_parallel_edges": FEW_PARALLEL + 1}
"""Numbers that are valid for every graph: kernels read an order, such as `edge_ids`, even if it is the identity, and
third derivatives allow any number of parallel edges."""


def coarsen_attribute(name: str, number: int) -> int:
    """Coarsen a graph attribute that array sizes do not determine, so that many graphs share one compiled program.

    Maximum degrees are rounded up to a power of two of at least PART_SIZE, because kernels compare them only with such
    powers. Other attributes get their value in `SAFE_VALUES`. Results up to second order remain bitwise identical.
    """
    return SAFE_VALUES.get(name, max(PART_SIZE, 1 << (number - 1).bit_length()))


# Functions called with each new graph object and again after `prepare`; `trigraph.torch` adds one that makes tensors.
GRAPH_HOOKS: list[Callable[[Any], object]] = []


class ImmutableGraph:
    """Base class of graph objects. ``_set_attributes_once`` sets the attributes; copying returns the object itself."""

    __slots__ = ("__weakref__", "_built", "device", "kind")

    kind: str  # "numpy" or "cupy"; "torch" for a graph that torch assembled from tensors
    device: str  # "host", or the CUDA device of its arrays
    # Cache of orders and tensors by name; they depend only on the graph. Device arrays remain writable, but writes to
    # these arrays are not checked.
    _built: dict[str, Any]

    @staticmethod
    def _make_common_attributes(array: Any) -> dict[str, Any]:
        """Return the attributes that every graph object has; `array` is one of its arrays."""
        return {"kind": name_library(array) or "torch", "device": find_device(array), "_built": {}}

    def _set_attributes_once(self, **attributes: Any) -> None:
        if hasattr(self, next(iter(attributes))):  # __init__ was called again, but other code may use the arrays
            raise AttributeError(f"{type(self).__name__} is immutable; cannot initialize it again")
        self._assign_attributes(**attributes)
        for value in attributes.values():
            if name_library(value):
                wait_until_written(value)
                break
        for view in GRAPH_HOOKS:
            view(self)

    def long_rows(self, name: str) -> LongRows | None:
        """Return the long rows of the offsets array `name` of the graph or of `prepare`'s result."""
        key = f"long rows of {name}"
        if key not in self._built:
            with self._enter_allocation_device():
                offsets = getattr(self if hasattr(self, name) else cast("Any", self).prepare(), name)
                rows = find_long_rows(offsets)
                wait_until_written(offsets)
            self._built.setdefault(key, rows)
        return self._built[key]

    def _enter_allocation_device(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which the graph allocates arrays, by torch if the graph has tensors."""
        return enter_device(self._built.get("tensors", (self,))[0])

    def _assign_attributes(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable; cannot set {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable; cannot delete {name}")

    def __copy__(self: G) -> G:
        return self

    def __deepcopy__(self: G, memo: dict[int, Any]) -> G:
        return self


def to_device(value: Any) -> Any:
    """Return an argument (an array, a graph or segments) with NumPy arrays replaced by CuPy arrays."""
    if isinstance(value, np.ndarray):
        return import_cupy().asarray(value)
    if isinstance(value, ImmutableGraph):
        # Rebuild the object from its arrays, as pickle does.
        make, arguments = cast("tuple[Any, ...]", value.__reduce__())
        return make(*(to_device(a) for a in arguments))
    return value
