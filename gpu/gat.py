"""Graph attention in the gpu backends: the same code runs on CuPy arrays (device) and NumPy arrays (gpu-host).

For every head and position p (an in-edge of i from j, with edge row e): score = a_s.x_j + a_d.x_i + a_e.f_e, where each
term is computed once per node or row; logit = act(score); alpha = softmax of logit over the in-edges of i; out_i = sum
alpha x_j, with heads concatenated or averaged. A group of lanes, at most a warp, processes a piece (at most PART_SIZE
positions of one row, see sums.py). For a long row, the largest logits and the sums of its pieces are combined.

Let g be the gradient with respect to the output of a head, u = g_i.x_j, <u> = sum alpha u (the mean over the in-edges)
and delta = u - <u>. Then, as in docs/maths.md::

    grad_score = act' alpha delta             src_embedding_j = sum_p alpha g_i + a_s grad_score
    dst_embedding_i = a_d sum_p grad_score    weights a_s = sum_p grad_score x_j, and so on

Second derivatives are the gradient of sum g out_dot, where _dot denotes derivatives along the cotangents gg_::

    gamma = logit_dot - <logit_dot>           alpha_dot = alpha gamma
    out_dot_i = sum_p alpha_dot x_j + alpha x_dot_j
    t = gamma delta + g_i.x_dot_j             grad_score_dot = act' alpha delta
    grad_score = act' alpha (t - <t>) + act'' score_dot alpha delta
    src_embedding_j = sum_p alpha_dot g_i + a_s grad_score + a_dot_s grad_score_dot
    weights a_s = sum_p grad_score x_j + grad_score_dot x_dot_j

grad_score and grad_score_dot are summed for each node and row before they are multiplied by embeddings or weights.
First derivatives use the same formulas with alpha instead of alpha_dot, and without grad_score_dot.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from trigraph.gpu import sums
from trigraph.gpu.call import OperatorCall
from trigraph.gpu.launcher import Extents, Types
from trigraph.gpu.rows import ACCESS_BYTES, THREADS, HeadLaneLayout, LaneLayout, align, allows_wide_access
from trigraph.gpu.sums import ROWS, CsrRows, ceil_divide
from trigraph.table import ACTIVATIONS
from trigraph.table.constants import ALL_STEPS, FIRST_STEP, LAST_STEP, OUTPUT_STEP, SECOND_STEP, STATISTICS_STEP
from trigraph.table.lazy import lazy


def mha_gat_n2n_fwd(call: OperatorCall) -> None:
    """Write out_i = sum alpha x_j and, if requested, the scores; see `trigraph.mha_gat_n2n_fwd`."""
    _AttentionLauncher(call).compute_output_and_stats(call.fields["output_embedding"], call.fields["softmax_scores"])


def mha_gat_n2n_bwd(call: OperatorCall) -> None:
    """Compute first derivatives by the module's formulas; see `trigraph.mha_gat_n2n_bwd`."""
    if call.graph.num_positions == 0:
        call.fields.fill_zeros()
        return
    attention, g = _AttentionLauncher(call), align(call.grad)
    attention.compute_input_gradients(g, attention.compute_backward_records(g))


def mha_gat_n2n_bwd2(call: OperatorCall) -> None:
    """Compute second derivatives by the module's formulas; see `trigraph.mha_gat_n2n_bwd2`."""
    if call.graph.num_positions == 0:
        call.fields.fill_zeros()
        return
    attention, fields = _AttentionLauncher(call), call.fields
    wants_inputs, g = fields.requests_any(*_AttentionInputs._fields), align(call.grad)
    records = attention.compute_backward_records(g if wants_inputs else None)
    if "grad_output_embedding" in fields:
        attention.compute_output_tangent(records, fields["grad_output_embedding"])
    if wants_inputs:
        attention.compute_input_gradients(g, records)


class _AttentionInputs(NamedTuple):
    """Inputs of graph attention, or their cotangents, any of which may be None."""

    src_embedding: Any
    dst_embedding: Any
    edge_embedding: Any
    attention_weights: Any

    @classmethod
    def align(cls, arrays: Any) -> "_AttentionInputs":
        """Return the arrays, replacing misaligned arrays by copies."""
        return cls(*(align(getattr(arrays, name)) for name in cls._fields))


class _SrcDstEdgeValues(NamedTuple):
    """Values for sources, destinations and edges (``SrcDstEdgeValues`` in kernels/gat.cu)."""

    src: Any
    dst: Any
    edge: Any


class _Scores(NamedTuple):
    """Scores of nodes and of rows of the edge arrays (``Scores`` in kernels/gat_heads.cuh); None means zero."""

    src: Any
    dst: Any
    edge: Any
    indices: Any
    edge_ids: Any
    num_heads: int


class _Activation(NamedTuple):
    """Activation of the scores (``Activation`` in kernels/gat_activations.cuh)."""

    kind: int
    negative_slope: Any


class _Softmax(NamedTuple):
    """Saved values of alpha, or statistics of every row (``SoftmaxArrays`` in kernels/gat_backward.cuh)."""

    alpha: Any
    stats: Any
    num_positions: int


class _EmbeddingGradientTarget(NamedTuple):
    """Weights and outputs for the gradient of an embedding's rows (``EmbeddingGradientTarget`` in gat_backward.cuh)."""

    a: Any
    a_dot: Any
    out: Any
    overflow: Any
    sums: Any
    sums_overflow: Any


class _AttentionLauncher:
    """Arguments of a call, and methods that launch its kernels.

    Lazy attributes depend only on these arguments, which do not change, and exist only during the call.
    """

    def __init__(self, call: OperatorCall) -> None:
        self.kernels, self.graph, self.fields, self.second = call.kernels, call.graph, call.fields, call.second
        self.inputs, self.dots = _AttentionInputs.align(call.inputs), _AttentionInputs.align(call.dots)
        self.num_heads, self.dim_head = call.sizes["num_heads"], call.sizes["dim_head"]
        self.concat_heads = call.values["concat_heads"]
        self.storage = self.inputs.src_embedding.dtype  # dtype of embeddings
        self.dtype = self.inputs.attention_weights.dtype  # dtype of scores, weights and sums
        slope = self.dtype.type(call.values["negative_slope"])
        self.activation = _Activation(ACTIVATIONS.index(call.values["activation"]), slope)
        self.wide = allows_wide_access(self.dim_head, self.storage)  # whether rows are read 16 bytes at a time
        self.elements = ACCESS_BYTES // self.storage.itemsize if self.wide else 1
        self.given_scores = call.values.get("softmax_scores")  # softmax scores that fwd saved for bwd

    @lazy
    def positions_by_destination(self) -> CsrRows:
        return sums.group_by_destination(self.graph)

    def empty(self, *shape: int) -> Any:
        return self.kernels.xp.empty(shape, self.dtype)

    # ---- scores by node and row

    @lazy
    def projections(self) -> tuple[Any, Any, Any]:
        """Products a.x of shape (n, num_heads) for sources, destinations and edge rows (None without edge features)."""
        return self._project_embeddings(self.inputs.attention_weights, self.inputs, None, (None, None, None))

    @lazy
    def projections_dot(self) -> tuple[Any, Any, Any]:
        """Derivatives of `projections`; None means zero."""
        if not self.second:
            return None, None, None
        return self._project_embeddings(
            self.dots.attention_weights, self.inputs, self.inputs.attention_weights, self.dots[:3]
        )

    def _select_weights_and_cotangent(self, k: int) -> list[Any]:
        """Return the weights of the source (k = 0), destination (1) or edge (2) embedding, and their cotangent."""
        first = k * self.num_heads * self.dim_head
        weights_and_cotangent = self.inputs.attention_weights, self.dots.attention_weights
        return [None if weights is None else weights[first:] for weights in weights_and_cotangent]

    def _split_rows_by_embedding(self, array: Any, counts: Sequence[int]) -> tuple[Any, Any, Any]:
        """Split an array into the rows of sources, destinations and edges (None without edge features)."""
        src, dst, edge = np.cumsum(counts)
        return array[:src], array[src:dst], None if self.inputs.edge_embedding is None else array[dst:edge]

    def _project_embeddings(
        self, weights: Any, inputs: _AttentionInputs, weights_2: Any, inputs_2: Sequence[Any]
    ) -> tuple[Any, Any, Any]:
        """Launch gat_project: weights . inputs + weights_2 . inputs_2, where a term without weights is zero."""
        counts = [0 if x is None else len(x) for x in self.inputs[:3]]
        out = self.empty(sum(counts), self.num_heads)
        lanes = LaneLayout.for_width(self.dim_head, self.elements, 0)
        self.kernels.launch(
            "gat_project",
            (self.storage, self.wide),
            (ceil_divide(out.size, lanes.groups_per_block),),
            (THREADS,),
            a=weights,
            a_2=weights_2,
            x=_SrcDstEdgeValues(*inputs[:3]),
            x_2=_SrcDstEdgeValues(*inputs_2),
            num_rows=_SrcDstEdgeValues(*counts),
            num_heads=self.num_heads,
            dim_head=self.dim_head,
            column_bits=lanes.column_bits,
            out=out,
        )
        return self._split_rows_by_embedding(out, counts)

    def make_scores_argument(self, projections: tuple[Any, Any, Any]) -> _Scores:
        return _Scores(*projections, self.graph.indices, sums.edge_ids(self.graph), self.num_heads)

    # ---- softmax

    @lazy
    def softmax_argument(self) -> _Softmax:
        count = self.graph.num_positions
        if self.given_scores is None:
            return _Softmax(None, self.compute_output_and_stats(), count)
        return _Softmax(self.given_scores[1], None, count)

    def compute_output_and_stats(self, out: Any = None, scores: Any = None) -> Any:
        """Write sums of alpha x_j to `out`, and logit and alpha of every position to `scores`, unless these are None.

        Returns the largest logit and the sum of exponentials of each row, or None if `out` is given and no row is long.
        """
        graph, heads, rows = self.graph, self.num_heads, self.positions_by_destination
        stats = None if rows.long is None and out is not None else self.empty(graph.num_dst_nodes, 2 * heads)
        stats_overflow = None if rows.long is None else sums.allocate_long_row_parts(self.kernels, rows, stats)
        overflow = None if out is None else self._allocate_long_row_parts(rows, out.shape[1])
        lanes = HeadLaneLayout.for_heads(heads, self.dim_head, self.elements)
        arguments = {
            "x": self.inputs.src_embedding,
            "dim_head": self.dim_head,
            "scores": self.make_scores_argument(self.projections),
            "act": self.activation,
            "partition": rows.partition,
            "lanes": lanes,
            "num_positions": graph.num_positions,
            "stats": stats,
            "stats_overflow": stats_overflow,
            "softmax_scores": scores,
            "out": out,
            "overflow": overflow,
        }
        tiles = ceil_divide(heads, 1 << lanes.head_bits) if self.concat_heads else 1
        chunks = 1 if out is None else ceil_divide(self.dim_head, self.elements << lanes.column_bits)

        def launch_forward_steps(steps: int, begin: int, end: int) -> None:
            grid, options = (
                (ceil_divide(end - begin, lanes.groups_per_block) * tiles * chunks,),
                (self.wide, self.concat_heads),
            )
            arguments.update(steps=steps, begin=begin, end=end)
            self._launch("gat_forward", options, grid, real=self.storage, **arguments)

        launch_forward_steps(STATISTICS_STEP if out is None else STATISTICS_STEP | OUTPUT_STEP, 0, rows.num_rows)
        if rows.long is not None:
            launch_forward_steps(STATISTICS_STEP, rows.num_rows, rows.num_pieces)
            grid, long_rows = rows.long_row_grid_and_arguments(heads)
            parts = {"overflow": stats_overflow, "num_heads": heads, "stats": stats}
            self._launch("combine_softmax_stats", (), grid, block=(32, 8), **long_rows, **parts)
        if rows.long is not None and out is not None:
            launch_forward_steps(OUTPUT_STEP, rows.num_rows, rows.num_pieces)
            self._reduce_long_rows(rows, overflow, out)
        return stats

    # ---- derivatives

    def compute_output_tangent(self, records: Any, out: Any) -> None:
        """Write out_dot_i = sum alpha_dot x_j + alpha x_dot_j, computed from the result of `records`."""
        rows, width = self.positions_by_destination, out.shape[1]
        lanes, overflow = LaneLayout.for_width(width, self.elements), self._allocate_long_row_parts(rows, width)
        self._launch(
            "gat_output_tangent",
            (self.wide, self.concat_heads),
            lanes.grid(rows.num_pieces, width, self.elements),
            real=self.storage,
            records=records,
            x=self.inputs.src_embedding,
            x_dot=self.dots.src_embedding,
            partition=rows.partition,
            indices=self.graph.indices,
            num_heads=self.num_heads,
            dim_head=self.dim_head,
            lanes=lanes,
            out=out,
            overflow=overflow,
        )
        self._reduce_long_rows(rows, overflow, out)

    def _allocate_long_row_parts(self, rows: CsrRows, width: int) -> Any:
        """Return workspace for the parts of long rows, or None if there are none."""
        return None if rows.long is None else self.empty(rows.num_parts, width)

    def _reduce_long_rows(self, rows: CsrRows, overflow: Any, out: Any) -> None:
        if rows.long is not None:
            grid, long_rows = rows.long_row_grid_and_arguments(out.shape[1])
            parts = {"overflow": overflow, "width": out.shape[1], "out": out}
            self._launch("reduce_long_rows", (), grid, block=(32, 8), real=self.storage, **long_rows, **parts)

    def compute_backward_records(self, g: Any) -> Any:
        """Return the records of kernel gat_backward, of shape (P, H, 2), or (P, H, 4) in bwd2; g may be None.

        If requested, also write the sums of the records of each destination and the gradient of its embedding.
        """
        graph, heads, rows, orders = self.graph, self.num_heads, self.positions_by_destination, 2 if self.second else 1
        records = self.empty(graph.num_positions, heads, 2 * orders)
        out, totals = (None, None) if g is None else (self.fields["dst_embedding"], self.score_cotangent_sums[1])
        means = parts_of_means = None
        if rows.long is not None:
            means = self.empty(graph.num_dst_nodes, (3 if self.second else 1) * heads)
            parts_of_means = sums.allocate_long_row_parts(self.kernels, rows, means)
        target = self._make_gradient_target(1, rows, out, totals)
        lanes = HeadLaneLayout.for_heads(heads, self.dim_head, self.elements)
        arguments = {
            "g": g,
            "x": self.inputs.src_embedding,
            "x_dot": self.dots.src_embedding,
            "dim_head": self.dim_head,
            "concat_heads": self.concat_heads,
            "softmax": self.softmax_argument,
            "scores": self.make_scores_argument(self.projections),
            "scores_dot": self.make_scores_argument(self.projections_dot),
            "act": self.activation,
            "partition": rows.partition,
            "lanes": lanes,
            "records": records,
            "means": means,
            "parts_of_means": parts_of_means,
            "target": target,
        }

        def launch_backward_steps(steps: int, pieces: int) -> None:
            grid = (ceil_divide(pieces, lanes.groups_per_block) * ceil_divide(heads, 1 << lanes.head_bits),)
            self._launch("gat_backward", (self.wide, self.second), grid, real=self.storage, steps=steps, **arguments)

        launch_backward_steps(ALL_STEPS, rows.num_rows)
        for step in (FIRST_STEP, SECOND_STEP, LAST_STEP) if rows.long is not None else ():
            if step != SECOND_STEP or self.second:
                launch_backward_steps(step, rows.num_parts)
                if step != LAST_STEP:
                    sums.sum_long_row_parts(self.kernels, rows, parts_of_means, means)
        self._sum_long_row_parts(rows, target)
        return records

    @lazy
    def positions_by_embedding(self) -> list[CsrRows]:
        """Positions grouped by source, by destination and, if there are edge features, by edge row."""
        kinds = (sums.group_by_source, sums.group_by_destination, sums.group_by_edge_row)
        return [
            group_positions(self.graph)
            for group_positions, array in zip(kinds, self.inputs[:3], strict=True)
            if array is not None
        ]

    @property
    def _num_rows_by_embedding(self) -> list[int]:
        return ([positions.num_rows for positions in self.positions_by_embedding] + [0])[:3]

    @lazy
    def score_cotangent_sums(self) -> tuple[Any, Any, Any, Any]:
        """Sums of the cotangents of scores by source, destination and edge row, if required for weights."""
        if "attention_weights" not in self.fields:
            return None, None, None, None
        all_sums = self.empty(sum(self._num_rows_by_embedding), (2 if self.second else 1) * self.num_heads)
        return (*self._split_rows_by_embedding(all_sums, self._num_rows_by_embedding), all_sums)

    def compute_input_gradients(self, g: Any, records: Any) -> None:
        """Compute the requested gradients of embeddings and weights, except for the destination embedding."""
        for k in (0, 2):
            name = _AttentionInputs._fields[k]
            if self.inputs[k] is not None and self.fields.requests_any(name, "attention_weights"):
                self._sum_embedding_gradient(k, g if k == 0 else None, records, self.fields[name])
        if "attention_weights" in self.fields:
            self._sum_weight_gradient(self.fields["attention_weights"])

    def _sum_embedding_gradient(self, k: int, g: Any, records: Any, out: Any) -> None:
        """Write the gradient of one embedding, and the sums of records for the gradient of the weights."""
        width, rows, g = self.num_heads * self.dim_head, self.positions_by_embedding[k], None if out is None else g
        lanes, target = (
            LaneLayout.for_width(width, self.elements),
            self._make_gradient_target(k, rows, out, self.score_cotangent_sums[k]),
        )
        self._launch(
            "gat_embedding_gradient",
            (self.wide, self.second),
            lanes.grid(rows.num_pieces, width, self.elements),
            real=self.storage,
            records=records,
            g=g,
            partition=rows.partition,
            order=rows.order,
            destinations=self.graph.prepare().destinations,
            num_heads=self.num_heads,
            dim_head=self.dim_head,
            concat_heads=self.concat_heads,
            lanes=lanes,
            target=target,
        )
        self._sum_long_row_parts(rows, target)
        if k == 2 and out is not None:
            sums.zero_unused_rows(self.graph, out)

    def _make_gradient_target(self, k: int, rows: CsrRows, out: Any, totals: Any) -> _EmbeddingGradientTarget:
        """Return the arrays for the gradient of embedding k, for sums of records, and for parts of long rows."""
        overflow = None if out is None else self._allocate_long_row_parts(rows, self.num_heads * self.dim_head)
        sums_overflow = None if totals is None else sums.allocate_long_row_parts(self.kernels, rows, totals)
        a, a_dot = self._select_weights_and_cotangent(k)
        return _EmbeddingGradientTarget(a, a_dot, out, overflow, totals, sums_overflow)

    def _sum_long_row_parts(self, rows: CsrRows, target: _EmbeddingGradientTarget) -> None:
        if target.out is not None:
            self._reduce_long_rows(rows, target.overflow, target.out)
        if target.sums is not None:
            sums.sum_long_row_parts(self.kernels, rows, target.sums_overflow, target.sums)

    def _sum_weight_gradient(self, out: Any) -> None:
        counts, rows, orders = self._num_rows_by_embedding, self.positions_by_embedding, 2 if self.second else 1
        parts = self.empty(ceil_divide(max(counts), ROWS), out.size)
        self._launch(
            "gat_weight_gradient_parts",
            (),
            (len(parts) * ceil_divide(out.size, 32),),
            block=(32, 8),
            real=self.storage,
            sums=self.score_cotangent_sums[3],
            per=orders,
            x=_SrcDstEdgeValues(*self.inputs[:3]),
            x_dot=_SrcDstEdgeValues(*self.dots[:3]),
            offsets=_SrcDstEdgeValues(*([positions.offsets for positions in rows] + [None])[:3]),
            num_rows=_SrcDstEdgeValues(*counts),
            num_kinds=len(rows),
            num_heads=self.num_heads,
            dim_head=self.dim_head,
            parts=parts,
        )
        sums.sum_rows(self.kernels, parts, out, fresh=True)

    # ---- launches

    def _launch(
        self,
        kernel: str,
        options: Types,
        grid: Extents,
        /,
        *,
        block: Extents = (THREADS,),
        real: Any = None,
        **arguments: Any,
    ) -> None:
        """Launch the kernel instance for `real` (default: the dtype of scores) and the index dtype of the graph."""
        types = (self.dtype if real is None else real, self.graph.offsets.dtype, *options)
        self.kernels.launch(kernel, types, grid, block, **arguments)
