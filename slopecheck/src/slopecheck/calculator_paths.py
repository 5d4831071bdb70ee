"""Checks of `check_calculator` along paths: scans across the cutoff, scans through collinear atoms, and dynamics."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from slopecheck.calculator_checks import FAR, StructureChecks, make_oblique_vector
from slopecheck.calculator_results import RoundingErrors, estimate_rounding, make_moved_atoms, make_strained_atoms
from slopecheck.record import Check
from slopecheck.scans import LAST_BITS, Jump, find_jumps, locate_jump
from slopecheck.tolerances import HALVED

PAIR_POINTS, SCALE_POINTS = 100, 40
PAIR_PLACES, SCALE_PLACES = 4, 2  # largest number of points around which a scan is refined
SCALES = 0.95, 1.3
SHEARS, SHEAR_POINTS = 0.12, 24  # largest shear strain, number of points; unlike scaling, shear reorders distances
SHEARED = np.array([0.3, -0.2, -0.1, 0.9, -0.7, 1.0])
EVERYWHERE = np.array([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])  # isotropic strain
RANGES = (4.0, 6.0, 8.0, 10.0, 12.0, 15.0, 20.0)  # candidate ends of a scan, in Å (default: the last)
CROSSINGS = 2  # largest number of interatomic distances that are scaled to the cutoff
BESIDE = 1e-3  # half-width of the window around the cutoff, relative to the distance or scale
TOLD = 2  # number of jumps of a scan that are reported individually
TURN = 0.25  # scanned angle on each side of 0 or 180 degrees, in radians
# Displacements of two atoms in Å. For any skin from 0.1 to 3.8 Å, one of them lies between skin / 1.5 and the skin.
MOVES = tuple(0.1 * 1.5**k for k in range(9))
CENTRES = 2  # largest number of elements that are tested as the central one of three atoms
# Time step of velocity Verlet in units of 1/omega for the fastest vibration, and number of steps.
STEP, NUMBER = 0.15, 20
SPEED = 0.05  # displacement per time 1/omega, relative to `size`, just large enough to change the forces
HALVINGS = 4  # largest number of times that the time step is halved to reach the asymptotic range


class PathChecks(StructureChecks):
    """All checks of a calculator for one structure, including scans and dynamics."""

    reached = 0.0  # the largest distance at which two atoms interact
    reaching: tuple[int, int]  # indices of two atoms that interact at this distance; `cutoff` sets both attributes

    # ---- continuity --------------------------------------------------------------------------------------------------

    def _compute_energy_and_forces(self, atoms: Any) -> np.ndarray:
        results = self.compute_results(atoms)
        return np.concatenate([[results["energy"]], np.ravel(results.get("forces", ()))])

    def _estimate_noise(self, rounding: RoundingErrors, atoms: Any) -> np.ndarray:
        """Return the standard deviation of each channel due to the rounding of results and of computed positions."""
        moves = LAST_BITS * float(abs(atoms.positions).max(initial=0.0))
        of_energy = rounding.noise["energy"] + moves * rounding.pull
        of_forces = rounding.noise.get("forces", 0.0) + moves * rounding.curvature
        return np.array([of_energy, *[of_forces] * (3 * len(atoms) if "forces" in rounding.noise else 0)])

    def _make_jump_check(self, label: str, jumps: list[Jump], where: Callable[[float], str] | str) -> Check:
        """Return a check of a scan, with a note that describes the first jumps."""
        texts, worst = [], 0.0
        for jump in jumps:
            of_energy, of_forces = abs(jump.change[0]), abs(jump.change[1:]).max(initial=0.0)
            if not np.isfinite(jump.change).all():
                worst, text = math.inf, "results are not finite"
            elif jump.jumps[0]:
                worst, text = max(worst, of_energy), f"energy jumps by {of_energy:.2g} eV"
                text += f", forces by {of_forces:.2g} eV/Å" * bool(jump.jumps[1:].any())
            else:
                worst, text = max(worst, of_forces), f"a kink: forces jump by {of_forces:.2g} eV/Å, energy does not"
            texts.append(f"{text}, {where if isinstance(where, str) else where(jump.at)}")
        if len(texts) > TOLD:
            texts[TOLD:] = [f"and {len(texts) - TOLD} more"]
        return self.make_check(label, worst, 0.0, note="; ".join(texts))

    def check_cutoff(self) -> Iterator[Check]:
        """Check that energy and forces are continuous as an atom crosses the cutoff."""
        for pair in self.choose_atoms_per_element_pair():
            atoms = self.copy_without_cell(pair, [[0, 0, 0], make_oblique_vector(self.nearest)])
            axis = make_oblique_vector(1.0)
            rounding = self.estimate_rounding(atoms)

            def compute_results_at_distance(distance: float, atoms: Any = atoms, axis: np.ndarray = axis) -> np.ndarray:
                return self._compute_energy_and_forces(
                    make_moved_atoms(atoms, np.array([np.zeros(3), distance * axis]))
                )

            start, nothing = 0.8 * self.nearest, compute_results_at_distance(FAR)
            ends = [
                r
                for r in RANGES
                if r > start and all((compute_results_at_distance(q) == nothing).all() for q in RANGES if q >= r)
            ]
            end = min(ends, default=RANGES[-1])
            noise = self._estimate_noise(rounding, atoms)
            jumps = find_jumps(compute_results_at_distance, np.linspace(start, end, PAIR_POINTS), noise, PAIR_PLACES)
            if ends:
                reached = _find_interaction_range(compute_results_at_distance, start, end)
                if reached > self.reached:
                    self.reached, self.reaching = reached, pair
                jumps = _add_jump_near(jumps, compute_results_at_distance, reached, noise)
            label = f"{'-'.join(map(self.symbol, pair))} from {start:.2f} to {end:.0f} Å"
            yield self._make_jump_check(label, jumps, lambda at: f"at {at:.6f} Å")

    def check_scale(self) -> Iterator[Check]:
        """Check continuity under scaling and shear, with finer scans where a pair of atoms crosses the cutoff."""
        if len(self.atoms) < 2:
            return
        noise = self._estimate_noise(self.rounding, self.atoms)

        def compute_results_at_scale(factor: float) -> np.ndarray:
            return self._compute_energy_and_forces(make_strained_atoms(self.atoms, (factor - 1) * EVERYWHERE))

        jumps = find_jumps(compute_results_at_scale, np.linspace(*SCALES, SCALE_POINTS), noise, SCALE_PLACES)
        for scale in self._find_cutoff_crossing_scales():
            jumps = _add_jump_near(jumps, compute_results_at_scale, float(scale), noise)
        yield self._make_jump_check(f"all distances times {SCALES[0]} to {SCALES[1]}", jumps, self._describe_scale)
        for atoms, label in ((self.atoms, "sheared"), (self.dense_structure, "a crowd, sheared")):
            rounding = self.rounding if atoms is self.atoms else self.estimate_rounding(atoms)

            def compute_results_at_shear(strain: float, atoms: Any = atoms) -> np.ndarray:
                return self._compute_energy_and_forces(make_strained_atoms(atoms, strain * SHEARED))

            points = np.linspace(-SHEARS, SHEARS, SHEAR_POINTS)
            jumps = find_jumps(compute_results_at_shear, points, self._estimate_noise(rounding, atoms), SCALE_PLACES)
            yield self._make_jump_check(label, jumps, lambda at: f"at a shear of {at:.6f}")

    def _find_cutoff_crossing_scales(self) -> np.ndarray:
        """Return scales at which a pair of atoms crosses the cutoff."""
        from ase.neighborlist import neighbor_list

        if not self.reached:
            return np.zeros(0)
        distances = np.unique(neighbor_list("d", self.atoms, self.reached / SCALES[0]).round(9))
        inside = distances[distances * SCALES[1] > self.reached]
        places = np.linspace(0, len(inside) - 1, min(CROSSINGS, len(inside))).astype(int)
        return self.reached / inside[places]

    def _describe_scale(self, factor: float) -> str:
        """Describe a scale, and the pair of atoms that crosses the cutoff at this scale."""
        from ase.neighborlist import neighbor_list

        text = f"at scale {factor:.6f}"
        if self.reached:
            distances = neighbor_list(
                "d", make_strained_atoms(self.atoms, (factor - 1) * EVERYWHERE), 1.01 * self.reached
            )
            near = distances[np.argmin(abs(distances - self.reached))] if len(distances) else math.inf
            text += f" (two atoms {near:.5f} Å apart)" * bool(abs(near - self.reached) < 1e-5)
        return text

    def check_history(self) -> Iterator[Check]:
        """Check that results do not depend on previously computed structures or on a cached neighbour list.

        A neighbour list that extends beyond the cutoff by a skin must be rebuilt once an atom has moved by half of the
        skin, because two such atoms may have approached each other by the whole skin.
        """
        yield from super().check_history()
        if not self.reached:
            return
        calculator, errors = self.subject.make_calculator(), {}

        def compute_last_energy(*distances: float) -> float:
            """Compute the energies of two atoms at a sequence of distances, and return the last one."""
            pairs = [
                self.copy_without_cell(self.reaching, np.outer([-0.5, 0.5], make_oblique_vector(r))) for r in distances
            ]
            return [float(self.subject.get_quantity("energy", pair, calculator)) for pair in pairs][-1]

        for move in MOVES:
            far, near = self.reached + 1.5 * move, max(self.reached - 0.5 * move, 0.5 * self.reached)
            errors[move] = abs(compute_last_energy(FAR, far, near) - compute_last_energy(FAR, near))
        move = max(errors, key=lambda m: math.inf if math.isnan(errors[m]) else errors[m])
        problem = f"energy differs by {errors[move]:.2g} eV where each of two atoms moves by {move:.2g} Å into reach"
        yield self.make_check(
            "neighbours kept", errors[move], self.rounding_of_cluster.compute_tolerance("energy"), problem
        )

    def check_line(self) -> Iterator[Check]:
        """Check that energy and forces are continuous as three atoms become collinear."""
        elements = self.choose_atom_per_element()
        short, long = 0.75 * self.nearest, 1.25 * self.nearest
        for k, centre in enumerate(elements[:CENTRES]):
            ends = [elements[k - 1], elements[(k + 1) % len(elements)]]
            for degrees, side in ((180, -1.0), (0, 1.0)):

                def compute_results_at_angle(
                    angle: float, side: float = side, ends: list[int] = ends, centre: int = centre
                ) -> np.ndarray:
                    end = long * side * np.array([math.cos(angle), math.sin(angle), 0.0])
                    return self._compute_energy_and_forces(
                        self.copy_without_cell([centre, *ends], [[0, 0, 0], [short, 0, 0], end])
                    )

                atoms = self.copy_without_cell(
                    [centre, *ends], [[0, 0, 0], [short, 0, 0], [long * side, 0.01 * long, 0]]
                )
                rounding = estimate_rounding(self.subject, atoms, self.rng, 0.1 * self.size)
                jump = locate_jump(compute_results_at_angle, -TURN, TURN, self._estimate_noise(rounding, atoms), 0.0)
                label = f"{degrees}°, {self.symbol(ends[0])}-{self.symbol(centre)}-{self.symbol(ends[1])}"
                yield self._make_jump_check(label, [jump] if jump else [], f"at {degrees}°")

    # ---- dynamics ----------------------------------------------------------------------------------------------------

    def _compute_relative_masses(self) -> np.ndarray:
        masses = self.atoms.get_masses()[:, None]
        return masses / masses.mean()

    def _measure_energy_drift(self, velocities: np.ndarray, step: float, halvings: int) -> float:
        """Return the rms change of the total energy in a velocity Verlet run, at multiples of the original step."""
        every, step = 2**halvings, step / 2**halvings
        x, v, masses, total = self.atoms.positions.copy(), velocities.copy(), self._compute_relative_masses(), []
        for _ in range(NUMBER * every + 1):
            atoms = make_moved_atoms(self.atoms, x)
            forces = self.subject.get_quantity("forces", atoms)
            total.append(self.subject.get_quantity("energy", atoms) + 0.5 * float((masses * v**2).sum()))
            half = v + step / 2 * forces / masses
            x = x + step * half
            v = half + step / 2 * self.subject.get_quantity("forces", make_moved_atoms(self.atoms, x)) / masses
        return float(np.sqrt(np.mean((np.array(total) - total[0])[::every] ** 2)))

    def check_drift(self) -> Iterator[Check]:
        """Check that the energy error falls with the square of the time step."""
        forces = self.require_quantity("forces", self.atoms)
        # Estimate the fastest vibration's angular frequency from the measured force constant and the lightest mass.
        omega = math.sqrt(self.rounding.curvature / self._compute_relative_masses().min())
        if not omega > 0:
            return
        velocities = SPEED * self.size * omega * self.rng.standard_normal(self.atoms.positions.shape)
        largest = float(abs(forces / self._compute_relative_masses()).max())
        # Limit the distance that atoms move, because the frequency of the fastest vibration depends on the positions.
        step = min(STEP / omega, math.sqrt(self.size / largest) / NUMBER if largest > 0 else math.inf)
        rounding = self.rounding.compute_tolerance("energy") * len(self.atoms)
        large = self._measure_energy_drift(velocities, step, 0)
        label, fall = f"rms {large / len(self.atoms):.1e} eV/atom", math.nan
        for halving in range(1, HALVINGS + 1):
            if large <= rounding:
                yield self.make_check(label, 0.0, HALVED, note="within rounding")
                return
            small = self._measure_energy_drift(velocities, step, halving)
            fall = math.log2(large / small) if small > 0 else math.inf
            if abs(fall - 2) <= HALVED:
                break
            large = small
        problem = f"half the time step divides the error by {2**fall:.2f}, not 4"
        yield self.make_check(label, abs(fall - 2), HALVED, problem, order=fall)


def _add_jump_near(jumps: list[Jump], f: Callable[[float], np.ndarray], at: float, noise: np.ndarray) -> list[Jump]:
    """Return the jumps of a scan, and any jump near `at` that the scan missed."""
    added = locate_jump(f, at * (1 - BESIDE), at * (1 + BESIDE), noise)
    if added is None or any(abs(added.at - jump.at) < 1e-4 * BESIDE * at + 1e-6 for jump in jumps):
        return jumps
    return sorted([*jumps, added], key=lambda jump: jump.at)


def _find_interaction_range(apart: Callable[[float], np.ndarray], low: float, high: float) -> float:
    """Find by bisection the distance beyond which results equal the results at `high`."""
    nothing = apart(high)
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if (apart(middle) != nothing).any() else (low, middle)
    return low
