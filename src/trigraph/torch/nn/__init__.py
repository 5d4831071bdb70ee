"""Layers of PyTorch models over the operators of `trigraph.torch`."""

from trigraph.torch.nn.edges import add_self_loops
from trigraph.torch.nn.gat import GATConv
from trigraph.torch.nn.gemnet import BasisEmbedding, EfficientInteractionBilinear
from trigraph.torch.nn.gno import GNOLayer
from trigraph.torch.nn.weighted import WeightedConv

__all__ = [
    "BasisEmbedding",
    "EfficientInteractionBilinear",
    "GATConv",
    "GNOLayer",
    "WeightedConv",
    "add_self_loops",
]
