"""Weighted aggregation in the gpu backends: the same code runs on CuPy arrays (device) and NumPy arrays (gpu-host).

A message m_p = w_e x_j belongs to a position p (an in-edge of i from j, with edge row e). The messages of a destination
are summed or averaged, or the smallest or largest is selected for each feature. A group of lanes, at most a warp, sums
a piece (at most PART_SIZE positions of one row, see sums.py). Derivatives are summed by source and by edge row.

Let D be the node degree (1 for a sum) and eta_p = x_j - out_i for the mean by weight, otherwise eta_p = x_j. Then::

    embedding_j = sum_p w_p g_i / D_i                       edge_weight_e = sum_p g_i . eta_p / D_i

For second derivatives, _dot denotes derivatives along the cotangents gg_, and rho_i = D_dot_i / D_i for the mean by
weight, otherwise 0::

    out_dot_i = sum_p (w_p x_dot_j + w_dot_p eta_p) / D_i   embedding_j = sum_p (w_dot_p - w_p rho_i) g_i / D_i
    edge_weight_e = sum_p g_i . (x_dot_j - out_dot_i - rho_i eta_p) / D_i    (out_dot only for the mean by weight)

For min and max, only the selected position of each feature contributes.
"""

from typing import Any

from trigraph.gpu import sums
from trigraph.gpu.call import OperatorCall
from trigraph.gpu.launcher import Extents, Types
from trigraph.gpu.rows import ACCESS_BYTES, THREADS, LaneLayout, align, allows_wide_access
from trigraph.gpu.sums import CsrRows, ceil_divide
from trigraph.table.lazy import lazy


def agg_weighted_n2n_fwd(call: OperatorCall) -> None:
    """Write the sum, mean, min or max of w_e x_j; see `trigraph.agg_weighted_n2n_fwd`."""
    weighted, output = _AggregationLauncher(call), call.fields["output_embedding"]
    degree, location = call.fields["node_degree"], call.fields["output_extrema_location"]
    if degree is not None:
        weighted.compute_degrees(weighted.divides_by_weight, weighted.edge_weight, degree)
    if location is not None:
        weighted.select_extrema(output, location)
    else:
        weighted.sum_messages((weighted.edge_weight, weighted.embedding), (None, None), None, degree, output)


def agg_weighted_n2n_bwd(call: OperatorCall) -> None:
    """Compute first derivatives by the module's formulas; see `trigraph.agg_weighted_n2n_bwd`."""
    weighted, g, fields = _AggregationLauncher(call), align(call.grad), call.fields
    if call.graph.num_positions == 0:
        fields.fill_zeros()
        return
    if "embedding" in fields:
        weighted.compute_embedding_gradient(g, weighted.edge_weight, None, None, fields["embedding"])
    if "edge_weight" in fields:
        centre = weighted.message_mean if weighted.divides_by_weight else None
        weighted.compute_edge_weight_gradient(g, (weighted.embedding, centre), None, fields["edge_weight"])


def agg_weighted_n2n_bwd2(call: OperatorCall) -> None:
    """Compute second derivatives by the module's formulas; see `trigraph.agg_weighted_n2n_bwd2`."""
    weighted, fields, graph = _AggregationLauncher(call), call.fields, call.graph
    if graph.num_positions == 0:
        fields.fill_zeros()
        return
    g, x_dot, w_dot = align(call.grad), align(call.dots.embedding), call.dots.edge_weight
    degree_dot = None
    if weighted.divides_by_weight and w_dot is not None and fields.requests_any("embedding", "edge_weight"):
        degree_dot = call.kernels.empty(graph.num_dst_nodes)
        weighted.compute_degrees(True, w_dot, degree_dot)
    out_dot = fields["grad_output_embedding"]
    if out_dot is None and weighted.divides_by_weight and "edge_weight" in fields:
        out_dot = call.kernels.empty(graph.num_dst_nodes, weighted.width)
    if out_dot is not None:
        weighted.compute_output_tangent(x_dot, w_dot, out_dot)
    if w_dot is None:
        fields.fill_zeros("embedding")
    elif "embedding" in fields:
        weighted.compute_embedding_gradient(g, w_dot, weighted.edge_weight, degree_dot, fields["embedding"])
    if "edge_weight" in fields:
        centre = out_dot if weighted.divides_by_weight else None
        weighted.compute_edge_weight_gradient(g, (x_dot, centre), degree_dot, fields["edge_weight"])


class _AggregationLauncher:
    """Arguments of a call, and methods that launch its kernels. Missing forward outputs are computed when needed.

    Lazy attributes depend only on these arguments, which do not change, and exist only during the call.
    """

    def __init__(self, call: OperatorCall) -> None:
        self.kernels, self.graph, self.op = call.kernels, call.graph, call.values["op"]
        self.embedding, self.edge_weight = align(call.inputs.embedding), call.inputs.edge_weight
        self.width = call.sizes["dim"]
        # Whether messages are divided by the sum of the weights.
        self.divides_by_weight = (
            self.op == "mean" and call.values["mean_by"] == "weight" and self.edge_weight is not None
        )
        self.wide = allows_wide_access(self.width, self.embedding.dtype)  # whether rows are read 16 bytes at a time
        self.elements = ACCESS_BYTES // int(self.embedding.itemsize) if self.wide else 1
        self.lanes = LaneLayout.for_width(self.width, self.elements)
        self.given_output, self.given_degree, self.given_location = (
            call.values.get(name) for name in ("output_embedding", "node_degree", "output_extrema_location")
        )

    @lazy
    def positions_by_destination(self) -> CsrRows:
        """Positions grouped by destination."""
        return sums.group_by_destination(self.graph)

    @lazy
    def degree(self) -> Any:
        """Divisor of the sums; None means 1."""
        if self.op != "mean":
            return None
        if self.given_degree is not None:
            return self.given_degree
        degree = self.kernels.empty(self.graph.num_dst_nodes)
        self.compute_degrees(self.divides_by_weight, self.edge_weight, degree)
        return degree

    @lazy
    def message_mean(self) -> Any:
        """Mean of the messages."""
        if self.given_output is not None:
            return align(self.given_output)
        output = self.kernels.empty(self.graph.num_dst_nodes, self.width)
        self.sum_messages((self.edge_weight, self.embedding), (None, None), None, self.degree, output)
        return output

    @lazy
    def extrema_location(self) -> Any:
        """Positions of the smallest or largest messages; None for other operations."""
        if self.op not in ("min", "max"):
            return None
        if self.given_location is not None:
            return self.given_location
        shape = (self.graph.num_dst_nodes, self.width)
        location = self.kernels.xp.empty(shape, self.graph.offsets.dtype)
        self.select_extrema(self.kernels.empty(*shape), location)
        return location

    def compute_degrees(self, weighted: bool, weights: Any, out: Any) -> None:
        """Write the sum of the incoming weights, or the number of in-edges, of each destination."""
        rows, lanes = self.positions_by_destination, LaneLayout.for_width(1, 1)
        self._launch_position_sums(
            "weighted_degrees",
            (),
            lanes.grid(rows.num_pieces, 1, 1),
            rows,
            out.reshape(-1, 1),
            weights=weights if weighted else None,
            edge_ids=sums.edge_ids(self.graph),
            position_bits=lanes.position_bits,
        )

    def sum_messages(self, pair: tuple[Any, Any], pair_2: tuple[Any, Any], centre: Any, degree: Any, out: Any) -> None:
        """Launch weighted_sum. Each pair is (weights, values); a pair without values is skipped."""
        self._launch_position_sums(
            "weighted_sum",
            (self.wide, pair_2[1] is not None),
            self._grid(self.positions_by_destination),
            self.positions_by_destination,
            out,
            degree,
            weights=pair[0],
            values=pair[1],
            weights_2=pair_2[0],
            values_2=pair_2[1],
            centre=centre,
            degree=degree,
            indices=self.graph.indices,
            edge_ids=sums.edge_ids(self.graph),
            width=self.width,
            lanes=self.lanes,
        )

    def select_extrema(self, out: Any, location: Any) -> None:
        """Write the smallest or largest messages and their positions."""
        rows = self.positions_by_destination
        targets = {
            "out": out,
            "location": location,
            "overflow": sums.allocate_long_row_parts(self.kernels, rows, out),
            "overflow_location": sums.allocate_long_row_parts(self.kernels, rows, location),
            "width": self.width,
            "largest": self.op == "max",
        }
        self._launch(
            "weighted_extrema",
            (self.wide,),
            self._grid(rows),
            weights=self.edge_weight,
            values=self.embedding,
            partition=rows.partition,
            indices=self.graph.indices,
            edge_ids=sums.edge_ids(self.graph),
            lanes=self.lanes,
            **targets,
        )
        if rows.long is not None:
            grid, long_rows = rows.long_row_grid_and_arguments(self.width)
            self._launch("weighted_combine_extrema", (), grid, block=(32, 8), **long_rows, **targets)

    def compute_output_tangent(self, x_dot: Any, w_dot: Any, out: Any) -> None:
        """Write the derivative of the output along the cotangents."""
        pairs = (self.edge_weight, x_dot), (w_dot, None if w_dot is None else self.embedding)
        if x_dot is None and w_dot is None:
            out.fill(0)
        elif self.extrema_location is not None:
            self._launch(
                "weighted_values_at_extrema",
                (),
                (ceil_divide(out.size, THREADS),),
                weights=pairs[0][0],
                values=pairs[0][1],
                weights_2=pairs[1][0],
                values_2=pairs[1][1],
                location=self.extrema_location,
                indices=self.graph.indices,
                edge_ids=sums.edge_ids(self.graph),
                num_rows=len(out),
                width=self.width,
                out=out,
            )
        else:
            centre = self.message_mean if self.divides_by_weight and w_dot is not None else None
            self.sum_messages(*pairs, centre, self.degree, out)

    def compute_embedding_gradient(self, g: Any, weights: Any, weights_2: Any, degree_dot: Any, out: Any) -> None:
        """Launch weighted_source_gradient, which writes the gradient of the embedding."""
        rows = sums.group_by_source(self.graph)
        self._launch_position_sums(
            "weighted_source_gradient",
            (self.wide,),
            self._grid(rows),
            rows,
            out,
            g=g,
            weights=weights,
            weights_2=weights_2,
            degree=self.degree,
            degree_dot=degree_dot,
            location=self.extrema_location,
            src_positions=rows.order,
            destinations=self.graph.prepare().destinations,
            edge_ids=sums.edge_ids(self.graph),
            width=self.width,
            lanes=self.lanes,
        )

    def compute_edge_weight_gradient(self, g: Any, pair: tuple[Any, Any], degree_dot: Any, out: Any) -> None:
        """Write the sums of kernel weighted_dots over the positions of each row; `pair` is (values, centre).

        `values` or `centre` may be None. Dot products are grouped by destination, so that each gradient is loaded once.
        """
        graph, in_place = self.graph, self.graph.edges_in_order
        dots = out if in_place else self.kernels.empty(graph.num_positions, 1)
        self._launch(
            "weighted_dots",
            (self.wide, degree_dot is not None),
            (ceil_divide(self.positions_by_destination.num_pieces, self.lanes.groups_per_block),),
            g=g,
            values=pair[0],
            centre=pair[1],
            values_2=None if degree_dot is None else self.embedding,
            centre_2=None if degree_dot is None else self.message_mean,
            degree=self.degree,
            degree_dot=degree_dot,
            location=self.extrema_location,
            partition=self.positions_by_destination.partition,
            indices=graph.indices,
            width=self.width,
            lanes=self.lanes,
            dots=dots,
        )
        if in_place:
            sums.zero_unused_rows(graph, out)
        else:
            sums.sum_gathered_rows(self.kernels, dots, sums.group_by_edge_row(graph), out.reshape(-1, 1))

    def _make_template_types(self, options: Types) -> Types:
        return (self.embedding.dtype, self.graph.offsets.dtype, *options)

    def _grid(self, rows: CsrRows) -> tuple[int]:
        """Return the grid for all tiles of columns of all pieces."""
        return self.lanes.grid(rows.num_pieces, self.width, self.elements)

    def _launch_position_sums(
        self,
        kernel: str,
        options: Types,
        grid: Extents,
        rows: CsrRows,
        out: Any,
        divisor: Any = None,
        /,
        **arguments: Any,
    ) -> None:
        sums.launch_position_sums(
            self.kernels, kernel, self._make_template_types(options), grid, rows, out, divisor, **arguments
        )

    def _launch(
        self, kernel: str, options: Types, grid: Extents, /, *, block: Extents = (THREADS,), **arguments: Any
    ) -> None:
        self.kernels.launch(kernel, self._make_template_types(options), grid, block, **arguments)
