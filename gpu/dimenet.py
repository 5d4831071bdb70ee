"""DimeNet++ on the device: radial basis, and the triplet sum in a form linear in the number of edges.

With real spherical harmonics h of the edge directions, P_l(u.w) = sum over the rows r of degree l of
weight_r h_r(u) h_r(w). So the sum over pairs of an in-edge f and an out-edge e of one node j,

    out_e[c] = sum_f sum_l Y_l(u_e.u_f) F_f[l,c],    F_f[l,c] = x_f[c] sum_m W2[c,m] sum_n rbf_f[l,n] W1[l,n,m],

is two sums over edges with the node's state Z[r,c] = weight_r sum_f h_r(u_f) F_f[l(r),c] between them, which a block
keeps in shared memory; the gradients of in-edges come from B[r,c] = weight_r sum_e h_r(u_e) grad_out_e[c] alike. The
edges that an edge leaves out are subtracted by the formula itself; where that would cancel, or something is not finite,
and for nodes with few edges, the block sums over pairs (kernels/dimenet_triplets.cuh).

The second order is the gradient of the first order's derivative along the cotangents gg_: names ending in dot are such
derivatives, and every kernel of the first order has a twin that carries them along.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from trigraph.gpu.results import Fields, Like, Out, Wrt
from trigraph.gpu.sums import ROWS, Kernels, cover, sum_rows, workspace

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

DEGREES = 8  # of the spherical harmonics, at most
USUAL_DEGREES = 7  # float32 has instances of its own for them
PAD = 64  # channels in a tile of what the kernels call up
PROJECTED = 16  # edges of a block
THREADS = 128
# Blocks of the kernel that sums up weight gradients: each has copies of them, WORKSPACE numbers together.
BLOCKS = 2048
WORKSPACE = 1 << 24


# ---- radial basis ----------------------------------------------------------------------------------------------------


def radial_basis_fwd(dist: Any, freq: Any, n_spherical: int = 7, envelope_exponent: int = 5, *, out: Out = None) -> Any:
    """Return rbf = env sin(freq x) and sbf_rad = env N j_l(z x).

    Parameters
    ----------
    dist, freq, n_spherical, envelope_exponent
        As of ``trigraph.radial_basis_fwd``, `dist` of shape (num_edges,).
    out
        Field -> array to write to.
    """
    kernels, edges, radial = Kernels("dimenet", dist), len(dist), len(freq)
    shapes = {"rbf": (edges, radial), "sbf_rad": (edges, n_spherical * radial)}
    like = {field: Like(shape, dist.dtype) for field, shape in shapes.items()}
    fields = Fields("radial_basis_fwd", None, out, like, kernels)
    grid = (cover(edges * radial * (n_spherical + 1), THREADS),)
    args = (dist, freq, fields["rbf"], fields["sbf_rad"], np.int64(edges), radial, n_spherical, envelope_exponent)
    kernels.launch("dimenet_radial", (dist.dtype,), grid, (THREADS,), args)
    return fields.result()


def _radial_gradients(
    kernels: Kernels, second: bool, arrays: Sequence[Any], fields: Fields, n_spherical: int, envelope_exponent: int
) -> Any:
    """Launch the kernels of first or second order; `arrays` are the six of radial_basis_bwd2."""
    gg_dist, gg_freq, grad_rbf, _, dist, freq = arrays
    edges, radial, types = len(dist), len(freq), (dist.dtype, second)
    if fields.any_of("grad_rbf", "grad_sbf_rad", "dist"):
        targets = (fields["grad_rbf"], fields["grad_sbf_rad"], fields["dist"])
        args = (*arrays, *targets, np.int64(edges), radial, n_spherical, envelope_exponent)
        grid = (cover(edges, THREADS // radial),)
        kernels.launch("dimenet_radial_edges", types, grid, (THREADS,), args)
    fields.clear("freq")  # the sum of parts is added to what is there
    if "freq" in fields and edges:
        parts = kernels.xp.empty((cover(edges, ROWS), radial), dist.dtype)
        args = (gg_dist, gg_freq, grad_rbf, dist, freq, parts, np.int64(edges), radial, envelope_exponent)
        kernels.launch("dimenet_radial_freq", types, (len(parts),), (ROWS,), args)
        sum_rows(kernels, parts, fields["freq"])
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
    kernels = Kernels("dimenet", dist)
    fields = Fields("radial_basis_bwd", wrt, out, {"dist": dist, "freq": freq}, kernels)
    arrays = (None, None, grad_rbf, grad_sbf_rad, dist, freq)
    return _radial_gradients(kernels, False, arrays, fields, n_spherical, envelope_exponent)


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
    kernels = Kernels("dimenet", dist)
    like = {"grad_rbf": grad_rbf, "grad_sbf_rad": grad_sbf_rad, "dist": dist, "freq": freq}
    fields = Fields("radial_basis_bwd2", wrt, out, like, kernels)
    arrays = (gg_dist, gg_freq, grad_rbf, grad_sbf_rad, dist, freq)
    return _radial_gradients(kernels, True, arrays, fields, n_spherical, envelope_exponent)


# ---- triplets --------------------------------------------------------------------------------------------------------


class _Values(NamedTuple):
    """The inputs of agg_edge_to_edge, or their cotangents (any of which may be None)."""

    vec: Any
    rbf: Any
    embedding: Any
    weights: Any


class _Triplets:
    """What the kernels of one call share: arguments, sizes, and what is computed once for each edge."""

    def __init__(
        self, inputs: _Values, dots: _Values | None, graph: Any, attributes: tuple[int, int, str | None]
    ) -> None:
        self.kernels = Kernels("dimenet", inputs.vec)
        self.inputs, self.second, self.dots = inputs, dots is not None, dots or _Values(None, None, None, None)
        self.graph, (self.spherical, self.radial, exclude) = graph, attributes
        self.dtype, self.edges = inputs.vec.dtype, len(inputs.vec)
        self.channels, self.mid = inputs.embedding.shape[1], inputs.weights.shape[1]
        self.tiles = cover(self.channels, 64 if self.dtype == np.float32 and not self.second else 32)
        left = graph.left_out(exclude)
        self.graph_arrays = (graph.src_offsets, graph.dst_offsets, graph.dst_edge_index, left.start, left.stop)
        embeddings = (inputs.embedding, self.dots.embedding)
        self.edge_arrays = (*self._directions(), *self._project(), *embeddings)
        self.up, self.up_dot = self._second_weights(inputs.weights), self._second_weights(self.dots.weights)

    def _empty(self, *shape: int, wanted: bool = True) -> Any:
        return self.kernels.xp.empty(shape, self.dtype) if wanted else None

    def _each(self, kernel: str, count: int, *args: Any) -> None:
        """Launch a kernel with one thread for each of `count` things."""
        self.kernels.launch(kernel, (self.dtype,), (cover(count, THREADS),), (THREADS,), args)

    def _directions(self) -> tuple[Any, Any]:
        """Return unit vectors, and their derivatives if there are any."""
        unit, unit_dot = self._empty(self.edges, 3), self._empty(self.edges, 3, wanted=self.dots.vec is not None)
        args = (self.inputs.vec, self.dots.vec, unit, unit_dot, np.int64(self.edges))
        self._each("dimenet_directions", self.edges, *args)
        return unit, unit_dot

    def _project(self) -> tuple[Any, Any]:
        """Return W1^T rbf of each edge and degree, and its derivative."""
        shape = (self.edges, self.mid, DEGREES)
        projected, projected_dot = self._empty(*shape), self._empty(*shape, wanted=self.second)
        arrays = (self.inputs.rbf, self.dots.rbf, self.inputs.weights, self.dots.weights, projected, projected_dot)
        grid = (cover(self.edges, PROJECTED),)
        self.kernels.launch("dimenet_project", (self.dtype,), grid, (THREADS,), (*arrays, *self._sizes()))
        return projected, projected_dot

    def _types(self, order: int) -> tuple[Any, ...]:
        usual = self.dtype == np.float32 and self.spherical == USUAL_DEGREES
        degrees = USUAL_DEGREES if usual else DEGREES
        return self.dtype, self.graph.src.dtype, order, degrees

    def _sizes(self) -> tuple[Any, ...]:
        return np.int64(self.edges), self.mid, self.spherical, self.radial

    def _second_weights(self, weights: Any) -> Any:
        """Return W2 transposed, with zeros up to full tiles."""
        if weights is None:
            return None
        down, rows = weights[self.spherical * self.radial :], cover(self.mid, DEGREES) * DEGREES
        up = self._empty(cover(self.channels, PAD), rows, PAD)
        self._each("dimenet_transpose", up.size, down, up, np.int64(up.size), np.int64(rows), self.channels, self.mid)
        return up

    def to_out_edges(self, grad_out: Any, out: Any, grad_unit: Any = None, grad_unit_dot: Any = None) -> None:
        """Sum from in-edges to out-edges."""
        numbers = (np.int64(self.edges), self.channels, self.mid, self.spherical)
        args = (
            *self.graph_arrays,
            *self.edge_arrays,
            self.up,
            self.up_dot,
            grad_out,
            out,
            grad_unit,
            grad_unit_dot,
            *numbers,
        )
        grid = (self.graph.num_nodes, self.tiles)
        order = 2 if self.second else 0 if grad_unit is None else 1
        self.kernels.launch("dimenet_out_edges", self._types(order), grid, (THREADS,), args)

    def to_in_edges(self, grad_out: Any, fields: Fields, grad_unit: Any, grad_unit_dot: Any) -> None:
        """Sum from out-edges to in-edges; fills in the gradients asked for."""
        nodes, weights = self.graph.num_nodes, fields["weights"]
        wanted, shape = fields.any_of("rbf", "weights"), (self.edges, self.mid, self.spherical)
        grad = self._empty(*shape, wanted=wanted)
        grad_dot = self._empty(*shape, wanted=wanted and self.second)
        per_block = 1 if weights is None else self._nodes_per_block()
        blocks, width = cover(nodes, per_block), self.channels * self.mid
        parts, totals = (self._empty(blocks, width, wanted=weights is not None) for _ in range(2))
        alone = self.kernels.xp.empty(self.edges, np.int32) if wanted else None
        targets = (fields["embedding"], grad, grad_dot, grad_unit, grad_unit_dot, parts, totals, alone)
        numbers = (np.int64(self.edges), np.int64(nodes), np.int64(per_block), self.channels, self.mid, self.spherical)
        args = (*self.graph_arrays, *self.edge_arrays, self.up, self.up_dot, grad_out, *targets, *numbers)
        self.kernels.launch("dimenet_in_edges", self._types(self.second), (blocks,), (THREADS,), args)
        if fields.any_of("rbf"):
            args = (grad, grad_dot, self.inputs.weights, self.dots.weights, alone, fields["rbf"], *self._sizes())
            self._each("dimenet_rbf_gradient", fields["rbf"].size, *args)
        if weights is not None:
            first = self.spherical * self.radial
            self._first_weights((grad, grad_dot, alone), weights[:first])
            sum_rows(self.kernels, totals, weights[first:], self.mid)

    def _nodes_per_block(self) -> int:
        """How many nodes share a block's copy of the second weights' gradient: at most ROWS."""
        blocks = max(1, min(BLOCKS, workspace(WORKSPACE) // (2 * self.channels * self.mid)))
        return min(cover(self.graph.num_nodes, blocks), ROWS)

    def _first_weights(self, grads: tuple[Any, Any, Any], out: Any) -> None:
        parts = self._empty(cover(self.edges, ROWS), out.size)
        args = (self.inputs.rbf, self.dots.rbf, *grads, parts, *self._sizes())
        grid = (len(parts), cover(out.size, THREADS))
        self.kernels.launch("dimenet_weights_parts", (self.dtype,), grid, (THREADS,), args)
        sum_rows(self.kernels, parts, out)

    def gradients(self, grad_out: Any, fields: Fields) -> Any:
        """Fill in the fields asked for."""
        fields.clear("weights")  # sums of parts are added to what is there
        if not self.edges:
            return fields.result()
        # The cotangents of directions: a part for each tile of channels from out-edges, then from in-edges.
        shape, vec = (2 * self.tiles, self.edges, 3), fields["vec"]
        unit = self._empty(*shape, wanted=vec is not None)
        unit_dot = self._empty(*shape, wanted=vec is not None and self.second)
        if fields.any_of("grad_out", "vec"):
            self.to_out_edges(grad_out, fields["grad_out"], unit, unit_dot)
        if fields.any_of("vec", "rbf", "embedding", "weights"):
            self.to_in_edges(grad_out, fields, *(None if a is None else a[self.tiles :] for a in (unit, unit_dot)))
        if vec is not None:
            args = (unit, unit_dot, self.inputs.vec, self.dots.vec, vec, np.int64(self.edges), 2 * self.tiles)
            self._each("dimenet_vec_gradient", self.edges, *args)
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
    triplets = _Triplets(_Values(vec, rbf, embedding, weights), None, graph, (n_spherical, n_radial, exclude))
    fields = Fields("agg_edge_to_edge_fwd", None, out, {"out": embedding}, triplets.kernels)
    triplets.to_out_edges(None, fields["out"])
    return fields.result()


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
    triplets = _Triplets(inputs, None, graph, (n_spherical, n_radial, exclude))
    fields = Fields("agg_edge_to_edge_bwd", wrt, out, inputs._asdict(), triplets.kernels)
    return triplets.gradients(grad_out, fields)


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
    inputs, dots = _Values(vec, rbf, embedding, weights), _Values(None, gg_rbf, gg_embedding, None)
    triplets = _Triplets(inputs, dots, graph, (n_spherical, n_radial, exclude))
    fields = Fields("agg_edge_to_edge_bwd2_grad", None, out, {"grad_out": embedding}, triplets.kernels)
    triplets.to_out_edges(None, fields["grad_out"])
    return fields.result()


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
    triplets = _Triplets(inputs, dots, graph, (n_spherical, n_radial, exclude))
    like = {"rbf": rbf, "embedding": embedding, "weights": weights}
    fields = Fields("agg_edge_to_edge_bwd2_main", wrt, out, like, triplets.kernels)
    return triplets.gradients(grad_out, fields)


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
    triplets = _Triplets(inputs, dots, graph, (n_spherical, n_radial, exclude))
    like = {"grad_out": grad_out, **inputs._asdict()}
    return triplets.gradients(grad_out, Fields("agg_edge_to_edge_bwd2", wrt, out, like, triplets.kernels))
