"""Graph neural operator in the gpu backends: the same code runs on CuPy arrays (device) and NumPy arrays (gpu-host).

For each edge, z = U xi + b_u, a = z where not (z <= 0) else 0, kernel = V a + b_v; for each destination,
message_i = sum over e into i of K_e h_src(e). Packed parameters are the rows of a (d + 1, H) matrix, U^ = U | b_u, then
of an (H + 1, F) matrix, V^ = V | b_v, with F = (f_in, f_out), f_out fastest; their factors are xi^ = [xi, 1] and
a^ = [a, 1].

`gno_kernel` computes blocks of edges by matrix products and small kernels. `gno_message` never forms the kernel. It
sums the moments T of pieces (at most PART_SIZE in-edges of one destination, see sums.py)::

    T[k, f] = sum_e a^_e[k] h_src(e)[f]      message_i = sum over i's pieces of T V^

A block of threads computes 16 hidden units and 32 features of T for a few pieces in shared memory, multiplies them by
the matching part of V^, and continues with the next part. Neither T nor Q (below) is stored in global memory.

First and second derivatives share their code. Names ending in _dot denote derivatives along the cotangents gg_: h_dot,
xi_dot, and U_dot and V^_dot from gg_params. With a_dot = U xi_dot + U_dot xi + b_u_dot where z is active, and
Q = g V^^T, Q_dot = g V^_dot^T of each piece::

    T_dot[k, f] = sum_e a^ h_dot + a_dot h   grad_message = T_dot V^ + T V^_dot
    features = sum Q_dot a^ + Q a_dot        V^: T_dot^T g
    s_dot = Q_dot h + Q h_dot, s = Q h (where active)
    coords = U^T s_dot + U_dot^T s           U^: sum s_dot xi^^T + s xi_dot^T

First derivatives use h_dot = h and V^_dot = V^, and omit the products of Q, a_dot and s. There are three kernels:
`gno_message` computes the sums of T V^, `gno_grad_v` the sums of T^T g, and `gno_grad_edges` the terms with Q or Q_dot.
bwd2 launches these kernels once for each term and adds the results.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from trigraph.gpu import sums
from trigraph.gpu.call import OperatorCall
from trigraph.gpu.instances import TENSOR_SUFFIX
from trigraph.gpu.products import ColumnRange, multiply_chunks
from trigraph.gpu.rows import align
from trigraph.gpu.sums import ROWS, CsrRows, PairwiseSum, ceil_divide, ceil_log2
from trigraph.table.constants import THREADS

# In-degree for which the number of lanes is chosen. It is the same for all graphs, so that the sum of a node depends
# only on the node's edges.
USUAL_DEGREE = 16


# ---- gno_kernel ------------------------------------------------------------------------------------------------------


def gno_kernel_fwd(call: OperatorCall) -> None:
    """Compute kernel = V^ a^; see `trigraph.gno_kernel_fwd`."""
    net, kernel = _KernelNetwork(call), call.fields["kernel"]
    for first, count in sums.iterate_row_blocks(len(net.coords), (net.hidden + 1) * net.itemsize):
        a = net.kernels.empty(count, net.hidden + 1)
        net.compute_hidden_layer(first, count, a.shape[1], a=a)
        net.kernels.matmul(a, net.v_hat(net.params), out=kernel[first : first + count])


def gno_kernel_bwd(call: OperatorCall) -> None:
    """Compute the gradients of `gno_kernel_fwd`; see `trigraph.gno_kernel_bwd`.

    With s = V^T g where active, the gradients are coords = U^T s, U^ = sum s xi^^T and V^ = sum g a^^T.
    """
    net, grads, params = _KernelNetwork(call), call.fields, call.inputs.params
    grads.fill_zeros("params")  # set the field to zero, because sums over blocks are added to it
    per_edge = 2 * net.hidden + net.d + 2 + (net.hidden + 1) * net.width // ROWS
    with net.make_gradient_total(net.u_hat) as u_total, net.make_gradient_total(net.v_hat) as v_total:
        for first, count in sums.iterate_row_blocks(len(net.coords), per_edge * net.itemsize):
            g = call.grad[first : first + count]
            s = net.kernels.empty(count, net.hidden)
            net.kernels.matmul(g, net.v(params).T, out=s)
            net.zero_inactive_units(first, count, 1, s)
            if "coords" in grads:
                net.kernels.matmul(s, net.u(params).T, out=grads["coords"][first : first + count])
            if "params" in grads:
                a, xi = net.kernels.empty(count, net.hidden + 1), net.kernels.empty(count, net.d + 1)
                net.compute_hidden_layer(first, count, a.shape[1], a=a, xi=xi)
                u_total.add(multiply_chunks(net.kernels, xi, s))
                v_total.add(multiply_chunks(net.kernels, a, g))


def gno_kernel_bwd2(call: OperatorCall) -> None:
    """Compute second derivatives of `gno_kernel`; see `trigraph.gno_kernel_bwd2`.

    grad_kernel = [V, V_dot] [a_dot, a^]; coords = [U_dot, U]^T [s, s_dot]; U^ = s_dot xi^^T + s xi_dot^T; V = g a_dot^T
    """
    net, grads, params = _KernelNetwork(call), call.fields, call.inputs.params
    coords_dot, params_dot = net.coords_dot, net.params_dot
    grads.fill_zeros("params")  # set the field to zero, because sums over blocks are added to it
    hidden, second = net.hidden, params_dot is not None
    left = net.stack_rows(net.v(params), net.v_hat(params_dot)) if second else net.v(params)
    back = left[:-1] if second else left  # V_dot, without the row b_v_dot
    down = net.stack_rows(net.u(params_dot).T, net.u(params).T) if second else None
    if not second:
        grads.fill_zeros("coords")
    per_edge = 5 * hidden + net.d + 2 + hidden * net.width // ROWS
    with (
        net.make_gradient_total(net.u_hat) as u_hat_total,
        net.make_gradient_total(net.u) as u_total,
        net.make_gradient_total(net.v) as v_total,
    ):
        for first, count in sums.iterate_row_blocks(len(net.coords), per_edge * net.itemsize):
            rows = slice(first, first + count)
            g = call.grad[rows]
            both, xi = net.kernels.empty(count, len(left)), net.kernels.empty(count, net.d + 1)
            if grads.requests_any("grad_kernel", "params"):
                a = both.reshape(-1)[hidden:] if second else None
                net.compute_hidden_layer(first, count, both.shape[1], a_dot=both, a=a, xi=xi)
            if "grad_kernel" in grads:
                net.kernels.matmul(both, left, out=grads["grad_kernel"][rows])
            if "params" in grads:
                v_total.add(multiply_chunks(net.kernels, ColumnRange(both, 0, hidden), g))
            if grads.requests_any("coords", "params"):
                s = net.kernels.empty(count, len(back))
                net.kernels.matmul(g, back.T, out=s)
                net.zero_inactive_units(first, count, len(back) // hidden, s)
                if "coords" in grads and second:
                    net.kernels.matmul(s, down, out=grads["coords"][rows])
                if "params" in grads and second:
                    u_hat_total.add(multiply_chunks(net.kernels, xi, ColumnRange(s, hidden, hidden)))
                if "params" in grads and coords_dot is not None:
                    u_total.add(multiply_chunks(net.kernels, coords_dot[rows], ColumnRange(s, 0, hidden)))


# ---- gno_aggregate ---------------------------------------------------------------------------------------------------


def gno_aggregate_fwd(call: OperatorCall) -> None:
    """Compute message_i = sum over e into i of K_e h_src(e); see `trigraph.gno_aggregate_fwd`."""
    _sum_to_destinations(call, [(call.inputs.kernel, call.inputs.features)], call.fields["message"])


def gno_aggregate_bwd(call: OperatorCall) -> None:
    """Compute features_j = sum over e out of j of K_e^T g_dst(e) and kernel_e = sum g h^T."""
    _compute_feature_gradient(call, call.inputs.kernel)
    _compute_kernel_gradient(call, call.inputs.features)


def gno_aggregate_bwd2(call: OperatorCall) -> None:
    """Replace each factor of the bilinear sums by its cotangent in turn; see `trigraph.gno_aggregate_bwd2`."""
    inputs, dots = call.inputs, call.dots
    if "grad_message" in call.fields:
        pairs = [(inputs.kernel, dots.features), (dots.kernel, inputs.features)]
        _sum_to_destinations(call, pairs, call.fields["grad_message"])
    _compute_feature_gradient(call, dots.kernel)
    _compute_kernel_gradient(call, dots.features)


# ---- gno_message -----------------------------------------------------------------------------------------------------


def gno_message_fwd(call: OperatorCall) -> None:
    """Compute message_i = sum over i's pieces of T V^; see `trigraph.gno_message_fwd`."""
    message = _MessageLauncher(call)
    message.sum_moment_products([(message.features, None, message.net.params)], call.fields["message"])


def gno_message_bwd(call: OperatorCall) -> None:
    """Compute first derivatives by the module's formulas; see `trigraph.gno_message_bwd`."""
    _compute_message_derivatives(call, call.inputs.features, call.inputs.params)


def gno_message_bwd2(call: OperatorCall) -> None:
    """Compute second derivatives by the module's formulas; see `trigraph.gno_message_bwd2`."""
    _compute_message_derivatives(call, call.dots.features, call.dots.params)


def _compute_message_derivatives(call: OperatorCall, features_dot: Any, params_dot: Any) -> None:
    """Compute the module's formulas with h_dot = `features_dot` and V^_dot from `params_dot`; None means zero."""
    message, grads = _MessageLauncher(call), call.fields
    net = message.net
    h, h_dot, params_dot = message.features, align(features_dot), align(params_dot)
    has_a_dot = net.coords_dot is not None or net.params_dot is not None  # whether a_dot is nonzero
    if "grad_message" in grads:
        terms = [(h_dot, h if has_a_dot else None, net.params), (h, None, params_dot)]
        message.sum_moment_products(terms, grads["grad_message"])
    grads.fill_zeros("params")  # set the field to zero, because sums over blocks are added to it
    if not grads.requests_any("features", "coords", "params"):
        return
    if call.graph.num_positions == 0:
        grads.fill_zeros("features", "coords")
        return
    passes = [_GradEdgesArguments(params_dot, False, h, net.params, net.coords, True)]
    if call.second:
        passes.append(_GradEdgesArguments(net.params, True if has_a_dot else None, h_dot, net.params, net.coords, True))
    if has_a_dot:
        passes.append(_GradEdgesArguments(net.params, None, h, net.params_dot, net.coords_dot, False))
    message.compute_gradients(passes, (h_dot, h if has_a_dot else None))


class _GradEdgesArguments(NamedTuple):
    """Arguments of one launch of kernel gno_grad_edges; None means zero.

        Q uses V^ from `params`. If `dot` is True, Q a_dot is added to the gradient of the features; if False, Q a^.

    s = Q h contributes to the gradient of coords by U of `weights`, of U^ by `xi`, and of b_u if `bias` is True.
    """

    params: Any
    dot: bool | None
    h: Any
    weights: Any
    xi: Any
    bias: bool


class _MessageLauncher:
    """Sums over the pieces of destinations, by the kernels in kernels/gno_message.cuh."""

    def __init__(self, call: OperatorCall) -> None:
        self.call, self.graph, self.net = call, call.graph, _KernelNetwork(call)
        self.kernels, self.features = call.kernels, align(call.inputs.features)
        self.pieces = sums.group_by_destination(call.graph)
        self.slab_pieces = 64 // self.net.itemsize  # number of pieces that a block of threads processes
        self.tensor = call.kernels.select_tensor_variant("").endswith(TENSOR_SUFFIX)
        # Cached bfloat16 parts of arrays that do not change during the call, keyed by the address of the array and the
        # order of its tiles. The array is kept alive, so that no other array can get its address.
        self._parts: dict[Any, tuple[Any, Any]] = {}

    def sum_moment_products(self, terms: Sequence[tuple[Any, Any, Any]], out: Any) -> None:
        """Write out_i = sum of T V^ over i's pieces and over terms (h_by_a, h_by_a_dot, params); None means zero."""
        given = [t for t in terms if t[2] is not None and not (t[0] is None and t[1] is None)]
        if not given or self.graph.num_positions == 0:
            out.fill(0)
            return
        overflow = sums.allocate_long_row_parts(self.kernels, self.pieces, out)
        for number, (h_by_a, h_by_a_dot, params) in enumerate(given):
            arguments = {"h_by_a": h_by_a, "h_by_a_dot": h_by_a_dot, "v_hat": self.net.v_hat(params)}
            arguments |= {"add": number > 0, "out": out, "overflow": overflow}
            if self.tensor:
                arguments |= {
                    "v_parts": self._split_v_to_bfloat16(params, along_out=False)
                } | self._make_feature_parts_arguments(h_by_a, h_by_a_dot)
            self._launch("gno_message", ceil_divide(self.pieces.num_pieces, self.slab_pieces), **arguments)
        sums.sum_long_row_parts(self.kernels, self.pieces, overflow, out)

    def compute_gradients(self, passes: Sequence[_GradEdgesArguments], h_by: tuple[Any, Any]) -> None:
        """Write the requested gradients; the moments for V^ are sums of a^ h_by[0] + a_dot h_by[1]."""
        net, graph, grads, kernels, pieces = self.net, self.graph, self.call.fields, self.kernels, self.pieces
        g_pieces = sums.copy_rows_to_pieces(kernels, pieces, self.call.grad)
        to_source = kernels.empty(graph.num_positions, net.f_in) if "features" in grads else None
        to_coords, in_place = grads["coords"], graph.edges_in_order
        if to_coords is not None:
            sums.zero_unused_rows(graph, to_coords)
            to_coords = to_coords[: graph.num_positions] if in_place else kernels.empty(graph.num_positions, net.d)
        chunk = 16 * self.slab_pieces  # number of pieces in a chunk of gno_grad_v
        per_piece = (net.d + 1) * net.hidden + (net.hidden + 1) * net.width // chunk
        with net.make_gradient_total(net.u_hat) as u_total, net.make_gradient_total(net.v_hat) as v_total:
            for first, count in sums.iterate_row_blocks(pieces.num_pieces, per_piece * net.itemsize):
                arguments = {"g": g_pieces[first : first + count], "first": first, "count": count}
                if self.tensor:
                    arguments["g_parts"] = self._split_rows_to_bfloat16(g_pieces)[first : first + count]
                to_params = kernels.empty(count, net.d + 1, net.hidden) if "params" in grads else None
                written = self._launch_grad_edges(passes, arguments, to_source, to_coords, to_params)
                if to_params is not None:
                    if written:
                        u_total.add(to_params)
                    v_total.add(self._compute_grad_v(h_by, arguments, ceil_divide(count, chunk)))
        if to_source is not None:
            sums.sum_gathered_rows(kernels, to_source, sums.group_by_source(graph), grads["features"])
        if to_coords is not None and not in_place:
            sums.sum_gathered_rows(kernels, to_coords, sums.group_by_edge_row(graph), grads["coords"])

    def _launch_grad_edges(
        self,
        passes: Sequence[_GradEdgesArguments],
        block: dict[str, Any],
        to_source: Any,
        to_coords: Any,
        to_params: Any,
    ) -> bool:
        """Launch gno_grad_edges for a block of pieces; return whether `to_params` was written."""
        names = ("source", "coords", "params")
        added = dict.fromkeys(names, False)
        for params, dot, h, weights, xi, bias in passes:
            if params is None:
                continue
            targets = (
                to_source if dot is not None else None,
                to_coords if h is not None and weights is not None else None,
                to_params if h is not None and xi is not None else None,
            )
            if all(target is None for target in targets):
                continue
            arguments = block | {"v_hat": self.net.v_hat(params), "dot": bool(dot), "bias": bias, "xi": xi}
            arguments |= {"h": None if targets[1] is None and targets[2] is None else h, "weights": weights}
            if self.tensor:
                arguments |= {
                    "v_parts": self._split_v_to_bfloat16(params, along_out=True),
                    "h_parts": self._split_rows_to_bfloat16(arguments["h"]),
                }
            for name, target in zip(names, targets, strict=True):
                arguments |= {f"to_{name}": target, f"add_{name}": added[name]}
                added[name] |= target is not None
            self._launch("gno_grad_edges", ceil_divide(block["count"], self.slab_pieces), **arguments)
        for name, target in zip(names, (to_source, to_coords, to_params), strict=True):
            if target is not None and not added[name]:
                target.fill(0)
        return added["params"]

    def _compute_grad_v(self, h_by: tuple[Any, Any], block: dict[str, Any], chunks: int) -> Any:
        """Return T^T g for each chunk of pieces, with shape (chunks, H + 1, F)."""
        net = self.net
        out = self.kernels.empty(chunks, net.hidden + 1, net.width)
        tiles = ceil_divide(net.hidden + 1, 16) * ceil_divide(net.f_in, 32)
        arguments = {name: value for name, value in block.items() if name != "g_parts"}
        arguments |= {"h_by_a": h_by[0], "h_by_a_dot": h_by[1], "products": out}
        if self.tensor:
            arguments |= self._make_feature_parts_arguments(*h_by)
        self._launch("gno_grad_v", chunks * tiles, **arguments)
        return out

    def _make_feature_parts_arguments(self, h_by_a: Any, h_by_a_dot: Any) -> dict[str, Any]:
        """Return the arguments that are the bfloat16 parts of features."""
        return {
            "parts_by_a": self._split_rows_to_bfloat16(h_by_a),
            "parts_by_a_dot": self._split_rows_to_bfloat16(h_by_a_dot),
        }

    def _split_rows_to_bfloat16(self, values: Any) -> Any:
        """Return the bfloat16 parts of the rows of a matrix, for kernels for tensor cores; None for None."""
        if values is None:
            return None
        if id(values) not in self._parts:
            num_rows, width = values.shape
            groups = 8 * ceil_divide(width, 32)
            parts = self.kernels.xp.empty((num_rows, groups, 6), "int32")
            arguments = {"values": values, "num_rows": num_rows, "width": width, "parts": parts}
            self.kernels.launch_elementwise("gno_split_rows_tensor", (), num_rows * groups, **arguments)
            self._parts[id(values)] = values, parts
        return self._parts[id(values)][1]

    def _split_v_to_bfloat16(self, params: Any, along_out: bool) -> Any:
        """Return the bfloat16 parts of V^ in tiles, for products along f_out or along f_in."""
        net, key = self.net, (id(params), along_out)
        if key not in self._parts:
            f_out = net.width // net.f_in
            depth, cols = (f_out, net.f_in) if along_out else (net.f_in, f_out)
            tiles = (net.hidden + 1) * ceil_divide(depth, 16) * ceil_divide(cols, 16)
            parts = self.kernels.xp.empty((tiles, 3, 32, 4), "int32")
            arguments = {"v": net.v_hat(params), "num_k": net.hidden + 1, "depth": depth, "cols": cols}
            arguments |= {"depth_stride": 1 if along_out else f_out, "col_stride": f_out if along_out else 1}
            self.kernels.launch("gno_split_v_tensor", (), (tiles,), (THREADS,), parts=parts, **arguments)
            self._parts[key] = params, parts
        return self._parts[key][1]

    def _launch(self, kernel: str, blocks: int, /, **arguments: Any) -> None:
        """Launch a kernel with `arguments` and the arguments common to all three kernels."""
        arguments |= {"network": self.net.argument, "partition": self.pieces.partition}
        arguments |= {"indices": self.graph.indices, "edge_ids": self.graph.edge_ids}
        arguments |= {"f_in": self.net.f_in, "f_out": self.call.sizes["f_out"]}
        types = (self.net.params.dtype, self.pieces.offsets.dtype)
        kernel = self.kernels.select_tensor_variant(kernel)
        self.kernels.launch(kernel, types, (blocks,), (THREADS,), **arguments)


# ---- the kernel network ----------------------------------------------------------------------------------------------


class _NetworkArgument(NamedTuple):
    """The kernel argument ``network`` (``KernelNetwork`` in kernels/gno_network.cuh)."""

    coords: Any
    params: Any
    coords_dot: Any
    params_dot: Any
    d: int
    hidden: int


class _KernelNetwork:
    """Coordinates, packed parameters (rows of U^, then rows of V^), and in bwd2 their cotangents."""

    def __init__(self, call: OperatorCall) -> None:
        self.kernels, self.fields = call.kernels, call.fields
        self.coords, self.params = call.inputs.coords, align(call.inputs.params)
        self.coords_dot, self.params_dot = call.dots.coords, align(call.dots.params)
        self.d, self.hidden, self.f_in = (call.sizes[name] for name in ("d", "hidden", "f_in"))
        self.width = self.f_in * call.sizes["f_out"]
        self.itemsize = self.params.itemsize
        self.argument = _NetworkArgument(
            self.coords, self.params, self.coords_dot, self.params_dot, self.d, self.hidden
        )

    def u_hat(self, params: Any) -> Any:
        """Return the rows of U and the row b_u, with shape (d + 1, H)."""
        return params[: (self.d + 1) * self.hidden].reshape(self.d + 1, self.hidden)

    def v_hat(self, params: Any) -> Any:
        """Return the rows of V and the row b_v, with shape (H + 1, F)."""
        return params[(self.d + 1) * self.hidden :].reshape(self.hidden + 1, self.width)

    def u(self, params: Any) -> Any:
        """Return U without b_u, with shape (d, H)."""
        return self.u_hat(params)[:-1]

    def v(self, params: Any) -> Any:
        """Return V without b_v, with shape (H, F)."""
        return self.v_hat(params)[:-1]

    def make_gradient_total(self, select_part: Callable[[Any], Any], outer: int = 1) -> PairwiseSum:
        """Return the sum for a part of the gradient of the parameters, without a target if it is not requested."""
        return PairwiseSum(self.kernels, select_part(self.fields["params"]) if "params" in self.fields else None, outer)

    def stack_rows(self, above: Any, below: Any) -> Any:
        stacked = self.kernels.empty(len(above) + len(below), above.shape[1])
        stacked[: len(above)] = above
        stacked[len(above) :] = below
        return stacked

    def compute_hidden_layer(
        self, first: int, count: int, stride: int, a_dot: Any = None, a: Any = None, xi: Any = None
    ) -> None:
        """Write a_dot, a^ and xi^ of a block of edges; rows of a_dot and of a^ are `stride` elements apart."""
        size = count * (max(self.d, self.hidden) + 1)
        arguments: dict[str, Any] = {"network": self.argument, "first": first, "count": count, "stride": stride}
        arguments |= {"a_dot": a_dot, "a": a, "xi": xi}
        self.kernels.launch_elementwise("gno_hidden", (self.params.dtype,), size, **arguments)

    def zero_inactive_units(self, first: int, count: int, copies: int, s: Any) -> None:
        """Set s (count, copies * H) to zero where the hidden layer is inactive."""
        arguments = {"network": self.argument, "first": first, "count": count, "copies": copies, "s": s}
        self.kernels.launch_elementwise("gno_zero_inactive", (self.params.dtype,), count * self.hidden, **arguments)


# ---- gno_aggregate: sums of matrix-vector and of outer products ------------------------------------------------------


class _MatrixAxes(NamedTuple):
    """Matrix axes of kernel gno_contract: extents, strides, and numbers of lanes as exponents of two."""

    num_y: int
    num_x: int
    y_stride: int
    x_stride: int
    y_bits: int
    x_bits: int


def _sum_to_destinations(call: OperatorCall, pairs: Sequence[tuple[Any, Any]], out: Any) -> None:
    """Write out_i = sum over the pairs (K, h) and over e into i of K_e h_src(e); skip pairs with None."""
    f_in, f_out = call.sizes["f_in"], call.sizes["f_out"]
    y_bits = min(ceil_log2(f_out), 5)
    axes = _MatrixAxes(f_out, f_in, 1, f_out, y_bits, min(ceil_log2(f_in), 7 - y_bits))
    _sum_matrix_vector_products(call, pairs, sums.group_by_destination(call.graph), call.graph.indices, axes, out)


def _compute_feature_gradient(call: OperatorCall, kernel: Any) -> None:
    """Write features_j = sum over e out of j of K_e^T g_dst(e), if requested; zero if the kernel is None."""
    if "features" not in call.fields:
        return
    graph, f_in, f_out = call.graph, call.sizes["f_in"], call.sizes["f_out"]
    x_bits = min(ceil_log2(f_out), 5)
    axes = _MatrixAxes(f_in, f_out, f_out, 1, min(ceil_log2(ceil_divide(f_in, 4)), 7 - x_bits), x_bits)
    others = graph.prepare().destinations
    _sum_matrix_vector_products(
        call, [(kernel, call.grad)], sums.group_by_source(graph), others, axes, call.fields["features"]
    )


def _sum_matrix_vector_products(
    call: OperatorCall, pairs: Sequence[tuple[Any, Any]], rows: CsrRows, others: Any, axes: _MatrixAxes, out: Any
) -> None:
    """Launch gno_contract; `others` contains the row of the second factor for each position."""
    given = [pair for pair in pairs if pair[0] is not None and pair[1] is not None]
    if not given or rows.num_positions == 0:
        out.fill(0)
        return
    (kernel, values), (kernel_2, values_2) = [*given, (None, None)][:2]
    lane_bits = axes.y_bits + axes.x_bits
    e_bits = min(ceil_log2(USUAL_DEGREE), 7 - lane_bits)
    grid = (ceil_divide(rows.num_pieces, THREADS >> (lane_bits + e_bits)) * ceil_divide(axes.num_y, 4 << axes.y_bits),)
    sums.launch_position_sums(
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


def _compute_kernel_gradient(call: OperatorCall, features: Any) -> None:
    """Write kernel_r = sum over positions with edge row r of g_dst h_src^T, if requested; zero without features."""
    graph, out = call.graph, call.fields["kernel"]
    if out is None:
        return
    if features is None or graph.num_positions == 0:
        out.fill(0)
        return
    rows, f_in, f_out = sums.group_by_edge_row(graph), call.sizes["f_in"], call.sizes["f_out"]
    lane_bits = min(ceil_log2(ceil_divide(f_in * f_out, 4)), 7)
    grid = (ceil_divide(rows.num_pieces, THREADS >> lane_bits) * ceil_divide(f_in * f_out, 4 << lane_bits),)
    sums.launch_position_sums(
        call.kernels,
        "gno_sum_outer_products",
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
    sums.zero_unused_rows(graph, out)
