"""Calculators as users might write them, correct or with one mistake; the checks were not tuned to these calculators.

`WRONG` names the kind of check that must find each mistake, `RIGHT` the kinds that do not apply. ASE is required.
"""

import numpy as np
from ase import Atoms, units
from ase.build import bulk
from ase.calculators.calculator import Calculator, all_changes
from ase.neighborlist import neighbor_list

CRYSTAL = bulk("Cu", cubic=True)
CRYSTAL.numbers[:2] = 47
CRYSTAL.set_cell(1.05 * CRYSTAL.cell.array, scale_atoms=True)
CLUSTER = Atoms("CuAg2Cu2", CRYSTAL.repeat((2, 1, 1)).positions[:5])
VOIGT = np.array([[0, 0], [1, 1], [2, 2], [1, 2], [0, 2], [0, 1]])


class PairPotential(Calculator):
    """A pair potential q_i q_j exp(-r) (1 - (r / R)^2)^4 eV, where the charge q of an atom depends on its element."""

    implemented_properties = ("energy", "free_energy", "forces", "stress")
    reach = 4.5

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        self.results = self.change_results(self.atoms, self.compute_results(self.atoms))
        self.results["free_energy"] = self.results["energy"]

    def change_results(self, atoms, results):
        return results

    def compute_pair_energies_and_slopes(self, r):
        """Return pair energies and their derivatives with respect to the distance."""
        rest, decay = 1 - (r / self.reach) ** 2, np.exp(-r)
        return decay * rest**4, -decay * rest**4 - decay * 8 * r / self.reach**2 * rest**3

    def charges(self, atoms):
        return np.where(atoms.numbers == 47, 1.5, 1.0)

    def find_neighbours(self, atoms):
        return neighbor_list("ijdD", atoms, self.reach)

    def compute_results(self, atoms):
        i, j, r, away = self.find_neighbours(atoms)
        q, (energies, slopes) = self.charges(atoms), self.compute_pair_energies_and_slopes(r)
        return self.sum_pair_contributions(
            atoms, i, away, q[i] * q[j] * energies, (q[i] * q[j] * slopes / r)[:, None] * away
        )

    def sum_pair_contributions(self, atoms, i, away, energies, pulls):
        forces = np.zeros((len(atoms), 3))
        np.add.at(forces, i, pulls)
        results = {"energy": energies.sum() / 2, "forces": forces}
        if atoms.cell.rank == 3:
            results["stress"] = (pulls.T @ away)[VOIGT[:, 0], VOIGT[:, 1]] / (2 * atoms.cell.volume)
        return results


class PairsWithChangedResults(PairPotential):
    """A pair potential whose results are replaced by `change(atoms, results)`."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def change_results(self, atoms, results):
        return results | self.change(atoms, results)


class HardCutoff(PairPotential):
    def compute_pair_energies_and_slopes(self, r):
        return np.exp(-r), -np.exp(-r)


class EnergyShiftedAtCutoff(PairPotential):
    def compute_pair_energies_and_slopes(self, r):
        return np.exp(-r) - np.exp(-self.reach), -np.exp(-r)


class NearestImageOnly(PairPotential):
    reach = 3.9

    def find_neighbours(self, atoms):
        i, j, r, away = super().find_neighbours(atoms)
        order = np.lexsort((r, j, i))
        _, first = np.unique(np.stack([i[order], j[order]]), axis=1, return_index=True)
        return tuple(a[order[first]] for a in (i, j, r, away))


class StaleNeighbourList(PairPotential):
    """A pair potential that rebuilds its neighbour list only if the number of atoms changes."""

    def find_neighbours(self, atoms):
        if len(getattr(self, "last", ())) != len(atoms):
            self.last, self.found = atoms.positions.copy(), neighbor_list("ijD", atoms, self.reach)
        i, j, away = self.found
        moves = atoms.positions - self.last
        away = away + moves[j] - moves[i]
        r = np.linalg.norm(away, axis=1)
        near = r < self.reach
        return i[near], j[near], r[near], away[near]


class ForcesSortedByElement(PairPotential):
    def compute_results(self, atoms):
        return super().compute_results(atoms[np.argsort(atoms.numbers, kind="stable")])


class AnglePotential(PairPotential):
    """A pair potential plus a sum over angles: of the angle if `acos`, else of a polynomial of its cosine."""

    def __init__(self, acos):
        super().__init__()
        self.acos = acos

    def compute_results(self, atoms):
        results = super().compute_results(atoms)
        i, j, r, away = self.find_neighbours(atoms)
        weight, slope = (1 - (r / self.reach) ** 2) ** 4, -8 * r / self.reach**2 * (1 - (r / self.reach) ** 2) ** 3
        unit = away / r[:, None]
        first, second = np.nonzero((i[:, None] == i) & (np.arange(len(i))[:, None] < np.arange(len(i))))
        c = np.clip((unit[first] * unit[second]).sum(1), -1, 1)
        if self.acos:
            with np.errstate(divide="ignore"):
                bend, turn = 0.01 * np.arccos(c), -0.01 / np.sqrt(1 - c * c)
        else:
            bend, turn = 0.01 * (c + 1 / 3) ** 2, 0.02 * (c + 1 / 3)
        results["energy"] += (bend * weight[first] * weight[second]).sum()
        pulls = np.zeros_like(away)  # derivatives with respect to the pair vectors
        for a, b in ((first, second), (second, first)):
            of_angle = (turn * weight[a] * weight[b] / r[a])[:, None] * (unit[b] - c[:, None] * unit[a])
            np.add.at(pulls, a, of_angle + (bend * slope[a] * weight[b])[:, None] * unit[a])
        np.add.at(results["forces"], i, pulls)
        np.add.at(results["forces"], j, -pulls)
        if "stress" in results:
            results["stress"] = results["stress"] + (pulls.T @ away)[VOIGT[:, 0], VOIGT[:, 1]] / atoms.cell.volume
        return results


class EmbeddedAtomPotential(PairPotential):
    """The negative square root of the density at each atom; with `both`, forces use the densities at both atoms."""

    def __init__(self, both=True):
        super().__init__()
        self.both = both

    def compute_results(self, atoms):
        i, j, r, away = self.find_neighbours(atoms)
        energies, slopes = self.compute_pair_energies_and_slopes(r)
        density = np.full(len(atoms), 1e-3) + np.bincount(i, energies, len(atoms))
        of_atom = 0.5 / np.sqrt(density)
        slope = slopes * (of_atom[i] + of_atom[j] if self.both else 2 * of_atom[i])
        results = self.sum_pair_contributions(atoms, i, away, 0 * r, -(slope / r)[:, None] * away)
        return results | {"energy": -np.sqrt(density).sum()}


class CoarseDifferenceForces(PairPotential):
    """A pair potential with forces from central differences with a large step."""

    def change_results(self, atoms, results):
        forces = np.zeros((len(atoms), 3))
        for place in np.ndindex(forces.shape):
            for sign in (1, -1):
                other = atoms.copy()
                other.positions[place] += sign * 0.01
                forces[place] -= sign * self.compute_results(other)["energy"] / 0.02
        return {"energy": results["energy"], "forces": forces}


class Float32Potential(PairPotential):
    def compute_results(self, atoms):
        other = atoms.copy()
        other.positions = atoms.positions.astype(np.float32)
        return {name: np.float32(value) for name, value in super().compute_results(other).items()}


class HalfNeighbourList(PairPotential):
    """A half neighbour list is treated as a full one, so forces act only on the first atom of each pair."""

    def find_neighbours(self, atoms):
        i, j, r, away = super().find_neighbours(atoms)
        return (np.concatenate([a[i <= j], a[i < j]]) for a in (i, j, r, away)) if (i < j).any() else (i, j, r, away)


class CoulombPotential(PairPotential):
    """Coulomb interactions without a cutoff, which ignore the cell."""

    reach = 1e4

    def compute_pair_energies_and_slopes(self, r):
        return 0.1 / r, -0.1 / r**2

    def find_neighbours(self, atoms):
        i, j = np.nonzero(~np.eye(len(atoms), dtype=bool))
        away = atoms.positions[j] - atoms.positions[i]
        return i, j, np.linalg.norm(away, axis=1), away


class ConstantEnergyPerAtom(PairPotential):
    def compute_results(self, atoms):
        return {"energy": 0.5 * len(atoms), "forces": np.zeros((len(atoms), 3)), "stress": np.zeros(6)}


class PairPotentialWithoutStress(PairPotential):
    implemented_properties = ("energy", "free_energy", "forces")

    def change_results(self, atoms, results):
        return {name: results[name] for name in ("energy", "forces")}


def make_changed_results_factory(change):
    return lambda: PairsWithChangedResults(change)


def add_external_sine_potential(atoms, results):
    x = atoms.positions[:, 2]
    return {
        "energy": results["energy"] + 0.01 * np.sin(x).sum(),
        "forces": results["forces"] - 0.01 * np.cos(x)[:, None] * [0, 0, 1],
    }


WRONG = {
    "hard cutoff": (HardCutoff, "cutoff"),
    "shifted energy": (EnergyShiftedAtCutoff, "cutoff"),
    "nearest image": (NearestImageOnly, "repetition"),
    "old neighbours": (StaleNeighbourList, "history"),
    "sorted by element": (ForcesSortedByElement, "renumbering"),
    "angle by arc cosine": (lambda: AnglePotential(True), "line"),
    "one density twice": (lambda: EmbeddedAtomPotential(False), "forces"),
    "coarse differences": (CoarseDifferenceForces, "forces"),
    "float32 inside": (Float32Potential, "forces"),
    "half a list": (HalfNeighbourList, "forces"),
    "pressure": (
        make_changed_results_factory(lambda a, r: {"stress": -r["stress"]} if "stress" in r else {}),
        "stress",
    ),
    "shear by engineers": (
        make_changed_results_factory(
            lambda a, r: {"stress": r["stress"] * [1, 1, 1, 2, 2, 2]} if "stress" in r else {}
        ),
        "stress",
    ),
    "atomic units": (
        make_changed_results_factory(lambda a, r: {"forces": r["forces"] * units.Bohr / units.Hartree}),
        "forces",
    ),
    "energy per atom": (make_changed_results_factory(lambda a, r: {"energy": r["energy"] / len(a)}), "company"),
    "wall": (make_changed_results_factory(add_external_sine_potential), "translation"),
    "mean force removed": (
        make_changed_results_factory(
            lambda a, r: {"forces": r["forces"] * np.where(a.numbers == 47, 1.0, 1 + 1e-4)[:, None]}
        ),
        "forces",
    ),
}
RIGHT = {
    "pairs": (PairPotential, ()),
    "angles": (lambda: AnglePotential(False), ()),
    "embedded": (EmbeddedAtomPotential, ()),
    "constant": (ConstantEnergyPerAtom, ()),
    "no stress": (PairPotentialWithoutStress, ()),
    "large energies": (make_changed_results_factory(lambda a, r: {"energy": r["energy"] - 4e4 * len(a)}), ()),
    "charges": (CoulombPotential, ("far atoms", "company", "cutoff")),
    "one-body energies": (
        make_changed_results_factory(lambda a, r: {"energy": r["energy"] - 3.2 * np.sum(a.numbers == 47)}),
        (),
    ),
    "tiny": (make_changed_results_factory(lambda a, r: {name: 1e-9 * value for name, value in r.items()}), ()),
}


def check_factory(factory, skip=(), structures=(CRYSTAL, CLUSTER)):
    """Return the result of the checks of a calculator; `Coulomb` is checked only without a cell."""
    from slopecheck import check_calculator

    some = [a for a in structures if factory is not CoulombPotential or not a.pbc.any()]
    return check_calculator(factory, some, skip=dict.fromkeys(skip, "does not apply"), raises=False)
