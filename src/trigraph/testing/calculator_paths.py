"""The checks of `check_calculator` along paths: scans through the cutoff and straight angles, and a run of dynamics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from trigraph.testing.calculator_checks import FAR, Checks, alone, oblique, symbol
from trigraph.testing.calculator_results import Rounding, moved, rounding_of
from trigraph.testing.scans import LAST_BITS, Jump, refine, scan
from trigraph.verification.record import Check

PAIR_POINTS, SCALE_POINTS = 100, 40
PAIR_PLACES, SCALE_PLACES = 4, 2  # of a scan that are refined
SCALES = 0.95, 1.3
RANGES = (4.0, 6.0, 8.0, 10.0, 12.0, 15.0, 20.0)  # Å; the largest is the end of the scan where nothing vanishes
CROSSINGS = 2  # pairs of a structure that are brought to the cutoff by its scale
BESIDE = 1e-3  # of the distance or the scale, to each side of where atoms get out of reach
TOLD = 2  # jumps of a scan that are told one by one
TURN = 0.25  # radians to each side of a straight angle
CENTRES = 2  # elements that are in the middle of three atoms
# Verlet's time step, in units of the fastest vibration's 1/omega, and steps of the run.
STEP, NUMBER = 0.15, 20
SPEED = 0.05  # of the length of a displacement, in 1/omega: atoms go so far that the forces change, and no farther
HALVINGS = 4  # of the time step, as long as its error is not yet that of small steps
HALVED = 0.25  # what the logarithm to base 2 of the ratio of the errors of two time steps may differ from 2


class Paths(Checks):
    """All checks of a calculator at one structure; each method of a kind yields them."""

    reached = 0.0  # the largest distance at which two atoms change the results of each other

    # ---- continuity --------------------------------------------------------------------------------------------------

    def _channels(self, atoms: Any) -> np.ndarray:
        found = self.results(atoms)
        return np.concatenate([[found["energy"]], np.ravel(found.get("forces", ()))])

    def _noise(self, rounding: Rounding, atoms: Any) -> np.ndarray:
        """Return the deviation of each channel by rounding, of positions that were computed, too."""
        moves = LAST_BITS * float(abs(atoms.positions).max(initial=0.0))
        of_energy = rounding.noise["energy"] + moves * rounding.pull
        of_forces = rounding.noise.get("forces", 0.0) + moves * rounding.curvature
        return np.array([of_energy, *[of_forces] * (3 * len(atoms) if "forces" in rounding.noise else 0)])

    def _told(self, kind: str, label: str, jumps: list[Jump], where: Callable[[float], str] | str) -> Check:
        """Return one row for a scan: its first jumps in words, or none."""
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
        return self.check(kind, label, worst, 0.0, "; ".join(texts))

    def cutoff(self) -> Iterator[Check]:
        """Energy and forces go on without a jump as an atom comes into reach."""
        for pair in self.pairs():
            atoms = alone(pair, [[0, 0, 0], oblique(self.nearest)])
            axis = oblique(1.0)
            rounding = rounding_of(self.subject, atoms, self.rng, self.size)

            def apart(distance: float, atoms: Any = atoms, axis: np.ndarray = axis) -> np.ndarray:
                return self._channels(moved(atoms, np.array([np.zeros(3), distance * axis])))

            start, nothing = 0.8 * self.nearest, apart(FAR)
            ends = [r for r in RANGES if r > start and all((apart(q) == nothing).all() for q in RANGES if q >= r)]
            end = min(ends, default=RANGES[-1])
            noise = self._noise(rounding, atoms)
            jumps = scan(apart, np.linspace(start, end, PAIR_POINTS), noise, PAIR_PLACES)
            if ends:
                reached = _reached(apart, start, end)
                self.reached = max(self.reached, reached)
                jumps = _with(jumps, apart, reached, noise)
            label = f"{'-'.join(map(symbol, pair))} from {start:.2f} to {end:.0f} Å"
            yield self._told("cutoff", label, jumps, lambda at: f"at {at:.6f} Å")

    def scale(self) -> Iterator[Check]:
        """Scan the structure as it grows, then more closely where two of its atoms get out of reach."""
        if len(self.atoms) < 2:
            return
        noise = self._noise(self.rounding, self.atoms)

        def scaled(factor: float) -> np.ndarray:
            return self._channels(_scaled(self.atoms, factor))

        jumps = scan(scaled, np.linspace(*SCALES, SCALE_POINTS), noise, SCALE_PLACES)
        for scale in self._crossings():
            jumps = _with(jumps, scaled, float(scale), noise)
        yield self._told("scale", f"all distances times {SCALES[0]} to {SCALES[1]}", jumps, self._where)

    def _crossings(self) -> np.ndarray:
        """Return scales at which a pair of atoms gets out of reach."""
        from ase.neighborlist import neighbor_list

        if not self.reached:
            return np.zeros(0)
        distances = np.unique(neighbor_list("d", self.atoms, self.reached / SCALES[0]).round(9))
        inside = distances[distances * SCALES[1] > self.reached]
        places = np.linspace(0, len(inside) - 1, min(CROSSINGS, len(inside))).astype(int)
        found: np.ndarray = self.reached / inside[places]
        return found

    def _where(self, factor: float) -> str:
        """Return where on a scan of scales, with the pair that gets out of reach there."""
        from ase.neighborlist import neighbor_list

        text = f"at scale {factor:.6f}"
        if self.reached:
            distances = neighbor_list("d", _scaled(self.atoms, factor), 1.01 * self.reached)
            near = distances[np.argmin(abs(distances - self.reached))] if len(distances) else math.inf
            text += f" (two atoms {near:.5f} Å apart)" * bool(abs(near - self.reached) < 1e-5)
        return text

    def line(self) -> Iterator[Check]:
        """Energy and forces go on without a jump as three atoms pass a line."""
        elements = self.elements_of()
        short, long = 0.75 * self.nearest, 1.25 * self.nearest
        for k, centre in enumerate(elements[:CENTRES]):
            ends = [elements[k - 1], elements[(k + 1) % len(elements)]]
            for degrees, side in ((180, -1.0), (0, 1.0)):

                def at(angle: float, side: float = side, ends: list[int] = ends, centre: int = centre) -> np.ndarray:
                    there = long * side * np.array([math.cos(angle), math.sin(angle), 0.0])
                    return self._channels(alone([centre, *ends], [[0, 0, 0], [short, 0, 0], there]))

                atoms = alone([centre, *ends], [[0, 0, 0], [short, 0, 0], [long * side, 0.01 * long, 0]])
                rounding = rounding_of(self.subject, atoms, self.rng, 0.1 * self.size)
                found = refine(at, -TURN, TURN, self._noise(rounding, atoms), 0.0)
                label = f"{degrees}°, {symbol(ends[0])}-{symbol(centre)}-{symbol(ends[1])}"
                yield self._told("line", label, [found] if found else [], f"at {degrees}°")

    # ---- dynamics ----------------------------------------------------------------------------------------------------

    def _fastest(self) -> float:
        """Return the largest frequency of vibration, about, by a power iteration with differences of forces."""
        x, root = self.atoms.positions, np.sqrt(self._masses())
        v, square = self.rng.standard_normal(x.shape), 0.0
        for _ in range(8):
            v /= np.linalg.norm(v)
            step = 2.0**-10 * self.nearest * v / (abs(v / root).max() * root)
            change = self.subject.ask("forces", moved(self.atoms, x + step))
            change = change - self.subject.ask("forces", moved(self.atoms, x - step))
            image = change / root / (2 * np.linalg.norm(step * root))
            square, v = float(np.linalg.norm(image)), image
            if not square > 0:
                return 0.0
        return math.sqrt(square)

    def _masses(self) -> np.ndarray:
        masses = self.atoms.get_masses()[:, None]
        found: np.ndarray = masses / masses.mean()
        return found

    def _energies(self, velocities: np.ndarray, step: float, number: int) -> np.ndarray:
        """Return the total energy at each step of a velocity-Verlet run."""
        x, v, masses, total = self.atoms.positions.copy(), velocities.copy(), self._masses(), []
        for _ in range(number + 1):
            atoms = moved(self.atoms, x)
            forces = self.subject.ask("forces", atoms)
            total.append(self.subject.ask("energy", atoms) + 0.5 * float((masses * v**2).sum()))
            half = v + step / 2 * forces / masses
            x = x + step * half
            v = half + step / 2 * self.subject.ask("forces", moved(self.atoms, x)) / masses
        found: np.ndarray = np.array(total) - total[0]
        return found

    def drift(self) -> Iterator[Check]:
        """Let the error of the energy fall with the square of the time step."""
        self.needs("forces", self.atoms)
        omega = self._fastest()
        if not omega > 0:
            return
        velocities = SPEED * self.size * omega * self.rng.standard_normal(self.atoms.positions.shape)
        largest = float(abs(self.subject.ask("forces", self.atoms) / self._masses()).max())
        # Atoms that are pushed far get to where the fastest vibration is another one.
        step = min(STEP / omega, math.sqrt(self.size / largest) / NUMBER if largest > 0 else math.inf)
        rounding = self.rounding.allowed("energy") * len(self.atoms)
        number, large = NUMBER, self._error(velocities, step, NUMBER, 1)
        label, fall = f"rms {large / len(self.atoms):.1e} eV/atom", math.nan
        for halving in range(1, HALVINGS + 1):
            if large <= rounding:
                yield self.check("drift", label, 0.0, HALVED, "within rounding")
                return
            number *= 2
            small = self._error(velocities, step / 2**halving, number, 2**halving)
            fall = math.log2(large / small) if small > 0 else math.inf
            if abs(fall - 2) <= HALVED:
                break
            large = small
        note = "" if abs(fall - 2) <= HALVED else f"half the time step divides the error by {2**fall:.2f}, not 4"
        yield self.check("drift", label, abs(fall - 2), HALVED, note, order=fall)

    def _error(self, velocities: np.ndarray, step: float, number: int, every: int) -> float:
        """Return the root of the mean square of what the total energy changes by, at some of the steps of a run."""
        return float(np.sqrt(np.mean(self._energies(velocities, step, number)[::every] ** 2)))


def _with(jumps: list[Jump], f: Callable[[float], np.ndarray], at: float, noise: np.ndarray) -> list[Jump]:
    """Return the jumps of a scan with one near a place, if there is one that the scan has not found."""
    found = refine(f, at * (1 - BESIDE), at * (1 + BESIDE), noise)
    if found is None or any(abs(found.at - jump.at) < 1e-4 * BESIDE * at + 1e-6 for jump in jumps):
        return jumps
    return sorted([*jumps, found], key=lambda jump: jump.at)


def _scaled(atoms: Any, factor: float) -> Any:
    """Return atoms with all distances multiplied."""
    found = atoms.copy()
    found.set_cell(factor * np.array(atoms.cell), scale_atoms=False)
    found.positions = factor * atoms.positions
    return found


def _reached(apart: Callable[[float], np.ndarray], low: float, high: float) -> float:
    """Return the distance from which on results are those at the distance `high`, by halving."""
    nothing = apart(high)
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if (apart(middle) != nothing).any() else (low, middle)
    return low
