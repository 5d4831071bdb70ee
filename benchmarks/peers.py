"""What the peers of several families share: forms of torch and PyTorch Geometric, eager and compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np

from trigraph.benchmarks.calls import Call
from trigraph.benchmarks.workloads import Case, Peer

__all__ = ["compiled", "edge_index", "leaves", "torch_peers"]

Function = TypeVar("Function", bound=Callable[..., Any])


def torch_peers(
    make: Callable[..., Call], about: Mapping[str, str], devices: tuple[str, ...] = ("cpu", "cuda")
) -> dict[str, Peer]:
    """Return peers that run on torch.

    Parameters
    ----------
    make : callable
        Takes a `Case`, `device` and `form`.
    about : mapping
        What each form is: "torch" or "pyg", or these followed by "-compile", which is for a CUDA device alone.
    devices : tuple of {"cpu", "cuda"}
    """
    peers = {}
    for device in devices:
        for form, text in about.items():
            if device == "cuda" or not form.endswith("-compile"):
                requires = ("torch", "torch_geometric") if form.startswith("pyg") else ("torch",)
                call, clock = partial(make, device=device, form=form), "host" if device == "cpu" else "torch"
                peers[form + "-cuda" * (device == "cuda")] = Peer(call, text, requires, clock)
    return peers


def compiled(function: Function, form: str) -> Function:
    """Return a function, or a module, that torch compiles at its first call where its form says so."""
    import torch

    return cast("Function", torch.compile(function)) if form.endswith("-compile") else function


def edge_index(case: Case, device: str) -> Any:
    """Return the sources and destinations of all edges, shape (2, num_positions)."""
    import torch

    graph = case.graph
    dst = np.repeat(np.arange(graph.num_dst_nodes), np.diff(graph.offsets))
    return torch.as_tensor(np.stack([graph.indices, dst]), device=device)


def leaves(case: Case, device: str) -> dict[str, Any]:
    """Return all arrays as leaves of autograd; copies, since torch accepts only writable memory."""
    import torch

    return {n: torch.tensor(a, device=device, requires_grad=True) for n, a in case.arrays.items()}
