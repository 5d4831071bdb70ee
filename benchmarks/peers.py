"""Peers in several families: PyTorch Geometric's layers, on the CPU and on a CUDA device."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from trigraph.benchmarks.programs import Call
from trigraph.benchmarks.workloads import Peer, WorkloadInputs


def make_pyg_peers(make: Callable[..., Call], about: str, name: str = "pyg") -> dict[str, Peer]:
    """Return PyTorch Geometric peers from ``make(case, device=...)``: one for the CPU and one (-cuda) for CUDA."""
    requires = "torch", "torch_geometric"
    return {
        name: Peer(partial(make, device="cpu"), about, requires),
        f"{name}-cuda": Peer(partial(make, device="cuda"), about, requires, device=True),
    }


def make_edge_index(case: WorkloadInputs, device: str) -> Any:
    """Return the sources and destinations of all edges, shape (2, num_positions)."""
    import torch

    graph = case.graph
    dst = np.repeat(np.arange(graph.num_dst_nodes), np.diff(graph.offsets))
    return torch.as_tensor(np.stack([graph.indices, dst]), device=device)


def make_autograd_call(
    case: WorkloadInputs, device: str, forward: Callable[[WorkloadInputs, str], Callable[..., Any]]
) -> Call:
    """Return a call for a workload of one definition: the forward, or autograd's backward or double backward.

    ``forward(case, device)`` returns a function that maps the definition's inputs to one or several outputs.
    """
    import torch

    workload, steps = case.workload, case.workload.steps
    (definition,) = workload.definitions
    function, second = forward(case, device), steps[-1].op.order == 2
    fields = [[f.name for f in workload.list_step_results(step) if f not in definition.auxiliary] for step in steps]
    leaves = {name for names in fields[1:] for name in names}
    t = {n: torch.tensor(a, device=device, requires_grad=n in leaves) for n, a in case.arrays.items()}
    inputs = [t[a.name] for a in definition.inputs if a.name in t]
    cotangents = [t[f"grad_{a.name}"] for a in definition.outputs] if len(steps) > 1 else []
    nonzero = [] if not second else [n for n in fields[1] if f"gg_{n}" not in steps[2].zero]

    def compute_all_orders() -> dict[str, Any]:
        with torch.set_grad_enabled(len(steps) > 1):
            out = function(*inputs)
        results = [out if isinstance(out, tuple) else (out,)]
        if len(steps) > 1:
            results.append(torch.autograd.grad(results[0], [t[n] for n in fields[1]], cotangents, create_graph=second))
        if second:
            first = dict(zip(fields[1], results[1], strict=True))
            along = [t[f"gg_{n}"] for n in nonzero]
            results.append(torch.autograd.grad([first[n] for n in nonzero], [t[n] for n in fields[2]], along))
        return {
            f"{step.operator}.{name}": value
            for step, names, values in zip(steps, fields, results, strict=True)
            for name, value in zip(names, values, strict=True)
        }

    return compute_all_orders
