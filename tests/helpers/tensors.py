"""Helper that converts NumPy arrays to tensors."""

import numpy as np
import torch


def convert_to_tensors(value, device="cpu"):
    """Convert NumPy arrays to tensors, also in dicts, lists and tuples, and graphs to graphs of tensors."""
    if isinstance(value, dict):
        return {name: convert_to_tensors(v, device) for name, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(convert_to_tensors(v, device) for v in value)
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy()).to(device)
    if hasattr(value, "prepare"):
        make, arguments = value.__reduce__()
        return make(*(convert_to_tensors(a, device) for a in arguments))
    return value
