"""Use `check_derivatives` on an energy whose forces lack a term, and on the corrected energy."""

import torch

from slopecheck import DerivativeError, check_derivatives


def energy(positions, detach=True):
    """Return the energy of a chain of atoms; by default, its angles are computed from detached vectors."""
    vectors = positions[1:] - positions[:-1]
    angle_vectors = vectors.detach() if detach else vectors
    cosines = torch.nn.functional.cosine_similarity(angle_vectors[1:], angle_vectors[:-1])
    return (vectors.norm(dim=1) - 1).square().sum() + (cosines - 0.3).square().sum()


def repaired(positions):
    """Return the same energy, but without detached vectors."""
    return energy(positions, detach=False)


torch.manual_seed(0)
positions = torch.randn(4, 3, dtype=torch.float64)
try:
    check_derivatives(energy, (positions,), framework="torch")
except DerivativeError as error:
    print(error)
    error.result.plot().savefig("wrong_derivative.png", dpi=110)
    error.result.save("wrong_derivative.html")
print()
print(check_derivatives(repaired, (positions,), framework="torch"))
