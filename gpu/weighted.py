"""Weighted aggregation, production version: the same code for CuPy arrays on a device and NumPy arrays (gpu-host).

Messages m_p = w_e x_j of every position p (an in-edge of i from j, e its row) are summed, averaged, or their smallest
or largest taken for every feature. A group of lanes, at most a warp, sums a piece (at most PART_SIZE positions of one
row, see sums.py); the derivatives gather by source and by row of the edge arrays.

With D the node degree (1 for a sum) and, for the mean by weight, c_p = x_j - out_i (otherwise c_p = x_j)::

    embedding_j = sum_p w_p g_i / D_i                       edge_weight_e = sum_p g_i . c_p / D_i

The second order, dots being derivatives along the cotangents gg_; r_i = Ddot_i / D_i for the mean by weight, else 0::

    outdot_i = sum_p (w_p xdot_j + wdot_p c_p) / D_i        embedding_j = sum_p (wdot_p - w_p r_i) g_i / D_i
    edge_weight_e = sum_p g_i . (xdot_j - outdot_i - r_i c_p) / D_i     (outdot only for the mean by weight)

For min and max all of these count only for the position that has won, feature by feature.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trigraph.gpu import sums
from trigraph.gpu.results import Fields, Like, Out, Wrt
from trigraph.gpu.rows import ACCESS, THREADS, Lanes, aligned, is_wide
from trigraph.gpu.sums import Kernels, Rows, cover
from trigraph.table.lazy import lazy

__all__ = ["agg_weighted_n2n_bwd", "agg_weighted_n2n_bwd2", "agg_weighted_n2n_fwd"]


def agg_weighted_n2n_fwd(
    embedding: Any, edge_weight: Any, graph: Any, op: str = "sum", mean_by: str = "weight", *, out: Out = None
) -> Any:
    """Return sum, mean, min or max of w_e x_src; see `trigraph.agg_weighted_n2n_fwd`."""
    call = _Call(aligned(embedding), edge_weight, graph, op, mean_by)
    output = Like((graph.num_dst_nodes, call.width), embedding.dtype)
    like = {
        "output_embedding": output,
        "node_degree": Like((graph.num_dst_nodes,), embedding.dtype) if op == "mean" else None,
        "output_extrema_location": Like(output.shape, graph.offsets.dtype) if op in ("min", "max") else None,
    }
    fields = Fields("agg_weighted_n2n_fwd", None, out, like, call.kernels)
    if op == "mean":
        call.degrees(call.by_weight, edge_weight, fields["node_degree"])
    if op in ("min", "max"):
        call.extrema(fields["output_embedding"], fields["output_extrema_location"])
    else:
        pair = edge_weight, call.embedding
        call.sum(pair, (None, None), None, fields["node_degree"], fields["output_embedding"])
    return fields.result()


def agg_weighted_n2n_bwd(
    grad_output_embedding: Any,
    embedding: Any,
    edge_weight: Any,
    graph: Any,
    op: str = "sum",
    mean_by: str = "weight",
    output_embedding: Any = None,
    node_degree: Any = None,
    output_extrema_location: Any = None,
    wrt: Wrt = None,
    *,
    out: Out = None,
) -> Any:
    """First order of the module's formulas; see `trigraph.agg_weighted_n2n_bwd`."""
    given = aligned(output_embedding), node_degree, output_extrema_location
    call = _Call(aligned(embedding), edge_weight, graph, op, mean_by, *given)
    like, g = {"embedding": embedding, "edge_weight": edge_weight}, aligned(grad_output_embedding)
    fields = Fields("agg_weighted_n2n_bwd", wrt, out, like, call.kernels)
    if graph.num_positions == 0:
        return fields.zeros()
    if fields.any_of("embedding"):
        call.to_sources(g, edge_weight, None, None, fields["embedding"])
    if fields.any_of("edge_weight"):
        centre = call.output if call.by_weight else None
        call.to_rows(g, (call.embedding, centre), None, fields["edge_weight"])
    return fields.result()


def agg_weighted_n2n_bwd2(
    gg_embedding: Any,
    gg_edge_weight: Any,
    grad_output_embedding: Any,
    embedding: Any,
    edge_weight: Any,
    graph: Any,
    op: str = "sum",
    mean_by: str = "weight",
    wrt: Wrt = None,
    *,
    out: Out = None,
) -> Any:
    """Second order of the module's formulas; see `trigraph.agg_weighted_n2n_bwd2`."""
    call = _Call(aligned(embedding), edge_weight, graph, op, mean_by)
    x_dot, g = aligned(gg_embedding), aligned(grad_output_embedding)
    like = {"grad_output_embedding": grad_output_embedding, "embedding": embedding, "edge_weight": edge_weight}
    fields = Fields("agg_weighted_n2n_bwd2", wrt, out, like, call.kernels)
    if graph.num_positions == 0:
        return fields.zeros()
    varied, by_weight = gg_edge_weight is not None, call.by_weight
    degree_dot = None
    if by_weight and varied and fields.any_of("embedding", "edge_weight"):
        degree_dot = call.empty(graph.num_dst_nodes)
        call.degrees(True, gg_edge_weight, degree_dot)
    out_dot = fields["grad_output_embedding"]
    if out_dot is None and by_weight and fields.any_of("edge_weight"):
        out_dot = call.empty(graph.num_dst_nodes, call.width)
    if out_dot is not None:
        call.output_dot(x_dot, gg_edge_weight, out_dot)
    if fields.any_of("embedding") and varied:
        call.to_sources(g, gg_edge_weight, edge_weight, degree_dot, fields["embedding"])
    elif fields.any_of("embedding"):
        fields["embedding"].fill(0)
    if fields.any_of("edge_weight"):
        centre = out_dot if by_weight else None
        call.to_rows(g, (x_dot, centre), degree_dot, fields["edge_weight"])
    return fields.result()


@dataclass
class _Call:
    """The arguments of a call and the launches they need; what a backward was not given is computed when needed."""

    embedding: Any
    edge_weight: Any
    graph: Any
    op: str
    mean_by: str
    given_output: Any = None
    given_degree: Any = None
    given_location: Any = None

    @lazy
    def kernels(self) -> Kernels:
        return Kernels("weighted", self.embedding)

    @property
    def width(self) -> int:
        return int(self.embedding.shape[1])

    @property
    def wide(self) -> bool:
        """Whether rows are read 16 bytes at a time."""
        return is_wide(self.width, self.embedding.dtype)

    @property
    def by_weight(self) -> bool:
        """Whether messages are divided by the sum of weights."""
        return self.op == "mean" and self.mean_by == "weight" and self.edge_weight is not None

    @lazy
    def rows(self) -> Rows:
        """Positions by destination."""
        return sums.by_destination(self.graph)

    @lazy
    def degree(self) -> Any:
        """What sums are divided by; None for 1."""
        if self.op != "mean":
            return None
        if self.given_degree is not None:
            return self.given_degree
        degree = self.empty(self.graph.num_dst_nodes)
        self.degrees(self.by_weight, self.edge_weight, degree)
        return degree

    @lazy
    def output(self) -> Any:
        """The mean."""
        if self.given_output is not None:
            return self.given_output
        output = self.empty(self.graph.num_dst_nodes, self.width)
        self.sum((self.edge_weight, self.embedding), (None, None), None, self.degree, output)
        return output

    @lazy
    def location(self) -> Any:
        """Where the smallest or largest message is; None for other operations."""
        if self.op not in ("min", "max"):
            return None
        if self.given_location is not None:
            return self.given_location
        shape = (self.graph.num_dst_nodes, self.width)
        location = self.kernels.xp.empty(shape, self.graph.offsets.dtype)
        self.extrema(self.empty(*shape), location)
        return location

    def empty(self, *shape: int) -> Any:
        """Workspace."""
        return self.kernels.xp.empty(shape, self.embedding.dtype)

    def degrees(self, weighted: bool, weights: Any, out: Any) -> None:
        """out_i = sum of the incoming weights, or the number of in-edges."""
        rows, column = self.rows, out.reshape(-1, 1)
        lanes, overflow = Lanes.of(1, 1), sums.overflow_for(self.kernels, rows, column)
        args = (weights if weighted else None, *rows.cut, sums.edge_ids(self.graph), lanes.position_bits, out, overflow)
        self._launch("weighted_degrees", (), lanes.grid(rows.num_pieces, 1), args)
        sums.finish(self.kernels, rows, overflow, column)

    def sum(self, pair: tuple[Any, Any], pair_2: tuple[Any, Any], centre: Any, degree: Any, out: Any) -> None:
        """See kernel weighted_sum; a pair is weights and values, without values it is left out."""
        rows, graph, lanes = self.rows, self.graph, self._lanes()
        overflow = sums.overflow_for(self.kernels, rows, out)
        arrays = (*pair, *pair_2, centre, degree, *rows.cut, graph.indices, sums.edge_ids(graph))
        args = (*arrays, self.width, lanes.column_bits, lanes.position_bits, out, overflow)
        self._launch("weighted_sum", (self.wide, pair_2[1] is not None), lanes.grid(rows.num_pieces, self.width), args)
        sums.finish(self.kernels, rows, overflow, out, degree)

    def extrema(self, out: Any, location: Any) -> None:
        """Write the smallest or largest messages and where they are."""
        rows, graph, largest, lanes = self.rows, self.graph, self.op == "max", self._lanes()
        overflow = sums.overflow_for(self.kernels, rows, out), sums.overflow_for(self.kernels, rows, location)
        index = (*rows.cut, graph.indices, sums.edge_ids(graph))
        numbers = (self.width, largest, lanes.column_bits, lanes.position_bits)
        args = (self.edge_weight, self.embedding, *index, *numbers, out, location, *overflow)
        self._launch("weighted_extrema", (self.wide,), lanes.grid(rows.num_pieces, self.width), args)
        if rows.long is not None:
            grid, long_rows = rows.long_blocks(self.width)
            joined = (*overflow, *long_rows, self.width, largest, out, location)
            self._launch("weighted_extrema_overflow", (), grid, joined, (32, 8))

    def output_dot(self, gg_embedding: Any, gg_edge_weight: Any, out: Any) -> None:
        """Write the output's derivative along the cotangents."""
        values_2 = None if gg_edge_weight is None else self.embedding
        pairs = (self.edge_weight, gg_embedding), (gg_edge_weight, values_2)
        if gg_embedding is None and values_2 is None:
            out.fill(0)
        elif self.location is not None:
            index = (self.location, self.graph.indices, sums.edge_ids(self.graph))
            args = (*pairs[0], *pairs[1], *index, np.int64(len(out)), self.width, out)
            self._launch("weighted_pick", (), (cover(out.size, THREADS),), args)
        else:
            centre = self.output if self.by_weight and values_2 is not None else None
            self.sum(*pairs, centre, self.degree, out)

    def to_sources(self, g: Any, weights: Any, weights_2: Any, degree_dot: Any, out: Any) -> None:
        """See kernel weighted_to_sources."""
        graph, rows = self.graph, sums.by_source(self.graph)
        lanes, overflow = self._lanes(), sums.overflow_for(self.kernels, rows, out)
        index = (*rows.cut, rows.order, graph.prepare().destinations, sums.edge_ids(graph))
        arrays = (g, weights, weights_2, self.degree, degree_dot, self.location, *index)
        args = (*arrays, self.width, lanes.column_bits, lanes.position_bits, out, overflow)
        self._launch("weighted_to_sources", (self.wide,), lanes.grid(rows.num_pieces, self.width), args)
        sums.finish(self.kernels, rows, overflow, out)

    def to_rows(self, g: Any, pair: tuple[Any, Any], degree_dot: Any, out: Any) -> None:
        """See kernel weighted_to_rows; the pair is values and centre, each may be None."""
        graph, rows, column = self.graph, sums.by_row(self.graph), out.reshape(-1, 1)
        pair_2 = (None, None) if degree_dot is None else (self.embedding, self.output)
        lanes, overflow = Lanes.of(self.width, self._elements(), 0), sums.overflow_for(self.kernels, rows, column)
        index = (*rows.cut, rows.order, graph.prepare().destinations, graph.indices)
        arrays = (g, *pair, *pair_2, self.degree, degree_dot, self.location, *index)
        args = (*arrays, self.width, lanes.column_bits, out, overflow)
        self._launch("weighted_to_rows", (self.wide,), (cover(rows.num_pieces, lanes.groups),), args)
        sums.finish(self.kernels, rows, overflow, column)
        sums.clear_unused(graph, out)

    def _elements(self) -> int:
        return ACCESS // int(self.embedding.itemsize) if self.wide else 1

    def _lanes(self) -> Lanes:
        return Lanes.of(self.width, self._elements())

    def _launch(
        self, kernel: str, options: tuple[bool, ...], grid: Any, args: Any, block: tuple[int, ...] = (THREADS,)
    ) -> None:
        types = (self.embedding.dtype, self.graph.offsets.dtype, *options)
        self.kernels.launch(kernel, types, grid, block, args)
