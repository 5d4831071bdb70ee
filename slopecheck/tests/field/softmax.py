"""Bugs in means and softmaxes over neighbours."""

import torch

from field.entry import mistake, numbers

Tensor = torch.Tensor


def _sums(values: Tensor, nodes: Tensor, number: int) -> Tensor:
    return values.new_zeros(number, *values.shape[1:]).index_add(0, nodes, values)


def shifted_softmax(scores: Tensor, nodes: Tensor) -> Tensor:
    """Softmax over the edges of each node, of differences to the largest score there."""
    largest = scores.new_full((2,), -torch.inf).scatter_reduce(0, nodes, scores.detach(), "amax")
    return plain_softmax(scores - largest[nodes], nodes)


def _large_scores() -> tuple[Tensor, ...]:
    return 100 + numbers(4), torch.tensor([0, 0, 1, 1])


@mistake("softmax of large scores", "PyG #53", shifted_softmax, _large_scores, "float32")
def plain_softmax(scores: Tensor, nodes: Tensor) -> Tensor:
    """Exp of a score of 100 overflows in float32, since the largest score is not subtracted."""
    terms = scores.exp()
    return terms / _sums(terms, nodes, 2)[nodes]


def mean(messages: Tensor, nodes: Tensor) -> Tensor:
    """Mean over the edges of each of three nodes; 0 for a node without an edge."""
    degrees = torch.bincount(nodes, minlength=3).clamp(min=1)
    return (_sums(messages, nodes, 3) / degrees[:, None]).sin()


@mistake("mean of nothing", "DGL #2777, PyG #1129", mean, lambda: (numbers(3, 2), torch.tensor([0, 2, 2])))
def mean_of_nothing(messages: Tensor, nodes: Tensor) -> Tensor:
    """A node without edges divides 0 by 0."""
    return (_sums(messages, nodes, 3) / torch.bincount(nodes, minlength=3)[:, None]).sin()


def weighted_by_choice(values: Tensor, mask: Tensor) -> Tensor:
    """Choose what is no padding."""
    return torch.where(mask[:, None], values.sin(), 0.0).sum(0)


def _masked() -> tuple[Tensor, ...]:
    return numbers(3, 2), torch.tensor([True, True, False])


@mistake("padding times 0", "DGL #5476", weighted_by_choice, _masked, "nan", 0)
def weighted_by_mask(values: Tensor, mask: Tensor) -> Tensor:
    """A NaN in padding reaches all nodes, since it is multiplied by 0 and not left out."""
    return (values.sin() * mask[:, None]).sum(0)


def by_degree(x: Tensor, degrees: Tensor) -> Tensor:
    """Divide rows by degrees, 1 for none."""
    return x.sin() / degrees.clamp(min=1)[:, None]


@mistake("changed argument", "PyG #1553", by_degree, lambda: (numbers(3, 2), torch.tensor([2, 0, 1])), "unchanged", 0)
def by_changed_degree(x: Tensor, degrees: Tensor) -> Tensor:
    """The normalisation changes its argument in place."""
    return x.sin() / degrees.clamp_(min=1)[:, None]
