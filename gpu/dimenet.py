"""DimeNet++ on the device: radial basis, and the triplet sum in a form linear in the number of edges.

With real spherical harmonics h of the edge directions, P_l(u.w) = sum over the rows r of degree l of
weight_r h_r(u) h_r(w). So the sum over pairs of an in-edge f and an out-edge e of one node j,

    out_e[c] = sum_f sum_l Y_l(u_e.u_f) F_f[l,c],    F_f[l,c] = x_f[c] sum_m W2[c,m] sum_n sbf_rad_f[l,n] W1[l,n,m],

is two sums over edges with the node's state Z[r,c] = weight_r sum_f h_r(u_f) F_f[l(r),c] between them, which a block
keeps in shared memory; the gradients of in-edges follow likewise from B[r,c] = weight_r sum_e h_r(u_e) grad_out_e[c].
The excluded pairs are subtracted. If this would cancel, values are not finite, or a node has few edges, the block sums
over pairs instead (kernels/dimenet_triplets.cuh).

The second order is the gradient of the first order's derivative along the cotangents gg_. Names ending in dot are such
derivatives, and every kernel of the first order has a version that also computes them.
"""

from typing import Any

import numpy as np

from trigraph.gpu import sums
from trigraph.gpu.call import Call
from trigraph.gpu.sums import ROWS, cover, sum_rows

DEGREES = 8  # largest number of degrees of spherical harmonics
USUAL_DEGREES = 7  # number of degrees with separate float32 instances
PAD = 64  # channels in a tile of what the kernels call up
PROJECTED = 16  # edges per block
THREADS = 128
BLOCKS = 2048  # most blocks of the kernel that sums gradients of weights; each has a copy of the sums


# ---- radial basis ----------------------------------------------------------------------------------------------------


def radial_basis_fwd(call: Call) -> None:
    """Rbf = env sin(freq x) and sbf_rad = env N j_l(z x); see `trigraph.radial_basis_fwd`."""
    edges, radial, spherical, exponent = _radial_sizes(call)
    grid = (cover(edges * radial * (spherical + 1), THREADS),)
    arrays = (call.inputs.dist, call.inputs.freq, call.fields["rbf"], call.fields["sbf_rad"])
    args = (*arrays, np.int64(edges), radial, spherical, exponent)
    call.kernels.launch("dimenet_radial", (call.kernels.dtype,), grid, (THREADS,), args)


def radial_basis_bwd(call: Call) -> None:
    """Gradients in dist and freq, or their derivatives along the cotangents; see `trigraph.radial_basis_bwd`."""
    kernels, fields, inputs, dots = call.kernels, call.fields, call.inputs, call.dots
    edges, radial, spherical, exponent = _radial_sizes(call)
    types = (kernels.dtype, call.second)
    if fields.any_of("grad_rbf", "grad_sbf_rad", "dist"):
        arrays = (dots.dist, dots.freq, call.grad, call.values["grad_sbf_rad"], inputs.dist, inputs.freq)
        targets = (fields["grad_rbf"], fields["grad_sbf_rad"], fields["dist"])
        grid = (cover(edges, THREADS // radial),)
        args = (*arrays, *targets, np.int64(edges), radial, spherical, exponent)
        kernels.launch("dimenet_radial_edges", types, grid, (THREADS,), args)
    fields.clear("freq")  # sums of parts are added to it
    if "freq" in fields and edges:
        parts = kernels.empty(cover(edges, ROWS), radial)
        of_freq = (dots.dist, dots.freq, call.grad, inputs.dist, inputs.freq, parts, np.int64(edges), radial, exponent)
        kernels.launch("dimenet_radial_freq", types, (len(parts),), (ROWS,), of_freq)
        sum_rows(kernels, parts, fields["freq"])


radial_basis_bwd2 = radial_basis_bwd


def _radial_sizes(call: Call) -> tuple[int, ...]:
    """Return the numbers of edges, of radial and of spherical functions, and the envelope's exponent."""
    names = ("num_edges", "num_radial", "num_spherical", "envelope_exponent")
    return tuple(call.sizes[name] for name in names)


# ---- triplets --------------------------------------------------------------------------------------------------------


def _output(call: Call) -> None:
    """out[e] = sum of embedding[f] q over the in-edges f of its source that `exclude` admits, or its derivative."""
    _Triplets(call).to_out_edges(None, call.output)


def _gradients(call: Call) -> None:
    """Gradients of sum grad_out out, or of its derivative along the cotangents; see `trigraph.agg_edge_to_edge_bwd`."""
    call.fields.clear("weights")  # sums of parts are added to what is there
    if call.sizes["num_edges"]:
        _Triplets(call).gradients()


agg_edge_to_edge_fwd = agg_edge_to_edge_bwd2_grad = _output
agg_edge_to_edge_bwd = agg_edge_to_edge_bwd2 = agg_edge_to_edge_bwd2_main = _gradients


class _Triplets:
    """Shared data of the kernels of a call: arguments, sizes, and values computed once per edge."""

    def __init__(self, call: Call) -> None:
        self.kernels, self.graph, self.fields, self.grad = call.kernels, call.graph, call.fields, call.grad
        self.inputs, self.dots, self.second, self.dtype = call.inputs, call.dots, call.second, call.kernels.dtype
        names = ("num_edges", "n_emb", "n_mid", "num_spherical", "num_radial")
        self.edges, self.channels, self.mid, self.spherical, self.radial = (call.sizes[name] for name in names)
        self.tiles = cover(self.channels, 64 if self.dtype == np.float32 and not self.second else 32)
        graph, left = call.graph, call.graph.left_out(call.values["exclude"])
        self.graph_arrays = (graph.src_offsets, graph.dst_offsets, graph.dst_edge_index, left.start, left.stop)
        embeddings = (self.inputs.embedding, self.dots.embedding)
        self.edge_arrays = (*self._directions(), *self._project(), *embeddings)
        self.up, self.up_dot = self._second_weights(self.inputs.weights), self._second_weights(self.dots.weights)

    def _empty(self, *shape: int, wanted: bool = True) -> Any:
        return self.kernels.empty(*shape) if wanted else None

    def _each(self, kernel: str, count: int, *args: Any) -> None:
        """Launch a kernel with `count` threads."""
        self.kernels.launch(kernel, (self.dtype,), (cover(count, THREADS),), (THREADS,), args)

    def _directions(self) -> tuple[Any, Any]:
        """Return unit vectors and, with cotangents, their derivatives."""
        unit, unit_dot = self._empty(self.edges, 3), self._empty(self.edges, 3, wanted=self.dots.vec is not None)
        args = (self.inputs.vec, self.dots.vec, unit, unit_dot, np.int64(self.edges))
        self._each("dimenet_directions", self.edges, *args)
        return unit, unit_dot

    def _project(self) -> tuple[Any, Any]:
        """Return W1^T sbf_rad of each edge and degree, and its derivative."""
        shape = (self.edges, self.mid, DEGREES)
        projected, projected_dot = self._empty(*shape), self._empty(*shape, wanted=self.second)
        inputs, dots = self.inputs, self.dots
        arrays = (inputs.sbf_rad, dots.sbf_rad, inputs.weights, dots.weights, projected, projected_dot)
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
        """Return W2 transposed, padded with zeros to full tiles."""
        if weights is None:
            return None
        down, rows = weights[self.spherical * self.radial :], cover(self.mid, DEGREES) * DEGREES
        up = self._empty(cover(self.channels, PAD), rows, PAD)
        self._each("dimenet_transpose", up.size, down, up, np.int64(up.size), np.int64(rows), self.channels, self.mid)
        return up

    def to_out_edges(self, grad_out: Any, out: Any, grad_unit: Any = None, grad_unit_dot: Any = None) -> None:
        """Sum from in-edges to out-edges."""
        numbers = (np.int64(self.edges), self.channels, self.mid, self.spherical)
        targets = (out, grad_unit, grad_unit_dot)
        args = (*self.graph_arrays, *self.edge_arrays, self.up, self.up_dot, grad_out, *targets, *numbers)
        grid = (self.graph.num_nodes, self.tiles)
        order = 2 if self.second else 0 if grad_unit is None else 1
        self.kernels.launch("dimenet_out_edges", self._types(order), grid, (THREADS,), args)

    def to_in_edges(self, grad_unit: Any, grad_unit_dot: Any) -> None:
        """Sum from out-edges to in-edges, for the requested gradients."""
        fields, nodes, weights = self.fields, self.graph.num_nodes, self.fields["weights"]
        wanted, shape = fields.any_of("sbf_rad", "weights"), (self.edges, self.mid, self.spherical)
        grad = self._empty(*shape, wanted=wanted)
        grad_dot = self._empty(*shape, wanted=wanted and self.second)
        per_block = 1 if weights is None else self._nodes_per_block()
        blocks, width = cover(nodes, per_block), self.channels * self.mid
        parts, totals = (self._empty(blocks, width, wanted=weights is not None) for _ in range(2))
        alone = self.kernels.xp.empty(self.edges, np.int32) if wanted else None
        targets = (fields["embedding"], grad, grad_dot, grad_unit, grad_unit_dot, parts, totals, alone)
        numbers = (np.int64(self.edges), np.int64(nodes), np.int64(per_block), self.channels, self.mid, self.spherical)
        args = (*self.graph_arrays, *self.edge_arrays, self.up, self.up_dot, self.grad, *targets, *numbers)
        self.kernels.launch("dimenet_in_edges", self._types(self.second), (blocks,), (THREADS,), args)
        if fields.any_of("sbf_rad"):
            args = (grad, grad_dot, self.inputs.weights, self.dots.weights, alone, fields["sbf_rad"], *self._sizes())
            self._each("dimenet_sbf_rad_gradient", fields["sbf_rad"].size, *args)
        if weights is not None:
            first = self.spherical * self.radial
            self._first_weights((grad, grad_dot, alone), weights[:first])
            sum_rows(self.kernels, totals, weights[first:], self.mid)

    def _nodes_per_block(self) -> int:
        """Return the number of nodes that share a block's copy of the gradient of the second weights, at most ROWS."""
        # A copy has 2 * channels * mid numbers of at most 8 bytes; all copies take at most an eighth of WORKSPACE.
        blocks = max(1, min(BLOCKS, sums.WORKSPACE // (8 * 16 * self.channels * self.mid)))
        return min(cover(self.graph.num_nodes, blocks), ROWS)

    def _first_weights(self, grads: tuple[Any, Any, Any], out: Any) -> None:
        parts = self._empty(cover(self.edges, ROWS), out.size)
        args = (self.inputs.sbf_rad, self.dots.sbf_rad, *grads, parts, *self._sizes())
        grid = (len(parts), cover(out.size, THREADS))
        self.kernels.launch("dimenet_weights_parts", (self.dtype,), grid, (THREADS,), args)
        sum_rows(self.kernels, parts, out)

    def gradients(self) -> None:
        """Compute the requested gradients."""
        # Cotangents of directions, with a part for each tile of channels: first out-edges, then in-edges.
        fields, shape, vec = self.fields, (2 * self.tiles, self.edges, 3), self.fields["vec"]
        unit = self._empty(*shape, wanted=vec is not None)
        unit_dot = self._empty(*shape, wanted=vec is not None and self.second)
        if fields.any_of("grad_out", "vec"):
            self.to_out_edges(self.grad, fields["grad_out"], unit, unit_dot)
        if fields.any_of("vec", "sbf_rad", "embedding", "weights"):
            self.to_in_edges(*(None if a is None else a[self.tiles :] for a in (unit, unit_dot)))
        if vec is not None:
            args = (unit, unit_dot, self.inputs.vec, self.dots.vec, vec, np.int64(self.edges), 2 * self.tiles)
            self._each("dimenet_vec_gradient", self.edges, *args)
