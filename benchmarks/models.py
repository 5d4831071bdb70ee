"""Programs of `trigraph.torch`: whole models, and calls on small graphs.

Return two programs: energies and forces, and gradients of a loss of them.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from trigraph.benchmarks import gat
from trigraph.benchmarks.calls import Call, Unavailable
from trigraph.benchmarks.programs import Contender, Program
from trigraph.benchmarks.workloads import make_case
from trigraph.graphs import CSC
from trigraph.graphs.edge_graph import EdgeGraph

# Sizes of PyTorch Geometric's pretrained models; the slab has 96 atoms.
WIDTHS = {
    "hidden_channels": 128,
    "out_channels": 1,
    "num_blocks": 4,
    "int_emb_size": 64,
    "basis_emb_size": 8,
    "out_emb_channels": 256,
    "num_spherical": 7,
    "num_radial": 6,
}
SLAB = {"nx": 4, "ny": 4, "layers": 6, **WIDTHS}
TRIPLETS = 225_636  # of the slab
SMALL_SLAB = {"nx": 2, "ny": 2, "layers": 2}
CUTOFF = 5.0
MOLECULE_BATCH = {"molecules": 32, **WIDTHS}
SMALL_BATCH = {"molecules": 4}
MOLECULES = {"H2O": "water", "C6H6": "benzene"}
GAT = {"num_nodes": 100_000, "num_edges": 1_600_000, "num_heads": 4, "dim_head": 16}
ATTENTION = gat.WORKLOADS[0]  # its sizes, arrays and graphs
# Nodes and edges of the small graphs; edges are pairs of atoms within the cutoff.
GRAPHS = {"H2O": (3, 6), "random": (20, 40), "C6H6": (12, 132), "silicon": (64, 1792)}


@cache
def dimenet(form: str, dtype: str, **widths: int) -> Any:
    """Return the model; sympy takes some ten seconds for PyTorch Geometric's."""
    import torch

    from trigraph.torch.nn import DimeNetPlusPlus

    settings: dict[str, Any] = {**widths, "cutoff": CUTOFF, "output_initializer": "glorot_orthogonal"}
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        model = DimeNetPlusPlus(**settings)
    if form == "pyg":
        if dtype != "float32":
            raise Unavailable("PyTorch Geometric keeps the zeros of the Bessel functions in float32")
        from torch_geometric.nn.models import DimeNetPlusPlus as PygDimeNetPlusPlus

        state, model = model.state_dict(), PygDimeNetPlusPlus(**settings)
        model.load_state_dict(state)
    return model.to(getattr(torch, dtype))


def pyg_dimenet(model: Any, z: Any, vec: Any, edge_index: Any, idx_ji: Any, idx_kj: Any) -> Any:
    """Return what the forward of PyTorch Geometric's model sums over atoms, from the vectors of the edges on.

    `vec` (num_edges, 3) goes from the destination of each edge to its source; `edge_index` (2, num_edges) has sources
    and destinations, `idx_ji` and `idx_kj` (num_triplets,) the edges of each triplet.
    """
    import torch

    j, i = edge_index
    dist = vec.pow(2).sum(dim=-1).sqrt()
    vec_ji, vec_kj = vec[idx_ji], vec[idx_kj]
    angle = torch.atan2(torch.cross(vec_ji, vec_kj, dim=1).norm(dim=-1), (vec_ji * vec_kj).sum(dim=-1))
    rbf, sbf = model.rbf(dist), model.sbf(dist, angle, idx_kj)
    x = model.emb(z, rbf, i, j)
    out = model.output_blocks[0](x, rbf, i, num_nodes=z.size(0))
    for interaction_block, output_block in zip(model.interaction_blocks, model.output_blocks[1:], strict=True):
        x = interaction_block(x, rbf, sbf, idx_kj, idx_ji)
        out = out + output_block(x, rbf, i, num_nodes=z.size(0))
    return out


def pyg_module(model: Any) -> Any:
    """Return `pyg_dimenet` of a model as a module, for `torch.func.functional_call`."""
    import torch

    class Pyg(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: Any) -> Any:
            return pyg_dimenet(self.model, *inputs)

    return Pyg()


def atoms_of(structure: str, sizes: Mapping[str, int]) -> list[Any]:
    """Return silicon, copper, a molecule, a slab of beryllium and magnesium, or so many molecules of the G2 set."""
    from ase.build import bulk, hcp0001, molecule
    from ase.collections import g2

    if structure == "silicon":
        return [bulk("Si", cubic=True) * (2, 2, 2)]
    if structure == "copper":
        crystal = bulk("Cu", cubic=True).repeat(sizes["cells"])
        crystal.rattle(0.05, seed=0)  # in equilibrium, its forces would be rounding errors
        return [crystal]
    if structure == "molecules":
        several = [name for name in g2.names if len(g2[name]) > 4]
        return [g2[name] for name in several[: sizes["molecules"]]]
    if structure != "slab":
        return [molecule(structure)]
    slab = hcp0001("Be", (sizes["nx"], sizes["ny"], sizes["layers"]), vacuum=5.0)
    slab.numbers[::3] = 12
    slab.rattle(0.05, seed=0)
    return [slab]


def _energy_forces(
    sizes: Mapping[str, int], dtype: str, form: str, structures: list[Any], curvature: bool = False
) -> tuple[Any, Callable[[Any], Any]]:
    """Return the model, and a function of `create_graph` that returns the energies of the structures and all forces.

    With `curvature` it is a function of a vector that returns the product with the Hessian, to be differentiated. All
    is on torch's default device.
    """
    import torch

    from trigraph.torch.nn.compiled import compile_potential
    from trigraph.torch.nn.traced import trace

    widths, real = {name: sizes[name] for name in WIDTHS}, getattr(torch, dtype)
    device = torch.get_default_device()
    with torch.device("cpu"):
        model = copy.deepcopy(dimenet(form.removesuffix("-compiled"), dtype, **widths)).to(device)
        z = torch.tensor(np.concatenate([atoms.numbers for atoms in structures]), dtype=torch.int64)
        pos = torch.tensor(np.concatenate([atoms.positions for atoms in structures]), dtype=real)
        batch = torch.arange(len(structures)).repeat_interleave(torch.tensor([len(atoms) for atoms in structures]))
        periodic = structures[0].pbc.any()
        cell = torch.tensor(np.array([atoms.cell for atoms in structures]), dtype=real) if periodic else None
        pbc = [atoms.pbc.tolist() for atoms in structures]
        neighbors = dimenet("trigraph", dtype, **widths).neighbors(pos, batch, cell, pbc)
        edge_index = torch.tensor(np.stack([neighbors.graph.src, neighbors.graph.dst])).to(device)
        idx_ji, idx_kj = (torch.tensor(t).to(device) for t in neighbors.graph.triplets("edge"))
        offset = neighbors.vectors(torch.zeros_like(pos), cell).to(device)
    z, pos, batch = (t.to(device) for t in (z, pos, batch))
    cell = None if cell is None else cell.to(device)
    if device.type != "cpu":
        neighbors = dimenet("trigraph", dtype, **widths).neighbors(pos, batch, cell, pbc)
    if form.startswith("trigraph"):
        potential = compile_potential(model) if form.endswith("-compiled") else model
        if curvature:
            return model, lambda vector: potential.hessian_vector_product(
                z, pos, vector, cell=cell, neighbors=neighbors, create_graph=True
            )
        return model, lambda create_graph: potential.energy_forces_stress(
            z, pos, cell=cell, neighbors=neighbors, create_graph=create_graph
        )[:2]
    module, names = pyg_module(model), [name for name, _ in model.named_parameters()]
    pos.requires_grad_()

    def peer(parameters: Sequence[Any], pos: Any, create_graph: bool = True) -> tuple[Any, Any]:
        vec = pos[edge_index[0]] - pos[edge_index[1]] + offset
        state = {f"model.{name}": p for name, p in zip(names, parameters, strict=True)}
        of_atoms = torch.func.functional_call(module, state, (z, vec, edge_index, idx_ji, idx_kj))
        energy = of_atoms.new_zeros(len(structures)).index_add(0, batch, of_atoms[:, 0])
        (gradient,) = torch.autograd.grad(energy.sum(), pos, create_graph=create_graph)
        return energy, -gradient

    if curvature:
        parameters = list(model.parameters())
        return model, lambda vector: torch.autograd.grad(-peer(parameters, pos)[1], pos, vector, create_graph=True)[0]
    if form == "pyg":
        return model, lambda create_graph: peer(list(model.parameters()), pos, create_graph)
    example = list(model.parameters()), pos  # the peer's program may take this graph alone
    program = torch.compile(trace(lambda p, x: peer(p, x), *example, tracing_mode="real"))

    def compute(create_graph: bool) -> tuple[Any, Any]:
        with torch.set_grad_enabled(create_graph):
            return program(list(model.parameters()), pos)  # type: ignore[no-untyped-call]

    return model, compute


def energy_forces(sizes: Mapping[str, int], dtype: str, form: str, structure: str = "slab") -> Call:
    """Energy and forces; of a molecule by a model whose parameters need no gradient, as in dynamics."""
    model, compute = _energy_forces(sizes, dtype, form, atoms_of(structure, sizes))
    model.requires_grad_(structure not in MOLECULES)
    return lambda: dict(zip(("energy", "forces"), compute(False), strict=True))


def dynamics(sizes: Mapping[str, int], dtype: str, form: str) -> Call:
    """Run steps of velocity Verlet with a crystal of copper; positions at their end."""
    import torch
    from ase import units
    from ase.md.verlet import VelocityVerlet

    from trigraph.ase import Calculator

    model = copy.deepcopy(dimenet("trigraph", dtype, **{name: sizes[name] for name in WIDTHS})).requires_grad_(False)
    (crystal,) = atoms_of("copper", sizes)
    calculator = Calculator(model, skin=0.5 * (form == "skin"), compile=form == "compiled")
    momenta = np.random.default_rng(0).normal(size=(len(crystal), 3)) * np.sqrt(crystal.get_masses()[:, None] * 0.025)

    def call() -> dict[str, Any]:
        atoms = crystal.copy()
        atoms.set_momenta(momenta)
        atoms.calc = calculator
        VelocityVerlet(atoms, timestep=1.0 * units.fs).run(sizes["steps"])
        return {"positions": torch.tensor(atoms.positions, dtype=getattr(torch, dtype))}

    return call


def _gradients(loss: Any, model: Any) -> dict[str, Any]:
    """Return the loss and its gradient in every parameter."""
    import torch

    names, parameters = zip(*model.named_parameters(), strict=True)
    return {"loss": loss, **dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))}


def force_training(sizes: Mapping[str, int], dtype: str, form: str, structure: str = "slab") -> Call:
    """Loss of energy and forces, and its gradients in all parameters."""
    import torch

    structures = atoms_of(structure, sizes)
    model, compute = _energy_forces(sizes, dtype, form, structures)
    shape = sum(map(len, structures)), 3
    labels = torch.tensor(np.random.default_rng(0).standard_normal(shape), dtype=getattr(torch, dtype))

    def call() -> dict[str, Any]:
        energy, forces = compute(True)
        return _gradients(energy.square().mean() / len(forces) + (forces - labels).square().mean(), model)

    return call


def hessian_training(sizes: Mapping[str, int], dtype: str, form: str, structure: str = "slab") -> Call:
    """Squared error of the Hessian times one random vector, and its gradients in all parameters."""
    import torch

    structures = [atoms.copy() for atoms in atoms_of(structure, sizes)]
    for atoms in structures:  # PyTorch Geometric's angles have no third derivatives where three atoms are in a line
        atoms.rattle(0.05, seed=1)
    model, compute = _energy_forces(sizes, dtype, form, structures, curvature=True)
    shape = (2, sum(map(len, structures)), 3)
    vector, label = torch.tensor(np.random.default_rng(0).standard_normal(shape), dtype=getattr(torch, dtype))
    return lambda: _gradients((compute(vector) - label).square().mean(), model)


def gat_training(sizes: Mapping[str, int], dtype: str, form: str) -> Call:
    """Three layers of attention, the heads of the last averaged; cross-entropy, and its gradients in all parameters."""
    import torch
    from torch.nn.functional import cross_entropy, elu

    from trigraph.torch import nn

    rng, heads, width = np.random.default_rng(0), sizes["num_heads"], sizes["dim_head"]
    nodes, real = sizes["num_nodes"], getattr(torch, dtype)
    edge_index = torch.tensor(rng.integers(nodes, size=(2, sizes["num_edges"])))
    x = torch.tensor(rng.standard_normal((nodes, heads * width)), dtype=real)
    labels = torch.tensor(rng.integers(width, size=nodes))

    def layers(layer: Any) -> Any:
        return torch.nn.ModuleList(
            layer(heads * width, width, heads, concat=concat, add_self_loops=False) for concat in (True, True, False)
        )

    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        model = layers(nn.GATConv)
    graph: Any = CSC.from_edge_index(edge_index, nodes)
    if form == "pyg":
        from torch_geometric.nn import GATConv

        state, model, graph = model.state_dict(), layers(GATConv), edge_index
        model.load_state_dict(state)
    model.to(real)

    def call() -> dict[str, Any]:
        h = x
        for layer in model[:-1]:
            h = elu(layer(h, graph))
        return _gradients(cross_entropy(model[-1](h, graph), labels), model)

    return call


def _small_graph(structure: str) -> CSC:
    (atoms,) = atoms_of(structure, {})
    graph = EdgeGraph.from_ase(atoms, CUTOFF).graph
    return CSC.from_coo(graph.src, graph.dst, len(atoms), len(atoms))


def small_graph(sizes: Mapping[str, int], dtype: str, form: str, structure: str, recorded: bool) -> Call:
    """Attention, forward only; through torch with what its backward needs kept, if it is `recorded`."""
    from trigraph import mha_gat_n2n_fwd

    case = make_case(ATTENTION, sizes, np.dtype(dtype))
    if structure != "random":
        case = replace(case, graphs={"graph": _small_graph(structure)})
    arrays = [case[name] for name in gat.GRADIENTS]
    if form == "front door":
        values: dict[str, Any] = dict(zip(gat.GRADIENTS, arrays, strict=True))
        values |= {"graph": case.graph, "num_heads": sizes["num_heads"]}
        return lambda: {"output_embedding": mha_gat_n2n_fwd(**values).output_embedding}
    import torch

    forward = gat.forward(case, "cpu", form)
    leaves = [torch.tensor(array, requires_grad=recorded) for array in arrays]
    return lambda: {"output_embedding": forward(*leaves)}


def _both(make: Callable[..., Call], about: str, peer: str, *requires: str) -> dict[str, Contender]:
    """Return trigraph's way and PyTorch Geometric's."""
    return {
        "trigraph": Contender(partial(make, form="trigraph"), about, ("torch", *requires)),
        "pyg": Contender(partial(make, form="pyg"), peer, ("torch", "torch_geometric", *requires), peer=True),
    }


def _dimenet_contenders(make: Callable[..., Call], structure: str, *compiled: str) -> dict[str, Contender]:
    """Return trigraph's way and PyTorch Geometric's, and the programs of those that `compiled` names."""
    peer = "PyTorch Geometric DimeNetPlusPlus, given edges, triplets and the vectors of the edges"
    contenders = _both(partial(make, structure=structure), "trigraph.torch.nn.DimeNetPlusPlus", peer, "ase")
    for name in compiled:
        program = partial(make, form=f"{name}-compiled", structure=structure)
        about = f"{contenders[name].about}, compiled"
        contenders[f"{name}-compiled"] = replace(contenders[name], about=about, make=program)
    return contenders


def _small_graphs(structure: str, nodes: int, edges: int) -> Program:
    ends, pairs = dict.fromkeys(("num_src_nodes", "num_dst_nodes"), nodes), ("num_positions", "num_edges")
    about = {
        "trigraph.torch": ("trigraph.torch.mha_gat_n2n, recorded for autograd", "trigraph", ("torch", "ase"), False),
        "inference": ("trigraph.torch.mha_gat_n2n, no input needs a gradient", "trigraph", ("torch", "ase"), False),
        "front door": ("trigraph.mha_gat_n2n_fwd", "front door", ("ase",), False),
        "pyg": (gat.ABOUT["pyg"], "pyg", ("torch", "torch_geometric", "ase"), True),
    }
    return Program(
        name="small-graphs",
        family="gat",
        summary=f"one call of graph attention, forward: {structure}",
        contenders={
            name: Contender(
                partial(small_graph, form=form, structure=structure, recorded=name != "inference"), text, requires, peer
            )
            for name, (text, form, requires, peer) in about.items()
        },
        sizes={**gat.SIZES, **ends, **dict.fromkeys(pairs, edges)},
    )


def _potentials(name: str, what: str, *contenders: str, **more: Any) -> tuple[Program, Program]:
    """Return the program of energies and forces, and that of the gradients of their loss."""
    training = f"DimeNet++, loss of energies and forces of {what} and its gradients in all parameters"
    return (
        Program(
            name, f"DimeNet++, energies and forces of {what}", _dimenet_contenders(energy_forces, *contenders), **more
        ),
        Program(f"{name}-training", training, _dimenet_contenders(force_training, *contenders), **more),
    )


OF_SLAB: Any = {"sizes": SLAB, "small": SMALL_SLAB, "terms": TRIPLETS}
OF_COPPER: Any = {"sizes": {"cells": 3, **WIDTHS}, "small": {"cells": 2}}
OF_MOLECULES: Any = {"sizes": MOLECULE_BATCH, "small": SMALL_BATCH}
PROGRAMS = (
    *_potentials("dimenet-energy-forces", "a periodic slab", "slab", "trigraph", **OF_SLAB),
    *_potentials("dimenet-copper", "copper atoms", "copper", "trigraph", **OF_COPPER),
    *_potentials("dimenet-molecules", "32 molecules of the G2 set", "molecules", "trigraph", "pyg", **OF_MOLECULES),
    *(
        Program(
            name="dimenet-molecule",
            summary=f"DimeNet++, energy and forces of {about}",
            contenders=_dimenet_contenders(energy_forces, name),
            sizes=WIDTHS,
        )
        for name, about in MOLECULES.items()
    ),
    *(
        Program(
            name=f"dimenet-{structure}-curvature-training",
            summary=f"DimeNet++, loss of the Hessian of {about} times a vector and its gradients in all parameters",
            contenders=_dimenet_contenders(hessian_training, structure, "trigraph"),
            **more,
        )
        for structure, about, more in (
            ("slab", "a periodic slab", {**OF_SLAB, "small": {**SMALL_SLAB, "nx": 3, "ny": 3}}),
            ("copper", "copper atoms", OF_COPPER),
            ("molecules", "32 molecules of the G2 set", OF_MOLECULES),
        )
    ),
    Program(
        name="dimenet-dynamics",
        summary="DimeNet++, two steps of dynamics of 500 copper atoms, neighbours searched at each step",
        contenders={
            form: Contender(partial(dynamics, form=form), about, ("torch", "ase"))
            for form, about in (
                ("eager", "trigraph.ase.Calculator"),
                ("skin", "trigraph.ase.Calculator, skin=0.5"),
                ("compiled", "trigraph.ase.Calculator, compile=True"),
            )
        },
        sizes={"cells": 5, "steps": 2, **WIDTHS},
        small={"cells": 2, "steps": 1},
    ),
    Program(
        name="gat-training",
        summary="three GATConv layers, loss and its gradients in all weights",
        contenders=_both(gat_training, "trigraph.torch.nn.GATConv", "PyTorch Geometric GATConv"),
        sizes=GAT,
        small={"num_nodes": 5_000, "num_edges": 80_000},
        terms=GAT["num_edges"],
    ),
    *(_small_graphs(structure, *counts) for structure, counts in GRAPHS.items()),
)
