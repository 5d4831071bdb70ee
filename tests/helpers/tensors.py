"""Helper that converts NumPy arrays to tensors."""

import numpy as np
import torch


def convert_to_tensors(value):
    """Convert NumPy arrays to tensors, also in dicts, lists and tuples, and graphs to graphs of tensors."""
    if isinstance(value, dict):
        return {name: convert_to_tensors(v) for name, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(convert_to_tensors, value))
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if hasattr(value, "prepare"):
        make, arguments = value.__reduce__()
        return make(*map(convert_to_tensors, arguments))
    return value
