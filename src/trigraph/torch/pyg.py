"""A subclass of PyTorch Geometric's GATConv that computes with trigraph's operators.

Code that requires a ``MessagePassing``, such as ``torch_geometric.nn.to_hetero`` and the explainers, accepts the class.
"""

import math
from typing import Any

import torch
import torch_geometric.nn
from torch_geometric.nn.aggr import SumAggregation

from trigraph.torch import nn
from trigraph.torch.layers.arguments import has_hooks

__all__ = ["GATConv", "why_not"]

HOOKED_STEPS = ("propagate", "message", "aggregate", "edge_update")
METHODS = ("message", "message_and_aggregate", "aggregate", "update", "edge_update")


def why_not(layer: torch_geometric.nn.MessagePassing) -> str | None:
    """Return why trigraph's operators cannot compute a PyTorch Geometric GATConv, or None if they can."""
    if layer.flow != "source_to_target":
        return f"flow is {layer.flow!r}; only 'source_to_target' is supported"
    if not isinstance(layer.aggr, str) or layer.aggr not in ("add", "sum"):
        return f"aggr is {layer.aggr!r}; only 'add' is supported"
    if type(layer.aggr_module) is not SumAggregation or has_hooks(layer.aggr_module):
        return f"aggr_module is {layer.aggr_module}; only SumAggregation without hooks is supported"
    for name, only in (("node_dim", 0), ("decomposed_layers", 1)):
        if getattr(layer, name) != only:
            return f"{name} is {getattr(layer, name)}; only {only} is supported"
    slope = layer.negative_slope
    if not (isinstance(slope, (int, float)) and 0 <= slope < math.inf):
        return f"negative_slope is {slope}; only finite numbers from 0 are supported"
    if layer.explain:
        return "an explainer masks its messages"
    if has_hooks(layer, HOOKED_STEPS):
        return "its message passing has hooks"
    replaced_methods = [name for name in (*METHODS, "propagate", "edge_updater") if name in vars(layer)]
    replaced_methods += [
        name for name in METHODS if not getattr(type(layer), name).__module__.startswith("torch_geometric.")
    ]
    return f"{' and '.join(replaced_methods)} of the layer is not PyTorch Geometric's" if replaced_methods else None


class GATConv(nn.GATConv, torch_geometric.nn.GATConv):  # type: ignore[misc]
    """``torch_geometric.nn.GATConv``, computed by `trigraph.torch.nn.GATConv`, which documents the arguments.

    PyTorch Geometric's own code is used if trigraph's operators do not support the layer: with an explainer that masks
    messages, hooks on message passing, replaced methods, a replaced `aggr_module`, or a negative `negative_slope`.

    Parameters
    ----------
    *args, **kwargs
        Arguments of ``torch_geometric.nn.GATConv``.

    Raises
    ------
    NotImplementedError
        If `aggr`, `flow` or `decomposed_layers` differs from its default, or if `negative_slope` is negative.

    Examples
    --------
    >>> import torch
    >>> from trigraph.torch.pyg import GATConv
    >>> layer = GATConv(4, 2, heads=3)
    >>> layer(torch.ones(3, 4), torch.tensor([[0, 1], [1, 2]])).shape
    torch.Size([3, 6])
    """

    # Explainers replace messages in this general method, so do not inherit GATConv's generated version.
    propagate = torch_geometric.nn.MessagePassing.propagate

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        torch_geometric.nn.GATConv.__init__(self, *args, **kwargs)
        if reason := why_not(self):
            raise NotImplementedError(f"GATConv: {reason}; use torch_geometric.nn.GATConv")

    def forward(
        self,
        x: Any,
        edge_index: Any,
        edge_attr: torch.Tensor | None = None,
        size: tuple[int, int] | None = None,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """Return new features of the destinations; see `trigraph.torch.nn.GATConv`."""
        # PyTorch Geometric parses the next two comments to find the arguments of the message-passing steps:
        # edge_updater_type: (alpha: OptPairTensor, edge_attr: OptTensor)
        # propagate_type: (x: OptPairTensor, alpha: Tensor)
        owner = nn.GATConv if why_not(self) is None else torch_geometric.nn.GATConv
        return owner.forward(self, x, edge_index, edge_attr, size, return_attention_weights)
