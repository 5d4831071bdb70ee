"""Graph attention, production version: the same code for CuPy arrays on a device and NumPy arrays (gpu-host).

For every head and position p (an in-edge of i from j, e its row): raw = a_s.x_j + a_d.x_i + a_e.f_e, the sum of scores
that are computed once for each node and row; pre = act(raw); post = softmax of pre over the in-edges of i; out_i = sum
post x_j, heads side by side or averaged. A group of lanes, at most a warp, works on a piece (at most PART_SIZE
positions of one row, see sums.py); the softmax of a row that is cut is joined from its pieces' largest scores and sums.

With g the gradient in the output of a head, u = g_i.x_j, and bars for means over the in-edges (ubar = sum post u)::

    drawdot = act' post (u - ubar)         src_embedding_j = sum_p post g_i + a_s drawdot
    dst_embedding_i = a_d sum_p drawdot    weights a_s = sum_p drawdot x_j, and so on

The second order, dots being derivatives along the cotangents gg_, is the gradient of sum g outdot::

    postdot = post c, c = predot - predotbar            outdot_i = sum_p postdot x_j + post xdot_j
    v = c (u - ubar) + g_i.xdot_j                       draw = act' post (v - vbar) + act'' rawdot post (u - ubar)
    src_embedding_j = sum_p postdot g_i + a_s draw + adot_s drawdot       weights a_s = sum_p draw x_j + drawdot xdot_j

draw and drawdot are summed for each node and row before they meet embeddings or weights. The first order is what
remains of this with draw = drawdot, postdot = post and without the last terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from trigraph.gpu import sums
from trigraph.gpu.call import Call
from trigraph.gpu.launcher import Args, Extents, Types
from trigraph.gpu.rows import ACCESS, THREADS, Lanes, aligned, is_wide
from trigraph.gpu.sums import ROWS, Rows, Total, cover
from trigraph.table import ACTIVATIONS
from trigraph.table.lazy import lazy


def mha_gat_n2n_fwd(call: Call) -> None:
    """Write out_i = sum post x_j and the scores; see `trigraph.mha_gat_n2n_fwd`."""
    attention, scores = _Attention(call), call.fields["softmax_scores"]
    attention.softmax(scores)
    first = _Weighted(scores[1], 1, attention.graph.num_positions, attention.inputs.src_embedding)
    attention.aggregate(first, NOTHING, call.fields["output_embedding"])


def mha_gat_n2n_bwd(call: Call) -> None:
    """First order of the module's formulas; see `trigraph.mha_gat_n2n_bwd`."""
    if call.graph.num_positions == 0:
        call.fields.clear()
        return
    attention, g = _Attention(call), aligned(call.grad)
    attention.inputs_gradients(g, attention.coefficients(g))


def mha_gat_n2n_bwd2(call: Call) -> None:
    """Second order of the module's formulas; see `trigraph.mha_gat_n2n_bwd2`."""
    if call.graph.num_positions == 0:
        call.fields.clear()
        return
    attention, fields = _Attention(call), call.fields
    wants_inputs, g = fields.any_of(*_Inputs._fields), aligned(call.grad)
    coefficients = attention.coefficients(g if wants_inputs else None)
    if "grad_output_embedding" in fields:
        per = coefficients.shape[2]
        first = _Weighted(coefficients, attention.num_heads * per, per, attention.inputs.src_embedding)
        second = _Weighted(attention.post, 1, attention.graph.num_positions, attention.dots.src_embedding)
        attention.aggregate(first, second, fields["grad_output_embedding"])
    if wants_inputs:
        attention.inputs_gradients(g, coefficients)


class _Weighted(NamedTuple):
    """Rows of an embedding that a sum over in-edges takes, times a coefficient of every position and head."""

    coefficients: Any
    position_stride: int  # numbers from the coefficient of a position to the next one's
    head_stride: int
    embedding: Any  # by source; None: no such term


NOTHING = _Weighted(None, 0, 0, None)


class _Inputs(NamedTuple):
    """The inputs of graph attention, or their cotangents (any of which may be None)."""

    src_embedding: Any
    dst_embedding: Any
    edge_embedding: Any
    attention_weights: Any

    @classmethod
    def of(cls, arrays: Any) -> _Inputs:
        """Return arrays whose addresses allow for wide accesses."""
        return cls(*(aligned(getattr(arrays, name)) for name in cls._fields))


class _Attention:
    """The arguments of a call and the launches they need."""

    def __init__(self, call: Call) -> None:
        self.kernels, self.graph, self.fields, self.second = call.kernels, call.graph, call.fields, call.second
        self.inputs, self.dots = _Inputs.of(call.inputs), _Inputs.of(call.dots)
        self.num_heads, self.dim_head = call.sizes["num_heads"], call.sizes["dim_head"]
        self.concat_heads = call.values["concat_heads"]
        self.storage = self.inputs.src_embedding.dtype  # of embeddings
        self.dtype = self.inputs.attention_weights.dtype  # of scores, weights and sums
        self.activation = (
            ACTIVATIONS.index(call.values["activation"]),
            self.dtype.type(call.values["negative_slope"]),
        )
        self.wide = is_wide(self.dim_head, self.storage)  # whether rows are read 16 bytes at a time
        self.elements = ACCESS // self.storage.itemsize if self.wide else 1
        self.scores = call.values.get("softmax_scores")  # given back to the first order

    @lazy
    def rows(self) -> Rows:
        """Positions by destination."""
        return sums.by_destination(self.graph)

    def empty(self, *shape: int) -> Any:
        """Workspace."""
        return self.kernels.xp.empty(shape, self.dtype)

    # ---- scores by node and row

    @lazy
    def projections(self) -> tuple[Any, Any, Any]:
        """a.x of every source, destination and row of the edge arrays, (n, num_heads); None without edge features."""
        return self._project(self.inputs.attention_weights, self.inputs, None, (None, None, None))

    @lazy
    def projections_dot(self) -> tuple[Any, Any, Any]:
        """Their derivatives; None stands for zero."""
        if not self.second:
            return None, None, None
        return self._project(self.dots.attention_weights, self.inputs, self.inputs.attention_weights, self.dots[:3])

    def _part(self, weights: Any, k: int) -> Any:
        """Return the weights that meet the source (0), destination (1) or edge (2) embedding."""
        width = self.inputs.src_embedding.shape[1]
        return None if weights is None else weights[k * width : (k + 1) * width]

    def _kinds(self, array: Any, counts: Sequence[int]) -> tuple[Any, Any, Any]:
        """Return the rows of an array that belong to sources, destinations and edges; None without edge features."""
        src, dst, edge = np.cumsum(counts)
        return array[:src], array[src:dst], None if self.inputs.edge_embedding is None else array[dst:edge]

    def _project(self, weights: Any, inputs: _Inputs, weights_2: Any, inputs_2: Sequence[Any]) -> tuple[Any, Any, Any]:
        """See kernel gat_project: both pairs' sums, a pair without weights being zero."""
        counts = [0 if x is None else len(x) for x in self.inputs[:3]]
        out = self.empty(sum(counts), self.num_heads)
        lanes = Lanes.of(self.dim_head, self.elements, 0)
        sizes = (*map(np.int64, counts), self.num_heads, self.dim_head, lanes.column_bits)
        args = (weights, *inputs[:3], weights_2, *inputs_2, *sizes, out)
        grid = (cover(out.size, lanes.groups),)
        self.kernels.launch("gat_project", (self.storage, self.wide), grid, (THREADS,), args)
        return self._kinds(out, counts)

    # ---- softmax

    @lazy
    def post(self) -> Any:
        """The softmax, (num_heads, num_positions)."""
        if self.scores is None:
            self.scores = self.empty(2, self.num_heads, self.graph.num_positions)
            self.softmax(self.scores)
        return self.scores[1]

    def softmax(self, scores: Any) -> None:
        """Write pre and post of every position."""
        rows, heads, graph, lanes = self.rows, self.num_heads, self.graph, Lanes.of(1, 1)
        stats = None if rows.long is None else self.empty(graph.num_dst_nodes, 2 * heads)
        overflow = None if stats is None else sums.overflow_for(self.kernels, rows, stats)
        numbers = (np.int64(graph.num_positions), heads)
        index = (*rows.cut, graph.indices, sums.edge_ids(graph))
        options = (*self.activation, lanes.position_bits)
        args = (*self.projections, *index, *numbers, *options, scores, stats, overflow)
        self._launch("gat_scores", (), (cover(rows.num_pieces * heads, lanes.groups),), args)
        if rows.long is not None:
            grid, long_rows = rows.long_blocks(heads)
            self._launch("gat_join", (), grid, (overflow, *long_rows, heads, stats), (32, 8))
            grid = (cover(rows.num_parts * heads, lanes.groups),)
            self._launch("gat_rescale", (), grid, (stats, *rows.cut, *numbers, lanes.position_bits, scores))

    # ---- sums of embeddings

    def aggregate(self, first: _Weighted, second: _Weighted, out: Any) -> None:
        """out_i = sum over both and the in-edges of coefficient x_j."""
        rows, width = self.rows, out.shape[1]
        lanes, overflow = Lanes.of(width, self.elements), self._overflow(rows, width)
        terms = [
            value
            for w in (first, second)
            for value in (w.coefficients, w.position_stride, np.int64(w.head_stride), w.embedding)
        ]
        numbers = (self.num_heads, self.dim_head, lanes.column_bits, lanes.position_bits)
        args = (*terms, *rows.cut, self.graph.indices, *numbers, out, overflow)
        options, grid = (self.wide, second.embedding is not None, self.concat_heads), lanes.grid(rows.num_pieces, width)
        self._launch("gat_aggregate", options, grid, args, real=self.storage)
        self._finish(rows, overflow, out)

    def _overflow(self, rows: Rows, width: int) -> Any:
        """Workspace for the parts of long rows; None where there are none."""
        return None if rows.long is None else self.empty(rows.num_parts, width)

    def _finish(self, rows: Rows, overflow: Any, out: Any) -> None:
        """Add up the parts of the long rows."""
        if rows.long is not None:
            grid, long_rows = rows.long_blocks(out.shape[1])
            self._launch("gat_finish", (), grid, (overflow, *long_rows, out.shape[1], out), (32, 8), self.storage)

    # ---- derivatives

    def coefficients(self, g: Any) -> Any:
        """Of g, raw and, second order, raw's derivative at every position and head; only the first without g."""
        graph, heads, second = self.graph, self.num_heads, self.second
        reverse, (dots, dots_2) = graph.prepare(), self._dots(g)
        scores = (*self.projections, *self.projections_dot)
        means = self._means(dots, scores)
        second_mean = self._second_mean(dots, dots_2, means, scores) if second and g is not None else None
        out = self.empty(graph.num_positions, heads, 3 if second else 2)
        arrays = (self.post, dots, dots_2, means, second_mean, *scores)
        index = (reverse.destinations, graph.indices, sums.edge_ids(graph))
        args = (*arrays, *index, np.int64(graph.num_positions), heads, *self.activation, out)
        grid = (cover(graph.num_positions * heads, THREADS),)
        self._launch("gat_coefficients", (second,), grid, args)
        return out

    def _dots(self, g: Any) -> tuple[Any, Any]:
        """g.x_j and g.xdot_j of every position and head; None stands for zero."""
        if g is None:
            return None, None
        graph, x, x_dot = self.graph, self.inputs.src_embedding, self.dots.src_embedding
        shape = (graph.num_positions, self.num_heads)
        dots, dots_2 = self.empty(*shape), None if x_dot is None else self.empty(*shape)
        lanes = Lanes.of(self.dim_head, self.elements, 0)
        index = (graph.prepare().destinations, graph.indices, np.int64(dots.size))
        numbers = (self.num_heads, self.dim_head, self.concat_heads, lanes.column_bits)
        grid = (cover(dots.size, lanes.groups),)
        self._launch("gat_dots", (self.wide,), grid, (g, x, x_dot, *index, *numbers, dots, dots_2), real=self.storage)
        return dots, dots_2

    def _means(self, dots: Any, scores: tuple[Any, ...]) -> Any:
        """Means of the dots and, second order, of pre's derivative."""
        out = self.empty(self.graph.num_dst_nodes, (2 if self.second else 1) * self.num_heads)
        self._each_piece("gat_means", (self.second,), (self.post, dots, *scores), out)
        return out

    def _second_mean(self, dots: Any, dots_2: Any, means: Any, scores: tuple[Any, ...]) -> Any:
        """Mean of the cotangent of post."""
        out = self.empty(self.graph.num_dst_nodes, self.num_heads)
        self._each_piece("gat_second_mean", (), (self.post, dots, dots_2, means, *scores), out)
        return out

    def _each_piece(self, kernel: str, options: tuple[bool, ...], arrays: tuple[Any, ...], out: Any) -> None:
        """Launch a kernel that sums over the positions of every row and head."""
        graph, rows, lanes = self.graph, self.rows, Lanes.of(1, 1)
        numbers = (np.int64(graph.num_positions), self.num_heads, *self.activation)
        args = (*arrays, *rows.cut, graph.indices, sums.edge_ids(graph), *numbers, lanes.position_bits)
        types, grid = self._types(self.dtype, options), (cover(rows.num_pieces * self.num_heads, lanes.groups),)
        sums.sum_positions(self.kernels, kernel, types, grid, args, rows, out)

    def inputs_gradients(self, g: Any, coefficients: Any) -> None:
        """Fill in the gradients in embeddings and weights that are asked for."""
        fields, weights = self.fields, self.fields["attention_weights"]
        given = [k for k in range(3) if self.inputs[k] is not None]
        rows = [(sums.by_source, sums.by_destination, sums.by_row)[k](self.graph) for k in given]
        counts, totals = [of.num_rows for of in rows] + [0] * (3 - len(given)), (None, None, None)
        if weights is not None:
            sums_of = self.empty(sum(counts), (coefficients.shape[2] - 1) * self.num_heads)
            totals = self._kinds(sums_of, counts)
        for k in given:
            if fields.any_of(_Inputs._fields[k], "attention_weights"):
                self._to_rows(k, rows[k], None if k else g, coefficients, fields[_Inputs._fields[k]], totals[k])
        if weights is not None:
            self._to_weights(rows, counts, sums_of, weights)

    def _to_rows(self, k: int, rows: Rows, g: Any, coefficients: Any, out: Any, totals: Any) -> None:
        """Write the gradient in one embedding, and the sums of coefficients that the weights' gradient needs."""
        width, g = self.num_heads * self.dim_head, None if out is None else g
        overflow = None if out is None else self._overflow(rows, width)
        totals_overflow = None if totals is None else sums.overflow_for(self.kernels, rows, totals)
        lanes = Lanes.of(width, self.elements)
        weights = [self._part(given.attention_weights, k) for given in (self.inputs, self.dots)]
        index = (*rows.cut, rows.order, self.graph.prepare().destinations)
        numbers = (self.num_heads, self.dim_head, self.concat_heads, lanes.column_bits, lanes.position_bits)
        arrays = (coefficients, coefficients.shape[2], g, *weights, *index)
        args = (*arrays, *numbers, out, overflow, totals, totals_overflow)
        self._launch("gat_to_rows", (self.wide,), lanes.grid(rows.num_pieces, width), args, real=self.storage)
        if out is not None:
            self._finish(rows, overflow, out)
            if k == 2:
                sums.clear_unused(self.graph, out)
        if totals is not None:
            sums.finish(self.kernels, rows, totals_overflow, totals)

    def _to_weights(self, rows: Sequence[Rows], counts: Sequence[int], totals: Any, out: Any) -> None:
        """Write the gradient in the weights."""
        parts = self.empty(cover(max(counts), ROWS), out.size)
        offsets = [of.offsets for of in rows] + [None] * (3 - len(rows))
        sizes = (*map(np.int64, counts), len(rows), self.num_heads, self.dim_head)
        args = (totals, totals.shape[1] // self.num_heads, *self.inputs[:3], *self.dots[:3], *offsets, *sizes, parts)
        self._launch("gat_weights", (), (len(parts) * cover(out.size, 32),), args, (32, 8), self.storage)
        with Total(self.kernels, out, fresh=True) as total:
            total.add(parts)

    # ---- launches

    def _launch(
        self, kernel: str, options: Types, grid: Extents, args: Args, block: Extents = (THREADS,), real: Any = None
    ) -> None:
        """Launch a kernel instance for `real` (the scores' type by default) and the graph's index type."""
        self.kernels.launch(kernel, self._types(self.dtype if real is None else real, options), grid, block, args)

    def _types(self, real: Any, options: Types) -> Types:
        return (real, self.graph.offsets.dtype, *options)
