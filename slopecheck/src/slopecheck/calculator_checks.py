"""The checks of `check_calculator`; each tests one property that every calculator must have."""

import copy
import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from slopecheck.calculator_results import (
    UNITS,
    CalculatorUnderTest,
    RoundingErrors,
    compute_quantity,
    digest_atoms,
    estimate_rounding,
    make_moved_atoms,
    make_strained_atoms,
)
from slopecheck.causes import ComponentComparison, guess_cause_in_forces, guess_cause_in_stress
from slopecheck.curves import ArrayWithRounding, GradientClaim
from slopecheck.outcome import NotOffered
from slopecheck.record import Check
from slopecheck.scans import LAST_BITS
from slopecheck.summary import compute_error_ratio
from slopecheck.tolerances import MARGIN

ELEMENTS = 12  # number of force components that are compared individually
RATTLED = 0.03  # standard deviation of displacements that break symmetry, relative to the nearest distance
DISPLACED = 0.2  # length of displacements for finite differences, relative to the nearest distance
PAIRS = 4  # number of pairs of directions in which the symmetry of the Jacobian is tested
FAR = 200.0  # distance in Å beyond the range of any interaction
# A dense structure has more neighbours than many calculators expect. DENSE scales a periodic cell; GRID is the spacing
# of a cubic grid of atoms, relative to the nearest distance; SIDE is the number of grid points per axis.
DENSE, GRID, SIDE = 0.75, 0.85, 5
KINDS_OF_ATOMS = 3  # largest number of elements, and of pairs of elements, that are tested
NAMES = ("xx", "yy", "zz", "yz", "xz", "xy")
Results = dict[str, Any]


@dataclass
class StructureChecks:
    """Checks of a calculator for one structure, with a method for each kind of check."""

    subject: CalculatorUnderTest
    name: str
    original: Any
    rng: np.random.Generator
    kind: str = ""  # kind of the checks in progress

    def __post_init__(self) -> None:
        self.atoms = self.original.copy()
        self.atoms.set_constraint()
        self.nearest = find_nearest_distance(self.atoms)
        self.size = DISPLACED * self.nearest
        self.atoms.positions += RATTLED * self.nearest * self.rng.standard_normal(self.atoms.positions.shape)
        self.periodic = bool(self.atoms.pbc.any())
        # The same atoms without a cell, for checks that do not apply to crystals.
        self.cluster = self.copy_without_cell(range(len(self.atoms)), self.atoms.positions)

    def copy_without_cell(self, members: Sequence[int], positions: Any) -> Any:
        """Return the listed atoms, which may repeat, without a cell and at the given positions.

        The atoms keep all other data that a calculator may read: charges, magnetic moments, tags and `info`.
        """
        cluster = self.atoms[list(members)]
        cluster.cell, cluster.pbc, cluster.positions = None, False, positions
        return cluster

    def estimate_rounding(self, atoms: Any) -> RoundingErrors:
        """Estimate the rounding errors of results for these atoms."""
        return estimate_rounding(self.subject, atoms, self.rng, self.size)

    # Both properties are safe to cache: calculator, atoms and `size` do not change, and `rng` is used only once.

    @cached_property
    def rounding(self) -> RoundingErrors:
        """Rounding errors of results for the structure."""
        return self.estimate_rounding(self.atoms)

    @cached_property
    def rounding_of_cluster(self) -> RoundingErrors:
        """Rounding errors of results for the atoms without a cell."""
        return self.estimate_rounding(self.cluster)

    # ---- rows --------------------------------------------------------------------------------------------------------

    def make_check(self, label: str, error: float, allowed: float, problem: str = "", **more: Any) -> Check:
        """Return a check of the structure, with `problem` as its note if the error exceeds `allowed`."""
        fields: dict[str, Any] = {"kind": self.kind, "note": "" if error <= allowed else problem, **more}
        row: dict[str, Any] = {"case": self.name, "field": label, "error": float(error), "tolerance": allowed}
        return Check(self.subject.name, self.name, "float64", **row, **fields)

    def compute_energy(self, atoms: Any) -> float:
        """Return the energy as a Python float."""
        return float(self.subject.get_quantity("energy", atoms))

    def compute_results(self, atoms: Any, calculator: Any = None) -> Results:
        """Compute all quantities that the calculator supports."""
        offered = self.subject.list_supported_quantities(atoms)
        return {what: self.subject.get_quantity(what, atoms, calculator) for what in offered}

    def require_quantity(self, what: str, atoms: Any) -> np.ndarray:
        """Return forces or stress; raise `NotOffered` if the calculator does not support them."""
        if what not in self.subject.list_supported_quantities(atoms):
            raise NotOffered(f"the calculator has no {what}")
        return np.asarray(self.subject.get_quantity(what, atoms))

    def compare_results(
        self, results: Results, expected: Results, rounding: RoundingErrors, label: str = "", **how: Any
    ) -> Iterator[Check]:
        """Compare results that must be equal up to rounding; errors of the energy are per atom."""
        number = rounding.number * int(how.get("copies", 1))
        for what, value in results.items():
            if what not in expected:
                continue
            error = float(abs(np.asarray(value) - expected[what]).max(initial=0.0))
            error, allowed = error / (number if what == "energy" else 1), rounding.compute_tolerance(what, **how)
            problem = f"{what} differ{'s' * (what != 'forces')} by {error:.2g} {UNITS[what]}"
            if what == "energy" and number > rounding.number and not abs(value - expected[what] / 2) > allowed:
                problem += "; it equals the energy of one copy: an energy per atom?"
            yield self.make_check(f"{what}{label and f', {label}'}", error, allowed, problem)

    def check_call(self) -> Iterator[Check]:
        """Request the energy, which all other checks need."""
        self.subject.get_quantity("energy", self.atoms)
        yield from ()

    # ---- derivatives -------------------------------------------------------------------------------------------------

    def claim_energy_gradient(
        self, phi: Callable[[np.ndarray], float], gradient: np.ndarray, rounding: float, x: np.ndarray
    ) -> GradientClaim:
        """Return a `GradientClaim` that the energy, as a function `phi` of `x`, has this gradient."""
        noise = self.rounding.noise["energy"] + LAST_BITS * self._compute_coordinate_bound() * self.rounding.pull
        return GradientClaim(phi, ArrayWithRounding(gradient, np.full(x.shape, rounding)), x, noise)

    def compare_gradient_with_differences(
        self,
        claim: GradientClaim,
        directions: dict[str, np.ndarray],
        unit: float,
        named: Callable[[tuple[int, ...]], str],
    ) -> Iterator[Check]:
        """Check a gradient along directions over a range of steps, then its elements.

        Some elements are compared individually, the others as one group; only the worst error is reported.
        """
        for label, v in directions.items():
            verdict = claim.compare_over_steps(v, abs(claim.phi(claim.x)))
            more: dict[str, Any] = {
                "order": verdict.order,
                "curve": verdict.curve,
                "inconclusive": verdict.inconclusive,
            }
            yield self.make_check(label, verdict.best, verdict.tolerance, note=verdict.note, **more)
        number, sizes = claim.x.size, np.full_like(claim.x, unit)
        chosen = self.rng.permutation(number)
        alone, rest = chosen[:ELEMENTS, None], chosen[ELEMENTS:]
        ratio, note, unsure = claim.compare_element_groups(sizes, [*alone, *[rest] * bool(rest.size)], named)
        label = f"{len(alone)} of {number} components" + ", others as one" * bool(rest.size)
        yield self.make_check(label, ratio, 1.0, note=note, inconclusive=unsure)

    def compare_first_components(
        self, what: str, given: np.ndarray, claim: GradientClaim, unit: float, scale: float
    ) -> ComponentComparison:
        """Compare the components in `given` with scaled differences of `claim` along the first coordinates."""
        x = claim.x
        slopes = [
            claim.estimate_slope_with_tolerance(unit * np.eye(1, x.size, k).reshape(x.shape)) for k in range(given.size)
        ]
        values, allowed = np.array(slopes).T / unit * [[scale], [abs(scale)]]
        return ComponentComparison(given.ravel(), values, MARGIN * self.rounding.noise[what], allowed)

    def check_forces(self) -> Iterator[Check]:
        """Compare forces with central differences of the energy."""
        x, forces = self.atoms.positions.copy(), self.require_quantity("forces", self.atoms)

        def compute_energy_at(positions: np.ndarray) -> float:
            return self.compute_energy(make_moved_atoms(self.atoms, positions))

        claim = self.claim_energy_gradient(compute_energy_at, -forces, self.rounding.noise["forces"], x)
        sizes = self.size * self.rng.uniform(0.5, 1.0, x.shape)
        directions = {"along the forces": np.copysign(sizes, forces)}
        directions["random direction"] = sizes * self.rng.choice([-1.0, 1.0], x.shape)
        *rows, last = self.compare_gradient_with_differences(
            claim, directions, self.size, lambda i: f"-force [{i[0]}, {'xyz'[i[1]]}]"
        )
        yield from rows
        if last.failed:
            compared = self.compare_first_components("forces", forces[: ELEMENTS // 3], claim, self.size, -1.0)
            last = append_guess_to_note(last, guess_cause_in_forces(compared, forces))
        yield last

    def check_stress(self) -> Iterator[Check]:
        """Compare the stress with the derivative of the energy with respect to strain, divided by the volume."""
        if self.atoms.cell.rank < 3:
            return
        stress, volume = self.require_quantity("stress", self.atoms), self.atoms.cell.volume

        def compute_strained_energy(strain: np.ndarray) -> float:
            return self.compute_energy(make_strained_atoms(self.atoms, strain))

        claim = self.claim_energy_gradient(
            compute_strained_energy, volume * stress, volume * self.rounding.noise["stress"], np.zeros(6)
        )
        direction = np.copysign(DISPLACED * self.rng.uniform(0.5, 1.0, 6), stress)
        *rows, last = self.compare_gradient_with_differences(
            claim, {"along the stress": direction}, DISPLACED, lambda i: f"volume * stress {NAMES[i[0]]}"
        )
        yield from rows
        if last.failed:
            compared = self.compare_first_components("stress", stress, claim, DISPLACED, 1 / volume)
            last = append_guess_to_note(last, guess_cause_in_stress(compared, len(self.atoms), volume))
        yield last

    def check_symmetry(self) -> Iterator[Check]:
        """Check that <u, J v> = <v, J u>: the Jacobian J of the forces is minus the Hessian, and so symmetric."""
        noise = self.size * self.rounding.noise["forces"] * math.sqrt(self.require_quantity("forces", self.atoms).size)
        x = self.atoms.positions

        def make_force_projection(on: np.ndarray, along: np.ndarray) -> Callable[[np.ndarray], float]:
            return lambda t: float(
                (on * self.subject.get_quantity("forces", make_moved_atoms(self.atoms, x + t[0] * along))).sum()
            )

        rows = []
        for _ in range(PAIRS):
            u, v = (self.size * self.rng.standard_normal(x.shape).clip(-2.0, 2.0) for _ in range(2))
            left = claim_derivative_at_zero(make_force_projection(u, v), 0.0, 0.0, noise).compare_at_best_step(
                np.ones(1)
            )
            right = claim_derivative_at_zero(
                make_force_projection(v, u), left.difference, 0.0, noise
            ).compare_at_best_step(np.ones(1))
            problem = f"u J v is {left.difference:.8g}, v J u {right.difference:.8g}: the forces are not conservative"
            rows.append(
                self.make_check(f"{PAIRS} pairs of directions", right.error, left.allowed + right.allowed, problem)
            )
        yield max(rows, key=compute_error_ratio)

    def check_net_force(self) -> Iterator[Check]:
        """Check that the forces sum to zero."""
        net = float(abs(self.require_quantity("forces", self.atoms).sum(axis=0)).max())
        yield self.make_check("", net, self.rounding.compute_net_force_tolerance(), f"sum of forces is {net:.2g} eV/Å")

    def check_net_torque(self) -> Iterator[Check]:
        """Check that the torques sum to zero if no direction is periodic."""
        if self.periodic:
            return
        forces, arms = (
            self.require_quantity("forces", self.atoms),
            self.atoms.positions - self.atoms.positions.mean(axis=0),
        )
        torque = float(abs(np.cross(arms, forces).sum(axis=0)).max())
        allowed = self.rounding.compute_net_force_tolerance(2 * float(abs(arms).max()) + 1)
        yield self.make_check("", torque, allowed, f"torque is {torque:.2g} eV")

    # ---- motions -----------------------------------------------------------------------------------------------------

    def _compare_after_transformation(self, matrix: np.ndarray) -> Iterator[Check]:
        """Compare results before and after an orthogonal transformation of the atoms and the cell."""
        before = self.compute_results(self.atoms)
        turned = self.atoms.copy()
        turned.set_cell(self.atoms.cell @ matrix.T, scale_atoms=False)
        turned.positions = self.atoms.positions @ matrix.T
        if "forces" in before:
            before["forces"] = before["forces"] @ matrix.T
        if "stress" in before:
            xx, yy, zz, yz, xz, xy = before["stress"]
            tensor = matrix @ np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]]) @ matrix.T
            before["stress"] = tensor.flat[[0, 4, 8, 5, 2, 1]]
        yield from self.compare_results(
            self.compute_results(turned), before, self.rounding, reach=self._compute_coordinate_bound()
        )

    def _compute_coordinate_bound(self) -> float:
        return float(abs(self.atoms.positions).max(initial=0.0)) + float(abs(np.array(self.atoms.cell)).max())

    def _draw_rotation_matrix(self) -> np.ndarray:
        from scipy.spatial.transform import Rotation  # SciPy is installed, because ASE requires it

        return np.asarray(Rotation.from_quat(self.rng.standard_normal(4)).as_matrix())

    def check_rotation(self) -> Iterator[Check]:
        """Check that forces and stress rotate with the atoms and their cell."""
        yield from self._compare_after_transformation(self._draw_rotation_matrix())

    def check_reflection(self) -> Iterator[Check]:
        """Check that forces and stress are reflected with the atoms and their cell."""
        yield from self._compare_after_transformation(-self._draw_rotation_matrix())

    def _compare_after_moving(self, positions: np.ndarray) -> Iterator[Check]:
        reach = self._compute_coordinate_bound() + float(abs(positions).max(initial=0.0))
        results = self.compute_results(make_moved_atoms(self.atoms, positions))
        yield from self.compare_results(results, self.compute_results(self.atoms), self.rounding, reach=reach)

    def check_translation(self) -> Iterator[Check]:
        """Check that a translation of all atoms does not change results."""
        yield from self._compare_after_moving(self.atoms.positions + self.rng.uniform(-5.0, 5.0, 3))

    def check_renumbering(self) -> Iterator[Check]:
        """Check that a permutation of the atoms permutes the forces."""
        for atoms, label in ((self.atoms, ""), (self.dense_structure, "in a crowd")):
            order, before = self.rng.permutation(len(atoms)), self.compute_results(atoms)
            if "forces" in before:
                before["forces"] = before["forces"][order]
            rounding = self.estimate_rounding(atoms) if label else self.rounding
            yield from self.compare_results(self.compute_results(atoms[order]), before, rounding, label)

    def check_wrapping(self) -> Iterator[Check]:
        """Check that results do not depend on which periodic image of each atom is given."""
        if not self.periodic:
            return
        cells = self.rng.integers(-2, 3, (len(self.atoms), 3)) * self.atoms.pbc
        cells[0] = self.atoms.pbc  # move at least one atom
        positions = self.atoms.positions + cells @ np.array(self.atoms.cell)
        yield from self._compare_after_moving(positions)

    def check_repetition(self) -> Iterator[Check]:
        """Check that a doubled cell has twice the energy, and the forces of one cell in each half."""
        before = self.compute_results(self.atoms)
        for axis in np.flatnonzero(self.atoms.pbc):
            results = self.compute_results(self.atoms.repeat([2 if k == axis else 1 for k in range(3)]))
            expected = {**before, "energy": 2 * before["energy"]}
            if "forces" in expected:
                expected["forces"] = np.tile(before["forces"], (2, 1))
            how = {"reach": 2 * self._compute_coordinate_bound(), "copies": 2}
            yield from self.compare_results(results, expected, self.rounding, f"along {'abc'[axis]}", **how)

    # ---- few atoms and distant atoms ---------------------------------------------------------------------------------

    @cached_property  # safe to cache: the atoms do not change, and `rng` is used only once
    def dense_structure(self) -> Any:
        """A structure whose atoms have many neighbours."""
        if self.periodic:
            dense = self.atoms.copy()
            dense.set_cell(DENSE * np.array(dense.cell), scale_atoms=True)
            return dense
        places = np.stack(np.meshgrid(*3 * [np.arange(SIDE)]), axis=-1).reshape(-1, 3)
        positions = GRID * self.nearest * (places + RATTLED * self.rng.standard_normal(places.shape))
        return self.copy_without_cell(np.resize(np.arange(len(self.atoms)), len(places)).tolist(), positions)

    def choose_atom_per_element(self) -> list[int]:
        """Return the index of the first atom of each tested element."""
        return [int(first) for first in np.unique(self.atoms.numbers, return_index=True)[1]][:KINDS_OF_ATOMS]

    def symbol(self, atom: int) -> str:
        """Return the symbol of an atom's element."""
        return str(self.atoms.symbols[atom])

    def choose_atoms_per_element_pair(self) -> list[tuple[int, int]]:
        """Return the indices of two atoms for each tested pair of elements."""
        elements = self.choose_atom_per_element()
        return [(a, b) for i, a in enumerate(elements) for b in elements[i:]][:KINDS_OF_ATOMS]

    def check_lone_atom(self) -> Iterator[Check]:
        """Check that an isolated atom has a finite energy and no force."""
        for atom in self.choose_atom_per_element():
            results = self.compute_results(self.copy_without_cell([atom], np.zeros((1, 3))))
            energy, symbol = results["energy"], self.symbol(atom)
            error = 0.0 if math.isfinite(energy) else math.inf
            yield self.make_check(f"energy of {symbol}", error, 0.0, f"{energy} is not a finite number")
            if "forces" in results:
                force, allowed = float(abs(results["forces"]).max()), self.rounding.compute_tolerance("forces")
                yield self.make_check(f"force on {symbol}", force, allowed, f"a force of {force:.2g} eV/Å acts on it")

    def check_two_atoms(self) -> Iterator[Check]:
        """Check that the forces on two atoms are along their axis and match the slope of the energy."""
        for pair in self.choose_atoms_per_element_pair():
            atoms = self.copy_without_cell(pair, [[0, 0, 0], make_oblique_vector(self.nearest)])
            forces, rounding = self.require_quantity("forces", atoms), self.estimate_rounding(atoms)
            axis = atoms.positions[1] / np.linalg.norm(atoms.positions[1])
            pulled = float(forces[1] @ axis)

            def compute_stretched_energy(t: np.ndarray, atoms: Any = atoms, axis: np.ndarray = axis) -> float:
                return self.compute_energy(make_moved_atoms(atoms, atoms.positions + np.array([0 * axis, t[0] * axis])))

            expected = {"forces": np.array([-pulled * axis, pulled * axis])}
            label, reach = "-".join(map(self.symbol, pair)), self.nearest
            yield from self.compare_results({"forces": forces}, expected, rounding, f"{label} axis", reach=reach)
            noise = rounding.noise["energy"] + 2.0**-53 * reach * rounding.pull
            unit = np.full(1, self.nearest / 2)
            part = claim_derivative_at_zero(
                compute_stretched_energy, -pulled, rounding.noise["forces"], noise
            ).compare_at_best_step(unit)
            problem = f"the force is {pulled:.8g}; differences of the energy give {-part.difference / unit[0]:.8g}"
            yield self.make_check(f"slope, {label}", part.error / unit[0], part.allowed / unit[0], problem)

    def _compare_with_distant_atoms(self, members: Sequence[int], positions: np.ndarray, label: str) -> Iterator[Check]:
        """Check that the structure and distant atoms have the same results together as separately."""
        far = float(np.ptp(self.cluster.positions, axis=0).max()) + FAR
        copies = self.copy_without_cell(members, positions + far)
        both = self.copy_without_cell(
            [*range(len(self.atoms)), *members], np.concatenate([self.cluster.positions, copies.positions])
        )
        parts = [self.compute_results(self.cluster), self.compute_results(copies)]
        expected = {"energy": sum(p["energy"] for p in parts)}
        if "forces" in parts[0]:
            expected["forces"] = np.concatenate([p["forces"] for p in parts])
        results = self.compute_results(both)
        how = {"reach": 2 * far, "copies": 2}
        yield from self.compare_results(results, expected, self.rounding_of_cluster, label, **how)

    def check_far_atoms(self) -> Iterator[Check]:
        """Check that a distant atom adds exactly its own energy."""
        for atom in self.choose_atom_per_element():
            yield from self._compare_with_distant_atoms([atom], np.zeros((1, 3)), f"{self.symbol(atom)} far away")

    def check_company(self) -> Iterator[Check]:
        """Check that two distant copies of the structure each have the results of a single one (batch invariance)."""
        yield from self._compare_with_distant_atoms(range(len(self.atoms)), self.cluster.positions, "two copies")

    # ---- calls -------------------------------------------------------------------------------------------------------

    def _make_displaced_structure(self) -> Any:
        """Return the structure with displaced atoms, for which cached results are invalid."""
        rng = np.random.default_rng(1)
        return make_moved_atoms(
            self.atoms, self.atoms.positions + 0.1 * self.size * rng.standard_normal((len(self.atoms), 3))
        )

    def _compare_bits(self, label: str, results: Results, expected: Results, what: str) -> Check:
        differ = [q for q, value in results.items() if np.asarray(value).tobytes() != np.asarray(expected[q]).tobytes()]
        return self.make_check(label, len(differ), 0.0, f"{' and '.join(differ)} differ {what}")

    def check_repeat(self) -> Iterator[Check]:
        """Check that new calculators, and requests in any order, give bitwise equal results."""
        names = self.subject.list_supported_quantities(self.atoms)
        calls = []
        for order in (names, names, names[::-1]):
            calculator = self.subject.make_calculator()
            calls.append({q: self.subject.get_quantity(q, self.atoms, calculator) for q in order})
        yield self._compare_bits("two fresh calculators", calls[1], calls[0], "from one to the next")
        yield self._compare_bits("requested in another order", calls[2], calls[0], "with the order of requests")

    def check_kept(self) -> Iterator[Check]:
        """Check that later calls do not modify previously returned arrays."""
        calculator, offered = self.subject.make_calculator(), self.subject.list_supported_quantities(self.atoms)
        kept = {q: getattr(calculator, f"get_{q}")(self.atoms.copy()) for q in offered if q != "energy"}
        before = {what: np.array(value) for what, value in kept.items()}
        self.compute_results(self._make_displaced_structure(), calculator)
        yield self._compare_bits("arrays", kept, before, "after another call, which overwrites them")

    def _copy_with_fixed_atom(self) -> Any:
        """Return the atoms with one atom fixed; a calculator must leave constraints to `Atoms.get_forces`."""
        from ase.constraints import FixAtoms

        atoms = self.atoms.copy()
        atoms.set_constraint(FixAtoms([0]))
        return atoms

    def check_unchanged(self) -> Iterator[Check]:
        """Check that the calculator does not modify the atoms."""
        for label, atoms in (("atoms", self.atoms.copy()), ("atoms with a constraint", self._copy_with_fixed_atom())):
            before, calculator = digest_atoms(atoms), self.subject.make_calculator()
            for what in self.subject.list_supported_quantities(self.atoms):
                compute_quantity(calculator, what, atoms)
            yield self.make_check(label, digest_atoms(atoms) != before, 0.0, "they were modified by a call")

    def check_constraints(self) -> Iterator[Check]:
        """Check that the calculator ignores constraints of the atoms, which ASE applies itself."""
        expected, calculator, atoms = (
            self.compute_results(self.atoms),
            self.subject.make_calculator(),
            self._copy_with_fixed_atom(),
        )
        results = {what: compute_quantity(calculator, what, atoms) for what in expected}
        yield from self.compare_results(results, expected, self.rounding, "an atom fixed")

    def check_history(self) -> Iterator[Check]:
        """Check that results do not depend on previously computed structures."""
        names = self.subject.list_supported_quantities(self.atoms)
        strain = 0.1 * np.array([1.0, -1.0, 1.0, 0.5, -0.5, 0.5])
        between = (
            self._make_displaced_structure(),
            self.atoms[::-1],
            make_strained_atoms(self.atoms, strain),
            self._make_displaced_structure(),
        )
        # The last structures differ from the original only in the cell, or only in the elements.
        cell, elements = self.atoms.copy(), self.atoms.copy()
        cell.set_cell(1.1 * np.array(cell.cell), scale_atoms=False)
        elements.numbers = np.roll(elements.numbers, 1)
        first, second = self.subject.make_calculator(), self.subject.make_calculator()
        expected = {what: self.subject.get_quantity(what, self.atoms, first) for what in names}
        for label, calculator, last in (
            ("again, after others", first, [elements]),
            ("after others", second, [cell, elements, cell]),
        ):
            for atoms in (*between, *last):
                for what in names:
                    self.subject.get_quantity(what, atoms, calculator)
            yield from self.compare_results(
                self.compute_results(self.atoms, calculator), expected, self.rounding, label
            )

        atoms, calculator = self.atoms.copy(), self.subject.make_calculator()
        for _ in range(2):
            results = {what: compute_quantity(calculator, what, atoms) for what in names}
            atoms.positions[...] = self._make_displaced_structure().positions
        rounding, expected = (
            self.rounding,
            self.compute_results(self._make_displaced_structure(), self.subject.make_calculator()),
        )
        yield from self.compare_results(results, expected, rounding, "moved in place")

    def _compare_copied_calculator(self, make: Callable[[Any], Any]) -> Iterator[Check]:
        calculator, other = self.subject.make_calculator(), self._make_displaced_structure()
        self.compute_results(self.atoms, calculator)
        try:
            twin = make(calculator)
        except Exception as error:  # components of the calculator may raise any exception
            raise NotOffered(f"the calculator has no {self.kind}: {type(error).__name__}: {error}") from error
        results, expected = self.compute_results(other, twin), self.compute_results(other, calculator)
        yield self._compare_bits("another structure", results, expected, "from those of the calculator")

    def check_copy(self) -> Iterator[Check]:
        """Check that a deep copy gives bitwise equal results."""
        yield from self._compare_copied_calculator(copy.deepcopy)

    def check_pickle(self) -> Iterator[Check]:
        """Check that a pickled calculator gives bitwise equal results."""
        yield from self._compare_copied_calculator(lambda calculator: pickle.loads(pickle.dumps(calculator)))


def append_guess_to_note(check: Check, guess: str) -> Check:
    """Append a guess at the cause to the note of a check."""
    return replace(check, note=f"{check.note}; {guess}") if guess else check


def claim_derivative_at_zero(
    phi: Callable[[np.ndarray], float], value: float, rounding: float, noise: float
) -> GradientClaim:
    """Return a `GradientClaim` that a function of one variable has the derivative `value` at 0."""
    return GradientClaim(phi, ArrayWithRounding(np.array([value]), np.array([rounding])), np.zeros(1), noise)


def make_oblique_vector(length: float) -> np.ndarray:
    """Return a vector of this length that is not parallel to any axis."""
    return length * np.array([0.48, 0.64, 0.6])


def find_nearest_distance(atoms: Any) -> float:
    """Return the smallest distance between two atoms, or 2 Å if no two are within 12 Å."""
    from ase.neighborlist import neighbor_list

    for radius in (3.0, 6.0, 12.0):
        distances = neighbor_list("d", atoms, radius)
        if len(distances):
            return float(distances.min())
    return 2.0
