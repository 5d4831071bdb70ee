"""Models of `trigraph.torch.nn` as calculators of ASE, for its relaxations and dynamics."""

from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator as _Calculator
from ase.calculators.calculator import all_changes
from ase.stress import full_3x3_to_voigt_6_stress

from trigraph.calculators.settings import check_skin, settings
from trigraph.torch.potentials.compiled import replaced
from trigraph.torch.potentials.replacement import Replacement
from trigraph.torch.potentials.structures import check_potential, empty_like_model

__all__ = ["Calculator"]


class _Kept(NamedTuple):
    """Neighbours of earlier atoms.

    They depend on the positions (up to half the skin), cell, pbc and number of the atoms, and on what `_settings` has;
    all of it is kept beside them and compared.
    """

    atoms: Atoms
    settings: tuple[Any, ...]
    neighbors: Any


class Calculator(_Calculator):  # type: ignore[misc]
    """ASE calculator of a model: energy, of each atom too, forces, and stress where the cell has a volume.

    Parameters
    ----------
    model : torch.nn.Module
        With ``energy_forces_stress(z, pos, cell=, pbc=)``, as `trigraph.torch.nn.DimeNetPlusPlus`, in eV and angstrom.
        It is called in the dtype and on the device of its parameters, or else its buffers.
    skin : float, optional
        In angstrom. Neighbours are found up to so far beyond the cutoff of the model, which must have ``neighbors(...,
        skin=)``, and kept until an atom has moved by half of it: dynamics then searches once in many steps.
    compile : bool, optional
        Whether energies, forces and stresses are one compiled program, of :func:`trigraph.torch.compile_potential`.
    capture : bool, optional
        Whether they are padded to fixed sizes and on a CUDA device are one CUDA graph, of the same function; either
        this or `compile`.
    **parameters
        As for ``ase.calculators.calculator.Calculator``.

    Attributes
    ----------
    model, skin
        They may be set later.

    Raises
    ------
    TypeError
        If `model` has no ``energy_forces_stress``, or with `compile` or `capture` is no `trigraph.torch.nn.Potential`.
    ValueError
        If both are True.

    Notes
    -----
    As calculators of ASE do, this one keeps the results for the last atoms. It computes anew when the atoms, `skin`,
    `model`, or of the model `cutoff`, `max_num_neighbors`, the dtype, the device or the mode (``train``, ``eval``) have
    changed. After a change of anything else, as of weights in training, call `reset`; with `compile`, call also
    ``model.recompile()`` of the calculator where `trigraph.torch.compile_potential` says so.

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
        model = replaced("Calculator", model, compile, capture)
        self.model, self.skin = model, check_skin("Calculator", model, skin)
        self._settings_of_results: tuple[Any, ...] | None = None
        self._kept: _Kept | None = None

    def _settings(self) -> tuple[Any, ...]:
        """Return what results and neighbours depend on beside the atoms."""
        return (*settings(self.model), self.skin)

    def reset(self) -> None:
        """Forget results and neighbours."""
        super().reset()
        self._kept = None

    # ASE's results depend on the atoms and on `_settings`; ASE compares the atoms, and these methods the settings.

    def check_state(self, atoms: Atoms, tol: float = 1e-15) -> list[str]:
        """Return what has changed since the last calculation; "settings" stand for what concerns no atoms."""
        changed: list[str] = super().check_state(atoms, tol)
        return changed if self._settings_of_results == self._settings() else [*changed, "settings"]

    def get_property(self, name: str, atoms: Atoms | None = None, allow_calculation: bool = True) -> Any:
        """Return a property of atoms, by default of the last ones."""
        return super().get_property(name, self.atoms if atoms is None else atoms, allow_calculation)

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Any = ("energy",),
        system_changes: Any = all_changes,
    ) -> None:
        """Compute everything at once; what the model does not give is left out, as is stress without a volume."""
        super().calculate(atoms, properties, system_changes)
        self.results, self._settings_of_results = {}, self._settings()
        model: Any = self.model
        z, pos, cell, pbc = self._tensors(self.atoms)
        keywords = {"neighbors": self._neighbors(pos, cell, pbc)} if self.skin else {"pbc": pbc}
        results = model.energy_forces_stress(z, pos, cell=cell, **keywords)
        energy = float(results.energy[0])
        self.results = {"energy": energy, "free_energy": energy, "forces": results.forces.double().cpu().numpy()}
        if results.energies is not None:
            self.results["energies"] = results.energies.double().cpu().numpy()
        if self.atoms.cell.rank == 3:
            self.results["stress"] = full_3x3_to_voigt_6_stress(results.stress[0].double().cpu().numpy())

    def get_hessian(self, atoms: Atoms | None = None, progress: Any = None) -> np.ndarray:
        """Return the second derivatives of the energy, by automatic differentiation.

        Parameters
        ----------
        atoms : ase.Atoms, optional
            Default: those of the last calculation.
        progress : callable, optional
            Wraps the iterable of rows, such as ``tqdm.tqdm``, as for `trigraph.torch.nn.Potential.hessian`.

        Returns
        -------
        array of float64, shape (3 * num_atoms, num_atoms, 3)
            In eV/angstrom^2, with the axes of MACE's ``get_hessian``. It is computed anew in each call.

        Raises
        ------
        TypeError
            If the model has no ``hessian``, or neither `atoms` nor earlier ones are there.
        """
        atoms = self.atoms if atoms is None else atoms
        if not isinstance(atoms, Atoms):
            raise TypeError(f"Calculator.get_hessian: atoms is a {type(atoms).__name__}; expected ase.Atoms")
        model: Any = self.model.model if isinstance(self.model, Replacement) else self.model
        if not hasattr(model, "hessian"):
            raise TypeError(f"Calculator.get_hessian: {type(model).__name__} has no hessian; expected a Potential")
        z, pos, cell, pbc = self._tensors(atoms)
        hessian = model.hessian(z, pos, cell=cell, pbc=pbc, progress=progress)
        return hessian.double().cpu().numpy().reshape(3 * len(atoms), len(atoms), 3)  # type: ignore[no-any-return]

    def _tensors(self, atoms: Atoms) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
        """Return numbers, positions, cell (None where there is none) and periodic directions like the model."""
        like = empty_like_model(self.model)
        cell = None
        if atoms.cell.rank == 3 or atoms.pbc.any():
            cell = torch.as_tensor(np.array(atoms.cell), dtype=like.dtype, device=like.device)
        z = torch.as_tensor(atoms.numbers, dtype=torch.int64, device=like.device)
        pos = torch.as_tensor(atoms.positions, dtype=like.dtype, device=like.device)
        return z, pos, cell, torch.as_tensor(atoms.pbc, device=like.device)

    def _neighbors(self, pos: torch.Tensor, cell: torch.Tensor | None, pbc: torch.Tensor) -> Any:
        """Return the neighbours that were found last, or new ones where these may have changed."""
        atoms, kept, settings = self.atoms, self._kept, self._settings()
        if kept is not None and kept.settings == settings:
            before = kept.atoms
            same = (
                len(before) == len(atoms)
                and (before.pbc == atoms.pbc).all()
                and (before.cell[:] == atoms.cell[:]).all()
            )
            if same and np.linalg.norm(atoms.positions - before.positions, axis=1).max(initial=0.0) <= self.skin / 2:
                return kept.neighbors
        model: Any = self.model
        neighbors = model.neighbors(pos, cell=cell, pbc=pbc, skin=self.skin)
        self._kept = _Kept(atoms.copy(), settings, neighbors)
        return neighbors
