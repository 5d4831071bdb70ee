"""Programs that train on changing batches of molecules, as a `DataLoader` draws them: epochs of Adam's steps."""

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from trigraph.benchmarks.calls import Call
from trigraph.benchmarks.models import CUTOFF, WIDTHS, atoms_of, dimenet, pyg_module
from trigraph.benchmarks.programs import Contender, Program

KINDS = 83  # molecules of the G2 set with more than four atoms
SEED = 3  # of molecules in which PyTorch Geometric's closed forms of the basis, which cancel, keep enough digits
COMPARED = 3  # losses: later ones differ, since Adam divides small gradients by their own size


class _Batch(NamedTuple):
    """Molecules put together, with random labels."""

    z: Any
    pos: Any
    of_atom: Any  # structure of each atom
    energy: Any
    forces: Any


def _batch_of(molecules: list[tuple[Any, float, np.ndarray]], dtype: str) -> _Batch:
    import torch

    atoms, energy, forces = zip(*molecules, strict=True)
    z = torch.tensor(np.concatenate([one.numbers for one in atoms]), dtype=torch.int64)
    batch = torch.arange(len(atoms)).repeat_interleave(torch.tensor([len(one) for one in atoms]))
    arrays = np.concatenate([one.positions for one in atoms]), energy, np.concatenate(forces)
    pos, energies, labels = (torch.tensor(array, dtype=getattr(torch, dtype)) for array in arrays)
    return _Batch(z, pos, batch, energies, labels)


def _epochs(sizes: Mapping[str, int], dtype: str) -> Callable[[], Any]:
    """Return a function that begins an epoch, always in the same order: displaced molecules of the G2 set."""
    import torch

    molecules: Any = []
    rng, kinds = np.random.default_rng(SEED), atoms_of("molecules", {"molecules": KINDS})
    for kind in rng.integers(len(kinds), size=sizes["batches"] * sizes["molecules"]):
        atoms = kinds[kind].copy()
        atoms.positions += rng.normal(scale=0.05, size=atoms.positions.shape)
        molecules.append((atoms, rng.standard_normal(), rng.standard_normal(atoms.positions.shape)))
    collate, size = partial(_batch_of, dtype=dtype), sizes["molecules"]

    def epoch() -> Any:
        generator = torch.Generator().manual_seed(0)
        return torch.utils.data.DataLoader(molecules, size, shuffle=True, collate_fn=collate, generator=generator)

    return epoch


def pyg_graph(pos: Any, of_atom: Any) -> tuple[Any, Any, Any]:
    """Return edges, and the two edges of each triplet, as PyTorch Geometric's `radius_graph` and `triplets` do.

    These need pyg-lib and torch_sparse. Here edges come from all distances, and triplets from the edges into each atom.
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


def _pyg_inputs(batch: _Batch) -> tuple[Any, ...]:
    pos = batch.pos.requires_grad_()
    return batch.z, pos, batch.of_atom, batch.energy, *pyg_graph(pos, batch.of_atom)


def _pyg(module: Any, z: Any, pos: Any, of_atom: Any, like: Any, *graph: Any) -> tuple[Any, Any]:
    """Return energies, as many as `like`, and forces by PyTorch Geometric's model."""
    import torch

    src, dst = graph[0]
    energies = module(z, pos[src] - pos[dst], *graph)[:, 0]
    energy = torch.zeros_like(like).index_add(0, of_atom, energies)
    (gradient,) = torch.autograd.grad(energy.sum(), pos, create_graph=True)
    return energy, -gradient


def _compiled_pyg(module: Any, example: tuple[Any, ...]) -> tuple[Callable[..., Any], Callable[[], int]]:
    """Return a program of `_pyg` for graphs of any size, and a function that returns its number of compilations."""
    import torch

    from trigraph.torch.graphs import with_own_code
    from trigraph.torch.nn.traced import trace

    state, compilations = dict(module.named_parameters()), list[None]()

    def of_state(parameters: list[Any], *inputs: Any) -> tuple[Any, Any]:
        given = dict(zip(state, parameters, strict=True))
        return _pyg(lambda *graph: torch.func.functional_call(module, given, graph), *inputs)

    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
    def count() -> int:
        """Count compilations: the compiler calls this once and stores the result in the program."""
        compilations.append(None)
        return len(compilations)

    program = trace(of_state, list(state.values()), *example)

    def run(parameters: list[Any], *inputs: Any) -> Any:
        count()
        return program(parameters, *inputs)

    compiled = torch.compile(with_own_code(run), dynamic=True, fullgraph=True)
    return lambda *inputs: compiled(list(state.values()), *inputs), lambda: len(compilations)


def _way(model: Any, form: str, example: _Batch) -> tuple[Callable[[_Batch], tuple[Any, Any]], Callable[[], int]]:
    """Return a function from a batch to its energies and forces, and one that returns its number of compilations."""
    from trigraph.torch.nn.compiled import compile_potential

    def ours(batch: _Batch, potential: Any) -> tuple[Any, Any]:
        found = potential.energy_forces_stress(batch.z, batch.pos, batch.of_atom, create_graph=True)
        return found.energy, found.forces

    def theirs(batch: _Batch, compute: Callable[..., tuple[Any, Any]]) -> tuple[Any, Any]:
        return compute(*_pyg_inputs(batch))

    if form == "trigraph-compiled":
        potential = compile_potential(model)
        return partial(ours, potential=potential), lambda: potential.compilations
    if form == "pyg-compiled":
        program, compilations = _compiled_pyg(pyg_module(model), _pyg_inputs(example))
        return partial(theirs, compute=program), compilations
    if form == "pyg":
        return partial(theirs, compute=partial(_pyg, pyg_module(model))), lambda: 0
    return partial(ours, potential=model), lambda: 0


def training(sizes: Mapping[str, int], dtype: str, form: str) -> Call:
    """Train on energies and forces for an epoch; the first losses, and the gradients of the first batch.

    RuntimeError is raised if a program is compiled again for batches of other sizes.
    """
    import torch

    model = copy.deepcopy(dimenet(form.removesuffix("-compiled"), dtype, **{name: sizes[name] for name in WIDTHS}))
    initial, epoch = copy.deepcopy(model.state_dict()), _epochs(sizes, dtype)
    energy_forces, compilations = _way(model, form, next(iter(epoch())))

    def call() -> dict[str, Any]:
        model.load_state_dict(initial)
        optimizer, losses = torch.optim.Adam(model.parameters(), 1e-4), []
        first: dict[str, Any] = {}
        for batch in epoch():
            energy, forces = energy_forces(batch)
            loss = (energy - batch.energy).square().mean() + (forces - batch.forces).square().mean()
            optimizer.zero_grad()
            loss.backward()
            first = first or {name: p.grad.clone() for name, p in model.named_parameters()}
            losses.append(loss.detach())
            optimizer.step()
        if compilations() > 1:
            raise RuntimeError(f"the program was compiled {compilations()} times; expected one for all batches")
        return {"losses": torch.stack(losses[:COMPARED]), **first}

    return call


OURS = "trigraph.torch.nn.DimeNetPlusPlus"
PEER = "PyTorch Geometric DimeNetPlusPlus, edges from all distances, triplets from the edges into each atom"
PROGRAMS = (
    Program(
        name="dimenet-batches-training",
        summary="DimeNet++, an epoch of 200 batches of 8 molecules of the G2 set: neighbours, gradients, Adam's step",
        contenders={
            form: Contender(
                partial(training, form=form), about, ("torch", "ase", *["torch_geometric"] * peer), peer=peer
            )
            for form, about, peer in (
                ("trigraph", OURS, False),
                ("pyg", PEER, True),
                ("trigraph-compiled", f"{OURS}, compiled", False),
                ("pyg-compiled", f"{PEER}, compiled", True),
            )
        },
        sizes={"batches": 200, "molecules": 8, **WIDTHS},
        small={"batches": 4, "molecules": 4},
    ),
)
