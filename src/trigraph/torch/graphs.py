"""Graph objects as tensors: how they cross into torch's operators, and how torch takes them apart.

A graph object holds arrays of NumPy or CuPy. Torch's operators take tensors and numbers, so a graph is given to them
as views of its arrays, made once, and numbers. `GraphTensors` are both for programs that take a graph as an argument;
the graph that is put together of them holds tensors in place of arrays, and only `trigraph.torch` takes it.
"""

from __future__ import annotations

import functools
import itertools
import operator
import warnings
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
import torch.utils.dlpack

from trigraph.graphs import CSC, GRAPH_TYPES, VIEWS, ReverseCSC, array_kind, device_of, namespace_of, shown
from trigraph.graphs.edge_graph import EdgeGraph, with_reverse
from trigraph.graphs.segments import Segments
from trigraph.table import GRAPH_PARTS
from trigraph.torch.arrays import array_of, in_plain_thread, on_device

P = ParamSpec("P")
R = TypeVar("R")

COMPILED = torch.__version__ >= (2, 11)  # type: ignore[operator]
"""Whether torch's compiler can follow a call. Programs of older versions leave off at each call, and go on after it."""


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


def _plain(arrays: Iterable[Any]) -> tuple[Any, ...]:
    """Return arrays as ordinary tensors, whatever modes and transforms are on where a graph is built or used.

    A dispatch mode may make other tensors of them, a transform of torch.func wraps them, and autograd refuses to save
    those that were made in inference mode; a graph keeps its tensors and may be used after all these.
    """
    arrays = tuple(arrays)
    found = tuple(map(tensor_of, arrays))
    if all(t is None or _is_plain(t) for t in found):
        return found
    return in_plain_thread(lambda: tuple(map(tensor_of, arrays)))


def _is_plain(tensor: torch.Tensor) -> bool:
    if type(tensor) is not torch.Tensor or tensor.is_inference():
        return False
    try:
        return tensor.numel() == 0 or tensor.data_ptr() != 0
    except RuntimeError:  # what a transform has wrapped has no memory of its own
        return False


def _view(graph: Any) -> None:
    """Keep the arrays of a graph as tensors, those of the backward once they are there."""
    parts, built = GRAPH_PARTS[type(graph).__name__], graph._built
    if "tensors" not in built:
        found = built.setdefault("tensors", _plain(getattr(graph, name) for name in parts.arrays))
        found[0].trigraph = _Owner(weakref.ref(graph))
    if "reverse" in built and "reverse_tensors" not in built:
        built.setdefault("reverse_tensors", _plain(built["reverse"]))


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
    parts, built = GRAPH_PARTS[type(graph).__name__], graph._built
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
    return tuple(+getattr(graph, name) for name in GRAPH_PARTS[type(graph).__name__].numbers)


def assemble(type_name: str, arrays: Any, given: Any) -> Any:
    """Return a graph of arrays that were checked when they were built, and numbers; None where the first array is."""
    if arrays[0] is None:
        return None
    parts, cls = GRAPH_PARTS[type_name], GRAPH_TYPES[type_name]
    found, reverse = dict(zip(parts.arrays, arrays, strict=False)), arrays[len(parts.arrays) :]
    graph = cls.__new__(cls)
    graph._assign(**found, **dict(zip(parts.numbers, given, strict=True)))
    graph._assign(**{name: found[array].shape[0] - less for name, array, less in parts.lengths})
    kind = array_kind(arrays[0]) or "torch"
    built: dict[str, Any] = {}
    if reverse and reverse[0] is not None:
        built["reverse"] = ReverseCSC(*reverse)
    if kind == "torch":
        built |= {"tensors": tuple(arrays[: len(parts.arrays)]), "reverse_tensors": reverse}
    graph._assign(kind=kind, device=device_of(arrays[0]), _built=built)
    return graph


@dataclass
class GraphTensors:
    """A graph object as the tensors and numbers that `torch.export` and `make_fx` take for arguments.

    Parameters
    ----------
    type_name : {'CSC', 'EdgeGraph', 'Segments'}
    tensors : list of (Tensor or None)
        Index tensors of the graph, then those of its backward.
    numbers : list of int

    Notes
    -----
    :meth:`of` makes one; in the program that is exported or traced, :meth:`graph` puts the graph together. Nobody
    checks the tensors of such a graph again, and only `trigraph.torch` takes it. The program takes graphs of the same
    numbers as the one that it was made with: nodes, edges, largest in-degree.
    """

    type_name: str
    tensors: list[torch.Tensor | None]
    numbers: list[int]

    @classmethod
    def of(cls, graph: CSC | EdgeGraph | Segments) -> GraphTensors:
        """Take a graph apart, with what its backward needs.

        Raises
        ------
        TypeError
            If it is no graph object.
        """
        if type(graph).__name__ not in GRAPH_PARTS:
            expected = ", ".join(GRAPH_PARTS)
            raise TypeError(f"GraphTensors.of: graph is a {type(graph).__name__}; expected one of {expected}")
        # Views, since a graph's own tensors refer to the graph, which no checkpoint may hold.
        views = [None if t is None else t.detach() for t in tensors(graph, True)]
        return cls(type(graph).__name__, views, list(numbers(graph)))

    def graph(self) -> Any:
        """Return the graph object, whose arrays are these tensors."""
        return assemble(self.type_name, tuple(self.tensors), tuple(self.numbers))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return how this is pickled: for `torch.save` as the graph, which is built and checked again in `torch.load`.

        Torch's safe loading would call this class with whatever tensors a checkpoint names, and may change lists and
        tensors of the checkpoint afterwards. It may call `rebuilt_apart` alone, whose tensors are copies.
        """
        if protocol != torch.serialization.DEFAULT_PROTOCOL:
            return super().__reduce_ex__(protocol)
        return rebuilt_apart, _reduce(self.graph(), protocol)[1]


def rebuilt(type_name: str, arguments: tuple[Any, ...]) -> Any:
    """Return the graph object of a checkpoint, built and checked by its constructor; it raises what that raises.

    Arguments are those of the constructor, with tensors in place of arrays.
    """
    if type_name not in MAKERS:
        raise ValueError(f"rebuilt: type_name is {shown(type_name)}; expected one of {', '.join(MAKERS)}")
    return MAKERS[type_name](*arguments)


def rebuilt_apart(type_name: str, arguments: tuple[Any, ...]) -> GraphTensors:
    """Return the `GraphTensors` of a checkpoint: those of the graph that `rebuilt` returns."""
    return GraphTensors.of(rebuilt(type_name, arguments))


MAKERS: dict[str, Callable[..., Any]] = {"CSC": CSC, "EdgeGraph": with_reverse, "Segments": Segments}


def _reduce(graph: Any, protocol: int) -> tuple[Any, ...]:
    """Return how a graph is pickled: with tensors for torch.save, which has a protocol of its own, arrays for others.

    `torch.load` with weights_only=True builds tensors and numbers, and calls `rebuilt`, which checks them.
    """
    make, arguments = graph.__reduce__()
    if protocol != torch.serialization.DEFAULT_PROTOCOL:
        return make, arguments
    as_tensors = tuple(tensor_of(a) if array_kind(a) else a for a in arguments)
    return rebuilt, (type(graph).__name__, as_tensors)


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function so that a compiled program leaves off where it is called, and goes on after it.

    `torch.compiler.disable` does this, but imports torch's compiler, which takes a second: it is called when a program
    is compiled for the first time. From then on the compiler does not look into the function either where it has given
    up on the caller, and goes on with what the caller calls.
    """
    if not COMPILED:
        return torch.compiler.disable(function)  # type: ignore[no-any-return, no-untyped-call]
    disabled: list[Callable[P, R]] = []

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_dynamo_compiling() and not disabled:
            disabled.append(torch.compiler.disable(function))  # type: ignore[no-untyped-call]
        return (disabled[0] if disabled else function)(*args, **kwargs)

    return with_own_code(call)


def with_own_code(function: Callable[P, R]) -> Callable[P, R]:
    """Give a function, one of several made by the same lines, a code object of its own.

    Torch's compiler counts for each code object how often it has compiled it, and gives up at a limit.
    """
    function.__code__ = function.__code__.replace(co_name=function.__name__)
    return function


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
    torch.serialization.add_safe_globals([rebuilt, rebuilt_apart])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch 2.6 warns of a function that it calls itself
        torch.export.register_dataclass(GraphTensors, serialized_type_name="trigraph.GraphTensors")
    for cls in GRAPH_TYPES.values():
        _build_outside(cls)
        cls.__reduce_ex__ = _reduce  # type: ignore[assignment, method-assign]
