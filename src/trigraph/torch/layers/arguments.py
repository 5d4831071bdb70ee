"""Argument checks for layers and models."""

from typing import Any

import torch
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils.parametrize import is_parametrized

from trigraph.arrays import require_count
from trigraph.table import OPERATORS


def _get_size_bounds(symbol: str) -> tuple[int, ...]:
    """Return the smallest and, if limited, the largest value of a size in the shapes of `radial_basis`."""
    limits = OPERATORS["radial_basis_fwd"].definition.get_limited_symbol(symbol)
    return (limits.minimum,) if limits.maximum is None else (limits.minimum, limits.maximum)


BOUNDS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("num_blocks", "num_before_skip", "num_after_skip", "num_output_layers"), (0,)),
    "num_spherical": _get_size_bounds("num_spherical"),
    "num_radial": _get_size_bounds("num_radial"),
    "envelope_exponent": _get_size_bounds("envelope_exponent"),
}


def check_sizes(owner: str, **sizes: Any) -> None:
    """Raise unless each size is an int within its `BOUNDS`, or at least 1 if the size has no bounds."""
    for name, value in sizes.items():
        require_count(owner, name, value, *BOUNDS.get(name, (1,)))


def require_channel_pair(owner: str, in_channels: Any, minimum: int = 1) -> tuple[int, int]:
    """Return the feature widths of sources and destinations, given as an int or a pair of ints."""
    if isinstance(in_channels, (tuple, list)) and len(in_channels) == 2:
        source, destination = (require_count(owner, f"in_channels[{i}]", n, minimum) for i, n in enumerate(in_channels))
        return source, destination
    return (require_count(owner, "in_channels", in_channels, minimum),) * 2


def widen_half_precision(*values: Any) -> list[Any]:
    """Convert 16-bit CPU tensors, which the operators do not support, to float32; return other values unchanged.

    Under autocast, return all values unchanged: the operators convert them, and the results stay float32.
    """
    half = (torch.float16, torch.bfloat16)
    return [
        v.float()
        if isinstance(v, torch.Tensor) and v.dtype in half and v.is_cpu and not torch.is_autocast_enabled("cpu")
        else v
        for v in values
    ]


def count_input_features(linear: torch.nn.Module | None) -> int | None:
    """Return the number of input features of a linear layer.

    Return None if the number is unknown: for adapters, sequences, quantized or parametrized layers, and lazy layers
    before their first call.
    """
    if linear is None or is_parametrized(linear):
        return None
    weight = getattr(linear, "weight", None)
    if not isinstance(weight, torch.Tensor) or isinstance(weight, UninitializedParameter):
        return None
    return weight.shape[1] if weight.is_floating_point() and weight.dim() == 2 else None


def require_cpu_or_cuda(owner: str, name: str, value: torch.Tensor) -> None:
    """Raise unless a tensor is on a CPU or CUDA device."""
    if value.device.type not in ("cpu", "cuda"):
        raise ValueError(f"{owner}: {name} is on {value.device}; expected a CPU or CUDA device")


def refuse_torchscript(module: torch.nn.Module) -> None:
    """Raise NotImplementedError. Layers use this as ``__prepare_scriptable__``, which torch.jit.script calls first."""
    raise NotImplementedError(
        f"{type(module).__name__}: torch.jit.script cannot read the operators of trigraph; use torch.compile or "
        "torch.export"
    )


def has_hooks(layer: torch.nn.Module, steps: tuple[str, ...] = ("forward", "backward")) -> bool:
    """Return whether a layer has hooks on any of `steps`, apart from its own methods."""
    return any(
        getattr(hook, "__self__", None) is not layer
        for name, hooks in vars(layer).items()
        if name.endswith("hooks") and hooks and any(step in name for step in steps)
        for hook in hooks.values()
    )
