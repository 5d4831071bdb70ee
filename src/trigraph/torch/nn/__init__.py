"""PyTorch layers and models with the constructors and parameters of PyTorch Geometric, fairchem and athena."""

from trigraph.torch.nn.dimenet import DimeNetPlusPlus, InteractionBlock, RadialBasis
from trigraph.torch.nn.edges import add_self_loops
from trigraph.torch.nn.gat import GATConv
from trigraph.torch.nn.gemnet import BasisEmbedding, EfficientInteractionBilinear
from trigraph.torch.nn.gno import GNOLayer
from trigraph.torch.nn.potential import ForceField, Potential
from trigraph.torch.nn.structures import EnergyForcesStress, Neighbors
from trigraph.torch.nn.weighted import WeightedConv

__all__ = [
    "BasisEmbedding",
    "DimeNetPlusPlus",
    "EfficientInteractionBilinear",
    "EnergyForcesStress",
    "ForceField",
    "GATConv",
    "GNOLayer",
    "InteractionBlock",
    "Neighbors",
    "Potential",
    "RadialBasis",
    "WeightedConv",
    "add_self_loops",
]
