"""What PyTorch Geometric's layers import of ``pylibcugraphops.pytorch``: graph classes and operators."""

from trigraph.compat.pylibcugraphops.pytorch import operators
from trigraph.compat.pylibcugraphops.pytorch.graphs import CSC, HeteroCSC

__all__ = ["CSC", "HeteroCSC", "operators"]
