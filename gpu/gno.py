"""Graph neural operator, production version: the same code for CuPy arrays on a device and NumPy arrays (gpu-host).

Per edge z = U xi + b_u, a = z where not (z <= 0) else 0, kernel = V a + b_v; per destination
message_i = sum over e into i of K_e h_src(e). Packed parameters are the rows of a (d + 1, H) matrix, U^ = U | b_u, then
of an (H + 1, F) matrix, V^ = V | b_v, with F = (f_in, f_out), f_out fast; a^ = [a, 1] and xi^ = [xi, 1] go with them.

`gno_kernel` computes blocks of edges by matrix products and small kernels. `gno_message` never forms the kernel; it
computes blocks of pieces (at most PART_SIZE in-edges of one destination, see sums.py) from their moments::

    T[k, f] = sum_e a^_e[k] h_src(e)[f]      message_i = sum over i's pieces of T V^

The derivatives of both orders share their code. Names ending in _dot are those along the cotangents gg_: h_dot, xi_dot,
and U_dot, V^_dot of gg_params. With a_dot = U xi_dot + U_dot xi + b_u_dot where z is active, and Q = g V^^T,
Q_dot = g V^_dot^T of each piece::

    T_dot[k, f] = sum_e a^ h_dot + a_dot h   grad_message = T_dot V^ + T V^_dot
    features = sum Q_dot a^ + Q a_dot        V^: T_dot^T g
    s_dot = Q_dot h + Q h_dot, s = Q h (where active)
    coords = U^T s_dot + U_dot^T s           U^: sum s_dot xi^^T + s xi_dot^T

The first order follows with h_dot = h, V^_dot = V^ and without the products of Q, a_dot and s.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from trigraph.gpu import sums
from trigraph.gpu.call import Call
from trigraph.gpu.products import Columns, product_rows
from trigraph.gpu.rows import align
from trigraph.gpu.sums import ROWS, Rows, Total, bits, cover
from trigraph.table.constants import THREADS

# In-degree for which lanes are chosen, for every graph, so that the sum of a node depends only on its own edges.
USUAL_DEGREE = 16


# ---- gno_kernel ------------------------------------------------------------------------------------------------------


def gno_kernel_fwd(call: Call) -> None:
    """Kernel = V^ a^; see `trigraph.gno_kernel_fwd`."""
    net, kernel = _Network(call), call.fields["kernel"]
    for first, count in sums.blocks(len(net.coords), (net.hidden + 1) * net.itemsize):
        a = net.kernels.empty(count, net.hidden + 1)
        net.compute_hidden(first, count, a.shape[1], a=a)
        net.kernels.matmul(a, net.v_hat(net.params), out=kernel[first : first + count])


def gno_kernel_bwd(call: Call) -> None:
    """Coords U^T s, U^: sum s xi^^T, V^: sum g a^^T, with s = V^T g where active; see `trigraph.gno_kernel_bwd`."""
    net, grads, params = _Network(call), call.fields, call.inputs.params
    grads.clear("params")  # sums over blocks are added to what is there
    per_edge = 2 * net.hidden + net.d + 2 + (net.hidden + 1) * net.width // ROWS
    with net.total(net.u_hat) as of_u, net.total(net.v_hat) as of_v:
        for first, count in sums.blocks(len(net.coords), per_edge * net.itemsize):
            g = call.grad[first : first + count]
            s = net.kernels.empty(count, net.hidden)
            net.kernels.matmul(g, net.v(params).T, out=s)
            net.select(first, count, 1, s)
            if "coords" in grads:
                net.kernels.matmul(s, net.u(params).T, out=grads["coords"][first : first + count])
            if "params" in grads:
                a, xi = net.kernels.empty(count, net.hidden + 1), net.kernels.empty(count, net.d + 1)
                net.compute_hidden(first, count, a.shape[1], a=a, xi=xi)
                of_u.add(product_rows(net.kernels, xi, s))
                of_v.add(product_rows(net.kernels, a, g))


def gno_kernel_bwd2(call: Call) -> None:
    """grad_kernel [V, V_dot] [a_dot, a^]; coords [U_dot, U]^T [s, s_dot]; U^ s_dot xi^^T + s xi_dot^T, V g a_dot^T."""
    net, grads, params = _Network(call), call.fields, call.inputs.params
    coords_dot, params_dot = net.coords_dot, net.params_dot
    grads.clear("params")  # sums over blocks are added to what is there
    hidden, second = net.hidden, params_dot is not None
    left = net.stack(net.v(params), net.v_hat(params_dot)) if second else net.v(params)
    back = left[:-1] if second else left  # V_dot without b_v_dot
    down = net.stack(net.u(params_dot).T, net.u(params).T) if second else None
    if not second:
        grads.clear("coords")
    per_edge = 5 * hidden + net.d + 2 + hidden * net.width // ROWS
    with net.total(net.u_hat) as of_u_hat, net.total(net.u) as of_u, net.total(net.v) as of_v:
        for first, count in sums.blocks(len(net.coords), per_edge * net.itemsize):
            rows = slice(first, first + count)
            g = call.grad[rows]
            both, xi = net.kernels.empty(count, len(left)), net.kernels.empty(count, net.d + 1)
            if grads.requests_any("grad_kernel", "params"):
                a = both.reshape(-1)[hidden:] if second else None
                net.compute_hidden(first, count, both.shape[1], a_dot=both, a=a, xi=xi)
            if "grad_kernel" in grads:
                net.kernels.matmul(both, left, out=grads["grad_kernel"][rows])
            if "params" in grads:
                of_v.add(product_rows(net.kernels, Columns(both, 0, hidden), g))
            if grads.requests_any("coords", "params"):
                s = net.kernels.empty(count, len(back))
                net.kernels.matmul(g, back.T, out=s)
                net.select(first, count, len(back) // hidden, s)
                if "coords" in grads and second:
                    net.kernels.matmul(s, down, out=grads["coords"][rows])
                if "params" in grads and second:
                    of_u_hat.add(product_rows(net.kernels, xi, Columns(s, hidden, hidden)))
                if "params" in grads and coords_dot is not None:
                    of_u.add(product_rows(net.kernels, coords_dot[rows], Columns(s, 0, hidden)))


# ---- gno_aggregate ---------------------------------------------------------------------------------------------------


def gno_aggregate_fwd(call: Call) -> None:
    """message_i = sum over e into i of K_e h_src(e); see `trigraph.gno_aggregate_fwd`."""
    _to_destinations(call, [(call.inputs.kernel, call.inputs.features)], call.fields["message"])


def gno_aggregate_bwd(call: Call) -> None:
    """features_j = sum over e out of j of K_e^T g_dst(e), kernel_e = sum g h^T; see `trigraph.gno_aggregate_bwd`."""
    _to_sources(call, call.inputs.kernel)
    _to_kernel(call, call.inputs.features)


def gno_aggregate_bwd2(call: Call) -> None:
    """Bilinear: each factor in turn replaced by its cotangent; see `trigraph.gno_aggregate_bwd2`."""
    inputs, dots = call.inputs, call.dots
    if "grad_message" in call.fields:
        pairs = [(inputs.kernel, dots.features), (dots.kernel, inputs.features)]
        _to_destinations(call, pairs, call.fields["grad_message"])
    _to_sources(call, dots.kernel)
    _to_kernel(call, dots.features)


# ---- gno_message -----------------------------------------------------------------------------------------------------


def gno_message_fwd(call: Call) -> None:
    """message_i = sum over i's pieces of T V^; see `trigraph.gno_message_fwd`."""
    net, graph, message, f_out = _Network(call), call.graph, call.fields["message"], call.sizes["f_out"]
    if graph.num_positions == 0:
        message.fill(0)
        return
    pieces = sums.by_destination(graph)
    partial = net.kernels.empty(pieces.num_pieces, f_out)
    for first, count in sums.blocks(pieces.num_pieces, (net.hidden + 1) * call.sizes["f_in"] * net.itemsize):
        moments = _Block(net, graph, pieces, first, count).moments(align(call.inputs.features), None)
        net.kernels.matmul(moments, net.v_hat(net.params).reshape(-1, f_out), out=partial[first : first + count])
    sums.sum_pieces(net.kernels, pieces, partial, message)


def gno_message_bwd(call: Call) -> None:
    """First order of the module's formulas, h' = h and V' = V^; see `trigraph.gno_message_bwd`."""
    _message_derivatives(call, call.inputs.features, call.inputs.params)


def gno_message_bwd2(call: Call) -> None:
    """Second order of the module's formulas; see `trigraph.gno_message_bwd2`."""
    _message_derivatives(call, call.dots.features, call.dots.params)


def _message_derivatives(call: Call, features_dot: Any, params_dot: Any) -> None:
    """Write the module's formulas; h_dot is `features_dot`, V^_dot that of `params_dot`, None standing for zero."""
    net, graph, grads = _Network(call), call.graph, call.fields
    features, features_dot = align(call.inputs.features), align(features_dot)
    grads.clear("params")  # sums over blocks are added to what is there
    if graph.num_positions == 0:
        grads.clear()
        return
    kernels, f_in, f_out, second = net.kernels, call.sizes["f_in"], call.sizes["f_out"], call.second
    pieces = sums.by_destination(graph)
    v = net.v_hat(net.params).reshape(-1, f_out)
    v_dot = None if params_dot is None else net.v_hat(params_dot).reshape(-1, f_out)
    moving = net.coords_dot is not None or net.params_dot is not None  # otherwise a_dot = 0
    partial = net.kernels.empty(pieces.num_pieces, f_out) if "grad_message" in grads else None
    to_source = net.kernels.empty(graph.num_positions, f_in) if "features" in grads else None
    to_coords = grads["coords"]
    if to_coords is not None:
        sums.clear_unused(graph, to_coords)
        in_place = graph.edges_in_order
        to_coords = to_coords[: graph.num_positions] if in_place else net.kernels.empty(graph.num_positions, net.d)
    g_pieces = None if grads.arrays.keys() == {"grad_message"} else sums.spread(kernels, pieces, call.grad)
    per_piece = (4 if second else 2) * len(v) + (net.d + 1) * net.hidden + len(v) * f_out // ROWS
    with net.total(net.u_hat) as of_u, net.total(net.v_hat, f_out) as of_v:
        for first, count in sums.blocks(pieces.num_pieces, per_piece * net.itemsize):
            block, rows = _Block(net, graph, pieces, first, count), slice(first, first + count)
            if partial is not None or "params" in grads:
                moments_dot = block.moments(features_dot, features if moving else None)
            if partial is not None:
                net.kernels.matmul(moments_dot, v, out=partial[rows])
                if v_dot is not None:
                    net.kernels.matmul(block.moments(features, None), v_dot, out=partial[rows], add=True)
            if g_pieces is None:
                continue
            g = g_pieces[rows]
            if "params" in grads:
                of_v.add(product_rows(kernels, g, moments_dot))
            q = net.kernels.matmul(g, v.T) if second else None
            q_dot = None if v_dot is None else net.kernels.matmul(g, v_dot.T)
            if to_source is not None:
                block.to_source(q_dot, q if moving else None, to_source)
            if to_coords is not None or "params" in grads:
                to_params = net.kernels.empty(count, net.d + 1, net.hidden) if "params" in grads else None
                pairs = [(q_dot, features), (q, features_dot)]
                block.first_layer(pairs, net.params, net.coords, False, to_coords, to_params)
                if moving:
                    block.first_layer([(q, features)], net.params_dot, net.coords_dot, True, to_coords, to_params)
                if to_params is not None:
                    of_u.add(to_params)
    if partial is not None:
        sums.sum_pieces(kernels, pieces, partial, grads["grad_message"])
    if to_source is not None:
        sums.gather(kernels, to_source, sums.by_source(graph), grads["features"])
    if to_coords is not None and not in_place:
        sums.gather(kernels, to_coords, sums.by_row(graph), grads["coords"])


# ---- the kernel network ----------------------------------------------------------------------------------------------


class _Arrays(NamedTuple):
    """The kernel argument ``network`` (``Network`` in kernels/gno.cu)."""

    coords: Any
    params: Any
    coords_dot: Any
    params_dot: Any
    d: int
    hidden: int


class _Network:
    """coords, packed parameters (rows of U^, then rows of V^), and the cotangents of the second order."""

    def __init__(self, call: Call) -> None:
        self.kernels, self.fields = call.kernels, call.fields
        self.coords, self.params = call.inputs.coords, call.inputs.params
        self.coords_dot, self.params_dot = call.dots.coords, call.dots.params
        self.d, self.hidden, self.f_in = (call.sizes[name] for name in ("d", "hidden", "f_in"))
        self.width = self.f_in * call.sizes["f_out"]
        self.itemsize = self.params.itemsize
        self.argument = _Arrays(self.coords, self.params, self.coords_dot, self.params_dot, self.d, self.hidden)

    def u_hat(self, params: Any) -> Any:
        """Rows of U and the row b_u, (d + 1, H)."""
        return params[: (self.d + 1) * self.hidden].reshape(self.d + 1, self.hidden)

    def v_hat(self, params: Any) -> Any:
        """Rows of V and the row b_v, (H + 1, F)."""
        return params[(self.d + 1) * self.hidden :].reshape(self.hidden + 1, self.width)

    def u(self, params: Any) -> Any:
        """U without b_u, (d, H)."""
        return self.u_hat(params)[:-1]

    def v(self, params: Any) -> Any:
        """V without b_v, (H, F)."""
        return self.v_hat(params)[:-1]

    def total(self, part: Callable[[Any], Any], outer: int = 1) -> Total:
        """Return the sum for a part of the gradient of the parameters, if requested."""
        return Total(self.kernels, part(self.fields["params"]) if "params" in self.fields else None, outer)

    def stack(self, above: Any, below: Any) -> Any:
        """Stack two matrices vertically."""
        stacked = self.kernels.empty(len(above) + len(below), above.shape[1])
        stacked[: len(above)] = above
        stacked[len(above) :] = below
        return stacked

    def compute_hidden(
        self, first: int, count: int, stride: int, a_dot: Any = None, a: Any = None, xi: Any = None
    ) -> None:
        """Write a_dot, a^ and xi^ of a block of edges; rows of a_dot and of a^ are `stride` apart."""
        grid = (cover(count * (max(self.d, self.hidden) + 1), THREADS),)
        arguments: dict[str, Any] = {"network": self.argument, "first": first, "count": count, "stride": stride}
        arguments |= {"a_dot": a_dot, "a": a, "xi": xi}
        self.kernels.launch("gno_hidden", (self.params.dtype,), grid, (THREADS,), **arguments)

    def select(self, first: int, count: int, copies: int, s: Any) -> None:
        """Set s (count, copies * H) to zero where the hidden layer is inactive."""
        arguments = {"network": self.argument, "first": first, "count": count, "copies": copies, "s": s}
        self.kernels.launch(
            "gno_select", (self.params.dtype,), (cover(count * self.hidden, THREADS),), (THREADS,), **arguments
        )


# ---- gno_aggregate: sums of matrix-vector and of outer products ------------------------------------------------------


class _Axes(NamedTuple):
    """Axes of the matrices of kernel gno_contract: extents, strides, and lanes along them as exponents of two."""

    num_y: int
    num_x: int
    y_stride: int
    x_stride: int
    y_bits: int
    x_bits: int


def _to_destinations(call: Call, pairs: Sequence[tuple[Any, Any]], out: Any) -> None:
    """out_i = sum over the pairs (K, h) and over e into i of K_e h_src(e); a pair with None is skipped."""
    f_in, f_out = call.sizes["f_in"], call.sizes["f_out"]
    y_bits = min(bits(f_out), 5)
    axes = _Axes(f_out, f_in, 1, f_out, y_bits, min(bits(f_in), 7 - y_bits))
    _contract(call, pairs, sums.by_destination(call.graph), call.graph.indices, axes, out)


def _to_sources(call: Call, kernel: Any) -> None:
    """features_j = sum over e out of j of K_e^T g_dst(e), if requested; zero if the kernel is None."""
    if "features" not in call.fields:
        return
    graph, f_in, f_out = call.graph, call.sizes["f_in"], call.sizes["f_out"]
    x_bits = min(bits(f_out), 5)
    axes = _Axes(f_in, f_out, f_out, 1, min(bits(cover(f_in, 4)), 7 - x_bits), x_bits)
    others = graph.prepare().destinations
    _contract(call, [(kernel, call.grad)], sums.by_source(graph), others, axes, call.fields["features"])


def _contract(call: Call, pairs: Sequence[tuple[Any, Any]], rows: Rows, others: Any, axes: _Axes, out: Any) -> None:
    """Launch gno_contract; `others` is the row of the second factor at each position."""
    given = [pair for pair in pairs if pair[0] is not None and pair[1] is not None]
    if not given or rows.num_positions == 0:
        out.fill(0)
        return
    (kernel, values), (kernel_2, values_2) = [*given, (None, None)][:2]
    lane_bits = axes.y_bits + axes.x_bits
    e_bits = min(bits(USUAL_DEGREE), 7 - lane_bits)
    grid = (cover(rows.num_pieces, THREADS >> (lane_bits + e_bits)) * cover(axes.num_y, 4 << axes.y_bits),)
    sums.sum_positions(
        call.kernels,
        "gno_contract",
        (out.dtype, rows.offsets.dtype),
        grid,
        rows,
        out,
        kernel=kernel,
        values=values,
        kernel_2=kernel_2,
        values_2=values_2,
        order=rows.order,
        edge_ids=call.graph.edge_ids,
        others=others,
        axes=axes,
        e_bits=e_bits,
    )


def _to_kernel(call: Call, features: Any) -> None:
    """kernel_r = sum over the positions that share row r of g_dst h_src^T, if requested; zero without features."""
    graph, out = call.graph, call.fields["kernel"]
    if out is None:
        return
    if features is None or graph.num_positions == 0:
        out.fill(0)
        return
    rows, f_in, f_out = sums.by_row(graph), call.sizes["f_in"], call.sizes["f_out"]
    lane_bits = min(bits(cover(f_in * f_out, 4)), 7)
    grid = (cover(rows.num_pieces, THREADS >> lane_bits) * cover(f_in * f_out, 4 << lane_bits),)
    sums.sum_positions(
        call.kernels,
        "gno_outer",
        (out.dtype, graph.offsets.dtype),
        grid,
        rows,
        out,
        g=call.grad,
        h=features,
        row_positions=rows.order,
        destinations=graph.prepare().destinations,
        indices=graph.indices,
        f_in=f_in,
        f_out=f_out,
        lane_bits=lane_bits,
    )
    sums.clear_unused(graph, out)


# ---- gno_message: products of a piece's edges with its T and Q -------------------------------------------------------


class _Tile(NamedTuple):
    """Lanes of a small matrix product (see kernels/gno_tiles.cuh), as exponents of two."""

    row_bits: int
    col_bits: int

    @property
    def rows(self) -> int:
        return 4 << self.row_bits

    @property
    def cols(self) -> int:
        return 4 << self.col_bits

    @property
    def groups(self) -> int:
        """Number of products that a thread block computes concurrently."""
        return THREADS >> (self.row_bits + self.col_bits)


SMALL = _Tile(2, 1)


@dataclass(frozen=True)
class _Block:
    """A block of pieces of destinations."""

    net: _Network
    graph: Any
    pieces: Rows
    first: int
    count: int

    def moments(self, h_by_a: Any, h_by_a_dot: Any) -> Any:
        """sum_e a^ h_by_a + a_dot h_by_a_dot of each piece, (count, (H + 1) * f_in); None stands for zero."""
        net, f_in = self.net, self.net.f_in
        out = net.kernels.empty(self.count, (net.hidden + 1) * f_in)
        tile = _Tile(4, 3) if net.hidden > SMALL.rows or f_in > SMALL.cols else SMALL
        tiles = cover(net.hidden, tile.rows) * cover(f_in, tile.cols)
        factors = {"h_by_a": h_by_a, "h_by_a_dot": h_by_a_dot, "indices": self.graph.indices}
        self._launch("gno_moments", tile, tiles, **factors, moments=out)
        return out

    def to_source(self, q_by_a: Any, q_by_a_dot: Any, out: Any) -> None:
        """Write q_by_a a^ + q_by_a_dot a_dot of each edge to its position's row of `out`; None stands for zero."""
        net, tile = self.net, _Tile(2, 3) if self.net.f_in > SMALL.cols else SMALL
        factors = {"q_by_a": q_by_a, "q_by_a_dot": q_by_a_dot}
        self._launch("gno_to_source", tile, cover(net.f_in, tile.cols), **factors, to_source=out)

    def first_layer(
        self, pairs: Sequence[tuple[Any, Any]], weights: Any, xi: Any, add: bool, to_coords: Any, to_params: Any
    ) -> None:
        """With s = sum over the pairs of q h where active, write or add weights^T s and s xi^T to the outputs."""
        tile = _Tile(2, 4) if self.net.hidden > SMALL.cols else SMALL
        given = [pair for pair in pairs if pair[0] is not None and pair[1] is not None]
        (q_1, h_1), (q_2, h_2) = [*given, (None, None), (None, None)][:2]
        self._launch(
            "gno_first_layer",
            tile,
            1,
            q_1=q_1,
            h_1=h_1,
            q_2=q_2,
            h_2=h_2,
            weights=weights,
            xi=xi,
            indices=self.graph.indices,
            bias=not add,
            add=add,
            to_coords=to_coords,
            to_params=to_params,
        )

    def _launch(self, kernel: str, tile: _Tile, tiles: int, /, **arguments: Any) -> None:
        """Launch a kernel for these pieces; `arguments` are those that only this kernel has."""
        net = self.net
        arguments |= {"network": net.argument, "partition": self.pieces.partition, "edge_ids": self.graph.edge_ids}
        arguments |= {"first": self.first, "count": self.count, "f_in": net.f_in}
        types = (net.params.dtype, self.pieces.offsets.dtype, *tile)
        net.kernels.launch(kernel, types, (cover(self.count, tile.groups) * tiles,), (THREADS,), **arguments)
