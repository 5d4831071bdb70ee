"""Potentials compiled to one program, for structures of any size, whose forces are differentiable.

Torch's compiler does not support functions that compute their own gradients. Therefore `make_fx` first traces energies
and forces to a graph of operations with symbolic sizes, which is then compiled.
"""

import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn import Module

from trigraph.torch.graphs import constants, put_together, tensors, with_own_code
from trigraph.torch.nn.potential import Potential, derivatives
from trigraph.torch.nn.structures import EnergyForcesStress, Neighbors


class _Kind(NamedTuple):
    """Properties that are fixed in a program; everything else is an argument of the program."""

    dtype: torch.dtype
    device: torch.device
    index_dtype: torch.dtype
    periodic: bool
    constants: tuple[tuple[int, ...], ...]  # of the graphs of the neighbours
    training: bool  # of the model
    create_graph: bool


class Inputs(NamedTuple):
    """Arguments of a program: atoms, cells, and the graphs of `Neighbors` as tensors."""

    z: Tensor
    pos: Tensor
    cells: Tensor | None
    batch: Tensor
    shifts: Tensor | None
    graphs: tuple[tuple[Tensor | None, ...], ...]

    @classmethod
    def of(cls, z: Tensor, pos: Tensor, cells: Tensor | None, neighbors: Neighbors) -> "Inputs":
        """Flatten neighbours. An empty structure is added to a single one, because torch makes size 1 a constant."""
        batch = neighbors.batch
        if batch is None:
            batch = torch.zeros_like(z, dtype=tensors(neighbors.members, False)[0].dtype)
        shifts = neighbors.shifts
        if cells is not None and shifts is None:
            shifts = batch.new_zeros(neighbors.graph.num_edges, 3)
        *others, members = (tensors(graph, True) for graph in graphs_of(neighbors))
        if neighbors.num_structures == 1:
            members = (torch.cat([members[0], members[0][-1:]]), *members[1:])
            cells = None if cells is None else torch.cat([cells, torch.zeros_like(cells)])
        # A program requires the strides that it was traced with.
        cells = None if cells is None else cells.contiguous()
        return cls(z.long(), pos.contiguous(), cells, batch, shifts, (*others, members))

    def neighbors(self, constants: Sequence[Sequence[int]]) -> Neighbors:
        """Return the neighbours, with graphs whose sizes come from the tensors."""
        kinds = ("EdgeGraph", "CSC", "CSC", "CSC")
        graph, *sums = map(put_together, kinds, self.graphs, constants)
        return Neighbors(graph, self.shifts, self.batch, *sums)


def graphs_of(neighbors: Neighbors) -> tuple[Any, ...]:
    """Return the graphs of neighbours."""
    return neighbors.graph, neighbors.ends, neighbors.into, neighbors.members


def example_of(model: Potential, given: Inputs) -> Inputs:
    """Return structures for tracing: clusters of atoms of the given elements.

    Torch assigns the same symbol to equal sizes in the example. Therefore the numbers of atoms, edges and structures,
    the derived sizes of graphs (one or two larger, or twice as large), and the sizes of parameters all differ.
    """
    taken = {n for p in model.parameters() for n in p.shape} | set(range(10))
    generator = torch.Generator().manual_seed(0)
    for structures in itertools.count(17):
        batch = torch.arange(structures).repeat_interleave(torch.arange(structures) % 4 + 4)
        places = torch.cartesian_prod(*3 * [torch.arange(2.0)])[torch.cat([torch.arange(n) for n in batch.bincount()])]
        pos = 0.45 * model.cutoff * (places + 0.3 * torch.rand(places.shape, generator=generator))
        z = given.z.cpu()[torch.randint(len(given.z), (len(batch),), generator=generator)].to(given.z.device)
        cells = None if given.cells is None else (9.0 * model.cutoff * torch.eye(3)).repeat(structures, 1, 1)
        pos, cells = pos.to(given.pos), None if cells is None else cells.to(given.pos)
        neighbors = model.neighbors(pos, batch.to(z.device), cells)
        sizes = [m * n + more for n in (len(batch), structures) for m, more in ((1, 0), (1, 1), (1, 2), (2, 0), (2, 1))]
        sizes += [m * neighbors.graph.num_edges + more for m, more in ((1, 0), (1, 1), (2, 0), (2, 1))]
        if len(set(sizes)) == len(sizes) and not taken & set(sizes):
            return Inputs.of(z, pos, cells, neighbors)
    raise AssertionError("unreachable")


class _Atoms(Module):
    """Wraps `atoms_of_vectors` as a forward method, for `torch.func.functional_call`."""

    def __init__(self, model: Potential) -> None:
        super().__init__()
        self.model = model

    def forward(self, z: Tensor, vec: Tensor, neighbors: Neighbors) -> Tensor:
        return self.model.atoms_of_vectors(z, vec, neighbors)


class _Program:
    """A compiled program for calls of one kind."""

    def __init__(self, model: Potential, kind: _Kind, given: Inputs, options: Mapping[str, Any]) -> None:
        self.compilations, self.model = 0, model
        example = example_of(model, given)
        if kind.create_graph:
            example.pos.requires_grad_()
        program = traced_program(model, kind.constants, example)
        self.condition, self.conditions = condition_of(program), ShapeEnv()
        self.shapes: list[torch.Size] = []  # of the last call that met the condition

        @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
        def count() -> int:
            """Count compilations: the compiler calls this once and stores the result in the program."""
            self.compilations += 1
            return self.compilations

        def run(*given: Any) -> Any:
            count()
            return program(state_of(model), *given)

        self.compiled = torch.compile(with_own_code(run), dynamic=True, fullgraph=True, **options)
        try:
            self._check(kind, example)
        except Exception as error:
            if "InvalidCxxCompiler" in str(error):
                raise RuntimeError(
                    "compile_potential: torch found no C++ compiler; expected g++ or clang++, or its name in the "
                    "environment variable CXX"
                ) from error
            raise

    def __call__(self, given: Inputs, create_graph: bool) -> Any:
        with torch.set_grad_enabled(create_graph):
            return self.compiled(*given)

    def takes(self, given: Inputs) -> bool:
        """Return whether structures of these sizes meet the conditions of the trace."""
        leaves = leaves_of(state_of(self.model), given)
        shapes = [t.shape for t in leaves]
        if shapes != self.shapes and not self.conditions.evaluate_guards_expression(self.condition, leaves):
            return False
        self.shapes = shapes
        return True

    def _check(self, kind: _Kind, example: Inputs) -> None:
        """Compile, and raise RuntimeError unless results and gradients for the example agree with the model.

        Tracing ignores that a model detaches tensors or disables gradients. The bound detects such errors, not
        differences in rounding.
        """
        place = example.pos if kind.create_graph else example.pos.detach().requires_grad_()
        inputs = [place, *(p for p in self.model.parameters() if p.requires_grad)] if kind.create_graph else []
        found = []
        for program in (True, False):
            if program:
                results = self(example, kind.create_graph)
            else:
                neighbors = example.neighbors(kind.constants)
                results = derivatives(self.model.atoms_of_vectors, example.z, place, example.cells, neighbors, True)
            values = [t for t in results if t is not None]
            if inputs:
                loss = torch.stack([t.nan_to_num().square().sum() + t.nan_to_num().sum() for t in values]).sum()
                values += torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)
            found.append([t.detach().nan_to_num() for t in values])
        eps = torch.finfo(kind.dtype).eps
        floor = 1000.0 * eps * max(float(t.abs().max()) for t in found[1])
        for got, expected in zip(*found, strict=True):
            error, bound = float((got - expected).abs().max()), math.sqrt(eps) * float(expected.abs().max()) + floor
            if not error <= bound:
                raise RuntimeError(
                    f"compile_potential: {type(self.model).__name__} and its program differ by {error:.1e}; expected "
                    f"at most {bound:.1e}: does it detach a tensor, disable gradients, or use random numbers?"
                )


def state_of(model: Potential) -> dict[str, Tensor]:
    """Return the parameters and buffers of a model."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def traced_program(model: Potential, given_constants: Sequence[Sequence[int]], example: Inputs) -> Any:
    """Trace energies and derivatives as a function of a model's parameters, buffers and `Inputs`."""

    def function(state: Mapping[str, Tensor], *given: Any) -> tuple[Tensor | None, ...]:
        def atoms(*arguments: Any) -> Any:
            return torch.func.functional_call(_Atoms(model), {f"model.{n}": t for n, t in state.items()}, arguments)

        inputs = Inputs(*given)
        return tuple(derivatives(atoms, *inputs[:3], inputs.neighbors(given_constants), True))

    place = example.pos.detach().requires_grad_()
    return trace(function, state_of(model), *example._replace(pos=place))


def condition_of(program: Any) -> str:
    """Return the conditions on sizes that a model evaluated during tracing, such as more than 20 atoms.

    `ShapeEnv.evaluate_guards_expression` evaluates them for the tensors of a call, `leaves_of`.
    """
    traced = [n.meta["val"] for n in program.graph.nodes if n.op == "placeholder" and n.meta.get("val") is not None]
    return traced[0].fake_mode.shape_env.produce_guards_expression(traced)


def leaves_of(state: Mapping[str, Tensor], given: Inputs) -> list[Tensor]:
    """Return the tensors that a traced program takes."""
    return [t for t in (*state.values(), *given[:-1], *itertools.chain(*given.graphs)) if t is not None]


def trace(function: Any, *example: Any, tracing_mode: str = "symbolic") -> Any:
    """Trace a function that computes its own gradients to a graph of operations that can be differentiated again.

    Autograd detaches the results that it saves, such as a square root. These operations are removed, because they
    would cut off the next derivative.
    """
    program: Any = make_fx(function, tracing_mode=tracing_mode)(*example)  # type: ignore[arg-type]
    for node in list(program.graph.nodes):
        if node.target is torch.ops.aten.detach.default:
            node.replace_all_uses_with(node.args[0])
            program.graph.erase_node(node)
    program.recompile()
    return program


class CompiledPotential(Module):
    """A potential with a compiled program for energies, forces and stresses, made by :func:`compile_potential`.

    The first call of `energy_forces_stress` compiles, as does the first with another dtype, device, mode (`train` or
    `eval`), presence of cells, or `create_graph`. Sizes do not matter. RuntimeError is raised as
    :func:`compile_potential` describes.

    Attributes
    ----------
    model : Potential
        The original potential, with the same parameters.
    """

    def __init__(self, model: Potential, options: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self.options = model, options
        self.programs: dict[_Kind, _Program] = {}

    @property
    def cutoff(self) -> float:
        """Distance up to which atoms are neighbours."""
        return self.model.cutoff

    @property
    def compilations(self) -> int:
        """Number of compilations so far."""
        return sum(program.compilations for program in self.programs.values())

    def neighbors(self, *args: Any, **kwargs: Any) -> Neighbors:
        """Return the neighbours of atoms; see :meth:`Potential.neighbors`."""
        return self.model.neighbors(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Call the potential without compilation, for which torch.compile suffices."""
        return self.model(*args, **kwargs)

    energy_forces_stress: Any = Potential.energy_forces_stress  # of this `prepare` and this `differentiated`

    def prepare(self, *args: Any, **kwargs: Any) -> tuple[Neighbors, Tensor | None]:
        """Check the arguments of a call; see :meth:`Potential.prepare`."""
        return self.model.prepare(*args, **kwargs)

    def differentiated(
        self, z: Tensor, pos: Tensor, cells: Tensor | None, neighbors: Neighbors, create_graph: bool
    ) -> EnergyForcesStress:
        """Run the program of the kind of call, or the model where there is none for these sizes."""
        if neighbors.graph.num_edges < 2:  # torch treats sizes 0 and 1 as constants
            return self.model.differentiated(z, pos, cells, neighbors, create_graph)
        if not (create_graph and pos.requires_grad):
            pos = pos.detach().requires_grad_(create_graph)
        given = Inputs.of(z, pos, cells, neighbors)
        program = self._program(given, neighbors, create_graph)
        if not program.takes(given):
            _tell("ran without its program, because the model takes another branch,", given)
            return self.model.differentiated(z, pos, cells, neighbors, create_graph)
        before = program.compilations
        energy, forces, stress, energies = program(given, create_graph)
        if program.compilations > before:
            _tell(f"recompiled its program ({program.compilations} compilations)", given)
        if neighbors.num_structures == 1:
            energy, stress = energy[:1], None if stress is None else stress[:1]
        return EnergyForcesStress(energy, forces, stress, energies)

    def _program(self, given: Inputs, neighbors: Neighbors, create_graph: bool) -> _Program:
        kind = _Kind(
            given.pos.dtype,
            given.pos.device,
            given.batch.dtype,
            given.cells is not None,
            tuple(map(constants, graphs_of(neighbors))),
            self.model.training,
            create_graph,
        )
        if kind not in self.programs:
            self.programs[kind] = _Program(self.model, kind, given, self.options)
        return self.programs[kind]


def _tell(what: str, given: Inputs) -> None:
    edges = len(given.graphs[1][0]) - 1  # type: ignore[arg-type]
    warnings.warn(f"CompiledPotential: {what} for {len(given.z)} atoms with {edges} edges", stacklevel=5)


def compile_potential(model: Potential, **options: Any) -> CompiledPotential:
    """Compile the energies, forces and stresses of a potential to one program, for structures of any size.

    The first call compiles, which may take minutes; torch caches the result on disk. With ``create_graph=True``, a
    compiled program also differentiates a loss of energies, forces and stresses, to train the model.

    Parameters
    ----------
    model : Potential
        `trigraph.torch.nn.DimeNetPlusPlus`, or your own class derived from `trigraph.torch.nn.Potential`.
    **options
        Options of ``torch.compile``, such as ``mode="max-autotune"``, except `dynamic` and `fullgraph`.

    Returns
    -------
    CompiledPotential
        A replacement for `model` in `trigraph.ase.Calculator`, `trigraph.torch_sim.Model`, and training.

    Raises
    ------
    TypeError
        If `model` is not a `Potential`.
    RuntimeError
        In the first call, if torch finds no C++ compiler, or if results or gradients of the program differ from those
        of the model, which must not detach tensors, disable gradients or use random numbers.
    """
    if not isinstance(model, Potential):
        raise TypeError(f"compile_potential: model is a {type(model).__name__}; expected a trigraph.torch.nn.Potential")
    return CompiledPotential(model, options)
