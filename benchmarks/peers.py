"""Peers of several families: forms of torch and PyTorch Geometric, eager and compiled, and of JAX."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np

from trigraph.benchmarks.calls import Call
from trigraph.benchmarks.workloads import Case, Peer
from trigraph.table import OPERATORS

Function = TypeVar("Function", bound=Callable[..., Any])


def torch_peers(make: Callable[..., Call], about: Mapping[str, str]) -> dict[str, Peer]:
    """Return peers that run on torch: ``make(case, device=..., form=...)``.

    `about` says what each form is: "torch" or "pyg", or these followed by "-compile", which is for a CUDA device alone.
    """
    peers = {}
    for device in ("cpu", "cuda"):
        for form, text in about.items():
            if device == "cuda" or not form.endswith("-compile"):
                requires = ("torch", "torch_geometric") if form.startswith("pyg") else ("torch",)
                call, cuda = partial(make, device=device, form=form), device == "cuda"
                peers[form + "-cuda" * cuda] = Peer(call, text, requires, cuda)
    return peers


def compiled(function: Function, form: str) -> Function:
    """Return a function or module, compiled by torch at its first call if the form ends with "-compile"."""
    import torch

    return cast("Function", torch.compile(function)) if form.endswith("-compile") else function


def edge_index(case: Case, device: str) -> Any:
    """Return the sources and destinations of all edges, shape (2, num_positions)."""
    import torch

    graph = case.graph
    dst = np.repeat(np.arange(graph.num_dst_nodes), np.diff(graph.offsets))
    return torch.as_tensor(np.stack([graph.indices, dst]), device=device)


def by_autograd(case: Case, device: str, form: str, forward: Callable[[Case, str, str], Callable[..., Any]]) -> Call:
    """Return a call of a workload of one definition: a forward, autograd's backward, and the backward of that.

    ``forward(case, device, form)`` is a function of the definition's inputs that returns its output, or several.
    """
    import torch

    workload, steps = case.workload, case.workload.steps
    (definition,) = workload.definitions
    function, second = forward(case, device, form), steps[-1].op.order == 2
    fields = [[f.name for f in workload.fields(step) if f not in definition.auxiliary] for step in steps]
    leaves = {name for names in fields[1:] for name in names}
    t = {n: torch.tensor(a, device=device, requires_grad=n in leaves) for n, a in case.arrays.items()}
    inputs = [t[a.name] for a in definition.inputs if a.name in t]
    cotangents = [t[f"grad_{a.name}"] for a in definition.outputs] if len(steps) > 1 else []
    kept = [] if not second else [n for n in fields[1] if f"gg_{n}" not in steps[2].zero]

    def call() -> dict[str, Any]:
        with torch.set_grad_enabled(len(steps) > 1):
            out = function(*inputs)
        results = [out if isinstance(out, tuple) else (out,)]
        if len(steps) > 1:
            results.append(torch.autograd.grad(results[0], [t[n] for n in fields[1]], cotangents, create_graph=second))
        if second:
            first = dict(zip(fields[1], results[1], strict=True))
            along = [t[f"gg_{n}"] for n in kept]
            results.append(torch.autograd.grad([first[n] for n in kept], [t[n] for n in fields[2]], along))
        return {
            f"{step.operator}.{name}": value
            for step, names, values in zip(steps, fields, results, strict=True)
            for name, value in zip(names, values, strict=True)
        }

    return call


def by_jax(case: Case, form: str) -> Call:
    """Return a call of a workload of one definition, as `by_autograd` does, as one program of jax.jit.

    Forms are "jax" (gathers and ``jax.ops.segment_sum``) and "trigraph-jax" (the function of `trigraph.jax`). This
    enables 64 bits in the contender's process.
    """
    import jax

    jax.config.update("jax_enable_x64", True)
    import trigraph.jax
    from trigraph.jax.plain import PLAIN

    workload, steps = case.workload, case.workload.steps
    (definition,) = workload.definitions
    op = OPERATORS[f"{definition.name}_fwd"]
    fields = [[f.name for f in workload.fields(step) if f not in definition.auxiliary] for step in steps]
    kept = [n for n in fields[1] if f"gg_{n}" not in steps[2].zero] if len(steps) > 2 else []
    sizes, names = workload.bound(case.sizes), [a.name for a in definition.outputs]
    choices = {a.name: sizes[a.name] if a.size else workload.settings.get(a.name, a.default) for a in op.attributes}

    def outputs(x: Mapping[str, Any], graphs: Any) -> dict[str, Any]:
        inputs = {a.name: x[a.name] for a in definition.inputs if a.name in x}
        if form == "trigraph-jax":
            result = getattr(trigraph.jax, definition.name)(**inputs, **graphs, **choices)
            return dict(zip(names, result if isinstance(result, tuple) else (result,), strict=False))
        return dict(PLAIN[definition.name](inputs | graphs, sizes | choices))

    def program(x: dict[str, Any], graphs: Any) -> list[dict[str, Any]]:
        def pull(part: dict[str, Any], g: dict[str, Any]) -> dict[str, Any]:
            at = {n: (x | part)[n] for n in fields[1]}
            gradients: dict[str, Any] = jax.vjp(lambda q: outputs(x | part | q, graphs), at)[1](g)[0]
            return gradients

        results, g = [outputs(x, graphs)], {n: x[f"grad_{n}"] for n in names if f"grad_{n}" in x}
        if len(steps) > 1:
            results.append(pull({}, g))
        if kept:
            at = {n: x[n] for n in fields[2] if not n.startswith("grad_")}
            _, back = jax.vjp(lambda part, g: {n: pull(part, g)[n] for n in kept}, at, g)
            by_input, by_grad = back({n: x[f"gg_{n}"] for n in kept})
            results.append(by_input | {f"grad_{n}": value for n, value in by_grad.items()})
        return results

    graphs: Any = case.graphs
    if form == "jax" and op.graph:
        arrays = {n: op.graph.find(n, graphs) for n, _ in op.graph.forward + op.graph.fast + op.graph.reverse}
        graphs = {n: jax.numpy.asarray(a) for n, a in arrays.items() if a is not None}
    x, run = {n: jax.numpy.asarray(a) for n, a in case.arrays.items()}, jax.jit(program)

    def call() -> dict[str, Any]:
        results = jax.block_until_ready(run(x, graphs))
        return {
            f"{s.operator}.{n}": values[n] for s, ns, values in zip(steps, fields, results, strict=True) for n in ns
        }

    return call


JAX_PEERS = {
    form: Peer(partial(by_jax, form=form), about, ("jax",))
    for form, about in (("jax", "gathers, jax.ops.segment_sum, jit"), ("trigraph-jax", "trigraph.jax, jit"))
}
