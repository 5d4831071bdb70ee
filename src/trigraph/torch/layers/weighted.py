"""Layer for weighted aggregation: a linear layer, then the sum, mean, minimum or maximum over the in-edges."""

from typing import Any

import torch

from trigraph.graphs import CSC
from trigraph.torch.functions import FUNCTIONS
from trigraph.torch.layers.arguments import (
    check_sizes,
    count_input_features,
    refuse_torchscript,
    require_channel_pair,
    widen_half_precision,
)
from trigraph.torch.layers.edges import check_and_find_graph, split_bipartite_features

AGGREGATIONS = ("sum", "mean", "min", "max")


class WeightedConv(torch.nn.Module):
    """Aggregate weighted messages from neighbours: ``out_i = aggr over j -> i of w_ji (W x_j) [+ R x_i] + b``.

    Parameters
    ----------
    in_channels : int or tuple of int
        Width of the node features, or a pair for sources and destinations.
    out_channels : int
    aggr : {"sum", "mean", "min", "max"}, optional
    mean_by : {"weight", "count"}, optional
        Divisor of the mean: the sum of the weights of the in-edges, or the number of in-edges.
    root_weight : bool, optional
        Add a linear function R of the destination's own features.
    bias : bool, optional

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    Notes
    -----
    The aggregation is `trigraph.torch.agg_weighted_n2n`; it is zero for a destination without in-edges.
    On the CPU, 16-bit floats are converted to float32, and the result is rounded once.

    Examples
    --------
    >>> import torch
    >>> from trigraph.torch.nn import WeightedConv
    >>> layer = WeightedConv(4, 2, "max")
    >>> edge_index = torch.tensor([[0, 1], [1, 2]])
    >>> layer(torch.ones(3, 4), edge_index, torch.tensor([0.5, 2.0])).shape
    torch.Size([3, 2])
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        aggr: str = "sum",
        mean_by: str = "weight",
        root_weight: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        for name, value, choices in (("aggr", aggr, AGGREGATIONS), ("mean_by", mean_by, ("weight", "count"))):
            if value not in choices:
                raise ValueError(f"WeightedConv: {name} is {value!r}; expected one of {', '.join(choices)}")
        sizes = require_channel_pair("WeightedConv", in_channels)
        check_sizes("WeightedConv", out_channels=out_channels)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.aggr, self.mean_by = aggr, mean_by
        self.lin = torch.nn.Linear(sizes[0], out_channels, bias=False)
        self.lin_root = torch.nn.Linear(sizes[1], out_channels, bias=False) if root_weight else None
        self.bias = torch.nn.Parameter(torch.zeros(out_channels)) if bias else None

    def reset_parameters(self) -> None:
        """Reinitialize all parameters."""
        for linear in (self.lin, self.lin_root):
            if linear is not None:
                linear.reset_parameters()
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    __prepare_scriptable__ = refuse_torchscript

    def extra_repr(self) -> str:
        """Return the sizes and the aggregation."""
        return f"{self.in_channels}, {self.out_channels}, aggr={self.aggr!r}"

    def forward(self, x: Any, edge_index: torch.Tensor | CSC, edge_weight: torch.Tensor | None = None) -> torch.Tensor:
        """Return new features of the destinations.

        Parameters
        ----------
        x : tensor or tuple of two tensors, shape (num_nodes, in_channels)
            Features of the nodes, or a pair for sources and destinations. The second may be None if `root_weight` is
            False and `edge_index` is a prepared graph.
        edge_index : tensor of int32 or int64, shape (2, num_edges), or CSC, or GraphTensors
            Sources and destinations, or a prepared graph. The layer builds and caches a graph like `GATConv`.
        edge_weight : tensor, shape (num_edges,), optional
            Weights of the edges (default: ones).

        Returns
        -------
        tensor, shape (num_dst_nodes, out_channels)

        Raises
        ------
        TypeError, ValueError, MemoryError
            As for `trigraph.torch.agg_weighted_n2n`, or if `edge_index` has a wrong shape, dtype, device or index.
        NotImplementedError
            In torch.jit.trace with an `edge_index` that is not a prepared graph.
        """
        src, dst = split_bipartite_features(x)
        if self.lin_root is not None and dst is None:
            raise ValueError("WeightedConv: x[1] is None and root_weight is True; expected features of destinations")
        graph = check_and_find_graph(
            "WeightedConv", edge_index, src, dst, count_input_features(self.lin), count_input_features(self.lin_root)
        )
        values = self.lin(src)
        dtype = values.dtype
        values, edge_weight = widen_half_precision(values, edge_weight)
        result = FUNCTIONS["agg_weighted_n2n"](values, edge_weight, graph, self.aggr, self.mean_by)
        out: torch.Tensor = result.output_embedding
        if self.lin_root is not None:
            out = out + self.lin_root(dst)
        if self.bias is not None:
            out = out + self.bias
        return out if values.dtype == dtype else out.to(dtype)
