"""Typical and published mistakes, reduced to small functions, each with its corrected version.

`TEXTBOOK` has mistakes that every check of derivatives must find; `FIELD` has public bugs of other projects.
"""

import torch

from field.entry import Mistake, attach_gradient, draw_normal, make_tensor

# ---- textbook --------------------------------------------------------------------------------------------------------


def cube_or_square(x):
    """Return x^3 for positive x, else -2 x^2."""
    return torch.where(x > 0, x**3, -2 * x**2)


def second_derivatives_wrong_below_zero(gg, g, x):
    """Return second derivatives of `powers` with the wrong value -5 instead of -4 for negative x."""
    return gg * torch.where(x > 0, 3 * x**2, -4 * x), gg * g * torch.where(x > 0, 6 * x, -5.0)


def sine_third_derivatives_wrong_sign(c, d, gg, g, x):
    """Return third derivatives of a sine; the last term with respect to x has the wrong sign."""
    return c * x.cos() - d * g * x.sin(), -d * gg * x.sin(), -c * gg * x.sin() + d * gg * g * x.cos()


def cube_third_derivatives_wrong_factors(c, d, gg, g, x):
    """Return third derivatives of the cube of a sum; the result with respect to x has wrong factors from 0.9 to 1.1."""
    total, factors = x.sum(), torch.linspace(0.9, 1.1, x.numel(), dtype=x.dtype).view_as(x)
    of_gg = 3 * c * total**2 + 6 * d.sum() * g * total
    of_x = 6 * c * gg.sum() * total + 6 * d.sum() * g * gg.sum()
    return of_gg.expand_as(x), 6 * d.sum() * gg.sum() * total, of_x * factors


BEND_OF_SINE = attach_gradient(lambda gg, g, x: (gg * x.cos(), -gg * g * x.sin()), sine_third_derivatives_wrong_sign)
BEND_OF_CUBE = attach_gradient(
    lambda gg, g, x: (3 * gg.sum() * x.sum() ** 2, (6 * gg.sum() * g * x.sum()).expand_as(x)),
    cube_third_derivatives_wrong_factors,
)
MATRIX = (draw_normal(3, 2),)
TEXTBOOK = (
    Mistake(
        "any order",
        "a sum differs from run to run",
        lambda x: (x[torch.randperm(len(x))] ** 3).cumsum(0)[-1],
        lambda x: (x**3).cumsum(0)[-1],
        (draw_normal(60),),
        "repeat",
        0,
    ),
    Mistake(
        "one side of a kink",
        "the second derivative is wrong on one side of a kink",
        attach_gradient(
            cube_or_square,
            attach_gradient(lambda g, x: g * torch.where(x > 0, 3 * x**2, -4 * x), second_derivatives_wrong_below_zero),
        ),
        cube_or_square,
        MATRIX,
        order=2,
    ),
    Mistake(
        "float32",
        "results are off by 0.1% in float32 only",
        lambda x: torch.exp(x) * (1.001 if x.dtype == torch.float32 else 1.0),
        torch.exp,
        MATRIX,
        "float32",
    ),
    Mistake(
        "1e-5",
        "a derivative is wrong by a factor of 1 + 1e-5",
        attach_gradient(lambda x: x.sin(), lambda g, x: g * x.cos() * (1 + 1e-5)),
        torch.sin,
        MATRIX,
    ),
    Mistake(
        "silent zero",
        "the second derivative is silently zero",
        attach_gradient(lambda x: x.exp(), lambda g, x: g * x.detach().exp()),
        torch.exp,
        MATRIX,
        order=2,
    ),
    Mistake(
        "third sign",
        "a term of the third derivative has the wrong sign",
        attach_gradient(lambda x: x.sin(), attach_gradient(lambda g, x: g * x.cos(), BEND_OF_SINE)),
        torch.sin,
        MATRIX,
        order=3,
    ),
    Mistake(
        "third symmetry",
        "the third derivative depends on the order of its directions",
        attach_gradient(
            lambda x: x.sum() ** 3, attach_gradient(lambda g, x: (3 * g * x.sum() ** 2).expand_as(x), BEND_OF_CUBE)
        ),
        lambda x: x.sum() ** 3,
        MATRIX,
        "symmetry",
        3,
    ),
)

# ---- energies of atoms -----------------------------------------------------------------------------------------------


def compute_chain_energy(positions, history=True):
    """Return the energy of bonds and angles of a chain of atoms."""
    with torch.set_grad_enabled(history):
        angles = compute_angle_cosines(positions)
    return torch.exp(-(positions[1:] - positions[:-1]).norm(dim=-1)).sum() + torch.sin(angles).sum()


def compute_angle_cosines(positions):
    vectors = positions[1:] - positions[:-1]
    lengths = vectors.norm(dim=-1)
    return (vectors[1:] * vectors[:-1]).sum(-1) / (lengths[1:] * lengths[:-1])


def compute_embedded_energy(distance):
    """Return the energy of two atoms of different species, each embedded in the other's electron density."""
    return torch.exp(-2.0 * distance).sqrt().sum() - torch.exp(-distance).square().sum()


def embedded_gradient_by_one_density(g, distance):
    a, b = torch.exp(-2.0 * distance), torch.exp(-distance)
    return g * (0.5 / a.sqrt() * -2.0 * a - 2 * b * -2.0 * a)  # the last factor must be the derivative of b, not of a


def compute_polynomial_energy(x):
    """Return an energy that sums products of components up to degree 3."""
    return (x.sum(-1) + (x[:, 0] * x[:, 1]) ** 2 / 2 + x.prod(-1) ** 2).sum()


def polynomial_gradient_wrong_highest_degree(g, x):
    a, b, c = x.unbind(-1)
    first = torch.stack([a * b * b, a * a * b, 0 * c], -1)
    third = 2 * torch.stack([a * (b * c) ** 2, 0.97 * b * (a * c) ** 2, c * (a * b) ** 2], -1)
    return g * (1 + first + third)


def compute_angle_energy(positions):
    """Return the energy of an angle, computed from its cosine."""
    cosine = compute_angle_cosines(positions)
    return (1 + 4 * cosine**3 - 3 * cosine).sum()


def compute_image_energy(x):
    """Return the energy of an atom at `x` with the images of another atom at 0, in a cell of length 2."""
    return torch.exp(-((x[:, None] - 2.0 * torch.arange(-8, 9, dtype=x.dtype)) ** 2)).sum()


def compute_energy_with_padding(positions, first, second):
    distances = (positions[first] - positions[second]).square().sum(-1).sqrt()
    return ((first != second) * torch.exp(-distances)).sum()


def compute_energy_without_padding(positions, first, second):
    """Return the energy of pairs; pairs of an atom with itself are padding, removed before distances are computed."""
    real = first != second
    return torch.exp(-(positions[first[real]] - positions[second[real]]).norm(dim=-1)).sum()


ATOMS = (
    Mistake(
        "angles without history",
        "the line graph is built under no_grad, so that forces lack the angles (matgl #834)",
        lambda positions: compute_chain_energy(positions, history=False),
        lambda positions: compute_chain_energy(positions),
        (draw_normal(4, 3),),
    ),
    Mistake(
        "one density twice",
        "forces between two species use the electron density of one of them twice (matscipy #20)",
        attach_gradient(compute_embedded_energy, embedded_gradient_by_one_density),
        compute_embedded_energy,
        (draw_normal(3).abs() + 0.5,),
    ),
    Mistake(
        "highest degree",
        "the energy is correct, but forces are a few per cent off at the highest degree, so that the Hessian is not "
        "symmetric (OpenEquivariance #211, nequip #610)",
        attach_gradient(compute_polynomial_energy, polynomial_gradient_wrong_highest_degree),
        compute_polynomial_energy,
        (draw_normal(2, 3),),
        "symmetry",
        2,
    ),
    Mistake(
        "atoms on a line",
        "the derivative of an angle divides by its sine, which is 0 if the atoms lie on a line (Molly.jl #58, g-xtb "
        "#21)",
        lambda positions: (1 + torch.cos(3 * torch.acos(compute_angle_cosines(positions)))).sum(),
        compute_angle_energy,
        (make_tensor([0, 0, 0], [0, 0, 1], [0, 0, 2]),),
    ),
    Mistake(
        "jump at the cutoff",
        "the energy jumps as an atom crosses the cutoff (torchmd-net #254)",
        lambda distance: torch.where(distance <= 1.5, torch.exp(-distance), 0.0).sum(),
        lambda distance: (torch.exp(-distance) * (1 - (distance / 1.5) ** 2).clamp(min=0) ** 4).sum(),
        (make_tensor(1.5, 0.7),),
    ),
    Mistake(
        "nearest image alone",
        "only the nearest of an atom's periodic images is used if several are within the cutoff (FreeBird.jl #150)",
        lambda x: torch.exp(-((x - 2.0 * torch.round(x / 2.0)) ** 2)).sum(),
        compute_image_energy,
        (make_tensor(1.0, 0.3),),
    ),
    Mistake(
        "padded distances",
        "padded pairs have distance 0, where the square root has an infinite slope (schnetpack #6)",
        compute_energy_with_padding,
        compute_energy_without_padding,
        (draw_normal(3, 3), torch.tensor([0, 1, 2]), torch.tensor([1, 2, 2])),
    ),
)

# ---- counts and sums over neighbours ---------------------------------------------------------------------------------


def gather_squares(x, rows):
    """Return the squares of the selected rows."""
    return x[rows] ** 2


def gather_gradient_narrow_offsets(g, x, rows):
    width = x.shape[1]
    # int8 represents the int32 of a larger array: offsets from 128 on overflow.
    offsets = (rows.to(torch.int8) * width)[:, None] + torch.arange(width, dtype=torch.int8)
    terms = (2 * x[rows] * g).flatten()
    return torch.zeros_like(x).flatten().index_add(0, offsets.flatten().long() % x.numel(), terms).view_as(x), None


def gather_gradient_random_order(g, x, rows):
    arrival = torch.randperm(len(rows))  # atomic additions are made in any order
    return torch.zeros_like(x).index_add(0, rows[arrival], (2 * x[rows] * g)[arrival]), None


def exp_gradient_full_blocks_only(g, x):
    done = len(x) // 4 * 4  # only full blocks are launched, so the last elements are left out
    return torch.cat([g[:done] * x[:done].exp(), torch.zeros_like(x[done:])])


def sum_by_node(values, nodes, number):
    return values.new_zeros(number, *values.shape[1:]).index_add(0, nodes, values)


def unshifted_softmax(scores, nodes):
    """Return the softmax over the edges of each node."""
    terms = scores.exp()
    return terms / sum_by_node(terms, nodes, 2)[nodes]


def shifted_softmax(scores, nodes):
    """Return the softmax over the edges of each node, with the largest score of the node subtracted first."""
    largest = scores.new_full((2,), -torch.inf).scatter_reduce(0, nodes, scores.detach(), "amax")
    return unshifted_softmax(scores - largest[nodes], nodes)


THREE_TARGETS = (draw_normal(3, 2), torch.tensor([0, 2, 2]))
NEIGHBOURS = (
    Mistake(
        "narrow offsets",
        "the offset of an element, row times width, overflows the integer type of the indices (onnxruntime #28107, "
        "cuEquivariance 0.9.1)",
        attach_gradient(gather_squares, gather_gradient_narrow_offsets),
        gather_squares,
        (draw_normal(20, 8), torch.tensor([0, 3, 15, 17])),
    ),
    Mistake(
        "rows read twice",
        "the gradient of a gather assigns instead of adding, so that a row that is read twice receives only one term "
        "(mxnet #11899)",
        attach_gradient(
            gather_squares, lambda g, x, rows: (torch.zeros_like(x).index_put((rows,), 2 * x[rows] * g), None)
        ),
        gather_squares,
        THREE_TARGETS,
    ),
    Mistake(
        "last block",
        "the backward pass processes only whole blocks of rows and skips the remainder (triton #2020)",
        attach_gradient(lambda x: x.exp(), exp_gradient_full_blocks_only),
        torch.exp,
        (draw_normal(9),),
        "elements",
    ),
    Mistake(
        "no edges",
        "a graph without edges raises an error (DGL #1754, DGL #1598)",
        lambda x, targets: sum_by_node(x[targets].sin(), targets, max(3, int(targets[-1]) + 1)) + x,
        lambda x, targets: sum_by_node(x[targets].sin(), targets, 3) + x,
        (draw_normal(3, 2), torch.zeros(0, dtype=torch.int64)),
        "call",
        0,
    ),
    Mistake(
        "atomic additions",
        "terms of a gradient are added in the order in which they arrive, so that its last bits differ from run to "
        "run (PyG #2788, deepmd-kit #2603)",
        attach_gradient(gather_squares, gather_gradient_random_order),
        gather_squares,
        (draw_normal(1, 8), torch.zeros(30, dtype=torch.int64)),
        "repeat",
    ),
    Mistake(
        "softmax of large scores",
        "exp of a score of 100 overflows in float32, because the largest score is not subtracted (PyG #53)",
        unshifted_softmax,
        shifted_softmax,
        (100 + draw_normal(4), torch.tensor([0, 0, 1, 1])),
        "float32",
    ),
    Mistake(
        "mean of nothing",
        "a node without edges divides 0 by 0 (DGL #2777, PyG #1129)",
        lambda messages, nodes: (sum_by_node(messages, nodes, 3) / nodes.bincount(minlength=3)[:, None]).sin(),
        lambda messages, nodes: (
            sum_by_node(messages, nodes, 3) / nodes.bincount(minlength=3).clamp(min=1)[:, None]
        ).sin(),
        THREE_TARGETS,
    ),
    Mistake(
        "padding times 0",
        "a NaN in padding reaches all nodes, because it is multiplied by 0 instead of being left out (DGL #5476)",
        lambda values, mask: (values.sin() * mask[:, None]).sum(0),
        lambda values, mask: torch.where(mask[:, None], values.sin(), 0.0).sum(0),
        (draw_normal(3, 2), torch.tensor([True, True, False])),
        "nan",
        0,
    ),
    Mistake(
        "changed argument",
        "the normalisation modifies its argument in place (PyG #1553)",
        lambda x, degrees: x.sin() / degrees.clamp_(min=1)[:, None],
        lambda x, degrees: x.sin() / degrees.clamp(min=1)[:, None],
        (draw_normal(3, 2), torch.tensor([2, 0, 1])),
        "unchanged",
        0,
    ),
)

# ---- memory layouts and higher derivatives ---------------------------------------------------------------------------


def read_as_contiguous(x):
    """Return the values that a kernel reads if it assumes a contiguous array at the data pointer."""
    return torch.as_strided(x, x.shape, torch.empty(x.shape).stride(), x.storage_offset())


class SquareWithSavedIntermediate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.twice = 2 * x  # neither an input nor an output, so autograd does not record how it was computed
        return ctx.twice**2

    @staticmethod
    def backward(ctx, g):
        return 4 * ctx.twice * g


def compute_inverse_rms(x):
    return x.square().mean(-1, keepdim=True).rsqrt()


def second_derivatives_saved_scale(gg, g, x):
    """Return second derivatives of x compute_inverse_rms(x); autograd treats the saved scale as a constant."""
    scale = compute_inverse_rms(x).detach()
    a, b, ab = ((product).mean(-1, keepdim=True) for product in (gg * x, g * x, gg * g))
    of_x = 3 * a * b * x * scale**5 - (ab * x + a * g + b * gg) * scale**3
    return gg * scale - a * x * scale**3, of_x


SLOPE = attach_gradient(
    lambda g, x: g * compute_inverse_rms(x) - (g * x).mean(-1, keepdim=True) * x * compute_inverse_rms(x) ** 3,
    second_derivatives_saved_scale,
)
FIELD = (
    *ATOMS,
    *NEIGHBOURS,
    Mistake(
        "strides",
        "a kernel reads its input through a pointer and ignores its strides (nequip 0.19.0)",
        attach_gradient(lambda x: read_as_contiguous(x).sin(), lambda g, x: g * x.cos()),
        torch.sin,
        MATRIX,
        "layout",
    ),
    Mistake(
        "strides of the cotangent",
        "a backward pass reads its cotangent through a pointer and ignores its strides (flash-attention #355, pytorch "
        "#195210)",
        attach_gradient(lambda x: x.sin(), lambda g, x: read_as_contiguous(g) * x.cos()),
        torch.sin,
        MATRIX,
        "layout",
    ),
    Mistake(
        "kept intermediate",
        "the backward pass uses an intermediate result saved by the forward pass, and second derivatives lack its "
        "contribution (pytorch #58509, #76185)",
        lambda x: SquareWithSavedIntermediate.apply(x),
        lambda x: 4 * x**2,
        (draw_normal(3),),
        order=2,
    ),
    Mistake(
        "saved statistics",
        "a second backward pass uses the scale saved by the forward pass, a constant for autograd, so that third "
        "derivatives lack its contribution (pytorch #175754, #186256)",
        attach_gradient(lambda x: x * compute_inverse_rms(x), SLOPE),
        lambda x: x * compute_inverse_rms(x),
        (draw_normal(3, 4),),
        order=3,
    ),
    Mistake(
        "along an axis",
        "energy and forces are correct, but second derivatives are NaN if a bond lies along an axis (fairchem #1618)",
        lambda x: (x[:, :2].norm(dim=-1) ** 2 + x[:, 2].sin()).sum(),
        lambda x: (x[:, :2].square().sum(-1) + x[:, 2].sin()).sum(),
        (make_tensor([0.0, 0.0, 1.0], [0.3, 0.2, 0.5]),),
        order=2,
    ),
)
