"""Potentials as packages of torch's AOTInductor: compiled programs in a file, used without the source of the model."""

import json
import os
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from trigraph.torch.graphs import constants, tensors
from trigraph.torch.nn import compiled
from trigraph.torch.nn.potential import Potential
from trigraph.torch.nn.structures import DST, SRC, EnergyForcesStress, Neighbors, empty_like_model, prepared


class _Program(torch.nn.Module):
    """A traced program with the parameters and buffers of the model for constants."""

    def __init__(self, program: Any, model: Potential) -> None:
        super().__init__()
        self.program, self.names = program, list(compiled.state_of(model))
        for i, tensor in enumerate(compiled.state_of(model).values()):
            self.register_buffer(f"constant{i}", tensor.detach())

    def forward(self, *given: Any) -> Any:
        state = {name: getattr(self, f"constant{i}") for i, name in enumerate(self.names)}
        return self.program(state, *given)


def package_potential(model: Potential, path: str | os.PathLike[str]) -> str:
    """Write a potential into a file, as a compiled program of energies and forces of structures of any size.

    Parameters
    ----------
    model : Potential
        The program has its parameters, dtype and device, and the mode (`train` or `eval`) that it is in.
    path : str or path
        Ends in ".pt2".

    Returns
    -------
    str
        The path, for :func:`load_potential`.

    Raises
    ------
    TypeError
        If `model` is no `Potential`.
    """
    if not isinstance(model, Potential):
        raise TypeError(f"package_potential: model is a {type(model).__name__}; expected a trigraph.torch.nn.Potential")
    like, numbers = empty_like_model(model), [n for n in range(119) if _knows(model, n)]
    pair = like.new_tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.5 * model.cutoff]])
    z, cells = torch.full((2,), numbers[-1], device=like.device), like.new_zeros(1, 3, 3)
    neighbors = model.neighbors(pair, torch.zeros_like(z), cells, False)
    example = compiled.example_of(model, compiled.Inputs.of(z, pair, cells, neighbors))
    # Constants above 1 are largest degrees.
    fixed = [[n if n < 2 else 2**30 for n in constants(graph)] for graph in compiled.graphs_of(neighbors)]
    program = compiled.traced_program(model, fixed, example)
    about = {
        "model": type(model).__name__,
        "cutoff": model.cutoff,
        "max_num_neighbors": model.max_num_neighbors,
        "numbers": numbers,
        "dtype": str(like.dtype).removeprefix("torch."),
        "device": str(like.device),
        "index_dtype": str(example.batch.dtype),
        "condition": compiled.condition_of(program),
        "shapes": [list(t.shape) for t in compiled.state_of(model).values()],
    }
    with torch.no_grad():
        exported = torch.export.export(_Program(program, model), tuple(example), dynamic_shapes=(_any_size(example),))
    return _write(exported, os.fspath(path), json.dumps(about))


def _write(exported: Any, path: str, about: str) -> str:
    """Compile an exported program and write it; torch documents these names, which begin with an underscore."""
    options = {"aot_inductor.metadata": {"trigraph": about}}
    return torch._inductor.aoti_compile_and_package(exported, package_path=path, inductor_configs=options)


def _read(path: str) -> Any:
    return torch._inductor.aoti_load_package(path)


def _knows(model: Potential, number: int) -> bool:
    try:
        model.check_numbers(torch.tensor([number], device=empty_like_model(model).device))
    except ValueError:
        return False
    return True


def _any_size(given: Any) -> Any:
    """Return `dynamic_shapes` for tensors with any number of rows."""
    if isinstance(given, tuple):
        return tuple(map(_any_size, given))
    return None if given is None else {0: torch.export.Dim.AUTO}


class PackagedPotential(Potential):
    """A potential that :func:`load_potential` has read from a package, used as the model that was packaged.

    Its results cannot be differentiated: `energy_forces_stress` raises ValueError if `create_graph` is true, and
    RuntimeError if the model, for structures of these sizes, would do something else than its program. `cutoff` and
    `max_num_neighbors` are those of the model.
    """

    like: Tensor

    def __init__(self, path: str) -> None:
        super().__init__()
        self.run = _read(path)
        about = self.run.get_metadata().get("trigraph")
        if about is None:
            raise ValueError(f"load_potential: {path} is another package; expected one that package_potential wrote")
        self.about = json.loads(about)
        self.cutoff, self.max_num_neighbors = self.about["cutoff"], self.about["max_num_neighbors"]
        like = torch.empty(0, dtype=getattr(torch, self.about["dtype"]), device=self.about["device"])
        self.register_buffer("like", like, persistent=False)
        self.state = {str(i): torch.empty(shape, device="meta") for i, shape in enumerate(self.about["shapes"])}

    def check_numbers(self, z: Tensor) -> None:
        """Raise ValueError unless the model that was packaged knows all atomic numbers."""
        known = self.about["numbers"]
        unknown = z[~torch.isin(z, torch.tensor(known, device=z.device))]
        if len(unknown):
            raise ValueError(f"PackagedPotential: z has {int(unknown[0])}; expected {known[0]} to {known[-1]}")

    def summed(self, z: Tensor, pos: Tensor, cells: Tensor | None, neighbors: Neighbors) -> Tensor:
        """Return the energies, shape (num_structures, 1)."""
        return self.energy_forces_stress(z, pos, cell=cells, neighbors=neighbors).energy[:, None]

    def differentiated(
        self, z: Tensor, pos: Tensor, cells: Tensor | None, neighbors: Neighbors, create_graph: bool
    ) -> EnergyForcesStress:
        """Run the program."""
        if create_graph:
            raise ValueError("PackagedPotential: create_graph is True; expected False, as a package has no derivatives")
        num_atoms, num_structures = len(z), neighbors.num_structures
        with torch.no_grad():
            boxes = pos.new_zeros(num_structures, 3, 3) if cells is None else cells
            z, pos, boxes = (t.clone() if t.is_inference() else t.detach() for t in (z, pos, boxes))
            if num_atoms < 2 or neighbors.graph.num_edges < 2:
                z, pos, boxes, neighbors = self._with_pair(z, pos, boxes, neighbors)
            given = compiled.Inputs.of(z, pos, boxes, neighbors)
            if str(given.batch.dtype) != self.about["index_dtype"]:
                raise TypeError(
                    f"PackagedPotential: neighbors are {given.batch.dtype}; expected {self.about['index_dtype']}"
                )
            leaves = compiled.leaves_of(self.state, given)
            if not ShapeEnv().evaluate_guards_expression(self.about["condition"], leaves):
                raise RuntimeError(
                    f"PackagedPotential: {self.about['model']} does something else for {num_atoms} atoms with "
                    f"{neighbors.graph.num_edges} edges; expected other sizes, or the model itself"
                )
            energy, forces, stress, energies = self.run(*given)
        return EnergyForcesStress(
            energy[:num_structures],
            forces[:num_atoms],
            None if cells is None else stress[:num_structures],
            energies[:num_atoms],
        )

    def _with_pair(
        self, z: Tensor, pos: Tensor, cells: Tensor, neighbors: Neighbors
    ) -> tuple[Tensor, Tensor, Tensor, Neighbors]:
        """Add a structure of two atoms: torch's compiler takes sizes of 0 and 1 for constants."""
        graph, atoms = neighbors.graph, torch.arange(2, device=z.device) + len(z)
        of_atom = torch.zeros_like(z, dtype=torch.int64) if neighbors.batch is None else neighbors.batch
        shifts = of_atom.new_zeros(graph.num_edges, 3) if neighbors.shifts is None else neighbors.shifts
        vec = neighbors.vectors(pos, cells)
        pair = pos.new_tensor([[0.0, 0.0, -0.5 * self.cutoff], [0.0, 0.0, 0.5 * self.cutoff]])
        src, dst = (tensors(graph, False)[i].long() for i in (SRC, DST))  # type: ignore[union-attr]
        found = prepared(
            torch.cat([src, atoms]),
            torch.cat([dst, atoms.flip(0)]),
            torch.cat([shifts, shifts.new_zeros(2, 3)]),
            torch.cat([vec, pair]),
            torch.cat([of_atom, torch.full_like(atoms, neighbors.num_structures)]),
            neighbors.num_structures + 1,
            True,
        )
        z = torch.cat([z, z.new_full((2,), self.about["numbers"][-1])])
        pos = torch.cat([pos, pos.new_zeros(1, 3), pair[1:]])
        return z, pos, torch.cat([cells, cells.new_zeros(1, 3, 3)]), found


def load_potential(path: str | os.PathLike[str]) -> PackagedPotential:
    """Return the potential of a file that :func:`package_potential` wrote, without need of the source of its model.

    Parameters
    ----------
    path : str or path

    Returns
    -------
    PackagedPotential
        Taken by `trigraph.ase.Calculator` and `trigraph.torch_sim.Model`.

    Raises
    ------
    ValueError
        If the file is a package of something else.
    """
    return PackagedPotential(os.fspath(path))
