"""DimeNet++ on the device: radial basis, and the triplet sum in a form linear in the number of edges.

With real spherical harmonics h of the edge directions, P_l(u.w) = sum over the rows r of degree l of weight_r h_r(u) h_r(w). So the
sum over pairs of an in-edge f and an out-edge e of one node j,

    out_e[c] = sum_f sum_l Y_l(u_e.u_f) F_f[l,c],    F_f[l,c] = x_f[c] sum_m W2[c,m] sum_n rbf_f[l,n] W1[l,n,m],

is two sums over edges with the node's state Z[r,c] = weight_r sum_f h_r(u_f) F_f[l(r),c] between them, which a block keeps in
shared memory; the gradients of in-edges come from B[r,c] = weight_r sum_e h_r(u_e) grad_out_e[c] alike. The edges that
an edge leaves out are subtracted by the formula itself; where that would cancel, or something is not finite, and for nodes
with few edges, the block sums over pairs (kernels/triplets.cuh).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from trigraph.gpu.launcher import Runtime, runtime
from trigraph.operators import result_type

__all__ = [
    "agg_edge_to_edge_bwd",
    "agg_edge_to_edge_bwd2",
    "agg_edge_to_edge_bwd2_grad",
    "agg_edge_to_edge_bwd2_main",
    "agg_edge_to_edge_fwd",
    "radial_basis_bwd",
    "radial_basis_bwd2",
    "radial_basis_fwd",
]

FAMILY = "dimenet"
CHUNK = 256  # longest sum in one accumulator
LANES = 32  # channels in a tile
DEGREES = 8  # of the spherical harmonics, at most
THREADS = 128
# Blocks of the kernel that sums up weight gradients; each has a copy of them.
BLOCKS = 2048
WORKSPACE = 1 << 24  # numbers in all these copies, unless the chunks' bound needs more

Wrt = str | Sequence[str] | None
Out = Mapping[str, Any] | None


class _Fields:
    """The results of one call: where they go, and which are asked for."""

    def __init__(self, name: str, wrt: Wrt, out: Out, like: Mapping[str, Any], xp: Any) -> None:
        self._type = result_type(name)
        asked = self._type._fields if wrt is None else (wrt,) if isinstance(wrt, str) else tuple(wrt)  # type: ignore[attr-defined]
        given = out or {}
        self._arrays = {
            f: given[f] if f in given else xp.empty(like[f].shape, like[f].dtype) for f in like if f in asked
        }

    def __getitem__(self, field: str) -> Any:
        return self._arrays.get(field)

    def __contains__(self, field: str) -> bool:
        return field in self._arrays

    def result(self) -> Any:
        return self._type(*(self._arrays.get(f) for f in self._type._fields))  # type: ignore[attr-defined]


def _blocks(count: int, size: int = THREADS) -> int:
    return -(-count // size)


def _sum_parts(place: Runtime, parts: Any, out: Any, columns: int | None = None) -> None:
    """Write the sum of the rows of `parts`, up to 256 at a time; `out` is (columns, width / columns) transposed."""
    width = parts.shape[1]
    while True:
        rows = len(parts)
        groups = max(1, _blocks(rows, CHUNK))
        target = out if groups == 1 else place.xp.empty((groups, width), parts.dtype)
        split = width if groups > 1 or columns is None else columns
        numbers = (np.int64(rows), np.int64(width), np.int64(split))
        grid = (_blocks(width), groups)
        place.launch(FAMILY, "dimenet_sum_parts", (parts.dtype,), grid, (THREADS,), (parts, target, *numbers))
        if groups == 1:
            return
        parts = target


# ---- radial basis ----------------------------------------------------------------------------------------------------


def radial_basis_fwd(
    dist: Any, freq: Any, n_spherical: int = 7, envelope_exponent: int = 5, *, out: Out = None
) -> Any:
    """Return rbf = env sin(freq x) and sbf_rad = env N j_l(z x).

    Parameters
    ----------
    dist, freq, n_spherical, envelope_exponent
        As of ``trigraph.radial_basis_fwd``, `dist` of shape (num_edges,).
    out
        Field -> array to write to.
    """
    place = runtime(dist)
    edges, radial = len(dist), len(freq)
    given = out or {}
    rbf = given["rbf"] if "rbf" in given else place.xp.empty((edges, radial), dist.dtype)
    sbf_rad = given["sbf_rad"] if "sbf_rad" in given else place.xp.empty((edges, n_spherical * radial), dist.dtype)
    grid = (_blocks(edges * radial * (n_spherical + 1)),)
    numbers = (np.int64(edges), np.int32(radial), np.int32(n_spherical), np.int32(envelope_exponent))
    place.launch(FAMILY, "dimenet_radial", (dist.dtype,), grid, (THREADS,), (dist, freq, rbf, sbf_rad, *numbers))
    return result_type("radial_basis_fwd")(rbf, sbf_rad)


def _radial_gradients(
    place: Runtime, second: bool, arrays: Sequence[Any], fields: _Fields, n_spherical: int, envelope_exponent: int
) -> Any:
    """Launch the kernels of first or second order; `arrays` are the six of radial_basis_bwd2."""
    gg_dist, gg_freq, grad_rbf, _, dist, freq = arrays
    edges, radial, types = len(dist), len(freq), (dist.dtype, second)
    if not edges:
        if "freq" in fields:
            _sum_parts(place, place.xp.empty((0, radial), dist.dtype), fields["freq"])
        return fields.result()
    numbers = (np.int64(edges), np.int32(radial), np.int32(n_spherical), np.int32(envelope_exponent))
    if any(f in fields for f in ("grad_rbf", "grad_sbf_rad", "dist")):
        grid = (_blocks(edges, THREADS // radial),)
        targets = (fields["grad_rbf"], fields["grad_sbf_rad"], fields["dist"])
        place.launch(FAMILY, "dimenet_radial_edges", types, grid, (THREADS,), (*arrays, *targets, *numbers))
    if "freq" in fields:
        parts = place.xp.empty((_blocks(edges, CHUNK), radial), dist.dtype)
        args = (gg_dist, gg_freq, grad_rbf, dist, freq, parts, *numbers[:2], numbers[3])
        place.launch(FAMILY, "dimenet_radial_freq", types, (len(parts),), (CHUNK,), args)
        _sum_parts(place, parts, fields["freq"])
    return fields.result()


def radial_basis_bwd(
    grad_rbf: Any,
    grad_sbf_rad: Any,
    dist: Any,
    freq: Any,
    n_spherical: int = 7,
    envelope_exponent: int = 5,
    wrt: Wrt = None,
    *,
    out: Out = None,
) -> Any:
    """Return the gradients in `dist` and `freq` (see `radial_basis_fwd`)."""
    place = runtime(dist)
    fields = _Fields("radial_basis_bwd", wrt, out, {"dist": dist, "freq": freq}, place.xp)
    arrays = (None, None, grad_rbf, grad_sbf_rad, dist, freq)
    return _radial_gradients(place, False, arrays, fields, n_spherical, envelope_exponent)


def radial_basis_bwd2(
    gg_dist: Any,
    gg_freq: Any,
    grad_rbf: Any,
    grad_sbf_rad: Any,
    dist: Any,
    freq: Any,
    n_spherical: int = 7,
    envelope_exponent: int = 5,
    wrt: Wrt = None,
    *,
    out: Out = None,
) -> Any:
    """Return the derivatives of `radial_basis_bwd` along the cotangents `gg_` of its gradients; None is zero."""
    place = runtime(dist)
    like = {"grad_rbf": grad_rbf, "grad_sbf_rad": grad_sbf_rad, "dist": dist, "freq": freq}
    fields = _Fields("radial_basis_bwd2", wrt, out, like, place.xp)
    arrays = (gg_dist, gg_freq, grad_rbf, grad_sbf_rad, dist, freq)
    return _radial_gradients(place, True, arrays, fields, n_spherical, envelope_exponent)


# ---- triplets --------------------------------------------------------------------------------------------------------


class _Values(NamedTuple):
    """The inputs of agg_edge_to_edge, or their cotangents (any of which may be None)."""

    vec: Any
    rbf: Any
    embedding: Any
    weights: Any


class _Triplets:
    """What the kernels of one call share: arguments, sizes and what is computed once for each edge."""

    def __init__(self, inputs: _Values, dots: _Values | None, graph: Any, attributes: tuple[int, int, str | None]) -> None:
        self.inputs, self.second, self.dots = inputs, dots is not None, dots or _Values(None, None, None, None)
        self.graph, (self.spherical, self.radial, exclude) = graph, attributes
        self.place = runtime(inputs.vec)
        self.dtype, self.edges = inputs.vec.dtype, len(inputs.vec)
        self.channels, self.mid = inputs.embedding.shape[1], inputs.weights.shape[1]
        self.types = (self.dtype, graph.src.dtype, self.second)
        left = graph.left_out(exclude)
        self.graph_arrays = (graph.src_offsets, graph.dst_offsets, graph.dst_edge_index, left.start, left.stop)
        first = self.spherical * self.radial
        self.down = self._rows(inputs.weights, first)
        self.down_dot = self._rows(self.dots.weights, first)
        self.unit, self.unit_dot = self._directions()
        self.projected, self.projected_dot = self._project()
        self.up, self.up_dot = self._transpose(self.down), self._transpose(self.down_dot)

    @staticmethod
    def _rows(weights: Any, first: int) -> Any:
        return None if weights is None else weights[first:]

    def _empty(self, *shape: int, wanted: bool = True) -> Any:
        return self.place.xp.empty(shape, self.dtype) if wanted else None

    def _each(self, kernel: str, count: int, *args: Any) -> None:
        """Launch a kernel with one thread for each of `count` things."""
        self.place.launch(FAMILY, kernel, (self.dtype,), (_blocks(count),), (THREADS,), args)

    def _directions(self) -> tuple[Any, Any]:
        unit = self._empty(self.edges, 3)
        unit_dot = self._empty(self.edges, 3, wanted=self.dots.vec is not None)
        args = (self.inputs.vec, self.dots.vec, unit, unit_dot, np.int64(self.edges))
        self._each("dimenet_directions", self.edges, *args)
        return unit, unit_dot

    def _project(self) -> tuple[Any, Any]:
        shape = (self.edges, self.mid, DEGREES)
        projected, projected_dot = self._empty(*shape), self._empty(*shape, wanted=self.second)
        arrays = (self.inputs.rbf, self.dots.rbf, self.inputs.weights, self.dots.weights, projected, projected_dot)
        self._each("dimenet_project", projected.size, *arrays, *self._sizes())
        return projected, projected_dot

    def _sizes(self) -> tuple[Any, ...]:
        return np.int64(self.edges), np.int32(self.mid), np.int32(self.spherical), np.int32(self.radial)

    def _transpose(self, rows: Any) -> Any:
        if rows is None:
            return None
        out = self._empty(*rows.shape[::-1])
        self._each("dimenet_transpose", rows.size, rows, out, np.int64(rows.shape[0]), np.int64(rows.shape[1]))
        return out

    @property
    def tiles(self) -> int:
        return _blocks(self.channels, LANES)

    def directions_parts(self) -> tuple[Any, Any]:
        """Return arrays for the cotangents of directions: a part for each tile from out-edges, then from in-edges."""
        shape = (2 * self.tiles, self.edges, 3)
        return self._empty(*shape), self._empty(*shape, wanted=self.second)

    def to_out_edges(self, grad_out: Any, out: Any, grad_unit: Any, grad_unit_dot: Any) -> None:
        """Sum from in-edges to out-edges."""
        edge = (self.unit, self.unit_dot, self.projected, self.projected_dot, self.inputs.embedding, self.dots.embedding)
        numbers = (np.int64(self.edges), np.int32(self.channels), np.int32(self.mid), np.int32(self.spherical))
        args = (*self.graph_arrays, *edge, self.up, self.up_dot, grad_out, out, grad_unit, grad_unit_dot, *numbers)
        grid = (self.graph.num_nodes, self.tiles)
        self.place.launch(FAMILY, "dimenet_out_edges", self.types, grid, (THREADS,), args)

    def to_in_edges(self, grad_out: Any, embedding: Any, rbf: Any, weights: Any, directions: tuple[Any, Any]) -> None:
        """Sum from out-edges to in-edges; writes the gradients asked for."""
        nodes, width = self.graph.num_nodes, self.channels * self.mid
        wanted = rbf is not None or weights is not None
        shape = (self.edges, self.mid, self.spherical)
        projected = self._empty(*shape, wanted=wanted)
        projected_dot = self._empty(*shape, wanted=wanted and self.second)
        blocks = nodes
        if weights is not None:
            blocks = min(nodes, max(_blocks(nodes, CHUNK), min(BLOCKS, WORKSPACE // width)))
        per_block = _blocks(nodes, max(1, blocks))
        blocks = _blocks(nodes, max(1, per_block))
        parts, totals = (self._empty(blocks, width, wanted=weights is not None) for _ in range(2))
        edge = (self.unit, self.unit_dot, self.projected, self.projected_dot, self.inputs.embedding, self.dots.embedding)
        matrices = (self.up, self.up_dot, self.down, self.down_dot)
        targets = (embedding, projected, projected_dot, *directions, parts, totals)
        numbers = (np.int64(self.edges), np.int64(nodes), np.int64(per_block))
        widths = (np.int32(self.channels), np.int32(self.mid), np.int32(self.spherical))
        args = (*self.graph_arrays, *edge, *matrices, grad_out, *targets, *numbers, *widths)
        self.place.launch(FAMILY, "dimenet_in_edges", self.types, (blocks,), (THREADS,), args)
        if rbf is not None:
            args = (projected, projected_dot, self.inputs.weights, self.dots.weights, rbf, *self._sizes())
            self._each("dimenet_rbf_gradient", rbf.size, *args)
        if weights is not None:
            first = self.spherical * self.radial
            self._first_weights(projected, projected_dot, weights[:first])
            _sum_parts(self.place, totals, weights[first:], self.channels)

    def _first_weights(self, projected: Any, projected_dot: Any, out: Any) -> None:
        parts = self._empty(_blocks(self.edges, CHUNK), out.size)
        args = (self.inputs.rbf, self.dots.rbf, projected, projected_dot, parts, *self._sizes())
        grid = (len(parts), _blocks(out.size))
        self.place.launch(FAMILY, "dimenet_weights_parts", (self.dtype,), grid, (THREADS,), args)
        _sum_parts(self.place, parts, out)

    def vec_gradient(self, grad_unit: Any, grad_unit_dot: Any, out: Any) -> None:
        args = (grad_unit, grad_unit_dot, self.inputs.vec, self.dots.vec, out)
        self._each("dimenet_vec_gradient", self.edges, *args, np.int64(self.edges), np.int32(2 * self.tiles))

    def gradients(self, grad_out: Any, fields: _Fields, sum_field: str | None = None) -> Any:
        """Fill in the fields asked for; `sum_field` names the one that is a sum over in-edges."""
        out = fields[sum_field] if sum_field else None
        if not self.edges:
            if "weights" in fields:
                _sum_parts(self.place, self._empty(0, fields["weights"].size), fields["weights"])
            return fields.result()
        unit, unit_dot = self.directions_parts() if "vec" in fields else (None, None)
        if out is not None or unit is not None:
            self.to_out_edges(grad_out, out, unit, unit_dot)
        if any(f in fields for f in ("vec", "rbf", "embedding", "weights")):
            later = tuple(None if a is None else a[self.tiles :] for a in (unit, unit_dot))
            self.to_in_edges(grad_out, fields["embedding"], fields["rbf"], fields["weights"], later)  # type: ignore[arg-type]
        if unit is not None:
            self.vec_gradient(unit, unit_dot, fields["vec"])
        return fields.result()


def agg_edge_to_edge_fwd(
    vec: Any,
    rbf: Any,
    embedding: Any,
    weights: Any,
    graph: Any,
    n_spherical: int = 7,
    n_radial: int = 6,
    exclude: str | None = "node",
    *,
    out: Out = None,
) -> Any:
    """Return out[e] = sum over the in-edges f of its source of embedding[f] q, except those that `exclude` leaves out.

    Parameters
    ----------
    vec, rbf, embedding, weights, graph, n_spherical, n_radial, exclude
        As of ``trigraph.agg_edge_to_edge_fwd``.
    out
        Field -> array to write to.
    """
    given = (out or {}).get("out")
    target = runtime(vec).xp.empty(embedding.shape, embedding.dtype) if given is None else given
    inputs = _Values(vec, rbf, embedding, weights)
    _Triplets(inputs, None, graph, (n_spherical, n_radial, exclude)).to_out_edges(None, target, None, None)
    return target


def agg_edge_to_edge_bwd(
    grad_out: Any,
    vec: Any,
    rbf: Any,
    embedding: Any,
    weights: Any,
    graph: Any,
    n_spherical: int = 7,
    n_radial: int = 6,
    exclude: str | None = "node",
    wrt: Wrt = None,
    *,
    out: Out = None,
) -> Any:
    """Return the gradients of sum grad_out out (see `agg_edge_to_edge_fwd`)."""
    inputs = _Values(vec, rbf, embedding, weights)
    fields = _Fields("agg_edge_to_edge_bwd", wrt, out, inputs._asdict(), runtime(vec).xp)
    return _Triplets(inputs, None, graph, (n_spherical, n_radial, exclude)).gradients(grad_out, fields)


def agg_edge_to_edge_bwd2_grad(
    gg_rbf: Any,
    gg_embedding: Any,
    vec: Any,
    rbf: Any,
    embedding: Any,
    weights: Any,
    graph: Any,
    n_spherical: int = 7,
    n_radial: int = 6,
    exclude: str | None = "node",
    *,
    out: Out = None,
) -> Any:
    """Return fwd(rbf := gg_rbf) + fwd(embedding := gg_embedding)."""
    given = (out or {}).get("grad_out")
    target = runtime(vec).xp.empty(embedding.shape, embedding.dtype) if given is None else given
    inputs, dots = _Values(vec, rbf, embedding, weights), _Values(None, gg_rbf, gg_embedding, None)
    _Triplets(inputs, dots, graph, (n_spherical, n_radial, exclude)).to_out_edges(None, target, None, None)
    return target


def agg_edge_to_edge_bwd2_main(
    gg_rbf: Any,
    gg_embedding: Any,
    grad_out: Any,
    vec: Any,
    rbf: Any,
    embedding: Any,
    weights: Any,
    graph: Any,
    n_spherical: int = 7,
    n_radial: int = 6,
    exclude: str | None = "node",
    wrt: Wrt = None,
    *,
    out: Out = None,
) -> Any:
    """Return rbf, embedding and weights of `agg_edge_to_edge_bwd2` with `vec` constant and no cotangent of weights."""
    inputs, dots = _Values(vec, rbf, embedding, weights), _Values(None, gg_rbf, gg_embedding, None)
    like = {"rbf": rbf, "embedding": embedding, "weights": weights}
    fields = _Fields("agg_edge_to_edge_bwd2_main", wrt, out, like, runtime(vec).xp)
    return _Triplets(inputs, dots, graph, (n_spherical, n_radial, exclude)).gradients(grad_out, fields)


def agg_edge_to_edge_bwd2(
    gg_vec: Any,
    gg_rbf: Any,
    gg_embedding: Any,
    gg_weights: Any,
    grad_out: Any,
    vec: Any,
    rbf: Any,
    embedding: Any,
    weights: Any,
    graph: Any,
    n_spherical: int = 7,
    n_radial: int = 6,
    exclude: str | None = "node",
    wrt: Wrt = None,
    *,
    out: Out = None,
) -> Any:
    """Return the derivatives of `agg_edge_to_edge_bwd` along the cotangents `gg_` of its gradients; None is zero."""
    inputs, dots = _Values(vec, rbf, embedding, weights), _Values(gg_vec, gg_rbf, gg_embedding, gg_weights)
    fields = _Fields("agg_edge_to_edge_bwd2", wrt, out, {"grad_out": grad_out, **inputs._asdict()}, runtime(vec).xp)
    triplets = _Triplets(inputs, dots, graph, (n_spherical, n_radial, exclude))
    return triplets.gradients(grad_out, fields, "grad_out")
