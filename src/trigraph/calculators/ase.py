"""ASE calculator for models of `trigraph.torch.nn`, for relaxations and molecular dynamics."""

from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator as _Calculator
from ase.calculators.calculator import all_changes
from ase.stress import full_3x3_to_voigt_6_stress

from trigraph.calculators.settings import NeighborCache, get_original_model, list_model_settings, require_skin
from trigraph.torch.potentials.compiled import compile_or_capture
from trigraph.torch.potentials.structures import check_potential, make_empty_model_tensor

__all__ = ["Calculator"]


class Calculator(_Calculator):  # type: ignore[misc]
    """ASE calculator for a model: energy, atomic energies, forces, and stress if the cell has a volume.

    Parameters
    ----------
    model : torch.nn.Module
        Model with a method ``energy_forces_stress(z, pos, cell=, pbc=)``, such as `trigraph.torch.nn.DimeNetPlusPlus`,
        in eV and angstrom. Inputs get the dtype and device of its parameters or, if there are none, of its buffers.
    skin : float, optional
        Distance in angstrom beyond the cutoff within which neighbours are found. Neighbours are reused until an
        atom has moved by half the skin. With a skin, the model must have ``neighbors(..., skin=)``.
    compile : bool, optional
        Whether to compile energies, forces and stresses with :func:`trigraph.torch.compile_potential`.
    capture : bool, optional
        Whether `compile_potential` pads inputs to fixed sizes and, on a CUDA device, captures a CUDA graph; excludes
        `compile`.
    **parameters
        As for ``ase.calculators.calculator.Calculator``.

    Attributes
    ----------
    model, skin
        The model and the skin, which may be changed later.

    Raises
    ------
    TypeError
        If `model` has no ``energy_forces_stress``, or is not a `trigraph.torch.nn.Potential` although `compile` or
        `capture` is True.
    ValueError
        If both `compile` and `capture` are True.

    Notes
    -----
    Like other ASE calculators, this one caches the results of the last atoms. Results are recomputed when the atoms,
    `skin`, `model`, or the model's `cutoff`, `max_num_neighbors`, dtype, device or mode (``train``, ``eval``) have
    changed. After any other change, such as a training step, call `reset`; with `compile`, also call
    ``calculator.model.recompile()`` if `trigraph.torch.compile_potential` requires it.

    Examples
    --------
    >>> from ase.build import bulk
    >>> from trigraph.ase import Calculator
    >>> from trigraph.torch.nn import DimeNetPlusPlus
    >>> atoms = bulk("Cu", cubic=True)
    >>> atoms.calc = Calculator(DimeNetPlusPlus(16, 1, 1, 8, 4, 16, 3, 4))
    >>> atoms.get_forces().shape
    (4, 3)
    """

    implemented_properties: ClassVar[list[str]] = ["energy", "free_energy", "energies", "forces", "stress"]

    def __init__(
        self, model: Any, skin: float = 0.0, compile: bool = False, capture: bool = False, **parameters: Any
    ) -> None:
        check_potential("Calculator", model)
        super().__init__(**parameters)
        model = compile_or_capture("Calculator", model, compile, capture)
        self.model, self.skin = model, require_skin("Calculator", model, skin)
        self._settings_of_results: tuple[Any, ...] | None = None
        self._neighbor_cache = NeighborCache()

    def _list_settings(self) -> tuple[Any, ...]:
        """Return all settings, except the atoms, on which results and neighbours depend."""
        return (*list_model_settings(self.model), self.skin)

    def reset(self) -> None:
        """Discard cached results and neighbours."""
        super().reset()
        self._neighbor_cache = NeighborCache()

    def check_state(self, atoms: Atoms, tol: float = 1e-15) -> list[str]:
        """Return what has changed since the last calculation; "settings" means any of `_list_settings`."""
        changed: list[str] = super().check_state(atoms, tol)
        return changed if self._settings_of_results == self._list_settings() else [*changed, "settings"]

    def get_property(self, name: str, atoms: Atoms | None = None, allow_calculation: bool = True) -> Any:
        """Return a property of `atoms` (default: the atoms of the last calculation)."""
        return super().get_property(name, self.atoms if atoms is None else atoms, allow_calculation)

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Any = ("energy",),
        system_changes: Any = all_changes,
    ) -> None:
        """Compute all properties that the model provides, regardless of `properties`; stress needs a cell volume."""
        super().calculate(atoms, properties, system_changes)
        self.results, self._settings_of_results = {}, self._list_settings()
        model: Any = self.model
        z, pos, cell, pbc = self._make_tensors(self.atoms)
        keywords = {"pbc": pbc}
        if self.skin:
            key = self._list_settings(), self.atoms.cell.tolist(), self.atoms.pbc.tolist()
            search = partial(model.neighbors, pos, cell=cell, pbc=pbc, skin=self.skin)
            keywords = {"neighbors": self._neighbor_cache.find_or_search(self.atoms.positions, self.skin, key, search)}
        results = model.energy_forces_stress(z, pos, cell=cell, **keywords)
        energy = float(results.energy[0])
        self.results = {"energy": energy, "free_energy": energy, "forces": results.forces.double().cpu().numpy()}
        if results.energies is not None:
            self.results["energies"] = results.energies.double().cpu().numpy()
        if self.atoms.cell.rank == 3:
            self.results["stress"] = full_3x3_to_voigt_6_stress(results.stress[0].double().cpu().numpy())

    def get_hessian(self, atoms: Atoms | None = None, progress: Any = None) -> np.ndarray:
        """Return the second derivatives of the energy, computed by automatic differentiation.

        Parameters
        ----------
        atoms : ase.Atoms, optional
            Default: the atoms of the last calculation.
        progress : callable, optional
            Function that wraps the iterable of rows, such as ``tqdm.tqdm``; see `trigraph.torch.nn.Potential.hessian`.

        Returns
        -------
        array of float64, shape (3 * num_atoms, num_atoms, 3)
            Hessian in eV/angstrom^2, with the axes of MACE's ``get_hessian``; not cached.

        Raises
        ------
        TypeError
            If the model has no ``hessian``, or if `atoms` is None before the first calculation.
        """
        atoms = self.atoms if atoms is None else atoms
        if not isinstance(atoms, Atoms):
            raise TypeError(f"Calculator.get_hessian: atoms is a {type(atoms).__name__}; expected ase.Atoms")
        model = get_original_model(self.model)
        if not hasattr(model, "hessian"):
            raise TypeError(f"Calculator.get_hessian: {type(model).__name__} has no hessian; expected a Potential")
        z, pos, cell, pbc = self._make_tensors(atoms)
        hessian = model.hessian(z, pos, cell=cell, pbc=pbc, progress=progress)
        return hessian.double().cpu().numpy().reshape(3 * len(atoms), len(atoms), 3)  # type: ignore[no-any-return]

    def _make_tensors(self, atoms: Atoms) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
        """Return atomic numbers, positions, cell or None, and pbc, in the model's dtype and on its device."""
        like = make_empty_model_tensor(self.model)
        cell = None
        if atoms.cell.rank == 3 or atoms.pbc.any():
            cell = torch.as_tensor(np.array(atoms.cell), dtype=like.dtype, device=like.device)
        z = torch.as_tensor(atoms.numbers, dtype=torch.int64, device=like.device)
        pos = torch.as_tensor(atoms.positions, dtype=like.dtype, device=like.device)
        return z, pos, cell, torch.as_tensor(atoms.pbc, device=like.device)
