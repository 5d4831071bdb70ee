"""Potentials: models whose energy is a sum over atoms, and whose forces and stresses are its derivatives."""

import contextlib
import copy
import inspect
import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from trigraph.arrays import require_count, require_nonnegative_number
from trigraph.table.former_names import FormerName, keep_former_names
from trigraph.torch.graphs import exclude_from_compilation
from trigraph.torch.layers.activations import use_torch_silu
from trigraph.torch.layers.arguments import refuse_torchscript
from trigraph.torch.potentials.structures import (
    EnergyForcesStress,
    Neighbors,
    check_atoms,
    check_potential,
    find_neighbors,
    make_empty_model_tensor,
    stack_cells,
)

EDGES_OF_ROWS = 4096  # default limit of (number of Hessian rows computed at once) * (number of edges)


@keep_former_names(
    differentiated="compute_energy_and_derivatives",
    differentiated_along="compute_hessian_product",
    prepare="prepare_neighbors_and_cells",
    summed="sum_outputs_by_structure",
)
class Potential(Module):
    """Base class of models that compute outputs of atoms from the vectors between neighbours.

    Subclasses set `cutoff` and define `atoms_of_vectors`. They inherit energies, forces and stresses, and work with
    `compile_potential`, `trigraph.ase.Calculator` and `trigraph.torch_sim.Model`.

    Attributes
    ----------
    cutoff : float
        Distance up to which atoms are neighbours, in the unit of the positions.
    max_num_neighbors : int or None
        Maximum number of edges into each atom, of which the shortest are kept (default: None, all).
    out_channels : int
        Number of outputs of each atom (default: 1).

    See Also
    --------
    trigraph.torch.nn.ForceField
    trigraph.torch.nn.EnergyForcesStress
    trigraph.torch.compile_potential
    trigraph.ase.Calculator

    Examples
    --------
    >>> import torch
    >>> from trigraph.torch.nn import Potential
    >>> class Springs(Potential):
    ...     cutoff = 3.0
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.stiffness = torch.nn.Parameter(torch.tensor(2.0))
    ...     def atoms_of_vectors(self, z, vec, neighbors):
    ...         short = self.cutoff - vec.square().sum(dim=1, keepdim=True).sqrt()
    ...         return neighbors.into_atoms(0.25 * self.stiffness * short.square())
    >>> pos = torch.tensor([[0.0, 0.0, 0.0], [2.0, 0.0, 0.0]])
    >>> Springs().energy_forces_stress(torch.tensor([1, 1]), pos).forces
    tensor([[-2.,  0.,  0.],
            [ 2.,  0.,  0.]])
    """

    cutoff: float
    max_num_neighbors: int | None = None
    out_channels: int = 1

    __prepare_scriptable__ = refuse_torchscript

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Raise TypeError if a subclass defines a method by a former name, because nothing would call it."""
        super().__init_subclass__(**keywords)
        for name, former in vars(Potential).items():
            if isinstance(former, FormerName) and inspect.getattr_static(cls, name) is not former:
                raise TypeError(f"{cls.__name__}: {name} is now called {former.new}; expected no {name}")

    def atoms_of_vectors(self, z: Tensor, vec: Tensor, neighbors: Neighbors) -> Tensor:
        """Return the outputs of the atoms, which `forward` sums. Every subclass must define this method.

        Parameters
        ----------
        z : Tensor of int64 or int32, shape (num_atoms,)
            Atomic numbers.
        vec : Tensor, shape (num_edges, 3)
            Vector from the destination of each edge to its source.
        neighbors : Neighbors

        Returns
        -------
        Tensor, shape (num_atoms, out_channels)
            Outputs of the atoms; a single energy per atom has shape (num_atoms, 1).
        """
        raise NotImplementedError(f"{type(self).__name__} does not define atoms_of_vectors")

    def check_numbers(self, z: Tensor) -> None:
        """Raise ValueError if the model does not support an atomic number (default: all are supported)."""

    def neighbors(
        self, pos: Tensor, batch: Tensor | None = None, cell: Any = None, pbc: Any = None, skin: float = 0.0
    ) -> Neighbors:
        """Return the neighbours that `forward` would find, for reuse while the same atoms are neighbours.

        Parameters
        ----------
        pos, batch, cell, pbc
            As for `forward`.
        skin : float
            Atoms up to the distance ``cutoff + skin`` are neighbours. Neighbours beyond the cutoff contribute exactly
            zero, so the result remains valid until an atom has moved by half the skin.

        Returns
        -------
        Neighbors

        Raises
        ------
        TypeError, ValueError, MemoryError
            As for `forward`, or if `skin` is negative, or positive with `max_num_neighbors`, because the nearest
            neighbours change as atoms move.
        """
        owner = type(self).__name__
        require_nonnegative_number(owner, "skin", skin)
        if skin and self.max_num_neighbors is not None:
            raise ValueError(
                f"{owner}: skin is {skin} and max_num_neighbors is {self.max_num_neighbors}; expected skin=0 or "
                "max_num_neighbors=None"
            )
        return find_neighbors(owner, pos, self.cutoff + skin, batch, cell, pbc, self.max_num_neighbors)

    def forward(
        self,
        z: Tensor,
        pos: Tensor,
        batch: Tensor | None = None,
        cell: Any = None,
        pbc: Any = None,
        neighbors: Neighbors | None = None,
    ) -> Tensor:
        """Return the sum over the atoms of each structure.

        Parameters
        ----------
        z : Tensor of int64 or int32, shape (num_atoms,)
            Atomic numbers.
        pos : Tensor, shape (num_atoms, 3)
            Positions, in the dtype and on the device of the parameters.
        batch : Tensor of int64 or int32, shape (num_atoms,), optional
            Structure of each atom (default: one structure).
        cell : Tensor of shape (3, 3) or (num_structures, 3, 3), or a list with one or None per structure, optional
            Cell vectors, as rows.
        pbc : bool, three bools, or three bools for each structure, optional
            Whether each direction is periodic (default: True with a cell, False without).
        neighbors : Neighbors, optional
            Result of `neighbors`, which already contains `batch` and `pbc`.

        Returns
        -------
        Tensor, shape (num_structures, out_channels), or (out_channels,) without a batch
            If `neighbors` is given, it determines whether there is a batch.

        Raises
        ------
        TypeError, ValueError, MemoryError
            If an argument has the wrong type, dtype, shape, device or value, two atoms coincide, or memory runs out.
        NotImplementedError
            In torch.jit.trace without `neighbors`.
        """
        neighbors, cells = self.prepare_neighbors_and_cells(z, pos, batch, cell, pbc, neighbors)
        energies = self.sum_outputs_by_structure(z, pos, cells, neighbors)
        return energies[0] if neighbors.batch is None else energies

    def sum_outputs_by_structure(self, z: Tensor, pos: Tensor, cells: Tensor | None, neighbors: Neighbors) -> Tensor:
        """Return `forward`, (num_structures, out_channels), for arguments checked by `prepare_neighbors_and_cells`."""
        return neighbors.into_structures(compute_atom_outputs(self, z, neighbors.vectors(pos, cells), neighbors))

    @exclude_from_compilation  # torch does not compile functions that compute their own gradients by default
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
        """Compute energies of structures and atoms, forces and stresses.

        Parameters
        ----------
        z, pos, batch, cell, pbc, neighbors
            As for `forward`.
        create_graph : bool
            Whether the results are differentiable, for training on a loss of energies, forces and stresses.

        Returns
        -------
        EnergyForcesStress

        Raises
        ------
        TypeError, ValueError, MemoryError, NotImplementedError
            As for `forward`, or if `out_channels` is not 1.
        RuntimeError
            If the model was made inside ``torch.inference_mode()``.
        """
        with torch.inference_mode(False), torch.enable_grad():
            neighbors, cells = self.prepare_neighbors_and_cells(z, pos, batch, cell, pbc, neighbors, energies=True)
            z, pos = (t.clone() if t.is_inference() else t for t in (z, pos))
            return self.compute_energy_and_derivatives(z, pos, cells, neighbors, create_graph)

    def compute_energy_and_derivatives(
        self, z: Tensor, pos: Tensor, cells: Tensor | None, neighbors: Neighbors, create_graph: bool
    ) -> EnergyForcesStress:
        """Return the results of `energy_forces_stress` for arguments checked by `prepare_neighbors_and_cells`."""
        if not (create_graph and pos.requires_grad):
            pos = pos.detach().requires_grad_()
        results = compute_derivatives(partial(compute_atom_outputs, self), z, pos, cells, neighbors, create_graph)
        if create_graph:
            return results
        return EnergyForcesStress(*(None if t is None else t.detach() for t in results))  # type: ignore[arg-type]

    @exclude_from_compilation
    def hessian_vector_product(
        self,
        z: Tensor,
        pos: Tensor,
        vector: Tensor,
        batch: Tensor | None = None,
        cell: Any = None,
        pbc: Any = None,
        neighbors: Neighbors | None = None,
        create_graph: bool = False,
    ) -> Tensor:
        """Return the product of the Hessian of the energies with a vector, without computing the Hessian.

        The product costs about as much as one step of training on forces.

        Parameters
        ----------
        z, pos, batch, cell, pbc, neighbors
            As for `forward`.
        vector : Tensor, shape (num_atoms, 3)
            Vector in the dtype and on the device of the positions.
        create_graph : bool
            Whether the result is differentiable, for training on curvatures (its gradient is a third derivative).

        Returns
        -------
        Tensor, shape (num_atoms, 3)
            Derivative of the negative forces along `vector`. The Hessian of a batch has a block for each structure.

        Raises
        ------
        TypeError, ValueError, MemoryError, NotImplementedError, RuntimeError
            As for `energy_forces_stress`, or if `vector` differs from the positions in dtype, shape or device.
        """
        owner = f"{type(self).__name__}.hessian_vector_product"
        if not isinstance(vector, Tensor):
            raise TypeError(f"{owner}: vector is a {type(vector).__name__}; expected a torch.Tensor")
        if not isinstance(pos, Tensor) or (vector.dtype, vector.device) != (pos.dtype, pos.device):
            raise TypeError(f"{owner}: vector is {vector.dtype} on {vector.device}; expected dtype and device of pos")
        if vector.shape != pos.shape:
            expected = tuple(pos.shape)
            raise ValueError(f"{owner}: vector has shape {tuple(vector.shape)}; expected (num_atoms, 3) = {expected}")
        with torch.inference_mode(False), torch.enable_grad():
            neighbors, cells = self.prepare_neighbors_and_cells(z, pos, batch, cell, pbc, neighbors, energies=True)
            z, pos, vector = (t.clone() if t.is_inference() else t for t in (z, pos, vector))
            return self.compute_hessian_product(z, pos, cells, neighbors, vector, create_graph)

    def compute_hessian_product(
        self, z: Tensor, pos: Tensor, cells: Tensor | None, neighbors: Neighbors, vector: Tensor, create_graph: bool
    ) -> Tensor:
        """Return the result of `hessian_vector_product` for arguments checked by `prepare_neighbors_and_cells`."""
        if not (create_graph and pos.requires_grad):
            pos = pos.detach().requires_grad_()
        of_atoms = partial(compute_atom_outputs, self)
        return multiply_by_hessian(of_atoms, z, pos, cells, neighbors, vector, create_graph)

    @exclude_from_compilation
    def hessian(
        self,
        z: Tensor,
        pos: Tensor,
        batch: Tensor | None = None,
        cell: Any = None,
        pbc: Any = None,
        neighbors: Neighbors | None = None,
        atoms: Any = None,
        block_size: int | None = None,
        progress: Any = None,
    ) -> Tensor:
        """Return the second derivatives of the energies with respect to the positions, computed in blocks of rows.

        Parameters
        ----------
        z, pos, batch, cell, pbc, neighbors
            As for `forward`.
        atoms : sequence of int, optional
            Atoms whose rows are computed (default: all).
        block_size : int, optional
            Number of rows computed at once; memory is proportional to it (default: 4096 divided by the number of edges,
            but at least 1).
        progress : callable, optional
            Function that wraps the list of blocks to show progress, such as ``tqdm.tqdm`` or ``rich.progress.track``.

        Returns
        -------
        Tensor, shape (len(atoms), 3, num_atoms, 3)
            Element ``[k, a, j, b]`` belongs to coordinate a of ``atoms[k]`` and coordinate b of atom j.

        Raises
        ------
        TypeError, ValueError, MemoryError, NotImplementedError, RuntimeError
            As for `energy_forces_stress`, or if `block_size` is not a positive int.
        IndexError
            If a number in `atoms` is out of range.
        """
        if block_size is not None:
            require_count(f"{type(self).__name__}.hessian", "block_size", block_size, 1)
        with torch.inference_mode(False), torch.enable_grad():
            neighbors, cells = self.prepare_neighbors_and_cells(z, pos, batch, cell, pbc, neighbors, energies=True)
            z, pos = (t.clone() if t.is_inference() else t for t in (z, pos))
            numbers = range(len(pos)) if atoms is None else [operator.index(atom) for atom in atoms]
            for number in numbers:
                if not -len(pos) <= number < len(pos):
                    raise IndexError(f"{type(self).__name__}.hessian: atoms has {number}; expected atoms of {len(pos)}")
            rows = [number % len(pos) * 3 + axis for number in numbers for axis in range(3)]
            size = block_size or max(1, EDGES_OF_ROWS // max(1, neighbors.graph.num_edges))
            blocks = [rows[k : k + size] for k in range(0, len(rows), size)]
            rows_along = self.make_hessian_multiplier(z, pos, cells, neighbors) if blocks else None
            hessian = [pos.new_empty(0, len(pos), 3)]
            for block in blocks if progress is None else progress(blocks):
                directions = pos.new_zeros(len(block), pos.numel())
                directions[range(len(block)), block] = 1.0
                hessian.append(rows_along(directions.reshape(-1, *pos.shape)))  # type: ignore[misc]
            return torch.cat(hessian).reshape(len(numbers), 3, len(pos), 3)

    def make_hessian_multiplier(
        self, z: Tensor, pos: Tensor, cells: Tensor | None, neighbors: Neighbors
    ) -> Callable[[Tensor], Tensor]:
        """Return a function that multiplies the Hessian by k directions, shape (k, num_atoms, 3)."""
        pos = pos.detach().requires_grad_()
        forces = (
            copy_with_frozen_parameters(self)
            .compute_energy_and_derivatives(z, pos, cells, neighbors, create_graph=True)
            .forces
        )
        return torch.func.vmap(partial(_differentiate_forces_along, forces, pos))

    def prepare_neighbors_and_cells(
        self,
        z: Tensor,
        pos: Tensor,
        batch: Tensor | None,
        cell: Any,
        pbc: Any,
        neighbors: Neighbors | None,
        energies: bool = False,
    ) -> tuple[Neighbors, Tensor | None]:
        """Check the arguments; return neighbours and stacked cells. `energies` requires that `out_channels` is 1."""
        owner = type(self).__name__
        if energies and self.out_channels != 1:
            raise ValueError(f"{owner}: out_channels is {self.out_channels}; expected 1 for energy_forces_stress")
        check_atoms(owner, z, pos, make_empty_model_tensor(self))
        if neighbors is None:
            self.check_numbers(z)
            neighbors = self.neighbors(pos, batch, cell, pbc)
        else:
            if not isinstance(neighbors, Neighbors):
                raise TypeError(f"{owner}: neighbors is a {type(neighbors).__name__}; expected Neighbors")
            for name, value in (("batch", batch), ("pbc", pbc)):
                if value is not None:
                    raise ValueError(f"{owner}: {name} is given with neighbors; expected None, as they hold it")
            if neighbors.graph.num_nodes != len(z):
                raise ValueError(
                    f"{owner}: neighbors have {neighbors.graph.num_nodes} atoms; expected num_atoms = {len(z)}"
                )
        return neighbors, stack_cells(owner, cell, pos, neighbors.num_structures)


class ForceField(Module):
    """Potential whose `forward` returns energies, forces and stresses.

    Wrappers such as ``torch.nn.parallel.DistributedDataParallel`` act only on calls of the module that they wrap. With
    ``wrapped.module.energy_forces_stress``, gradients would silently not be reduced over the processes. Wrap a
    ForceField instead, and call the wrapper.

    Parameters
    ----------
    potential : torch.nn.Module
        Module with a method `energy_forces_stress`, such as a `Potential`.

    Raises
    ------
    TypeError
        If `potential` has no `energy_forces_stress`.

    See Also
    --------
    trigraph.torch.nn.Potential

    Examples
    --------
    >>> import torch
    >>> from trigraph.torch.nn import DimeNetPlusPlus, ForceField
    >>> field = ForceField(DimeNetPlusPlus(16, 1, 1, 8, 4, 16, 3, 4))
    >>> pos = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    >>> field(torch.tensor([8, 1]), pos).forces.square().sum().backward()
    """

    def __init__(self, potential: Module) -> None:
        check_potential("ForceField", potential)
        super().__init__()
        self.potential = potential

    def forward(
        self,
        z: Tensor,
        pos: Tensor,
        batch: Tensor | None = None,
        cell: Any = None,
        pbc: Any = None,
        neighbors: Neighbors | None = None,
    ) -> EnergyForcesStress:
        """Return the results of `Potential.energy_forces_stress`, which are differentiable in training mode.

        See `Potential.energy_forces_stress` for parameters, results and errors.
        """
        potential: Any = self.potential
        result: EnergyForcesStress = potential.energy_forces_stress(
            z, pos, batch, cell=cell, pbc=pbc, neighbors=neighbors, create_graph=self.training
        )
        return result


def copy_with_frozen_parameters(model: Potential) -> Potential:
    """Return a copy whose parameters require no gradients, which operators would compute even if unused.

    The copy shares the model's buffers and attributes. The model is not modified, because other threads may use it.
    """
    memo: dict[int, Any] = {id(p): p.detach() for p in model.parameters()}
    for module in model.modules():
        for value in vars(module).values():  # copy only modules, and dictionaries of modules or parameters
            if not (isinstance(value, dict) and any(isinstance(v, (Module, Parameter)) for v in value.values())):
                memo[id(value)] = value
    return copy.deepcopy(model, memo)


def _differentiate_forces_along(forces: Tensor, pos: Tensor, vector: Tensor, create_graph: bool = False) -> Tensor:
    """Return the product of the Hessian with a vector, given differentiable forces."""
    if not forces.requires_grad:  # true if no atom has neighbours
        return torch.zeros_like(vector)
    (product,) = torch.autograd.grad(forces, pos, -vector, True, create_graph, materialize_grads=True)
    return product


def multiply_by_hessian(
    atoms_of_vectors: Any,
    z: Tensor,
    pos: Tensor,
    cells: Tensor | None,
    neighbors: Neighbors,
    vector: Tensor,
    create_graph: bool,
) -> Tensor:
    """Return the product of the Hessian of the energies with a vector; `pos` must require a gradient."""
    forces = compute_derivatives(atoms_of_vectors, z, pos, cells, neighbors, create_graph=True).forces
    return _differentiate_forces_along(forces, pos, vector, create_graph=create_graph)


def compute_atom_outputs(model: Potential, z: Tensor, vec: Tensor, neighbors: Neighbors) -> Tensor:
    """Call a model's `atoms_of_vectors`; raise ValueError if the shape of its result is wrong."""
    outputs, expected = model.atoms_of_vectors(z, vec, neighbors), (z.shape[0], model.out_channels)
    if outputs.shape != expected:
        raise ValueError(
            f"{type(model).__name__}.atoms_of_vectors: the returned outputs of atoms have shape "
            f"{tuple(outputs.shape)}; expected (num_atoms, out_channels) = {expected}"
        )
    return outputs


def compute_derivatives(
    atoms_of_vectors: Any, z: Tensor, pos: Tensor, cells: Tensor | None, neighbors: Neighbors, create_graph: bool
) -> EnergyForcesStress:
    """Return the energies of `atoms_of_vectors`, and their derivatives; `pos` must require a gradient."""
    return compute_derivatives_and_edge_strains(atoms_of_vectors, z, pos, cells, neighbors, create_graph)[0]


def compute_derivatives_and_edge_strains(
    atoms_of_vectors: Any, z: Tensor, pos: Tensor, cells: Tensor | None, neighbors: Neighbors, create_graph: bool
) -> tuple[EnergyForcesStress, Tensor | None]:
    """Return the results of `compute_derivatives` and, with cells, each edge's strain derivatives, (edges, 9)."""
    vec = neighbors.vectors(pos, cells)
    with contextlib.nullcontext() if create_graph else use_torch_silu():
        atom_energies = atoms_of_vectors(z, vec, neighbors)
    energy = neighbors.into_structures(atom_energies)[:, 0]
    total = energy.sum()
    by_vec = None
    if total.requires_grad:
        by_pos, by_vec = torch.autograd.grad(total, (pos, vec), create_graph=create_graph, allow_unused=True)
    if by_vec is None:
        if vec.shape[0]:  # raise an error only if there are edges
            raise ValueError(
                "Potential.atoms_of_vectors: the returned outputs of atoms do not depend on vec; expected outputs "
                "computed from vec, without detach, numpy or no_grad"
            )
        by_pos, by_vec = torch.zeros_like(pos), torch.zeros_like(vec)
    # Strain acts on edge vectors as on positions and cells, so the strain derivative is a sum over edges.
    edge_strains = None if cells is None else (vec.unsqueeze(2) * by_vec.unsqueeze(1)).flatten(1)
    stress = None if edge_strains is None else _compute_stress(edge_strains, cells, neighbors)
    forces = 0.0 - by_pos  # unlike -by_pos, yields no -0.0 for atoms without neighbours
    return EnergyForcesStress(energy, forces, stress, atom_energies[:, 0]), edge_strains


def _compute_stress(of_edges: Tensor, cells: Any, neighbors: Neighbors) -> Tensor:
    """Return the derivative of the energies with respect to a symmetric strain, divided by the cell volumes."""
    virial = neighbors.into_structures(neighbors.into_atoms(of_edges)).reshape(-1, 3, 3)
    if cells.is_cuda:  # torch.linalg.det may synchronize the device
        volume = (cells[:, 0] * torch.linalg.cross(cells[:, 1], cells[:, 2])).sum(1).abs()[:, None, None]
    else:
        volume = torch.linalg.det(cells).abs()[:, None, None]
    symmetric = 0.5 * (virial + virial.transpose(1, 2))
    has_volume = volume > 0
    return torch.where(has_volume, symmetric / torch.where(has_volume, volume, 1.0), math.nan)
