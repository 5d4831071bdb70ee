"""The part of NVIDIA's pylibcugraphops 24.12, which is retired, that PyTorch Geometric's layers import."""

__version__ = "24.12.0"
