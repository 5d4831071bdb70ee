"""What a calculator of ASE gives for atoms, and what rounding does to it: the tolerances of its checks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trigraph.testing.curves import MARGIN
from trigraph.testing.scans import LAST_BITS

# Quantities that are checked, with what they are measured in.
UNITS = {"energy": "eV/atom", "forces": "eV/Å", "stress": "eV/Å^3"}
# Spacings of nearby values by whose fourth differences rounding is estimated: one for calculators in float64, one that
# still moves atoms whose positions are rounded to float32. Curvature contributes the fourth power of either.
SPACINGS = (2.0**-44, 2.0**-20)
DIRECTIONS = 2
REMEMBERED = 4096  # results


class CalculatorFailed(Exception):
    """A calculator did not give what it must; the message says what."""


@dataclass
class Subject:
    """Calculators of one factory: one that is used all the time, and fresh ones.

    Attributes
    ----------
    factory : callable
    name : str
    """

    factory: Callable[[], Any]
    name: str
    _used: Any = None
    _known: dict[bytes, dict[str, Any]] = field(default_factory=dict)

    @property
    def used(self) -> Any:
        """The calculator that makes all calls but those of fresh ones."""
        if self._used is None:
            self._used = self.fresh()
        return self._used

    def fresh(self) -> Any:
        """Return a new calculator."""
        found = self.factory()
        if not hasattr(found, "get_potential_energy"):
            raise CalculatorFailed(f"the factory returned a {type(found).__name__}; expected a calculator of ASE")
        return found

    def ask(self, what: str, atoms: Any, calculator: Any = None) -> Any:
        """Return a quantity of `UNITS` for atoms.

        Raises
        ------
        NotImplementedError
            If the calculator has no such quantity (ASE's PropertyNotImplementedError).
        CalculatorFailed
            If it is of the wrong shape.
        """
        if calculator is None:
            key = b"|".join(np.asarray(a).tobytes() for a in (atoms.numbers, atoms.positions, atoms.cell, atoms.pbc))
            if len(self._known) > REMEMBERED:
                self._known.clear()
            known = self._known.setdefault(key, {})
            if what not in known:
                known[what] = _asked(self.used, what, atoms.copy())
            return known[what]
        return _asked(calculator, what, atoms.copy())

    def offers(self, what: str, atoms: Any) -> bool:
        """Return whether there is such a quantity."""
        try:
            self.ask(what, atoms)
        except NotImplementedError:
            return False
        return True

    def offered(self, atoms: Any) -> list[str]:
        """Return the quantities that there are."""
        return [what for what in UNITS if what == "energy" or self.offers(what, atoms)]


def _asked(calculator: Any, what: str, atoms: Any) -> Any:
    if what == "energy":
        try:  # forces are the gradient of this one, where a calculator smears the occupation of levels
            return float(calculator.get_potential_energy(atoms, force_consistent=True))
        except (NotImplementedError, TypeError):
            return float(calculator.get_potential_energy(atoms))
    found = np.array(getattr(calculator, f"get_{what}")(atoms), np.float64)
    expected = (len(atoms), 3) if what == "forces" else (6,)
    if found.shape != expected:
        raise CalculatorFailed(f"{what} have shape {found.shape}; expected {expected}")
    return found


def strained(atoms: Any, voigt: np.ndarray) -> Any:
    """Return atoms with their cell under a strain xx, yy, zz, yz, xz, xy; each shear is shared by two elements."""
    xx, yy, zz, yz, xz, xy = voigt
    strain = np.array([[xx, xy / 2, xz / 2], [xy / 2, yy, yz / 2], [xz / 2, yz / 2, zz]])
    found = atoms.copy()
    found.set_cell(atoms.cell @ (np.eye(3) + strain), scale_atoms=False)
    found.positions = atoms.positions @ (np.eye(3) + strain)
    return found


def moved(atoms: Any, positions: np.ndarray) -> Any:
    """Return atoms at other positions."""
    found = atoms.copy()
    found.positions = positions
    return found


@dataclass(frozen=True)
class Rounding:
    """What rounding does to the results of a calculator; all tolerances of its checks are made of it, here.

    `noise` are standard deviations of energy (of all atoms), forces and stress, by the fourth differences of
    nearby values. Results for atoms whose positions were rounded otherwise differ by more: the energy by `pull` (the
    sum of |forces|), a force by `curvature` (eV/Å^2), for each unit of length that atoms were rounded by.
    """

    noise: dict[str, float]
    pull: float
    curvature: float
    number: int
    volume: float
    extent: float

    def allowed(self, what: str, reach: float = 0.0, copies: int = 1) -> float:
        """Return what two results may differ by that are equal but for rounding.

        Parameters
        ----------
        what : str
            As in `UNITS`; of the energy it is per atom.
        reach : float
            Largest coordinate, where positions of one of the two were computed.
        copies : int
            How many times the atoms of these errors are in one of the two.

        Notes
        -----
        Two results have the error 2 * noise; `MARGIN` turns the estimated deviation of one into a bound of both. A
        coordinate is rounded by 2^-53 of itself, at most.
        """
        by_position = {
            "energy": self.pull,
            "forces": self.curvature,
            "stress": (self.pull + self.number * self.curvature * self.extent) / self.volume,
        }[what]
        bound = MARGIN * (2 * self.noise.get(what, 0.0) * copies + LAST_BITS * reach * by_position * copies)
        return max(bound / (self.number * copies if what == "energy" else 1), math.ulp(0.0))

    def net(self, arms: float = 1.0) -> float:
        """Return what the sum of all forces (times arms) may be: each contributes its noise, and bits of its sum."""
        return MARGIN * arms * (math.sqrt(self.number) * self.noise["forces"] + LAST_BITS * self.pull)


def _deviation(values: np.ndarray) -> float:
    """Return the deviation of the rounding errors of nearby values (num_points, num_channels): of the worst channel.

    It is `curves.noise_of` for many values at once, and no less than a quarter of a last bit.
    """
    fourth = np.diff(values, 4, axis=0)
    deviation = np.sqrt(np.mean(fourth**2, axis=0) / 70)
    return float(np.maximum(deviation, 2.0**-54 * abs(values[0])).max(initial=0.0))


def rounding_of(subject: Subject, atoms: Any, rng: np.random.Generator, size: float) -> Rounding:
    """Estimate what rounding does to a calculator's results.

    Parameters
    ----------
    subject : Subject
    atoms : ase.Atoms
    rng : numpy.random.Generator
        For directions.
    size : float
        Length of a displacement that changes little.

    Returns
    -------
    Rounding
    """
    x, found = atoms.positions, subject.offered(atoms)
    noise = dict.fromkeys(found, 0.0)
    slope = bend = 0.0
    for _ in range(DIRECTIONS):
        v = size * rng.uniform(0.5, 1.0, x.shape) * rng.choice([-1.0, 1.0], x.shape)
        strain = 0.1 * rng.uniform(-1.0, 1.0, 6) * bool(atoms.pbc.any())  # one atom in a cell knows of it alone
        for spacing in SPACINGS:
            nearby = [strained(moved(atoms, x + k * spacing * v), k * spacing * strain) for k in range(9)]
            for what, deviation in noise.items():
                values = np.array([np.ravel(subject.ask(what, there)) for there in nearby])
                noise[what] = max(deviation, _deviation(values))
        plus, minus = moved(atoms, x + 2.0**-10 * v), moved(atoms, x - 2.0**-10 * v)
        change = subject.ask("energy", plus) - subject.ask("energy", minus)
        slope = max(slope, abs(change) / (2.0**-9 * size))
        if "forces" in found:
            bent = abs(subject.ask("forces", plus) - subject.ask("forces", minus)).max() / (2.0**-9 * size)
            bend = max(bend, float(bent))
    pull = float(abs(subject.ask("forces", atoms)).sum()) if "forces" in found else slope * len(atoms)
    extent = float(np.ptp(x, axis=0).max()) + float(atoms.cell.lengths().max(initial=0.0))
    return Rounding(noise, pull, bend, len(atoms), float(atoms.cell.volume) or math.inf, extent)
