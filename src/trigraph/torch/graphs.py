"""Graph objects as tensors and numbers, for torch's operators and for exported or traced programs.

A graph object contains NumPy or CuPy arrays, but torch's operators accept only tensors and numbers. Each graph
therefore caches tensor views of its arrays. Programs with a graph argument take a `GraphTensors`, which consists of
tensors and numbers; the graph object that they build from it contains tensors and works with `trigraph.torch` only.
"""

import contextlib
import functools
import inspect
import itertools
import operator
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch

from trigraph.arrays import find_device, format_value, name_library
from trigraph.graphs import CSC, GRAPH_HOOKS, GRAPH_TYPES, LongRows, ReverseCSC, coarsen_attribute
from trigraph.graphs.edge_graph import EdgeGraph, build_with_reverse
from trigraph.graphs.segments import Segments
from trigraph.table import GRAPH_PARTS
from trigraph.table.former_names import keep_former_names
from trigraph.torch.arrays import (
    BorrowedMemory,
    call_in_new_thread,
    use_torch_stream_and_allocator,
    view_array_as_tensor,
    view_tensor_as_array,
)

P = ParamSpec("P")
R = TypeVar("R")

COMPILER_TRACES_CALLS = torch.__version__ >= (2, 11)  # type: ignore[operator]
"""Whether torch's compiler can trace a call. In older versions, each call breaks the graph of a compiled program."""


class _Owner:
    """Weak reference to a graph, stored on the graph's first tensor and dropped when that tensor is copied."""

    def __init__(self, graph: Callable[[], Any] = lambda: None) -> None:
        self.graph = graph

    def __reduce__(self) -> tuple[Any, ...]:
        return (_Owner, ())


def view_as_tensor(array: Any) -> Any:
    """Return a tensor that shares an array's memory; return tensors and None unchanged."""
    if array is None or isinstance(array, torch.Tensor):
        return array
    if not isinstance(array, np.ndarray):
        return view_array_as_tensor(array)
    # Torch warns about read-only arrays, so pass a writeable alias of the array; nothing writes to it.
    return torch.from_numpy(np.ndarray(array.shape, array.dtype, BorrowedMemory.at_address(array.ctypes.data, array)))


def _to_ordinary_tensors(arrays: Iterable[Any]) -> tuple[Any, ...]:
    """Convert arrays to ordinary tensors, regardless of active modes and transforms.

    Dispatch modes may change the class of new tensors, torch.func wraps them, and autograd cannot save tensors created
    in inference mode. The cached tensors of a graph outlive such modes and must not depend on them.
    """
    arrays = tuple(arrays)
    with torch.inference_mode(False) if torch.is_inference_mode_enabled() else contextlib.nullcontext():
        plain = tuple(map(view_as_tensor, arrays))
    made = [t for t in plain if t is not None]
    if _is_ordinary(next((t for t in made if t.numel()), made[0])):  # all are alike, but empty ones always look plain
        return plain
    return call_in_new_thread(lambda: tuple(map(view_as_tensor, arrays)))


def _is_ordinary(tensor: torch.Tensor) -> bool:
    if type(tensor) is not torch.Tensor or tensor.is_inference():
        return False
    try:
        return tensor.numel() == 0 or tensor.data_ptr() != 0
    except RuntimeError:  # torch.func wrappers have no memory
        return False


def _cache_graph_tensors(graph: Any) -> None:
    """Cache tensor views of a graph's arrays and, once they exist, of its reverse arrays.

    The views are stored in the graph's `_built` and stay valid because the arrays never change.
    """
    parts, built = GRAPH_PARTS[type(graph).__name__], graph._built
    if graph.kind == "cupy":
        if not torch.backends.cuda.is_built():  # torch was built without CUDA
            return
        built.setdefault("streams", set()).add(_get_current_stream(graph))
    if "tensors" not in built:
        views = built.setdefault("tensors", _to_ordinary_tensors(getattr(graph, name) for name in parts.arrays))
        views[0].trigraph = _Owner(weakref.ref(graph))
    if "reverse" in built and "reverse_tensors" not in built:
        built.setdefault("reverse_tensors", _to_ordinary_tensors(built["reverse"]))


def _get_current_stream(graph: Any) -> Any:
    return torch.cuda.current_stream(torch.device(graph.device))


def record_streams(graphs: Iterable[Any]) -> None:
    """Keep torch from reusing the memory of graphs built on other streams until the current stream is done with it."""
    for graph in graphs:
        built = {} if graph is None else graph._built
        if "streams" in built and built["streams"] != {stream := _get_current_stream(graph)}:
            for tensor in (*built["tensors"], *built.get("reverse_tensors", ())):
                if tensor is not None:
                    tensor.record_stream(stream)


def find_cached_graph(tensors: tuple[Any, ...]) -> Any:
    """Return the graph whose cached tensors these are (reverse tensors may be None), or None if it no longer exists."""
    owner = getattr(tensors[0], "trigraph", None)
    graph = None if owner is None else owner.graph()
    if graph is None:
        return None
    own, reverse = graph._built["tensors"], graph._built.get("reverse_tensors", ())
    forward, backward = tensors[: len(own)], tensors[len(own) :]
    reverse_matches = all(t is None or t is r for t, r in itertools.zip_longest(backward, reverse))
    return graph if reverse_matches and all(map(operator.is_, forward, own)) else None


def list_graph_tensors(graph: Any, reverse: bool) -> tuple[Any, ...]:
    """Return a graph's arrays as tensors, followed by its reverse arrays (None for each, unless `reverse`).

    Reverse arrays are built once per graph; a compiled program that lacks them builds them in each call.
    """
    parts, built = GRAPH_PARTS[type(graph).__name__], graph._built
    forward: tuple[Any, ...] | None = built.get("tensors")
    if forward is None:
        if torch.compiler.is_compiling():
            raise RuntimeError(
                f"{type(graph).__name__}: this graph was built before trigraph.torch was imported; expected a graph "
                "that was built or used after the import, in a compiled program"
            )
        _cache_graph_tensors(graph)
        forward = built["tensors"]
    if not parts.reverse:
        return forward
    if not reverse:
        return (*forward, *(None for _ in parts.reverse))
    backward: tuple[Any, ...] | None = built.get("reverse_tensors")
    if backward is None and torch.compiler.is_compiling():
        return (*forward, *torch.ops.trigraph.reverse_csc(*forward, graph.num_src_nodes, graph.num_edges))
    if backward is None:
        graph.prepare()
        _cache_graph_tensors(graph)
        backward = built["reverse_tensors"]
    return (*forward, *backward)


def _compute_reverse_arrays(
    offsets: Any, indices: Any, edge_ids: Any, num_src_nodes: int, num_edges: int
) -> tuple[Any, ...]:
    with use_torch_stream_and_allocator(offsets):
        arrays = tuple(map(view_tensor_as_array, (offsets, indices, edge_ids)))
        graph = assemble_graph("CSC", (*arrays, *(None for _ in ReverseCSC._fields)), (num_src_nodes, num_edges, 0, 0))
        return tuple(view_as_tensor(array).clone() for array in graph.prepare())


def _make_fake_reverse_arrays(
    offsets: Any, indices: Any, edge_ids: Any, num_src_nodes: int, num_edges: int
) -> tuple[Any, ...]:
    counts = (indices.shape[0], num_src_nodes + 1, indices.shape[0], num_edges + 1, indices.shape[0])
    return tuple(offsets.new_empty(n) for n in counts)


def list_graph_numbers(graph: Any) -> tuple[int, ...]:
    """Return the numbers of a graph, with flags as 1 or 0; symbolic sizes stay symbolic."""
    return tuple(+getattr(graph, name) for name in GRAPH_PARTS[type(graph).__name__].numbers)


def list_graph_constants(graph: Any) -> tuple[int, ...]:
    """Return those numbers of a graph that tensor shapes do not determine, rounded by `coarsen_attribute`."""
    derived = {name for name, _, _ in GRAPH_PARTS[type(graph).__name__].reverse_lengths}
    named = zip(GRAPH_PARTS[type(graph).__name__].numbers, list_graph_numbers(graph), strict=True)
    return tuple(coarsen_attribute(k, n) for k, n in named if k not in derived)


def build_graph_from_tensors(type_name: str, arrays: Sequence[Any], counts: Sequence[int]) -> Any:
    """Build a graph from its tensors, including reverse tensors, and the numbers from `list_graph_constants`."""
    parts = GRAPH_PARTS[type_name]
    named = dict(zip((*parts.arrays, *parts.reverse), arrays, strict=True))
    sizes = {name: named[array].shape[0] - excess for name, array, excess in parts.reverse_lengths}
    rest = iter(counts)
    return assemble_graph(type_name, tuple(arrays), [sizes[n] if n in sizes else next(rest) for n in parts.numbers])


def assemble_graph(type_name: str, arrays: Any, counts: Any) -> Any:
    """Build a graph from arrays and numbers that were checked before; return None if the first array is None."""
    if arrays[0] is None:
        return None
    parts, cls = GRAPH_PARTS[type_name], GRAPH_TYPES[type_name]
    by_name, reverse = dict(zip(parts.arrays, arrays, strict=False)), arrays[len(parts.arrays) :]
    graph = cls.__new__(cls)
    graph._assign_attributes(**by_name, **dict(zip(parts.numbers, counts, strict=True)))
    graph._assign_attributes(**{name: by_name[array].shape[0] - less for name, array, less in parts.lengths})
    kind = name_library(arrays[0]) or "torch"
    built: dict[str, Any] = {}
    if reverse and reverse[0] is not None:
        built["reverse"] = ReverseCSC(*reverse)
    if kind == "torch":
        built |= {"tensors": tuple(arrays[: len(parts.arrays)]), "reverse_tensors": reverse}
    graph._assign_attributes(kind=kind, device=find_device(arrays[0]), _built=built)
    return graph


def assemble_graph_sharing_memory(
    type_name: str, tensors_of_graph: tuple[Any, ...], counts: Any, long_rows: Any = None
) -> Any:
    """Build a graph, without checks, whose arrays share the memory of tensors (including reverse tensors).

    The tensor values may change later; the numbers must not. `long_rows` maps names of offset arrays to their
    `LongRows`. Other offset arrays must never have long rows, because no call searches for them.
    """
    with use_torch_stream_and_allocator(tensors_of_graph[0]):
        graph = assemble_graph(type_name, tuple(map(view_tensor_as_array, tensors_of_graph)), counts)
        long_rows = {
            n: LongRows(*map(view_tensor_as_array, tensors_of_rows)) for n, tensors_of_rows in (long_rows or {}).items()
        }
    count = len(GRAPH_PARTS[type_name].arrays)
    graph._built.update(tensors=tensors_of_graph[:count], reverse_tensors=tensors_of_graph[count:])
    graph._built.update(
        {f"long rows of {name}": long_rows.get(name) for name in ("offsets", "src_offsets", "row_offsets")}
    )
    tensors_of_graph[0].trigraph = _Owner(weakref.ref(graph))
    return graph


@keep_former_names(of="from_graph")
@dataclass
class GraphTensors:
    """Graph in the form of tensors and numbers, which `torch.export` and `make_fx` accept as an argument.

    Parameters
    ----------
    type_name : {'CSC', 'EdgeGraph', 'Segments'}
    tensors : list of (Tensor or None)
        Index tensors of the graph, followed by its reverse arrays.
    numbers : list of int
        Numbers that tensor shapes do not determine: largest degrees, rounded up to a power of two of at least 128, and
        numbers that are the same for all graphs.

    Notes
    -----
    Construct instances with :meth:`from_graph`. In an exported or traced program, :meth:`graph` returns a graph object
    that works with `trigraph.torch` only. The graph is not checked, even if its tensors were modified. A program
    exported with :attr:`dynamic_shapes`, or traced with ``tracing_mode="symbolic"``, accepts graphs of any size with
    the same `list_graph_numbers`.
    """

    type_name: str
    tensors: list[torch.Tensor | None]
    numbers: list[int]

    @classmethod
    def from_graph(cls, graph: CSC | EdgeGraph | Segments) -> "GraphTensors":
        """Return a `GraphTensors` with copies of the graph's tensors, including reverse arrays, and its numbers.

        Raises
        ------
        TypeError
            If `graph` is not a graph object.
        """
        if type(graph).__name__ not in GRAPH_PARTS:
            expected = ", ".join(GRAPH_PARTS)
            raise TypeError(f"GraphTensors.from_graph: graph is a {type(graph).__name__}; expected one of {expected}")
        # Copy the tensors: the caller may modify a `GraphTensors`, but must not modify a checked graph.
        copies = [None if t is None else t.detach().clone() for t in list_graph_tensors(graph, True)]
        return cls(type(graph).__name__, copies, list(list_graph_constants(graph)))

    @property
    def dynamic_shapes(self) -> list[Any]:
        """Value of `dynamic_shapes` for this argument of ``torch.export.export``, to allow graphs of any size."""
        auto = torch.export.Dim.AUTO
        return [None, [None if t is None else {0: auto} for t in self.tensors], [None for _ in self.numbers]]

    def graph(self) -> Any:
        """Return a graph object whose arrays are these tensors."""
        return build_graph_from_tensors(self.type_name, self.tensors, self.numbers)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle for `torch.save` as a graph, which `torch.load` rebuilds and checks.

        If safe loading could call this class, a checkpoint could modify the tensors after the check. Only
        `rebuilt_apart`, which copies the tensors, is therefore registered for safe loading.
        """
        if protocol != torch.serialization.DEFAULT_PROTOCOL:
            return super().__reduce_ex__(protocol)
        return rebuilt_apart, _reduce_graph(self.graph(), protocol)[1]


def rebuilt(type_name: str, arguments: tuple[Any, ...]) -> Any:
    """Rebuild a graph from a checkpoint; the graph's constructor checks `arguments` (tensors and numbers)."""
    if type_name not in CONSTRUCTORS:
        raise ValueError(f"rebuilt: type_name is {format_value(type_name)}; expected one of {', '.join(CONSTRUCTORS)}")
    return CONSTRUCTORS[type_name](*arguments)


def rebuilt_apart(type_name: str, arguments: tuple[Any, ...]) -> GraphTensors:
    """Rebuild a `GraphTensors` from a checkpoint, with copies of the tensors of the checked graph."""
    return GraphTensors.from_graph(rebuilt(type_name, arguments))


CONSTRUCTORS: dict[str, Callable[..., Any]] = {"CSC": CSC, "EdgeGraph": build_with_reverse, "Segments": Segments}


def _reduce_graph(graph: Any, protocol: int) -> tuple[Any, ...]:
    """Pickle a graph as tensors for torch.save, which is recognized by its pickle protocol, and as arrays otherwise.

    `torch.load` with weights_only=True loads the tensors and numbers, and passes them to `rebuilt` for checking.
    """
    make, arguments = graph.__reduce__()
    if protocol != torch.serialization.DEFAULT_PROTOCOL:
        return make, arguments
    as_tensors = tuple(view_as_tensor(a) if name_library(a) else a for a in arguments)
    return rebuilt, (type(graph).__name__, as_tensors)


def exclude_from_compilation(function: Callable[P, R]) -> Callable[P, R]:
    """Exclude a function from compilation, so that each call from a compiled program is a graph break.

    `torch.compiler.disable` imports torch's compiler, which takes a second, so it is applied only when a program is
    first compiled. From then on, uncompiled code also calls the disabled function.
    """
    if not COMPILER_TRACES_CALLS:
        return _disable_compilation(function)
    disabled: Callable[P, R] | None = None

    @functools.wraps(function)
    def call_uncompiled(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal disabled
        if torch.compiler.is_dynamo_compiling() and disabled is None:
            disabled = _disable_compilation(function)
        return (disabled or function)(*args, **kwargs)

    return replace_code_object(call_uncompiled)


def _disable_compilation(function: Callable[P, R]) -> Callable[P, R]:
    """Exclude a function from compilation; new versions of torch state the reason in ``fullgraph=True`` errors."""
    text = (
        "trigraph builds graphs, finds neighbours and takes derivatives outside of compiled programs: "
        "with fullgraph=True pass a graph (trigraph.CSC.from_edge_index) or neighbors; "
        "forces are compiled by trigraph.torch.compile_potential"
    )
    reason = {"reason": text} if "reason" in inspect.signature(torch.compiler.disable).parameters else {}
    return torch.compiler.disable(function, **reason)  # type: ignore[no-any-return, no-untyped-call]


def replace_code_object(function: Callable[P, R]) -> Callable[P, R]:
    """Give a function its own code object, which it would otherwise share with others from the same source.

    Torch's compiler limits the number of compilations per code object.
    """
    function.__code__ = function.__code__.replace(co_name=function.__name__)
    return function


def _exclude_constructors_from_compilation(cls: type) -> None:
    """Exclude graph-building methods, which use NumPy or CuPy, from compilation."""
    for name, method in list(vars(cls).items()):
        if name in ("__init__", "renumber_nodes", "triplets") or name.startswith("from_"):
            is_classmethod = isinstance(method, classmethod)
            outside = exclude_from_compilation(method.__func__ if is_classmethod else method)
            setattr(cls, name, classmethod(outside) if is_classmethod else outside)


def register_graphs(library: torch.library.Library) -> None:
    """Register graph objects with torch, and let all graphs built from now on cache their tensors."""
    results = ", ".join("Tensor" for _ in ReverseCSC._fields)
    library.define(
        "reverse_csc(Tensor offsets, Tensor indices, Tensor edge_ids, SymInt num_src_nodes, SymInt num_edges) -> "
        f"({results})"
    )
    for key in ("CPU", "CUDA"):
        library.impl("reverse_csc", _compute_reverse_arrays, key)
    torch.library.register_fake("trigraph::reverse_csc", _make_fake_reverse_arrays, lib=library)
    GRAPH_HOOKS.append(_cache_graph_tensors)
    torch.serialization.add_safe_globals([rebuilt, rebuilt_apart])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch 2.6 itself calls a deprecated function
        torch.export.register_dataclass(GraphTensors, serialized_type_name="trigraph.GraphTensors")
    for cls in GRAPH_TYPES.values():
        _exclude_constructors_from_compilation(cls)
        cls.__reduce_ex__ = _reduce_graph  # type: ignore[assignment, method-assign]
