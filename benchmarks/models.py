"""Programs that use `trigraph.torch`: whole models, and epochs on changing batches of molecules."""

import copy
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from trigraph.benchmarks.programs import Call, Contender, ContenderUnavailable, Program
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
SMALL_SLAB = {"nx": 2, "ny": 2, "layers": 2}
CUTOFF = 5.0
SMALL_BATCH = {"molecules": 4}
SPECIES = 83  # number of molecules in the G2 set with more than four atoms
SEED = 3  # selects molecules for which cancellation in PyTorch Geometric's basis functions leaves enough digits
COMPARED = 3  # number of compared losses; later losses differ, because Adam divides small gradients by their magnitude
MOLECULES = {"H2O": "water", "C6H6": "benzene"}
GAT = {"num_nodes": 100_000, "num_edges": 1_600_000, "num_heads": 4, "dim_head": 16}


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
        if dtype != "float32":
            raise ContenderUnavailable("PyTorch Geometric keeps the zeros of the Bessel functions in float32")
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


def _compute_pyg_energy_forces(
    model: Any,
    z: Any,
    pos: Any,
    offset: Any,
    lists: tuple[Any, ...],
    batch: Any,
    structures: int,
    create_graph: bool,
    compute_atom_energies: Callable[..., Any] = compute_pyg_atom_energies,
) -> tuple[Any, Any]:
    """Return PyG's energies and forces; `offset` is added to the vectors of edges, `lists` are edges and triplets."""
    import torch

    edge_index = lists[0]
    of_atoms = compute_atom_energies(model, z, pos[edge_index[0]] - pos[edge_index[1]] + offset, *lists)
    energy = of_atoms.new_zeros(structures).index_add(0, batch, of_atoms[:, 0])
    (gradient,) = torch.autograd.grad(energy.sum(), pos, create_graph=create_graph)
    return energy, -gradient


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


class _CapturedPotential(NamedTuple):
    """Potential captured in a CUDA graph, with the arguments of its calls."""

    potential: Any
    z: Any
    pos: Any
    given: Mapping[str, Any]

    def __call__(self, create_graph: bool) -> tuple[Any, Any]:
        return self.potential.energy_forces_stress(self.z, self.pos, **self.given)[:2]  # type: ignore[no-any-return]

    def make_training_call(self, loss: Callable[[Any, Any], Any], **labels: Any) -> Call:
        """Return a call that computes a loss and all parameter gradients; `labels` have a row per atom."""
        step = self.potential.training_step(loss)

        def compute_loss_and_gradients() -> dict[str, Any]:
            value = step(self.z, self.pos, **self.given, of_atoms=labels)
            return {"loss": value, **{name: p.grad for name, p in self.potential.model.named_parameters()}}

        return compute_loss_and_gradients


def _compute_mean_square_error(errors: Any, structures: Any) -> Any:
    """Return the mean square error over all atoms except ghosts."""
    real = structures.real_atoms
    return (errors.square().sum(1) * real).sum() / (3 * real.sum())


def _make_model_and_derivative_function(
    sizes: Mapping[str, int], dtype: str, form: str, structures: list[Any], curvature: bool = False
) -> tuple[Any, Any]:
    """Return the model, and a function of `create_graph` that returns the energies of the structures and all forces.

    With `curvature`, the function instead returns the differentiable product of the Hessian with a vector or, for None,
    the Hessian itself. All tensors are on torch's default device.
    """
    import torch

    from trigraph.torch.potentials.compiled import compile_potential

    real, device, own = getattr(torch, dtype), torch.get_default_device(), _copy_dimenet("trigraph", dtype, sizes)
    with torch.device("cpu"):
        model = _copy_dimenet(form, dtype, sizes).to(device)
        z = torch.tensor(np.concatenate([atoms.numbers for atoms in structures]), dtype=torch.int64)
        pos = torch.tensor(np.concatenate([atoms.positions for atoms in structures]), dtype=real)
        batch = torch.arange(len(structures)).repeat_interleave(torch.tensor([len(atoms) for atoms in structures]))
        periodic = structures[0].pbc.any()
        cell = torch.tensor(np.array([atoms.cell for atoms in structures]), dtype=real) if periodic else None
        pbc = [atoms.pbc.tolist() for atoms in structures]
        on_host = own.neighbors(pos, batch, cell, pbc)
        edges = np.stack([on_host.graph.src, on_host.graph.dst])
        lists = tuple(torch.tensor(a).to(device) for a in (edges, *on_host.graph.triplets("edge")))
        offset = on_host.vectors(torch.zeros_like(pos), cell).to(device)
    z, pos, batch = (t.to(device) for t in (z, pos, batch))
    cell = None if cell is None else cell.to(device)
    if not form.startswith("pyg"):
        neighbors = on_host if device.type == "cpu" else own.neighbors(pos, batch, cell, pbc)
        given: Any = {"cell": cell, "neighbors": neighbors}
        if form == "trigraph-captured":
            return model, _CapturedPotential(compile_potential(model, capture=True), z, pos, given)
        potential = compile_potential(model) if form == "trigraph-compiled" else model

        def compute_hessian_or_product(vector: Any) -> Any:
            if vector is None:
                return potential.hessian(z, pos, **given)
            return potential.hessian_vector_product(z, pos, vector, **given, create_graph=True)

        def compute_trigraph_energy_forces(create_graph: bool) -> Any:
            return potential.energy_forces_stress(z, pos, **given, create_graph=create_graph)[:2]

        return model, compute_hessian_or_product if curvature else compute_trigraph_energy_forces
    pos.requires_grad_()
    compute_atom_energies: Callable[..., Any] = compute_pyg_atom_energies
    if form == "pyg-compiled":  # uses CUDA graphs; not for training, because torch cannot compile second derivatives
        compute_atom_energies = torch.compile(compute_pyg_atom_energies, dynamic=False, mode="max-autotune")

    def compute_energy_and_forces(create_graph: bool) -> tuple[Any, Any]:
        number = len(structures)
        return _compute_pyg_energy_forces(
            model, z, pos, offset, lists, batch, number, create_graph, compute_atom_energies
        )

    def compute_pyg_hessian_or_product(vector: Any) -> Any:
        forces = compute_energy_and_forces(True)[1]
        if vector is not None:
            return torch.autograd.grad(-forces, pos, vector, create_graph=True)[0]
        rows = [torch.autograd.grad(-force, pos, retain_graph=True)[0] for force in forces.flatten()]
        return torch.stack(rows).reshape(*pos.shape, *pos.shape)

    return model, compute_pyg_hessian_or_product if curvature else compute_energy_and_forces


def make_energy_forces_call(sizes: Mapping[str, int], dtype: str, form: str, structure: str = "slab") -> Call:
    """Return a call that computes energy and forces; for molecules, as in dynamics, parameters require no gradients."""
    model, compute = _make_model_and_derivative_function(sizes, dtype, form, build_atoms(structure, sizes))
    model.requires_grad_(structure not in MOLECULES)
    return lambda: dict(zip(("energy", "forces"), compute(False), strict=True))


def _list_loss_and_gradients(loss: Any, model: Any) -> dict[str, Any]:
    """Return the loss and its gradient with respect to every parameter."""
    import torch

    names, parameters = zip(*model.named_parameters(), strict=True)
    return {"loss": loss, **dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))}


def make_force_training_call(sizes: Mapping[str, int], dtype: str, form: str, structure: str = "slab") -> Call:
    """Return a call that computes a loss of energy and forces, and its gradients with respect to all parameters."""
    import torch

    structures = build_atoms(structure, sizes)
    model, compute = _make_model_and_derivative_function(sizes, dtype, form, structures)
    shape = sum(map(len, structures)), 3
    labels = torch.tensor(np.random.default_rng(0).standard_normal(shape), dtype=getattr(torch, dtype))

    def compute_padded_loss(structures: Any, given: Any) -> Any:
        found, real = structures.energy_forces_stress(), structures.real_structures
        of_energy = (found.energy.square() * real).sum() / real.sum() / structures.real_atoms.sum()
        return of_energy + _compute_mean_square_error(found.forces - given["forces"], structures)

    if isinstance(compute, _CapturedPotential):
        return compute.make_training_call(compute_padded_loss, forces=labels)

    def compute_loss_and_gradients() -> dict[str, Any]:
        energy, forces = compute(True)
        return _list_loss_and_gradients(energy.square().mean() / len(forces) + (forces - labels).square().mean(), model)

    return compute_loss_and_gradients


def make_hessian_training_call(sizes: Mapping[str, int], dtype: str, form: str, structure: str = "slab") -> Call:
    """Return a call that computes a loss of the Hessian times a random vector, and all parameter gradients."""
    import torch

    structures = [atoms.copy() for atoms in build_atoms(structure, sizes)]
    for atoms in structures:  # PyTorch Geometric's angles have no third derivatives for collinear atoms
        atoms.rattle(0.05, seed=1)
    model, compute = _make_model_and_derivative_function(sizes, dtype, form, structures, curvature=True)
    shape = (2, sum(map(len, structures)), 3)
    vector, label = torch.tensor(np.random.default_rng(0).standard_normal(shape), dtype=getattr(torch, dtype))
    if isinstance(compute, _CapturedPotential):
        return compute.make_training_call(
            lambda s, given: _compute_mean_square_error(s.hessian_vector_product(given["vector"]) - given["label"], s),
            vector=vector,
            label=label,
        )
    return lambda: _list_loss_and_gradients((compute(vector) - label).square().mean(), model)


def make_dynamics_call(sizes: Mapping[str, int], dtype: str, form: str) -> Call:
    """Return a call that runs Verlet dynamics of copper; the torch-sim model finds neighbours in each step."""
    import torch

    from trigraph.torch.potentials.compiled import compile_or_capture
    from trigraph.torch_sim import Model

    (atoms,), device, real = build_atoms("copper", sizes), torch.get_default_device(), getattr(torch, dtype)
    model = _copy_dimenet("trigraph", dtype, sizes).requires_grad_(False)
    computed = Model(
        compile_or_capture("dynamics", model.to(device), False, form.endswith("-captured")), compute_stress=False
    )
    start, cell = (torch.tensor(np.array(a), dtype=real) for a in (atoms.positions, atoms.cell.T))
    fixed = {"atomic_numbers": torch.tensor(atoms.numbers), "cell": cell[None], "pbc": True}

    def run_dynamics() -> dict[str, Any]:
        positions, velocities = start.clone(), torch.zeros_like(start)
        for _ in range(sizes["steps"]):
            velocities += 1e-3 * computed({"positions": positions, **fixed})["forces"]
            positions += velocities
        return {"positions": positions}

    return run_dynamics


def make_hessian_call(sizes: Mapping[str, int], dtype: str, form: str) -> Call:
    """Return a call that computes the Hessian of ethanol; PyTorch Geometric needs a backward pass for each row."""
    _, compute = _make_model_and_derivative_function(sizes, dtype, form, build_atoms("CH3CH2OH", sizes), curvature=True)
    return lambda: {"hessian": compute(None)}


def _collate_molecules(molecules: list[tuple[Any, float, np.ndarray]], dtype: str) -> tuple[Any, ...]:
    """Return numbers, positions, the structure of each atom, and the labels (energies and forces)."""
    import torch

    atoms, energy, forces = zip(*molecules, strict=True)
    z = torch.tensor(np.concatenate([one.numbers for one in atoms]), dtype=torch.int64)
    of_atom = torch.arange(len(atoms)).repeat_interleave(torch.tensor([len(one) for one in atoms]))
    arrays = np.concatenate([one.positions for one in atoms]), energy, np.concatenate(forces)
    pos, *labels = (torch.tensor(array, dtype=getattr(torch, dtype)) for array in arrays)
    return z, pos, of_atom, *labels


def _make_loader_factory(sizes: Mapping[str, int], dtype: str) -> Callable[[], Any]:
    """Return a function that starts an epoch over displaced molecules from the G2 set, always in the same order."""
    import torch

    molecules: Any = []
    rng, species = np.random.default_rng(SEED), build_atoms("molecules", {"molecules": SPECIES})
    for number in rng.integers(len(species), size=sizes["batches"] * sizes["molecules"]):
        atoms = species[number].copy()
        atoms.positions += rng.normal(scale=0.05, size=atoms.positions.shape)
        molecules.append((atoms, rng.standard_normal(), rng.standard_normal(atoms.positions.shape)))
    collate, size = partial(_collate_molecules, dtype=dtype), sizes["molecules"]

    def make_epoch_loader() -> Any:
        generator = torch.Generator().manual_seed(0)
        return torch.utils.data.DataLoader(molecules, size, shuffle=True, collate_fn=collate, generator=generator)

    return make_epoch_loader


def find_edges_and_triplets(pos: Any, of_atom: Any) -> tuple[Any, Any, Any]:
    """Return edges, and the two edges of each triplet, as PyTorch Geometric's `radius_graph` and `triplets` do.

    Unlike those, this function needs neither pyg-lib nor torch_sparse. It computes edges from all distances, and
    triplets from the edges into each atom.
    """
    import torch

    with torch.no_grad():
        near = ((pos[:, None] - pos).square().sum(-1) < CUTOFF**2) & (of_atom[:, None] == of_atom)
        dst, src = near.fill_diagonal_(False).nonzero(as_tuple=True)
        degree = near.sum(1)
        number = degree[src]
        idx_ji = torch.arange(len(src)).repeat_interleave(number)
        first = degree.cumsum(0) - degree
        idx_kj = torch.arange(len(idx_ji)) + (first[src] - number.cumsum(0) + number)[idx_ji]
        keep = src[idx_kj] != dst[idx_ji]
        return torch.stack([src, dst]), idx_ji[keep], idx_kj[keep]


def make_batches_training_call(sizes: Mapping[str, int], dtype: str, form: str) -> Call:
    """Return a call that trains for an epoch; it returns the first losses, and the gradients for the first batch.

    The call raises RuntimeError if a program is compiled again for batches of other sizes.
    """
    import torch

    from trigraph.torch.potentials.compiled import compile_potential

    model = _copy_dimenet(form, dtype, sizes)
    initial, epoch = copy.deepcopy(model.state_dict()), _make_loader_factory(sizes, dtype)
    potential = compile_potential(model) if form.endswith("-compiled") else model

    def compute_energy_forces(z: Any, pos: Any, of_atom: Any, structures: int) -> tuple[Any, Any]:
        if form != "pyg":
            return potential.energy_forces_stress(z, pos, of_atom, create_graph=True)[:2]
        pos.requires_grad_()
        lists = find_edges_and_triplets(pos, of_atom)
        return _compute_pyg_energy_forces(model, z, pos, 0.0, lists, of_atom, structures, True)

    def train_epoch() -> dict[str, Any]:
        model.load_state_dict(initial)
        optimizer, losses = torch.optim.Adam(model.parameters(), 1e-4), []
        first: dict[str, Any] = {}
        for z, pos, of_atom, energy_label, force_labels in epoch():
            energy, forces = compute_energy_forces(z, pos, of_atom, len(energy_label))
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


def _make_gat_layers(form: str, x: Any, *settings: Mapping[str, Any]) -> Any:
    """Return attention layers with the dtype and device of `x`; both forms have the same weights."""
    import torch

    from trigraph.torch.nn import GATConv

    def make_layers(layer: Any) -> Any:
        return torch.nn.ModuleList(layer(x.shape[1], **each) for each in settings)

    with torch.random.fork_rng(devices=()), torch.device("cpu"):  # the CPU draws the weights for every device
        torch.manual_seed(0)
        model = make_layers(GATConv)
    if form == "pyg":
        from torch_geometric.nn import GATConv as PygGATConv

        state, model = model.state_dict(), make_layers(PygGATConv)
        model.load_state_dict(state)
    return model.to(x)


def _compute_gat_loss_and_gradients(model: Any, x: Any, graph: Any, labels: Any) -> dict[str, Any]:
    """Return a loss of attention layers and its gradients with respect to all weights."""
    from torch.nn.functional import cross_entropy, elu

    h = x
    for layer in model[:-1]:
        h = elu(layer(h, graph))
    return _list_loss_and_gradients(cross_entropy(model[-1](h, graph), labels), model)


def make_gat_training_call(sizes: Mapping[str, int], dtype: str, form: str) -> Call:
    """Return a call that computes three attention layers, the last of which averages its heads, and all gradients."""
    import torch

    rng, heads, width = np.random.default_rng(0), sizes["num_heads"], sizes["dim_head"]
    nodes = sizes["num_nodes"]
    edge_index = torch.tensor(rng.integers(nodes, size=(2, sizes["num_edges"])))
    x = torch.tensor(rng.standard_normal((nodes, heads * width)), dtype=getattr(torch, dtype))
    labels = torch.tensor(rng.integers(width, size=nodes))
    layer = {"out_channels": width, "heads": heads, "add_self_loops": False}
    model = _make_gat_layers(form, x, layer, layer, {**layer, "concat": False})
    graph = edge_index if form == "pyg" else CSC.from_edge_index(edge_index, nodes)
    return lambda: _compute_gat_loss_and_gradients(model, x, graph, labels)


def make_gat_batches_training_call(sizes: Mapping[str, int], dtype: str, form: str) -> Call:
    """Return a call that trains two attention layers, with self-loops and with different edges in each step.

    Each step copies its edges, so that no graph from an earlier call can be reused.
    """
    import torch

    rng, heads, width = np.random.default_rng(0), sizes["num_heads"], sizes["dim_head"]
    nodes, channels = sizes["num_nodes"], heads * width
    batches = [torch.tensor(rng.integers(nodes, size=(2, sizes["num_edges"]))) for _ in range(sizes["batches"])]
    x = torch.tensor(rng.standard_normal((nodes, channels)), dtype=getattr(torch, dtype))
    labels = torch.tensor(rng.integers(channels, size=nodes))
    layer = {"out_channels": width, "heads": heads}
    model = _make_gat_layers(form, x, layer, layer)

    def compute_losses_and_gradients() -> dict[str, Any]:
        losses: list[Any] = []
        first: dict[str, Any] = {}
        for edge_index in batches:
            gradients = _compute_gat_loss_and_gradients(model, x, edge_index.clone(), labels)
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


def _make_contenders(make: Callable[..., Call], *several: tuple[str, str], ase: bool = True) -> dict[str, Contender]:
    """Return contenders from pairs (form, description); the forms "pyg" and "torch" are peers."""
    found = {}
    for form, about in several:
        requires = ("torch", *["torch_geometric"] * (form == "pyg"), *["ase"] * ase)
        found[form] = Contender(partial(make, form=form), about, requires, peer=form in ("pyg", "torch"))
    return found


OURS = "trigraph.torch.nn.DimeNetPlusPlus"
EAGER = ("trigraph", OURS), ("pyg", "PyTorch Geometric DimeNetPlusPlus, given edges, triplets and vectors of the edges")
COMPILED = "trigraph-compiled", f"{OURS}, compiled"
PYG_BATCHES = "PyTorch Geometric DimeNetPlusPlus, edges from all distances, triplets from the edges into each atom"


def _make_potential_programs(name: str, what: str, structure: str, **more: Any) -> tuple[Program, Program]:
    """Return the program for energies and forces, and the program for a loss and its gradients."""
    training = f"DimeNet++, loss on energies and forces of {what}, and its gradients for all parameters"
    forces, loss = (
        _make_contenders(partial(make, structure=structure), *EAGER, COMPILED)
        for make in (make_energy_forces_call, make_force_training_call)
    )
    return (
        Program(name, f"DimeNet++, energies and forces of {what}", forces, **more),
        Program(f"{name}-training", training, loss, **more),
    )


OF_SLAB: Any = {"sizes": SLAB, "small": SMALL_SLAB, "terms": TRIPLETS}
OF_COPPER: Any = {"sizes": {"cells": 3, **WIDTHS}, "small": {"cells": 2}}
OF_MOLECULES: Any = {"sizes": {"molecules": 32, **WIDTHS}, "small": SMALL_BATCH}
GAT_CONVS = ("trigraph", "trigraph.torch.nn.GATConv"), ("pyg", "PyTorch Geometric GATConv")
MINIBATCHES = ((200, 800, 100), (1_000, 8_000, 20), (10_000, 100_000, 4), (50_000, 600_000, 2))  # (nodes, edges, steps)
EAGER_SUMS = ("trigraph", "trigraph.torch.agg_weighted_n2n"), ("torch", "torch's index_select and index_add")
PROGRAMS = (
    *(
        Program(
            name=name,
            summary=summary,
            contenders=_make_contenders(partial(make_small_sums_call, layers=layers), *EAGER_SUMS, ase=False),
            sizes={"num_nodes": 60, "num_edges": 180, "dim": 16},
        )
        for name, summary, layers in (
            ("small-sum", "weighted sum of 180 edges", None),
            ("small-sum-training", "weighted sum of 180 edges and its gradients", 0),
            ("small-layers-training", "gradients of five linear layers, tanh and two weighted sums of 180 edges", 5),
        )
    ),
    *_make_potential_programs("dimenet-energy-forces", "a periodic slab", "slab", **OF_SLAB),
    *_make_potential_programs("dimenet-copper", "copper atoms", "copper", **OF_COPPER),
    *_make_potential_programs("dimenet-molecules", "32 molecules of the G2 set", "molecules", **OF_MOLECULES),
    *(
        Program(
            name="dimenet-molecule",
            summary=f"DimeNet++, energy and forces of {about}",
            contenders=_make_contenders(partial(make_energy_forces_call, structure=name), *EAGER),
            sizes=WIDTHS,
        )
        for name, about in MOLECULES.items()
    ),
    *(
        Program(
            name=f"dimenet-{structure}-curvature-training",
            summary=f"DimeNet++, loss on a Hessian-vector product of {about}, and its gradients for all parameters",
            contenders=_make_contenders(partial(make_hessian_training_call, structure=structure), *EAGER, COMPILED),
            **more,
        )
        for structure, about, more in (
            ("slab", "a periodic slab", {**OF_SLAB, "small": {**SMALL_SLAB, "nx": 3, "ny": 3}}),
            ("copper", "copper atoms", OF_COPPER),
            ("molecules", "32 molecules of the G2 set", OF_MOLECULES),
        )
    ),
    Program(
        name="dimenet-ethanol-hessian",
        summary="DimeNet++, Hessian of ethanol (27 rows)",
        contenders=_make_contenders(make_hessian_call, *EAGER, COMPILED),
        sizes=WIDTHS,
    ),
    Program(
        name="dimenet-batches-training",
        summary="DimeNet++, an epoch of 200 batches of 8 molecules of the G2 set, with neighbour search and Adam",
        contenders=_make_contenders(make_batches_training_call, ("trigraph", OURS), ("pyg", PYG_BATCHES), COMPILED),
        sizes={"batches": 200, "molecules": 8, **WIDTHS},
        small={"batches": 4, **SMALL_BATCH},
    ),
    Program(
        name="gat-training",
        summary="three GATConv layers, a loss and its gradients with respect to all weights",
        contenders=_make_contenders(make_gat_training_call, *GAT_CONVS, ase=False),
        sizes=GAT,
        small={"num_nodes": 5_000, "num_edges": 80_000},
        terms=GAT["num_edges"],
    ),
    *(
        Program(
            name=f"gat-minibatches-{edges}",
            summary=f"two GATConv layers, {steps} training steps, each on a new graph of {edges:,} edges",
            contenders=_make_contenders(make_gat_batches_training_call, *GAT_CONVS, ase=False),
            sizes={"num_nodes": nodes, "num_edges": edges, "batches": steps, "num_heads": 4, "dim_head": 16},
            small={"num_nodes": 100, "num_edges": 400, "batches": 2},
            terms=edges,
        )
        for nodes, edges, steps in MINIBATCHES
    ),
)
