"""PyTorch Geometric's GATConv as a class of PyTorch Geometric that computes with trigraph's operators.

Programs that ask for a ``MessagePassing``, such as ``torch_geometric.nn.to_hetero`` and the explainers, take it.
"""

from typing import Any

import torch
import torch_geometric.nn

from trigraph.torch import nn

__all__ = ["GATConv", "why_not"]

STEPS = ("propagate", "message", "aggregate", "edge_update")


def _has_hooks(layer: torch_geometric.nn.MessagePassing) -> bool:
    """Return whether hooks look into the steps of message passing, which trigraph's operators do not have."""
    names = (name for name, value in vars(layer).items() if value and name.endswith("hooks"))
    return any(step in name for name in names for step in STEPS)


def why_not(layer: torch_geometric.nn.MessagePassing) -> str | None:
    """Return why a GATConv of PyTorch Geometric must compute as it does; None where trigraph's operators serve."""
    if layer.flow != "source_to_target":
        return f"flow is {layer.flow!r}; only 'source_to_target' is computed"
    if not isinstance(layer.aggr, str) or layer.aggr not in ("add", "sum"):
        return f"aggr is {layer.aggr!r}; only 'add' is computed"
    if layer.explain:
        return "an explainer masks its messages"
    return "hooks look into its message passing" if _has_hooks(layer) else None


class GATConv(nn.GATConv, torch_geometric.nn.GATConv):  # type: ignore[misc]
    """``torch_geometric.nn.GATConv``, computed by `trigraph.torch.nn.GATConv`, which says what its arguments are.

    An explainer that masks messages, and hooks on message passing, get PyTorch Geometric's own computation.

    Parameters
    ----------
    *args, **kwargs
        As of ``torch_geometric.nn.GATConv``.

    Raises
    ------
    NotImplementedError
        If `aggr` or `flow` are given, with other values than the default ones.
    """

    # Explainers replace the messages of this one; a derived class would inherit one that GATConv has compiled.
    propagate = torch_geometric.nn.MessagePassing.propagate

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        torch_geometric.nn.GATConv.__init__(self, *args, **kwargs)
        if reason := why_not(self):
            raise NotImplementedError(f"GATConv: {reason}; torch_geometric.nn.GATConv computes others")

    def forward(
        self,
        x: Any,
        edge_index: Any,
        edge_attr: torch.Tensor | None = None,
        size: tuple[int, int] | None = None,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """Return new features of the destinations; as of `trigraph.torch.nn.GATConv`."""
        # What PyTorch Geometric reads in the source of a class, to call the steps of message passing:
        # edge_updater_type: (alpha: OptPairTensor, edge_attr: OptTensor)
        # propagate_type: (x: OptPairTensor, alpha: Tensor)
        owner = nn.GATConv if why_not(self) is None else torch_geometric.nn.GATConv
        return owner.forward(self, x, edge_index, edge_attr, size, return_attention_weights)
