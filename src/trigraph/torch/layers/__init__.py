"""Layers of PyTorch that use the operators. Their public names are in `trigraph.torch.nn`."""
