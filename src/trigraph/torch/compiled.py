"""Potentials as one compiled program: energies, forces and stresses of structures of any size, and their gradients.

Torch's compiler does not take functions that differentiate themselves. Energy and forces are traced to the operations
that they are made of, with symbols in place of sizes, and what was traced is compiled.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from trigraph.torch.graphs import COMPILED, GraphTensors
from trigraph.torch.nn.dimenet import stress_of
from trigraph.torch.nn.structures import EnergyForcesStress, Neighbors, check_atoms, empty_like_model, stack_cells

__all__ = ["CompiledPotential", "compile_potential"]


class _Atoms(torch.nn.Module):
    """A model's outputs of atoms as a forward, for `torch.func.functional_call`."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, z: Tensor, vec: Tensor, neighbors: Neighbors) -> Tensor:
        """Return the outputs of atoms, shape (num_atoms, 1)."""
        found: Tensor = self.model.atoms_of_vectors(z, vec, neighbors)
        return found


# Tensors and numbers of a call: atomic numbers, positions, cells, structure of each atom, shifts, and four graphs.
_Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, list[GraphTensors]]


def _inputs(z: Tensor, pos: Tensor, cell: Tensor | None, neighbors: Neighbors) -> _Inputs:
    """Return what a program takes, with zeros for what there is not, so that one program serves all."""
    graphs = [GraphTensors.of(g) for g in (neighbors.graph, neighbors.ends, neighbors.into, neighbors.members)]
    cells = pos.new_zeros(neighbors.num_structures, 3, 3) if cell is None else cell
    batch = z.new_zeros(len(z), dtype=torch.int64) if neighbors.batch is None else neighbors.batch.long()
    shifts = neighbors.shifts
    if shifts is None:
        shifts = batch.new_zeros(neighbors.graph.num_edges, 3)
    return z, pos, cells, batch, shifts, graphs


def _neighbors(batch: Tensor, shifts: Tensor, graphs: list[GraphTensors]) -> Neighbors:
    graph, *sums = (g.graph() for g in graphs)
    return Neighbors(graph, shifts, batch, *sums)


def _example(model: Any) -> _Inputs:
    """Return structures whose sizes are those of no parameter, and different from one another.

    Torch takes two sizes that are equal in the example for the same symbol, and 0 and 1 for constants.
    """
    like = empty_like_model(model)
    known = {n for p in model.parameters() for n in p.shape} | {0, 1, 2, 3, 9}
    generator = torch.Generator().manual_seed(0)
    for structures in itertools.count(11, 2):
        batch = torch.arange(structures).repeat_interleave(torch.arange(structures) % 3 + 4)
        side = float(model.cutoff)
        pos = torch.rand(len(batch), 3, generator=generator).double() * side
        z = torch.randint(1, 10, (len(batch),), generator=generator)
        cells = 3.0 * side * torch.eye(3).double().expand(structures, 3, 3)
        placed = [t.to(like.device) for t in (z, pos.to(like.dtype), batch, cells.to(like.dtype))]
        neighbors = model.neighbors(placed[1], placed[2], placed[3])
        found = _inputs(placed[0], placed[1], placed[3].contiguous(), neighbors)
        sizes = [len(batch), structures, neighbors.graph.num_edges]
        sizes += [n + more for n in sizes for more in (1, 2)] + [2 * n + more for n in sizes for more in (0, 1)]
        if len(set(sizes)) == len(sizes) and not known & set(sizes):
            return found
    raise AssertionError("unreachable")


def _energy_forces_stress(
    atoms: _Atoms,
    parameters: Mapping[str, Tensor],
    z: Tensor,
    pos: Tensor,
    cell: Tensor,
    batch: Tensor,
    shifts: Tensor,
    graphs: list[GraphTensors],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return energies, forces, stresses and energies of atoms; `pos` requires a gradient."""
    neighbors = _neighbors(batch, shifts, graphs)
    vec = neighbors.vectors(pos, cell)
    of_atoms = torch.func.functional_call(atoms, dict(parameters), (z, vec, neighbors))
    energy = neighbors.into_structures(of_atoms)[:, 0]
    by_pos, by_vec = torch.autograd.grad(energy.sum(), (pos, vec), create_graph=True)
    return energy, 0.0 - by_pos, stress_of(vec, by_vec, cell, neighbors), of_atoms[:, 0]


class CompiledPotential(torch.nn.Module):
    """A potential whose energies, forces and stresses are one compiled program; made by :func:`compile_potential`.

    Attributes
    ----------
    model : torch.nn.Module
        The potential, whose parameters these are.
    """

    def __init__(self, model: Any, **options: Any) -> None:
        super().__init__()
        self.model, self.atoms = model, _Atoms(model)
        example = _example(model)
        example[1].requires_grad_()
        names = dict(self.atoms.named_parameters())

        def traced(parameters: Mapping[str, Tensor], *inputs: Any) -> Any:
            return _energy_forces_stress(self.atoms, parameters, *inputs)

        self.program = make_fx(traced, tracing_mode="symbolic")(
            {n: p.detach().requires_grad_() for n, p in names.items()}, *example
        )
        self.compiled = torch.compile(self._run, dynamic=True, fullgraph=True, **options)
        self.warm = example

    def _run(self, z: Tensor, pos: Tensor, cell: Tensor, batch: Tensor, shifts: Tensor, graphs: Any) -> Any:
        return self.program(dict(self.atoms.named_parameters()), z, pos, cell, batch, shifts, graphs)
