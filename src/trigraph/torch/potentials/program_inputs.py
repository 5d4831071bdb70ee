"""Arguments of programs as tensors, example arguments, and traces of a potential's derivatives for these arguments."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from trigraph.torch.graphs import build_graph_from_tensors, list_graph_tensors
from trigraph.torch.potentials.potential import (
    Potential,
    compute_atom_outputs,
    compute_derivatives,
    multiply_by_hessian,
)
from trigraph.torch.potentials.structures import Neighbors, find_neighbors
from trigraph.torch.potentials.traced import trace_differentiable_program


class ProgramInputs(NamedTuple):
    """Arguments of a program: atoms, cells, the tensors of `Neighbors`, and the vector for a Hessian product."""

    z: Tensor
    pos: Tensor
    cells: Tensor | None
    batch: Tensor
    shifts: Tensor | None
    graphs: tuple[tuple[Tensor | None, ...], ...]
    vector: Tensor | None

    @classmethod
    def from_neighbors(
        cls, z: Tensor, pos: Tensor, cells: Tensor | None, neighbors: Neighbors, vector: Tensor | None
    ) -> "ProgramInputs":
        """Return the arguments as tensors. Add an empty structure to a single one: torch would make size 1 constant."""
        batch = neighbors.batch
        if batch is None:
            batch = torch.zeros_like(z, dtype=list_graph_tensors(neighbors.members, False)[0].dtype)
        shifts = neighbors.shifts
        if cells is not None and shifts is None:
            shifts = batch.new_zeros(neighbors.graph.num_edges, 3)
        *graphs, members = (list_graph_tensors(graph, True) for graph in list_neighbor_graphs(neighbors))
        if neighbors.num_structures == 1:
            members = (torch.cat([members[0], members[0][-1:]]), *members[1:])
            cells = None if cells is None else torch.cat([cells, torch.zeros_like(cells)])
        # Programs are traced with contiguous tensors, and require the same strides in each call.
        z, pos, batch = z.long().contiguous(), pos.contiguous(), batch.contiguous()
        cells, shifts, vector = (None if t is None else t.contiguous() for t in (cells, shifts, vector))
        return cls(z, pos, cells, batch, shifts, (*graphs, members), vector)

    @property
    def differentiable_tensors(self) -> tuple[Tensor | None, ...]:
        """Tensors with respect to which a result may have a gradient."""
        return self.pos, self.cells, self.vector

    def compute_derivatives_or_hessian_product(
        self, atoms_of_vectors: Any, constants: Sequence[Sequence[int]]
    ) -> tuple[Tensor | None, ...]:
        """Return the product of the Hessian with `vector` or, without one, the fields of EnergyForcesStress."""
        given = atoms_of_vectors, self.z, self.pos, self.cells, self.make_neighbors(constants)
        if self.vector is None:
            return tuple(compute_derivatives(*given, create_graph=True))
        return (multiply_by_hessian(*given, self.vector, create_graph=True),)

    def make_neighbors(self, constants: Sequence[Sequence[int]]) -> Neighbors:
        """Build the `Neighbors`, with graph sizes taken from the shapes of the tensors."""
        kinds = ("EdgeGraph", "CSC", "CSC", "CSC")
        graph, *sums = map(build_graph_from_tensors, kinds, self.graphs, constants)
        return Neighbors(graph, self.shifts, self.batch, *sums)


def list_neighbor_graphs(neighbors: Neighbors) -> tuple[Any, ...]:
    """Return the graphs in a `Neighbors`, in the order of `ProgramInputs.graphs`."""
    return neighbors.graph, neighbors.ends, neighbors.into, neighbors.members


def make_example_inputs(model: Potential, inputs: ProgramInputs, min_structures: int = 17) -> ProgramInputs:
    """Return `min_structures` or more structures for tracing: clusters of atoms of the given elements.

    Torch assigns one symbol to all equal sizes in the example. Therefore the numbers of atoms, edges and structures,
    the graph sizes derived from these (one or two more, or twice as many), and the sizes of parameters all differ.
    """
    excluded_sizes = {n for p in model.parameters() for n in p.shape} | set(range(10))
    generator = torch.Generator().manual_seed(0)
    for structures in itertools.count(min_structures):
        batch = torch.arange(structures).repeat_interleave(torch.arange(structures) % 4 + 4)
        places = torch.cartesian_prod(*3 * [torch.arange(2.0)])[torch.cat([torch.arange(n) for n in batch.bincount()])]
        pos = 0.45 * model.cutoff * (places + 0.3 * torch.rand(places.shape, generator=generator))
        z = inputs.z.cpu()[torch.randint(len(inputs.z), (len(batch),), generator=generator)].to(inputs.z.device)
        cells = None if inputs.cells is None else (9.0 * model.cutoff * torch.eye(3)).repeat(structures, 1, 1)
        pos, cells = pos.to(inputs.pos), None if cells is None else cells.to(inputs.pos)
        # Ignore `max_num_neighbors`: if it is 2, there are always twice as many edges as atoms, so that the sizes
        # below would never all differ.
        neighbors = find_neighbors(type(model).__name__, pos, model.cutoff, batch.to(z.device), cells)
        sizes = [m * n + more for n in (len(batch), structures) for m, more in ((1, 0), (1, 1), (1, 2), (2, 0), (2, 1))]
        sizes += [m * neighbors.graph.num_edges + more for m, more in ((1, 0), (1, 1), (2, 0), (2, 1))]
        if len(set(sizes)) == len(sizes) and not excluded_sizes & set(sizes):
            vector = None if inputs.vector is None else torch.rand(pos.shape, generator=generator).to(pos)
            return ProgramInputs.from_neighbors(z, pos, cells, neighbors, vector)
    raise AssertionError("unreachable")


class _AtomOutputsModule(Module):
    """Wrapper for `torch.func.functional_call` with `atoms_of_vectors` as the forward method."""

    def __init__(self, model: Potential) -> None:
        super().__init__()
        self.model = model

    def forward(self, z: Tensor, vec: Tensor, neighbors: Neighbors) -> Tensor:
        return compute_atom_outputs(self.model, z, vec, neighbors)


def get_parameters_and_buffers(model: Potential) -> dict[str, Tensor]:
    """Return the parameters and buffers of a model."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def trace_program(
    model: Potential,
    given_constants: Sequence[Sequence[int]],
    example: ProgramInputs,
    uncompared_names: Sequence[str],
    owner: str = "compile_potential",
    results: Callable[
        [ProgramInputs, Any, Sequence[Sequence[int]]], Any
    ] = ProgramInputs.compute_derivatives_or_hessian_product,
) -> Any:
    """Trace `results` as a function of parameters, buffers and `ProgramInputs`; errors list `uncompared_names`."""

    def compute_traced_results(state: Mapping[str, Tensor], *fields: Any) -> tuple[Tensor | None, ...]:
        def call_atom_module(*arguments: Any) -> Any:
            return torch.func.functional_call(
                _AtomOutputsModule(model), {f"model.{n}": t for n, t in state.items()}, arguments
            )

        return results(ProgramInputs(*fields), call_atom_module, given_constants)

    place = example.pos.detach().requires_grad_()
    try:
        return trace_differentiable_program(
            compute_traced_results, get_parameters_and_buffers(model), *example._replace(pos=place)
        )
    except Exception as error:
        buffers = f", with buffers instead of tensors in {', '.join(uncompared_names)}" if uncompared_names else ""
        raise RuntimeError(
            f"{owner}: {type(model).__name__} cannot be traced; expected a model that "
            f"torch.fx.experimental.proxy_tensor.make_fx can trace{buffers}: {error}"
        ) from error


def list_program_tensors(state: Mapping[str, Tensor], inputs: ProgramInputs) -> list[Tensor]:
    """Return the tensor arguments of a traced program as a flat list."""
    return [t for t in (*state.values(), *inputs[:5], *itertools.chain(*inputs.graphs), inputs.vector) if t is not None]
