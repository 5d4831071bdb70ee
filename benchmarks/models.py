"""Programs that use `trigraph.torch`: whole models, and epochs on changing batches of molecules."""

import copy
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from trigraph.benchmarks.programs import Call, Contender, Program
from trigraph.graphs import CSC

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
TRIPLETS = 225_636  # number of triplets in the slab
SMALL_SLAB = {"nx": 3, "ny": 3, "layers": 2}
CUTOFF = 5.0
SMALL_BATCH = {"molecules": 4}
SPECIES = 83  # number of molecules in the G2 set with more than four atoms
SEED = 0  # selects molecules for which cancellation in PyTorch Geometric's basis functions leaves enough digits
COMPARED = 3  # number of compared losses; later losses differ, because Adam divides small gradients by their magnitude


@cache
def make_dimenet(form: str, dtype: str, **widths: int) -> Any:
    """Return the model; for PyTorch Geometric's version, sympy takes about ten seconds."""
    import torch

    from trigraph.torch.nn import DimeNetPlusPlus

    settings: dict[str, Any] = {**widths, "cutoff": CUTOFF, "output_initializer": "glorot_orthogonal"}
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        model = DimeNetPlusPlus(**settings)
    if form == "pyg":
        from torch_geometric.nn.models import DimeNetPlusPlus as PygDimeNetPlusPlus

        state, model = model.state_dict(), PygDimeNetPlusPlus(**settings)
        model.load_state_dict(state)
    return model.to(getattr(torch, dtype))


def _copy_dimenet(form: str, dtype: str, sizes: Mapping[str, int]) -> Any:
    """Return a copy of the model, which a program may move or train."""
    return copy.deepcopy(make_dimenet(form.partition("-")[0], dtype, **{name: sizes[name] for name in WIDTHS}))


def compute_pyg_atom_energies(model: Any, z: Any, vec: Any, edge_index: Any, idx_ji: Any, idx_kj: Any) -> Any:
    """Return the terms that PyTorch Geometric's model sums over atoms, computed from the vectors of the edges.

    `vec` (num_edges, 3) points from the destination of each edge to its source; `edge_index` (2, num_edges) contains
    sources and destinations; `idx_ji` and `idx_kj` (num_triplets,) contain the edges of each triplet.
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


class PygPotential(NamedTuple):
    """PyTorch Geometric's model for given edges and triplets, with the methods of trigraph's potentials.

    `offset` is added to the vectors of the edges. `batch` contains the structure of each atom.
    """

    model: Any
    lists: tuple[Any, ...]
    offset: Any
    batch: Any
    num_structures: int
    compute_atom_energies: Callable[..., Any] = compute_pyg_atom_energies

    def energy_forces_stress(self, z: Any, pos: Any, create_graph: bool = False) -> tuple[Any, Any]:
        """Return energies and forces, without stresses."""
        import torch

        pos.requires_grad_()
        src, dst = self.lists[0]
        of_atoms = self.compute_atom_energies(self.model, z, pos[src] - pos[dst] + self.offset, *self.lists)
        energy = of_atoms.new_zeros(self.num_structures).index_add(0, self.batch, of_atoms[:, 0])
        (gradient,) = torch.autograd.grad(energy.sum(), pos, create_graph=create_graph)
        return energy, -gradient

    def hessian_vector_product(self, z: Any, pos: Any, vector: Any, create_graph: bool) -> Any:
        """Return the product of the Hessian with a vector."""
        import torch

        _, forces = self.energy_forces_stress(z, pos, True)
        return torch.autograd.grad(-forces, pos, vector, create_graph=create_graph)[0]

    def hessian(self, z: Any, pos: Any) -> Any:
        """Return the Hessian, with a backward pass for each row."""
        import torch

        _, forces = self.energy_forces_stress(z, pos, True)
        rows = [torch.autograd.grad(-force, pos, retain_graph=True)[0] for force in forces.flatten()]
        return torch.stack(rows).reshape(*pos.shape, *pos.shape)


def _make_pyg_potential(model: Any, neighbors: Any, pos: Any, cell: Any, batch: Any) -> PygPotential:
    """Return PyTorch Geometric's potential for neighbours that trigraph has found on the CPU."""
    import torch

    device, graph = torch.get_default_device(), neighbors.graph
    edges = np.stack([graph.src, graph.dst])
    lists = tuple(torch.as_tensor(a, device=device) for a in (edges, *graph.triplets("edge")))
    offset = neighbors.vectors(torch.zeros_like(pos), cell).to(device)
    return PygPotential(model, lists, offset, batch.to(device), neighbors.num_structures)


def build_atoms(structure: str, sizes: Mapping[str, int]) -> list[Any]:
    """Return ASE's copper, a molecule, a slab of beryllium and magnesium, or `molecules` molecules from the G2 set."""
    from ase.build import bulk, hcp0001, molecule
    from ase.collections import g2

    if structure == "copper":
        crystal = bulk("Cu", cubic=True).repeat(sizes["cells"])
        crystal.rattle(0.05, seed=0)  # in equilibrium, forces would consist only of rounding errors
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


class _Structures(NamedTuple):
    """A potential with the arguments of its methods; also the first argument of loss functions, without padding."""

    model: Any
    potential: Any
    z: Any
    pos: Any
    given: Mapping[str, Any]
    real_atoms: Any
    real_structures: Any

    def energy_forces_stress(self) -> Any:
        """Return differentiable energies and forces."""
        return self.potential.energy_forces_stress(self.z, self.pos, **self.given, create_graph=True)

    def hessian_vector_product(self, vector: Any) -> Any:
        """Return the differentiable product of the Hessian with a vector."""
        return self.potential.hessian_vector_product(self.z, self.pos, vector, **self.given, create_graph=True)

    def make_training_call(self, compute_loss: Callable[[Any, Any], Any], labels: Mapping[str, Any]) -> Call:
        """Return a call that computes a loss and all parameter gradients; `labels` have a row per atom."""
        if not hasattr(self.potential, "training_step"):
            return lambda: _list_loss_and_gradients(compute_loss(self, labels), self.model)
        step = self.potential.training_step(compute_loss)

        def compute_loss_and_gradients() -> dict[str, Any]:
            value = step(self.z, self.pos, **self.given, of_atoms=labels)
            return {"loss": value, **{name: p.grad for name, p in self.model.named_parameters()}}

        return compute_loss_and_gradients


def _concatenate_atoms(structures: list[Any], dtype: str) -> tuple[Any, Any, Any]:
    """Return the atomic numbers, the positions and the structure of each atom."""
    import torch

    z = torch.tensor(np.concatenate([atoms.numbers for atoms in structures]), dtype=torch.int64)
    pos = torch.tensor(np.concatenate([atoms.positions for atoms in structures]), dtype=getattr(torch, dtype))
    return z, pos, torch.arange(len(structures)).repeat_interleave(torch.tensor([len(atoms) for atoms in structures]))


def _prepare_structures(sizes: Mapping[str, int], dtype: str, form: str, structures: list[Any]) -> _Structures:
    """Return a potential and its arguments; all tensors are on torch's default device."""
    import torch

    from trigraph.torch.potentials.compiled import compile_potential

    device = torch.get_default_device()
    with torch.device("cpu"):
        model, own = (_copy_dimenet(name, dtype, sizes) for name in (form, "trigraph"))
        z, pos, batch = _concatenate_atoms(structures, dtype)
        periodic, pbc = structures[0].pbc.any(), [atoms.pbc.tolist() for atoms in structures]
        cell = pos.new_tensor(np.array([atoms.cell for atoms in structures])) if periodic else None
        neighbors = own.neighbors(pos, batch, cell, pbc)
    model, z, ones = model.to(device), z.to(device), (pos.new_ones(n).to(device) for n in (len(z), len(structures)))
    potential: Any = model
    if form.startswith("pyg"):
        potential = _make_pyg_potential(model, neighbors, pos, cell, batch)
        if form == "pyg-compiled":  # uses CUDA graphs; not for training: torch cannot compile second derivatives
            compiled = torch.compile(compute_pyg_atom_energies, dynamic=False, mode="max-autotune")
            potential = potential._replace(compute_atom_energies=compiled)
        return _Structures(model, potential, z, pos.to(device), {}, *ones)
    if device.type != "cpu":
        pos, batch, cell = (None if t is None else t.to(device) for t in (pos, batch, cell))
        neighbors = own.to(device).neighbors(pos, batch, cell, pbc)
    if form == "trigraph-compiled":
        potential = compile_potential(model)
    elif form == "trigraph-captured":
        potential = compile_potential(model, capture=True)
    return _Structures(model, potential, z, pos, {"cell": cell, "neighbors": neighbors}, *ones)


def make_energy_forces_call(sizes: Mapping[str, int], dtype: str, form: str, structure: str) -> Call:
    """Return a call that computes energies and forces."""
    _, potential, z, pos, given, *_ = _prepare_structures(sizes, dtype, form, build_atoms(structure, sizes))
    return lambda: dict(zip(("energy", "forces"), potential.energy_forces_stress(z, pos, **given)[:2], strict=True))


def _list_loss_and_gradients(loss: Any, model: Any) -> dict[str, Any]:
    """Return the loss and its gradient with respect to every parameter."""
    import torch

    names, parameters = zip(*model.named_parameters(), strict=True)
    return {"loss": loss, **dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))}


def _compute_mean_square_error(errors: Any, structures: Any) -> Any:
    """Return the mean square error over all atoms except ghosts."""
    real = structures.real_atoms
    return (errors.square().sum(1) * real).sum() / (3 * real.sum())


def _compute_force_loss(structures: Any, labels: Any) -> Any:
    energy, forces = structures.energy_forces_stress()[:2]
    real = structures.real_structures
    of_energy = (energy.square() * real).sum() / real.sum() / structures.real_atoms.sum()
    return of_energy + _compute_mean_square_error(forces - labels["forces"], structures)


def _compute_curvature_loss(structures: Any, labels: Any) -> Any:
    product = structures.hessian_vector_product(labels["vector"])
    return _compute_mean_square_error(product - labels["product"], structures)


def make_force_training_call(sizes: Mapping[str, int], dtype: str, form: str, structure: str) -> Call:
    """Return a call that computes a loss of energy and forces, and its gradients with respect to all parameters."""
    prepared = _prepare_structures(sizes, dtype, form, build_atoms(structure, sizes))
    forces = prepared.pos.new_tensor(np.random.default_rng(0).standard_normal(prepared.pos.shape))
    return prepared.make_training_call(_compute_force_loss, {"forces": forces})


def make_hessian_training_call(sizes: Mapping[str, int], dtype: str, form: str, structure: str) -> Call:
    """Return a call that computes a loss of the Hessian times a random vector, and all parameter gradients."""
    structures = [atoms.copy() for atoms in build_atoms(structure, sizes)]
    for atoms in structures:  # PyTorch Geometric's angles have no third derivatives for collinear atoms
        atoms.rattle(0.05, seed=1)
    prepared = _prepare_structures(sizes, dtype, form, structures)
    vectors = prepared.pos.new_tensor(np.random.default_rng(0).standard_normal((2, *prepared.pos.shape)))
    return prepared.make_training_call(_compute_curvature_loss, {"vector": vectors[0], "product": vectors[1]})


def make_hessian_call(sizes: Mapping[str, int], dtype: str, form: str) -> Call:
    """Return a call that computes the Hessian of ethanol."""
    _, potential, z, pos, given, *_ = _prepare_structures(sizes, dtype, form, build_atoms("CH3CH2OH", sizes))
    return lambda: {"hessian": potential.hessian(z, pos, **given)}


def _draw_molecule_batches(sizes: Mapping[str, int], dtype: str) -> list[tuple[Any, ...]]:
    """Draw batches of displaced molecules from the G2 set: numbers, positions, structures of atoms, and labels."""
    rng, species, batches = np.random.default_rng(SEED), build_atoms("molecules", {"molecules": SPECIES}), []
    for _ in range(sizes["batches"]):
        several = [species[number] for number in rng.integers(len(species), size=sizes["molecules"])]
        z, pos, of_atom = _concatenate_atoms(several, dtype)
        shapes = pos.shape, len(several), pos.shape
        displacements, energies, forces = (pos.new_tensor(rng.standard_normal(shape)) for shape in shapes)
        batches.append((z, pos + 0.05 * displacements, of_atom, energies, forces))
    return batches


def make_batches_training_call(sizes: Mapping[str, int], dtype: str, form: str) -> Call:
    """Return a call that trains for an epoch; it returns the first losses, and the gradients for the first batch.

    The call raises RuntimeError if a program is compiled again for batches of other sizes.
    """
    import torch

    from trigraph.torch.potentials.compiled import compile_potential

    model = _copy_dimenet(form, dtype, sizes)
    initial, batches = copy.deepcopy(model.state_dict()), _draw_molecule_batches(sizes, dtype)
    potential = compile_potential(model) if form.endswith("-compiled") else model
    own = _copy_dimenet("trigraph", dtype, sizes)

    def compute_energy_forces(z: Any, pos: Any, of_atom: Any) -> tuple[Any, Any]:
        if form != "pyg":
            return potential.energy_forces_stress(z, pos, of_atom, create_graph=True)[:2]
        pyg = _make_pyg_potential(model, own.neighbors(pos, of_atom), pos.detach(), None, of_atom)
        return pyg.energy_forces_stress(z, pos, True)

    def train_epoch() -> dict[str, Any]:
        model.load_state_dict(initial)
        optimizer, losses = torch.optim.Adam(model.parameters(), 1e-4), []
        first: dict[str, Any] = {}
        for z, pos, of_atom, energy_label, force_labels in batches:
            energy, forces = compute_energy_forces(z, pos, of_atom)
            loss = (energy - energy_label).square().mean() + (forces - force_labels).square().mean()
            optimizer.zero_grad()
            loss.backward()
            first = first or {name: p.grad.clone() for name, p in model.named_parameters()}
            losses.append(loss.detach())
            optimizer.step()
        if getattr(potential, "compilations", 1) > 1:
            raise RuntimeError(f"compiled {potential.compilations} times; expected one program for all batches")
        return {"losses": torch.stack(losses[:COMPARED]), **first}

    return train_epoch


def make_gat_training_call(sizes: Mapping[str, int], dtype: str, form: str) -> Call:
    """Return a call that trains two attention layers, with self-loops and with different edges in each step."""
    import torch
    from torch.nn.functional import cross_entropy, elu

    from trigraph.torch.nn import GATConv

    rng, heads, width, nodes = np.random.default_rng(0), sizes["num_heads"], sizes["dim_head"], sizes["num_nodes"]
    channels = heads * width
    batches = [torch.tensor(rng.integers(nodes, size=(2, sizes["num_edges"]))) for _ in range(sizes["batches"])]
    x = torch.tensor(rng.standard_normal((nodes, channels)), dtype=getattr(torch, dtype))
    labels = torch.tensor(rng.integers(channels, size=nodes))
    with torch.random.fork_rng(devices=()), torch.device("cpu"):  # the CPU draws the weights for every device
        torch.manual_seed(0)
        model = torch.nn.ModuleList(GATConv(channels, width, heads) for _ in range(2))
    if form == "pyg":
        from torch_geometric.nn import GATConv as PygGATConv

        state, model = model.state_dict(), torch.nn.ModuleList(PygGATConv(channels, width, heads) for _ in range(2))
        model.load_state_dict(state)
    first_layer, second_layer = model.to(x)

    def compute_losses_and_gradients() -> dict[str, Any]:
        losses: list[Any] = []
        first: dict[str, Any] = {}
        for edge_index in batches:
            edges = edge_index.clone()  # so that no graph from an earlier call can be reused
            loss = cross_entropy(second_layer(elu(first_layer(x, edges)), edges), labels)
            gradients = _list_loss_and_gradients(loss, model)
            losses.append(gradients.pop("loss").detach())
            first = first or gradients
        return {"losses": torch.stack(losses), **first}

    return compute_losses_and_gradients


def make_small_sums_call(sizes: Mapping[str, int], dtype: str, form: str, layers: int | None) -> Call:
    """Return a call that sums over a small graph: alone (None), with gradients (0), or twice per layer of a model."""
    import torch

    from trigraph.torch import agg_weighted_n2n

    rng, nodes, width = np.random.default_rng(0), sizes["num_nodes"], sizes["dim"]
    src, dst = edge_index = torch.tensor(rng.integers(nodes, size=(2, sizes["num_edges"])))
    x, weight = (torch.tensor(rng.random(s), dtype=getattr(torch, dtype)) for s in ((nodes, width), len(src)))
    graph = CSC.from_edge_index(edge_index, nodes)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        model = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(layers or 0)).to(x.dtype)
    inputs = [t.requires_grad_(layers is not None) for t in (x, weight)]

    def sum_messages(h: Any) -> Any:
        if form == "trigraph":
            return agg_weighted_n2n(h, weight, graph).output_embedding
        return torch.zeros_like(x).index_add(0, dst, h.index_select(0, src) * weight[:, None])

    def compute_sums_or_gradients() -> dict[str, Any]:
        h = x if model else sum_messages(x)
        for layer in model:
            h = sum_messages(sum_messages(torch.tanh(layer(h))))
        if layers is None:
            return {"sums": h}
        if model:
            return _list_loss_and_gradients(h.square().sum(), model)
        return dict(zip(("x", "weight"), torch.autograd.grad(h, inputs, h.detach()), strict=True))

    return compute_sums_or_gradients


OURS, PYG = "trigraph.torch.nn.DimeNetPlusPlus", "PyTorch Geometric DimeNetPlusPlus"
EAGER = {"trigraph": OURS, "pyg": f"{PYG}, given edges, triplets and vectors of the edges"}
COMPILED = EAGER | {"trigraph-compiled": f"{OURS}, compiled"}
CAPTURED = COMPILED | {"trigraph-captured": f"{OURS}, captured in a CUDA graph"}
FASTEST = CAPTURED | {"pyg-compiled": f"{PYG}, compiled for these sizes, with CUDA graphs"}
GAT_CONVS = {"trigraph": "trigraph.torch.nn.GATConv", "pyg": "PyTorch Geometric GATConv"}
EAGER_SUMS = {"trigraph": "trigraph.torch.agg_weighted_n2n", "torch": "torch's index_select and index_add"}
MINIBATCHES = ((200, 800, 100), (1_000, 8_000, 20), (10_000, 100_000, 4), (50_000, 600_000, 2))  # (nodes, edges, steps)


def _make_contenders(make: Callable[..., Call], forms: Mapping[str, str], **settings: Any) -> dict[str, Contender]:
    """Return a contender for each form; `forms` contains their descriptions."""
    contenders = {}
    for form, about in forms.items():
        peer, device = not form.startswith("trigraph"), form in ("trigraph-captured", "pyg-compiled")
        contenders[form] = Contender(partial(make, form=form, **settings), about, peer, device)
    return contenders


def _make_potential_programs(name: str, structure: str, what: str, **more: Any) -> tuple[Program, ...]:
    """Return the programs for energies and forces, for training on them, and for training on curvature."""
    gradients = "and its gradients for all parameters"
    programs = (
        (name, f"energies and forces of {what}", make_energy_forces_call, FASTEST),
        (f"{name}-training", f"loss on energies and forces of {what}, {gradients}", make_force_training_call, CAPTURED),
        (
            f"dimenet-{structure}-curvature-training",
            f"loss on a Hessian-vector product of {what}, {gradients}",
            make_hessian_training_call,
            CAPTURED,
        ),
    )
    return tuple(
        Program(title, f"DimeNet++, {summary}", _make_contenders(make, forms, structure=structure), **more)
        for title, summary, make, forms in programs
    )


PROGRAMS = (
    *(
        Program(
            name=name,
            summary=summary,
            contenders=_make_contenders(make_small_sums_call, EAGER_SUMS, layers=layers),
            sizes={"num_nodes": 60, "num_edges": 180, "dim": 16},
        )
        for name, summary, layers in (
            ("small-sum", "weighted sum of 180 edges", None),
            ("small-sum-training", "weighted sum of 180 edges and its gradients", 0),
            ("small-layers-training", "gradients of five linear layers, tanh and two weighted sums of 180 edges", 5),
        )
    ),
    *_make_potential_programs(
        *("dimenet-energy-forces", "slab", "a periodic slab"), sizes=SLAB, small=SMALL_SLAB, terms=TRIPLETS
    ),
    *_make_potential_programs(
        *("dimenet-copper", "copper", "copper atoms"), sizes={"cells": 3, **WIDTHS}, small={"cells": 2}
    ),
    *_make_potential_programs(
        *("dimenet-molecules", "molecules", "32 molecules of the G2 set"),
        sizes={"molecules": 32, **WIDTHS},
        small=SMALL_BATCH,
    ),
    Program(
        name="dimenet-ethanol-hessian",
        summary="DimeNet++, Hessian of ethanol (27 rows)",
        contenders=_make_contenders(make_hessian_call, COMPILED),
        sizes=WIDTHS,
    ),
    Program(
        name="dimenet-batches-training",
        summary="DimeNet++, an epoch of 200 batches of 8 molecules of the G2 set, with neighbour search and Adam",
        contenders=_make_contenders(
            make_batches_training_call, COMPILED | {"pyg": f"{PYG}, with trigraph's search for neighbours"}
        ),
        sizes={"batches": 200, "molecules": 8, **WIDTHS},
        small={"batches": 4, **SMALL_BATCH},
    ),
    *(
        Program(
            name=f"gat-minibatches-{edges}",
            summary=f"two GATConv layers, {steps} training steps, each on a new graph of {edges:,} edges",
            contenders=_make_contenders(make_gat_training_call, GAT_CONVS),
            sizes={"num_nodes": nodes, "num_edges": edges, "batches": steps, "num_heads": 4, "dim_head": 16},
            small={"num_nodes": 100, "num_edges": 400, "batches": 2},
            terms=edges,
        )
        for nodes, edges, steps in MINIBATCHES
    ),
)
