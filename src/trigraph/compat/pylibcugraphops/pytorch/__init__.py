"""Graph classes and differentiable operators of ``pylibcugraphops.pytorch``."""

from trigraph.compat.pylibcugraphops.pytorch import operators
from trigraph.compat.pylibcugraphops.pytorch.graphs import (
    CSC,
    BipartiteCSC,
    HeteroCSC,
    SampledCSC,
    SampledHeteroCSC,
    StaticCSC,
    StaticHeteroCSC,
)

__all__ = [
    "CSC",
    "BipartiteCSC",
    "HeteroCSC",
    "SampledCSC",
    "SampledHeteroCSC",
    "StaticCSC",
    "StaticHeteroCSC",
    "operators",
]
