"""Graph attention layer with the parameters and results of PyTorch Geometric's GATConv."""

import math
import warnings
from typing import Any

import torch
from torch.nn.functional import dropout, leaky_relu

from trigraph.arrays import require_nonnegative_number
from trigraph.graphs import CSC
from trigraph.torch.functions import FUNCTIONS
from trigraph.torch.layers.arguments import (
    check_sizes,
    count_input_features,
    refuse_torchscript,
    require_channel_pair,
    widen_half_precision,
)
from trigraph.torch.layers.edges import (
    check_edge_index,
    check_features_match_graph,
    check_matrix_shape,
    check_node_features,
    check_node_indices,
    check_reduction,
    find_or_build_graph,
    is_sparse_matrix,
    list_edge_ends,
    list_matrix_edges,
    make_sparse_matrix,
    replace_self_loops,
    split_bipartite_features,
    unwrap_graph_tensors,
)


def _init_glorot(weight: torch.Tensor) -> None:
    """Initialize a weight by Glorot's uniform rule, where the last two sizes are fan-in and fan-out."""
    bound = math.sqrt(6 / (weight.shape[-2] + weight.shape[-1]))
    torch.nn.init.uniform_(weight, -bound, bound)


class _Linear(torch.nn.Linear):
    def reset_parameters(self) -> None:
        _init_glorot(self.weight)


class _LazyLinear(torch.nn.LazyLinear):
    cls_to_become = _Linear  # type: ignore[assignment]

    def reset_parameters(self) -> None:
        if self.in_features and not self.has_uninitialized_params():  # type: ignore[no-untyped-call]
            _init_glorot(self.weight)


def _make_linear(in_channels: int, out_channels: int) -> torch.nn.Linear:
    """Return a linear layer without bias; if `in_channels` is -1, the first call sets it."""
    if in_channels != -1:
        return _Linear(in_channels, out_channels, bias=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Lazy modules are a new feature")
        return _LazyLinear(out_channels, bias=False)


class GATConv(torch.nn.Module):
    """Graph attention with the parameters, state_dict and results of ``torch_geometric.nn.GATConv``.

    A single operator, `trigraph.torch.mha_gat_n2n`, computes scores, softmax and sum without storing an array of shape
    (edges, channels). For attention dropout in training, and for returned attention weights, which are differentiable,
    the layer uses torch's own operators, as PyTorch Geometric does.

    Parameters
    ----------
    in_channels : int or tuple of int
        Width of the node features. With a pair, sources and destinations have separate linear layers. The first call
        determines widths given as -1.
    out_channels : int
        Width of each head.
    heads : int, optional
    concat : bool, optional
        Concatenate the heads (True) or average them.
    negative_slope : float, optional
        Negative slope of the leaky ReLU, at least 0.
    dropout : float, optional
        Probability of dropping an attention coefficient in training.
    add_self_loops : bool, optional
        Replace all self-loops by one per node, like :func:`add_self_loops`. In a bipartite graph, the number of loops
        is the smaller of the two numbers of nodes.
    edge_dim : int, optional
        Width of the edge features (default: edge features are ignored).
    fill_value : float, tensor, str or None, optional
        Edge features of the self-loops, as in :func:`add_self_loops`.
    bias : bool, optional
    residual : bool, optional
        Add a linear function of the destination's features.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    Notes
    -----
    PyTorch Geometric's message-passing keywords (``aggr``, ``flow``) and torch_sparse matrices are not supported.

    On the CPU, 16-bit floats are converted to float32 between the linear layers, and the result is rounded once.

    Source: Velickovic et al. (2018), arXiv:1710.10903.

    Examples
    --------
    >>> import torch
    >>> from trigraph.torch.nn import GATConv
    >>> layer = GATConv(4, 2, heads=3)
    >>> layer(torch.ones(3, 4), torch.tensor([[0, 1], [1, 2]])).shape
    torch.Size([3, 6])
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        edge_dim: int | None = None,
        fill_value: float | torch.Tensor | str | None = "mean",
        bias: bool = True,
        residual: bool = False,
    ) -> None:
        super().__init__()
        sizes = require_channel_pair("GATConv", in_channels, -1)
        if 0 in sizes:
            raise ValueError(f"GATConv: in_channels is {in_channels}; expected at least 1, or -1")
        check_sizes("GATConv", out_channels=out_channels, heads=heads)
        if edge_dim is not None and edge_dim != -1:
            check_sizes("GATConv", edge_dim=edge_dim)
        require_nonnegative_number("GATConv", "negative_slope", negative_slope)
        if require_nonnegative_number("GATConv", "dropout", dropout) > 1:
            raise ValueError(f"GATConv: dropout is {dropout}; expected a probability")
        if isinstance(fill_value, str):
            check_reduction("GATConv", fill_value)
        self.in_channels, self.out_channels, self.heads, self.concat = in_channels, out_channels, heads, concat
        self.negative_slope, self.dropout = negative_slope, dropout
        self.add_self_loops, self.edge_dim, self.fill_value = add_self_loops, edge_dim, fill_value
        self.residual = residual
        width, total = heads * out_channels, out_channels * (heads if concat else 1)
        shared = not isinstance(in_channels, (tuple, list))
        self.lin = _make_linear(sizes[0], width) if shared else None
        self.lin_src = None if shared else _make_linear(sizes[0], width)
        self.lin_dst = None if shared else _make_linear(sizes[1], width)
        self.att_src, self.att_dst = (torch.nn.Parameter(torch.empty(1, heads, out_channels)) for _ in range(2))
        self.lin_edge = None if edge_dim is None else _make_linear(edge_dim, width)
        self.att_edge = None if edge_dim is None else torch.nn.Parameter(torch.empty(1, heads, out_channels))
        self.res = _make_linear(sizes[1], total) if residual else None
        self.bias = torch.nn.Parameter(torch.empty(total)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialize all parameters."""
        for linear in (self.lin, self.lin_src, self.lin_dst, self.lin_edge, self.res):
            if linear is not None:
                linear.reset_parameters()
        for attention in (self.att_src, self.att_dst, self.att_edge):
            if attention is not None:
                _init_glorot(attention)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}, heads={self.heads})"

    __prepare_scriptable__ = refuse_torchscript

    @property
    def _node_linears(self) -> tuple[Any, Any]:
        return (self.lin_src, self.lin_dst) if self.lin is None else (self.lin, self.lin)

    def _embed_nodes(self, src: Any, dst: Any) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Return source embeddings, destination embeddings and the residual, with None for absent ones."""
        of_src, of_dst = self._node_linears
        x_src = of_src(src)
        if dst is None:
            return x_src, None, None
        x_dst = x_src if src is dst and of_src is of_dst else of_dst(dst)
        return x_src, x_dst, None if self.res is None else self.res(dst)

    def _check_and_count_nodes(self, src: Any, dst: Any, edge_index: Any, size: Any) -> tuple[int, int]:
        """Check features and edges, and return the numbers of sources and destinations."""
        check_node_features("GATConv", src, dst, *map(count_input_features, self._node_linears))
        prepared = isinstance(edge_index, CSC)
        if prepared:
            sizes = (edge_index.num_src_nodes, edge_index.num_dst_nodes)
        else:
            sizes = (len(src), len(src if dst is None else dst))
        if size is not None:
            if len(size) != 2 or not all(isinstance(n, int) for n in size):
                raise TypeError(f"GATConv: size is {size}; expected two ints, the numbers of sources and destinations")
            if dst is None and not prepared:
                sizes = (sizes[0], size[1])
            if tuple(size) != sizes:
                raise ValueError(f"GATConv: size is {tuple(size)}; expected (num_src_nodes, num_dst_nodes) = {sizes}")
        if prepared:
            check_features_match_graph("GATConv", src, dst, edge_index)
        else:
            check_edge_index("GATConv", edge_index, src)
        return sizes

    def _make_edge_feature_matrix(self, edge_attr: Any, edge_index: torch.Tensor | CSC) -> torch.Tensor | None:
        """Return the edge features as a matrix with a row for each edge, or None if they are not used."""
        if edge_attr is None:
            return None
        if isinstance(edge_attr, torch.Tensor) and (
            edge_attr.dim() == 1 or (self.lin_edge is None and edge_attr.dim() > 2)
        ):
            edge_attr = edge_attr[:, None].flatten(1)
        rows = edge_index.num_edges if isinstance(edge_index, CSC) else edge_index.shape[1]
        check_matrix_shape(
            "GATConv", "edge_attr", edge_attr, count_input_features(self.lin_edge), "num_edges, edge_dim", rows
        )
        return None if self.lin_edge is None else edge_attr

    def forward(
        self,
        x: Any,
        edge_index: torch.Tensor | CSC,
        edge_attr: torch.Tensor | None = None,
        size: tuple[int, int] | None = None,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """Return new features of the destinations.

        Parameters
        ----------
        x : tensor or tuple of two tensors, shape (num_nodes, in_channels)
            Features of the nodes, or a pair for sources and destinations; the second may be None.
        edge_index : tensor of int32 or int64, shape (2, num_edges), or sparse tensor, or CSC, or GraphTensors
            Sources and destinations. The layer builds a graph and caches it by tensor object. Each call compares all
            values with a copy, which takes one pass over the values and synchronizes CUDA devices. A prepared graph (a
            CSC) requires ``add_self_loops=False``; row e of `edge_attr` belongs to edge e of the graph. Programs
            compiled with ``fullgraph=True`` require a prepared graph, and ``torch.export`` requires GraphTensors. A
            sparse adjacency matrix (COO, CSR or CSC) has destinations as rows and sources as columns. If its values
            are vectors, they are the edge features unless `edge_attr` is given. Edges are in the order of the values
            (COO: after ``coalesce()``).
        edge_attr : tensor, shape (num_edges, edge_dim) or (num_edges,), optional
            Edge features, ignored if the layer has no `edge_dim`.
        size : tuple of int, optional
            Numbers of sources and destinations.
        return_attention_weights : bool, optional
            Also return the attention weights.

        Returns
        -------
        tensor, shape (num_dst_nodes, heads*out_channels) or (num_dst_nodes, out_channels)
            With attention weights, a tuple (this tensor, (edges, weights)). The edges, shape (2, num_edges), include
            self-loops; the weights have shape (num_edges, heads). For a prepared graph, both are in the order of
            positions. For a sparse matrix, the pair is replaced by a sparse matrix of the weights in the same layout,
            shape (num_dst_nodes, num_src_nodes, heads).

        Raises
        ------
        TypeError, ValueError, MemoryError
            As for `trigraph.torch.mha_gat_n2n`, or if `edge_index` has a wrong shape, dtype, device or index.
        NotImplementedError
            In torch.jit.trace with an `edge_index` that is not a prepared graph.
        RuntimeError
            During the capture of a CUDA graph, with an `edge_index` that is not a prepared graph.
        """
        layout, edge_index = None, unwrap_graph_tensors("GATConv", edge_index)
        if is_sparse_matrix(edge_index):
            layout, expected = edge_index.layout, (edge_index.shape[1], edge_index.shape[0])  # type: ignore[union-attr]
            if size is not None and tuple(size) != expected:
                raise ValueError(f"GATConv: size is {tuple(size)}; expected {expected}, as in the matrix edge_index")
            edge_index, values = list_matrix_edges("GATConv", edge_index)  # type: ignore[arg-type]
            size, edge_attr = expected, values if edge_attr is None and values.dim() > 1 else edge_attr
        src, dst = split_bipartite_features(x)
        num_src, num_dst = self._check_and_count_nodes(src, dst, edge_index, size)
        edge_attr = self._make_edge_feature_matrix(edge_attr, edge_index)
        uses_torch_operators = return_attention_weights or (self.training and self.dropout > 0)
        graph: Any = edge_index
        if isinstance(edge_index, CSC):
            if self.add_self_loops:
                raise ValueError(
                    "GATConv: edge_index is a CSC and add_self_loops is True; expected add_self_loops=False, and a "
                    "graph built from the edges that trigraph.torch.nn.add_self_loops returns"
                )
        elif uses_torch_operators:
            check_node_indices("GATConv", edge_index, num_src, num_dst)
        else:  # adding self-loops breaks the graph of compiled programs, so add them before any computation
            graph = find_or_build_graph("GATConv", edge_index, num_src, num_dst, self.add_self_loops)
        if self.add_self_loops and (uses_torch_operators or edge_attr is not None):
            edge_index, edge_attr = replace_self_loops(edge_index, edge_attr, min(num_src, num_dst), self.fill_value)  # type: ignore[arg-type]
        x_src, x_dst, residual = self._embed_nodes(src, dst)
        edges = None if edge_attr is None or self.lin_edge is None else self.lin_edge(edge_attr)
        dtype, weights = x_src.dtype, [self.att_src, self.att_dst, None if edges is None else self.att_edge]
        x_src, x_dst, residual, edges, *weights = widen_half_precision(x_src, x_dst, residual, edges, *weights)
        attention = None
        if uses_torch_operators:
            ends = list_edge_ends(edge_index) if isinstance(edge_index, CSC) else (*edge_index, None)
            out, attention = self._compute_with_torch_operators(x_src, x_dst, edges, ends, num_dst)  # type: ignore[arg-type]
            edge_index = torch.stack(ends[:2])  # type: ignore[arg-type]
        else:
            if x_dst is None:
                x_dst = x_src.new_zeros(num_dst, x_src.shape[1])
            out = FUNCTIONS["mha_gat_n2n"](
                x_src,
                x_dst,
                torch.cat([w.flatten() for w in weights if w is not None]),
                graph,
                self.heads,
                self.concat,
                negative_slope=self.negative_slope,
                edge_embedding=edges,
            ).output_embedding
        for term in (residual, self.bias):
            out = out if term is None else out + term
        if x_src.dtype != dtype:
            out, attention = out.to(dtype), None if attention is None else attention.to(dtype)
        if not return_attention_weights:
            return out
        if layout is not None:
            edge_index = make_sparse_matrix(edge_index, attention, num_src, num_dst, layout)  # type: ignore[arg-type]
            attention = edge_index.values()
        return out, (edge_index, attention)

    def _compute_with_torch_operators(
        self,
        x_src: torch.Tensor,
        x_dst: torch.Tensor | None,
        edges: torch.Tensor | None,
        ends: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None],
        num_dst: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute output and attention coefficients with torch's own operators, including dropout in training."""
        heads = (self.heads, self.out_channels)
        (src, dst, rows), values = ends, x_src.view(-1, *heads)
        score = (values * self.att_src).sum(-1)[src]
        if x_dst is not None:
            score = score + (x_dst.view(-1, *heads) * self.att_dst).sum(-1)[dst]
        if edges is not None and self.att_edge is not None:
            edge_score = (edges.view(-1, *heads) * self.att_edge).sum(-1)
            score = score + (edge_score if rows is None else edge_score[rows])
        score = leaky_relu(score, self.negative_slope)
        each = dst.long()[:, None].expand_as(score)
        max_score = score.new_zeros(num_dst, self.heads).scatter_reduce(
            0, each, score.detach(), "amax", include_self=False
        )
        # Under autocast, dtypes may change between operations, so the buffer of each sum has the dtype of the terms.
        powers = (score - max_score[dst]).exp()
        attention = powers / powers.new_zeros(num_dst, self.heads).index_add(0, dst, powers)[dst]
        attention = dropout(attention, self.dropout, self.training)
        messages = values[src] * attention[:, :, None]
        out = messages.new_zeros(num_dst, *heads).index_add(0, dst, messages)
        return out.flatten(1) if self.concat else out.mean(1), attention
