"""Training steps on padded structures, each of which (loss, gradients, update) is one CUDA graph on a CUDA device."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trigraph.torch.potentials.padding import OWNER, CheckedStructures, PaddedBuffers
from trigraph.torch.potentials.potential import Potential, compute_atom_outputs, compute_derivatives
from trigraph.torch.potentials.replay import uses_cuda_graph
from trigraph.torch.potentials.structures import EnergyForcesStress


class PaddedStructures:
    """Structures of a training step, including ghosts; the first argument of a loss function.

    Attributes
    ----------
    z : Tensor, shape (num_atoms,)
    real_atoms : Tensor, shape (num_atoms,)
        1 for real atoms, 0 for ghosts.
    real_structures : Tensor, shape (num_structures,)
        1 for real structures, 0 for padding.
    """

    def __init__(self, model: Potential, given: Any, real_atoms: Tensor, real_structures: Tensor) -> None:
        self.z, self.neighbors = given.z, given.neighbors
        self.real_atoms, self.real_structures = real_atoms, real_structures
        self._model, self._cells, self._pos = model, given.cells, given.pos.detach().requires_grad_()
        self._results: EnergyForcesStress | None = None  # cached results of `energy_forces_stress`

    def energy_forces_stress(self) -> EnergyForcesStress:
        """Return the results of `Potential.energy_forces_stress`, differentiable with respect to the parameters."""
        if self._results is None:
            of_atoms = partial(compute_atom_outputs, self._model)
            self._results = compute_derivatives(
                of_atoms, self.z, self._pos, self._cells, self.neighbors, create_graph=True
            )
        return self._results

    def hessian_vector_product(self, vector: Tensor) -> Tensor:
        """Return the result of `Potential.hessian_vector_product`, differentiable with respect to the parameters."""
        (product,) = torch.autograd.grad(self.energy_forces_stress().forces, self._pos, -vector, create_graph=True)
        return product


class TrainingStep:
    """Loss, gradients and update of the parameters; created by `CapturedPotential.training_step`."""

    def __init__(self, potential: Any, loss: Any, optimizer: Any, max_norm: float | None) -> None:
        if not callable(loss):
            raise TypeError(f"{OWNER}: loss is a {type(loss).__name__}; expected a function of structures and labels")
        if optimizer is not None:
            check_capturable_optimizer(optimizer, uses_cuda_graph(next(potential.parameters()).device))
        self.potential, self.loss, self.optimizer, self.max_norm = potential, loss, optimizer, max_norm
        # In addition to the keys of `CapturedPotential`, a replay depends on the optimizer's numbers and tensors, and
        # on the memory of the gradients. If any of these changes, the replays with the old `_replay_name` are dropped.
        self._captured_settings: Any = None
        self._replay_name: Any = None
        self._gradients: dict[Tensor, Tensor] = {}

    def __call__(
        self,
        z: Tensor,
        pos: Tensor,
        batch: Tensor | None = None,
        cell: Any = None,
        pbc: Any = None,
        neighbors: Any = None,
        *,
        of_atoms: Mapping[str, Tensor] | None = None,
        of_structures: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Perform one training step, and return the loss before the update.

        Parameters
        ----------
        z, pos, batch, cell, pbc, neighbors
            As for `Potential.forward`.
        of_atoms, of_structures : dict of Tensor, optional
            Labels by name, with a row for each atom or each structure. The loss receives all labels in one dict, with
            zeros for ghosts.

        Returns
        -------
        Tensor, shape ()

        Raises
        ------
        TypeError, ValueError
            As for `Potential.energy_forces_stress`, or if labels have the wrong number of rows.
        RuntimeError
            If ghosts change the loss or its gradients, autocast uses float16, or an operation cannot be captured.
        """
        potential = self.potential
        with torch.inference_mode(False), torch.enable_grad():
            neighbors, cells = potential.prepare_neighbors_and_cells(z, pos, batch, cell, pbc, neighbors, energies=True)
            given = CheckedStructures(z, pos.detach(), None if cells is None else cells.detach(), neighbors)
            labels = dict(_yield_checked_labels(given, of_atoms or {}, of_structures or {}))
            device = pos.device.type
            if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) is torch.float16:
                raise RuntimeError(
                    f"{OWNER}: a training step under autocast in float16 needs a GradScaler, whose scale the host "
                    "reads; expected bfloat16"
                )
            if not len(z):
                raise ValueError(f"{OWNER}: there are no atoms; expected at least one in a training step")
            return potential.call_under_lock(lambda: self._replay_step(given, labels))

    def _replay_step(self, given: CheckedStructures, labels: Mapping[str, tuple[Tensor, bool]]) -> Tensor:
        parameters = [p for p in self.potential.parameters() if p.requires_grad]
        if set(self._gradients) != set(parameters) or any(
            g.shape != p.shape or g.dtype != p.dtype or g.device != p.device for p, g in self._gradients.items()
        ):
            self._gradients, self._captured_settings = {p: torch.zeros_like(p) for p in parameters}, None
        for p, gradient in self._gradients.items():  # restore `p.grad`, which `zero_grad` may have reset
            p.grad = gradient
        settings = self._list_optimizer_settings()
        if settings != self._captured_settings:
            self.potential.drop_replays(self._replay_name)
            self._captured_settings, self._replay_name = settings, object()
        compute, finish = (
            partial(self._compute_loss_and_gradients, parameters),
            partial(self._update_parameters, parameters),
        )
        replay = self.potential.find_or_make_replay(self._replay_name, compute, given, labels, finish)
        (loss,) = replay()
        if replay.graph is None:
            self._captured_settings = (
                self._list_optimizer_settings()
            )  # the first step has created the optimizer's state
        return loss.clone()  # type: ignore[union-attr]

    def _compute_loss_and_gradients(
        self, parameters: Sequence[Tensor], model: Potential, inputs: Any, labels: Any
    ) -> tuple[Tensor | None, ...]:
        """Return the loss and its gradients with respect to the parameters."""
        if isinstance(inputs, PaddedBuffers):
            real_atoms, real_structures = inputs.real_atoms, inputs.real_structures
        else:
            real_atoms = inputs.pos.new_ones(len(inputs.z))
            real_structures = inputs.pos.new_ones(inputs.neighbors.num_structures)
        loss = self.loss(PaddedStructures(model, inputs, real_atoms, real_structures), labels)
        if not isinstance(loss, Tensor) or loss.dim() or not loss.requires_grad:
            raise TypeError(
                f"{OWNER}: the loss is {loss!r:.80}; expected a tensor of shape () that depends on parameters"
            )
        with torch.autocast(inputs.pos.device.type, enabled=False):
            return loss, *torch.autograd.grad(loss, parameters, allow_unused=True)

    def _update_parameters(
        self, parameters: Sequence[Tensor], loss: Tensor, *gradients: Tensor | None
    ) -> tuple[Tensor]:
        """Copy the gradients to their fixed memory, and let the optimizer update the parameters."""
        with torch.no_grad():
            for p, gradient in zip(parameters, gradients, strict=True):
                p.grad.zero_() if gradient is None else p.grad.copy_(gradient)  # type: ignore[union-attr]
            if self.max_norm is not None:
                torch.nn.utils.clip_grad_norm_(parameters, self.max_norm)
        if self.optimizer is not None:
            self.optimizer.step()
        return (loss,)

    def _list_optimizer_settings(self) -> list[Any]:
        """Return the numbers in the optimizer's groups and state, and the addresses of the tensors in them."""
        if self.optimizer is None:
            return [self.max_norm]
        groups = [value for group in self.optimizer.param_groups for name, value in group.items() if name != "params"]
        held = itertools.chain(groups, *(state.values() for state in self.optimizer.state.values()))
        return [self.max_norm, *(("at", v.data_ptr()) if isinstance(v, Tensor) else v for v in held)]


def check_capturable_optimizer(optimizer: Any, on_device: bool) -> None:
    """Raise TypeError for an optimizer whose step cannot be captured."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"{OWNER}: optimizer is a {type(optimizer).__name__}; expected a torch.optim.Optimizer")
    name = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError(f"{OWNER}: optimizer is {name}, which calls the loss several times; expected another optimizer")
    capturable = all(
        group.get("capturable", isinstance(optimizer, torch.optim.SGD)) for group in optimizer.param_groups
    )
    if on_device and not capturable:
        raise TypeError(
            f"{OWNER}: the step of {name} reads numbers on the host; expected {name}(..., capturable=True), or SGD"
        )


def _yield_checked_labels(
    given: CheckedStructures, of_atoms: Mapping[str, Tensor], of_structures: Mapping[str, Tensor]
) -> Iterator[Any]:
    """Yield (name, (values, whether the rows are atoms)) for each label."""
    if repeated_names := sorted(of_atoms.keys() & of_structures.keys()):
        raise ValueError(
            f"{OWNER}: labels of atoms and of structures have the name {repeated_names[0]}; expected different names"
        )
    sizes = ("of_structures", "num_structures", given.neighbors.num_structures), ("of_atoms", "num_atoms", len(given.z))
    for values, is_atoms in ((of_atoms, True), (of_structures, False)):
        argument, symbol, size = sizes[is_atoms]
        for name, value in values.items():
            if not isinstance(value, Tensor) or value.device != given.pos.device:
                came = value.device if isinstance(value, Tensor) else type(value).__name__
                raise TypeError(
                    f"{OWNER}: {argument}[{name!r}] is {came}; expected a torch.Tensor on {given.pos.device}"
                )
            if not value.dim() or len(value) != size:
                raise ValueError(
                    f"{OWNER}: {argument}[{name!r}] has shape {tuple(value.shape)}; expected ({symbol}, ...) with "
                    f"{size} rows"
                )
            yield name, (value.detach(), is_atoms)
