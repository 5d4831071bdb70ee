"""`check_calculator` passes ASE's calculators, and the expected check finds each mistake."""

import functools
import re
import time

import numpy as np
import pytest
from ase import Atoms, units
from ase.build import bulk
from ase.calculators.calculator import Calculator, PropertyNotImplementedError, all_changes
from ase.calculators.emt import EMT
from ase.calculators.lj import LennardJones
from ase.calculators.morse import MorsePotential
from ase.neighborlist import neighbor_list

from slopecheck import CalculatorError, check_calculator
from slopecheck.kinds import CALCULATOR_CHECKS
from slopecheck.scans import find_jumps, locate_jump

CRYSTAL = bulk("Cu", cubic=True)
LATE = "it takes longer than 2 s; a larger timeout, or inputs of fewer elements, would decide"
CLUSTER = Atoms("Cu5", bulk("Cu", cubic=True).repeat((2, 1, 1)).positions[:5])


def skip_all_but(*kinds):
    """Return the option `skip` for all but the given kinds of check."""
    return {kind: "another test" for kind in CALCULATOR_CHECKS if kind not in kinds}


def check_factory(factory, *structures, kinds=tuple(CALCULATOR_CHECKS)):
    return check_calculator(factory, structures or [CRYSTAL], skip=skip_all_but(*kinds), raises=False)


def list_failed_kinds(result):
    return {check.kind for check in result.failures}


# ---- calculators of ASE --------------------------------------------------------------------------------------------


def make_lennard_jones_factory(**options):
    return lambda: LennardJones(sigma=2.27, epsilon=0.1, rc=5.0, **options)


def test_emt_fails_only_cutoff_and_scale():
    """EMT fails only `cutoff`, where its energy jumps by 1.6e-5 eV, and `scale`; it cannot be pickled."""
    right = {"symmetry", "renumbering", "wrapping", "repetition", "far atoms", "company", "history", "drift"}
    result = check_factory(EMT, kinds=set(CALCULATOR_CHECKS) - right)  # other tests run the other kinds of check
    assert list_failed_kinds(result) == {"cutoff", "scale"}
    (jump,) = [c for c in result.failures if c.kind == "cutoff"]
    assert re.match(r"energy jumps by 1\.6e-05 eV, forces by 0\.00016 eV/Å, at 5\.8767\d\d Å$", jump.note)
    assert [c.field for c in result.checks if not c.offered] == ["pickle"]
    curves = [c for c in result.checks if c.curve]
    assert len(curves) == 3
    assert all(c.order == pytest.approx(2, abs=0.1) for c in curves)


def test_unsmoothed_lennard_jones_fails_cutoff_and_scale():
    kinds = ("forces", "net force", "line", "cutoff", "scale")
    assert not list_failed_kinds(check_factory(make_lennard_jones_factory(smooth=True), CLUSTER, kinds=kinds))
    result = check_factory(make_lennard_jones_factory(smooth=False), CLUSTER, kinds=kinds)
    assert list_failed_kinds(result) == {"cutoff", "scale"}
    notes = [c.note for c in result.failures]
    assert re.match(r"a kink: forces jump by 0\.00\d+ eV/Å, energy does not, at 5\.000000 Å$", notes[0])
    assert "a kink" in notes[1]
    assert "(two atoms 5.00000 Å apart)" in notes[1]


def test_morse_potential_passes_all_checks():
    assert not list_failed_kinds(check_factory(lambda: MorsePotential(epsilon=0.5, r0=2.55), CLUSTER))


# ---- mistakes --------------------------------------------------------------------------------------------------------


class PairPotentialWithMistake(Calculator):
    """A pair potential exp(-(r / 1.3 Å)^2) eV, with a mistake: smooth, without a cutoff, and much faster than EMT.

    Periodic images farther than 8 Å, where a pair has less than 1e-16 eV, are left out. The function `change` makes a
    mistake in the results.
    """

    implemented_properties = ("energy", "free_energy", "forces", "stress")

    def __init__(self, change=None):
        super().__init__()
        self.change = change

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        self.results = self.compute_results(self.atoms)
        if self.change:
            self.change(self, self.atoms, self.results)
        self.results["free_energy"] = self.results["energy"]

    def compute_results(self, atoms):
        cell, periodic = atoms.cell.complete().array, atoms.pbc
        inverse = np.linalg.inv(cell)
        most = np.where(periodic, np.ceil(8 * np.linalg.norm(inverse, axis=0) - 0.5), 0)
        images = np.stack(np.meshgrid(*[np.arange(-n, n + 1) for n in most]), axis=-1).reshape(-1, 3) @ cell
        away = atoms.positions[:, None] - atoms.positions
        away = (away - np.where(periodic, np.round(away @ inverse), 0) @ cell)[:, :, None] - images
        energies = np.exp(-((away / 1.3) ** 2).sum(axis=-1))
        pulls = 2 / 1.3**2 * energies[..., None] * away
        results = {"energy": energies.sum() / 2, "forces": pulls.sum(axis=(1, 2))}
        if periodic.all():
            virial = np.einsum("ijka,ijkb->ab", pulls, away) / (-2 * atoms.get_volume())
            results["stress"] = virial[[0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1]]
        return results


def make_result_mistake(what, change):
    """Return a mistake in one result."""

    def change_result(self, atoms, results):
        results[what] = change(results[what], atoms)

    return change_result


scaled_forces = make_result_mistake("forces", lambda f, a: 1.00001 * f)
sign_of_a_shear = make_result_mistake("stress", lambda s, a: s * [1, 1, 1, 1, -1, 1])
noise = make_result_mistake("energy", lambda e, a: e + 1e-14 * np.random.default_rng().standard_normal())
friction = make_result_mistake("forces", lambda f, a: 0.9 * f)
sideways = make_result_mistake("forces", lambda f, a: f + np.outer([1e-9, -1e-9], [1, 0, 0]) if len(a) == 2 else f)
long_range = make_result_mistake(
    "energy", lambda e, a: e + sum(1 / d for d in a.get_all_distances()[np.triu_indices(len(a), 1)])
)
jump = make_result_mistake("energy", lambda e, a: e + 1e-3 * (a.get_distance(0, 1) > 3) if len(a) == 2 else e)


def depend_on_last_energy(self, atoms, results):
    """Mimic an iteration that starts from the previous result and does not fully converge."""
    energy = results["energy"]
    results["energy"] += 1e-6 * (energy - getattr(self, "before", energy))
    self.before = energy


def reuse_first_energy(self, atoms, results):
    """Mimic the reuse of intermediate results of the first structure."""
    self.kept = getattr(self, "kept", results["energy"])
    results["energy"] += 1e-6 * self.kept


def cache_by_positions(self, atoms, results):
    """Cache results by positions only, without the cell."""
    results |= vars(self).setdefault("known", {}).setdefault(atoms.positions.tobytes(), dict(results))


def couple_first_two_atoms(self, atoms, results):
    if len(atoms) > 1:
        d = atoms.get_distance(0, 1, mic=True, vector=True)
        results["energy"] += 1e-3 * d @ d
        results["forces"] = results["forces"].copy()
        results["forces"][:2] += [2e-3 * d, -2e-3 * d]


def ignore_periodic_images(self, atoms, results):
    other = atoms.copy()
    other.pbc = False
    results |= {name: EMT().get_property(name, other) for name in ("energy", "forces")}


def add_curl_forces(self, atoms, results):
    around = atoms.positions - atoms.positions.mean(axis=0)
    results["forces"] = results["forces"] + 1e-5 * around @ [[0, 1, 0], [-1, 0, 0], [0, 0, 0]]


def add_uniform_field(self, atoms, results):
    results["energy"] += 1e-3 * atoms.positions[:, 0].sum()
    results["forces"] = results["forces"] - [1e-3, 0, 0]


def add_anisotropic_energy(self, atoms, results):
    x = atoms.positions - atoms.positions.mean(axis=0)
    results["energy"] += 0.5e-3 * (x[:, 0] ** 2).sum()
    results["forces"] = results["forces"] - 1e-3 * x * [1, 0, 0]


def add_chiral_energy(self, atoms, results):
    if len(atoms) > 3:
        a, b, c = atoms.get_distances(0, [1, 2, 3], mic=True, vector=True)
        results["energy"] += 1e-6 * np.cross(a, b) @ c


def divide_by_num_atoms(self, atoms, results):
    results["energy"] /= len(atoms)
    results["forces"] = results["forces"] / len(atoms)


def raise_for_single_atom(self, atoms, results):
    if len(atoms) == 1:
        raise IndexError("list of neighbours is empty")


def add_angle_energy(self, atoms, results):
    """Add the angle of three atoms, whose gradient changes sign where the atoms are collinear."""
    if len(atoms) == 3:
        u, v = atoms.get_distances(0, [1, 2], vector=True)
        normal = np.cross(u, v)
        results["energy"] += 1e-3 * np.arctan2(np.linalg.norm(normal), u @ v)
        results["forces"] = results["forces"] + 1e-3 * np.sign(normal) * [0, 0, 1]


def round_to_float32(self, atoms, results):
    """Round positions and results to float32."""
    other = atoms.copy()
    other.positions = atoms.positions.astype(np.float32)
    results |= {name: np.float32(value) for name, value in self.compute_results(other).items()}


def apply_constraints(self, atoms, results):
    for constraint in atoms.constraints:
        constraint.adjust_forces(atoms, results["forces"])


def set_results_to_zero(self, atoms, results):
    results |= {name: 0 * value for name, value in results.items()}


class CalculatorWithoutCaches(PairPotentialWithMistake):
    """A calculator without ASE's caches: `keep` computes properties, and may store or modify the atoms or arrays."""

    def __init__(self, keep):
        super().__init__()
        self.keep = keep

    def get_property(self, name, atoms=None, allow_calculation=True):
        return self.keep(self, name, atoms)


def compute_property(self, name, atoms):
    results, name = self.compute_results(atoms), name if name != "free_energy" else "energy"
    if name not in results:
        raise PropertyNotImplementedError(name)
    return results[name]


def cache_by_identity(self, name, atoms):
    """Cache results by identity of the `Atoms` object, although its atoms may have moved."""
    known = vars(self).setdefault("known", {})
    if known.get("atoms") is not atoms:
        known.clear()
        known["atoms"] = atoms
    return known.setdefault(name, compute_property(self, name, atoms))


def return_shared_buffer(self, name, atoms):
    value = compute_property(self, name, atoms)
    if name != "forces":
        return value
    buffer = vars(self).setdefault("buffer", {}).setdefault(len(atoms), np.zeros((len(atoms), 3)))
    buffer[...] = value
    return buffer


def wrap_atoms_in_place(self, name, atoms):
    atoms.wrap()
    return compute_property(self, name, atoms)


class LimitedNeighbours(Calculator):
    """A smooth pair potential (4 - r)^4 within 4 Å, which counts only a limited number of neighbours of each atom."""

    implemented_properties = ("energy", "free_energy", "forces")
    most, by_distance = 40, True

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        first, second, r, away = neighbor_list("ijdD", self.atoms, 4.0)
        order = np.lexsort((r, first)) if self.by_distance else np.argsort(first, kind="stable")
        place = np.arange(len(first)) - np.searchsorted(first[order], first[order])
        first, second, r, away = (a[order][place < self.most] for a in (first, second, r, away))
        pulls, forces = (4e-3 * (4 - r) ** 3 / r)[:, None] * away, np.zeros((len(self.atoms), 3))
        np.add.at(forces, second, pulls)
        np.add.at(forces, first, -pulls)
        energy = 1e-3 * ((4 - r) ** 4).sum()
        self.results = {"energy": energy, "free_energy": energy, "forces": forces}


class NeighboursLimitedByOrder(LimitedNeighbours):
    by_distance = False


def change_energy_of_copies(self, atoms, results):
    results["energy"] += 1e-12 * (vars(self).setdefault("first", id(self)) != id(self))


class NeighbourListWithSkin(PairPotentialWithMistake):
    """A pair potential exp(-r) within 4 Å; neighbours are updated after an atom has moved by `share` of the skin."""

    share = 1.0

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        Calculator.calculate(self, atoms, properties, system_changes)
        x = self.atoms.positions
        if len(x) != len(getattr(self, "at", ())) or np.linalg.norm(x - self.at, axis=1).max() > self.share * 0.7:
            self.at, self.near = x.copy(), self.atoms.get_all_distances() < 4.7
        r = self.atoms.get_all_distances()
        energy = (np.exp(-r) * (r < 4) * self.near)[np.triu_indices(len(x), 1)].sum()
        self.results = {"energy": energy, "free_energy": energy}


def test_neighbours_updated_too_late_fail_history():
    """A neighbour list that is kept until an atom has moved by the whole skin fails; with half the skin it passes."""
    result = check_factory(NeighbourListWithSkin, CLUSTER, kinds=("cutoff", "history"))
    (note,) = [c.note for c in result.failures if c.kind == "history"]
    assert re.match(r"energy differs by 0\.02\d? eV where each of two atoms moves by 0\.51 Å into reach$", note), note
    NeighbourListWithSkin.share = 0.5
    assert "history" not in list_failed_kinds(
        check_factory(NeighbourListWithSkin, CLUSTER, kinds=("cutoff", "history"))
    )


@pytest.mark.parametrize(
    ("mistake", "kind", "atoms", "words"),
    [
        (scaled_forces, "forces", CRYSTAL, "differences give"),
        (sign_of_a_shear, "stress", CRYSTAL, "volume * stress xz"),
        (depend_on_last_energy, "history", CRYSTAL, "energy differs"),
        (reuse_first_energy, "history", CRYSTAL, "energy differs"),
        (cache_by_positions, "history", CRYSTAL, "energy differs"),
        (noise, "repeat", CRYSTAL, "energy differ from one to the next"),
        (couple_first_two_atoms, "renumbering", CRYSTAL, "energy differs"),
        (ignore_periodic_images, "wrapping", CRYSTAL, "energy differs"),
        (ignore_periodic_images, "repetition", CRYSTAL, "energy differs"),
        (add_curl_forces, "symmetry", CLUSTER, "the forces are not conservative"),
        (add_curl_forces, "net torque", CLUSTER, "torque is"),
        (add_uniform_field, "net force", CRYSTAL, "sum of forces is 0.004"),
        (add_uniform_field, "translation", CLUSTER, "energy differs"),
        (add_anisotropic_energy, "rotation", CLUSTER, "energy differs"),
        (add_chiral_energy, "reflection", CLUSTER, "energy differs"),
        (divide_by_num_atoms, "company", CLUSTER, "energy differs"),
        (add_angle_energy, "line", CLUSTER, "a kink: forces jump by 0.001 eV/Å, energy does not, at 180°"),
        (raise_for_single_atom, "lone atom", CRYSTAL, "IndexError: list of neighbours is empty"),
        (sideways, "two atoms", CRYSTAL, "forces differ"),
        (friction, "two atoms", CRYSTAL, "differences of the energy give"),
        (long_range, "far atoms", CLUSTER, "energy differs"),
        (friction, "drift", CRYSTAL, "half the time step divides the error by"),
    ],
)
def test_calculator_mistakes_fail_the_expected_check(mistake, kind, atoms, words):
    result = check_factory(lambda: PairPotentialWithMistake(mistake), atoms, kinds=(kind,))
    assert list_failed_kinds(result) == {kind}
    assert any(words in c.note for c in result.failures), str(result)
    guessed = {
        sign_of_a_shear: "this component alone has the other sign?",
        divide_by_num_atoms: "one copy: an energy per atom?",
    }
    assert any(c.note.endswith(guessed.get(mistake, "")) for c in result.failures), str(result)
    assert mistake in guessed or "?" not in str(result)
    assert not list_failed_kinds_without_mistake(kind, atoms is CRYSTAL)


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: PairPotentialWithMistake(apply_constraints), "constraints", "forces differ"),
        (lambda: CalculatorWithoutCaches(cache_by_identity), "history", "energy differs"),
        (lambda: CalculatorWithoutCaches(return_shared_buffer), "kept", "after another call, which overwrites them"),
        (lambda: CalculatorWithoutCaches(wrap_atoms_in_place), "unchanged", "modified by a call"),
        (LimitedNeighbours, "scale", "jump"),
        (NeighboursLimitedByOrder, "renumbering", "energy differs"),
        (
            lambda: PairPotentialWithMistake(change_energy_of_copies),
            "copy",
            "energy differ from those of the calculator",
        ),
        (
            lambda: PairPotentialWithMistake(change_energy_of_copies),
            "pickle",
            "energy differ from those of the calculator",
        ),
    ],
)
def test_caching_and_neighbour_mistakes_fail_expected_check(make, kind, words):
    result = check_factory(make, kinds=("cutoff", kind))
    assert list_failed_kinds(result) == {kind}, str(result)
    assert any(words in c.note for c in result.failures), str(result)
    assert kind != "kept" or not list_failed_kinds(
        check_factory(lambda: CalculatorWithoutCaches(compute_property), kinds=(kind,))
    )


def test_zero_energy_and_forces_pass():
    """A calculator whose energies and forces are zero passes."""
    assert check_factory(lambda: PairPotentialWithMistake(set_results_to_zero)).passed


def scale_unevenly(values, atoms):
    return values * (1 + 0.01 * np.sin(np.arange(values.size).reshape(values.shape)))


@pytest.mark.parametrize(
    ("what", "change", "guess"),
    [
        ("forces", lambda f, a: -f, "-1 times what differences give: the sign?"),
        ("forces", lambda f, a: 2 * f, "each pair of atoms counted twice?"),
        ("forces", lambda f, a: f / 2, "only one of the two atoms of each pair counted?"),
        ("forces", lambda f, a: f * units.Bohr / units.Hartree, "units: Hartree/Bohr for eV/Å?"),
        ("forces", lambda f, a: f / (units.kcal / units.mol), "units: kcal/mol for eV?"),
        ("forces", lambda f, a: f[::-1], "the force on atom 0 is in the row of atom 3: another order of atoms?"),
        ("energy", lambda e, a: e / len(a), "the number of atoms: an energy per atom?"),
        ("energy", lambda e, a: -e * units.mol / units.kJ, "the sign, and units: kJ/mol for eV?"),
        ("stress", lambda s, a: -s, "-1 times what differences give: the sign?"),
        ("stress", lambda s, a: s * a.cell.volume, "not divided by the volume?"),
        ("stress", lambda s, a: s / units.GPa, "units: GPa for eV/Å^3?"),
        ("stress", lambda s, a: -10 * s / units.GPa, "the sign, and units: kbar for eV/Å^3?"),
        ("stress", lambda s, a: s * [1, 1, 1, 2, 2, 2], "the shear is twice what differences give: Voigt factor?"),
        ("stress", lambda s, a: s / [1, 1, 1, 2, 2, 2], "the shear is half what differences give: Voigt factor?"),
        ("stress", lambda s, a: s * [1, 1, 1, -1, -1, -1], "the shear is the negative of what differences give?"),
        ("stress", lambda s, a: s * [1, 1, -1, 1, 1, 1], "this component alone has the other sign?"),
        ("stress", lambda s, a: s[[0, 1, 2, 5, 4, 3]], "the shear is in the order xy, xz, yz; expected yz, xz, xy?"),
        # Mistakes with no simple cause; for the first, only a common factor is reported.
        ("forces", lambda f, a: 1.1 * f, "every component is 1.1 times what differences give"),
        ("forces", scale_unevenly, ""),
        ("forces", lambda f, a: f * (1 + (np.arange(len(a)) < 2))[:, None], ""),
        ("forces", lambda f, a: f[[1, 0, 2, 3]] * [[1], [1], [1], [1.1]], ""),
        ("stress", scale_unevenly, ""),
        ("stress", lambda s, a: s + 1e-3 * np.repeat([1, 0], 3), ""),
        ("stress", lambda s, a: s * [1, 1, 1, 1.5, 1.5, 1.5], ""),
        ("stress", lambda s, a: s * [1, 1, 1, 2, 2, 1], ""),
    ],
)
def test_wrong_results_get_expected_guess(what, change, guess):
    """The cause of wrong forces or stress is guessed only if it explains all components."""
    kinds = ("stress",) if what == "stress" else ("forces",)
    (row,) = [
        c
        for c in check_factory(
            lambda: PairPotentialWithMistake(make_result_mistake(what, change)), kinds=kinds
        ).failures
        if "components" in c.field
    ]
    told = row.note.partition("+- ")[2].partition("; ")[2]
    assert told.endswith(guess) if guess else not told, row.note
    assert ("?" in row.note) == ("?" in guess)


def test_ambiguous_wrong_forces_get_no_guess():
    """Exchanging the forces on two atoms equals a change of sign, so the factor is reported without a cause."""
    two = Atoms("Cu2", [[0, 0, 0], [0.3, 0.4, 2.4]])
    result = check_factory(
        lambda: PairPotentialWithMistake(make_result_mistake("forces", lambda f, a: f[::-1])), two, kinds=("forces",)
    )
    assert "every component is -1 times what differences give" in str(result).replace("\n", " ")
    assert "?" not in str(result)


# Functions that set and get attributes of atoms, besides elements, positions and cell, that a calculator may read.
READ = {
    "initial charges": (lambda a: a.set_initial_charges(0.1 * np.arange(1, 6)), lambda a: a.get_initial_charges()),
    "magnetic moments": (
        lambda a: a.set_initial_magnetic_moments([1.0] * 5),
        lambda a: a.get_initial_magnetic_moments(),
    ),
    "tags": (lambda a: a.set_tags(2), lambda a: a.get_tags()),
    "a charge": (lambda a: a.info.update(charge=1), lambda a: np.array([a.info.get("charge", 0)])),
    "an array": (lambda a: a.set_array("spin", np.ones(5)), lambda a: a.arrays.get("spin", np.zeros(1))),
    "an object": (lambda a: a.info.update(f=lambda: 1), lambda a: np.array([a.info["f"]() if "f" in a.info else 0])),
    "a displaced cell": (lambda a: a.set_celldisp([1.0, 0, 0]), lambda a: a.get_celldisp()),
}


REDUCED = {
    "lone atom": add_uniform_field,
    "cutoff": jump,
    "line": add_angle_energy,
    "far atoms": long_range,
    "company": divide_by_num_atoms,
}


@pytest.mark.parametrize(
    ("what", "kind", "mistake"),
    [(what, *mistake) for what in READ for mistake in (("forces", scaled_forces), ("two atoms", sideways))]
    + [(what, *mistake) for what in ("initial charges", "a charge") for mistake in REDUCED.items()],
)
def test_mistakes_that_need_an_attribute_are_found(what, kind, mistake):
    """A mistake that occurs only if an attribute is set is found in the structure that has this attribute."""
    give, read = READ[what]
    other = CLUSTER.copy()
    give(other)

    def apply_mistake_if_attribute_set(self, atoms, results):
        if read(atoms).any():
            mistake(self, atoms, results)

    make, structures = functools.partial(PairPotentialWithMistake, apply_mistake_if_attribute_set), [CLUSTER, other]
    result = check_calculator(make, structures, names=["without", "with"], skip=skip_all_but(kind), raises=False)
    assert {(c.kind, c.case) for c in result.failures} == {(kind, "with")}, str(result)


@functools.cache
def list_failed_kinds_without_mistake(kind, crystal):
    return list_failed_kinds(check_factory(PairPotentialWithMistake, CRYSTAL if crystal else CLUSTER, kinds=(kind,)))


def test_float32_calculator_does_not_fail():
    """A float32 calculator does not fail: comparisons allow for its rounding, and differences are inconclusive."""
    result = check_factory(
        lambda: PairPotentialWithMistake(round_to_float32),
        CLUSTER,
        kinds=set(CALCULATOR_CHECKS) - {"lone atom", "cutoff", "scale"},
    )
    assert not list_failed_kinds(result)
    assert {c.kind for c in result.inconclusive} == {"forces"}


def test_scan_distinguishes_jumps_from_kinks():
    """Scans distinguish jumps, kinks and smooth functions; a single outlier counts as a jump."""
    points, noise = np.linspace(0.5, 2.0, 60), np.full(1, 1e-15)
    assert not find_jumps(lambda x: np.array([x**-12]), points, noise, 4)
    assert not find_jumps(lambda x: np.array([x**-6 + abs(x - 1.234)]), points, noise, 4)
    (jump,) = find_jumps(lambda x: np.array([x**-6 + 1e-4 * (x > 1.234)]), points, noise, 4)
    assert jump.at == pytest.approx(1.234, abs=1e-6)
    assert jump.change == pytest.approx(1e-4, rel=1e-2)
    (jump,) = find_jumps(lambda x: np.array([np.nan if x > 1 else x]), points, noise, 4)
    assert np.isnan(jump.change).all()
    assert locate_jump(lambda x: np.array([float(x == 0)]), -1, 1, noise, 0.0).at == 0
    assert locate_jump(lambda x: np.array([abs(x)]), -1, 1, noise, 0.0) is None


# ---- errors, processes, reports and the command
# --------------------------------------------------------------------------------------------------


def test_missing_stress_is_reported_as_not_offered():
    class NoStress(PairPotentialWithMistake):
        implemented_properties = ("energy", "forces")

    def drop_stress(self, atoms, results):
        results.pop("stress", None)

    result = check_factory(lambda: NoStress(drop_stress), kinds=("forces", "stress"))
    assert result.passed
    assert [(c.kind, c.field) for c in result.checks if not c.offered] == [("not offered", "stress")]
    assert "the calculator has no stress" in str(result)


def test_calculator_error_describes_the_failure():
    with pytest.raises(
        CalculatorError,
        match=r"(?s)failed: compare the formula of the forces\n  forces.*-force \[\d, [xyz]\]",
    ) as e:
        check_calculator(lambda: PairPotentialWithMistake(scaled_forces), [CRYSTAL], skip=skip_all_but("forces"))
    assert isinstance(e.value, AssertionError)
    assert list_failed_kinds(e.value.result) == {"forces"}


def test_hanging_calls_lose_only_their_checks():
    """If the calculator hangs for some structures, only the checks that use these structures are lost."""

    def hang_for_crystals_and_single_atoms(self, atoms, results):
        if atoms.pbc.any() or len(atoms) == 1:
            time.sleep(1000)

    skip = skip_all_but("net force", "lone atom")
    result = check_calculator(
        lambda: PairPotentialWithMistake(hang_for_crystals_and_single_atoms),
        [CRYSTAL, CLUSTER],
        skip=skip,
        timeout=2,
        raises=False,
    )
    assert [(c.kind, c.case, c.note) for c in result.checks] == [
        ("call", "Cu4", LATE),
        ("net force", "Cu5", ""),
        ("lone atom", "Cu5", LATE),
    ]


def test_check_calculator_rejects_bad_arguments():
    with pytest.raises(TypeError, match="factory is a EMT; expected a callable"):
        check_calculator(EMT(), [CRYSTAL])
    with pytest.raises(TypeError, match=r"structures is not a sequence of ase\.Atoms"):
        check_calculator(EMT, CRYSTAL)
    with pytest.raises(ValueError, match="skip names forge; expected forces"):
        check_calculator(EMT, [CRYSTAL], skip={"forge": "why"})
    assert "expected an ASE calculator" in str(check_factory(lambda: 3, kinds=("net force",)))
