"""Layers of PyTorch on the operators; `trigraph.torch.nn` has their public names."""
