"""PyTorch layers and models with the constructors and parameters of PyTorch Geometric, fairchem and athena."""

import sys as _sys

from trigraph.torch.layers import activations, gat, gemnet, gno, weighted
from trigraph.torch.layers.edges import add_self_loops
from trigraph.torch.layers.gat import GATConv
from trigraph.torch.layers.gemnet import BasisEmbedding, EfficientInteractionBilinear
from trigraph.torch.layers.gno import GNOLayer
from trigraph.torch.layers.weighted import WeightedConv
from trigraph.torch.potentials import compiled, dimenet, potential, structures
from trigraph.torch.potentials.dimenet import DimeNetPlusPlus, InteractionBlock, RadialBasis
from trigraph.torch.potentials.potential import ForceField, Potential
from trigraph.torch.potentials.structures import EnergyForcesStress, Neighbors

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

# Old model pickles refer to these modules, from when `trigraph.torch.nn` was a package.
for _module in (activations, gat, gemnet, gno, weighted, compiled, dimenet, potential, structures):
    _sys.modules[f"{__name__}.{_module.__name__.rpartition('.')[2]}"] = _module
