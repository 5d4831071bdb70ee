"""Bugs in energies of atoms: what is missing in forces, cutoffs, images, angles."""

import torch

from field.entry import mistake, numbers, with_gradient

Tensor = torch.Tensor


def _vectors(positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the vectors between neighbours of a chain, and their lengths."""
    vectors = positions[1:] - positions[:-1]
    return vectors, vectors.norm(dim=-1)


def _cosines(positions: Tensor) -> Tensor:
    vectors, lengths = _vectors(positions)
    return (vectors[1:] * vectors[:-1]).sum(-1) / (lengths[1:] * lengths[:-1])


def chain(positions: Tensor) -> Tensor:
    """Energy of bonds and angles of a chain of atoms."""
    return torch.exp(-_vectors(positions)[1]).sum() + torch.sin(_cosines(positions)).sum()


@mistake("angles without history", "matgl #834", chain, lambda: (numbers(4, 3),))
def chain_without_history(positions: Tensor) -> Tensor:
    """The line graph is built under no_grad, so that forces lack the angles."""
    with torch.no_grad():
        cosines = _cosines(positions)
    return torch.exp(-_vectors(positions)[1]).sum() + torch.sin(cosines).sum()


def embedded(distance: Tensor) -> Tensor:
    """Energy of two atoms of different species, each embedded in the other's electron density."""
    return torch.exp(-2.0 * distance).sqrt().sum() - torch.exp(-distance).square().sum()


def _by_one_density(g: Tensor, distance: Tensor) -> Tensor:
    a, b = torch.exp(-2.0 * distance), torch.exp(-distance)
    slope = -2.0 * a  # of the density of species a; the second term needs that of b
    return g * (0.5 / a.sqrt() * slope - 2 * b * slope)


@mistake("one density twice", "matscipy #20", embedded, lambda: (numbers(3).abs() + 0.5,))
@with_gradient(_by_one_density)
def embedded_in_one_species(distance: Tensor) -> Tensor:
    """Forces between two species take the electron density of one of them twice."""
    return embedded(distance)


def harmonics(x: Tensor) -> Tensor:
    """Energy of products of components up to degree 3."""
    return (x.sum(-1) + (x[:, 0] * x[:, 1]) ** 2 / 2 + x.prod(-1) ** 2).sum()


def _off(g: Tensor, x: Tensor) -> Tensor:
    a, b, c = x.unbind(-1)
    first = torch.stack([a * b * b, a * a * b, 0 * c], -1)
    third = 2 * torch.stack([a * (b * c) ** 2, 0.97 * b * (a * c) ** 2, c * (a * b) ** 2], -1)
    return g * (1 + first + third)


@mistake("highest degree", "OpenEquivariance #211, nequip #610", harmonics, lambda: (numbers(2, 3),), "symmetry", 2)
@with_gradient(_off)
def harmonics_off(x: Tensor) -> Tensor:
    """The energy is right, forces are some per cent off at the highest degree: a Hessian that is not symmetric."""
    return harmonics(x)


def straight(positions: Tensor) -> Tensor:
    """Energy of an angle, by its cosine."""
    cosine = _cosines(positions)
    return (1 + 4 * cosine**3 - 3 * cosine).sum()


def _line() -> tuple[Tensor]:
    return (torch.tensor([[0.0, 0, 0], [0, 0, 1], [0, 0, 2]], dtype=torch.float64),)


@mistake("atoms on a line", "Molly.jl #58, g-xtb #21", straight, _line)
def straight_by_angle(positions: Tensor) -> Tensor:
    """The derivative of an angle divides by a sine, which is 0 where atoms lie on a line."""
    return (1 + torch.cos(3 * torch.acos(_cosines(positions)))).sum()


CUTOFF = 1.5


def faded(distance: Tensor) -> Tensor:
    """Attraction that ends smoothly at the cutoff."""
    inside = (1 - (distance / CUTOFF) ** 2).clamp(min=0) ** 4
    return (torch.exp(-distance) * inside).sum()


@mistake("jump at the cutoff", "torchmd-net #254", faded, lambda: (torch.tensor([CUTOFF, 0.7], dtype=torch.float64),))
def cut(distance: Tensor) -> Tensor:
    """The energy jumps as an atom crosses the cutoff."""
    return torch.where(distance <= CUTOFF, torch.exp(-distance), 0.0).sum()


CELL = 2.0


def all_images(x: Tensor) -> Tensor:
    """Energy of an atom at `x` with the images of another at 0, in a cell of length 2."""
    shifts = CELL * torch.arange(-8, 9, dtype=x.dtype)
    return torch.exp(-((x[:, None] - shifts) ** 2)).sum()


@mistake(
    "nearest image alone",
    "FreeBird.jl #150",
    all_images,
    lambda: (torch.tensor([CELL / 2, 0.3], dtype=torch.float64),),
)
def nearest_image(x: Tensor) -> Tensor:
    """Of several images of an atom within reach only the nearest counts."""
    return torch.exp(-((x - CELL * torch.round(x / CELL)) ** 2)).sum()


def chosen_pairs(positions: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Energy of pairs; those from an atom to itself are padding, left out before distances are computed."""
    real = first != second
    return torch.exp(-(positions[first[real]] - positions[second[real]]).norm(dim=-1)).sum()


def _pairs() -> tuple[Tensor, ...]:
    return numbers(3, 3), torch.tensor([0, 1, 2]), torch.tensor([1, 2, 2])


@mistake("padded distances", "schnetpack #6", chosen_pairs, _pairs)
def padded_pairs(positions: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Padded pairs have distance 0, whose square root has an infinite slope."""
    distances = (positions[first] - positions[second]).square().sum(-1).sqrt()
    return ((first != second) * torch.exp(-distances)).sum()
