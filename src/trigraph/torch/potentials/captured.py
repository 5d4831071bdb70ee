"""Potentials padded to fixed capacities, so that each call or training step on a CUDA device is one CUDA graph."""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from trigraph.locks import ForkSafeLock
from trigraph.torch.arrays import has_storage
from trigraph.torch.graphs import exclude_from_compilation
from trigraph.torch.potentials.capacity_search import PaddedNeighborSearch
from trigraph.torch.potentials.padding import OWNER, Capacity, CheckedStructures, PaddedBuffers, choose_capacity
from trigraph.torch.potentials.potential import Potential
from trigraph.torch.potentials.program_key import ProgramKey
from trigraph.torch.potentials.replacement import (
    PotentialReplacement,
    copy_model_sharing_parameters,
    list_torch_settings,
)
from trigraph.torch.potentials.replay import Replay, uses_cuda_graph
from trigraph.torch.potentials.structures import (
    EnergyForcesStress,
    Neighbors,
    check_atoms,
    find_periodic_directions,
    make_empty_model_tensor,
)
from trigraph.torch.potentials.training_step import TrainingStep

MAX_PADDINGS, MAX_REPLAYS = 8, 32  # maximum numbers of paddings and replays per potential
RESULT_IS_PER_ATOM = (False, True, False, True)  # whether energy, forces, stress and energies contain a row per atom
R = TypeVar("R")


class CapturedPotential(PotentialReplacement):
    """Potential whose calls have fixed sizes and run as CUDA graphs; created by :func:`compile_potential`.

    Structures are padded with ghost atoms to a capacity a quarter larger than the first call requires. If a call
    needs more, or less than half of the atoms or edges, a new capacity is created. The last 8 capacities are kept.

    If consecutive calls on a CUDA device have the same atoms, `energy_forces_stress` also finds the neighbours in a
    CUDA graph (`PaddedNeighborSearch`). During the computation of the forces, the host reads whether the neighbours fit
    the capacity. If they do not, the results are discarded, and the host searches for the neighbours.

    Attributes
    ----------
    model : Potential
        The original potential, with the same parameters.
    given : list of Capacity
        Capacities that the caller specified, used for calls that fit.
    static_results : bool
        Whether results are views of memory that the next call overwrites, instead of copies.
    """

    def __init__(self, model: Potential, given: list[Capacity], static_results: bool) -> None:
        super().__init__(model)
        self.given, self.static_results = given, static_results
        self._reset_caches()

    def _reset_caches(self) -> None:
        # Keyed by (capacity, dtype, device, index dtype, whether there are cells), which is all that is needed to
        # allocate a padding. The most recently used padding is last.
        self._paddings: dict[Any, PaddedBuffers] = {}
        # Keyed by (padding, what is computed, shapes of labels, torch's settings, index in `_versions`), because a
        # replay depends on everything that the model reads. It also depends on the addresses of parameters and
        # buffers; if an address changes, all replays are dropped.
        self._replays: dict[Any, Any] = {}
        self._key: ProgramKey | None = None
        self._versions: list[Any] = []  # distinct `ProgramKey.values`, indexed by the keys of `_replays`
        self._addresses: list[int] = []
        self._lock = ForkSafeLock()
        self._pool: Any = None
        self._search_padding: PaddedBuffers | None = (
            None  # padding of the last call, reused while the atoms are the same
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and pickles, which omits CUDA graphs."""
        own = ("_paddings", "_replays", "_key", "_versions", "_addresses", "_lock", "_pool", "_search_padding")
        return {n: v for n, v in vars(self).items() if n not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._reset_caches()

    @property
    def capacities(self) -> list[Capacity]:
        """Capacities whose memory is allocated."""
        return [padding.capacity for padding in self._paddings.values()]

    def call_under_lock(self, function: Callable[[], R]) -> R:
        """Call a function under the lock of the shared memory, and return its result."""
        return self._lock.call_while_held(function)

    def drop_replays(self, what: Any) -> None:
        """Drop the replays that `replay` created for `what`."""
        self._replays = {key: replay for key, replay in self._replays.items() if key[1] is not what}

    def recapture(self) -> None:
        """Drop all captured graphs, as required after undetected changes (see `CompiledPotential.recompile`)."""
        self.call_under_lock(self._replays.clear)

    @exclude_from_compilation
    def energy_forces_stress(
        self,
        z: Tensor,
        pos: Tensor,
        batch: Tensor | None = None,
        cell: Any = None,
        pbc: Any = None,
        neighbors: Neighbors | None = None,
        create_graph: bool = False,
    ) -> EnergyForcesStress:
        """Compute energies, forces and stresses. See `Potential.energy_forces_stress` for arguments and errors."""
        arguments, results = (z, pos, batch, cell, pbc), None
        can_search = neighbors is None and self.max_num_neighbors is None and not create_graph
        can_search = can_search and all(
            type(t) is Tensor and uses_cuda_graph(t.device) and has_storage(t) for t in (z, pos)
        )
        with torch.inference_mode(False), torch.enable_grad():
            if can_search:
                results = self.call_under_lock(lambda: self._search_and_compute(*arguments))
            if results is None:
                has_same_atoms = can_search and self.call_under_lock(lambda: self._last_padding_matches_atoms(z, batch))
                results = Potential.energy_forces_stress(self, *arguments, neighbors, create_graph)  # type: ignore[arg-type]
                self._search_padding = None
                if has_same_atoms:
                    self.call_under_lock(lambda: self._prepare_next_search(cell, pbc))
        return results

    def _last_padding_matches_atoms(self, z: Tensor, batch: Tensor | None) -> bool:
        """Return whether the most recently used padding contains the same atoms."""
        padding = next(reversed(self._paddings.values()), None)
        own = None if padding is None else padding.sizes[0]
        if padding is None or len(z) != own or padding.z.device != z.device:
            return False
        same = torch.equal(padding.z[:own], z.to(padding.z))
        return same and (not isinstance(batch, Tensor) or torch.equal(padding.batch[:own], batch.to(padding.batch)))

    def _prepare_next_search(self, cell: Any, pbc: Any) -> None:
        """Let the next call use a `PaddedNeighborSearch` in the most recently used padding."""
        padding = next(reversed(self._paddings.values()))
        if padding.search is None or padding.search.cutoff != self.cutoff:
            padding.search = PaddedNeighborSearch(padding, float(self.cutoff), self._pool)
        padding.search.record_checked_atoms(find_periodic_directions(OWNER, pbc, cell, padding.sizes[1]).copy())
        self._search_padding = padding

    def _search_and_compute(
        self, z: Tensor, pos: Tensor, batch: Tensor | None, cell: Any, pbc: Any
    ) -> EnergyForcesStress | None:
        """Return the results for the same atoms as in the last call, or None if the arguments must be checked."""
        padding, name = self._search_padding, type(self.model).__name__
        check_atoms(name, z, pos, make_empty_model_tensor(self.model))
        if padding is None or padding.search.cutoff != self.cutoff or (pos.dtype, pos.device) != padding.like:
            return None
        atoms, structures = padding.sizes
        key = self._make_replay_key(padding, RESULT_IS_PER_ATOM, {})
        if len(z) != atoms or key not in self._replays or not padding.search.load_arguments(z, pos, batch, cell, pbc):
            return None
        padding.search.start_search()
        results = self._replays[key][0]()
        refused, edges = padding.search.wait_for_result()
        if refused:
            return None
        needed = Capacity(atoms, edges, structures, padding.capacity.degree)
        if choose_capacity(needed, self.given, [padding.capacity]) != padding.capacity:
            self._search_padding = None  # makes the next call choose a smaller capacity
        return EnergyForcesStress(*self._drop_ghosts(results, RESULT_IS_PER_ATOM, padding))  # type: ignore[arg-type]

    def compute_energy_and_derivatives(
        self, z: Tensor, pos: Tensor, cells: Tensor | None, neighbors: Neighbors, create_graph: bool
    ) -> EnergyForcesStress:
        """Return the results of `energy_forces_stress` for arguments checked by `prepare_neighbors_and_cells`."""
        _refuse_create_graph(create_graph)
        if not len(z):
            return self.model.compute_energy_and_derivatives(z, pos, cells, neighbors, False)
        given = CheckedStructures(z, pos.detach(), None if cells is None else cells.detach(), neighbors)

        def compute_model_results(model: Potential, inputs: Any, labels: Any) -> tuple[Tensor | None, ...]:
            return model.compute_energy_and_derivatives(inputs.z, inputs.pos, inputs.cells, inputs.neighbors, False)

        compute = partial(self._compute_without_ghosts, compute_model_results, RESULT_IS_PER_ATOM, given)
        return EnergyForcesStress(*self.call_under_lock(compute))  # type: ignore[arg-type]

    def compute_hessian_product(
        self, z: Tensor, pos: Tensor, cells: Tensor | None, neighbors: Neighbors, vector: Tensor, create_graph: bool
    ) -> Tensor:
        """Return the result of `hessian_vector_product` for arguments checked by `prepare_neighbors_and_cells`."""
        _refuse_create_graph(create_graph)
        if not len(z):
            return self.model.compute_hessian_product(z, pos, cells, neighbors, vector, False)
        given = CheckedStructures(z, pos.detach(), None if cells is None else cells.detach(), neighbors)

        def compute_model_hessian_product(model: Potential, inputs: Any, labels: Any) -> tuple[Tensor | None, ...]:
            arguments = inputs.z, inputs.pos, inputs.cells, inputs.neighbors, labels["vector"]
            return (model.compute_hessian_product(*arguments, False),)

        labels = {"vector": (vector.detach(), True)}
        (product,) = self.call_under_lock(
            lambda: self._compute_without_ghosts(compute_model_hessian_product, (True,), given, labels)
        )
        return product  # type: ignore[return-value]

    def training_step(
        self,
        loss: Callable[..., Tensor],
        optimizer: Any = None,
        max_norm: float | None = None,
    ) -> TrainingStep:
        """Return a training step, which computes a loss and its gradients, and updates the parameters.

        Parameters
        ----------
        loss : callable
            Function of `PaddedStructures` and the labels that returns a scalar. It must exclude ghosts::

                def loss(structures, labels):
                    found = structures.energy_forces_stress()
                    errors = (found.forces - labels["forces"]).square().sum(dim=1)
                    return (errors * structures.real_atoms).sum() / structures.real_atoms.sum()

        optimizer : torch.optim.Optimizer, optional
            Optimizer of the parameters: on a CUDA device, SGD or an optimizer with ``capturable=True``. By default, the
            step only stores the gradients in ``p.grad`` of each parameter, for example to average them over processes.
        max_norm : float, optional
            Norm to which ``torch.nn.utils.clip_grad_norm_`` clips the gradients.

        Returns
        -------
        TrainingStep

        Raises
        ------
        TypeError
            If `loss` is not callable, or the optimizer cannot be captured.
        """
        return TrainingStep(self, loss, optimizer, max_norm)

    def _compute_without_ghosts(
        self,
        compute: Callable[..., Any],
        of_atoms: Sequence[bool],
        given: CheckedStructures,
        labels: Mapping[str, Any] = {},
    ) -> list[Tensor | None]:
        """Return the results of ``compute(model, padded structures, labels)`` without the rows for ghosts."""
        results = self.find_or_make_replay(tuple(of_atoms), compute, given, labels)()
        return self._drop_ghosts(results, of_atoms, next(reversed(self._paddings.values())))

    def _drop_ghosts(
        self, results: Sequence[Tensor | None], of_atoms: Sequence[bool], padding: PaddedBuffers
    ) -> list[Tensor | None]:
        atoms, structures = padding.sizes
        sizes = [atoms if is_atomic else structures for is_atomic in of_atoms]
        own = [t if t is None else t[:size] for t, size in zip(results, sizes, strict=True)]
        return own if self.static_results else [t if t is None else t.clone() for t in own]

    def find_or_make_replay(
        self,
        what: Any,
        compute: Callable[..., Any],
        given: CheckedStructures,
        labels: Mapping[str, tuple[Tensor, bool]],
        finish: Callable[..., Any] = lambda *results: results,
    ) -> Replay:
        """Return a replay of ``finish(*compute(model, structures, labels))`` whose tensors contain the given values.

        `labels` maps names to (values, whether their rows are atoms rather than structures). Before a new replay is
        created, the results of `compute` with and without ghosts are compared.
        """
        padding, device = self._find_or_make_padding(given), given.pos.device
        key = self._make_replay_key(padding, what, labels)
        padding.load_structures(*given, self.cutoff)
        replay, tensors = self._replays.pop(key, (None, {}))
        if replay is None:
            tensors = {n: padding.make_label_tensor(t, of_atoms) for n, (t, of_atoms) in labels.items()}
            padding.fill_labels(tensors, labels)
            self._check_ghost_effects(compute, (given, {n: t for n, (t, _) in labels.items()}), (padding, tensors))
            if self._pool is None and uses_cuda_graph(device):
                self._pool = torch.cuda.graph_pool_handle()
            model = self.model

            def compute_padded_results() -> tuple[Tensor | None, ...]:
                with _disable_autocast_cache(device):
                    results = finish(*compute(model, padding, tensors))
                return tuple(None if t is None else t.detach().masked_fill(padding.refused, math.nan) for t in results)

            replay = Replay(f"{OWNER}: {type(model).__name__}", compute_padded_results, device, self._pool)
        self._replays[key] = replay, tensors
        while len(self._replays) > MAX_REPLAYS:
            del self._replays[next(iter(self._replays))]
        padding.fill_labels(tensors, labels)
        return replay

    def _make_replay_key(
        self, padding: PaddedBuffers, what: Any, labels: Mapping[str, tuple[Tensor, bool]]
    ) -> tuple[Any, ...]:
        shapes = tuple((n, t.shape[1:], t.dtype, of_atoms) for n, (t, of_atoms) in labels.items())
        return padding, what, shapes, list_torch_settings(padding.pos.device), self._find_model_version()

    def _find_model_version(self) -> int:
        """Return the index in `_versions` of the model's state; drop all replays if an address has changed."""
        if self._key is None or not self._key.is_unchanged(self.model):
            self._key = ProgramKey(self.model)
        addresses = [t.data_ptr() for t in self._key.state.values()]
        if addresses != self._addresses:
            self._addresses = addresses
            self._replays.clear()
            self._versions.clear()
        values = self._key.values
        number = next((i for i, other in enumerate(self._versions) if other is values or other == values), None)
        if number is None:
            self._versions.append(values)
            return len(self._versions) - 1
        self._key.values = self._versions[number]  # lets the next call find the values by identity
        return number

    def _find_or_make_padding(self, given: CheckedStructures) -> PaddedBuffers:
        pos, cells, neighbors = given.pos, given.cells, given.neighbors
        rest = pos.dtype, pos.device, neighbors.src.dtype, cells is not None
        existing = [capacity for capacity, *others in self._paddings if tuple(others) == rest]
        key = (choose_capacity(Capacity.from_neighbors(neighbors), self.given, existing), *rest)
        padding = self._paddings.pop(key, None)
        if padding is None:
            padding = PaddedBuffers(key[0], pos, cells is not None, neighbors.src.dtype)
        self._paddings[key] = padding
        while len(self._paddings) > MAX_PADDINGS:
            dropped = self._paddings.pop(next(iter(self._paddings)))
            self._replays = {k: replay for k, replay in self._replays.items() if k[0] is not dropped}
        return padding

    def _check_ghost_effects(
        self, compute: Callable[..., Any], exact: tuple[Any, Any], padded: tuple[Any, Any]
    ) -> None:
        """Raise RuntimeError if ghosts change results by more than rounding errors."""
        assert self._key is not None
        expected, got = (
            compute(copy_model_sharing_parameters(self.model, self._key), *arguments) for arguments in (exact, padded)
        )
        given = exact[0]
        dtype = (
            torch.get_autocast_dtype(given.pos.device.type)
            if torch.is_autocast_enabled(given.pos.device.type)
            else given.pos.dtype
        )
        eps = torch.finfo(dtype).eps
        pairs = [(g[: len(e)] if e.dim() else g, e) for g, e in zip(got, expected, strict=True) if e is not None]
        floor = 1000.0 * eps * max(float(e.detach().abs().nan_to_num().max()) for _, e in pairs)
        for number, (value, other) in enumerate(pairs):
            value, other = value.detach(), other.detach()
            error = float((value.nan_to_num() - other.nan_to_num()).abs().max())
            bound = math.sqrt(eps) * float(other.nan_to_num().abs().max()) + floor
            if not (error <= bound and torch.equal(value.isnan(), other.isnan())):
                raise RuntimeError(
                    f"{OWNER}: result {number} of {type(self.model).__name__} changes by {error:.1e} with ghost atoms; "
                    f"expected at most {bound:.1e}: does the model, or the loss, take a mean over all atoms, mix atoms "
                    "that are not neighbours (BatchNorm), count ghosts, or use random numbers?"
                )


def _refuse_create_graph(create_graph: bool) -> None:
    if create_graph:
        raise RuntimeError(
            "CapturedPotential: create_graph is True; expected False, because autograd does not record a replay: "
            "use training_step(loss, optimizer), which also captures the loss and its gradients"
        )


def _disable_autocast_cache(device: torch.device) -> Any:
    """Return a context in which autocast does not cache converted weights, because weights change between replays."""
    if not torch.is_autocast_enabled(device.type):
        return contextlib.nullcontext()
    return torch.autocast(device.type, torch.get_autocast_dtype(device.type), cache_enabled=False)
