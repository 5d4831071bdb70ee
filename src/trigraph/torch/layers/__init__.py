"""PyTorch layers that use trigraph's operators. Their public names are in `trigraph.torch.nn`."""
