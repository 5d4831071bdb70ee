"""Layers and models of PyTorch over the operators."""

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
