"""Graph objects as pytrees. Leaves are the arrays, including reverse orders; integers, such as sizes, are static."""

from contextlib import nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from trigraph.graphs import GRAPH_TYPES, ReverseCSC, coarsen_attribute
from trigraph.table import GRAPH_PARTS


def require_jax_cpu_array(array: Any, what: str) -> Any:
    """Return a NumPy or JAX array as a JAX array of the same dtype; return traced arrays unchanged.

    Raise TypeError if JAX would convert the dtype. Raise ValueError, naming `what`, if the array is not on a CPU or if
    its memory was donated.
    """
    if isinstance(array, jax.core.Tracer):
        return array
    if not isinstance(array, jax.Array):
        if array.dtype.itemsize == 8 and not jax.config.read("jax_enable_x64"):
            half = array.dtype.name.replace("64", "32")
            raise TypeError(
                f"{what} has dtype {array.dtype}, which JAX converts to {half}; expected {half}, or "
                "jax.config.update('jax_enable_x64', True)"
            )
        return jnp.asarray(array)
    if array.is_deleted():
        raise ValueError(f"{what} was deleted, because it was donated to another call; expected an array with memory")
    for device in array.devices():
        if device.platform != "cpu":
            raise ValueError(
                f"{what} is on {device}; expected a CPU device: trigraph.jax does not support GPUs, but "
                "trigraph.torch and trigraph, with CuPy arrays, do"
            )
    return array


def _flatten_graph(graph: Any) -> tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]:
    # Outside a mesh, leaves and numbers depend only on the graph, which is immutable and caches them.
    flat = graph._built.get("jax")
    name = type(graph).__name__
    parts = GRAPH_PARTS[name]
    if graph.kind == "numpy" and (first := getattr(graph, parts.arrays[0])).dtype.itemsize == 8:
        require_jax_cpu_array(
            first, f"{name}: {parts.arrays[0]}"
        )  # also raises if the leaves were cached with 64 bits enabled
    if flat is None:
        if graph.kind not in ("numpy", "jax"):
            raise ValueError(f"{name}: the graph is on {graph.device}; expected a graph of NumPy or JAX arrays")
        reverse = graph.prepare()
        arrays = [getattr(graph, a) for a in parts.arrays] + [getattr(reverse, a) for a in parts.reverse]
        # Arrays made under a mesh belong to the mesh; constants made during tracing would belong to the traced program.
        under_mesh = hasattr(jax.sharding, "get_abstract_mesh") and not jax.sharding.get_abstract_mesh().empty
        if graph.kind == "numpy":
            with nullcontext() if under_mesh else jax.ensure_compile_time_eval():
                arrays = [None if a is None else require_jax_cpu_array(a, f"{name}: an array") for a in arrays]
        sizes = (*parts.lengths, *parts.reverse_lengths)
        exact = {size: getattr(graph, size) for size, _, _ in sizes}
        numbers = {n: coarsen_attribute(n, getattr(graph, n)) for n in parts.numbers if n not in exact}
        flat = tuple(arrays), tuple((exact | numbers).items())
        if not under_mesh:
            flat = graph._built.setdefault("jax", flat)
    return flat


def _unflatten_graph(cls: Any, numbers: tuple[tuple[str, Any], ...], leaves: Any) -> Any:
    """Return a graph with the given leaves, which need not be arrays, because JAX also unflattens other objects."""
    parts, leaves = GRAPH_PARTS[cls.__name__], tuple(leaves)
    graph, count = cls.__new__(cls), len(parts.arrays)
    built = {"jax": (leaves, numbers)} | ({"reverse": ReverseCSC(*leaves[count:])} if parts.reverse else {})
    named = dict(zip(parts.arrays, leaves, strict=False))
    graph._assign_attributes(**named, **dict(numbers), kind="jax", device="host", _built=built)
    return graph


def copy_graph_to_jax(graph: Any) -> Any:
    """Return a copy of a graph with JAX arrays."""
    return _unflatten_graph(type(graph), *reversed(_flatten_graph(graph)))


def register_graph_pytrees() -> None:
    """Register the classes of graph objects as pytrees."""
    for cls in GRAPH_TYPES.values():
        jax.tree_util.register_pytree_node(cls, _flatten_graph, partial(_unflatten_graph, cls))
