"""Bugs in how neighbours are counted and summed."""

import torch

from field.entry import mistake, numbers, with_gradient

Tensor = torch.Tensor


def gather(x: Tensor, rows: Tensor) -> Tensor:
    """Return squares of rows."""
    return x[rows] ** 2


def _by_narrow_places(g: Tensor, x: Tensor, rows: Tensor) -> tuple[Tensor, None]:
    width = x.shape[1]
    # int8 stands for the int32 of a large array: from 128 on places are wrong.
    places = (rows.to(torch.int8) * width)[:, None] + torch.arange(width, dtype=torch.int8)
    terms = (2 * x[rows] * g).flatten()
    return torch.zeros_like(x).flatten().index_add(0, places.flatten().long() % x.numel(), terms).view_as(x), None


@mistake(
    "narrow offsets",
    "onnxruntime #28107, cuEquivariance 0.9.1",
    gather,
    lambda: (numbers(20, 8), torch.tensor([0, 3, 15, 17])),
)
@with_gradient(_by_narrow_places)
def narrow_gather(x: Tensor, rows: Tensor) -> Tensor:
    """The place of an element, row times width, overflows the type of the indices."""
    return gather(x, rows)


@mistake("rows read twice", "mxnet #11899", gather, lambda: (numbers(3, 2), torch.tensor([0, 2, 2])))
@with_gradient(lambda g, x, rows: (torch.zeros_like(x).index_put((rows,), 2 * x[rows] * g), None))
def overwriting_gather(x: Tensor, rows: Tensor) -> Tensor:
    """The gradient of a gather assigns where it must add, so that a row that is read twice gets one term."""
    return gather(x, rows)


BLOCK = 4


def _of_full_blocks(g: Tensor, x: Tensor) -> Tensor:
    done = len(x) // BLOCK * BLOCK  # the blocks of the launch; the last one is not full
    return torch.cat([g[:done] * x[:done].exp(), torch.zeros_like(x[done:])])


@mistake("last block", "triton #2020", torch.exp, lambda: (numbers(2 * BLOCK + 1),), "elements")
@with_gradient(_of_full_blocks)
def blocked(x: Tensor) -> Tensor:
    """The backward runs over as many blocks as divide the rows, and leaves the rest out."""
    return x.exp()


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


def _no_edges() -> tuple[Tensor, ...]:
    return numbers(3, 2), torch.zeros(0, dtype=torch.int64)


@mistake("no edges", "DGL #1754, DGL #1598", loop, _no_edges, "call", 0)
def loop_by_last_target(x: Tensor, targets: Tensor) -> Tensor:
    """A graph without edges ends in an error."""
    return sums_by_last_target(x[targets], targets) + x


def _in_any_order(g: Tensor, x: Tensor, rows: Tensor) -> tuple[Tensor, None]:
    arrival = torch.randperm(len(rows))  # atomic additions come in any order
    return torch.zeros_like(x).index_add(0, rows[arrival], (2 * x[rows] * g)[arrival]), None


@mistake(
    "atomic additions",
    "PyG #2788, deepmd-kit #2603",
    gather,
    lambda: (numbers(1, 8), torch.zeros(30, dtype=torch.int64)),
    "repeat",
)
@with_gradient(_in_any_order)
def atomic_spread(x: Tensor, rows: Tensor) -> Tensor:
    """Terms of a gradient are added in the order of their arrival, so that its last bits differ from run to run."""
    return gather(x, rows)
