"""trigraph.torch.compile_potential: one program for structures of any size, whose forces train."""

import contextlib

import numpy as np
import pytest
import torch
from ase.build import bulk
from compiled_programs import compiled_whole
from raising import raising

import trigraph
import trigraph.ase
import trigraph.torch as tt
from trigraph.torch.nn import DimeNetPlusPlus, Potential

pytestmark = compiled_whole
SIZES = {"hidden_channels": 32, "int_emb_size": 8, "basis_emb_size": 4, "out_emb_channels": 40}
LAYERS = {"num_before_skip": 0, "num_after_skip": 1, "num_output_layers": 1, "num_blocks": 1, "out_channels": 1}
ROUNDING = 1000 * torch.finfo(torch.float64).eps  # a term of each sum over edges and channels


def potential():
    torch.manual_seed(0)
    return DimeNetPlusPlus(
        **SIZES, **LAYERS, num_spherical=3, num_radial=4, cutoff=3.0, output_initializer="glorot_orthogonal"
    ).double()


def structures(sizes, seed=0):
    """Atomic numbers, positions and batch of clusters with so many atoms."""
    rng = np.random.default_rng(seed)
    lattice = 1.7 * np.stack(np.meshgrid(*[np.arange(3)] * 3), axis=-1).reshape(-1, 3)
    pos = [rng.permutation(lattice)[:n] + rng.uniform(-0.3, 0.3, (n, 3)) for n in sizes]
    batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes, dtype=torch.int64))
    return torch.tensor(rng.integers(1, 9, len(batch))), torch.tensor(np.concatenate([np.zeros((0, 3)), *pos])), batch


def close(got, expected, factor=1):
    assert got.shape == expected.shape
    error = (got - expected).detach().abs().max() if got.numel() else 0.0
    assert error <= factor * ROUNDING * (expected.detach().abs().max().clamp(min=1.0) if got.numel() else 1.0)


BATCHES = [(4, 7), (9,), (4, 4), (12, 13, 5), (2, 1), (1, 1, 1), (3,) * 20, (1,), ()]


def assert_same_results(program, model, batches, periodic):
    """Raise unless a program computes what its model does of batches, to rounding."""
    for seed, sizes in enumerate(batches):
        z, pos, batch = structures(sizes, seed)
        cell = 6.0 * torch.eye(3).double().repeat(len(sizes), 1, 1) if periodic else None
        got = program.energy_forces_stress(z, pos, batch, cell)
        expected = model.energy_forces_stress(z, pos, batch, cell)
        assert (got.stress is None) == (not periodic)
        for one, other in zip(got, expected, strict=True):
            if other is not None:
                close(one, other)
                assert not one.requires_grad
        close(program(z, pos, batch, cell), model(z, pos, batch, cell))


@pytest.mark.parametrize("periodic", [pytest.param(False, marks=pytest.mark.slow), True])
def test_one_program_serves_all_sizes(periodic):
    """Few atoms, many, one structure, lone atoms, none: one compilation, results of eager mode to rounding."""
    model = potential()
    compiled = tt.compile_potential(model, backend="aot_eager")
    assert_same_results(compiled, model, BATCHES, periodic)
    assert compiled.compilations == 1


def test_forces_train():
    """Gradients of a loss of forces are those of eager mode, also after a step, whose parameters the program sees."""
    model = potential()
    compiled = tt.compile_potential(model, backend="aot_eager")
    optimizer = torch.optim.SGD(compiled.parameters(), lr=1e-3)
    for seed, sizes in enumerate([(5, 6), (8,), (3, 4, 7)]):
        z, pos, batch = structures(sizes, seed)
        pos.requires_grad_(seed == 1)
        gradients = []
        for one in (model, compiled):
            found = one.energy_forces_stress(z, pos, batch, create_graph=True)
            loss = found.forces.square().sum() + found.energy.sum()
            inputs = [*model.parameters(), *([pos] if seed == 1 else [])]
            gradients.append(torch.autograd.grad(loss, inputs))
        for got, expected in zip(*reversed(gradients), strict=True):
            close(got, expected, 10)
        for p, gradient in zip(model.parameters(), gradients[1], strict=False):
            p.grad = gradient
        optimizer.step()
    assert compiled.compilations == 1


class Springs(Potential):
    """A potential of a user's own: springs between neighbours, with no operator but the sums of `Neighbors`."""

    cutoff = 3.0

    def __init__(self):
        super().__init__()
        self.stiffness = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def atoms_of_vectors(self, z, vec, neighbors):
        distance = vec.square().sum(dim=1, keepdim=True).sqrt()
        return neighbors.into_atoms(0.25 * self.stiffness * (self.cutoff - distance).square())


def test_a_potential_of_ones_own():
    model = Springs()
    compiled = tt.compile_potential(model, backend="aot_eager")
    z, pos = torch.tensor([1, 1]), torch.tensor([[0.0, 0.0, 0.0], [2.0, 0.0, 0.0]]).double()
    for one in (model, compiled):
        found = one.energy_forces_stress(z, pos, create_graph=True)
        assert found.energy.tolist() == [1.0]
        assert found.forces.tolist() == [[-2.0, 0.0, 0.0], [2.0, 0.0, 0.0]]
        (gradient,) = torch.autograd.grad(found.forces[1, 0], model.stiffness)
        assert gradient.item() == 1.0
    assert compiled(z, pos).tolist() == [1.0]
    with raising("NotImplementedError: ..._NoAtoms does not define atoms_of_vectors"):
        type("_NoAtoms", (Potential,), {"cutoff": 1.0})()(z, pos.float())


def test_kinds_of_calls():
    """Another dtype is another program; what the eager potential refuses is refused by name."""
    model = Springs()
    compiled = tt.compile_potential(model, backend="eager")
    z, pos, batch = structures((5, 6))
    double = compiled.energy_forces_stress(z, pos, batch)
    model.float()
    single = compiled.energy_forces_stress(z.int(), pos.float(), batch.int())
    assert single.energy.dtype == torch.float32
    assert (single.energy - double.energy).abs().max() <= 500 * 2**-24 * double.energy.abs().max()
    assert compiled.compilations == 2
    with raising("TypeError: Springs: pos has dtype torch.float64; expected torch.float32, that of the parameters"):
        compiled.energy_forces_stress(z, pos, batch)
    with raising("TypeError: compile_potential: model is a Linear; expected a trigraph.torch.nn.Potential"):
        tt.compile_potential(torch.nn.Linear(1, 1))


def test_what_tracing_loses_is_noticed():
    class Detached(Springs):
        def atoms_of_vectors(self, z, vec, neighbors):
            return super().atoms_of_vectors(z, vec.detach() + vec, neighbors)

    z, pos, batch = structures((5, 6))
    with raising("RuntimeError: compile_potential: Detached and its program differ by ..."):
        tt.compile_potential(Detached(), backend="eager").energy_forces_stress(z, pos, batch, create_graph=True)


def test_a_model_that_looks_at_sizes():
    """Where it would do something else than in its program, it computes without one, and says so."""

    class Looking(Springs):
        def atoms_of_vectors(self, z, vec, neighbors):
            found = super().atoms_of_vectors(z, vec, neighbors)
            return 2.0 * found if z.shape[0] > 20 else found

    model = Looking()
    compiled = tt.compile_potential(model, backend="eager")
    for sizes in [(9, 12), (5, 6)]:
        z, pos, batch = structures(sizes)
        with pytest.warns(UserWarning, match="branch, for 11 atoms") if sizes == (5, 6) else contextlib.nullcontext():
            found = compiled.energy_forces_stress(z, pos, batch)
        close(found.energy, model.energy_forces_stress(z, pos, batch).energy)


@pytest.mark.slow
def test_dynamics_and_batches_by_torchs_compiler():
    """A hundred neighbour lists of a run, then batches of molecules: each one compilation."""
    model = potential()
    atoms = bulk("Cu", cubic=True).repeat(2)
    atoms.rattle(0.05, seed=0)
    atoms.calc = trigraph.ase.Calculator(model, compile=True)
    rng, edges = np.random.default_rng(0), set()
    for _ in range(100):
        atoms.positions += rng.normal(0, 0.02, atoms.positions.shape)
        forces, eager = atoms.get_forces(), trigraph.ase.Calculator(model).get_forces(atoms)
        assert np.abs(forces - eager).max() <= ROUNDING * max(1.0, np.abs(eager).max())
        edges.add(model.neighbors(torch.tensor(atoms.positions), cell=torch.tensor(atoms.cell[:])).graph.num_edges)
    assert len(edges) > 10
    assert atoms.calc.model.compilations == 1
    compiled = tt.compile_potential(model)
    assert_same_results(compiled, model, [*BATCHES, *rng.integers(1, 27, (20, 5))], periodic=False)
    assert compiled.compilations == 1
