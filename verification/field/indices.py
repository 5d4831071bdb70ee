"""Bugs in how neighbours are counted and summed."""

from __future__ import annotations

from typing import Any

import torch

from trigraph.verification.field.entry import Entry, numbers

Tensor = torch.Tensor


def gather(x: Tensor, rows: Tensor) -> Tensor:
    """Return squares of rows."""
    return x[rows] ** 2


class _Narrow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(x, rows)
        return gather(x, rows)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, rows = ctx.saved_tensors
        width = x.shape[1]
        # int8 stands for the int32 of a large array: from 128 on places are wrong.
        places = (rows.to(torch.int8) * width)[:, None] + torch.arange(width, dtype=torch.int8)
        flat = torch.zeros_like(x).flatten()
        terms = (2 * x[rows] * g).flatten()
        return flat.index_add(0, places.flatten().long() % x.numel(), terms).view_as(x), None


def narrow_gather(x: Tensor, rows: Tensor) -> Tensor:
    """Be `gather`, whose gradient computes places in a narrow type of integer."""
    return _Narrow.apply(x, rows)  # type: ignore[no-any-return]


class _Overwriting(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(x, rows)
        return gather(x, rows)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, rows = ctx.saved_tensors
        return torch.zeros_like(x).index_put((rows,), 2 * x[rows] * g), None


def overwriting_gather(x: Tensor, rows: Tensor) -> Tensor:
    """Be `gather`, whose gradient keeps one of the terms of a row that is read twice."""
    return _Overwriting.apply(x, rows)  # type: ignore[no-any-return]


BLOCK = 4


class _Blocked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        done = len(x) // BLOCK * BLOCK  # the blocks of the launch; the last one is not full
        return torch.cat([g[:done] * x[:done].exp(), torch.zeros_like(x[done:])])


def blocked(x: Tensor) -> Tensor:
    """Exponential function, whose gradient leaves out a last block that is not full."""
    return _Blocked.apply(x)  # type: ignore[no-any-return]


def sums(messages: Tensor, targets: Tensor) -> Tensor:
    """Add messages up at the nodes that they reach."""
    return messages.new_zeros(3, messages.shape[1]).index_add(0, targets, messages.sin())


def sums_by_last_target(messages: Tensor, targets: Tensor) -> Tensor:
    """Take the number of nodes from the last edge, which need not be there."""
    count = max(3, int(targets[-1]) + 1)
    return messages.new_zeros(count, messages.shape[1]).index_add(0, targets, messages.sin())


def loop(x: Tensor, targets: Tensor) -> Tensor:
    """Add rows up at targets, and the node's own."""
    return sums(x[targets], targets) + x


def loop_by_last_target(x: Tensor, targets: Tensor) -> Tensor:
    """Be `loop`, by the last edge."""
    return sums_by_last_target(x[targets], targets) + x


def spread(x: Tensor, rows: Tensor) -> Tensor:
    """Return rows of `x`, squared; some are read many times."""
    return gather(x, rows)


class _Atomic(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(x, rows)
        return gather(x, rows)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, rows = ctx.saved_tensors
        arrival = torch.randperm(len(rows))  # atomic additions come in any order
        return torch.zeros_like(x).index_add(0, rows[arrival], (2 * x[rows] * g)[arrival]), None


def atomic_spread(x: Tensor, rows: Tensor) -> Tensor:
    """Be `spread`, whose gradient adds up in another order each time."""
    return _Atomic.apply(x, rows)  # type: ignore[no-any-return]


ENTRIES = (
    Entry(
        "narrow offsets",
        "onnxruntime #28107, cuEquivariance 0.9.1",
        "the place of an element, row times width, overflows the type of the indices",
        narrow_gather,
        gather,
        lambda: (numbers(20, 8), torch.tensor([0, 3, 15, 17])),
        "differences",
    ),
    Entry(
        "rows read twice",
        "mxnet #11899",
        "the gradient of a gather assigns where it must add, so that a row that is read twice gets one term",
        overwriting_gather,
        gather,
        lambda: (numbers(3, 2), torch.tensor([0, 2, 2])),
        "differences",
    ),
    Entry(
        "last block",
        "triton #2020",
        "the backward runs over as many blocks as divide the rows, and leaves the rest out",
        blocked,
        torch.exp,
        lambda: (numbers(2 * BLOCK + 1),),
        "elements",
    ),
    Entry(
        "no edges",
        "DGL #1754, DGL #1598",
        "a graph without edges ends in an error",
        loop_by_last_target,
        loop,
        lambda: (numbers(3, 2), torch.zeros(0, dtype=torch.int64)),
        "call",
        0,
    ),
    Entry(
        "atomic additions",
        "PyG #2788, deepmd-kit #2603",
        "terms of a gradient are added in the order of their arrival, so that its last bits differ from run to run",
        atomic_spread,
        spread,
        lambda: (numbers(1, 8), torch.zeros(30, dtype=torch.int64)),
        "repeat",
    ),
)
