"""torch-sim model for models of `trigraph.torch.nn`, for batched relaxations and molecular dynamics."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

try:
    from torch_sim.models.interface import ModelInterface
    from torch_sim.state import SimState
except ImportError as error:
    raise ImportError("trigraph.torch_sim needs torch-sim: pip install 'trigraph[torch-sim]'") from error

from trigraph.calculators.settings import NeighborCache, list_model_settings, require_skin
from trigraph.torch.potentials.structures import check_potential, make_empty_model_tensor

__all__ = ["Model"]


class Model(ModelInterface):  # type: ignore[misc]
    """torch-sim model that computes energies and, on request, forces, stresses and atomic energies.

    Parameters
    ----------
    model : torch.nn.Module
        Model with a method ``energy_forces_stress(z, pos, batch, cell=, pbc=)``, such as
        `trigraph.torch.nn.DimeNetPlusPlus`, in eV and angstrom. `device` and `dtype` follow its parameters or buffers.
    compute_forces, compute_stress, per_atom_energies : bool
        Results that `forward` returns in addition to energies. These attributes may be changed later.
    skin : float, optional
        Distance in angstrom beyond the cutoff within which neighbours are found. Neighbours are reused until an
        atom has moved by half the skin or anything else, such as a cell, has changed. With a skin, the model must have
        ``neighbors(..., skin=)``.

    Raises
    ------
    TypeError
        If `model` has no ``energy_forces_stress``, or no ``neighbors`` although `skin` > 0, or a flag is not a bool.
    ValueError
        If `skin` is negative or not finite.

    Examples
    --------
    >>> import torch_sim
    >>> from ase.build import bulk
    >>> from trigraph.torch.nn import DimeNetPlusPlus
    >>> from trigraph.torch_sim import Model
    >>> model = Model(DimeNetPlusPlus(16, 1, 1, 8, 4, 16, 3, 4))
    >>> systems = [bulk("Cu"), bulk("NaCl", "rocksalt", a=5.6)]
    >>> state = torch_sim.initialize_state(systems, model.device, model.dtype)
    >>> {name: tuple(values.shape) for name, values in model(state).items()}
    {'energy': (2,), 'forces': (3, 3), 'stress': (2, 3, 3)}
    """

    # These attributes override read-only properties of the interface.
    compute_forces: bool = True
    compute_stress: bool = True

    def __init__(
        self,
        model: Any,
        *,
        compute_forces: bool = True,
        compute_stress: bool = True,
        per_atom_energies: bool = False,
        skin: float = 0.0,
    ) -> None:
        check_potential("Model", model)
        flags = {
            "compute_forces": compute_forces,
            "compute_stress": compute_stress,
            "per_atom_energies": per_atom_energies,
        }
        for name, flag in flags.items():
            if not isinstance(flag, bool):
                raise TypeError(f"Model: {name} is a {type(flag).__name__}; expected a bool")
        super().__init__()
        self.model, self.skin = model, require_skin("Model", model, skin)
        self._neighbor_cache = NeighborCache()
        self.compute_forces, self.compute_stress, self.per_atom_energies = flags.values()

    @property
    def device(self) -> torch.device:
        """Device of the model's parameters."""
        return make_empty_model_tensor(self.model).device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the model's parameters."""
        return make_empty_model_tensor(self.model).dtype

    def forward(self, state: Any) -> dict[str, Tensor]:
        """Return energies and the other requested results.

        Parameters
        ----------
        state : torch_sim.SimState or dict
            `positions`, `cell` (cell vectors in columns), `pbc`, `atomic_numbers` and, for several structures,
            `system_idx`, in the model's dtype and on its device.

        Returns
        -------
        dict of Tensor
            "energy" of shape (n_systems,); "forces" (n_atoms, 3); "stress" (n_systems, 3, 3), NaN for a structure
            whose cell has no volume; "energies" (n_atoms,), which sum to the energy.

        Raises
        ------
        TypeError, ValueError
            If `state` has the wrong type or lacks a field, if a field has the wrong dtype, shape or device, or if two
            atoms coincide.
        """
        positions, cell, pbc, numbers, system_idx = self._extract_state_fields(state)
        neighbor_arguments: dict[str, Any] = {"batch": system_idx, "pbc": pbc}
        if self.skin:
            search = partial(self.model.neighbors, positions, system_idx, cell.mT, pbc, skin=self.skin)
            key = (
                list_model_settings(self.model),
                self.skin,
                pbc.tolist() if isinstance(pbc, Tensor) else pbc,
                system_idx is None,
            )
            tensors = [cell] if system_idx is None else [cell, system_idx]
            neighbor_arguments = {
                "neighbors": self._neighbor_cache.find_or_search(positions, self.skin, key, search, tensors)
            }
        results = self.model.energy_forces_stress(numbers, positions, cell=cell.mT, **neighbor_arguments)
        if self.per_atom_energies and results.energies is None:
            kind = type(self.model).__name__
            raise ValueError(f"Model: per_atom_energies is True; expected False, as {kind} returns no atomic energies")
        wanted = {
            "energy": True,
            "forces": self.compute_forces,
            "stress": self.compute_stress,
            "energies": self.per_atom_energies,
        }
        return {name: getattr(results, name) for name, asked in wanted.items() if asked}

    def _extract_state_fields(self, state: Any) -> tuple[Tensor, Tensor, Any, Tensor, Tensor | None]:
        """Return the fields of a state; raise if one is missing or has the wrong dtype or device."""
        needed = ("positions", "cell", "pbc", "atomic_numbers")
        if isinstance(state, SimState):
            state = {name: getattr(state, name) for name in (*needed, "system_idx")}
        if not isinstance(state, Mapping):
            raise TypeError(f"Model: state is a {type(state).__name__}; expected a torch_sim.SimState or a dict")
        for name in needed:
            if name not in state:
                raise ValueError(f"Model: state has no {name}; expected {', '.join(needed)}")
        like = make_empty_model_tensor(self.model)
        for name in ("positions", "cell"):
            value = state[name]
            if not isinstance(value, Tensor):
                raise TypeError(f"Model: {name} is a {type(value).__name__}; expected a torch.Tensor")
            if value.dtype != like.dtype:
                raise TypeError(f"Model: {name} has dtype {value.dtype}; expected {like.dtype}, the model's dtype")
            if value.device != like.device:
                raise ValueError(f"Model: {name} is on {value.device}; expected {like.device}, where the model is")
        return (*(state[name] for name in needed), state.get("system_idx"))
