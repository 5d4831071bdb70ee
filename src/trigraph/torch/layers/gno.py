"""Graph neural operator layer, with parameters packed as in athena."""

import math
from collections.abc import Callable
from typing import Any

import torch

from trigraph.graphs import CSC
from trigraph.torch.functions import FUNCTIONS
from trigraph.torch.layers.arguments import check_sizes, refuse_torchscript, require_channel_pair, widen_half_precision
from trigraph.torch.layers.edges import check_and_find_graph, check_matrix_shape, split_bipartite_features


class GNOLayer(torch.nn.Module):
    """Integrate a learned kernel over neighbours: ``out_i = activation(W h_i + sum_j kappa(dx_ij) h_j + b)``.

    The kernel ``kappa(dx) = V relu(U dx + b_u) + b_v`` is an (out_channels, in_channels) matrix for each edge;
    `trigraph.torch.gno_message` never stores it.

    Parameters
    ----------
    in_channels : int or tuple of int
        Width of the node features, or a pair for sources and destinations.
    out_channels : int
    coord_dim : int
        Width of `coords`.
    hidden : int, optional
        Hidden width of the kernel (default: `out_channels`).
    activation : callable, optional
        Function of a tensor, such as a module (default: identity).
    bias : bool, optional

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    Attributes
    ----------
    params : Parameter, shape (hidden*(coord_dim + 1 + F) + F,)
        U | b_u | V | b_v, each block column-major, with F = in_channels*out_channels; see `trigraph.pack_gno_params`
        and `trigraph.unpack_gno_params`.
    weight : Parameter, shape (out_channels, in_channels)
    bias : Parameter, shape (out_channels,), or None

    Notes
    -----
    On the CPU, 16-bit floats are converted to float32, and the result is rounded once.

    Source: the graph neural operator layer of athena; Li et al. (2020), arXiv:2003.03485.

    Examples
    --------
    >>> import torch
    >>> from trigraph.torch.nn import GNOLayer
    >>> layer = GNOLayer(4, 2, coord_dim=3, hidden=8, activation=torch.nn.ReLU())
    >>> layer(torch.ones(3, 4), torch.tensor([[0, 1], [1, 2]]), torch.ones(2, 3)).shape
    torch.Size([3, 2])
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        coord_dim: int,
        hidden: int | None = None,
        activation: Callable[[torch.Tensor], torch.Tensor] | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        sizes = require_channel_pair("GNOLayer", in_channels)
        check_sizes("GNOLayer", out_channels=out_channels, coord_dim=coord_dim)
        if hidden is not None:
            check_sizes("GNOLayer", hidden=hidden)
        if not (activation is None or callable(activation)):
            raise TypeError(f"GNOLayer: activation is a {type(activation).__name__}; expected a callable or None")
        self.in_channels, self.out_channels, self.coord_dim = in_channels, out_channels, coord_dim
        self.hidden, self.activation = out_channels if hidden is None else hidden, activation
        F = sizes[0] * out_channels
        self.params = torch.nn.Parameter(torch.empty(self.hidden * (coord_dim + 1 + F) + F))
        self.weight = torch.nn.Parameter(torch.empty(out_channels, sizes[1]))
        self.bias = torch.nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialize all parameters uniformly, with the bounds of torch.nn.Linear."""
        first = self.hidden * (self.coord_dim + 1)
        f_in = self.sizes[0]
        with torch.no_grad():
            self.params[:first].uniform_(-1, 1).mul_(1 / math.sqrt(self.coord_dim))
            self.params[first:].uniform_(-1, 1).mul_(1 / math.sqrt(self.hidden * f_in))
            self.weight.uniform_(-1, 1).mul_(1 / math.sqrt(self.weight.shape[1]))
            if self.bias is not None:
                self.bias.zero_()

    @property
    def sizes(self) -> tuple[int, int]:
        """Widths of the features of sources and of destinations."""
        return (self.in_channels, self.in_channels) if isinstance(self.in_channels, int) else self.in_channels

    __prepare_scriptable__ = refuse_torchscript

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"{self.in_channels}, {self.out_channels}, coord_dim={self.coord_dim}, hidden={self.hidden}"

    def load_packed(self, values: torch.Tensor) -> None:
        """Load all parameters from a vector in athena's order, U | b_u | V | b_v | W | b, with column-major blocks.

        Parameters
        ----------
        values : tensor of one dimension

        Raises
        ------
        TypeError, ValueError
            If `values` is not a tensor or has the wrong length.
        """
        if not isinstance(values, torch.Tensor):
            raise TypeError(f"GNOLayer: values is a {type(values).__name__}; expected a torch.Tensor")
        parameters = [self.params, self.weight.T, *([] if self.bias is None else [self.bias])]
        lengths = [p.numel() for p in parameters]
        if values.shape != (sum(lengths),):
            raise ValueError(
                f"GNOLayer: values has shape {tuple(values.shape)}; expected (params + weight + bias,) = "
                f"({sum(lengths)},)"
            )
        with torch.no_grad():
            for parameter, block in zip(parameters, torch.split(values, lengths), strict=True):
                parameter.copy_(block.view(parameter.shape))

    def forward(self, x: Any, edge_index: torch.Tensor | CSC, coords: torch.Tensor) -> torch.Tensor:
        """Return new features of the destinations.

        Parameters
        ----------
        x : tensor or tuple of two tensors, shape (num_nodes, in_channels)
            Features of the nodes, or a pair for sources and destinations. With a prepared graph, the second may be
            None, which omits the term W h.
        edge_index : tensor of int32 or int64, shape (2, num_edges), or CSC, or GraphTensors
            Sources and destinations, or a prepared graph. The layer builds and caches a graph like `GATConv`.
        coords : tensor, shape (num_edges, coord_dim)
            Inputs of the kernel; in athena, differences between node positions.

        Returns
        -------
        tensor, shape (num_dst_nodes, out_channels)

        Raises
        ------
        TypeError, ValueError, MemoryError
            As for `trigraph.torch.gno_message`, or if `edge_index` has a wrong shape, dtype, device or index.
        NotImplementedError
            In torch.jit.trace with an `edge_index` that is not a prepared graph.
        """
        src, dst = split_bipartite_features(x)
        check_matrix_shape("GNOLayer", "coords", coords, self.coord_dim, "num_edges, coord_dim")
        graph = check_and_find_graph("GNOLayer", edge_index, src, dst, *self.sizes)
        dtype, (src, coords, params) = src.dtype, widen_half_precision(src, coords, self.params)
        out: torch.Tensor = FUNCTIONS["gno_message"](
            src, coords, params, graph, f_in=self.sizes[0], f_out=self.out_channels
        )
        if dst is not None:
            out = torch.nn.functional.linear(dst, self.weight) + out
        if self.bias is not None:
            out = out + self.bias
        if src.dtype != dtype:
            out = out.to(dtype)
        return out if self.activation is None else self.activation(out)
