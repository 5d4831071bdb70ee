"""Layers and models of PyTorch over the operators, with the constructors and parameters of the packages people use."""

from trigraph.torch.nn.dimenet import DimeNetPlusPlus, InteractionBlock, RadialBasis
from trigraph.torch.nn.structures import EnergyForcesStress, Neighbors

__all__ = [
    "DimeNetPlusPlus",
    "EnergyForcesStress",
    "InteractionBlock",
    "Neighbors",
    "RadialBasis",
]
