"""Graph objects as tensors: how they cross into torch's operators, and how torch takes them apart.

A graph object holds arrays of NumPy or CuPy. Torch's operators take tensors and numbers, so a graph crosses as views
of its arrays, made once, and numbers. Torch's own tools (`make_fx`, `export`, `torch.func`) take it apart as a pytree;
what they put together again holds tensors in place of arrays, and only `trigraph.torch` takes such a graph.
"""

from __future__ import annotations

import functools
import itertools
import operator
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
import torch
import torch.utils.dlpack
from torch._compile import _disable_dynamo
from torch.utils import _pytree

from trigraph.graphs import CSC, VIEWS, Immutable, ReverseCSC, array_kind, device_of, namespace_of
from trigraph.graphs.edge_graph import EdgeGraph, with_reverse
from trigraph.graphs.segments import Segments
from trigraph.torch.arrays import array_of, on_device

__all__ = ["PARTS", "Parts", "assemble", "numbers", "register", "tensor_of", "tensors", "uncompiled"]


P = ParamSpec("P")
R = TypeVar("R")


class Parts(NamedTuple):
    """What a graph object is made of.

    Attributes
    ----------
    arrays : tuple of str
        Attributes that are arrays and that every call needs; those in `optional` may be None.
    optional : frozenset of str
    reverse : tuple of str
        Arrays of what `prepare` returns, which derivatives need too.
    numbers : tuple of str
        Attributes that are numbers.
    lengths : tuple of (str, str, int)
        Attributes that follow from arrays: name, array, and what to subtract from its length.
    """

    arrays: tuple[str, ...]
    optional: frozenset[str]
    reverse: tuple[str, ...]
    numbers: tuple[str, ...]
    lengths: tuple[tuple[str, str, int], ...]


PARTS: dict[str, Parts] = {
    "CSC": Parts(
        ("offsets", "indices", "edge_ids"),
        frozenset(),
        ReverseCSC._fields,
        ("num_src_nodes", "num_edges", "max_in_degree", "edges_in_order"),
        (("num_dst_nodes", "offsets", 1), ("num_positions", "indices", 0)),
    ),
    "EdgeGraph": Parts(
        (
            # torch.export writes checks of sizes as text, in which it replaces these names in this order. If "src" came
            # before "src_offsets", it would replace the beginning of the longer name.
            *("src_offsets", "dst_offsets", "dst_edge_index", "src", "dst", "reverse_start", "reverse_stop"),
            *("reverse_edge", "_edge_start", "_edge_stop"),
        ),
        frozenset(("reverse_edge", "_edge_start", "_edge_stop")),
        (),
        ("max_in_degree", "max_out_degree", "has_parallel_edges"),
        (("num_nodes", "src_offsets", 1), ("num_edges", "src", 0)),
    ),
    "Segments": Parts(
        ("index", "offsets", "order"),
        frozenset(),
        (),
        ("max_size", "is_sorted"),
        (("num_segments", "offsets", 1), ("num_members", "index", 0)),
    ),
}
CLASSES: dict[str, type[Immutable]] = {"CSC": CSC, "EdgeGraph": EdgeGraph, "Segments": Segments}


class _Memory:
    """Memory of a read-only array that claims to be writeable: torch knows no other, and warns of those that say so."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


class _Owner:
    """What the first tensor of a graph remembers: the graph, as long as it is there. A copy of the tensor has none."""

    def __init__(self, graph: Callable[[], Any] = lambda: None) -> None:
        self.graph = graph

    def __reduce__(self) -> tuple[Any, ...]:
        return (_Owner, ())


def tensor_of(array: Any) -> Any:
    """Return a view of an array's memory, on its device; tensors and None are returned as they are."""
    if array is None or isinstance(array, torch.Tensor):
        return array
    if namespace_of(array).__name__ == "cupy":
        return torch.utils.dlpack.from_dlpack(array)
    return torch.from_numpy(np.asarray(_Memory(array)))


def _view(graph: Any) -> None:
    """Keep the arrays of a graph as tensors, those of the backward once they are there.

    Autograd refuses to save tensors made in inference mode, and a transform of torch.func wraps those made in it; a
    graph may be built in either and used after it.
    """
    parts, built = PARTS[type(graph).__name__], graph._built
    with torch.inference_mode(False), torch._C._DisableFuncTorch():
        if "tensors" not in built:
            found = built.setdefault("tensors", tuple(tensor_of(getattr(graph, name)) for name in parts.arrays))
            found[0].trigraph = _Owner(weakref.ref(graph))
        if "reverse" in built and "reverse_tensors" not in built:
            built.setdefault("reverse_tensors", tuple(map(tensor_of, built["reverse"])))


def graph_of(tensors: tuple[Any, ...]) -> Any:
    """Return the graph whose own tensors these are, None in the places of the backward's if need be; None if gone."""
    owner = getattr(tensors[0], "trigraph", None)
    graph = None if owner is None else owner.graph()
    if graph is None:
        return None
    own, reverse = graph._built["tensors"], graph._built.get("reverse_tensors", ())
    forward, backward = tensors[: len(own)], tensors[len(own) :]
    theirs = all(t is None or t is r for t, r in itertools.zip_longest(backward, reverse))
    return graph if theirs and all(map(operator.is_, forward, own)) else None


def tensors(graph: Any, reverse: bool) -> tuple[Any, ...]:
    """Return the arrays of a graph as tensors: forward ones, then those of the backward, or None in their places.

    The orders of the backward are built once for a graph. A compiled program that meets a graph without them builds
    them at each call.
    """
    parts, built = PARTS[type(graph).__name__], graph._built
    found: tuple[Any, ...] | None = built.get("tensors")
    if found is None:
        if torch.compiler.is_compiling():
            raise RuntimeError(
                f"{type(graph).__name__}: this graph is older than the import of trigraph.torch; expected one built, "
                "or used, after it where a program is compiled"
            )
        _view(graph)
        found = built["tensors"]
    if not parts.reverse:
        return found
    if not reverse:
        return (*found, *(None for _ in parts.reverse))
    backward: tuple[Any, ...] | None = built.get("reverse_tensors")
    if backward is None and torch.compiler.is_compiling():
        return (*found, *torch.ops.trigraph.reverse_csc(*found, graph.num_src_nodes, graph.num_edges))
    if backward is None:
        graph.prepare()
        _view(graph)
        backward = built["reverse_tensors"]
    return (*found, *backward)


def _reverse(offsets: Any, indices: Any, edge_ids: Any, num_src_nodes: int, num_edges: int) -> tuple[Any, ...]:
    """Return the orders of the backward of a CSC graph, as tensors of their own."""
    with on_device(offsets):
        arrays = tuple(map(array_of, (offsets, indices, edge_ids)))
        graph = assemble("CSC", (*arrays, *(None for _ in ReverseCSC._fields)), (num_src_nodes, num_edges, 0, 0))
        return tuple(tensor_of(array).clone() for array in graph.prepare())


def _fake_reverse(offsets: Any, indices: Any, edge_ids: Any, num_src_nodes: int, num_edges: int) -> tuple[Any, ...]:
    counts = (indices.shape[0], num_src_nodes + 1, indices.shape[0], num_edges + 1, indices.shape[0])
    return tuple(offsets.new_empty(n) for n in counts)


def numbers(graph: Any) -> tuple[int, ...]:
    """Return the numbers of a graph, those that are true or false as 1 or 0, symbols of torch's as they are."""
    return tuple(+getattr(graph, name) for name in PARTS[type(graph).__name__].numbers)


def assemble(type_name: str, arrays: Any, given: Any) -> Any:
    """Return a graph of arrays that were checked when they were built, and numbers; None where the first array is."""
    if arrays[0] is None:
        return None
    parts = PARTS[type_name]
    found = dict(zip(parts.arrays, arrays, strict=False))
    lengths = [found[array].shape[0] - less for _, array, less in parts.lengths]
    return _put_together(type_name, arrays, given, lengths, device_of(arrays[0]))


def _put_together(type_name: str, arrays: Any, given: Any, lengths: Any, device: str) -> Any:
    parts, cls = PARTS[type_name], CLASSES[type_name]
    reverse = arrays[len(parts.arrays) :]
    graph = cls.__new__(cls)
    graph._assign(**dict(zip(parts.arrays, arrays, strict=False)), **dict(zip(parts.numbers, given, strict=True)))
    graph._assign(**{name: length for (name, _, _), length in zip(parts.lengths, lengths, strict=True)})
    kind = array_kind(arrays[0]) or "torch"
    built: dict[str, Any] = {}
    if reverse and reverse[0] is not None:
        built["reverse"] = ReverseCSC(*reverse)
    if kind == "torch":
        built |= {"tensors": tuple(arrays[: len(parts.arrays)]), "reverse_tensors": reverse}
    graph._assign(kind=kind, device=device, _built=built)
    return graph


def _flatten(graph: Any) -> tuple[list[Any], Any]:
    lengths = tuple(getattr(graph, name) for name, _, _ in PARTS[type(graph).__name__].lengths)
    return list(tensors(graph, True)), (type(graph).__name__, numbers(graph), lengths, graph.device)


def _flatten_with_names(graph: Any) -> tuple[list[tuple[Any, Any]], Any]:
    leaves, context = _flatten(graph)
    parts = PARTS[context[0]]
    return [(_pytree.GetAttrKey(n), t) for n, t in zip(parts.arrays + parts.reverse, leaves, strict=True)], context


def _unflatten(leaves: Any, context: Any) -> Any:
    if isinstance(leaves[0], torch.Tensor):
        return assemble(context[0], tuple(leaves), context[1])
    # Torch's tracers put objects in the places of tensors that have neither a shape nor a device.
    return _put_together(context[0], tuple(leaves), *context[1:])


def _to_lists(context: Any) -> Any:
    return [list(part) if isinstance(part, tuple) else part for part in context]


def _from_lists(context: Any) -> Any:
    return tuple(tuple(part) if isinstance(part, list) else part for part in context)


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function so that a compiled program leaves off where it is called, and goes on after it.

    `torch.compiler.disable` does this, but imports torch's compiler, which takes a second.
    """
    disabled = _disable_dynamo(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return (disabled if torch.compiler.is_dynamo_compiling() else function)(*args, **kwargs)

    return call


def _build_outside(cls: type) -> None:
    """Have graphs be built outside of compiled programs: what builds them is NumPy or CuPy."""
    for name, method in list(vars(cls).items()):
        if name in ("__init__", "renumbered", "sorted", "triplets") or name.startswith("from_"):
            shared = isinstance(method, classmethod)
            outside = uncompiled(method.__func__ if shared else method)
            setattr(cls, name, classmethod(outside) if shared else outside)


def register(library: torch.library.Library) -> None:
    """Tell torch how to take graph objects apart, and give those that are built from now on their tensors."""
    results = ", ".join("Tensor" for _ in ReverseCSC._fields)
    library.define(
        "reverse_csc(Tensor offsets, Tensor indices, Tensor edge_ids, SymInt num_src_nodes, SymInt num_edges) -> "
        f"({results})"
    )
    for key in ("CPU", "CUDA"):
        library.impl("reverse_csc", _reverse, key)
    torch.library.register_fake("trigraph::reverse_csc", _fake_reverse, lib=library)
    VIEWS.append(_view)
    # With weights_only=True, `torch.load` calls only what it knows to be safe. Graphs are: their constructors check all
    # arguments, which are numbers and NumPy's arrays of integers.
    numbers_of_arrays = [type(np.dtype(index)) for index in (np.int32, np.int64)]
    reconstruct: Any = np.empty(0).__reduce__()[0]
    torch.serialization.add_safe_globals(
        [*CLASSES.values(), with_reverse, bytes, np.ndarray, np.dtype, reconstruct, *numbers_of_arrays]
    )
    for name, cls in CLASSES.items():
        _build_outside(cls)
        _pytree.register_pytree_node(
            cls,
            _flatten,
            _unflatten,
            serialized_type_name=f"trigraph.{name}",
            to_dumpable_context=_to_lists,
            from_dumpable_context=_from_lists,
            flatten_with_keys_fn=_flatten_with_names,
        )
