"""Search for the reverse of each edge by its cell shifts, its vector, or its end nodes alone."""

import math
from typing import Any

import numpy as np

from trigraph.arrays import get_array_module
from trigraph.graphs.neighbors import LARGEST_SHIFT

# Allowed relative difference between a vector and the negative vector of its reverse, in units of the dtype's eps.
OPPOSITE = 64


def reverse_position(src: Any, dst: Any, by_dst: Any, pairs: Any, start: Any, stop: Any, shifts: Any, vec: Any) -> Any:
    """Return the position in `by_dst` of the reverse of each edge, or -1 if there is none."""
    xp = get_array_module(src)
    if src.size == 0:
        return start
    if shifts is None and vec is None:
        # Without parallel edges, the only edge back is the reverse. No edge is its own reverse.
        return xp.where((stop - start == 1) & (src != dst), start, -1)
    if shifts is not None:
        base = 2 * LARGEST_SHIFT + 1
        digits = shifts.astype(np.int64)
        odd = (digits[:, 0] * base + digits[:, 1]) * base + digits[:, 2]
    else:
        odd = _project_on_direction(vec)
    # `odd` changes sign with the edge's direction. After a sort by pair and `odd`, the candidates for an edge's reverse
    # are start:stop, which bisection searches.
    order = xp.argsort(odd[by_dst], kind="stable")
    order = order[xp.argsort(pairs[order], kind="stable")]
    values = odd[by_dst[order]]
    if shifts is not None:
        place = _reverse_by_shift(values, -odd, start, stop, by_dst[order])
    else:
        place = _reverse_by_vector(values, -odd, start, stop, by_dst[order], vec)
    return xp.where(place >= 0, order[place], -1)


def _project_on_direction(vec: Any) -> Any:
    """Project vectors onto a direction that separates any two vectors of a cubic lattice; exactly odd in `vec`."""
    x, y, z = (vec[:, c].astype(np.float64) for c in range(3))
    return math.sqrt(0.2) * x + math.sqrt(0.3) * y + math.sqrt(0.5) * z


def _first_not_below(values: Any, targets: Any, start: Any, stop: Any) -> Any:
    """Return the first index in start:stop with a value >= the target, or `stop`; `values` ascends in start:stop."""
    xp = get_array_module(values)
    low, high = start, stop
    for _ in range(int((stop - start).max()).bit_length()):
        middle = low + (high - low) // 2
        below = (low < high) & (values[xp.minimum(middle, values.size - 1)] < targets)
        low, high = xp.where(below, middle + 1, low), xp.where(below, high, middle)
    return low


def _two_reverses(edge: int, first: int, second: int) -> ValueError:
    return ValueError(
        f"EdgeGraph: edges {first} and {second} are both the reverse of edge {edge}; expected every edge listed once"
    )


def _reverse_by_shift(values: Any, targets: Any, start: Any, stop: Any, edges: Any) -> Any:
    xp = get_array_module(values)
    place = _first_not_below(values, targets, start, stop)

    def holds_target(index: Any) -> Any:
        return (index < stop) & (values[xp.minimum(index, values.size - 1)] == targets)

    twice = holds_target(place + 1) & holds_target(place)
    if bool(twice.any()):
        at = int(xp.argmax(twice))
        raise _two_reverses(at, int(edges[place[at]]), int(edges[place[at] + 1]))
    return xp.where(holds_target(place), place, -1)


def _reverse_by_vector(values: Any, targets: Any, start: Any, stop: Any, edges: Any, vec: Any) -> Any:
    """Return the position of the nearest candidate with |v + v'| <= 64 eps |v|, or -1.

    Raise if a candidate is opposite within sqrt(eps) but not within 64 eps. Such a candidate is a reverse edge with too
    large a rounding error; another image of the pair would differ by a lattice vector.
    """
    xp = get_array_module(values)
    eps = float(np.finfo(vec.dtype).eps)
    v = vec.astype(np.float64)
    length = _vector_length(v)
    window = math.sqrt(eps) * length
    nearest, place = xp.full(values.size, np.inf), xp.full(values.size, -1, np.int64)
    cursor = _first_not_below(values, targets - window, start, stop)
    while True:
        near = (cursor < stop) & (values[xp.minimum(cursor, values.size - 1)] <= targets + window)
        e = xp.flatnonzero(near)
        if e.size == 0:
            break
        candidate = edges[cursor[e]]
        # The longer of the two lengths makes the relation symmetric.
        scale = xp.maximum(length[e], length[candidate])
        gap = _vector_length(v[e] + v[candidate]) / scale
        twice = (gap <= OPPOSITE * eps) & (nearest[e] <= OPPOSITE * eps)
        if bool(twice.any()):
            at = int(xp.argmax(twice))
            raise _two_reverses(int(e[at]), int(edges[place[e[at]]]), int(candidate[at]))
        closer = gap < nearest[e]
        nearest[e] = xp.where(closer, gap, nearest[e])
        place[e] = xp.where(closer, cursor[e], place[e])
        cursor[e] += 1
    unsure = (nearest > OPPOSITE * eps) & (nearest <= math.sqrt(eps))
    if bool(unsure.any()):
        at = int(xp.argmax(unsure))
        raise ValueError(
            f"EdgeGraph: vec[{int(edges[place[at]])}] differs from -vec[{at}] by {float(nearest[at]):.1e} of its "
            f"length; expected at most {OPPOSITE} eps = {OPPOSITE * eps:.1e}, or shifts, which identify the reverse"
        )
    return xp.where(nearest <= OPPOSITE * eps, place, -1)


def _vector_length(v: Any) -> Any:
    xp = get_array_module(v)
    return xp.hypot(xp.hypot(v[:, 0], v[:, 1]), v[:, 2])
