"""Replacement of the part of NVIDIA's retired pylibcugraphops 24.12 that PyTorch Geometric's layers import."""

__version__ = "24.12.0"
