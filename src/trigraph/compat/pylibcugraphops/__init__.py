"""What PyTorch Geometric's layers import of NVIDIA's pylibcugraphops 24.12, which is retired."""

__version__ = "24.12.0"
