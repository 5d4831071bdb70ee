"""Layers and models of PyTorch over the operators."""

__all__: list[str] = []
