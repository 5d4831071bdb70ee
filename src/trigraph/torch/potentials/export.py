"""Export of potentials to packages that C++ programs, such as LAMMPS, run without Python.

A package first builds the graphs of neighbours from a list of edges, then runs the traced program of
`trigraph.torch.compile_potential`. Torch's AOTInductor compiles both steps for arrays of any size.
"""

import operator
import os
import re
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from trigraph.arrays import format_value
from trigraph.fortran.levels import find_torch_operator_language
from trigraph.torch.graphs import list_graph_constants
from trigraph.torch.potentials.compiled import report_progress
from trigraph.torch.potentials.potential import Potential, compute_atom_outputs, compute_derivatives_and_edge_strains
from trigraph.torch.potentials.program_inputs import (
    ProgramInputs,
    get_parameters_and_buffers,
    list_neighbor_graphs,
    list_program_tensors,
    make_example_inputs,
    trace_program,
)
from trigraph.torch.potentials.program_key import ProgramKey, find_differences
from trigraph.torch.potentials.replacement import copy_model_sharing_parameters
from trigraph.torch.potentials.structures import DST, SRC, Neighbors, find_neighbors, make_empty_model_tensor
from trigraph.torch.potentials.traced import find_index_nodes, read_size_conditions, rewrite_products, rewrite_sums

FORMAT = "2"
"""Format of the inputs, outputs and metadata of a package, which trigraph_potential.hpp reads."""
CHAIN_LENGTH = 24  # number of atoms in the test chain of `count_dependence_hops`
SYMBOLS = re.findall(
    "[A-Z][a-z]?",
    "HHeLiBeBCNOFNeNaMgAlSiPSClArKCaScTiVCrMnFeCoNiCuZnGaGeAsSeBrKrRbSrYZrNbMoTcRuRhPdAgCdInSnSbTeIXeCsBaLaCePrNdPmSm"
    "EuGdTbDyHoErTmYbLuHfTaWReOsIrPtAuHgTlPbBiPoAtRnFrRaAcThPaUNpPuAmCmBkCfEsFmMdNoLrRfDbSgBhHsMtDsRgCnNhFlMcLvTsOg",
)


class PackageInputs(NamedTuple):
    """Arguments of a package."""

    z: Tensor  # (num_atoms,) int64
    pos: Tensor  # (num_atoms, 3)
    cells: Tensor  # (num_structures, 3, 3), zero for structures without a cell
    batch: Tensor  # (num_atoms,) int64: structure of each atom
    edges: Tensor  # (2, num_edges) int64: source and destination, in any order
    shifts: Tensor  # (num_edges, 3) int64: number of cells that each edge crosses
    weights: Tensor  # (num_atoms,): factor of the energy of each atom

    @classmethod
    def from_neighbors(cls, z: Tensor, pos: Tensor, cells: Tensor | None, neighbors: Neighbors) -> "PackageInputs":
        """Return the arguments for atoms and their neighbours."""
        number, num_edges = neighbors.num_structures, len(neighbors.src)
        batch = z.new_zeros(len(z)) if neighbors.batch is None else neighbors.batch
        shifts = z.new_zeros(num_edges, 3) if neighbors.shifts is None else neighbors.shifts
        cells = pos.new_zeros(number, 3, 3) if cells is None else cells.reshape(number, 3, 3)
        edges = torch.stack([neighbors.src, neighbors.dst])
        return cls(z.long(), pos, cells, batch.long(), edges.long(), shifts.long(), pos.new_ones(len(z)))


def build_exportable_graphs(atoms: PackageInputs) -> tuple[Tensor, tuple[tuple[Tensor, ...], ...]]:
    """Return `shifts` and `graphs` of `ProgramInputs`, using only operations that torch can export.

    Argument sizes determine all other sizes. Nothing is cached, so each call sorts again.
    """
    (src, dst), shifts, num_atoms = atoms.edges, atoms.shifts, atoms.z.shape[0]
    each_atom, each_edge, ends = (
        torch.arange(n, device=src.device) for n in (num_atoms, src.shape[0], 2 * src.shape[0] + 1)
    )
    to_atoms = torch.arange(num_atoms + 1, device=src.device)
    to_edges = ends[: src.shape[0] + 1]
    # Encode source, destination and shift of each edge as one number; a reverse edge has the opposite shift.
    base = 2 * torch.cat([shifts.abs().flatten(), shifts.new_zeros(1)]).amax() + 1
    shift_code = (shifts[:, 0] * base + shifts[:, 1]) * base + shifts[:, 2]
    codes, half = base**3, (base**3 - 1) // 2
    numbers, order = ((src * num_atoms + dst) * codes + shift_code + half).sort()
    src, dst, shifts, shift_code = (t.index_select(0, order) for t in (src, dst, shifts, shift_code))
    opposite = (dst * num_atoms + src) * codes - shift_code + half
    reverse_position = torch.searchsorted(numbers, opposite).clamp(max=src.shape[0] - 1)
    has_reverse = numbers.index_select(0, reverse_position) == opposite
    ends_sorted, by_dst = dst.sort(stable=True)
    dst_position = torch.zeros_like(by_dst).scatter(0, by_dst, each_edge)
    src_offsets, dst_offsets = torch.searchsorted(src, to_atoms), torch.searchsorted(ends_sorted, to_atoms)
    pairs = ends_sorted * num_atoms + src.index_select(0, by_dst)
    start, stop = (torch.searchsorted(pairs, src * num_atoms + dst, right=right) for right in (False, True))
    edge_start = torch.where(has_reverse, dst_position.index_select(0, reverse_position), start)
    reverse = torch.where(has_reverse, reverse_position, -1)
    graph = (src_offsets, dst_offsets, by_dst, src, dst, start, stop, reverse, edge_start, edge_start + has_reverse)
    each_end = ends[:-1]
    of_ends = (
        *(2 * to_edges, torch.stack([src, num_atoms + dst], dim=1).flatten(), each_end),
        *(each_end // 2, torch.cat([src_offsets, src.shape[0] + dst_offsets[1:]])),
        *(torch.cat([2 * each_edge, 2 * by_dst + 1]), ends, each_end),
    )
    into = dst_offsets, by_dst, each_edge, ends_sorted, to_edges, dst_position, to_edges, each_edge
    structures, by_structure = atoms.batch.sort(stable=True)
    offsets = torch.searchsorted(structures, torch.arange(atoms.cells.shape[0] + 1, device=src.device))
    position = torch.zeros_like(by_structure).scatter(0, by_structure, each_atom)
    members = offsets, by_structure, by_structure, structures, to_atoms, position, to_atoms, position
    return shifts, (graph, of_ends, into, members)


class _WeightedPotential(Potential):
    """Potential that multiplies the output of each atom by a factor from the buffer `weights`."""

    weights: Tensor

    def __init__(self, model: Potential, weights: Tensor) -> None:
        super().__init__()
        self.model, self.cutoff, self.out_channels = model, model.cutoff, model.out_channels
        self.register_buffer("weights", weights)

    def atoms_of_vectors(self, z: Tensor, vec: Tensor, neighbors: Neighbors) -> Tensor:
        return compute_atom_outputs(self.model, z, vec, neighbors) * self.weights[:, None]


class _PackageProgram(Module):
    """Program and parameters of a package; returns energies, forces and, if `stress`, stresses and virials."""

    def __init__(self, program: Any, state: dict[str, Tensor], stress: bool) -> None:
        super().__init__()
        self.program, self.names, self.stress = program, list(state), stress
        for i, tensor in enumerate(state.values()):
            self.register_buffer(f"state_{i}", tensor.detach().clone())

    def forward(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        atoms = PackageInputs(*arguments)
        state = {name: getattr(self, f"state_{i}") for i, name in enumerate(self.names)}
        state["weights"] = atoms.weights
        shifts, graphs = build_exportable_graphs(atoms)
        inputs = ProgramInputs(atoms.z, atoms.pos, atoms.cells, atoms.batch, shifts, graphs, None)
        energy, forces, stress, energies, virials = self.program(state, *inputs)
        return (energy, forces, energies, stress, virials) if self.stress else (energy, forces, energies)


def compute_derivatives_and_virials(
    inputs: ProgramInputs, atoms_of_vectors: Any, constants: Sequence[Sequence[int]]
) -> Any:
    """Return the fields of EnergyForcesStress, and the virial of each atom, shape (num_atoms, 3, 3).

    The virial of an edge is minus its vector times the derivative of the energy with respect to the vector. Each atom
    of the edge gets half of the symmetric part, as in LAMMPS's pair styles and in MACE.
    """
    neighbors = inputs.make_neighbors(constants)
    given = atoms_of_vectors, inputs.z, inputs.pos, inputs.cells, neighbors
    results, of_edges = compute_derivatives_and_edge_strains(*given, create_graph=True)
    rows = inputs.pos.new_zeros(inputs.z.shape[0], 9).requires_grad_()
    (strains,) = torch.autograd.grad(neighbors.add_ends(rows, rows), rows, of_edges)
    strains = strains.reshape(-1, 3, 3)
    return *results, -0.25 * (strains + strains.transpose(1, 2))


def _check_model_and_list_elements(model: Any, path: Path, elements: Sequence[str] | None) -> list[int]:
    """Return the atomic numbers that the model accepts; raise if the model cannot be exported."""
    if not isinstance(model, Potential):
        raise TypeError(f"export_potential: model is a {type(model).__name__}; expected a trigraph.torch.nn.Potential")
    owner, like = f"export_potential: {type(model).__name__}", make_empty_model_tensor(model)
    if not like.is_cpu:
        raise ValueError(f"{owner} is on {like.device}; expected the CPU")
    if like.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{owner} has parameters of {like.dtype}; expected torch.float32 or torch.float64")
    if model.out_channels != 1:
        raise ValueError(f"{owner} has out_channels {model.out_channels}; expected 1, an energy")
    if model.max_num_neighbors is not None:
        raise ValueError(f"{owner} has max_num_neighbors {model.max_num_neighbors}; expected None: packages take edges")
    if find_torch_operator_language()[0] != "C++":
        raise RuntimeError(f"export_potential: the operators in C++ are not used ({find_torch_operator_language()[1]})")
    if path.suffix != ".pt2" or not path.parent.is_dir():
        raise ValueError(f"export_potential: path is {str(path)!r}; expected a name that ends in .pt2 in a folder")
    if elements is None:
        numbers = [z for z in range(1, len(SYMBOLS) + 1) if _accepts_element(model, z)]
    else:
        wrong = [elements] if isinstance(elements, str) else [symbol for symbol in elements if symbol not in SYMBOLS]
        if wrong:
            raise ValueError(f"export_potential: elements has {format_value(wrong[0])}; expected chemical symbols")
        numbers = sorted({SYMBOLS.index(symbol) + 1 for symbol in elements})
        model.check_numbers(torch.tensor(numbers))
    if not numbers:
        raise ValueError(f"{owner} accepts no element; expected at least one")
    return numbers


def _accepts_element(model: Potential, z: int) -> bool:
    try:
        model.check_numbers(torch.tensor([z]))
    except ValueError:
        return False
    return True


def count_dependence_hops(model: Potential, z: int) -> int:
    """Return over how many edges an atom's energy depends on other atoms, at most `CHAIN_LENGTH` - 1.

    In a chain of neighbouring atoms, find the atoms for which the first energy has a nonzero derivative, and the atoms
    whose energies become NaN if the first position is NaN. Either test alone misses some dependences, for example
    through a zero weight or a comparison.
    """
    like, generator = make_empty_model_tensor(model), torch.Generator().manual_seed(0)
    places = torch.arange(CHAIN_LENGTH)[:, None] * torch.tensor([[0.7, 0.0, 0.0]])
    pos = model.cutoff * (places + 0.1 * torch.rand(places.shape, generator=generator)).to(like)
    numbers, neighbors = torch.full((CHAIN_LENGTH,), z), find_neighbors("export_potential", pos, model.cutoff)

    def compute_chain_energies(pos: Tensor) -> Tensor:
        return compute_atom_outputs(model, numbers, neighbors.vectors(pos, None), neighbors)[:, 0]

    pos.requires_grad_()
    first = compute_chain_energies(pos)[0]
    (by_pos,) = (
        torch.autograd.grad(first, pos, materialize_grads=True) if first.requires_grad else (pos.new_zeros(pos.shape),)
    )
    with torch.no_grad():
        is_dependent = (by_pos != 0).any(1) | compute_chain_energies(torch.cat([pos[:1] * torch.nan, pos[1:]])).isnan()
    return max([0, *is_dependent.nonzero()[:, 0].tolist()])


def _trace_package_program(
    model: Potential, numbers: Sequence[int], stress: bool, plain: Sequence[str]
) -> tuple[_PackageProgram, PackageInputs]:
    """Trace a model; return the program and example arguments for its compilation. See `trace_program` for `plain`."""
    owner, like = f"export_potential: {type(model).__name__}", make_empty_model_tensor(model)
    lone_atom = find_neighbors(owner, like.new_zeros(1, 3), model.cutoff)
    seed = ProgramInputs.from_neighbors(
        torch.tensor(numbers), like.reshape(0, 3), like.new_zeros(1, 3, 3), lone_atom, None
    )
    example = make_example_inputs(model, seed)
    weighted = type(type(model).__name__, (_WeightedPotential,), {})(model, like.new_ones(len(example.z)))
    state = get_parameters_and_buffers(weighted)
    # Any `list_graph_constants` are sufficient, because the C++ operators read only the sizes of graphs.
    program = trace_program(
        weighted,
        [*map(list_graph_constants, list_neighbor_graphs(lone_atom))],
        example,
        plain,
        "export_potential",
        compute_derivatives_and_virials,
    )
    _check_size_branches(owner, model, read_size_conditions(program), state, example)
    rewrite_products(program)
    rewrite_sums(program, find_index_nodes(program, state, example))
    for node in list(program.graph.nodes):
        if node.target is operator.pos:  # torch.export does not support unary plus on sizes
            node.replace_all_uses_with(node.args[0])
            program.graph.erase_node(node)
        if getattr(node.target, "namespace", "aten") not in ("aten", "prims", "trigraph_cpu"):
            raise ValueError(
                f"{owner} calls {node.target}, which needs Python; expected operators of torch and trigraph"
            )
    edges = torch.stack([example.graphs[0][SRC], example.graphs[0][DST]])  # type: ignore[list-item]
    atoms = PackageInputs(*example[:4], edges, example.shifts, state["weights"])  # type: ignore[arg-type]
    return _PackageProgram(program, state, stress), atoms


def _check_size_branches(
    owner: str, model: Potential, condition: str, state: dict[str, Tensor], example: ProgramInputs
) -> None:
    """Raise ValueError if the model takes a different branch for fewer or more structures than were traced."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv  # imported here, because the import is slow

    pos = example.pos[:8] - example.pos[:1]
    few = find_neighbors(owner, pos, model.cutoff, torch.tensor([0, 0, 0, 1, 1, 1, 1, 1]))
    few_inputs = ProgramInputs.from_neighbors(example.z[:8], pos, pos.new_zeros(2, 3, 3), few, None)
    for other in (few_inputs, make_example_inputs(model, example, 2 * len(example.graphs[3][0]))):  # type: ignore[arg-type]
        given = {**state, "weights": other.pos[:, 0]}
        if not ShapeEnv().evaluate_guards_expression(condition, list_program_tensors(given, other)):
            raise ValueError(
                f"{owner} takes another branch for {len(other.z)} atoms than for {len(example.z)}; expected a model "
                "that computes the same function for any number"
            )


def _yield_test_cases(model: Potential, numbers: Sequence[int]) -> Iterator[tuple[str, PackageInputs, list[Tensor]]]:
    """Yield the name, arguments and expected results of each test case, the first of which is stored in packages."""
    generator, like = torch.Generator().manual_seed(1), make_empty_model_tensor(model)
    places = torch.cartesian_prod(*3 * [torch.arange(2.0)])
    pos = (0.5 * model.cutoff * (places + 0.3 * torch.rand(places.shape, generator=generator))).to(like)
    z = torch.tensor(numbers)[torch.randint(len(numbers), (len(pos),), generator=generator)]
    cell = (model.cutoff * (torch.eye(3) + 0.1 * torch.rand(3, 3, generator=generator))).to(like)
    batch = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1])
    cases: Any = [("a crystal", 8, None, cell), ("a cluster", 3, None, None), ("two structures", 8, batch, None)]
    for name, number, of_atom, cells in (*cases, ("one atom", 1, None, None), ("one in a cell", 1, None, 0.6 * cell)):
        given, neighbors = (z[:number], pos[:number]), model.neighbors(pos[:number], of_atom, cells)
        energy, forces, stress, energies = model.energy_forces_stress(*given, cell=cells, neighbors=neighbors)
        stress = energy.new_full((len(energy), 3, 3), torch.nan) if stress is None else stress
        atoms = PackageInputs.from_neighbors(*given, cells, neighbors)
        virials = compute_virials(model, *given, atoms.cells, neighbors)
        yield name, atoms, [energy, forces, energies, stress, virials]  # type: ignore[list-item]


def compute_virials(model: Potential, z: Tensor, pos: Tensor, cells: Tensor, neighbors: Neighbors) -> Tensor:
    """Return the virials of `compute_derivatives_and_virials`, but directly from derivatives by edge vectors."""
    vec = neighbors.vectors(pos, cells).detach().requires_grad_()
    energy = compute_atom_outputs(model, z, vec, neighbors).sum()
    (by_vec,) = torch.autograd.grad(energy, vec, materialize_grads=True) if energy.requires_grad else (vec * 0,)
    halves = -0.25 * (vec[:, :, None] * by_vec[:, None] + vec[:, None] * by_vec[:, :, None]).detach()
    virials = pos.new_zeros(len(pos), 3, 3)
    return virials.index_add(0, neighbors.src, halves).index_add(0, neighbors.dst, halves)


def _make_package_metadata(
    model: Potential, numbers: Sequence[int], stress: bool, atoms: PackageInputs, expected: Any
) -> dict[str, str]:
    """Return the metadata of a package, with arrays as space-separated numbers in row-major order."""

    def format_tensor(tensor: Tensor) -> str:
        return " ".join(map(repr, tensor.flatten().tolist()))

    dtype = str(atoms.pos.dtype).removeprefix("torch.")
    facts = {"format": FORMAT, "model": type(model).__name__, "dtype": dtype, "stress": f"{int(stress)}"}
    facts |= {"cutoff": repr(float(model.cutoff)), "reach": f"{count_dependence_hops(model, numbers[0])}"}
    facts |= {"units": "eV angstrom", "trigraph": version("trigraph"), "torch": torch.__version__}
    facts |= {"numbers": " ".join(map(str, numbers)), "elements": " ".join(SYMBOLS[z - 1] for z in numbers)}
    facts["processor"] = torch.backends.cpu.get_cpu_capability()
    facts |= {f"example_{name}": format_tensor(tensor) for name, tensor in atoms._asdict().items()}
    outputs = zip(("energy", "forces", "energies", "stress", "virials"), expected, strict=True)
    return facts | {f"expected_{name}": format_tensor(tensor) for name, tensor in outputs}


def _check_results_agree(owner: str, name: str, results: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Raise RuntimeError unless results agree up to rounding and are NaN at the same positions."""
    for got, other in zip(results, expected, strict=False):
        scale = max(float(t.nan_to_num().abs().max()) for t in expected)
        bound = 1e4 * torch.finfo(other.dtype).eps * max(scale, 1e-30)
        error = float((got.nan_to_num() - other.nan_to_num()).abs().max())
        if not (error <= bound and torch.equal(got.isnan(), other.isnan())):
            raise RuntimeError(
                f"{owner} and its package differ by {error:.1e} for {name}; expected at most {bound:.1e}: does it "
                "depend on the number of atoms, detach a tensor, or use random numbers?"
            )


def export_potential(
    model: Potential, path: str | os.PathLike[str], *, stress: bool = True, elements: Sequence[str] | None = None
) -> None:
    """Export a potential to a package that LAMMPS and other C++ programs run without Python.

    The package computes energies, forces and stresses for any number of atoms, edges and structures, with fixed
    parameters, on processors with this processor's instruction set. Compilation takes a minute or more; the logger
    ``trigraph`` (INFO), or standard error if it is a terminal, reports the steps. The package is then compared with the
    model for five inputs. One of these is stored in the package, so that programs can repeat the comparison.

    Parameters
    ----------
    model : Potential
        Model on the CPU, in units of eV and angstrom, in the mode in which it will be used (``model.eval()``).
    path : str or path
        File name of the package, which must end in ``.pt2``.
    stress : bool
        Whether the package also computes stresses.
    elements : sequence of str, optional
        Chemical symbols that the package accepts (default: all that ``model.check_numbers`` accepts).

    Raises
    ------
    TypeError, ValueError
        If the model cannot be exported: it is not a `Potential`, is not on the CPU, has outputs other than an energy,
        sets `max_num_neighbors`, accepts no element, changes when it is called, or calls operators in Python.
    RuntimeError
        If the C++ operators are not in use, the model cannot be traced or compiled, or the results of the package and
        the model differ.

    See Also
    --------
    trigraph.torch.compile_potential

    Examples
    --------
    >>> from trigraph.torch import export_potential
    >>> from trigraph.torch.nn import DimeNetPlusPlus
    >>> model = DimeNetPlusPlus(16, 1, 1, 8, 4, 16, 3, 4)
    >>> export_potential(model, "potential.pt2")  # doctest: +SKIP
    """
    path, name = Path(path), type(model).__name__
    numbers, key = _check_model_and_list_elements(model, path, elements), ProgramKey(model)
    with report_progress(f"export_potential: tracing {name}", f"export_potential: traced {name}"):
        own = copy_model_sharing_parameters(model, key)
        before, state = ProgramKey(own), {n: t.clone() for n, t in own.named_buffers()}
        examples = list(_yield_test_cases(own, numbers))
        metadata = _make_package_metadata(own, numbers, stress, *examples[0][1:])
        changed = find_differences(before.values, ProgramKey(own).values)
        changed += [n for n, t in own.named_buffers() if not torch.equal(t, state[n])]
        if changed:
            raise ValueError(f"export_potential: {name} changes {changed[0]} when it is called; expected no change")
        program, atoms = _trace_package_program(own, numbers, stress, key.not_compared)
        sizes = tuple({1 if field == "edges" else 0: torch.export.Dim.AUTO} for field in PackageInputs._fields)
        with torch.no_grad():
            exported = torch.export.export(program, tuple(atoms), dynamic_shapes=(sizes,), strict=False)
    beginning = f"export_potential: compiling {name}; this may take minutes"
    with (
        tempfile.TemporaryDirectory(dir=path.parent) as folder,
        report_progress(beginning, f"export_potential: compiled {name}"),
    ):
        package = str(Path(folder, path.name))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*treespec, LeafSpec", FutureWarning)  # torch itself causes this warning
            # Although in a private module, these two functions are public: AOTInductor's documentation uses them.
            torch._inductor.aoti_compile_and_package(
                exported, package_path=package, inductor_configs={"aot_inductor.metadata": metadata}
            )
            loaded = torch._inductor.aoti_load_package(package)
        for structure, given, expected in examples:
            _check_results_agree(f"export_potential: {name}", structure, loaded(*given), expected)
        os.replace(package, path)
