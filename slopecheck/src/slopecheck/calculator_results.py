"""Results of an ASE calculator and their rounding errors, from which the tolerances of its checks follow."""

import hashlib
import math
import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slopecheck.problem import InvalidResultError
from slopecheck.scans import LAST_BITS
from slopecheck.tolerances import MARGIN

# Units of the quantities that are checked.
UNITS = {"energy": "eV/atom", "forces": "eV/Å", "stress": "eV/Å^3"}
# Relative spacings of the points whose fourth differences estimate rounding: one for float64, and one large enough to
# change float32 positions. Fourth differences of a smooth function fall with the fourth power of the spacing.
SPACINGS = (2.0**-44, 2.0**-20)
DIRECTIONS = 2
REMEMBERED = 4096  # largest number of structures whose results are cached


@dataclass
class CalculatorUnderTest:
    """Source of calculators from one factory (a callable): one that is reused, and fresh ones."""

    factory: Callable[[], Any]
    name: str
    # The reused calculator; the check "history" tests whether its earlier computations affect results.
    _used: Any = None
    # Results of `reused_calculator`. The outer keys are digests of all data of atoms that a calculator can read, the
    # inner keys are quantities.
    _remembered: dict[bytes, dict[str, Any]] = field(default_factory=dict)

    @property
    def reused_calculator(self) -> Any:
        """The calculator for all calls that do not need a fresh one."""
        if self._used is None:
            self._used = self.make_calculator()
        return self._used

    def make_calculator(self) -> Any:
        """Return a new calculator."""
        calculator = self.factory()
        if not hasattr(calculator, "get_potential_energy"):
            raise InvalidResultError(f"the factory returned a {type(calculator).__name__}; expected an ASE calculator")
        return calculator

    def get_quantity(self, what: str, atoms: Any, calculator: Any = None) -> Any:
        """Return a quantity, named by a key of `UNITS`, for these atoms.

        Raises NotImplementedError (ASE's PropertyNotImplementedError) if the calculator does not support the quantity,
        and InvalidResultError if the result has the wrong shape.
        """
        key = digest_atoms(atoms) if calculator is None else None
        if key is None:
            return compute_quantity(calculator or self.reused_calculator, what, atoms.copy())
        if len(self._remembered) > REMEMBERED:
            self._remembered.clear()
        results = self._remembered.setdefault(key, {})
        if what not in results:
            results[what] = compute_quantity(self.reused_calculator, what, atoms.copy())
        return results[what]

    def list_supported_quantities(self, atoms: Any) -> list[str]:
        """Return the supported quantities, the energy first."""
        supported = ["energy"]
        for what in ("forces", "stress"):
            with suppress(NotImplementedError):
                self.get_quantity(what, atoms)
                supported.append(what)
        return supported


def digest_atoms(atoms: Any) -> bytes | None:
    """Return a digest of all data in the atoms that a calculator can read; None if an object cannot be pickled."""
    parts = (
        sorted(atoms.arrays.items()),
        atoms.info,
        atoms.cell.array,
        atoms.pbc,
        atoms.get_celldisp(),
        atoms.constraints,
    )
    try:
        return hashlib.sha256(pickle.dumps(parts)).digest()
    except Exception:  # pickling a user's object may raise any exception
        return None


def compute_quantity(calculator: Any, what: str, atoms: Any) -> Any:
    """Compute a quantity for this `Atoms` object itself, which the calculator may modify or keep."""
    if what == "energy":
        try:  # with smeared occupations, forces are the gradient of this energy
            return float(calculator.get_potential_energy(atoms, force_consistent=True))
        except (NotImplementedError, TypeError):
            return float(calculator.get_potential_energy(atoms))
    value = np.array(getattr(calculator, f"get_{what}")(atoms), np.float64)
    expected = (len(atoms), 3) if what == "forces" else (6,)
    if value.shape != expected:
        raise InvalidResultError(f"{what} have shape {value.shape}; expected {expected}")
    return value


def make_strained_atoms(atoms: Any, voigt: np.ndarray) -> Any:
    """Return a copy of the atoms and their cell under a strain (xx, yy, zz, yz, xz, xy) in Voigt notation."""
    xx, yy, zz, yz, xz, xy = voigt
    strain = np.array([[xx, xy / 2, xz / 2], [xy / 2, yy, yz / 2], [xz / 2, yz / 2, zz]])
    copy = atoms.copy()
    copy.set_cell(atoms.cell @ (np.eye(3) + strain), scale_atoms=False)
    copy.positions = atoms.positions @ (np.eye(3) + strain)
    return copy


def make_moved_atoms(atoms: Any, positions: np.ndarray) -> Any:
    """Return a copy of the atoms at the given positions."""
    copy = atoms.copy()
    copy.positions = positions
    return copy


@dataclass(frozen=True)
class RoundingErrors:
    """Rounding errors of a calculator's results, and the tolerances that follow from them.

    `noise` has the standard deviations of total energy, forces and stress, estimated from fourth differences of nearby
    values. The rounding of positions adds an error per unit of length: `pull` (the sum of |forces|) to the energy and
    `curvature` (eV/Å^2) to a force.
    """

    noise: dict[str, float]
    pull: float
    curvature: float
    number: int
    volume: float
    extent: float

    def compute_tolerance(self, what: str, reach: float = 0.0, copies: int = 1) -> float:
        """Return the tolerance for the difference of two results that are equal up to rounding (energies: per atom).

        `reach` is the largest coordinate if the positions of one result were computed. `copies` is the number of copies
        of the atoms in one of the results. The difference of two results has an error of 2 * noise; `MARGIN` turns this
        estimated deviation into a bound. A coordinate has a relative rounding error of at most 2^-53.
        """
        by_position = {
            "energy": self.pull,
            "forces": self.curvature,
            "stress": (self.pull + self.number * self.curvature * self.extent) / self.volume,
        }[what]
        bound = MARGIN * (2 * self.noise.get(what, 0.0) * copies + LAST_BITS * reach * by_position * copies)
        return max(bound / (self.number * copies if what == "energy" else 1), math.ulp(0.0))

    def compute_net_force_tolerance(self, arms: float = 1.0) -> float:
        """Return the tolerance for the sum of all forces (times lever arms), from noise and the sum's rounding."""
        return MARGIN * arms * (math.sqrt(self.number) * self.noise["forces"] + LAST_BITS * self.pull)


def _estimate_rounding_deviation(values: np.ndarray) -> float:
    """Return the largest standard deviation of rounding in any channel of nearby values (num_points, num_channels).

    The method of `curves.estimate_noise` is applied to each channel; the least result is a quarter of the last bit.
    """
    fourth = np.diff(values, 4, axis=0)
    deviation = np.sqrt(np.mean(fourth**2, axis=0) / 70)
    return float(np.maximum(deviation, 2.0**-54 * abs(values[0])).max(initial=0.0))


def estimate_rounding(
    subject: CalculatorUnderTest, atoms: Any, rng: np.random.Generator, size: float
) -> RoundingErrors:
    """Estimate the rounding errors of a calculator's results; `size` is the length of a small displacement."""
    x, offered = atoms.positions, subject.list_supported_quantities(atoms)
    noise = dict.fromkeys(offered, 0.0)
    slope = bend = 0.0
    for _ in range(DIRECTIONS):
        v = size * rng.uniform(0.5, 1.0, x.shape) * rng.choice([-1.0, 1.0], x.shape)
        # Crystals are also strained, because moving a lone atom has no effect.
        strain = 0.1 * rng.uniform(-1.0, 1.0, 6) * bool(atoms.pbc.any())
        for spacing in SPACINGS:
            nearby = [
                make_strained_atoms(make_moved_atoms(atoms, x + k * spacing * v), k * spacing * strain)
                for k in range(9)
            ]
            for what, deviation in noise.items():
                values = np.array([np.ravel(subject.get_quantity(what, moved_atoms)) for moved_atoms in nearby])
                noise[what] = max(deviation, _estimate_rounding_deviation(values))
        plus, minus = make_moved_atoms(atoms, x + 2.0**-10 * v), make_moved_atoms(atoms, x - 2.0**-10 * v)
        change = subject.get_quantity("energy", plus) - subject.get_quantity("energy", minus)
        slope = max(slope, abs(change) / (2.0**-9 * size))
        if "forces" in offered:
            bent = abs(subject.get_quantity("forces", plus) - subject.get_quantity("forces", minus)).max() / (
                2.0**-9 * size
            )
            bend = max(bend, float(bent))
    pull = float(abs(subject.get_quantity("forces", atoms)).sum()) if "forces" in offered else slope * len(atoms)
    extent = float(np.ptp(x, axis=0).max()) + float(atoms.cell.lengths().max(initial=0.0))
    return RoundingErrors(noise, pull, bend, len(atoms), float(atoms.cell.volume) or math.inf, extent)
