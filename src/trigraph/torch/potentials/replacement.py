"""Base class of modules that replace a potential and compute its derivatives in a different way."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from trigraph.table.former_names import keep_former_names
from trigraph.torch.potentials.potential import Potential
from trigraph.torch.potentials.program_key import ProgramKey
from trigraph.torch.potentials.structures import EnergyForcesStress, Neighbors


def list_torch_settings(device: torch.device) -> tuple[Any, ...]:
    """Return the settings of torch that affect the results of a model or its compilation."""
    return (
        torch.is_autocast_enabled(device.type),
        torch.get_autocast_dtype(device.type),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_num_threads(),
    )


def copy_model_sharing_parameters(model: Potential, key: ProgramKey) -> Potential:
    """Return a copy of a model that shares its parameters but not its buffers.

    Tracing or calling the copy does not change the model, which other threads may be using.
    """
    memo = {id(key.state[name]): key.state[name] for name in key.parameters}
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise RuntimeError(
            f"compile_potential: {type(model).__name__} cannot be copied; expected a model for copy.deepcopy: {error}"
        ) from error


@keep_former_names(
    differentiated="compute_energy_and_derivatives",
    differentiated_along="compute_hessian_product",
    prepare="prepare_neighbors_and_cells",
)
class PotentialReplacement(Module):
    """Base class of modules that replace a potential, with the same arguments, results and errors.

    Subclasses define `compute_energy_and_derivatives` and `compute_hessian_product`.

    Attributes
    ----------
    model : Potential
        The original potential, with the same parameters.
    """

    compute_energy_and_derivatives: Callable[..., EnergyForcesStress]
    compute_hessian_product: Callable[..., Tensor]

    def __init__(self, model: Potential) -> None:
        super().__init__()
        self.model = model

    @property
    def cutoff(self) -> float:
        """Distance up to which atoms are neighbours."""
        return self.model.cutoff

    @property
    def max_num_neighbors(self) -> int | None:
        """Maximum number of edges into each atom; None for all."""
        return self.model.max_num_neighbors

    @property
    def out_channels(self) -> int:
        """Number of outputs of each atom."""
        return self.model.out_channels

    def neighbors(self, *args: Any, **kwargs: Any) -> Neighbors:
        """Return the neighbours of atoms; see :meth:`Potential.neighbors`."""
        return self.model.neighbors(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Call the original potential, because torch.compile can compile energies without a replacement."""
        return self.model(*args, **kwargs)

    # These methods call other methods of the replacement, such as `compute_hessian_product`, instead of the model's.
    energy_forces_stress: Any = Potential.energy_forces_stress
    hessian_vector_product: Any = Potential.hessian_vector_product
    hessian: Any = Potential.hessian

    def prepare_neighbors_and_cells(self, *args: Any, **kwargs: Any) -> tuple[Neighbors, Tensor | None]:
        """Check the arguments of a call; see :meth:`Potential.prepare_neighbors_and_cells`."""
        return self.model.prepare_neighbors_and_cells(*args, **kwargs)

    def make_hessian_multiplier(
        self, z: Tensor, pos: Tensor, cells: Tensor | None, neighbors: Neighbors
    ) -> Callable[[Tensor], Tensor]:
        """Return a function like `Potential.make_hessian_multiplier`, with one copy of all structures per direction."""
        copies = functools.cache(neighbors.repeat_structures)  # cached by the number of copies

        def multiply_directions(directions: Tensor) -> Tensor:
            k = len(directions)
            stacked = z.repeat(k), pos.repeat(k, 1), None if cells is None else cells.repeat(k, 1, 1), copies(k)
            return self.compute_hessian_product(*stacked, directions.flatten(0, 1), False).reshape(directions.shape)

        return multiply_directions
