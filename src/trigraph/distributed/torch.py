"""Operators on a divided graph in PyTorch, differentiable twice, and other functions that models need.

Tensors with rows contain the rows that the rank owns, and so do their gradients. Parameters are the same on all ranks.
Gradients of parameters are complete on every rank and need no reduction. All ranks must make the same calls in the same
order, including the backward pass. Results are bitwise equal for any number of ranks.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from trigraph.arrays import get_array_module
from trigraph.checks import bind_arguments
from trigraph.distributed.block_tables import GraphlessFormat
from trigraph.distributed.exchange import require_agreement
from trigraph.distributed.functions import FUNCTIONS as ARRAYS
from trigraph.distributed.partition import Partition
from trigraph.distributed.processors import add_processor_share_listener
from trigraph.distributed.sums import add_local_subtrees, sum_all_chunks
from trigraph.table import DEFINITIONS, OPERATORS, ORDERS, Definition, result_type
from trigraph.table.public import distributed_signature, set_function_metadata
from trigraph.torch.arrays import view_array_as_tensor, view_tensor_as_array

__all__ = ["FUNCTIONS", "linear", "rowwise", "total"]

# torch computes elementwise functions with vector instructions, but the last few elements with scalar instructions,
# which round exponentials differently. Rows are thus padded to a multiple of LANES elements, and torch gets at most
# AT_A_TIME elements at once, which it does not divide among threads. Results do not depend on the number of rows.
LANES, AT_A_TIME = 32, 16384

_threads = torch.get_num_threads()


def _limit_torch_threads(number: int) -> None:
    """Limit the number of threads of torch, unless the user has set it."""
    global _threads
    chosen = any(os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"))
    if torch.get_num_threads() == _threads and not chosen:
        _threads = min(number, _threads)
        torch.set_num_threads(_threads)


add_processor_share_listener(_limit_torch_threads)


class _ReverseModeFunction(torch.autograd.Function):
    """Autograd function that refuses forward mode."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise RuntimeError("trigraph.distributed.torch: forward mode; expected reverse mode, torch.autograd.grad")


class _DifferentiableOperator(_ReverseModeFunction):
    """X_fwd, X_bwd or X_bwd2. Each is the derivative of the previous one; X_bwd2 has no derivative."""

    @staticmethod
    def forward(
        ctx: Any, spec: Definition, order: int, keywords: dict[str, Any], wanted: Sequence[str], *tensors: Tensor | None
    ) -> Any:
        ctx.spec, ctx.order, ctx.keywords = spec, order, keywords
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        name = f"{spec.name}_{ORDERS[order]}"
        arguments = {n: view_tensor_as_array(t) for n, t in zip(_list_array_names(spec, order), tensors, strict=True)}
        fields = ARRAYS[name](**arguments, **keywords, **({"wrt": wanted} if order else {}))
        if order:
            return tuple(_to_tensor(getattr(fields, n)) for n in _list_array_names(spec, order - 1))
        results = [_to_tensor(fields)] if OPERATORS[name].returns_array else [_to_tensor(array) for array in fields]
        outputs, constants = results[: len(spec.outputs)], results[len(spec.outputs) :]
        ctx.outputs = [torch.empty_like(t, device="meta") for t in outputs if t is not None]  # outputs are never None
        ctx.mark_non_differentiable(*(t for t in constants if t is not None))
        return results[0] if OPERATORS[name].returns_array else tuple(results)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        spec, order, names = ctx.spec, ctx.order, _list_array_names(ctx.spec, ctx.order)
        if order == 2:
            raise RuntimeError(
                f"{spec.name}_bwd2: a third derivative was requested; expected at most two derivatives of {spec.name}"
            )
        wanted = tuple(n for n, needed in zip(names, ctx.needs_input_grad[4:], strict=True) if needed)
        if order == 0:
            cotangents = cotangents[: len(spec.outputs)]  # the other cotangents belong to constants
        if not wanted or all(t is None for t in cotangents):
            return (None,) * (4 + len(names))
        if order == 0:
            device = ctx.saved_tensors[0].device
            pairs = zip(cotangents, ctx.outputs, strict=True)
            cotangents = tuple(torch.zeros_like(like, device=device) if t is None else t for t, like in pairs)
        keywords = {n: value for n, value in ctx.keywords.items() if n not in spec.request_names}
        gradients = _DifferentiableOperator.apply(spec, order + 1, keywords, wanted, *cotangents, *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        return (None, None, None, None, *gradients)


def _to_tensor(array: Any) -> Tensor | None:
    return None if array is None else view_array_as_tensor(array)


def _list_array_names(spec: Definition, order: int) -> tuple[str, ...]:
    """Return the names of the array arguments of an order, in the table's order, inputs last."""
    inputs, gradients = [a.name for a in spec.inputs], [f"grad_{a.name}" for a in spec.outputs]
    return (*[f"gg_{n}" for n in inputs if order == 2], *[n for n in gradients if order], *inputs)


def _make_tensor_function(spec: Definition) -> Callable[..., Any]:
    op = OPERATORS[f"{spec.name}_fwd"]
    signature = distributed_signature(op)

    def compute_on_ranks(
        *args: Any, partition: Partition | None = None, backend: str | None = None, **kwargs: Any
    ) -> Any:
        values = bind_arguments(op, args, kwargs, signature)
        inputs = [values.pop(a.name) for a in spec.inputs]
        for a, tensor in zip(spec.inputs, inputs, strict=True):
            if not (isinstance(tensor, Tensor) or (tensor is None and a.optional)):
                raise TypeError(f"{op.name}: {a.name} is a {type(tensor).__name__}; expected a torch.Tensor")
        keywords = {**values, "backend": backend, **({} if op.graph_kind else {"partition": partition})}
        results = _DifferentiableOperator.apply(spec, 0, keywords, (), *inputs)  # type: ignore[no-untyped-call]
        return results if op.returns_array else result_type(op.name)(*results)

    doc = f"{spec.summary} Like `trigraph.distributed.{op.name}`, but for tensors, and twice differentiable."
    set_function_metadata(compute_on_ranks, "trigraph.distributed.torch", spec.name, signature, doc)
    return compute_on_ranks


FUNCTIONS = {spec.name: _make_tensor_function(spec) for spec in DEFINITIONS}
globals().update(FUNCTIONS)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, rows: Partition) -> Tensor:
    """Return ``x weight^T + bias`` by `basis_embedding_radial`, bitwise independent of the number of rows.

    Parameters
    ----------
    x : Tensor, shape (number of rows, inputs)
    weight : Tensor, shape (outputs, inputs)
    bias : Tensor, shape (outputs,), or None
    rows : Partition
        Partition of the rows of `x`, from `Partition.get_row_partition`.

    Returns
    -------
    Tensor, shape (number of rows, outputs)
    """
    if bias is not None:
        x = torch.cat([x, x.new_ones(len(x), 1)], 1)
        weight = torch.cat([weight, bias[:, None]], 1)
    return FUNCTIONS["basis_embedding_radial"](x, weight, partition=rows)


def rowwise(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply an elementwise function so that results are bitwise independent of the number of rows.

    Parameters
    ----------
    function : callable
        For example `torch.nn.functional.silu`.
    x : Tensor, shape (number of rows, width)
    """
    width = x.shape[1]
    filled = F.pad(x, (0, -width % LANES))
    at_a_time = max(AT_A_TIME // max(filled.shape[1], 1), 1)
    return torch.cat([function(piece) for piece in filled.split(at_a_time)])[:, :width]  # type: ignore[no-untyped-call]


class _SumOverRanks(_ReverseModeFunction):
    """Sum over the rows of all ranks; its derivative is `_RepeatForRows`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Partition) -> Tensor:
        ctx.rows, ctx.number = rows, len(x)
        return _sum_rows_of_ranks(x, rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _RepeatForRows.apply(grad, ctx.rows, ctx.number), None  # type: ignore[no-untyped-call]


class _RepeatForRows(_ReverseModeFunction):
    """Repetition of a value, equal on all ranks, for each row; its derivative is `_SumOverRanks`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Partition, number: int) -> Tensor:
        ctx.rows = rows
        return x.expand(number, *x.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _SumOverRanks.apply(grad, ctx.rows), None, None  # type: ignore[no-untyped-call]


def _sum_rows_of_ranks(x: Tensor, rows: Partition) -> Tensor:
    if not isinstance(rows, Partition):
        raise TypeError(f"total: rows is a {type(rows).__name__}; expected the result of get_row_partition")
    with require_agreement(rows.comm, ("total", "total"), rows.name) as facts:
        if not isinstance(rows.kind, GraphlessFormat):
            raise TypeError("total: rows is a Partition of a graph; expected the result of get_row_partition")
        own = rows.owned["num_edges"].size
        if x.dtype not in (torch.float32, torch.float64) or x.ndim == 0 or len(x) != own:
            shown = f"{x.dtype} {tuple(x.shape)} on rank {rows.comm.rank}"
            raise ValueError(f"total: x is {shown}; expected float32 or float64 and the {own} rows that the rank owns")
        facts.append(("x", f"of {x.dtype} with rows of shape {tuple(x.shape[1:])}"))
    chunks = rows.chunks
    if chunks.number == 0:
        return x.new_zeros(x.shape[1:])
    exchanged_rows = chunks.halos["num_edges"].start(view_tensor_as_array(x)).wait()
    xp = get_array_module(exchanged_rows)
    places = (subgraph.places["num_edges"] for subgraph in chunks.subgraphs)
    parts = (
        (xp.asarray((exchanged_rows if at is None else exchanged_rows[xp.asarray(at)]).sum(axis=0)),) for at in places
    )
    (sums,) = sum_all_chunks(rows.comm, add_local_subtrees(parts, chunks.first), chunks.number)
    return torch.from_numpy(sums).to(x.device)


def total(x: Tensor, rows: Partition) -> Tensor:
    """Return the sum over the rows of all ranks, such as an energy or a loss, on every rank.

    Parameters
    ----------
    x : Tensor, shape (number of rows, ...)
    rows : Partition
        Partition of the rows of `x`, from `Partition.get_row_partition`.
    """
    return _SumOverRanks.apply(x, rows)  # type: ignore[no-untyped-call]


def __dir__() -> list[str]:
    return sorted([*__all__, *FUNCTIONS])
