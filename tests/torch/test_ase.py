"""Tests of trigraph.ase.Calculator: results, Hessians, relaxations and dynamics with models of trigraph.torch.nn."""

import itertools
import math
import resource

import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.build import bulk, molecule
from ase.calculators.calculator import PropertyNotImplementedError
from ase.md.verlet import VelocityVerlet
from ase.phonons import Phonons
from expect_error import expect_error
from small_potentials import make_crystal, make_small_dimenet

import trigraph.ase
from trigraph.torch.nn import DimeNetPlusPlus, EnergyForcesStress, Potential


@pytest.fixture
def calculator():
    return trigraph.ase.Calculator(make_small_dimenet())


def test_calculator_results_equal_the_model(calculator):
    atoms = make_crystal()
    atoms.calc = calculator
    results = calculator.model.energy_forces_stress(
        torch.tensor(atoms.numbers), torch.tensor(atoms.positions), cell=torch.tensor(np.array(atoms.cell))
    )
    assert atoms.get_potential_energy() == results.energy.item()
    assert atoms.get_potential_energy(force_consistent=True) == results.energy.item()
    np.testing.assert_array_equal(atoms.get_forces(), results.forces)
    np.testing.assert_array_equal(atoms.get_stress(voigt=False), results.stress[0])
    xx, yy, zz, yz, xz, xy = atoms.get_stress()
    np.testing.assert_array_equal([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]], results.stress[0])
    calculator.model.float()
    calculator.reset()
    assert atoms.get_potential_energy() == pytest.approx(results.energy.item(), rel=500 * 2**-24)
    assert atoms.get_forces().dtype == np.float64


def test_atomic_energies_sum_to_the_energy(calculator):
    """Atomic energies sum to the energy, follow permutations, and are the same in each cell of a supercell."""
    atoms = make_crystal()
    atoms.calc = calculator
    energies = atoms.get_potential_energies()
    rounding = 2**-53 * 1e3 * np.abs(energies).sum()  # bound on rounding errors of sums over edges and channels
    assert energies.shape == (4,)
    assert np.ptp(energies) > 1e-3 * np.abs(energies).max()
    assert energies.sum() == pytest.approx(atoms.get_potential_energy(), abs=rounding)
    order = [2, 0, 3, 1]
    np.testing.assert_allclose(calculator.get_potential_energies(atoms[order]), energies[order], rtol=0, atol=rounding)
    repeated = calculator.get_potential_energies(atoms.repeat((1, 2, 1)))
    np.testing.assert_allclose(repeated, np.tile(energies, 2), rtol=0, atol=rounding)


def test_isolated_atom_has_positive_zeros(calculator):
    """Forces without neighbours are +0.0, not -0.0."""
    alone = Atoms("Cu", [[0, 0, 0]], cell=[20, 20, 20], pbc=True, calculator=calculator)
    energies = (np.array(alone.get_potential_energy()), alone.get_potential_energies())
    for zeros in (alone.get_forces(), alone.get_stress(), *energies):
        np.testing.assert_array_equal(zeros, 0)
        assert not np.signbit(zeros).any()


def test_molecules_have_no_stress(calculator):
    atoms = molecule("C2H6")
    atoms.calc = calculator
    assert atoms.get_forces().shape == (8, 3)
    with pytest.raises(PropertyNotImplementedError):
        atoms.get_stress()
    wire = Atoms("CuAu", [[0, 0, 0], [0, 0, 1.7]], cell=[0, 0, 4], pbc=[False, False, True], calculator=calculator)
    assert wire.get_forces().any()
    with pytest.raises(PropertyNotImplementedError):
        wire.get_stress()


def compute_supercell_hessian(model, cells):
    """Return the second derivatives of the energy with respect to a supercell's positions, for fixed neighbours."""
    z, pos, cell = torch.tensor(cells.numbers), torch.tensor(cells.positions), torch.tensor(np.array(cells.cell))
    neighbors = model.neighbors(pos, cell=cell)
    hessian = torch.func.hessian(lambda pos: model(z, pos, cell=cell, neighbors=neighbors).sum())(pos)
    return hessian.detach().reshape(pos.numel(), pos.numel()).numpy()


def test_hessian_agrees_with_the_model(calculator):
    """The calculator's Hessian agrees with the model's for the current atoms, and is zero for a single atom."""
    atoms = bulk("AuCu", "rocksalt", a=5.4).repeat((2, 1, 1))
    calculator.get_potential_energy(bulk("Cu"))
    hessian = calculator.get_hessian(atoms)
    assert hessian.shape == (12, 4, 3)
    expected = compute_supercell_hessian(calculator.model, atoms)
    assert np.abs(hessian.reshape(12, 12) - expected).max() <= 1e-12 * np.abs(expected).max()
    assert not trigraph.ase.Calculator(calculator.model).get_hessian(Atoms("Cu")).any()
    with expect_error("TypeError: Calculator.get_hessian: atoms is a NoneType; expected ase.Atoms"):
        trigraph.ase.Calculator(calculator.model).get_hessian()


def test_force_constants_converge_to_the_hessian(calculator, tmp_path):
    """ASE's force constants from finite displacements converge to the analytic Hessian of the supercell.

    In rock salt, many angles are 180 degrees. The cutoff is between two shells, so that the neighbours do not change.
    The central difference with displacement h is D(h) = H + c h^2 + O(h^4).
    """
    atoms, supercell, steps = bulk("AuCu", "rocksalt", a=5.4), (2, 1, 2), (0.02, 0.01)
    hessian = compute_supercell_hessian(calculator.model, atoms.repeat(supercell))
    # Force constants: displacements in the first cell (rows), forces in each cell (columns).
    expected, errors = hessian[:6].reshape(6, 4, 6).swapaxes(0, 1), []
    for step in steps:
        phonons = Phonons(atoms, calculator, supercell, name=str(tmp_path / f"{step}"), delta=step)
        phonons.run()
        phonons.read(method="standard", symmetrize=0, acoustic=False)
        errors.append(np.abs(phonons.get_force_constant() - expected).max())
    assert errors[1] <= 1e-2 * np.abs(expected).max()
    assert math.log2(errors[0] / errors[1]) == pytest.approx(2, abs=0.05)


@pytest.mark.parametrize("buffer", [None, torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.float64)])
def test_models_without_parameters_have_buffer_dtype(buffer):
    """A model without parameters has the dtype of a floating buffer, or else torch's default dtype."""

    class SpringsWithoutParameters(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("held", buffer)

        def energy_forces_stress(self, z, pos, cell, pbc):
            self.dtype = pos.dtype
            return EnergyForcesStress(pos.square().sum()[None], -2 * pos, torch.zeros(1, 3, 3))

    springs, atoms = SpringsWithoutParameters(), make_crystal()
    atoms.calc = trigraph.ase.Calculator(springs)
    np.testing.assert_allclose(atoms.get_forces(), -2 * atoms.positions, rtol=1e-6)
    assert springs.dtype == (torch.float64 if buffer is not None and buffer.is_floating_point() else torch.float32)
    with pytest.raises(PropertyNotImplementedError):  # this model has no atomic energies
        atoms.get_potential_energies()


def test_model_without_energy_method_is_refused():
    with pytest.raises(TypeError, match=r"Calculator: model is a Linear; expected a torch\.nn\.Module with energy"):
        trigraph.ase.Calculator(torch.nn.Linear(3, 1))


def test_neighbors_are_reused_within_the_skin(calculator, monkeypatch):
    """With a skin, forces agree up to rounding; the search is repeated after an atom has moved by half the skin."""
    searches, search = [], calculator.model.neighbors

    def record_skin_and_search(*args, **kwargs):
        searches.extend([kwargs["skin"]] if "skin" in kwargs else [])
        return search(*args, **kwargs)

    monkeypatch.setattr(calculator.model, "neighbors", record_skin_and_search)
    skin_calculator, atoms = trigraph.ase.Calculator(calculator.model, skin=0.6), make_crystal()
    rng, changes = np.random.default_rng(0), []

    def compare_with_fresh_calculator(atoms):
        before = len(searches)
        for name in ("get_potential_energy", "get_forces", "get_stress"):
            atoms.calc = skin_calculator
            value = getattr(atoms, name)()
            atoms.calc = trigraph.ase.Calculator(calculator.model)
            expected = getattr(atoms, name)()
            assert np.abs(value - expected).max() <= 2**-44 * np.abs(expected).max()
        changes.append(len(searches) - before)

    for _ in range(3):  # in total, atoms move less than half the skin
        compare_with_fresh_calculator(atoms)
        atoms.positions += rng.uniform(-0.05, 0.05, atoms.positions.shape)
    atoms.positions[1] += [0.4, 0, 0]
    compare_with_fresh_calculator(atoms)
    atoms.set_cell(atoms.cell * 1.01, scale_atoms=True)
    compare_with_fresh_calculator(atoms)
    atoms.symbols[2] = "Ag"  # neighbours do not depend on the element
    compare_with_fresh_calculator(atoms)
    atoms.pbc = [True, True, False]
    compare_with_fresh_calculator(atoms)
    del atoms[0]
    compare_with_fresh_calculator(atoms)
    assert changes == [1, 0, 0, 1, 1, 0, 1, 1]
    assert set(searches) == {0.6}


class Springs(Potential):
    """Springs between neighbours that vanish at the cutoff; the model reads its attributes in every call."""

    cutoff = 3.0

    def __init__(self, stiffness=1.0):
        super().__init__()
        self.stiffness = torch.nn.Parameter(torch.tensor([stiffness], dtype=torch.float64))

    def atoms_of_vectors(self, z, vec, neighbors):
        stretched = self.cutoff - vec.square().sum(dim=1, keepdim=True).sqrt()
        return neighbors.into_atoms((1 + self.training) * self.stiffness * stretched.clamp(min=0).square())


def replace_with_aperiodic_search(calculator):
    """Replace the search by one that treats no direction as periodic."""
    model = calculator.model
    model.neighbors = lambda pos, batch=None, cell=None, pbc=None, skin=0.0: Potential.neighbors(
        model, pos, batch, cell, False, skin
    )


CHANGES = {
    # For the smaller cutoff, the neighbours of the first call (cutoff 3.2 with the skin) still suffice.
    "smaller cutoff": lambda calculator: setattr(calculator.model, "cutoff", 2.7),
    "larger cutoff": lambda calculator: setattr(calculator.model, "cutoff", 4.0),
    "model": lambda calculator: setattr(calculator, "model", Springs(2.0)),
    "dtype": lambda calculator: calculator.model.float(),
    "skin": lambda calculator: setattr(calculator, "skin", 2.0),
    "neighbours": lambda calculator: (
        setattr(calculator, "skin", 0),
        setattr(calculator.model, "max_num_neighbors", 3),
    ),
    "mode": lambda calculator: calculator.model.eval(),
}
# Changes that the calculator does not notice without `reset`.
CHANGES_WITH_RESET = {
    "weights": lambda calculator: calculator.model.stiffness.data.add_(1),
    "search": replace_with_aperiodic_search,
}


@pytest.mark.parametrize("change", [*CHANGES, *CHANGES_WITH_RESET])
def test_changes_between_calls_take_effect(change):
    """After any change of the model or settings, results agree with a new calculator, even if atoms move."""
    for skin, omit_atoms in itertools.product((0.0, 0.2), (True, False)):
        atoms = make_crystal()
        skin_calculator = trigraph.ase.Calculator(Springs(), skin=skin)
        skin_calculator.get_potential_energy(atoms)
        (CHANGES | CHANGES_WITH_RESET)[change](skin_calculator)
        if change in CHANGES_WITH_RESET:
            known = skin_calculator.atoms
            skin_calculator.reset()
            skin_calculator.atoms = known  # so that the next call may omit the atoms
        names = ("get_potential_energy", "get_potential_energies", "get_forces", "get_stress")
        for move in (0.0, 0.9):
            atoms.positions[1, 0] += move
            new, last = trigraph.ase.Calculator(skin_calculator.model), [] if omit_atoms and not move else [atoms]
            assert skin_calculator.calculation_required(atoms, ["energy"])
            for name in names:
                value, expected = getattr(skin_calculator, name)(*last), getattr(new, name)(atoms)
                rounding = 2**8 * torch.finfo(skin_calculator.model.stiffness.dtype).eps
                assert np.abs(value - expected).max() <= rounding * np.abs(expected).max()
            assert not skin_calculator.calculation_required(atoms, ["energy"])


def test_a_call_that_fails_leaves_no_results(calculator):
    atoms, many = make_crystal(), make_crystal()
    many.positions[0, 0] += 2**60
    calculator.get_potential_energy(atoms)
    for call in (calculator.calculate, calculator.get_potential_energy):
        with pytest.raises(ValueError, match="cells from the origin"):
            call(many)


def test_calculator_ignores_default_device(calculator):
    """Tensors are created on the model's device, whatever torch's default device is."""
    atoms = make_crystal()
    expected = calculator.get_forces(atoms)
    torch.set_default_device("meta")
    try:
        for skin in (0.0, 0.5):
            forces = trigraph.ase.Calculator(calculator.model, skin=skin).get_forces(atoms)
            assert np.abs(forces - expected).max() <= 2**-44 * np.abs(expected).max()
    finally:
        torch.set_default_device(None)


def test_invalid_skins_raise_value_error(calculator):
    with pytest.raises(ValueError, match="Calculator: skin is -1"):
        trigraph.ase.Calculator(calculator.model, skin=-1)
    model = DimeNetPlusPlus(8, 1, 1, 4, 2, 8, 3, 3, max_num_neighbors=4)
    with pytest.raises(ValueError, match=r"skin is 0\.5 and max_num_neighbors is 4; expected skin=0 or"):
        model.neighbors(torch.zeros(1, 3), skin=0.5)


@pytest.mark.slow
def test_long_dynamics_have_no_drift_or_leak(calculator):
    """In ten thousand steps with a skin, the total energy does not drift, and memory does not grow.

    Springs to the initial positions keep the atoms apart, because the model is random.
    """
    with torch.no_grad():
        for block in calculator.model.output_blocks:
            block.lin.weight *= 0.02
    atoms = molecule("H2O")
    atoms.cell = [3.1] * 3
    atoms = atoms.repeat(2)
    atoms.pbc = True
    first = atoms.positions.copy()

    class TetheredCalculator(trigraph.ase.Calculator):
        def calculate(self, atoms=None, *args):
            super().calculate(atoms, *args)
            moved = self.atoms.positions - first
            self.results["energy"] += 5.0 * (moved**2).sum()
            self.results["forces"] = self.results["forces"] - 10.0 * moved

    atoms.calc = TetheredCalculator(calculator.model, skin=0.5)
    spread = np.sqrt(atoms.get_masses()[:, None] * units.kB * 100)
    atoms.set_momenta(spread * np.random.default_rng(0).standard_normal(first.shape))
    energies, memory = [], []
    dynamics = VelocityVerlet(atoms, timestep=0.5 * units.fs)
    dynamics.attach(lambda: energies.append(atoms.get_total_energy()))
    dynamics.attach(lambda: memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024), interval=1000)
    dynamics.run(10_000)
    energies = np.array(energies)
    kinetic = atoms.get_kinetic_energy()
    trend = np.polyfit(np.arange(energies.size), energies, 1)[0] * energies.size
    grown = (memory[-1] - memory[1]) / 2**20
    print(f"energy spread {np.ptp(energies):.2e} eV, trend {trend:.2e} eV, memory {grown:.1f} MiB")
    assert abs(trend) <= 0.01 * kinetic
    assert grown <= 4
