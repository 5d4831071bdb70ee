"""Tests of trigraph.torch_sim.Model: batched results and relaxations agree with ASE."""

import functools

import numpy as np
import pytest
import torch
from ase.build import bulk, fcc111, molecule
from ase.filters import FrechetCellFilter
from ase.optimize import FIRE
from expect_error import expect_error
from small_potentials import make_crystal, make_small_dimenet

pytest.importorskip("torch_sim", reason="torch-sim is not installed: pip install 'trigraph[clients]'")
import torch_sim
from torch_sim.models.interface import validate_model_outputs

import trigraph.ase
import trigraph.torch_sim
from trigraph.torch.nn import EnergyForcesStress

# Tolerance for float64 sums, whose order differs between a batch and a single structure.
ROUNDING = 2**-53 * 1e3
# This tolerance is larger, because relaxations accumulate rounding errors over their steps.
RELAXATION_TOLERANCE = 1e3 * ROUNDING


@pytest.fixture
def model():
    return trigraph.torch_sim.Model(make_small_dimenet(), per_atom_energies=True)


def make_sheared_crystal():
    """Return a crystal with a far from symmetric cell matrix."""
    atoms = make_crystal()
    atoms.set_cell(np.array(atoms.cell) @ [[1.0, 0.3, 0.0], [0.0, 1.0, 0.2], [0.1, 0.0, 1.1]], scale_atoms=True)
    return atoms


def make_ethane(vacuum=None):
    atoms = molecule("C2H6", vacuum=vacuum)
    atoms.pbc = vacuum is not None
    return atoms


def assert_close(got, expected, tolerance=ROUNDING):
    np.testing.assert_allclose(got.numpy(), expected, rtol=0, atol=tolerance * np.abs(expected).max())


def compare_with_ase(results, structures):
    """Compare the results of a batch with the ASE calculator's results for each structure."""
    calculator, atom = trigraph.ase.Calculator(make_small_dimenet()), 0
    assert list(results) == ["energy", "forces", "stress", "energies"]
    assert [len(values) for values in results.values()] == [len(structures), sum(map(len, structures))] * 2
    for i, atoms in enumerate(structures):
        own, atom = slice(atom, atom + len(atoms)), atom + len(atoms)
        assert_close(results["energy"][i], calculator.get_potential_energy(atoms))
        assert_close(results["forces"][own], calculator.get_forces(atoms))
        assert_close(results["energies"][own], calculator.get_potential_energies(atoms))
        assert_close(results["energies"][own].sum(), calculator.get_potential_energy(atoms))
        if atoms.cell.rank == 3:
            assert_close(results["stress"][i], calculator.get_stress(atoms).take([[0, 5, 4], [5, 1, 3], [4, 3, 2]]))
        else:
            assert results["stress"][i].isnan().all()


@pytest.mark.parametrize(
    "structures",
    [
        [make_sheared_crystal(), bulk("Au"), make_ethane(5.0), make_sheared_crystal().repeat((2, 1, 1))],
        [make_ethane(), molecule("H2O")],
    ],
    ids=["periodic", "free"],
)
def test_batched_results_agree_with_ase(structures, model):
    state = torch_sim.initialize_state(structures, model.device, model.dtype)
    compare_with_ase(model(state), structures)
    fields = {name: getattr(state, name) for name in ("positions", "cell", "pbc", "atomic_numbers", "system_idx")}
    compare_with_ase(model(fields), structures)


def test_slab_results_agree_with_ase(model):
    """A slab's results agree with ASE; `pbc` is per direction (as in newer torch-sim), and `system_idx` is absent."""
    slab = fcc111("Cu", (1, 2, 2), vacuum=4.0)
    slab.rattle(0.05, seed=3)
    state = {
        "positions": torch.tensor(slab.positions),
        "cell": torch.tensor(np.array(slab.cell)).mT,
        "pbc": torch.tensor(slab.pbc),
        "atomic_numbers": torch.tensor(slab.numbers),
    }
    compare_with_ase(model(state), [slab])
    captured = trigraph.torch.compile_potential(make_small_dimenet(), capture=True)
    compare_with_ase(trigraph.torch_sim.Model(captured, per_atom_energies=True)(state), [slab])


def test_model_passes_torch_sims_validation(model):
    model.compute_forces = model.compute_stress = False
    validate_model_outputs(model, model.device, model.dtype)  # torch-sim's own check of energy, forces and stress
    assert model.compute_forces
    assert model.compute_stress
    assert model.memory_scales_with == "n_atoms_x_density"


def relax_positions_and_cells(model, structures, number):
    """Relax positions and cells by `number` FIRE steps, using the installed torch-sim's interface."""
    state = torch_sim.initialize_state(structures, model.device, model.dtype)
    if hasattr(torch_sim, "CellFilter"):
        state = torch_sim.fire_init(state, model, cell_filter=torch_sim.CellFilter.frechet)
        step = functools.partial(torch_sim.fire_step, model=model, f_alpha=1.0)
    else:
        begin, step = torch_sim.frechet_cell_fire(model, f_alpha=1.0)
        state = begin(state)
    for _ in range(number):
        state = step(state=state)
    return state


def test_relaxed_cells_agree_with_ase(model):
    """Relaxed cells agree with ASE, whose cell matrices are transposed."""
    structures = [make_sheared_crystal(), make_sheared_crystal().repeat((2, 1, 1))]
    structures[1].rattle(0.05, seed=1)
    state = relax_positions_and_cells(model, structures, 10)
    for atoms, relaxed in zip(structures, state.split(), strict=True):
        before = np.array(atoms.cell)
        atoms.calc = trigraph.ase.Calculator(make_small_dimenet())
        FIRE(FrechetCellFilter(atoms), logfile=None, fa=1.0).run(fmax=0, steps=10)
        assert np.abs(atoms.cell - before).max() > 0.01
        assert_close(relaxed.row_vector_cell[0], np.array(atoms.cell), RELAXATION_TOLERANCE)
        assert_close(relaxed.positions, atoms.positions, RELAXATION_TOLERANCE)
        assert_close(relaxed.energy[0], atoms.get_potential_energy(), RELAXATION_TOLERANCE)


def test_only_requested_results_are_returned(model):
    state = torch_sim.initialize_state([make_sheared_crystal()], model.device, model.dtype)
    model.per_atom_energies = False
    assert list(model(state)) == ["energy", "forces", "stress"]
    model.compute_stress = False
    assert list(model(state)) == ["energy", "forces"]
    alone = trigraph.torch_sim.Model(make_small_dimenet(), compute_forces=False, compute_stress=False)
    (energy,) = alone(state).values()
    assert energy == model(state)["energy"]
    assert not energy.requires_grad


def test_dtype_follows_the_parameters(model):
    assert (model.device, model.dtype) == (torch.device("cpu"), torch.float64)
    state = torch_sim.initialize_state([make_sheared_crystal()], model.device, model.dtype)
    expected = model(state)
    model.float()
    assert model.dtype == torch.float32
    with expect_error("TypeError: Model: positions has dtype torch.float64; expected torch.float32, the model's dtype"):
        model(state)
    results = model(state.to(model.device, model.dtype))
    for name, values in results.items():
        assert values.dtype == torch.float32
        assert_close(values, expected[name].numpy(), 500 * 2**-24)


def test_neighbors_are_reused_within_the_skin(model, monkeypatch):
    """Neighbours are reused until an atom has moved by half the skin, or a cell or the skin has changed."""
    structures = [make_sheared_crystal(), make_ethane(5.0)]
    state = torch_sim.initialize_state(structures, model.device, model.dtype)
    kept, calls = trigraph.torch_sim.Model(make_small_dimenet(), per_atom_energies=True, skin=0.4), []
    search = type(kept.model).neighbors
    monkeypatch.setattr(type(kept.model), "neighbors", lambda *a, **k: calls.append(1) or search(*a, **k))

    def count_searches():
        before = len(calls)
        results = kept(state)
        found = len(calls) - before
        for name, expected in model(state).items():
            assert_close(results[name], expected.numpy())
        return found

    assert [count_searches(), count_searches()] == [1, 0]
    state.positions[2, 1] += 0.19
    assert count_searches() == 0
    state.positions[2, 1] += 0.02
    assert [count_searches(), count_searches()] == [1, 0]
    state.cell = state.cell * 1.001
    assert [count_searches(), count_searches()] == [1, 0]
    kept.skin = 0.5
    assert [count_searches(), count_searches()] == [1, 0]
    kept.skin = 0.0
    assert count_searches() == 1


class ModelWithoutAtomicEnergies(torch.nn.Module):
    """A model without atomic energies."""

    def energy_forces_stress(self, z, pos, batch, cell, pbc):
        return EnergyForcesStress(pos.square().sum()[None], -2 * pos, torch.zeros(1, 3, 3))


def test_torch_sim_model_refuses_bad_input(model):
    with expect_error("TypeError: Model: model is a Linear; expected a torch.nn.Module with energy_forces_stress"):
        trigraph.torch_sim.Model(torch.nn.Linear(3, 1))
    with expect_error("TypeError: Model: state is a Atoms; expected a torch_sim.SimState or a dict"):
        model(make_sheared_crystal())
    with expect_error("ValueError: Model: skin is -1.0; expected ..."):
        trigraph.torch_sim.Model(make_small_dimenet(), skin=-1)
    with expect_error("TypeError: Model: skin is 1 and ModelWithoutAtomicEnergies has no neighbors; expected skin=0"):
        trigraph.torch_sim.Model(ModelWithoutAtomicEnergies(), skin=1)
    state = torch_sim.initialize_state([make_sheared_crystal()], model.device, model.dtype)
    fields = {name: getattr(state, name) for name in ("positions", "cell", "pbc", "atomic_numbers")}
    with expect_error("ValueError: Model: state has no positions; expected positions, cell, pbc, atomic_numbers"):
        model({name: value for name, value in fields.items() if name != "positions"})
    with expect_error("TypeError: Model: cell is a ndarray; expected a torch.Tensor"):
        model(fields | {"cell": state.cell.numpy()})
    with expect_error("ValueError: ...batch is None and cell has 2 structures; expected one"):
        model(fields | {"cell": state.cell.repeat(2, 1, 1)})
    springs = trigraph.torch_sim.Model(ModelWithoutAtomicEnergies().double(), per_atom_energies=True)
    text = "per_atom_energies is True; expected False, as ModelWithoutAtomicEnergies returns no atomic energies"
    with expect_error(f"ValueError: Model: {text}"):
        springs(state.to(dtype=torch.get_default_dtype(), device=torch.device("cpu")))
