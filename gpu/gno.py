"""Graph neural operator, production version: the same code for CuPy arrays on a device and NumPy arrays (gpu-host).

Per edge z = U dx + b_u, a = z where not (z <= 0) else 0, kernel = V a + b_v; per destination
message_i = sum over e into i of K_e h_src(e). Packed parameters are the rows of a (d + 1, H) matrix, U^ = U | b_u, then
of an (H + 1, F) matrix, V^ = V | b_v, with F = (f_in, f_out), f_out fast; a^ = [a, 1] and x^ = [dx, 1] go with them.

`gno_kernel` works through blocks of edges: matrix products around small kernels. `gno_message` never forms the kernel:
it works through blocks of pieces (at most PART_SIZE in-edges of one destination, see sums.py) and their moments::

    T[k, f] = sum_e a^_e[k] h_src(e)[f]      message_i = sum over i's pieces of T V^

Its derivatives are written once for both orders. With h' = gg_features, V' = the V^ of gg_params, U' its U,
c = gg_coords, t = U c + U' dx + b_u' where z is active, and Q = g V^^T, Q' = g V'^T of each piece::

    T'[k, f] = sum_e a^ h' + t h             grad_message = T' V^ + T V'
    features = sum Q' a^ + Q t               dV^ = T'^T g
    s' = Q' h + Q h', s = Q h (where active) coords = U^T s' + U'^T s, dU^ = sum s' x^^T + s c^T

The first order is what remains of this with h' = h, V' = V^ and without the products of Q, t and s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from trigraph.gpu import sums
from trigraph.gpu.products import Columns, product_rows
from trigraph.gpu.results import Fields, Like, Out, Wrt
from trigraph.gpu.sums import ROWS, Kernels, Rows, Total, bits, cover
from trigraph.table.lazy import lazy

__all__ = [
    "gno_aggregate_bwd",
    "gno_aggregate_bwd2",
    "gno_aggregate_fwd",
    "gno_kernel_bwd",
    "gno_kernel_bwd2",
    "gno_kernel_fwd",
    "gno_message_bwd",
    "gno_message_bwd2",
    "gno_message_fwd",
]

# In-edges that lanes are chosen for, whatever the graph: the bits of a node's sum then depend on its own edges alone.
USUAL_DEGREE = 16


# ---- gno_kernel ------------------------------------------------------------------------------------------------------


def gno_kernel_fwd(coords: Any, params: Any, f_in: int, f_out: int, *, out: Out = None) -> Any:
    """Kernel = V^ a^; see `trigraph.gno_kernel_fwd`."""
    net = _Network(coords, params, f_in * f_out)
    fields = Fields(
        "gno_kernel_fwd", None, out, {"kernel": Like((len(coords), f_in * f_out), params.dtype)}, net.kernels
    )
    kernel = fields["kernel"]
    for first, count in sums.blocks(len(coords), (net.hidden + 1) * params.itemsize):
        a = net.empty(count, net.hidden + 1)
        net.load(first, count, a.shape[1], a=a)
        net.kernels.matmul(a, net.v_hat(params), out=kernel[first : first + count])
    return fields.result()


def gno_kernel_bwd(
    grad_kernel: Any, coords: Any, params: Any, f_in: int, f_out: int, wrt: Wrt = None, *, out: Out = None
) -> Any:
    """Coords U^T s, dU^ = sum s x^^T, dV^ = sum g a^^T, with s = V^T g where active; see `trigraph.gno_kernel_bwd`."""
    net = _Network(coords, params, f_in * f_out)
    like = {"coords": coords, "params": params}
    grads = Fields("gno_kernel_bwd", wrt, out, like, net.kernels)
    grads.clear("params")  # sums over blocks are added to what is there
    per_edge = 2 * net.hidden + net.d + 2 + (net.hidden + 1) * f_in * f_out // ROWS
    with net.total(net.u_hat, grads) as of_u, net.total(net.v_hat, grads) as of_v:
        for first, count in sums.blocks(len(coords), per_edge * params.itemsize):
            g = grad_kernel[first : first + count]
            s = net.empty(count, net.hidden)
            net.kernels.matmul(g, net.v(params).T, out=s)
            net.select(first, count, 1, s)
            if "coords" in grads:
                net.kernels.matmul(s, net.u(params).T, out=grads["coords"][first : first + count])
            if "params" in grads:
                a, x = net.empty(count, net.hidden + 1), net.empty(count, net.d + 1)
                net.load(first, count, a.shape[1], a=a, x=x)
                of_u.add(product_rows(net.kernels, x, s))
                of_v.add(product_rows(net.kernels, a, g))
    return grads.result()


def gno_kernel_bwd2(
    gg_coords: Any,
    gg_params: Any,
    grad_kernel: Any,
    coords: Any,
    params: Any,
    f_in: int,
    f_out: int,
    wrt: Wrt = None,
    *,
    out: Out = None,
) -> Any:
    """grad_kernel [V, V'] [t, a^], coords [U', U]^T [s, s'], dU^ = sum s' x^^T + s c^T, dV = sum g t^T."""
    net = _Network(coords, params, f_in * f_out, gg_coords, gg_params)
    like = {"grad_kernel": grad_kernel, "coords": coords, "params": params}
    grads = Fields("gno_kernel_bwd2", wrt, out, like, net.kernels)
    grads.clear("params")  # sums over blocks are added to what is there
    hidden, second = net.hidden, gg_params is not None
    left = net.stack(net.v(params), net.v_hat(gg_params)) if second else net.v(params)
    back = left[:-1] if second else left  # V' without b_v'
    down = net.stack(net.u(gg_params).T, net.u(params).T) if second else None
    if not second:
        grads.clear("coords")
    per_edge = 5 * hidden + net.d + 2 + hidden * f_in * f_out // ROWS
    with (
        net.total(net.u_hat, grads) as of_u_hat,
        net.total(net.u, grads) as of_u,
        net.total(net.v, grads) as of_v,
    ):
        for first, count in sums.blocks(len(coords), per_edge * params.itemsize):
            rows = slice(first, first + count)
            g = grad_kernel[rows]
            ta, x = net.empty(count, len(left)), net.empty(count, net.d + 1)
            if "grad_kernel" in grads or "params" in grads:
                a = ta.reshape(-1)[hidden:] if second else None
                net.load(first, count, ta.shape[1], t=ta, a=a, x=x)
            if "grad_kernel" in grads:
                net.kernels.matmul(ta, left, out=grads["grad_kernel"][rows])
            if "params" in grads:
                of_v.add(product_rows(net.kernels, Columns(ta, 0, hidden), g))
            if "coords" in grads or "params" in grads:
                s = net.empty(count, len(back))
                net.kernels.matmul(g, back.T, out=s)
                net.select(first, count, len(back) // hidden, s)
                if "coords" in grads and second:
                    net.kernels.matmul(s, down, out=grads["coords"][rows])
                if "params" in grads and second:
                    of_u_hat.add(product_rows(net.kernels, x, Columns(s, hidden, hidden)))
                if "params" in grads and gg_coords is not None:
                    of_u.add(product_rows(net.kernels, gg_coords[rows], Columns(s, 0, hidden)))
    return grads.result()


# ---- gno_aggregate ---------------------------------------------------------------------------------------------------


def gno_aggregate_fwd(features: Any, kernel: Any, graph: Any, f_in: int, f_out: int, *, out: Out = None) -> Any:
    """message_i = sum over e into i of K_e h_src(e); see `trigraph.gno_aggregate_fwd`."""
    kernels = Kernels("gno", features)
    fields = Fields(
        "gno_aggregate_fwd", None, out, {"message": Like((graph.num_dst_nodes, f_out), features.dtype)}, kernels
    )
    message = fields["message"]
    _to_destinations(kernels, [(kernel, features)], graph, f_in, f_out, message)
    return fields.result()


def gno_aggregate_bwd(
    grad_message: Any,
    features: Any,
    kernel: Any,
    graph: Any,
    f_in: int,
    f_out: int,
    wrt: Wrt = None,
    *,
    out: Out = None,
) -> Any:
    """features_j = sum over e out of j of K_e^T g_dst(e), kernel_e = sum g h^T; see `trigraph.gno_aggregate_bwd`."""
    kernels = Kernels("gno", features)
    like = {"features": features, "kernel": kernel}
    grads = Fields("gno_aggregate_bwd", wrt, out, like, kernels)
    if "features" in grads:
        _to_sources(kernels, kernel, grad_message, graph, f_in, f_out, grads["features"])
    if "kernel" in grads:
        _to_kernel(kernels, grad_message, features, graph, f_in, f_out, grads["kernel"])
    return grads.result()


def gno_aggregate_bwd2(
    gg_features: Any,
    gg_kernel: Any,
    grad_message: Any,
    features: Any,
    kernel: Any,
    graph: Any,
    f_in: int,
    f_out: int,
    wrt: Wrt = None,
    *,
    out: Out = None,
) -> Any:
    """Bilinear: each factor in turn replaced by its cotangent; see `trigraph.gno_aggregate_bwd2`."""
    kernels = Kernels("gno", features)
    like = {"grad_message": grad_message, "features": features, "kernel": kernel}
    grads = Fields("gno_aggregate_bwd2", wrt, out, like, kernels)
    if "grad_message" in grads:
        pairs = [(kernel, gg_features), (gg_kernel, features)]
        _to_destinations(kernels, pairs, graph, f_in, f_out, grads["grad_message"])
    if "features" in grads:
        _to_sources(kernels, gg_kernel, grad_message, graph, f_in, f_out, grads["features"])
    if "kernel" in grads:
        _to_kernel(kernels, grad_message, gg_features, graph, f_in, f_out, grads["kernel"])
    return grads.result()


# ---- gno_message -----------------------------------------------------------------------------------------------------


def gno_message_fwd(
    features: Any, coords: Any, params: Any, graph: Any, f_in: int, f_out: int, *, out: Out = None
) -> Any:
    """message_i = sum over i's pieces of T V^; see `trigraph.gno_message_fwd`."""
    net = _Network(coords, params, f_in * f_out)
    fields = Fields(
        "gno_message_fwd", None, out, {"message": Like((graph.num_dst_nodes, f_out), params.dtype)}, net.kernels
    )
    message = fields["message"]
    if graph.num_positions == 0:
        return fields.zeros()
    pieces = sums.by_destination(graph)
    partial = net.empty(pieces.num_pieces, f_out)
    for first, count in sums.blocks(pieces.num_pieces, (net.hidden + 1) * f_in * params.itemsize):
        moments = _Block(net, graph, f_in, pieces, first, count).moments(features, None)
        net.kernels.matmul(moments, net.v_hat(params).reshape(-1, f_out), out=partial[first : first + count])
    sums.sum_pieces(net.kernels, pieces, partial, message)
    return fields.result()


def gno_message_bwd(
    grad_message: Any,
    features: Any,
    coords: Any,
    params: Any,
    graph: Any,
    f_in: int,
    f_out: int,
    wrt: Wrt = None,
    *,
    out: Out = None,
) -> Any:
    """First order of the module's formulas, h' = h and V' = V^; see `trigraph.gno_message_bwd`."""
    net = _Network(coords, params, f_in * f_out)
    like = {"features": features, "coords": coords, "params": params}
    grads = Fields("gno_message_bwd", wrt, out, like, net.kernels)
    grads.clear("params")  # sums over blocks are added to what is there
    _message_derivatives(net, graph, grad_message, features, features, params, False, grads)
    return grads.result()


def gno_message_bwd2(
    gg_features: Any,
    gg_coords: Any,
    gg_params: Any,
    grad_message: Any,
    features: Any,
    coords: Any,
    params: Any,
    graph: Any,
    f_in: int,
    f_out: int,
    wrt: Wrt = None,
    *,
    out: Out = None,
) -> Any:
    """Second order of the module's formulas; see `trigraph.gno_message_bwd2`."""
    net = _Network(coords, params, f_in * f_out, gg_coords, gg_params)
    like = {"grad_message": grad_message, "features": features, "coords": coords, "params": params}
    grads = Fields("gno_message_bwd2", wrt, out, like, net.kernels)
    grads.clear("params")  # sums over blocks are added to what is there
    _message_derivatives(net, graph, grad_message, features, gg_features, gg_params, True, grads)
    return grads.result()


def _message_derivatives(
    net: _Network,
    graph: Any,
    grad_message: Any,
    features: Any,
    features_1: Any,
    params_1: Any,
    second: bool,
    grads: Fields,
) -> None:
    """Write the module's formulas into `grads`; h' is `features_1`, V' that of `params_1`, None standing for zero."""
    if graph.num_positions == 0 or not grads.arrays:
        grads.clear(*grads.arrays)
        return
    kernels, f_in, f_out = net.kernels, features.shape[1], grad_message.shape[1]
    pieces = sums.by_destination(graph)
    v = net.v_hat(net.params).reshape(-1, f_out)
    v_1 = None if params_1 is None else net.v_hat(params_1).reshape(-1, f_out)
    tangent = net.gg_coords is not None or net.gg_params is not None  # or else t = 0
    partial = net.empty(pieces.num_pieces, f_out) if "grad_message" in grads else None
    to_source = net.empty(graph.num_positions, f_in) if "features" in grads else None
    to_coords = grads["coords"]
    if to_coords is not None:
        sums.clear_unused(graph, to_coords)
        in_place = graph.edges_in_order
        to_coords = to_coords[: graph.num_positions] if in_place else net.empty(graph.num_positions, net.d)
    g_pieces = None if grads.arrays.keys() == {"grad_message"} else sums.spread(kernels, pieces, grad_message)
    per_piece = (4 if second else 2) * len(v) + (net.d + 1) * net.hidden + len(v) * f_out // ROWS
    with net.total(net.u_hat, grads) as of_u, net.total(net.v_hat, grads, f_out) as of_v:
        for first, count in sums.blocks(pieces.num_pieces, per_piece * grad_message.itemsize):
            block, rows = _Block(net, graph, f_in, pieces, first, count), slice(first, first + count)
            if partial is not None or "params" in grads:
                t_1 = block.moments(features_1, features if tangent else None)
            if partial is not None:
                net.kernels.matmul(t_1, v, out=partial[rows])
                if v_1 is not None:
                    net.kernels.matmul(block.moments(features, None), v_1, out=partial[rows], add=True)
            if g_pieces is None:
                continue
            g = g_pieces[rows]
            if "params" in grads:
                of_v.add(product_rows(kernels, g, t_1))
            q = net.kernels.matmul(g, v.T) if second else None
            q_1 = None if v_1 is None else net.kernels.matmul(g, v_1.T)
            if to_source is not None:
                block.to_source(q_1, q if tangent else None, to_source)
            if to_coords is not None or "params" in grads:
                to_params = net.empty(count, net.d + 1, net.hidden) if "params" in grads else None
                block.first_layer(
                    [(q_1, features), (q, features_1)], net.params, net.coords, False, to_coords, to_params
                )
                if tangent:
                    block.first_layer([(q, features)], net.gg_params, net.gg_coords, True, to_coords, to_params)
                if to_params is not None:
                    of_u.add(to_params)
    if partial is not None:
        sums.sum_pieces(kernels, pieces, partial, grads["grad_message"])
    if to_source is not None:
        sums.gather(kernels, to_source, sums.by_source(graph), grads["features"])
    if to_coords is not None and not in_place:
        sums.gather(kernels, to_coords, sums.by_row(graph), grads["coords"])


# ---- the kernel network ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Network:
    """coords, packed parameters (rows of U^, then rows of V^), and the cotangents of the second order."""

    coords: Any
    params: Any
    width: int
    gg_coords: Any = None
    gg_params: Any = None

    @lazy
    def kernels(self) -> Kernels:
        return Kernels("gno", self.params)

    @property
    def xp(self) -> Any:
        return self.kernels.xp

    @property
    def d(self) -> int:
        return int(self.coords.shape[1])

    @lazy
    def hidden(self) -> int:
        return int((self.params.size - self.width) // (self.d + 1 + self.width))

    def empty(self, *shape: int) -> Any:
        """Workspace."""
        return self.xp.empty(shape, self.params.dtype)

    def u_hat(self, params: Any) -> Any:
        """Rows of U and the row b_u, (d + 1, H)."""
        return params[: (self.d + 1) * self.hidden].reshape(self.d + 1, self.hidden)

    def v_hat(self, params: Any) -> Any:
        """Rows of V and the row b_v, (H + 1, F)."""
        return params[(self.d + 1) * self.hidden :].reshape(self.hidden + 1, self.width)

    def u(self, params: Any) -> Any:
        """U alone, (d, H)."""
        return self.u_hat(params)[:-1]

    def v(self, params: Any) -> Any:
        """V alone, (H, F)."""
        return self.v_hat(params)[:-1]

    def total(self, part: Callable[[Any], Any], grads: Fields, outer: int = 1) -> Total:
        """Return the sum that is added to a part of the gradient in the parameters, where that is asked for."""
        return Total(self.kernels, part(grads["params"]) if "params" in grads else None, outer)

    def stack(self, above: Any, below: Any) -> Any:
        """Return one matrix above another."""
        stacked = self.empty(len(above) + len(below), above.shape[1])
        stacked[: len(above)] = above
        stacked[len(above) :] = below
        return stacked

    def load(self, first: int, count: int, stride: int, t: Any = None, a: Any = None, x: Any = None) -> None:
        """Write t, a^ and x^ of a block of edges; rows of t and of a^ are `stride` apart."""
        grid = (cover(count * (max(self.d, self.hidden) + 1), 128),)
        arrays = (self.coords, self.params, self.gg_coords, self.gg_params)
        args = (*arrays, np.int64(first), np.int64(count), self.d, self.hidden, stride, t, a, x)
        self.kernels.launch("gno_hidden", (self.params.dtype,), grid, (128,), args)

    def select(self, first: int, count: int, copies: int, s: Any) -> None:
        """Set s (count, copies * H) to zero where the hidden layer is not active."""
        args = (self.coords, self.params, np.int64(first), np.int64(count), self.d, self.hidden, copies, s)
        self.kernels.launch("gno_select", (self.params.dtype,), (cover(count * self.hidden, 128),), (128,), args)


# ---- gno_aggregate: sums of matrix-vector and of outer products ------------------------------------------------------


def _to_destinations(
    kernels: Kernels, pairs: Sequence[tuple[Any, Any]], graph: Any, f_in: int, f_out: int, out: Any
) -> None:
    """out_i = sum over the pairs (K, h) and over e into i of K_e h_src(e); a pair with None is left out."""
    y_bits = min(bits(f_out), 5)
    shape = (f_out, f_in, 1, f_out, y_bits, min(bits(f_in), 7 - y_bits))
    _contract(kernels, pairs, graph, sums.by_destination(graph), graph.indices, shape, out)


def _to_sources(kernels: Kernels, kernel: Any, grad_message: Any, graph: Any, f_in: int, f_out: int, out: Any) -> None:
    """out_j = sum over e out of j of K_e^T g_dst(e); zero where the kernel is None."""
    x_bits = min(bits(f_out), 5)
    shape = (f_in, f_out, f_out, 1, min(bits(cover(f_in, 4)), 7 - x_bits), x_bits)
    others = graph.prepare().destinations
    _contract(kernels, [(kernel, grad_message)], graph, sums.by_source(graph), others, shape, out)


def _contract(
    kernels: Kernels,
    pairs: Sequence[tuple[Any, Any]],
    graph: Any,
    rows: sums.Rows,
    others: Any,
    shape: tuple[int, int, int, int, int, int],
    out: Any,
) -> None:
    """See kernel gno_contract; `shape` is num_y, num_x, y_stride, x_stride, y_bits, x_bits."""
    given = [pair for pair in pairs if pair[0] is not None and pair[1] is not None]
    if not given or rows.num_positions == 0:
        out.fill(0)
        return
    overflow = sums.overflow_for(kernels, rows, out)
    num_y, _, _, _, y_bits, x_bits = shape
    e_bits = min(bits(USUAL_DEGREE), 7 - y_bits - x_bits)
    grid = (cover(rows.num_pieces, 128 >> (y_bits + x_bits + e_bits)) * cover(num_y, 4 << y_bits),)
    arrays = (*given[0], *(given[1] if len(given) > 1 else (None, None)))
    index = (*rows.cut, rows.order, graph.edge_ids, others)
    args = (*arrays, *index, *shape, e_bits, out, overflow)
    kernels.launch("gno_contract", (out.dtype, rows.offsets.dtype), grid, (128,), args)
    sums.finish(kernels, rows, overflow, out)


def _to_kernel(kernels: Kernels, grad_message: Any, features: Any, graph: Any, f_in: int, f_out: int, out: Any) -> None:
    """out_r = sum over the positions that share row r of g_dst h_src^T; zero where the features are None."""
    if features is None or graph.num_positions == 0:
        out.fill(0)
        return
    rows = sums.by_row(graph)
    overflow = sums.overflow_for(kernels, rows, out)
    lane_bits = min(bits(cover(f_in * f_out, 4)), 7)
    grid = (cover(rows.num_pieces, 128 >> lane_bits) * cover(f_in * f_out, 4 << lane_bits),)
    index = (*rows.cut, rows.order, graph.prepare().destinations, graph.indices)
    args = (grad_message, features, *index, f_in, f_out, lane_bits, out, overflow)
    kernels.launch("gno_outer", (out.dtype, graph.offsets.dtype), grid, (128,), args)
    sums.finish(kernels, rows, overflow, out)
    sums.clear_unused(graph, out)


# ---- gno_message: products of a piece's edges with its T and Q -------------------------------------------------------


class _Tile(NamedTuple):
    """Lanes of a small matrix product, see kernels/gno_tiles.cuh, as exponents of two."""

    row_bits: int
    col_bits: int
    depth_bits: int

    @classmethod
    def of(cls, rows: int, cols: int) -> _Tile:
        """Return lanes for a product of about these extents: at most 16 products in a block, in 24 KB at most."""
        col_bits = min(bits(cover(cols, 2)), 4)
        row_bits = max(min(bits(cover(rows, 4)), 7 - col_bits), 3 - col_bits)
        per_depth = cls(row_bits, col_bits, 0).elements
        return cls(row_bits, col_bits, min(4, (3072 // per_depth).bit_length() - 1))

    @property
    def rows(self) -> int:
        return 4 << self.row_bits

    @property
    def cols(self) -> int:
        return 2 << self.col_bits

    @property
    def groups(self) -> int:
        """Products that a thread block does side by side."""
        return 128 >> (self.row_bits + self.col_bits)

    @property
    def elements(self) -> int:
        """Elements of both factors of all groups."""
        return self.groups * (self.rows + self.cols + 2) << self.depth_bits


@dataclass(frozen=True)
class _Block:
    """A block of the pieces of the destinations."""

    net: _Network
    graph: Any
    f_in: int
    pieces: Rows
    first: int
    count: int

    def moments(self, features_a: Any, features_t: Any) -> Any:
        """sum_e a^ h_a + t h_t of each piece, (count, (H + 1) * f_in); None stands for zero."""
        net, f_in = self.net, self.f_in
        out, tile = net.empty(self.count, (net.hidden + 1) * f_in), _Tile.of(net.hidden, f_in)
        arrays = (features_a, features_t, net.coords, net.params, net.gg_coords, net.gg_params)
        index = (*self.pieces.cut, self.graph.indices, self.graph.edge_ids)
        tiles = cover(net.hidden, tile.rows) * cover(f_in, tile.cols)
        self._launch("gno_moments", tile, tiles, (*arrays, *index), (), (out,))
        return out

    def to_source(self, q_a: Any, q_t: Any, out: Any) -> None:
        """q_a a^ + q_t t of each edge into its position's row of `out`; None stands for zero."""
        net, tile = self.net, self._edges_by(self.f_in)
        arrays = (q_a, q_t, net.coords, net.params, net.gg_coords, net.gg_params)
        index = (*self.pieces.cut, self.graph.edge_ids)
        self._launch("gno_to_source", tile, cover(self.f_in, tile.cols), (*arrays, *index), (), (out,))

    def first_layer(
        self, pairs: Sequence[tuple[Any, Any]], weights: Any, x: Any, add: bool, to_coords: Any, to_params: Any
    ) -> None:
        """With s = sum over the pairs of q h where active, write or add weights^T s and s x^T to the outputs."""
        net, tile = self.net, self._edges_by(self.net.hidden)
        given = [pair for pair in pairs if pair[0] is not None and pair[1] is not None]
        given += [(None, None)] * (2 - len(given))
        arrays = (*given[0], *given[1], net.coords, net.params, weights, x)
        index = (*self.pieces.cut, self.graph.indices, self.graph.edge_ids)
        extra = tile.groups * tile.rows * (tile.cols + 1)
        self._launch("gno_first_layer", tile, 1, (*arrays, *index), (not add, add), (to_coords, to_params), extra)

    def _edges_by(self, cols: int) -> _Tile:
        return _Tile.of(USUAL_DEGREE, cols)

    def _launch(
        self, kernel: str, tile: _Tile, tiles: int, arrays: Any, flags: Any, outputs: Any, extra: int = 0
    ) -> None:
        net = self.net
        span = np.int64(self.first), np.int64(self.count)
        args = (*arrays, *span, net.d, net.hidden, self.f_in, *flags, *tile, *outputs)
        shared = (tile.elements + extra) * net.params.itemsize
        types = (net.params.dtype, self.pieces.offsets.dtype)
        net.kernels.launch(kernel, types, (cover(self.count, tile.groups) * tiles,), (128,), args, shared)
