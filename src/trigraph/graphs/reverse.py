"""Search for the reverse of each edge by its cell shifts, its vector, or its end nodes alone."""

import math
from typing import Any

import numpy as np

from trigraph.arrays import get_array_module
from trigraph.graphs.neighbors import LARGEST_SHIFT

# Allowed relative difference between a vector and the negative vector of its reverse, in units of the dtype's eps.
OPPOSITE = 64


def find_reverse_positions(
    src: Any, dst: Any, by_dst: Any, pairs: Any, start: Any, stop: Any, shifts: Any, vec: Any
) -> Any:
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
        odd_key = (digits[:, 0] * base + digits[:, 1]) * base + digits[:, 2]
    else:
        odd_key = _project_on_direction(vec)
    # `odd_key` changes sign with the edge's direction. After a sort by pair and `odd_key`, the candidates for an edge's
    # reverse are start:stop, which bisection searches.
    order = xp.argsort(odd_key[by_dst], kind="stable")
    order = order[xp.argsort(pairs[order], kind="stable")]
    values = odd_key[by_dst[order]]
    if shifts is not None:
        sorted_position = _find_reverse_by_shift(values, -odd_key, start, stop, by_dst[order])
    else:
        sorted_position = _find_reverse_by_vector(values, -odd_key, start, stop, by_dst[order], vec)
    return xp.where(sorted_position >= 0, order[sorted_position], -1)


def _project_on_direction(vec: Any) -> Any:
    """Project vectors onto a direction that separates any two vectors of a cubic lattice; exactly odd in `vec`."""
    x, y, z = (vec[:, c].astype(np.float64) for c in range(3))
    return math.sqrt(0.2) * x + math.sqrt(0.3) * y + math.sqrt(0.5) * z


def _find_lower_bound(values: Any, targets: Any, start: Any, stop: Any) -> Any:
    """Return the first index in start:stop with a value >= the target, or `stop`; `values` ascends in start:stop."""
    xp = get_array_module(values)
    low, high = start, stop
    for _ in range(int((stop - start).max()).bit_length()):
        middle = low + (high - low) // 2
        below = (low < high) & (values[xp.minimum(middle, values.size - 1)] < targets)
        low, high = xp.where(below, middle + 1, low), xp.where(below, high, middle)
    return low


def _make_two_reverses_error(edge: int, first: int, second: int) -> ValueError:
    return ValueError(
        f"EdgeGraph: edges {first} and {second} are both the reverse of edge {edge}; expected every edge listed once"
    )


def _find_reverse_by_shift(values: Any, targets: Any, start: Any, stop: Any, edges: Any) -> Any:
    xp = get_array_module(values)
    sorted_position = _find_lower_bound(values, targets, start, stop)

    def holds_target(index: Any) -> Any:
        return (index < stop) & (values[xp.minimum(index, values.size - 1)] == targets)

    has_two_reverses = holds_target(sorted_position + 1) & holds_target(sorted_position)
    if bool(has_two_reverses.any()):
        at = int(xp.argmax(has_two_reverses))
        raise _make_two_reverses_error(at, int(edges[sorted_position[at]]), int(edges[sorted_position[at] + 1]))
    return xp.where(holds_target(sorted_position), sorted_position, -1)


def _find_reverse_by_vector(values: Any, targets: Any, start: Any, stop: Any, edges: Any, vec: Any) -> Any:
    """Return the position of the nearest candidate with |v + v'| <= 64 eps |v|, or -1.

    Raise if a candidate is opposite within sqrt(eps) but not within 64 eps. Such a candidate is a reverse edge with too
    large a rounding error; another image of the pair would differ by a lattice vector.
    """
    xp = get_array_module(values)
    eps = float(np.finfo(vec.dtype).eps)
    v = vec.astype(np.float64)
    length = _compute_lengths(v)
    window = math.sqrt(eps) * length
    nearest, sorted_position = xp.full(values.size, np.inf), xp.full(values.size, -1, np.int64)
    cursor = _find_lower_bound(values, targets - window, start, stop)
    while True:
        near = (cursor < stop) & (values[xp.minimum(cursor, values.size - 1)] <= targets + window)
        e = xp.flatnonzero(near)
        if e.size == 0:
            break
        candidate = edges[cursor[e]]
        # The longer of the two lengths makes the relation symmetric.
        scale = xp.maximum(length[e], length[candidate])
        gap = _compute_lengths(v[e] + v[candidate]) / scale
        has_two_reverses = (gap <= OPPOSITE * eps) & (nearest[e] <= OPPOSITE * eps)
        if bool(has_two_reverses.any()):
            at = int(xp.argmax(has_two_reverses))
            raise _make_two_reverses_error(int(e[at]), int(edges[sorted_position[e[at]]]), int(candidate[at]))
        closer = gap < nearest[e]
        nearest[e] = xp.where(closer, gap, nearest[e])
        sorted_position[e] = xp.where(closer, cursor[e], sorted_position[e])
        cursor[e] += 1
    is_uncertain = (nearest > OPPOSITE * eps) & (nearest <= math.sqrt(eps))
    if bool(is_uncertain.any()):
        at = int(xp.argmax(is_uncertain))
        raise ValueError(
            f"EdgeGraph: vec[{int(edges[sorted_position[at]])}] differs from -vec[{at}] "
            f"by {float(nearest[at]):.1e} of its "
            f"length; expected at most {OPPOSITE} eps = {OPPOSITE * eps:.1e}, or shifts, which identify the reverse"
        )
    return xp.where(nearest <= OPPOSITE * eps, sorted_position, -1)


def _compute_lengths(v: Any) -> Any:
    xp = get_array_module(v)
    return xp.hypot(xp.hypot(v[:, 0], v[:, 1]), v[:, 2])
