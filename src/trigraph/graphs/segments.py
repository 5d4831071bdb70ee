"""Segments: the members of each sum, such as the triplets of each edge."""

from typing import Any

from trigraph.arrays import check_and_copy_index_array, get_max_addressable_count, require_count
from trigraph.graphs.base import ImmutableGraph, on_argument_device
from trigraph.graphs.counting import sort_positions_by_key
from trigraph.table.constants import PART_SIZE
from trigraph.table.graph_kinds import GRAPH_PARTS


class Segments(ImmutableGraph):
    """Assignment of members, such as triplets, to segments, such as edges, in any order.

    Segment `s` has the members ``order[offsets[s]:offsets[s+1]]``, in ascending order; segments may be empty.

    Parameters
    ----------
    index : array of int32 or int64, shape (num_members,)
        Segment of each member.
    num_segments : int

    Attributes
    ----------
    index : array, shape (num_members,)
    offsets : array, shape (num_segments + 1,)
    order : array, shape (num_members,)
        Members in a stable order by segment; ``0, 1, 2, ...`` if `is_sorted`.
    num_members, num_segments : int
    max_size : int
        Number of members of the largest segment.
    is_sorted : bool
        Whether `index` never decreases, so that `order` is the identity.

    Raises
    ------
    TypeError, ValueError
        If `index` has the wrong type, dtype or rank, or holds a value outside ``0 .. num_segments-1``.

    Notes
    -----
    Segments are immutable, picklable and safe to share between threads. Device arrays remain writable; see `CSC`.
    Arrays over members keep the caller's order. Building takes linear time on the host.

    Examples
    --------
    >>> import numpy as np
    >>> from trigraph import Segments
    >>> triplets = Segments(np.array([1, 0, 1]), 3)
    >>> triplets.offsets, triplets.order
    (array([0, 1, 3, 3]), array([1, 0, 2]))
    """

    __slots__ = GRAPH_PARTS["Segments"].attributes

    index: Any
    offsets: Any
    order: Any
    num_members: int
    num_segments: int
    max_size: int
    is_sorted: bool

    @on_argument_device
    def __init__(self, index: Any, num_segments: int) -> None:
        index = check_and_copy_index_array("Segments", "index", index)
        num_segments = require_count(
            "Segments", "num_segments", num_segments, maximum=get_max_addressable_count(index.dtype)
        )
        offsets, order, max_size, is_sorted = sort_positions_by_key(
            "Segments", "index", index, "num_segments", num_segments
        )
        self._set_attributes_once(
            index=index,
            offsets=offsets,
            order=order,
            num_members=int(index.size),
            num_segments=num_segments,
            max_size=max_size,
            **self._make_common_attributes(index),
            is_sorted=is_sorted,
        )
        if self.kind == "cupy" and self.max_size > PART_SIZE:  # built now, so that CUDA graphs can capture later calls
            self.long_rows("offsets")

    def __reduce__(self) -> tuple[Any, ...]:
        return (Segments, (self.index, self.num_segments))

    def __repr__(self) -> str:
        return (
            f"Segments(num_members={self.num_members}, num_segments={self.num_segments}, max_size={self.max_size}, "
            f"{self.index.dtype}, {self.device})"
        )

    def prepare(self) -> "Segments":
        """Return the object itself, which already has every order. Only a `CSC` builds orders in `prepare`."""
        return self
