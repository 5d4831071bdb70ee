"""Models of `trigraph.torch.nn` as calculators of ASE, for its relaxations and dynamics."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator as _Calculator
from ase.calculators.calculator import all_changes
from ase.stress import full_3x3_to_voigt_6_stress

from trigraph.torch.nn.structures import check_potential, empty_like_model

__all__ = ["Calculator"]


class Calculator(_Calculator):  # type: ignore[misc]
    """ASE calculator of a model: energy, of each atom too, forces, and stress where the cell has a volume.

    Parameters
    ----------
    model : torch.nn.Module
        With ``energy_forces_stress(z, pos, cell=, pbc=)``, as `trigraph.torch.nn.DimeNetPlusPlus`, in eV and angstrom.
        It is called in the dtype and on the device of its parameters, or else its buffers, and may go on training:
        `reset` then forgets old results.
    **parameters
        As of ``ase.calculators.calculator.Calculator``.

    Raises
    ------
    TypeError
        If `model` has no ``energy_forces_stress``.

    Examples
    --------
    >>> from ase.build import bulk
    >>> from trigraph.torch.nn import DimeNetPlusPlus
    >>> atoms = bulk("Cu", cubic=True)
    >>> atoms.calc = Calculator(DimeNetPlusPlus(16, 1, 1, 8, 4, 16, 3, 4))
    >>> atoms.get_forces().shape
    (4, 3)
    """

    implemented_properties: ClassVar[list[str]] = ["energy", "free_energy", "energies", "forces", "stress"]

    def __init__(self, model: Any, **parameters: Any) -> None:
        check_potential("Calculator", model)
        super().__init__(**parameters)
        self.model = model

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Any = ("energy",),
        system_changes: Any = all_changes,
    ) -> None:
        """Compute everything at once; what the model does not give is left out, as is stress without a volume."""
        super().calculate(atoms, properties, system_changes)
        like = empty_like_model(self.model)
        has_volume = self.atoms.cell.rank == 3
        cell = None
        if has_volume or self.atoms.pbc.any():
            cell = torch.as_tensor(np.array(self.atoms.cell), dtype=like.dtype, device=like.device)
        model: Any = self.model
        results = model.energy_forces_stress(
            torch.as_tensor(self.atoms.numbers, dtype=torch.int64, device=like.device),
            torch.as_tensor(self.atoms.positions, dtype=like.dtype, device=like.device),
            cell=cell,
            pbc=torch.as_tensor(self.atoms.pbc),
        )
        energy = float(results.energy[0])
        self.results = {"energy": energy, "free_energy": energy, "forces": results.forces.double().cpu().numpy()}
        if results.energies is not None:
            self.results["energies"] = results.energies.double().cpu().numpy()
        if has_volume:
            self.results["stress"] = full_3x3_to_voigt_6_stress(results.stress[0].double().cpu().numpy())
