"""Batching rules for torch.vmap: one call computes many batch entries on a graph made of disjoint copies."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from trigraph.table import GRAPH_PARTS, SYMBOLS, Array
from trigraph.torch.graphs import assemble_graph, exclude_from_compilation, list_graph_numbers, list_graph_tensors
from trigraph.torch.signatures import apply_to_batch_entries

MOST_ROWS = 1 << 16  # row limit of arrays that combine batch entries; larger arrays need more memory and are not faster


def find_member_axis(array: Array) -> int | None:
    """Return an array's axis over the nodes, edges or other members of a graph, or None if there is no such axis."""
    return next((k for k, dim in enumerate(array.dims) if dim in SYMBOLS and SYMBOLS[dim].minimum == 0), None)


def repeat_graph(graph: Any, num_copies: int, reverse: bool) -> Any:
    """Return `num_copies` disjoint copies of a graph as one graph of tensors, with reverse arrays if `reverse`."""
    parts = GRAPH_PARTS[type(graph).__name__]
    given = dict(zip((*parts.arrays, *parts.reverse), list_graph_tensors(graph, reverse), strict=True))
    for size, names in parts.numbered.items():
        for name in names:
            given[name] = _repeat_shifted_indices(given[name], "offsets" in name, getattr(graph, size), num_copies)
    named = zip(parts.numbers, list_graph_numbers(graph), strict=True)
    counts = [n * num_copies if name in parts.numbered else n for name, n in named]
    return assemble_graph(type(graph).__name__, tuple(given.values()), counts)


def _repeat_shifted_indices(t: Tensor | None, is_offsets: bool, size: int, num_copies: int) -> Tensor | None:
    """Return `num_copies` concatenated copies of indices or offsets, where copy k is shifted by ``k * size``."""
    if t is None:
        return None
    shifts = size * torch.arange(num_copies, dtype=t.dtype, device=t.device)[:, None]
    if is_offsets:
        return torch.cat([(t[:-1] + shifts).flatten(), t.new_full((1,), size * num_copies)])
    return _shift_indices(t.expand(num_copies, -1), shifts).flatten()


def _shift_indices(t: Tensor, shifts: Tensor) -> Tensor:
    return torch.where(t < 0, t, t + shifts)  # -1 marks a missing index


def make_vmap_rule(op: Any, apply: Callable[..., Any]) -> Callable[..., Any]:
    """Return the torch.vmap rule of the `TorchOperator` `op`; `apply` calls the operator with flat arguments.

    All copies of the graph share the arrays that have no node or edge axis, such as weights. If a shared array is
    batched, or its gradient is requested, the rule applies the operator to each entry separately.
    """
    axes = {a.name: find_member_axis(a) for a in (*op.op.arguments, *op.op.fields)}
    indices = {a.name for a in (*op.op.arguments, *op.op.fields) if a.index}
    common = [f.name for f in op.op.fields if axes[f.name] is None]
    lengths = (len(parts.arrays) + len(parts.reverse) for _, parts in op.graphs)
    lasts = [n - 1 for n in itertools.accumulate(lengths, initial=op.num_arrays)][1:]

    def compute_batch(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        num_entries = info.batch_size
        if num_entries == 0:
            moved = [a if d is None else a.movedim(d, 0) for a, d in zip(args, in_dims, strict=True)]
            one = op.make_fake_results(
                *(a if d is None else a.new_empty(a.shape[1:]) for a, d in zip(moved, in_dims, strict=True))
            )
            return _pair_with_batch_dims(
                [t.new_empty(0, *t.shape) for t in (one if isinstance(one, tuple) else (one,))]
            )
        step = count_entries_per_call(in_dims, args)
        if step == 1:
            return apply_to_batch_entries(apply, num_entries, in_dims, args)
        results_per_entry: Sequence[Any] = ()
        if op.op.accepts_wrt and not {*common}.isdisjoint(wanted := args[-1].split(",")):
            *given, _ = args
            some = ",".join(n for n in wanted if n in common)
            results_per_entry = apply_to_batch_entries(apply, num_entries, in_dims, (*given, some))[0]
            wanted = [n for n in wanted if n not in common]
            if not wanted:
                return _pair_with_batch_dims(results_per_entry)
            args = (*given, ",".join(wanted))
        chunks = [compute_entries(in_dims, args, k, min(step, num_entries - k)) for k in range(0, num_entries, step)]
        results = [torch.cat(column) if len(column) > 1 else column[0] for column in zip(*chunks, strict=True)]
        if results_per_entry:
            results = [
                a if f.name in common else t for f, t, a in zip(op.op.fields, results, results_per_entry, strict=True)
            ]
        return _pair_with_batch_dims(results)

    def compute_entries(
        in_dims: Sequence[int | None], args: Sequence[Any], begin: int, num_entries: int
    ) -> list[Tensor]:
        """Compute the entries ``begin .. begin+num_entries-1`` in one call, and return their stacked results."""
        arrays, keywords = op.unflatten_arguments(args, lambda t: t)
        reverse = any(args[last] is not None for last in lasts)
        graphs = {name: keywords[name] for name, _ in op.graphs if keywords[name] is not None}
        shifts: Any = None  # offsets that are added to the indices in each copy of the graph
        if indices:
            like = arrays[op.first]
            shifts = graphs["graph"].num_positions * torch.arange(num_entries, device=like.device)[:, None, None]
        keywords |= {name: repeat_graph(graph, num_entries, reverse) for name, graph in graphs.items()}
        for k, (name, dim) in enumerate(zip(op.array_names, in_dims, strict=False)):
            t, axis = arrays[k], axes[name]
            if t is None or axis is None:
                continue
            t = t.expand(num_entries, *t.shape) if dim is None else t.movedim(dim, 0)[begin : begin + num_entries]
            t = _shift_indices(t, shifts.to(t.dtype)) if name in indices else t
            arrays[k] = t.movedim(0, axis).flatten(axis, axis + 1)
        results = apply(*op.flatten_arguments(arrays, keywords, reverse))
        stacked = []
        for f, t in zip(op.op.fields, results if isinstance(results, tuple) else (results,), strict=True):
            axis = axes[f.name]
            if axis is None or t.dim() <= axis:  # a field that was not requested is empty
                stacked.append(t.expand(num_entries, *t.shape))
                continue
            t = t.unflatten(axis, (num_entries, t.shape[axis] // num_entries)).movedim(axis, 0)
            stacked.append(_shift_indices(t, -shifts.to(t.dtype)) if f.name in indices and t.numel() else t)
        return stacked

    def count_entries_per_call(in_dims: Sequence[int | None], args: Sequence[Any]) -> int:
        if any(d is not None for d in in_dims[op.num_arrays : op.num_tensors]):
            return 1  # each entry has its own graph
        rows = [t.shape[0] for t in args[op.num_arrays : op.num_tensors] if t is not None]
        for name, t, d in zip(op.array_names, args, in_dims, strict=False):
            axis = axes[name]
            if t is not None and axis is not None:
                rows.append(t.shape[axis + (d is not None and d <= axis)])
            elif d is not None:
                return 1
        if not all(isinstance(n, int) for n in rows):
            return 1  # symbolic sizes cannot be checked, so the indices of several copies of the graph might overflow
        return max(1, MOST_ROWS // max(1, *rows))

    return exclude_from_compilation(compute_batch)


def _pair_with_batch_dims(results: Sequence[Tensor]) -> tuple[Any, Any]:
    """Return results and their batch dimensions (all 0) as a torch.vmap rule must return them."""
    return (tuple(results), (0,) * len(results)) if len(results) > 1 else (results[0], 0)
